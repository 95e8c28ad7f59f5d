"""LLVM IR as text: typed values, blocks with insertion points, and folding of constants while building.

llvmlite parses and compiles what this module prints. Its own builder (`llvmlite.ir`) has no bfloat, no vector `splat`
constants and one insertion point at a time; here a loop nest keeps an open *section* at every depth, so that a value is
emitted where its operands first exist (loop-invariant code is born outside the loop).
"""

from __future__ import annotations

import struct

FLOATS = {"half": 16, "float": 32, "double": 64}


class Val:
    """An SSA value or constant: LLVM type text `ty`, operand text `s`, and `const` (int, float) where known.

    A vector type is `<n x elem>`; a scalar used where a vector is wanted means the same value in every lane."""

    __slots__ = ("ty", "s", "const")

    def __init__(self, ty: str, s: str, const=None):
        self.ty, self.s, self.const = ty, s, const

    @property
    def lanes(self) -> int:
        return int(self.ty[1:self.ty.index(" x")]) if self.ty[0] == "<" else 1

    @property
    def elem(self) -> str:
        return self.ty[self.ty.index(" x ") + 3:-1] if self.ty[0] == "<" else self.ty

    def __repr__(self):
        return f"{self.ty} {self.s}"


def vec(elem: str, n: int) -> str:
    return elem if n == 1 else f"<{n} x {elem}>"


def bits_of(elem: str) -> int:
    """Size in bits of a scalar LLVM type."""
    return FLOATS.get(elem) or (64 if elem == "ptr" else int(elem[1:]))


def float_text(value: float, elem: str) -> str:
    """A float constant's text: LLVM wants the bits of the double that equals it."""
    if elem == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) <= 3.4028235677973366e38 or value != value \
            else float("inf") * (1 if value > 0 else -1)
    elif elem == "half":
        h = struct.pack("<e", value) if abs(value) < 65520 or value != value else \
            struct.pack("<H", 0x7C00 if value > 0 else 0xFC00)
        return f"0xH{struct.unpack('<H', h)[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def bits_text(bits: int, elem: str) -> str:
    """The text of a float constant given by its bit pattern."""
    if elem == "half":
        return f"0xH{bits:04X}"
    if elem == "float":
        return float_text_from_f32_bits(bits)
    return f"0x{bits:016X}"


def float_text_from_f32_bits(bits: int) -> str:
    # A signalling NaN would be quieted by a round trip through a double; build the double's bits by hand.
    sign, exp, frac = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if exp == 0xFF:
        return f"0x{(sign << 63) | (0x7FF << 52) | (frac << 29):016X}"
    return float_text(struct.unpack("<f", struct.pack("<I", bits))[0], "float")


def const(elem: str, value, lanes: int = 1) -> Val:
    """A constant of scalar LLVM type `elem`, in every one of `lanes` lanes."""
    if elem == "ptr":
        text = "null"
    elif elem in FLOATS:
        text = bits_text(value[1], elem) if isinstance(value, tuple) else float_text(float(value), elem)
    elif elem == "i1":
        value = bool(value)
        text = "true" if value else "false"
    else:
        n = int(elem[1:])
        value = value & ((1 << n) - 1)
        value -= (value >> (n - 1)) << n  # the signed reading, as LLVM prints it
        text = str(value)
    if lanes > 1:
        text = f"splat ({elem} {text})"
    return Val(vec(elem, lanes), text, value)


TRUE, FALSE = const("i1", True), const("i1", False)


def i64(v: int) -> Val:
    return const("i64", v)


def i32(v: int) -> Val:
    return const("i32", v)


class Block:
    """A basic block: a label and a list of lines, in which nested lists are open sections."""

    __slots__ = ("label", "items")

    def __init__(self, label: str):
        self.label, self.items = label, []

    def lines(self):
        stack = [iter(self.items)]
        while stack:
            for item in stack[-1]:
                if isinstance(item, list):
                    stack.append(iter(item))
                    break
                yield item
            else:
                stack.pop()


