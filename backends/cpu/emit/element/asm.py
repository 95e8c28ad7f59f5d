"""tt.elementwise_inline_asm: the few lines of PTX that kernels use, read as what they compute: instructions one after the other, with registers of their own, and no branches.

With pack=N one run of them has N elements of each operand, a register each or several of fewer bits in one. They are taken where it shows that each element of the result is made of its own elements
alone, and each in one way: then that is computed, of all lanes.

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
#: what orders memory between a program's threads, which are one here; what does so between programs is not taken
_ORDERING = re.compile(r"(?:bar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s+\d+(?:\s*,\s*\d+)?|membar\.cta|fence(?:\.(?:sc|acq_rel))?\.cta)$")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DECLARED = re.compile(r"\.reg\s+\.([a-z]+\d+)\s+(.*)$", re.S)
#: LLVM's type of PTX's
_TYPES = {"f32": "float", **{f"{kind}{bits}": f"i{bits}" for kind in "bus" for bits in (8, 16, 32)}}


def _bits(opname):
    return lambda b, x, y: b.bin(opname, x, y)


def _shift(opname):
    """PTX's shifts by more than 31 are by 32."""
    def rule(b, x, amount):
        last = const("i32", 31)
        if opname == "ashr":
            return b.bin(opname, x, b.intrinsic("umin", amount, last))
        return b.select(b.icmp("ugt", amount, last), const("i32", 0), b.bin(opname, x, b.and_(amount, last)))
    return rule


def _logic_of_three(b, x, y, z, table):
    """Bit by bit what the `table` has for x, y and z, whose own are 0xF0, 0xCC and 0xAA."""
    out, ones = None, const("i32", -1)
    for k in range(8):
        here = b.sub(const("i32", 0), b.and_(b.bin("lshr", table, const("i32", k)), const("i32", 1)))
        for bit, v in ((4, x), (2, y), (1, z)):
            here = b.and_(here, v if k & bit else b.bin("xor", v, ones))
        out = here if out is None else b.or_(out, here)
    return out


#: instruction without its `.approx`, `.full`, `.ftz` and `.rn` -> rule(b, *operands)
_UNARY = {
    "tanh.f32": single.tanh32, "ex2.f32": single.exp2_32, "lg2.f32": single.log2_32, "sin.f32": single.sin32, "cos.f32": single.cos32,
    "rcp.f32": libdevice.recip, "sqrt.f32": libdevice.intrinsic("sqrt"),
    "rsqrt.f32": libdevice.FUNCTIONS["__nv_rsqrtf"], "abs.f32": libdevice.intrinsic("fabs"),
    "neg.f32": lambda b, x: b.fneg(x),
    "popc.b32": libdevice.intrinsic("ctpop"), "brev.b32": libdevice.intrinsic("bitreverse"),
    "not.b32": lambda b, x: b.bin("xor", x, const(x.elem, -1)), "neg.s32": lambda b, x: b.sub(const(x.elem, 0), x),
    "abs.s32": lambda b, x: b.select(b.icmp("slt", x, const(x.elem, 0)), b.sub(const(x.elem, 0), x), x),
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
    "shl.b32": _shift("shl"), "shr.b32": _shift("lshr"), "shr.u32": _shift("lshr"), "shr.s32": _shift("ashr"),
}
_TERNARY = {"fma.f32": libdevice.intrinsic("fma"), "prmt.b32": libdevice.byte_perm(True), **{f"mad.lo.{t}": lambda b, x, y, z: b.add(b.bin("mul", x, y), z) for t in ("u32", "s32")}}
_QUATERNARY = {"lop3.b32": _logic_of_three}


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


def _two_e4m3(b, high: Val, low: Val) -> Val:
    high, low = (b.cast("zext", narrow.narrow(b, v, "fp8e4nv"), "i16") for v in (high, low))
    return b.or_(b.bin("shl", high, const("i16", 8, high.lanes)), low)


