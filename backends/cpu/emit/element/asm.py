"""tt.elementwise_inline_asm: the few lines of PTX that kernels use, read as what they compute: instructions one after the other, with registers of their own, and no branches.

PTX's `.approx` functions promise a few units in the last place less than ours: no result gets worse. What is not in the tables is refused: there is no PTX machine here.
"""

from __future__ import annotations

import re
import struct

from ...llvm.elements import REGISTER
from ...llvm.ir import Val, bits_of, const
from . import convert, libdevice, narrow, single

#: an instruction's name, and its operands
_STATEMENT = re.compile(r"([a-z][a-z0-9]*(?:[.:][a-z0-9]+)*)\s+(\S.*)$", re.S)
_DECLARED = re.compile(r"\.reg\s+\.([a-z]+\d+)\s+(.*)$", re.S)
#: LLVM's type of PTX's
_TYPES = {"f32": "float", **{f"{kind}{bits}": f"i{bits}" for kind in "bus" for bits in (8, 16, 32)}}


def _bits(opname):
    return lambda b, x, y: b.bin(opname, x, y)


#: instruction without its `.approx`, `.full`, `.ftz` and `.rn` -> rule(b, *operands)
_UNARY = {
    "tanh.f32": single.tanh32, "ex2.f32": single.exp2_32, "lg2.f32": single.log2_32, "sin.f32": single.sin32, "cos.f32": single.cos32,
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


def _to_integer(signed: bool, rounding: str = ""):
    return lambda b, x: convert.to_int_sat(b, b.intrinsic(rounding, x) if rounding else x, "i32", signed)


def _e2m1(b, x: Val) -> Val:
    """The four bits (in an i32) of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, of two the one with an even number; NaN is 6, as PTX's `.satfinite` has it."""
    size, code = b.intrinsic("fabs", x), const("i32", 0, x.lanes)
    for k, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        beyond = b.fcmp("uge" if k % 2 else "ugt", size, const("float", middle, x.lanes))
        code = b.add(code, b.cast("zext", beyond, "i32"))
    negative = b.icmp("slt", b.bitcast(b.select(b.fcmp("ord", x, x), x, const("float", 0.0, x.lanes)), "i32"), const("i32", 0, x.lanes))
    return b.or_(code, b.bin("shl", b.cast("zext", negative, "i32"), const("i32", 3, x.lanes)))


def _two_e2m1(b, high: Val, low: Val) -> Val:
    return b.cast("trunc", b.or_(b.bin("shl", _e2m1(b, high), const("i32", 4, high.lanes)), _e2m1(b, low)), "i8")


#: instruction -> (the result's type, its operands', rule)
_CONVERSIONS = {
    **{f"cvt.{how}i.{t}.f32": ("i32", ("float",), _to_integer(t == "s32", name)) for t in ("s32", "u32")
       for how, name in (("rz", ""), ("rn", "roundeven"), ("rm", "floor"), ("rp", "ceil"))},
    "cvt.f32.s32": ("float", ("i32",), lambda b, x: b.cast("sitofp", x, "float")), "cvt.f32.u32": ("float", ("i32",), lambda b, x: b.cast("uitofp", x, "float")),
    "cvt.bf16.f32": ("i16", ("float",), lambda b, x: narrow.narrow(b, x, "bf16")), "cvt.f16.f32": ("i16", ("float",), lambda b, x: b.bitcast(narrow.half_of(b, x), "i16")),
    "cvt.f32.bf16": ("float", ("i16",), lambda b, x: narrow.widen(b, x, "bf16")), "cvt.f32.f16": ("float", ("i16",), lambda b, x: b.cast("fpext", b.bitcast(x, "half"), "float")),
    **{f"cvt.{kind}{to}.{kind}{of}": (f"i{to}", (f"i{of}",), lambda b, x, name=name, to=to: b.cast(name, x, f"i{to}"))
       for kind, name in (("u", "zext"), ("s", "sext")) for to, of in ((32, 16), (32, 8), (16, 8))},
    "cvt.satfinite.e2m1x2.f32": ("i8", ("float", "float"), _two_e2m1),
}
_TABLE = {**{name: (_TYPES.get(name.rpartition(".")[2], "i32"), (_TYPES.get(name.rpartition(".")[2], "i32"),) * count, rule)
             for count, table in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)) for name, rule in table.items()}, **_CONVERSIONS}


def _plain(name: str) -> str:
    """An instruction's name as the tables have it."""
    return re.sub(r"\.(approx|full|ftz|rn)(?=\.)", "", name)


class _Refused(Exception):
    """What an inline assembly is not taken for."""