class Module:
    """Functions, declarations, globals and debug metadata of one compilation."""

    def __init__(self, name: str, triple: str):
        self.name, self.triple = name, triple
        self.decls: dict[str, str] = {}
        self.globals: list[str] = []
        self.functions: list[Function] = []
        self.meta: list[str] = []
        self.flags: list[str] = []
        self.attrs = ""

    def declare(self, name: str, ret: str, params: list[str], tail: str = ""):
        if name not in self.decls and not any(f.name == name for f in self.functions):
            self.decls[name] = f"declare {ret} @{name}({', '.join(params)}){tail}"

    def add_meta(self, text: str) -> str:
        self.meta.append(text)
        return f"!{len(self.meta) - 1}"

    def render(self) -> str:
        out = [f'; ModuleID = "{self.name}"', f'target triple = "{self.triple}"', ""]
        out += self.globals
        for f in self.functions:
            out += f.render()
        out += sorted(self.decls.values())
        out.append(f"attributes #0 = {{ nounwind \"no-builtin-memset\" \"no-builtin-memcpy\" \"no-builtin-memmove\" {self.attrs} }}")
        if self.flags:
            out.append(f"!llvm.module.flags = !{{{', '.join(self.flags)}}}")
        for name, refs in getattr(self, "named", {}).items():
            out.append(f"!{name} = !{{{', '.join(refs)}}}")
        out += [f"!{k} = {text}" for k, text in enumerate(self.meta)]
        return "\n".join(out) + "\n"


class Function:

    def __init__(self, module: Module, name: str, ret: str, params: list[tuple[str, str]], dbg: str | None = None,
                 linkage: str = "", attrs: str = ""):
        self.module, self.name, self.ret, self.params, self.dbg = module, name, ret, params, dbg
        self.linkage, self.attrs = linkage, attrs
        self.soft_half = None  # converts from and to half where the target has no instruction for it
        self.blocks: list[Block] = []
        self.count = 0
        self.allocas = []
        module.functions.append(self)

    def new_block(self, hint: str) -> Block:
        self.count += 1
        b = Block(f"{hint}{self.count}")
        self.blocks.append(b)
        return b

    def render(self) -> list[str]:
        params = ", ".join(f"{t} %{n}" for t, n in self.params)
        out = [f"define {self.linkage}{self.ret} @{self.name}({params}) #0{self.attrs}{' !dbg ' + self.dbg if self.dbg else ''} {{"]
        for k, b in enumerate(self.blocks):
            out.append(f"{b.label}:")
            if k == 0:
                out += self.allocas
            out += b.lines()
        out.append("}")
        out.append("")
        return out


