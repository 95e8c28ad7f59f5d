"""Figures as text: each in the unit that suits it, to about three digits, and none rounded to nothing. Shared by the terminal's table, Markdown, the
page of `triport report` and its plots."""

from __future__ import annotations

import math


def time_text(s: float) -> str:
    """Seconds at a glance: 8.2 ns, 12.3 us, 4.56 ms, 1.20 s, 1000 s."""
    if s < 0.99995e-6:
        return f"{s * 1e9:.1f} ns" if s >= 5e-11 else f"{s * 1e9:.1g} ns" if s else "0 s"
    if s < 0.99995e-3:
        return f"{s * 1e6:.1f} us"
    return f"{s * 1e3:.2f} ms" if s < 0.999995 else f"{s:.2f} s" if s < 99.995 else f"{s:.0f} s"


def ratio(x: float) -> str:
    """A speed-up at a glance, never rounded to nothing: 1.98x, 21.2x, 4200x, 0.00042x."""
    if x >= 9.995:
        return f"{x:.3g}x" if x < 999.5 or x >= 1e6 else f"{x:.0f}x"
    return f"{x:.2f}x" if x >= 0.0995 else f"{x:.2g}x"


def short(x: float) -> str:
    """Three digits, without an exponent where that is readable."""
    return f"{float(f'{x:.3g}'):.10g}"


def prefixed(x: float, unit: str = "", digits: bool = False) -> str:
    """A quantity with an SI prefix: 11 GB/s, 830 MFLOP/s, 512 B. digits: three of them, whatever they are (11.0 GB/s), as columns have them."""
    x = float(f"{x:.3g}")
    size, letter = next(((s, n) for s, n in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if x >= s), (1, ""))
    number = f"{x / size:#.3g}".rstrip(".") if digits else short(x / size)
    return f"{number} {letter}{unit}".rstrip()


def percent(x: float) -> str:
    """A part of one: 98%, 4.2%, 0.03%."""
    return f"{100 * x:.0f}%" if x >= 0.0995 else f"{100 * x:.1f}%" if x >= 0.000995 or not x else f"{100 * x:.1g}%"


def geomean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def plain(text) -> str:
    """Text that a line of a terminal can hold: what is not printable (line ends, escape sequences) becomes a space."""
    return "".join(c if c.isprintable() else " " for c in str(text)).strip()
