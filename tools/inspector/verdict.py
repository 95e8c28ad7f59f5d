"""VECTOR, PARTLY or SCALAR for a hot loop, the likely causes with their remedies, and requirements that fail a CI job."""

from __future__ import annotations

import math
import operator
import re

from ...backends.base import Error, suggest
from . import gpu as gpus, lanes
from .cause import PARTLY, SCALAR, VECTOR, Cause, Causes, decided  # noqa: F401
from .isa import vector_function
from .stats import DIVIDE, FIGURES, Region, converts, is_wide
from .weights import GUARDED

#: shares from which a loop counts as vector code, and below which it counts as scalar code
_WHOLE, _NONE = 0.95, 0.05
#: share of unknown instructions from which there is no verdict
UNKNOWN = 0.02


def of(r: Region, gpu: bool) -> str | None:
    """The verdict of a region; None where it neither computes nor touches memory."""
    if gpu:
        return gpus.of(r)
    share = r.figures["vector"]
    if share is None:
        return SCALAR if r.scalar_calls else None
    if r.scalar_calls and share >= _NONE:
        return PARTLY
    return VECTOR if share >= _WHOLE else SCALAR if share < _NONE else PARTLY


def weighed(share: float | None, hot: list[Region]) -> str | None:
    """A CPU kernel's verdict from the share of its work that vector code does. What a hot loop calls for single elements is never vector code."""
    if share is None:
        return None
    return SCALAR if share < _NONE else PARTLY if share < _WHOLE or any(r.scalar_calls for r in hot) else VECTOR


def none(report) -> str:
    """Why a report has no verdict."""
    return f"no verdict: {report.unknown:.1%} of the instructions are unknown" if report.unknown > UNKNOWN else "nothing to judge"


def overall(verdicts: list[str | None]) -> str | None:
    """A kernel's verdict from its hot loops'."""
    known = {v for v in verdicts if v}
    return None if not known else known.pop() if len(known) == 1 else PARTLY


# --- causes ----------------------------------------------------------------------------------------------------------


_LIBM = re.compile(r"(?:_ZGV\w+_)?(exp2?|exp10|expm1|log(2|10|1p)?|sin|cos|tan|a?sinh?|a?cosh?|a?tanh?|atan2|pow|erfc?|fmod|cbrt|hypot|tgamma|lgamma|rsqrt)[fl]?$")
_NATIVE = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "rsqrt", "sqrt")


#: what a loop that computes one element at a time may be named after, the first that it has: atomic operations, arithmetic on floating-point elements, memory, any arithmetic
_SCALAR = (lambda i: i.what.kind == "atomic" and i.what.unit == "scalar", lambda i: i.what.is_float_work and i.what.unit == "scalar",
           lambda i: i.what.is_memory and not i.what.is_spill and i.what.unit == "scalar", lambda i: i.what.kind == "arithmetic" and i.what.unit == "scalar")