#: instruction -> (the result's type, its operands', rule)
_CONVERSIONS = {
    **{f"cvt.{how}i.{t}.f32": ("i32", ("float",), _to_integer(t == "s32", name)) for t in ("s32", "u32")
       for how, name in (("rz", ""), ("rn", "roundeven"), ("rm", "floor"), ("rp", "ceil"))},
    "cvt.f32.s32": ("float", ("i32",), lambda b, x: b.cast("sitofp", x, "float")), "cvt.f32.u32": ("float", ("i32",), lambda b, x: b.cast("uitofp", x, "float")),
    "cvt.bf16.f32": ("i16", ("float",), lambda b, x: narrow.narrow(b, x, "bf16")), "cvt.f16.f32": ("i16", ("float",), lambda b, x: b.bitcast(narrow.half_of(b, x), "i16")),
    "cvt.f32.bf16": ("float", ("i16",), lambda b, x: narrow.widen(b, x, "bf16")), "cvt.f32.f16": ("float", ("i16",), lambda b, x: b.cast("fpext", b.bitcast(x, "half"), "float")),
    **{f"cvt.{kind}{to}.{kind}{of}": (f"i{to}", (f"i{of}",), lambda b, x, name=name, to=to: b.cast(name, x, f"i{to}"))
       for kind, name in (("u", "zext"), ("s", "sext")) for to, of in ((32, 16), (32, 8), (16, 8))},
    **{f"cvt.{how}i.f32.f32": ("float", ("float",), libdevice.intrinsic(name)) for how, name in (("rz", "trunc"), ("rn", "roundeven"), ("rm", "floor"), ("rp", "ceil"))},
    "cvt.satfinite.e2m1x2.f32": ("i8", ("float", "float"), _two_e2m1), "cvt.satfinite.e4m3x2.f32": ("i16", ("float", "float"), _two_e4m3),
}
_TABLE = {**{name: (_TYPES.get(name.rpartition(".")[2], "i32"), (_TYPES.get(name.rpartition(".")[2], "i32"),) * count, rule)
             for count, table in ((1, _UNARY), (2, _BINARY), (3, _TERNARY), (4, _QUATERNARY)) for name, rule in table.items()}, **_CONVERSIONS}


def _plain(name: str) -> str:
    """An instruction's name as the tables have it."""
    return re.sub(r"\.(approx|full|ftz|rn)(?=\.)", "", name)


class _Refused(Exception):
    """What an inline assembly is not taken for."""


#: instructions that put a register together from parts, or take one apart: the bits of it
_WHOLE = {"mov.b32": 32, "mov.b16": 16}


