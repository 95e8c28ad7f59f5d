"""`triport report`: results files of any machines as one page that opens offline, and as PNGs."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = (
    "triport bench --op softmax --json laptop.json --artefacts laptop-code",
    "triport report laptop.json board.json -o report.html",
    "triport report laptop.json -o report.html --png plots",
)


def add(parser):
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json", help="files of `triport bench --json`, one for each machine")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default: report.html)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write each plot there as a PNG, too")


def run(args) -> int:
    from ..backends.base import Error
    from ..bench import whole
    from . import outputs
    from .reporting import page, runs

    outputs.file("-o", args.output, args.results)
    if args.png and args.png.exists() and not args.png.is_dir():
        raise Error(f"--png {args.png}: it is a file; name a folder")
    found = runs.read(args.results, args.output)
    for r in found:
        for remark in r.remarks:
            print(f"{r.name}: {remark}", file=sys.stderr)
    whole.write(args.output, page.render(found))
    print(f"wrote {args.output}", file=sys.stderr)
    if args.png:
        from .reporting import png
        try:
            written = png.write(found, args.png)
        except OSError as e:
            raise Error(f"{e.filename or args.png} cannot be written: {e.strerror}") from None  # a full disk's error names no file
        print(f"wrote {len(written)} plots in {args.png}", file=sys.stderr)
    return 0
