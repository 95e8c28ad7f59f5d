"""The report behind `triport report`: results files of any machines -> one page that opens offline, and PNGs.

    runs.py      results files -> `Run`s: rows that are sound, remarks on those that are not
    rows.py      a row with every field looked at, and what is drawn of it
    summary.py   a run in words              colours.py   one colour a backend, one mark a machine
    page.py      the page: page.css, plot.js (scales, axes, points), figures.js (the five kinds of plot), page.js (filters, table, details)
    png.py       the same plots by matplotlib
"""
