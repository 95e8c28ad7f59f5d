"""VECTOR, PARTLY or SCALAR for a hot loop of GPU code, and the likely causes with their remedies."""

from __future__ import annotations

from ..cause import PARTLY, SCALAR, VECTOR, Cause, Causes
from ..stats import Region

#: share of wide accesses from which a loop counts as vector code
_WHOLE = 0.95


def of(r: Region) -> str | None:
    """The verdict of a region; None where it neither computes nor touches memory."""
    widths = [w for i in r.instructions if i.what.space in ("global", "flat") for w in (i.what.loads, i.what.stores) if w]
    if not widths:
        return VECTOR if r.figures["vector"] else None
    wide = sum(w >= 128 for w in widths) / len(widths)
    return VECTOR if wide >= _WHOLE else SCALAR if max(widths) <= 32 else PARTLY


def causes(r: Region) -> list[Cause]:
    """What stands in the way, the likeliest first. Empty for a loop without faults."""
    out = Causes(r)
    code, add = r.code, out.add
    for target, count in r.calls.items():
        add("scalar call", f"call `{target}`" + (f", {count} of them" if count > 1 else ""),
            "the function was not inlined: remove noinline, or compute it with tl operations", lambda i: i.what.kind == "call")
    if r.figures["gathers"]:
        add("stride not one", f"{r.figures['gathers']} gathers or scatters: neighbouring elements do not lie side by side",
            "let the tile's last dimension run along contiguous memory, or transpose once before the loop",
            lambda i: i.what.kind in ("gather", "scatter"))
    if of(r) in (SCALAR, PARTLY):
        width = r.figures["load_bits"] or r.figures["store_bits"]
        pick = lambda i: i.what.space in ("global", "flat")  # noqa: E731
        if code.unaligned:
            add("alignment unknown", f"accesses of {width} bits a thread: {', '.join(code.unaligned)} not known divisible by 16",
                "pass tensors that start at 16 bytes and sizes divisible by 16, or say so with tl.multiple_of", pick)
        else:
            add("narrow accesses", f"accesses of {width} bits a thread", "let each thread own 16 neighbouring bytes: a larger BLOCK, fewer "
                "warps, or a last dimension that is contiguous", pick)
    if r.figures["spills"]:
        add("spills", f"{r.figures['spills']} accesses to stack slots", "a smaller tile, fewer values alive at once, more warps", lambda i: i.what.is_spill)
    if r.figures["f64"]:
        add("fp64", f"{r.figures['f64']} fp64 instructions, though no argument is fp64", "cast to tl.float32, write constants as fp32",
            lambda i: i.what.element == "f64")
    if (r.figures["convert"] or 0) >= 0.25:
        add("type conversion", f"{r.figures['convert']:.0%} of the floating-point instructions convert", "keep one element type through the loop",
            lambda i: i.what.kind == "convert")
    return out
