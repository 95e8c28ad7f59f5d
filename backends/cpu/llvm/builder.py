"""Instructions without control flow, emitted into an open section of a block."""

from __future__ import annotations

from .folding import COMPARE, folded
from .module import Block, Function, Phi
from .values import Struct, Val, bits_of, const, mangle, vec

#: bytes of a line of a CPU's caches
LINE = 64


class Lines:
    """Where the next instruction goes: into `section`, a list inside the current block."""

    def __init__(self, fn: Function):
        self.fn = fn
        self.block: Block = fn.new_block("entry")
        self.section: list = self.block.items
        self.dbg: str = ""

    def enter(self, block: Block):
        self.block, self.section = block, block.items

    def place(self, block: Block):
        """Put a block that was made earlier behind all others, and go on in it: the printed order is that of the code."""
        if self.fn.blocks[-1] is not block:
            self.fn.blocks.remove(block)
            self.fn.blocks.append(block)
        self.enter(block)

    def open_section(self) -> list:
        """An insertion point here that stays open while code after it is written."""
        sec: list = []
        self.section.append(sec)
        return sec

    def emit(self, text: str):
        self.section.append("  " + text + self.dbg)

    def value(self, ty: str, text: str, name: str = "") -> Val:
        if not name:
            self.fn.count += 1
            name = f"{self.fn.names}{self.fn.count}"
        name = f"%{name}"
        self.section.append(f"  {name} = {text}{self.dbg}")
        self.fn.types[name[1:]] = ty
        return Val(ty, name)

    def phi(self, ty: str, name: str = "") -> Phi:
        """Of this block, before anything else in it."""
        if not name:
            self.fn.count += 1
            name = f"i{self.fn.count}"
        phi = Phi(ty, f"%{name}")
        self.fn.types[name] = ty
        self.section.append(phi)
        return phi

    def alloca(self, ty: str, hint="slot", align: int | None = None) -> Val:
        self.fn.count += 1
        name = f"%{hint}{self.fn.count}"
        self.fn.allocas.append(f"  {name} = alloca {ty}" + (f", align {align}" if align else ""))
        return Val("ptr", name)

    def at_first(self, slot: Val, value: Val):
        """A stack slot holds this when the function begins."""
        self.fn.blocks[0].items.insert(0, f"  store {value.ty} {value.s}, ptr {slot.s}")

    def shown(self, at: Val, variable: str, location: str, address: bool = False):
        """A debugger's variable (metadata, as its location is) lies at an address on the stack; address: what lies there is its address."""
        self.fn.allocas.append(f"    #dbg_declare(ptr {at.s}, {variable}, !DIExpression({'DW_OP_deref' * address}), {location})")


