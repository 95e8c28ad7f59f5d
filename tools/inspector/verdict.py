"""VECTOR, PARTLY or SCALAR for a hot loop, the likely causes with their remedies, and requirements that fail a CI job."""

from __future__ import annotations

import operator
import re

from ...backends.base import Error, suggest
from . import gpu as gpus
from .cause import PARTLY, SCALAR, VECTOR, Cause, Causes, decided  # noqa: F401
from .stats import FIGURES, Region

#: shares from which a loop counts as vector code, and below which it counts as scalar code
_WHOLE, _NONE = 0.95, 0.05


def of(r: Region, gpu: bool) -> str | None:
    """The verdict of a region; None where it neither computes nor touches memory."""
    if gpu:
        return gpus.of(r)
    share = r.figures["vector"]
    if share is None:
        return SCALAR if r.figures["calls"] else None
    if r.figures["calls"] and share >= _NONE:
        return PARTLY
    return VECTOR if share >= _WHOLE else SCALAR if share < _NONE else PARTLY


def overall(verdicts: list[str | None]) -> str | None:
    """A kernel's verdict from its hot loops'."""
    known = {v for v in verdicts if v}
    return None if not known else known.pop() if len(known) == 1 else PARTLY


# --- causes ----------------------------------------------------------------------------------------------------------


_DIVIDE = re.compile(r"i?div[bwlq]?$|u?s?div$|div[u]?w?$|rem[u]?w?$|udiv$|sdiv$")
_LIBM = re.compile(r"(?:_ZGV\w+_)?(exp2?|exp10|expm1|log(2|10|1p)?|sin|cos|tan|a?sinh?|a?cosh?|a?tanh?|atan2|pow|erfc?|fmod|cbrt|hypot|tgamma|lgamma|rsqrt)[fl]?$")
_NATIVE = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "rsqrt", "sqrt")


def causes(r: Region, gpu: bool) -> list[Cause]:
    """What stands in the way, the likeliest first. Empty for a loop without faults."""
    if gpu:
        return gpus.causes(r)
    out = Causes(r)
    code, n, add = r.code, max(1, len(r.instructions)), out.add
    verdict = of(r, False)

    if not code.vector_bits and verdict != VECTOR:
        add("no vector unit", f"target {code.target} has no vector instructions", "choose a target with vectors (rv64gcv, spacemit-x60)")
    for target, count in r.calls.items():
        name = target.partition("@")[0]
        short = re.sub(r"[fl]$", "", name) if name not in ("erf",) else name
        if name.startswith(("__trunc", "__extend")) or re.match(r"__\w+[hs]f2", name):
            remedy = "the target has no instruction for this conversion: convert by integer operations, or choose a target that has one"
        elif short in _NATIVE:
            remedy = f"tl.{short} in fp32 is computed in vectors; compute in fp32, or replace the libdevice call by it"
        elif _LIBM.match(name):
            remedy = "the C library computes one element a call: write it with tl.exp, tl.log, tl.sqrt and arithmetic in fp32"
        else:
            remedy = "the function was not inlined: remove noinline, or compute it with tl operations"
        add("scalar call", f"scalar call `{name}`" + (f", {count} of them" if count > 1 else ""), remedy, lambda i: i.what.kind == "call")
    divisions = sum(bool(_DIVIDE.match(i.mnemonic)) and not i.what.is_float for i in r.instructions)
    if divisions:
        add("index by division", f"{divisions} integer divisions in the loop", "index with one tl.arange for each dimension instead of // and %",
            lambda i: bool(_DIVIDE.match(i.mnemonic)))
    if r.figures["gathers"]:
        add("stride not one", f"{r.figures['gathers']} gathers or scatters: neighbouring elements do not lie side by side",
            "let the tile's last dimension run along contiguous memory, or transpose once before the loop",
            lambda i: i.what.kind in ("gather", "scatter"))
    inserts = sum(i.what.kind == "shuffle" and i.what.loads in (8, 16, 32, 64) or _assembles(i) for i in r.instructions)
    if inserts >= 4 and inserts * 8 >= n:
        add("stride not one", f"vectors are put together from {inserts} single elements", "let the tile's last dimension run along contiguous memory",
            lambda i: i.what.kind == "shuffle")
    if verdict in (SCALAR, PARTLY) and not out:
        add("scalar arithmetic", "the loop computes one element at a time",
            "the data may be indexed by another loop's values, or a mask may not be a bound: use tl.arange offsets with `offs < n`",
            lambda i: i.what.is_float_work and i.what.unit == "scalar")
    masked = r.figures["masked"] or 0
    if masked >= 0.5 and not r.tail:
        add("mask in every chunk", f"{masked:.0%} of the accesses are masked", "mask with `offs < n`, whose full chunks need none; masks from data "
            "need them all", lambda i: i.what.masked)
    if r.figures["spills"]:
        add("spills", f"{r.figures['spills']} accesses to stack slots", "a smaller tile, fewer values alive at once",
            lambda i: i.what.is_spill)
    if r.figures["f64"]:
        add("fp64", f"{r.figures['f64']} fp64 instructions, though no argument is fp64", "cast to tl.float32, write constants as fp32",
            lambda i: i.what.element == "f64")
    if (r.figures["convert"] or 0) >= 0.25:
        add("type conversion", f"{r.figures['convert']:.0%} of the floating-point instructions convert", "keep one element type through the loop",
            lambda i: i.what.kind == "convert")
    floats = sum(i.what.is_float_work for i in r.instructions)
    if r.loop is not None and not r.tail and 0 < floats <= 2 and n - floats - r.kinds["load"] - r.kinds["store"] > n // 2 and n > 4:
        add("not unrolled", f"{floats} of {n} instructions compute, the rest counts and addresses", "give the loop more work: a larger BLOCK")
    return out