class Builder:
    """Emits into `section` (a list inside the current block). Folds what is constant."""

    def __init__(self, fn: Function):
        self.fn = fn
        self.block: Block = fn.new_block("entry")
        self.section: list = self.block.items
        self.dbg: str = ""

    # -- positions
    def enter(self, block: Block):
        self.block, self.section = block, block.items

    def place(self, block: Block):
        """Put a block that was made earlier behind all others, and go on in it: the printed order is that of the code."""
        self.fn.blocks.remove(block)
        self.fn.blocks.append(block)
        self.enter(block)

    def open_section(self) -> list:
        """An insertion point here that stays open while code after it is written."""
        sec: list = []
        self.section.append(sec)
        return sec

    # -- raw emission
    def emit(self, text: str):
        self.section.append("  " + text + self.dbg)

    def value(self, ty: str, text: str) -> Val:
        self.fn.count += 1
        name = f"%v{self.fn.count}"
        self.section.append(f"  {name} = {text}{self.dbg}")
        return Val(ty, name)

    def alloca(self, ty: str, hint="slot", align: int | None = None) -> Val:
        self.fn.count += 1
        name = f"%{hint}{self.fn.count}"
        self.fn.allocas.append(f"  {name} = alloca {ty}" + (f", align {align}" if align else ""))
        return Val("ptr", name)

    # -- shape helpers
    def splat(self, v: Val, n: int) -> Val:
        """`v` in `n` lanes; a vector passes through."""
        if n == 1 or v.ty[0] == "<":
            return v
        if v.const is not None:
            return const(v.ty, v.const, n)
        one = self.value(vec(v.ty, n), f"insertelement {vec(v.ty, n)} poison, {v.ty} {v.s}, i64 0")
        return self.value(one.ty, f"shufflevector {one.ty} {one.s}, {one.ty} poison, <{n} x i32> zeroinitializer")

    def unify(self, *vals: Val) -> tuple[Val, ...]:
        n = max(v.lanes for v in vals)
        return tuple(self.splat(v, n) for v in vals)

    def iota(self, elem: str, n: int) -> Val:
        return Val(vec(elem, n), "<" + ", ".join(f"{elem} {k}" for k in range(n)) + ">") if n > 1 else const(elem, 0)

    # -- arithmetic
    def bin(self, opname: str, a: Val, b: Val, flags: str = "") -> Val:
        folded = _fold(opname, a, b)
        if folded is not None:
            return folded
        a, b = self.unify(a, b)
        return self.value(a.ty, f"{opname} {flags + ' ' if flags else ''}{a.ty} {a.s}, {b.s}")

    def add(self, a, b):
        return self.bin("add", a, b)

    def sub(self, a, b):
        return self.bin("sub", a, b)

    def mul(self, a, b):
        return self.bin("mul", a, b)

    def and_(self, a, b):
        return self.bin("and", a, b)

    def or_(self, a, b):
        return self.bin("or", a, b)

    def xor(self, a, b):
        return self.bin("xor", a, b)

    def fneg(self, x: Val) -> Val:
        return const(x.elem, -x.const, x.lanes) if isinstance(x.const, float) else self.value(x.ty, f"fneg {x.ty} {x.s}")

    def fbin(self, opname, a, b, flags="contract"):
        return self.bin(opname, a, b, flags)

    def icmp(self, pred: str, a: Val, b: Val) -> Val:
        if isinstance(a.const, int) and isinstance(b.const, int):
            return const("i1", _ICMP[pred](a, b), max(a.lanes, b.lanes))
        a, b = self.unify(a, b)
        return self.value(vec("i1", a.lanes), f"icmp {pred} {a.ty} {a.s}, {b.s}")

    def fcmp(self, pred: str, a: Val, b: Val) -> Val:
        a, b = self.unify(a, b)
        return self.value(vec("i1", a.lanes), f"fcmp {pred} {a.ty} {a.s}, {b.s}")

    def select(self, c: Val, a: Val, b: Val) -> Val:
        if c.const is not None:
            return a if c.const else b
        if a.s == b.s and a.ty == b.ty:
            return a
        n = max(c.lanes, a.lanes, b.lanes)
        if a.lanes == 1 and b.lanes == 1 and c.lanes == 1:
            n = 1
        a, b = self.splat(a, n), self.splat(b, n)
        return self.value(a.ty, f"select {c.ty} {c.s}, {a.ty} {a.s}, {b.ty} {b.s}")

    def not_(self, a: Val) -> Val:
        return self.xor(a, const("i1", True))

    def cast(self, opname: str, v: Val, elem: str, flags: str = "") -> Val:
        if v.elem == elem and opname != "bitcast":
            return v
        if isinstance(v.const, int) and opname in ("sext", "zext", "trunc"):
            value = int(v.const)
            if opname == "zext" and v.elem != "i1":
                value &= (1 << bits_of(v.elem)) - 1
            if opname == "sext" and v.elem == "i1":
                value = -value
            return const(elem, value, v.lanes)
        if "half" in (v.elem, elem) and opname in ("fpext", "fptrunc") and self.fn.soft_half is not None:
            return self.fn.soft_half(self, v, elem)
        ty = vec(elem, v.lanes)
        return self.value(ty, f"{opname} {flags + ' ' if flags else ''}{v.ty} {v.s} to {ty}")

    def bitcast(self, v: Val, elem: str) -> Val:
        return v if v.elem == elem else self.cast("bitcast", v, elem)

    def call(self, name: str, ret: str, args: list[Val], flags: str = "", tail: str = "") -> Val | None:
        self.fn.module.declare(name, ret, [a.ty for a in args], tail)
        text = f"call {flags + ' ' if flags else ''}{ret} @{name}({', '.join(f'{a.ty} {a.s}' for a in args)})"
        if ret == "void":
            self.emit(text)
            return None
        return self.value(ret, text)

    def intrinsic(self, name: str, *args: Val, flags: str = "") -> Val:
        """An LLVM intrinsic overloaded on its first argument's type, lanes unified."""
        args = self.unify(*args)
        return self.call(f"llvm.{name}.{mangle(args[0].ty)}", args[0].ty, list(args), flags)

    # -- memory
    def gep(self, elem: str, base: Val, off: Val) -> Val:
        if off.const == 0 and base.lanes == 1 and off.lanes == 1:
            return base
        ty = vec("ptr", max(base.lanes, off.lanes))
        return self.value(ty, f"getelementptr {elem}, {base.ty} {base.s}, {off.ty} {off.s}")

    def load(self, ty: str, ptr: Val, align: int, meta: str = "") -> Val:
        return self.value(ty, f"load {ty}, ptr {ptr.s}, align {align}{meta}")

    def store(self, v: Val, ptr: Val, align: int, meta: str = ""):
        self.emit(f"store {v.ty} {v.s}, ptr {ptr.s}, align {align}{meta}")

    # -- vectors
    def extract(self, v: Val, k: int | Val) -> Val:
        if v.ty[0] != "<":
            return v
        if v.const is not None:
            return const(v.elem, v.const)
        idx = f"i64 {k}" if isinstance(k, int) else f"{k.ty} {k.s}"
        return self.value(v.elem, f"extractelement {v.ty} {v.s}, {idx}")

    def insert(self, v: Val, x: Val, k: int) -> Val:
        return self.value(v.ty, f"insertelement {v.ty} {v.s}, {x.ty} {x.s}, i64 {k}")

    def shuffle(self, a: Val, b: Val | None, mask: list[int]) -> Val:
        other = f"{a.ty} {b.s}" if b else f"{a.ty} poison"
        m = ", ".join(f"i32 {k}" if k >= 0 else "i32 poison" for k in mask)
        return self.value(vec(a.elem, len(mask)), f"shufflevector {a.ty} {a.s}, {other}, <{len(mask)} x i32> <{m}>")

    # -- control flow
    def br(self, block: Block):
        self.emit(f"br label %{block.label}")

    def cond_br(self, c: Val, then: Block, other: Block):
        self.emit(f"br i1 {c.s}, label %{then.label}, label %{other.label}")