#: what polynomials serve (backends/cpu/emit/element), by libm's name
_BEYOND = {"sinf": "71476", "cosf": "71476", "sin": "10^6", "cos": "10^6", "tanf": "10^6", "fmodf": "2^27 times its divisor"}


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
        if vector_function(target):
            continue
        name = target.partition("@")[0]
        short = re.sub(r"[fl]$", "", name) if name not in ("erf",) else name
        if name.startswith(("__trunc", "__extend")) or re.match(r"__\w+[hs]f2", name):
            remedy = "the target has no instruction for this conversion: convert by integer operations, or choose a target that has one"
        elif code.backend == "triton-cpu" and name in GUARDED:
            remedy = f"only where a vector holds a number beyond {_BEYOND[name]}, and not counted as work: reduce what is larger before"
        elif short in _NATIVE:
            remedy = f"tl.{short} in fp32 is computed in vectors; compute in fp32, or replace the libdevice call by it"
        elif _LIBM.match(name):
            remedy = "the C library computes one element a call: write it with tl.exp, tl.log, tl.sqrt and arithmetic in fp32"
        else:
            remedy = "the function was not inlined: remove noinline, or compute it with tl operations"
        add("scalar call", f"scalar call `{name}`" + (f", {count} of them" if count > 1 else ""), remedy, lambda i: i.what.kind == "call")
    if strings := sum(bool(re.match(r"(rep\w* )?(movs|stos|lods|scas|cmps)[bwlq]$", i.mnemonic)) for i in r.instructions):
        add("string instruction", f"{strings} string instructions, which the machine's microcode carries out", "copy and fill by vectors, or by memcpy and memset",
            lambda i: i.what.is_memory)
    divisions = sum(bool(DIVIDE.match(i.mnemonic)) and not i.what.is_float for i in r.instructions)
    if divisions:
        add("index by division", f"{divisions} integer divisions in the loop", "index with one tl.arange for each dimension instead of // and %",
            lambda i: bool(DIVIDE.match(i.mnemonic)))
    if gathers := r.kinds["gather"] + r.kinds["scatter"]:
        add("stride not one", f"{gathers} gathers or scatters: neighbouring elements do not lie side by side",
            "let the tile's last dimension run along contiguous memory, or transpose once before the loop",
            lambda i: i.what.kind in ("gather", "scatter"))
    if r.assembled:
        add("stride not one", f"{sum(i.what.lane for i in r.instructions)} loads or stores of vectors' single elements: neighbouring elements do not lie side by side",
            "let the tile's last dimension run along contiguous memory, or transpose once before the loop",
            lambda i: i.what.lane)
    inserts = sum(i.what.kind == "shuffle" and i.what.loads in (8, 16, 32, 64) or _assembles(i) for i in r.instructions)
    if inserts >= 4 and inserts * 8 >= n and not r.assembled:
        add("stride not one", f"vectors are put together from {inserts} single elements", "let the tile's last dimension run along contiguous memory",
            lambda i: i.what.kind == "shuffle")
    if verdict in (SCALAR, PARTLY) and not out:
        pick = next((kind for kind in _SCALAR if any(map(kind, r.instructions))), _SCALAR[-1])
        atomics = sum(_SCALAR[0](i) and i.what.stores > 0 for i in r.instructions)  # a load that a conditional store answers is half of one
        if atomics:
            add("scalar arithmetic", f"{atomics} atomic {'operation' if atomics == 1 else 'operations'}, one element each", "add up in registers (tl.sum) what goes to one place, and add the sum atomically", pick)
        elif code.backend == "triton-cpu" and (lacked := lanes.lacked(r)):
            what, those = lacked
            add("no vector instruction", f"{len(those)} instructions compute {what}, one element each: {code.target} has none for a vector of them", "compute it in 32 bits, where the numbers allow that",
                lambda i: any(i is one for one in those))
        else:
            add("scalar arithmetic", "the loop computes one element at a time", "the data may be indexed by another loop's values, or a mask may not be a bound: use tl.arange "
                "offsets with `offs < n`" if code.typed else "let each round be independent of the others: no value carried on, no element found by another's, no early end", pick)
    masked = r.figures["masked"] or 0
    if masked >= 0.5 and not r.tail:
        add("mask in every chunk", f"{masked:.0%} of the accesses are masked", "mask with `offs < n`, whose full chunks need none; masks from data "
            "need them all", lambda i: i.what.masked)
    if r.figures["spills"]:
        add("spills", f"{r.figures['spills']} accesses to stack slots", "a smaller tile, fewer values alive at once",
            lambda i: i.what.is_spill)
    if r.figures["f64"] and code.typed:
        add("fp64", f"{r.figures['f64']} fp64 instructions, though no argument is fp64", "cast to tl.float32, write constants as fp32",
            lambda i: is_wide(r, i))
    if (r.figures["convert"] or 0) >= 0.25:
        add("type conversion", f"{r.figures['convert']:.0%} of the floating-point instructions convert", "keep one element type through the loop",
            lambda i: converts(r, i))
    floats = sum(i.what.is_float_work for i in r.instructions)
    if r.loop is not None and not r.tail and not r.assembled and 0 < floats <= 2 and n - floats - r.kinds["load"] - r.kinds["store"] > n // 2 and n > 4:
        add("not unrolled", f"{floats} of {n} instructions compute, the rest counts and addresses", "give the loop more work: a larger BLOCK")
    return out


def _assembles(i) -> bool:
    """Does an instruction put one element into a vector?"""
    return bool(re.match(r"v?pinsr|v?insertps|vslide1|vfslide1|ins$", i.mnemonic) or re.match(r"(ld1 .*\}\s*|mov v\d+\.\w)\[\d+\]", i.text))


# --- requirements ----------------------------------------------------------------------------------------------------

_OPS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "=": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt}


#: verdicts from the worst on, as `--require verdict>=PARTLY` compares them
_VERDICTS = (SCALAR, PARTLY, VECTOR)