class Arithmetic(Lines):
    """Operations on scalars and vectors. Folds what is constant; a scalar beside a vector means every lane."""

    def splat(self, v: Val, n: int) -> Val:
        """`v` in `n` lanes; a vector passes through."""
        if n == 1 or v.ty[0] == "<":
            return v
        if v.const is not None:
            return const(v.ty, v.const, n)
        one = self.value(vec(v.ty, n), f"insertelement {vec(v.ty, n)} poison, {v.ty} {v.s}, i64 0")
        return self.value(one.ty, f"shufflevector {one.ty} {one.s}, {one.ty} poison, <{n} x i32> zeroinitializer")

    def unify(self, *vals: Val) -> tuple[Val, ...]:
        shapes = {v.lanes for v in vals}
        return vals if len(shapes) == 1 else tuple([self.splat(v, max(shapes)) for v in vals])

    def iota(self, elem: str, n: int) -> Val:
        return Val(vec(elem, n), "<" + ", ".join(f"{elem} {k}" for k in range(n)) + ">") if n > 1 else const(elem, 0)

    def bin(self, opname: str, a: Val, b: Val | int, flags: str = "") -> Val:
        if type(b) is int:
            b = const(a.elem, b)
        known = folded(opname, a, b)
        if known is not None:
            return known
        if a.ty != b.ty:
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

    def icmp(self, pred: str, a: Val, b: Val | int) -> Val:
        if type(b) is int:
            b = const(a.elem, b)
        if isinstance(a.const, int) and isinstance(b.const, int):
            return const("i1", COMPARE[pred](a, b), max(a.lanes, b.lanes))
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
        chosen = self.value(a.ty, f"select {c.ty} {c.s}, {a.ty} {a.s}, {b.ty} {b.s}")
        if c.lanes > 1 and not self.fn.loaded.isdisjoint((a.s, b.s)):
            self.fn.partial.add(chosen.s)
        return self._also(chosen, a, b)

    def _also(self, made: Val, *of: Val) -> Val:
        """`made`, the same bits as one of these: in memory as that is."""
        for where in (self.fn.loaded, self.fn.partial):
            if not where.isdisjoint(v.s for v in of):
                where.add(made.s)
        return made

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
        made = self.value(ty, f"{opname} {flags + ' ' if flags else ''}{v.ty} {v.s} to {ty}")
        return self._also(made, v) if opname == "bitcast" else made

    def bitcast(self, v: Val, elem: str) -> Val:
        return v if v.elem == elem else self.cast("bitcast", v, elem)

    def reinterpret(self, v: Val, ty: str) -> Val:
        """The same bits as a type of as many: other lanes than `v` has."""
        return v if v.ty == ty else self._also(self.value(ty, f"bitcast {v.ty} {v.s} to {ty}"), v)