def mangle(ty: str) -> str:
    """A type's name in an intrinsic's suffix: `<16 x float>` is v16f32."""
    if ty[0] == "<":
        n, _, elem = ty[1:-1].partition(" x ")
        return f"v{n}{mangle(elem)}"
    return {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(ty, ty)


def _unsigned(v: Val) -> int:
    return v.const & ((1 << bits_of(v.elem)) - 1)


_ICMP = {
    "eq": lambda a, b: a.const == b.const, "ne": lambda a, b: a.const != b.const,
    "slt": lambda a, b: a.const < b.const, "sle": lambda a, b: a.const <= b.const,
    "sgt": lambda a, b: a.const > b.const, "sge": lambda a, b: a.const >= b.const,
    "ult": lambda a, b: _unsigned(a) < _unsigned(b), "ule": lambda a, b: _unsigned(a) <= _unsigned(b),
    "ugt": lambda a, b: _unsigned(a) > _unsigned(b), "uge": lambda a, b: _unsigned(a) >= _unsigned(b),
}

_INT = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "and": lambda x, y: x & y,
        "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}


def _fold(opname: str, a: Val, b: Val) -> Val | None:
    """The result of an integer operation whose operands say enough, else None."""
    if opname not in _INT or a.elem in FLOATS:
        return None
    ca, cb = a.const, b.const
    n = max(a.lanes, b.lanes)
    if ca is not None and cb is not None:
        if a.elem == "i1":
            return const("i1", _INT[opname](int(ca), int(cb)) & 1, n)
        return const(a.elem, _INT[opname](ca, cb), n)
    if ca is None and cb is None:
        return None
    c, other = (ca, b) if ca is not None else (cb, a)
    wide = other.lanes == n
    ones = (c is True) if a.elem == "i1" else c == -1
    zero = not c
    if opname == "and":
        if zero:
            return const(a.elem, 0, n)
        if ones and wide:
            return other
    elif opname == "or":
        if ones:
            return const(a.elem, c, n)
        if zero and wide:
            return other
    elif opname in ("add", "xor") and zero and wide:
        return other
    elif opname == "sub" and cb is not None and zero and wide:
        return other
    elif opname == "mul" and a.elem != "i1":
        if zero:
            return const(a.elem, 0, n)
        if c == 1 and wide:
            return other
    return None