def _assembles(i) -> bool:
    """Does an instruction put one element into a vector?"""
    return bool(re.match(r"v?pinsr|v?insertps|vslide1|vfslide1|ins$", i.mnemonic))


# --- requirements ----------------------------------------------------------------------------------------------------

_OPS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "=": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt}


def requirements(text: str) -> list[tuple[str, str, float]]:
    """[(figure, comparison, bound)] of "vector>=0.9, spills=0". Raises `Error` for unknown names and malformed parts."""
    out = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        hit = re.fullmatch(r"(\w+)\s*(>=|<=|==|!=|=|>|<)\s*([-+.\deE]+)(%?)", part)
        try:
            bound = float(hit[3]) / (100 if hit[4] else 1) if hit else 0.0
        except ValueError:
            hit = None
        if not hit:
            raise Error(f"--require {part!r}: it takes parts like vector>=0.9, spills=0, joined by commas; figures: {', '.join(FIGURES)}")
        if hit[1] not in FIGURES:
            raise Error(suggest("figure in --require", hit[1], FIGURES))
        out.append((hit[1], hit[2], bound))
    if not out:
        raise Error("--require is empty; it takes parts like vector>=0.9, spills=0")
    return out


def failures(r: Region, required, gpu: bool) -> list[str]:
    """One line for each requirement that a region does not meet. A figure that a region has not (loads where nothing is loaded) fails nothing."""
    out = []
    for name, comparison, bound in required:
        value = r.figures.get(name)
        if value is None or _OPS[comparison](value, bound):
            continue
        why = causes(r, gpu)
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        fitting = next((c for c in why if c.name == {"spills": "spills", "f64": "fp64", "calls": "scalar call", "conflicts": "bank conflicts", "occupancy": "low occupancy",
                                                           "tensor_cores": "no tensor cores"}.get(name)), why[0] if why else None)
        reason = f": {fitting.text}" + (f" ({fitting.line})" if fitting.line else "") if fitting else ""
        out.append(f"{r.code.name} [{r.code.target}] {r.label}{' ' + r.where if r.where else ''}: {name} is {shown}, required {comparison}{bound:g}{reason}")
    return out


