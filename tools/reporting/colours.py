"""One colour for each backend, wherever it is drawn, and one mark for each machine. The colours are of Okabe and Ito's set, which people of any
colour vision tell apart; black and yellow are left out, for one of them vanishes on a light or a dark page; `auto` has a violet beside them."""

from __future__ import annotations

COLOURS = {"torch": "#0072b2", "torch-compile": "#cc79a7", "triton-cpu": "#d55e00", "triton-gpu": "#e69f00", "cuda": "#009e73", "auto": "#7818d8",
           "spine": "#56b4e9"}
#: for backends that the table does not know: neutral
OTHERS = ("#8a8a8a", "#a6761d", "#666699")
#: for machines in order: the names that plot.js draws, and matplotlib's
MARKS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "plus": "P"}
#: for machines in order, as SVG's stroke-dasharray
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 3", "4 2 1 2")


def of(backends: list[str]) -> dict[str, str]:
    """Backend -> colour, in the table's order and then in the order given."""
    known = {b: c for b, c in COLOURS.items() if b in backends}
    others = [b for b in dict.fromkeys(backends) if b not in COLOURS]
    return known | {b: OTHERS[n % len(OTHERS)] for n, b in enumerate(others)}