class _Program:
    """Carries out statements, from the values that are given as $1, $2 ...; types: of $0 and of these, LLVM's."""

    def __init__(self, b, op, vals):
        self.b, self.lanes, self.text = b, max((v.lanes for v in vals), default=1), op.attrs.get("asm", "").strip()
        self.values = {f"${k}": v for k, v in enumerate(vals, 1)}
        self.elems = {f"${k}": v.type.elem for k, v in enumerate((op.result, *op.operands))}
        self.types = {name: REGISTER[elem] for name, elem in self.elems.items()}

    def run(self) -> Val:
        for statement in self._statements():
            self._carry_out(statement)
        if "$0" not in self.values:
            raise _Refused(self._whole("it gives $0 no value"))
        return self.values["$0"]

    def _statements(self) -> list[str]:
        text = self.text
        if text[:1] == "{" and text[-1:] == "}":
            text = text[1:-1]
        return [*filter(None, map(str.strip, text.split(";")))]

    def look_up(self):
        """Refuse instructions that are not taken in any number of elements."""
        for statement in self._statements():
            if _DECLARED.match(statement) is None and ((found := _STATEMENT.match(statement)) is None or _plain(found[1]) not in _TABLE):
                raise _Refused(self._whole(f"{statement!r} is not taken"))

    def _whole(self, why: str) -> str:
        known = ", ".join(n.replace(".", ".approx.") if n.split(".")[0] in ("tanh", "ex2", "lg2", "sin", "cos") else n for n in _TABLE)
        return (f"inline assembly {self.text!r} is a GPU's, and {why}; taken are instructions one after the other, in registers that it declares, of these: {known}. "
                "Write the rest with tl.math or libdevice")

    def _carry_out(self, statement: str):
        if (declared := _DECLARED.match(statement)) is not None:
            names = [n.strip() for n in declared[2].split(",")]
            if declared[1] not in _TYPES or not all(re.fullmatch(r"[A-Za-z_%][\w$%]*", n) for n in names):
                raise _Refused(self._whole(f"{statement!r} is not taken"))
            self.types |= dict.fromkeys(names, _TYPES[declared[1]])
            return
        found = _STATEMENT.match(statement)
        name = _plain(found[1]) if found else ""
        to, *operands = [x.strip() for x in found[2].split(",")] if found else [""]
        if name not in _TABLE or len(operands) != len(_TABLE[name][1]) or to not in self.types or to[:1] == "$" and to != "$0":
            raise _Refused(self._whole(f"{statement!r} is not taken"))
        result, takes, rule = _TABLE[name]
        used = [self.elems[x] for x in (to, *operands) if x in self.elems]
        if self.types[to] != result or any(x in self.types and self.types[x] != t for x, t in zip(operands, takes)):
            kinds = dict.fromkeys("f32" if t == "float" else t for t in (*takes, result))
            raise _Refused(f"inline assembly {self.text!r} has operands and results of {' and '.join(sorted(set(used)))}, and it is taken of {' and '.join(kinds)}"
                           f"{' alone' if len(kinds) == 1 else ''}: convert, or bitcast, in the kernel")
        self.values[to] = rule(self.b, *(self._value(x, t) for x, t in zip(operands, takes)))

    def _value(self, text: str, ty: str) -> Val:
        """An operand: a register that has a value, or a number."""
        if text in self.types:
            if text not in self.values:
                raise _Refused(self._whole(f"{text} has no value where it is used"))
            return self.values[text]
        if ty == "float":
            if (bits := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text)) is not None:
                return self.b.splat(self.b.bitcast(const("i32", int(bits[1], 16) - (int(bits[1], 16) >> 31 << 32)), "float"), self.lanes)
            if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", text):
                return self.b.splat(const("float", struct.unpack("f", struct.pack("f", float(text)))[0]), self.lanes)
        elif re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|[1-9]\d*|0)", text):
            n, bits = int(text, 0), bits_of(ty)
            if -(1 << bits - 1) <= n < 1 << bits:
                return self.b.splat(const(ty, n - (n >> bits - 1 << bits) if n > 0 else n), self.lanes)
        raise _Refused(self._whole(f"{text!r} is no operand of type {'f32' if ty == 'float' else ty}"))


def inline_asm(b, op, *vals):
    pack = op.attrs.get("packed_element", 1)
    try:
        if len(op.results) != 1:
            raise _Refused(f"inline assembly {op.attrs.get('asm', '').strip()!r} has {len(op.results)} results; it is taken with one")
        program = _Program(b, op, vals)
        if pack != 1:
            program.look_up()
            raise _Refused(f"inline assembly {program.text!r} takes pack={pack} elements at a time; it is taken with pack=1, one by one")
        return program.run()
    except _Refused as e:
        raise b.fn.kernel.error(op, str(e)) from None


ELEMENTWISE = {"tt.elementwise_inline_asm": inline_asm}