class Memory(Arithmetic):
    """Calls, memory, and the lanes of vectors."""

    def call(self, name: str | Val, ret: str, args: list[Val], flags: str = "", tail: str = "") -> Val | None:
        """name: a function's, which is declared, or its address. ret: "i32 (ptr, ...)" and the like for one of any number of arguments."""
        kind, _, rest = ret.partition(" (")
        if isinstance(name, str):
            self.fn.module.declare(name, kind, [rest.rstrip(")")] if rest else [a.ty for a in args], tail)
            name = f"@{name}"
        text = f"call {flags + ' ' if flags else ''}{ret} {name if isinstance(name, str) else name.s}({', '.join(f'{a.ty} {a.s}' for a in args)})"
        ret = kind
        if ret == "void":
            self.emit(text)
            return None
        return self.value(ret, text)

    def intrinsic(self, name: str, *args: Val, flags: str = "") -> Val:
        """An LLVM intrinsic overloaded on its first argument's type, lanes unified."""
        args = self.unify(*args)
        return self.call(f"llvm.{name}.{mangle(args[0].ty)}", args[0].ty, list(args), flags)

    def gep(self, elem: str, base: Val, off: Val, name: str = "") -> Val:
        """name: what the address is called, where it is to be seen that it is one."""
        if not name and off.const == 0 and base.lanes == 1 and off.lanes == 1:
            return base
        ty = vec("ptr", max(base.lanes, off.lanes))
        return self.value(ty, f"getelementptr {elem}, {base.ty} {base.s}, {off.ty} {off.s}", name)

    def load(self, ty: str, ptr: Val, align: int = 0, meta: str = "", volatile: bool = False) -> Val:
        """align: 0 for the type's own size (LLVM reads text by a data layout in which an i64 lies anywhere that an i32 does)."""
        v = self.value(ty, f"load {'volatile ' * volatile}{ty}, ptr {ptr.s}, align {align or max(1, bits_of(ty) // 8)}{meta}")
        self.fn.loaded.add(v.s)
        return v

    def masked_load(self, ty: str, p: Val, align: int, mask: Val, other: Val) -> Val:
        """A vector from `p` on where `mask`; `other` elsewhere."""
        v = self.call(f"llvm.masked.load.{mangle(ty)}.p0", ty, [p, const("i32", align), mask, other])
        self.fn.partial.add(v.s)
        return v

    def _fenced(self, v: Val) -> Val:
        """What is loaded under a mask, before its lanes change places. LLVM's X86 backend (seen with 22) folds a masked load into any instruction under the same mask,
        also into a shuffle, whose lanes are others: what the mask keeps out comes in, and its page is touched. A fence is no instruction, and nothing is folded over it."""
        bits = bits_of(v.elem) * v.lanes if v.elem != "ptr" else 0
        if v.s not in self.fn.partial or not self.fn.module.triple.startswith("x86_64") or bits not in (128, 256, 512):
            return v
        ty = vec("float", bits // 32)
        fenced = self.call(f"llvm.arithmetic.fence.v{bits // 32}f32", ty, [self.reinterpret(v, ty)])
        return self.reinterpret(fenced, v.ty)  # of which nothing is noted

    def store(self, v: Val, ptr: Val, align: int = 0, meta: str = "", volatile: bool = False):
        self.emit(f"store {'volatile ' * volatile}{v.ty} {v.s}, ptr {ptr.s}, align {align or max(1, bits_of(v.ty) // 8)}{meta}")

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
        a, b = self._fenced(a), b and self._fenced(b)
        other = f"{a.ty} {b.s}" if b else f"{a.ty} poison"
        m = ", ".join(f"i32 {k}" if k >= 0 else "i32 poison" for k in mask)
        return self.value(vec(a.elem, len(mask)), f"shufflevector {a.ty} {a.s}, {other}, <{len(mask)} x i32> <{m}>")

    def interleave(self, vectors: list[Val]) -> Val:
        """Element i of the k-th of n vectors, a power of two of them, at i n + k of one."""
        while len(vectors) > 1:
            half, lanes = len(vectors) // 2, vectors[0].lanes
            turns = [i // 2 + lanes * (i % 2) for i in range(2 * lanes)]
            vectors = [self.shuffle(x, y, turns) for x, y in zip(vectors[:half], vectors[half:])]
        return vectors[0]

    def hidden(self, v: Val) -> Val:
        """A number that LLVM does not see through: an instruction of no bytes has it."""
        return self.value(v.ty, f'call {v.ty} asm "", "=r,0"({v.ty} {v.s})')

    def fetch(self, at: Val, cache: int = 1, written: bool = False):
        """Have the line at an address fetched into the first cache or the second; written: to be stored to."""
        self.call("llvm.prefetch.p0", "void", [at, const("i32", int(written)), const("i32", 4 - cache), const("i32", 1)])

    def beside(self, vectors: list[Val]) -> Val:
        """One vector of the lanes of several, a power of two of them, of one behind those of the other."""
        while len(vectors) > 1:
            every = list(range(2 * vectors[0].lanes))
            vectors = [self.shuffle(x, y, every) for x, y in zip(vectors[::2], vectors[1::2])]
        return vectors[0]

    def transposed(self, lines: list[Val]) -> list[Val]:
        """n vectors of m lanes, powers of two, n at least m, as the rows of a matrix, transposed: of squares that lie side by side the off-diagonal blocks of ever smaller ones change places, in log2 m rounds."""
        n, m = len(lines), lines[0].lanes
        lines = [self.beside(lines[x::m]) for x in range(m)]
        half = m // 2
        while half:
            low = [x if not x & half else n + x - half for x in range(n)]
            high = [x + half if not x & half else n + x for x in range(n)]
            out = list(lines)
            for i in range(m):
                if not i & half:
                    out[i] = self.shuffle(lines[i], lines[i + half], low)
                    out[i + half] = self.shuffle(lines[i], lines[i + half], high)
            lines = out
            half //= 2
        return lines

    def some(self, v: Val) -> Val:
        """Does an i1 hold in one lane at least?"""
        return v if v.lanes == 1 else self.call(f"llvm.vector.reduce.or.{mangle(v.ty)}", "i1", [v])

    def every(self, v: Val) -> Val:
        """Does an i1 hold in all lanes?"""
        return v if v.lanes == 1 else self.call(f"llvm.vector.reduce.and.{mangle(v.ty)}", "i1", [v])


class Scalars(Memory):
    """What code that is written by hand uses besides: fields of structures, atomic memory, whole numbers."""

    def field(self, struct: Struct, at: Val, name: str, *inside: Val) -> Val:
        """The address of a field of the structure at an address, or of an element of an array in it."""
        if not inside and struct.index(name) == 0:
            return at
        rest = "".join(f", {v.ty} {v.s}" for v in inside)
        return self.value("ptr", f"getelementptr {struct.ty}, ptr {at.s}, i64 0, i32 {struct.index(name)}{rest}")

    def get(self, struct: Struct, at: Val, name: str) -> Val:
        return self.load(struct.fields[name], self.field(struct, at, name))

    def put(self, struct: Struct, at: Val, name: str, v: Val):
        self.store(v, self.field(struct, at, name))

    def atomic_load(self, ty: str, at: Val, order: str = "monotonic") -> Val:
        return self.value(ty, f"load atomic {ty}, ptr {at.s} {order}, align {bits_of(ty) // 8}")

    def atomic_store(self, v: Val, at: Val, order: str = "monotonic"):
        self.emit(f"store atomic {v.ty} {v.s}, ptr {at.s} {order}, align {bits_of(v.ty) // 8}")

    def atomic(self, what: str, at: Val, v: Val, order: str = "monotonic") -> Val:
        """What was there before (`atomicrmw`)."""
        return self.value(v.ty, f"atomicrmw {what} ptr {at.s}, {v.ty} {v.s} {order}, align {bits_of(v.ty) // 8}")

    def compare_and_swap(self, at: Val, expected: Val, new: Val, order: str, failure: str = "monotonic") -> tuple[Val, Val]:
        """(what was there before, whether it was `expected` and is `new` now). failure: the order where it was not."""
        pair = self.value(f"{{ {new.ty}, i1 }}", f"cmpxchg ptr {at.s}, {expected.ty} {expected.s}, {new.ty} {new.s} {order} {failure}, "
                          f"align {bits_of(new.ty) // 8}")
        return self.parts(pair)

    def parts(self, v: Val) -> tuple[Val, ...]:
        """What a value "{ i64, i1 }" and the like is made of."""
        return tuple(self.value(ty, f"extractvalue {v.ty} {v.s}, {n}") for n, ty in enumerate(v.ty[2:-2].split(", ")))

    def acquire(self):
        """What another thread stored before what was just loaded is there for what is loaded behind it."""
        self.emit("fence acquire")

    def compiler_fence(self):
        """Memory is read anew behind it: an order for LLVM, and no instruction."""
        self.emit('fence syncscope("singlethread") seq_cst')

    def taken(self, at: Val) -> Val:
        """Did this thread turn the 32-bit 0 at an address into 1? What it then reads was written before whoever had it gave it back."""
        return self.compare_and_swap(at, const("i32", 0), const("i32", 1), "acquire")[1]

    def udiv(self, a: Val, b: Val | int) -> Val:
        return self.bin("udiv", a, b)

    def urem(self, a: Val, b: Val | int) -> Val:
        return self.bin("urem", a, b)

    def shl(self, a: Val, b: Val | int) -> Val:
        return self.bin("shl", a, b)

    def lshr(self, a: Val, b: Val | int) -> Val:
        return self.bin("lshr", a, b)

    def smin(self, a: Val, b: Val | int) -> Val:
        return self.intrinsic("smin", a, const(a.elem, b) if type(b) is int else b)

    def smax(self, a: Val, b: Val | int) -> Val:
        return self.intrinsic("smax", a, const(a.elem, b) if type(b) is int else b)

    def address(self, v: Val, to: str = "i64") -> Val:
        """A pointer as a number, or (to="ptr") a number as a pointer; each of a vector's."""
        ty = vec(to, v.lanes)
        return self.value(ty, f"{'inttoptr' if to == 'ptr' else 'ptrtoint'} {v.ty} {v.s} to {ty}")
