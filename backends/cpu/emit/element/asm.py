"""tt.elementwise_inline_asm: the PTX one-liners that kernels use, read as what they compute.

PTX's `.approx` functions promise a few units in the last place less than ours: no result gets worse. Whole programs in PTX
are refused: there is no PTX machine here.
"""

from __future__ import annotations

import re

from ...llvm.ir import const
from . import libdevice, math

_TEXT = re.compile(r"\s*\{?\s*([a-z0-9]+(?:[.:][a-z0-9]+)*)\s+([^;{}]*?)\s*;?\s*\}?\s*$")


def _bits(opname):
    return lambda b, x, y: b.bin(opname, x, y)


#: instruction without its `.approx`, `.full`, `.ftz` and `.rn` -> rule(b, *operands)
_UNARY = {
    "tanh.f32": math.tanh32, "ex2.f32": math.exp2_32, "lg2.f32": math.log2_32, "sin.f32": math.sin32, "cos.f32": math.cos32,
    "rcp.f32": libdevice.recip, "sqrt.f32": libdevice.intrinsic("sqrt"),
    "rsqrt.f32": libdevice.FUNCTIONS["__nv_rsqrtf"], "abs.f32": libdevice.intrinsic("fabs"),
    "neg.f32": lambda b, x: b.fneg(x),
    "popc.b32": libdevice.intrinsic("ctpop"), "brev.b32": libdevice.intrinsic("bitreverse"),
    "not.b32": lambda b, x: b.bin("xor", x, const(x.elem, -1)), "neg.s32": lambda b, x: b.sub(const(x.elem, 0), x),
    **{f"mov.{t}": lambda b, x: x for t in ("b32", "u32", "s32", "f32")},
}
_BINARY = {
    "div.f32": libdevice.div, "add.f32": lambda b, x, y: b.fbin("fadd", x, y, ""),
    "sub.f32": lambda b, x, y: b.fbin("fsub", x, y, ""), "mul.f32": lambda b, x, y: b.fbin("fmul", x, y, ""),
    "max.f32": libdevice.intrinsic("maxnum"), "min.f32": libdevice.intrinsic("minnum"),
    **{f"{name}.b32": _bits(name) for name in ("and", "or", "xor")},
    **{f"{name}.{t}": _bits(name.partition(".")[0]) for name in ("add", "sub", "mul.lo") for t in ("u32", "s32")},
    "max.s32": libdevice.intrinsic("smax"), "min.s32": libdevice.intrinsic("smin"),
    "max.u32": libdevice.intrinsic("umax"), "min.u32": libdevice.intrinsic("umin"),
}
_TERNARY = {"fma.f32": libdevice.intrinsic("fma")}


def inline_asm(b, op, *vals):
    text = op.attrs.get("asm", "")
    found = _TEXT.match(text)
    rule = None
    if found and len(op.results) == 1:
        name = re.sub(r"\.(approx|full|ftz|rn)(?=\.)", "", found[1])
        table = {1: _UNARY, 2: _BINARY, 3: _TERNARY}.get(len(vals), {})
        operands = [x.strip() for x in found[2].split(",")]
        if operands == [f"${k}" for k in range(len(vals) + 1)]:
            rule = table.get(name)
    if rule is None:
        known = ", ".join(n.replace(".", ".approx.") if n.split(".")[0] in ("tanh", "ex2", "lg2", "sin", "cos") else n
                          for n in [*_UNARY, *_BINARY, *_TERNARY])
        raise b.fn.kernel.error(op, f"inline assembly {text.strip()!r} is a GPU's; one instruction of its operands in order is "
                                f"taken ({known}). Write the rest with tl.math or libdevice")
    pack, types, taken = op.attrs.get("packed_element", 1), {v.type.elem for v in (*op.operands, op.result)}, "f32" if name.endswith("f32") else "i32"
    if pack != 1:
        raise b.fn.kernel.error(op, f"inline assembly {text.strip()!r} takes pack={pack} elements at a time; it is taken with pack=1, one by one")
    if types != {taken}:
        raise b.fn.kernel.error(op, f"inline assembly {text.strip()!r} has operands and results of {' and '.join(sorted(types))}, and it is taken of {taken} alone: "
                                "convert, or bitcast, in the kernel")
    return rule(b, *vals)


ELEMENTWISE = {"tt.elementwise_inline_asm": inline_asm}