class _Program:
    """What statements compute of the values that are given as $1, $2 ..., behind the registers of the result. A value is a node, by its number: ("element", which operand, which of its pack),
    ("several", which operand, its first element, how many) of a register of those, ("number", its bits), ("whole", parts ...), ("part", of what, which), or an instruction and its operands."""

    def __init__(self, b, op, vals):
        self.b, self.vals, self.lanes, self.text = b, vals, max((v.lanes for v in vals), default=1), op.attrs.get("asm", "").strip()
        self.pack = op.attrs.get("packed_element", 1)
        self.nodes: list[tuple] = []
        self.kinds: list[str] = []  # LLVM's types of nodes
        self.numbers: dict[tuple, int] = {}
        self.made: dict[int, Val] = {}
        self.types: dict[str, str] = {}  # of registers
        self.elems: dict[str, str] = {}  # TTIR's, of those of operands
        self.values: dict[str, int] = {}
        self.results: list[str] = []
        self.result, self.read = REGISTER[op.result.type.elem], bool(op.result.uses)
        letters = [c.strip().lstrip("=&") for c in op.attrs.get("constraints", "").split(",")]
        own = op.attrs.get("gives_here", 0)
        for k, ty in enumerate(op.attrs.get("gives", (op.result.type,))):
            names = self._registers(None, ty.elem, letters[len(self.elems)] if len(self.elems) < len(letters) else "")
            self.results = names if k == own else self.results
        for k, v in enumerate(op.operands):
            self._registers(k, v.type.elem)

    def _registers(self, k: int | None, elem: str, letter: str = "") -> list[str]:
        """Name those of operand k, of a result where k is None; a result's `r` has 32 bits, of which it is the lowest."""
        kind = REGISTER[elem]
        bits = bits_of(kind)
        together = 32 // bits if self.pack > 1 and bits < 32 else 1
        if self.pack % together or self.pack > 1 and bits > 32:
            raise _Refused(f"inline assembly {self.text!r} takes pack={self.pack} elements of {elem} at a time; it is taken where they fill registers of 32 bits")
        wide = together > 1 or letter == "r" and kind in ("i8", "i16")
        names = []
        for first in range(0, self.pack, together):
            name = f"${len(self.elems)}"
            names.append(name)
            self.types[name], self.elems[name] = "i32" if wide else kind, elem
            if k is not None:
                self.values[name] = self._node("element", k, first, kind=kind) if together == 1 else self._node("several", k, first, together, kind="i32")
        return names

    def _node(self, *what, kind: str) -> int:
        number = self.numbers.setdefault((*what, kind), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(what)
            self.kinds.append(kind)
        return number

    def run(self) -> Val:
        for statement in self._statements():
            self._carry_out(statement)
        if not self.read and all(map(_ORDERING.match, self._statements())):
            return self.b.splat(const(self.result, 0), self.lanes)  # there is no value, and nobody asks for it
        missing = next((name for name in self.results if name not in self.values), None)
        if missing is not None:
            raise _Refused(self._whole(f"it gives {missing} no value"))
        found = [self.values[name] for name in self.results]
        if len(found) < self.pack:
            found = [part for node in found for part in self._parts(node, self.pack // len(self.results))]
        alike = {self._of_first(node, j) for j, node in enumerate(found)}
        if len(alike) > 1:
            raise _Refused(self._whole(f"not each of its pack={self.pack} elements is made in one way"))
        value = self._emit(alike.pop())
        if value.elem == self.result:
            return value
        return self.b.cast("trunc", value, self.result) if bits_of(value.elem) > bits_of(self.result) else self.b.bitcast(value, self.result)

    def _of_first(self, number: int, j: int) -> int:
        """A node that is made of the pack's elements j alone as one that is made of the first ones."""
        what, *made = self.nodes[number]
        if what == "element":
            if made[1] != j:
                raise _Refused(self._whole(f"with pack={self.pack} an element of its result is made of others than its own"))
            return self._node("element", made[0], 0, kind=self.kinds[number])
        if what == "several":
            raise _Refused(self._whole("registers of several elements are taken where `mov` takes them apart"))
        if what == "number":
            return number
        if what == "part":
            return self._node("part", self._of_first(made[0], j), made[1], kind=self.kinds[number])
        return self._node(what, *(self._of_first(x, j) for x in made), kind=self.kinds[number])

    def _emit(self, number: int) -> Val:
        if number not in self.made:
            b, (what, *made), kind = self.b, self.nodes[number], self.kinds[number]
            if what == "element":
                value = self.vals[made[0]]
                value = value if value.elem == kind else b.bitcast(value, kind)  # a half that was taken out of a register
            elif what == "number":
                bits = const("i32" if kind == "float" else kind, made[0])
                value = b.splat(b.bitcast(bits, kind) if kind == "float" else bits, self.lanes)
            elif what == "part":
                whole, bits = self._emit(made[0]), bits_of(kind)
                value = b.cast("trunc", b.bin("lshr", whole, const(whole.elem, made[1] * bits, whole.lanes)), kind)
            elif what == "whole":
                parts = [b.cast("zext", self._emit(x), kind) for x in made]
                value = parts[0]
                for n, part in enumerate(parts[1:], 1):
                    value = b.or_(value, b.bin("shl", part, const(kind, n * bits_of(kind) // len(parts), part.lanes)))
            else:
                value = _TABLE[what][2](b, *map(self._emit, made))
            self.made[number] = value
        return self.made[number]

    def _statements(self) -> list[str]:
        text = _COMMENT.sub(" ", self.text).strip()
        if text[:1] == "{" and text[-1:] == "}":
            text = text[1:-1]
        return [*filter(None, map(str.strip, text.split(";")))]

    def look_up(self):
        """Refuse instructions that are not taken, whatever their operands."""
        for statement in self._statements():
            found = _STATEMENT.match(statement)
            if _ORDERING.match(statement):
                continue
            if _DECLARED.match(statement) is None and (found is None or _plain(found[1]) not in _TABLE and found[1] not in _WHOLE):
                raise _Refused(self._whole(f"{statement!r} is not taken"))

    def _whole(self, why: str) -> str:
        known = ", ".join(n.replace(".", ".approx.") if n.split(".")[0] in ("tanh", "ex2", "lg2", "sin", "cos") else n for n in _TABLE)
        return (f"inline assembly {self.text!r} is a GPU's, and {why}; taken are instructions one after the other, in registers that it declares, of these: {known}; mov.b32 and mov.b16 of "
                "{parts}, too. Write the rest with tl.math or libdevice")

    def _carry_out(self, statement: str):
        if _ORDERING.match(statement):
            return
        if (declared := _DECLARED.match(statement)) is not None:
            names = [n.strip() for n in declared[2].split(",")]
            if declared[1] not in _TYPES or not all(re.fullmatch(r"[A-Za-z_%][\w$%]*", n) for n in names):
                raise _Refused(self._whole(f"{statement!r} is not taken"))
            self.types |= dict.fromkeys(names, _TYPES[declared[1]])
            return
        found = _STATEMENT.match(statement)
        name = _plain(found[1]) if found else ""
        to, *operands = [x.strip() for x in re.findall(r"\{[^}]*\}|[^,{}]+", found[2]) if x.strip()] if found else [""]
        if found and found[1] in _WHOLE and len(operands) == 1 and "{" in found[2]:
            self._move(statement, _WHOLE[found[1]], to, operands[0])
            return
        if name not in _TABLE or len(operands) != len(_TABLE[name][1]) or to not in self.types:
            raise _Refused(self._whole(f"{statement!r} is not taken"))
        result, takes, _ = _TABLE[name]
        used = [self.elems[x] for x in (to, *operands) if x in self.elems]
        if self.types[to] != result or any(x in self.types and self.types[x] != t for x, t in zip(operands, takes)):
            kinds = dict.fromkeys("f32" if t == "float" else t for t in (*takes, result))
            raise _Refused(f"inline assembly {self.text!r} has operands and results of {' and '.join(sorted(set(used)))}, and it is taken of {' and '.join(kinds)}"
                           f"{' alone' if len(kinds) == 1 else ''}: convert, or bitcast, in the kernel")
        self.values[to] = self._node(name, *(self._value(x, t) for x, t in zip(operands, takes)), kind=result)

    def _move(self, statement: str, bits: int, to: str, of: str):
        """Put a register together, `mov.b32 to, {low, ..., high}`, or take it apart, `mov.b32 {low, ..., high}, of`."""
        together = of[:1] == "{"
        whole, parts = (to, of) if together else (of, to)
        names = [x.strip() for x in parts[1:-1].split(",")]
        part = f"i{bits // len(names)}"
        if self.types.get(whole) != f"i{bits}" or len(names) not in (2, 4) or any(self.types.get(x) != part for x in names):
            raise _Refused(self._whole(f"{statement!r} is not taken"))
        if together:
            self.values[to] = self._node("whole", *(self._value(x, part) for x in names), kind=f"i{bits}")
        else:
            self.values |= zip(names, self._parts(self._value(of, f"i{bits}"), len(names)))

    def _parts(self, number: int, count: int) -> list[int]:
        """So many parts of a register, the lowest first."""
        what, *made = self.nodes[number]
        if what == "whole" and len(made) == count:
            return made
        kind = f"i{bits_of(self.kinds[number]) // count}"
        if what == "several" and made[2] == count:
            return [self._node("element", made[0], made[1] + n, kind=kind) for n in range(count)]
        return [self._node("part", number, n, kind=kind) for n in range(count)]

    def _value(self, text: str, ty: str) -> int:
        """An operand: a register that has a value, or a number."""
        if text in self.types:
            if text not in self.values:
                raise _Refused(self._whole(f"{text} has no value where it is used"))
            return self.values[text]
        bits, n = bits_of(ty), None
        if ty == "float" and re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            n = int(text[2:], 16)
        elif ty == "float" and re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", text):
            n, = struct.unpack("I", struct.pack("f", float(text)))
        elif ty != "float" and re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|[1-9]\d*|0)", text):
            n = int(text, 0)
        if n is not None and -(1 << bits - 1) <= n < 1 << bits:
            return self._node("number", n - (n >> bits - 1 << bits) if n > 0 else n, kind=ty)
        raise _Refused(self._whole(f"{text!r} is no operand of type {'f32' if ty == 'float' else ty}"))


def inline_asm(b, op, *vals):
    try:
        program = _Program(b, op, vals)
        program.look_up()
        return program.run()
    except _Refused as e:
        raise b.fn.kernel.error(op, str(e)) from None


ELEMENTWISE = {"tt.elementwise_inline_asm": inline_asm}