def requirements(text: str) -> list[tuple[str, str, float | str]]:
    """[(figure, comparison, bound)] of "vector>=0.9, spills=0, verdict=VECTOR". Raises `Error` for unknown names and malformed parts."""
    out: list[tuple[str, str, float | str]] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        if hit := re.fullmatch(r"verdict\s*(>=|<=|==|!=|=|>|<)\s*(\w*)", part):
            if hit[2].upper() not in _VERDICTS:
                raise Error(f"--require {part!r}: a verdict is {', '.join(reversed(_VERDICTS))}")
            out.append(("verdict", hit[1], hit[2].upper()))
            continue
        hit = re.fullmatch(r"(\w+)\s*(>=|<=|==|!=|=|>|<)\s*([-+.\deE]+)(%?)", part)
        try:
            bound = float(hit[3]) / (100 if hit[4] else 1) if hit else 0.0
        except ValueError:
            hit = None
        if not hit:
            raise Error(f"--require {part!r}: it takes parts like vector>=0.9, spills=0, verdict=VECTOR, joined by commas; figures: "
                        f"verdict, {', '.join(FIGURES)}")
        if hit[1] not in FIGURES:
            raise Error(suggest("figure in --require", hit[1], ["verdict", *FIGURES]))
        if FIGURES[hit[1]].startswith("share of") and not 0 <= bound <= 1:
            raise Error(f"--require {part!r}: {hit[1]} is a share, from 0 to 1; 95% is 0.95 or 95%")
        out.append((hit[1], hit[2], bound))
    if not out:
        raise Error("--require is empty; it takes parts like vector>=0.9, spills=0, verdict=VECTOR")
    return out


def failures(r: Region, required, gpu: bool) -> list[str]:
    """One line for each requirement that a region does not meet."""
    out = []
    for name, comparison, bound in required:
        value = r.figures.get(name)
        if name == "verdict" or value is None or _OPS[comparison](value, bound):
            continue
        why = causes(r, gpu)
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        fitting = next((c for c in why if c.name == {"spills": "spills", "gathers": "stride not one", "f64": "fp64", "calls": "scalar call", "conflicts": "bank conflicts", "occupancy": "low occupancy",
                                                           "tensor_cores": "no tensor cores"}.get(name)), why[0] if why else None)
        reason = f": {fitting.text}" + (f" ({fitting.line})" if fitting.line else "") if fitting else ""
        out.append(f"{r.code.name} [{r.code.target}] {r.label}{' ' + r.where if r.where else ''}: {name} is {shown}, required {comparison}{bound:g}{reason}")
    return out


def failures_of_all(report, required) -> list[str]:
    """One line for each requirement that a report as a whole does not meet: its verdict, the share of its work that is vector code, a figure that none of
    its hot loops has (then nothing was shown to be as required), instructions that are not known."""
    out, head = [], f"{report.code.name} [{report.code.target}]"
    if report.unknown > UNKNOWN and any(name != "unknown" for name, _, _ in required):
        out.append(f"{head}: {report.unknown:.1%} of the instructions are unknown, so no figure of it can be trusted (at most {UNKNOWN:.0%} may be)")
    for name, comparison, bound in required:
        if name == "verdict":
            if not report.verdict or not _OPS[comparison](_VERDICTS.index(report.verdict), _VERDICTS.index(bound)):
                out.append(f"{head}: the verdict is {report.verdict or 'none'}, required {comparison}{bound}{shared(report)}")
        elif all(r.figures.get(name) is None for r in report.hot):
            out.append(f"{head}: no hot loop has a figure {name}, required {comparison}{bound:g}")
        elif name == "vector" and any(r.figures[name] is None for r in report.hot):
            label = next(r.label for r in report.hot if r.figures[name] is None)
            out.append(f"{head} {label}: it has no figure {name}, required {comparison}{bound:g}")
        elif name == "vector" and comparison in (">=", ">") and report.share is not None and not _OPS[comparison](round(report.share, 4), bound) and all(
                _OPS[comparison](r.figures[name], bound) for r in report.hot):
            out.append(f"{head}: {percent(report.share)} of the work is vector, required {comparison}{bound:g}")
    return out


def shared(report) -> str:
    """": 83% of the work is vector"; empty where that is not known."""
    return "" if report.share is None else f": {percent(report.share)} of the work is vector"


def percent(share: float) -> str:
    """A share in words that never rounds up to all of it, nor down to nothing, nor to what would have another verdict."""
    if any(share < bound <= round(share, 2) for bound in (_NONE, _WHOLE)):
        return f"{math.floor(share * 1000) / 10}%"
    return "over 99%" if 0.995 <= share < 1 else "under 1%" if 0 < share < 0.005 else f"{share:.0%}"
