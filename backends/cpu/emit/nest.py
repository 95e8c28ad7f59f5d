"""Loop nests: the elements of lazy tensors, computed where a root needs them.

A `Nest` runs over an index space. One dimension is the *vector dimension*, walked in chunks of `lanes`; the others are
scalar loops around it (or, for a reduction over another axis, inside it). `at(value, dims)` yields a value's elements at
the current indices: `dims[k]` names the nest dimension that indexes the value's dimension k; -1 - i says index i. Results
are remembered per loop depth and emitted at that depth, so a value that does not depend on the inner loop is computed
outside it.

Masks like `offs < n` become loop bounds: a dimension's range is cut into chunks where every such comparison is known
true, at most a few where it is computed, and the rest where it is known false.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..llvm import ir
from ..plan import ranges
from ..plan.facts import Affine, Poly, poly, poly_add, poly_const, poly_mul, poly_of
from ..llvm.ir import Val, const, i64
from ..ttir.types import Value

#: LLVM types that hold TTIR element types in registers; bf16 and fp8 are bit patterns, converted explicitly
REGISTER = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f16": "half", "bf16": "i16",
            "f32": "float", "f64": "double", "ptr": "ptr", "index": "i64", "fp8e5": "i8", "fp8e4nv": "i8",
            "fp8e4b8": "i8", "fp8e5b16": "i8", "fp8e4b15": "i8"}


def memory_type(elem: str) -> str:
    """The LLVM type of a TTIR element in memory: i1 takes a byte."""
    return "i8" if elem == "i1" else REGISTER[elem]


def at_index(i: int) -> int:
    """The entry of `dims` that says index `i`, whatever the loops do; its own inverse."""
    return -1 - i


@dataclass(eq=False)
class Buffer:
    """A materialised tensor in scratch: element strides per dimension; `panel` = (dimension, width) stores that
    dimension in panels of `width`, each panel contiguous (the packed operand of a matrix product)."""

    ptr: Val
    elem: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    panel: tuple[int, int, int] | None = None  # dimension, width, elements from one panel to the next
    base: int | None = None  # the offset in scratch of the piece that it is part of

    def reshaped(self, shape) -> Buffer:
        return Buffer(self.ptr, self.elem, tuple(shape), row_major(shape), base=self.base)

    @property
    def is_row_major(self) -> bool:
        return self.panel is None and self.strides == row_major(self.shape)


def row_major(shape) -> tuple[int, ...]:
    strides, n = [], 1
    for d in reversed(shape):
        strides.append(n)
        n *= d
    return tuple(reversed(strides))


@dataclass(eq=False)
class Induction:
    """A tensor carried by a loop that only moves by the same step: initial + count x step, never stored."""

    init: Value
    step: Value
    count: Val  # i64: iterations done


class Atom(NamedTuple):
    """A comparison that loop bounds can decide: `value` at `dims` is base + sum of coef[d] x index[d] < 0, where `checks` hold."""

    value: Value
    dims: tuple
    coef: dict[int, Poly]
    base: Poly
    checks: tuple[ranges.Check, ...]


class Nest:
    """One loop nest over `shape`, emitted into kernel `k`."""

    def __init__(self, k, shape: tuple[int, ...], vector_dim: int | None = None, lanes: int | None = None):
        self.k, self.b, self.shape = k, k.b, tuple(shape)
        self.vdim = len(shape) - 1 if vector_dim is None else vector_dim
        self.lanes = lanes or 1
        self.order: list[int] = []
        self.sections: list[list] = []
        self.memos: list[dict] = []
        self.index: dict[int, Val] = {}
        self.depth_of: dict[int, int] = {}
        self.u = 0
        self.facts: dict[tuple[Value, tuple], bool] = {}
        self.limits: dict[tuple[Value, tuple], Val] = {}  # comparison -> up to which index along the vector dimension it is true
        self.atoms: list[Atom] = []
        self._affine: dict = {}
        self.reversed: int | None = None
        self.strides: dict[int, int] = {}  # how many indices a loop over a dimension takes at once, where that is not one
        self.times = 1  # what the innermost loop is unrolled
        self.times_of_chunks = 1  # the same where it takes several chunks at once already
        self.merged = False  # dimensions were merged: one stage of many, whose loops are left as they are

    # -- preparation: walk what the sinks need, without emitting
    @property
    def identity(self) -> tuple[int, ...]:
        return tuple(range(len(self.shape)))

    def explore(self, sinks: list[tuple[Value, tuple]]) -> list[tuple[Value, tuple]]:
        """Every (value, dims) that evaluating `sinks` will visit, operands before users."""
        seen, order = set(), []
        stack = [(v, d, False) for v, d in reversed(sinks)]
        while stack:
            v, dims, done = stack.pop()
            if done:
                order.append((v, dims))
                continue
            if (v, dims) in seen or not v.type.is_tensor:
                continue
            seen.add((v, dims))
            stack.append((v, dims, True))
            stack.extend((o, d, False) for o, d in self.k.children(v, dims))
        return order

    def find_atoms(self, visited):
        """Comparisons of an affine value with a uniform one, which loop bounds can decide."""
        for v, dims in visited:
            op = v.op
            if op is None or op.name != "arith.cmpi" or op.words[0] not in ("slt", "sle", "sgt", "sge") \
                    or v in self.k.buffers:
                continue
            lhs, rhs = (self.affine(o, dims) for o in op.operands)
            if lhs is None or rhs is None or lhs.opaque or rhs.opaque:
                continue
            pred = op.words[0]
            diff = lhs.plus(rhs, -1) if pred[1] == "l" else rhs.plus(lhs, -1)
            if pred[2] == "e":  # a <= b is a - b - 1 < 0
                diff.base = poly_add(diff.base, poly(-1))
            if diff.coef:
                checks = [*lhs.exact, *rhs.exact] + [ranges.Check.of(x.base, x.coef, ranges.width(op.operands[0].type.elem)) for x in (lhs, rhs)]
                open_ones = {c: self.k.proved(c, self.shape) for c in checks}
                if False not in open_ones.values():
                    self.atoms.append(Atom(v, dims, diff.coef, diff.base, tuple(c for c, proved in open_ones.items() if not proved)))

    def sure(self, checks: tuple[ranges.Check, ...]) -> Val:
        """An i1: do all the checks hold?"""
        out = const("i1", True)
        for c in checks:
            out = self.b.and_(out, self.hoisted(0, ("sure", c), lambda c=c: ranges.emitted(self, c)))
        return out

    def reverse(self, d: int):
        """Walk dimension `d` from its end. Masks along it are computed, not turned into bounds."""
        self.reversed = d
        self.atoms = [a for a in self.atoms if d not in a.coef]

    # -- levels
    def level(self, dims) -> int:
        return max((self.depth_of.get(d, 0) for d in dims if d >= 0), default=0)

    def index_of(self, d: int) -> Val:
        """The scalar index of nest dimension `d`, at the start of the current chunk."""
        base = self.index[d]
        if d == self.vdim and self.u:
            key = ("index", d, self.u)
            lvl = self.depth_of[d]
            if key not in self.memos[lvl]:
                self.hoisted(lvl, key, lambda: self.b.add(base, i64(self.u * self.lanes)))
            return self.memos[lvl][key]
        return base

    def lane_index(self, d: int, elem: str = "i64") -> Val:
        """The indices of nest dimension `d` in the current chunk: a vector where that is the vector dimension."""
        idx = self.b.cast("trunc", self.index_of(d), elem)
        if d != self.vdim or self.lanes == 1:
            return idx
        return self.b.add(self.b.splat(idx, self.lanes), self.b.iota(elem, self.lanes))

    def _in(self, section, fn):
        if section is None:
            return fn()
        saved = self.b.section
        self.b.section = section
        try:
            return fn()
        finally:
            self.b.section = saved

    def next_along(self, d: int, fn):
        """`fn()` at the next index of `d`, the innermost loop's dimension, which goes in twos."""
        lvl = self.depth_of[d]
        index, memo = self.index[d], self.memos[lvl]
        self.index[d], self.memos[lvl] = self.b.add(index, i64(1)), {}
        result = fn()
        self.index[d], self.memos[lvl] = index, memo
        return result

    def hoisted(self, level: int, key, fn):
        """`fn()` emitted once at loop depth `level` and remembered there under `key`.

        Outer depths emit into their open section, which precedes everything inside them; the innermost emits in place."""
        memo = self.memos[level]
        if key not in memo:
            section = self.sections[level] if level < len(self.order) else None
            memo[key] = self._in(section, fn)
        return memo[key]

    # -- elements
    def at(self, v: Value, dims: tuple[int, ...]) -> Val:
        """The elements of `v` at the current indices: a vector of `lanes`, or a scalar where all lanes are equal."""
        if not v.type.is_tensor:
            return self.k.scalar(v)
        fact = self.facts.get((v, dims))
        if fact is not None:
            return const("i1", fact)
        lvl = self.level(dims)
        key = (v, dims, self.u if self.vdim in dims else 0)
        limit = self.limits.get((v, dims))
        if limit is not None and self.k.target.registers <= 16:
            return self.hoisted(lvl, key, lambda: self._below(limit))
        return self.hoisted(lvl, key, lambda: self._compute(v, dims))

    def _below(self, limit: Val) -> Val:
        """Is the index along the vector dimension below `limit`? Lane numbers are constants: nothing needs a register round the loop. With
        registers enough, an index vector that stays in one is faster (softmax over columns, AVX-512: 1.13 times)."""
        left = self.b.sub(limit, self.index_of(self.vdim))
        if self.lanes == 1:
            return self.b.icmp("sgt", left, i64(0))
        return self.b.icmp("slt", self.b.iota("i32", self.lanes), self.b.splat(self.b.cast("trunc", left, "i32"), self.lanes))

    def _compute(self, v: Value, dims) -> Val:
        k = self.k
        buf = k.buffers.get(v)
        if buf is not None:
            return self.load_buffer(buf, dims)
        ind = k.inductions.get(v)
        if ind is not None:
            return self._induction(v, ind, dims)
        if v.op is None:
            raise k.error(None, f"value %{v.name} has no definition that the code generator knows")
        saved, self.b.dbg = self.b.dbg, k.debug_loc(v.op)
        try:
            return k.lane_rule(v.op)(self, v.op, dims)
        finally:
            self.b.dbg = saved

    def _induction(self, v: Value, ind: Induction, dims) -> Val:
        init, step = self.at(ind.init, dims), self.at(ind.step, dims)
        count = ind.count
        if v.type.elem == "ptr":
            off = self.b.mul(self.b.cast("sext", step, "i64"), count)
            return self.b.gep(memory_type(v.type.pointee.elem), init, off)
        return self.b.add(init, self.b.mul(step, self.b.cast("trunc", count, step.elem)))

    # -- affine forms
    def affine(self, v: Value, dims) -> Affine | None:
        """`v` as an affine form of the nest's indices. Never None for integers and pointers: what is not affine is
        one opaque term."""
        key = (v, dims)
        if key not in self._affine:
            self._affine[key] = self._affine_of(v, dims)
        return self._affine[key]

    def _affine_of(self, v: Value, dims) -> Affine:
        k = self.k
        if not v.type.is_tensor:
            if v.type.elem == "ptr":
                return Affine(ptr=v)
            op = v.op
            if op is not None and op.name == "arith.constant":
                return Affine(poly(int(op.attrs["value"])))
            return Affine(poly_of(v))
        if v in k.inductions:
            ind = k.inductions[v]
            return self.affine(ind.init, dims).plus(self.affine(ind.step, dims).times(poly_of(ind.count)))
        if v in k.buffers or v.op is None:
            return self._opaque(v, dims)
        op = v.op
        name = op.name
        if name == "arith.constant":
            value = op.attrs["value"]
            return Affine(poly(int(value))) if not isinstance(value, (list, tuple)) else self._opaque(v, dims)
        if name == "tt.splat":
            return self.affine(op.operands[0], ())
        if name == "tt.make_range":
            d = dims[0]
            if d < 0:
                return Affine(poly(op.attrs["start"] + at_index(d)))
            return Affine(poly(op.attrs["start"]), {d: poly(1)} if self.shape[d] > 1 else {})
        mapped = k.mapped_dims(op, dims)
        if mapped is not None:
            return self.affine(op.operands[0], mapped)
        if name in ("arith.addi", "arith.subi"):
            a, b = (self.affine(o, dims) for o in op.operands)
            return a.plus(b, 1 if name == "arith.addi" else -1)
        if name == "arith.muli":
            a, b = (self.affine(o, dims) for o in op.operands)
            if b.uniform or a.uniform:
                product = a.times(b.base) if b.uniform else b.times(a.base)
                return replace(product, exact=a.exact + b.exact)
        if name == "arith.shli":
            a, b = (self.affine(o, dims) for o in op.operands)
            c = poly_const(b.base) if b.uniform else None
            if c is not None and 0 <= c < 31:
                return a.times(poly(1 << c))
        if name == "arith.extsi" and op.operands[0].type.elem != "i1":
            return self._extended(op.operands[0], dims)
        if name == "arith.extui" and op.operands[0].type.elem == "i32":
            inner = self.affine(op.operands[0], dims)
            if self._nonnegative(inner):
                return inner
        if name == "tt.addptr":
            a, b = self.affine(op.operands[0], dims), self._extended(op.operands[1], dims)
            if b.ptr is None:
                return a.plus(b)
        return self._opaque(v, dims)

    def _extended(self, v: Value, dims) -> Affine:
        """The affine form of an integer that is extended to 64 bits."""
        form, bits = self.affine(v, dims), ranges.width(v.type.elem)
        if not v.type.is_tensor or bits == 64:
            return form
        check = ranges.Check.of(form.base, form.coef, bits)
        if not form.opaque and ranges.decided(check, self.shape):
            return form
        if bits < 32:  # arithmetic of few bits wraps, and on purpose
            return self._opaque(v, dims)
        return replace(form, exact=(*form.exact, check))

    def _nonnegative(self, a: Affine) -> bool:
        return not a.opaque and a.ptr is None and all(
            m == () and c >= 0 for p in [a.base, *a.coef.values()] for m, c in p.items()) and bool(
            ranges.decided(ranges.Check.of(a.base, a.coef, 32), self.shape))

    def _opaque(self, v: Value, dims) -> Affine:
        if v.type.elem == "ptr":
            return Affine(opaque=[(v, dims, poly(1))], ptr=v)
        return Affine(opaque=[(v, dims, poly(1))])

    # -- emission of polynomials
    def poly_value(self, p: Poly, level: int = 0) -> Val:
        """A polynomial's i64 value, emitted outside the nest."""
        c = poly_const(p)
        if c is not None:
            return i64(c)
        key = ("poly", tuple(sorted(((tuple(map(id, m)), n) for m, n in p.items()))))

        def build():
            total = i64(0)
            for m, n in p.items():
                term = i64(n)
                for s in m:
                    term = self.b.mul(term, self._scalar64(s))
                total = self.b.add(total, term)
            return total

        return self.hoisted(0, key, build)

    def _scalar64(self, s) -> Val:
        v = s if isinstance(s, Val) else self.k.scalar(s)
        if v.elem == "i64":
            return v
        return self.hoisted(0, ("sext", v.s), lambda: self.b.cast("sext", v, "i64"))

    # -- addresses
    def address(self, ptr: Value, dims) -> tuple[Val, int | Val]:
        """Where the pointer tensor `ptr` points: (scalar pointer of lane 0, elements from lane to lane), or
        (vector of pointers, None) where the lanes are not evenly spaced."""
        k, b = self.k, self.b
        aff = self.affine(ptr, dims)
        elem = memory_type(ptr.type.pointee.elem)
        if aff.ptr is None or aff.ptr.type.is_tensor:  # a tensor of arbitrary pointers
            return self._opaque_address(aff, elem)
        terms: list[tuple[int, object]] = []  # (level, function yielding an i64)
        vector_terms = []
        for d, p in aff.coef.items():
            terms.append((self.depth_of.get(d, 0),
                          lambda d=d, p=p: self.b.mul(self.index_of(d), self.poly_value(p))))
        for v, vd, scale in aff.opaque:
            if self.vdim in vd and self.lanes > 1:
                vector_terms.append((v, vd, scale))
            else:
                terms.append((self.level(vd), lambda v=v, vd=vd, s=scale: self._opaque_term(v, vd, s)))
        base = self.hoisted(0, ("base", aff.ptr, poly_key(aff.base), elem), lambda: b.gep(
            elem, k.scalar(aff.ptr), self.poly_value(aff.base)))
        # One address per loop depth, each from the one around it: the inner loop adds only its own index.
        by_level: dict[int, list] = {}
        for lvl, fn in terms:
            by_level.setdefault(lvl, []).append(fn)
        p = base
        for lvl in sorted(by_level):
            key = ("addr", ptr, dims, lvl, self.u if lvl >= self.depth_of.get(self.vdim, 99) else 0)

            def build(p=p, fns=by_level[lvl]):
                off = i64(0)
                for fn in fns:
                    off = b.add(off, fn())
                return b.gep(elem, p, off)

            p = self.hoisted(lvl, key, build)
        stride_poly = aff.coef.get(self.vdim, {}) if self.lanes > 1 else {}
        if not vector_terms:
            c = poly_const(stride_poly)
            return p, c if c is not None else self.poly_value(stride_poly)
        off = b.mul(b.iota("i64", self.lanes), self.poly_value(stride_poly))
        for v, vd, scale in vector_terms:
            off = b.add(off, self._opaque_term(v, vd, scale))
        return b.gep(elem, p, b.splat(off, self.lanes)), None

    def _opaque_term(self, v: Value, dims, scale: Poly) -> Val:
        x = self.at(v, dims)
        return self.b.mul(self.b.cast("sext", x, "i64"), self.poly_value(scale))

    def _opaque_address(self, aff: Affine, elem: str) -> tuple[Val, int | Val | None]:
        b = self.b
        pointer, off = None, i64(0)
        for v, vd, scale in aff.opaque:
            if v.type.elem == "ptr":
                pointer = self.at(v, vd)
            else:
                off = b.add(off, self._opaque_term(v, vd, scale))
        for d, p in aff.coef.items():
            off = b.add(off, b.mul(self.lane_index(d), self.poly_value(p)))
        off = b.add(off, self.poly_value(aff.base))
        address = b.gep(elem, pointer, off)
        return address, (0 if address.lanes == 1 else None)

    # -- scratch
    def buffer_address(self, buf: Buffer, dims) -> tuple[Val, int]:
        """(pointer to the element of lane 0, elements from lane to lane) in a scratch buffer."""
        b = self.b
        elem = memory_type(buf.elem)
        p, by_level, stride, fixed = buf.ptr, {}, 0, 0
        for axis, d in enumerate(dims):
            if buf.shape[axis] == 1 or d == at_index(0):
                continue
            if d < 0:
                fixed += at_index(d) * buf.strides[axis]
                continue
            if d == self.vdim:
                stride = buf.strides[axis]
            by_level.setdefault(self.depth_of.get(d, 0), []).append((axis, d))
        if fixed:
            p = self.hoisted(0, ("at", buf, fixed), lambda: b.gep(elem, buf.ptr, i64(fixed)))
        for lvl in sorted(by_level):
            key = ("buf", buf, dims, lvl, self.u if lvl >= self.depth_of.get(self.vdim, 99) else 0)

            def build(p=p, terms=by_level[lvl]):
                off = i64(0)
                for axis, d in terms:
                    idx = self.index_of(d)
                    if buf.panel and axis == buf.panel[0]:
                        _, width, pitch = buf.panel
                        shift = width.bit_length() - 1
                        off = b.add(off, b.mul(_shr(b, idx, shift), i64(pitch)))
                        idx = b.and_(idx, i64(width - 1))
                    off = b.add(off, b.mul(idx, i64(buf.strides[axis])))
                return b.gep(elem, p, off)

            p = self.hoisted(lvl, key, build)
        return p, stride if self.lanes > 1 else 0

    def load_buffer(self, buf: Buffer, dims) -> Val:
        p, stride = self.buffer_address(buf, dims)
        elem = memory_type(buf.elem)
        if stride == 0:
            v = self.b.load(elem, p, ir.bits_of(elem) // 8)
        elif stride == 1:
            v = self.b.load(ir.vec(elem, self.lanes), p, ir.bits_of(elem) // 8)
        else:
            v = gather(self.b, elem, self._spread(elem, p, stride), const("i1", True, self.lanes), None)
        return self.b.cast("trunc", v, "i1") if buf.elem == "i1" else v

    def store_buffer(self, buf: Buffer, dims, v: Val):
        b = self.b
        if buf.elem == "i1":
            v = b.cast("zext", v, "i8")
        p, stride = self.buffer_address(buf, dims)
        elem = memory_type(buf.elem)
        if self.lanes > 1 and self.vdim in dims:
            v = b.splat(v, self.lanes)
            if stride == 1:
                b.store(v, p, ir.bits_of(elem) // 8)
            else:
                scatter(b, v, self._spread(elem, p, stride), const("i1", True, self.lanes))
        else:
            b.store(v, p, ir.bits_of(elem) // 8)

    def _spread(self, elem: str, p: Val, stride: int | Val) -> Val:
        """A vector of pointers `stride` elements apart."""
        step = i64(stride) if isinstance(stride, int) else stride
        return self.b.gep(elem, p, self.b.mul(self.b.iota("i64", self.lanes), self.b.splat(step, self.lanes)))

    # -- loops
    def run(self, order: list[int], body, unroll: int = 1, before_inner=None, after_inner=None):
        """Emit the loops of `order` (outermost first) round `body(u)`. The vector dimension advances by up to `unroll`
        chunks at a time; `before_inner(chunks)` and `after_inner(chunks)` bracket the innermost loop."""
        self.order = order
        self.depth_of = {d: n + 1 for n, d in enumerate(order)}
        section = self.b.open_section()
        self.sections, self.memos = [section], [{}]
        unroll = max(1, min(unroll, self.shape[self.vdim] // self.lanes)) if self.shape else 1
        self._loops(0, body, unroll, before_inner, after_inner)

    def run_rows(self, row):
        """Emit one loop over dimension 0 round `row()`, which calls `inner` for every pass over dimension 1."""
        self.order = [0, 1]
        self.depth_of = {0: 1, 1: 2}
        self.sections, self.memos = [self.b.open_section()], [{}]
        for n, (lo, hi, step, facts, _) in enumerate(self._ranges(0, 1)):
            saved = self.facts
            self.facts = {**saved, **facts}
            self._whole = n == 0
            self._loop(lo, hi, step, 0, row)
            self.facts = saved
        self._whole = True

    def new_section(self):
        """From here on what belongs to the row, but not to its elements, is emitted here."""
        self.sections[1] = self.b.open_section()

    def inner(self, body, unroll: int = 1, before_inner=None, after_inner=None):
        """One pass over dimension 1, within `run_rows`."""
        unroll = max(1, min(unroll, self.shape[1] // self.lanes))
        self._loops(1, body, unroll, before_inner, after_inner)

    def _loops(self, depth: int, body, unroll, before_inner, after_inner):
        if depth == len(self.order):
            chunks = self._chunks
            for u in range(chunks):
                self.u = u
                body(u)
            self.u = 0
            return
        d = self.order[depth]
        innermost = depth == len(self.order) - 1
        if innermost and before_inner:
            before_inner(unroll if d == self.vdim else self._chunks)
        whole = self._whole
        for n, (lo, hi, step, facts, chunks) in enumerate(self._ranges(d, unroll)):
            if d == self.vdim:
                self._chunks = chunks
            saved = self.facts
            self.facts = {**saved, **facts}
            self._whole = whole and n == 0
            self._loop(lo, hi, step, d, lambda: self._loops(depth + 1, body, unroll, before_inner, after_inner))
            self.facts = saved
        self._whole = whole
        if innermost and after_inner:
            after_inner(unroll if d == self.vdim else self._chunks)

    _chunks = 1
    _whole = True  # nothing in the range that is walked now is masked

    def _loop(self, lo: Val, hi: Val, step: int, d: int, inner):
        if lo.const is not None and hi.const is not None:
            if hi.const <= lo.const:
                return
            if hi.const - lo.const <= step:
                self._enter_level(d, lo, inner)
                return
        b = self.b
        pre, head, body = b.block, self.k.fn.new_block("head"), self.k.fn.new_block("body")
        b.br(head)
        b.enter(head)
        idx = Val("i64", f"%i{self.k.fn.count}")
        self.k.fn.count += 1
        nxt = f"%n{self.k.fn.count}"
        phi_at = len(head.items)
        head.items.append("")
        cond = b.icmp("slt", idx, hi)
        done = self.k.fn.new_block("done")
        b.cond_br(cond, body, done)
        b.enter(body)
        self._enter_level(d, idx, inner)
        latch = b.block
        b.emit(f"{nxt} = add nuw nsw i64 {idx.s}, {step}")
        times = 1
        if d == self.order[-1] and self._whole and not (self.merged or self.k.large):
            times = self.times if self._chunks == 1 else self.times_of_chunks
        b.emit(f"br label %{head.label}{self.k.unrolled(times)}")
        head.items[phi_at] = f"  {idx.s} = phi i64 [ {lo.s}, %{pre.label} ], [ {nxt}, %{latch.label} ]"
        b.enter(done)
        # Blocks were created before the body's own; keep the printed order readable.
        self.k.fn.blocks.remove(done)
        self.k.fn.blocks.append(done)

    def _enter_level(self, d: int, idx: Val, inner):
        self.sections.append(self.b.open_section())
        self.memos.append({})
        if d == self.reversed:
            idx = self.b.sub(i64(self.shape[d] - (self.lanes if d == self.vdim else 1)), idx)
        self.index[d] = idx
        inner()
        self.sections.pop()
        self.memos.pop()

    def _ranges(self, d: int, unroll: int):
        """The pieces of dimension `d`: (lo, hi, step, facts, chunks)."""
        n = self.shape[d]
        step = self.lanes if d == self.vdim else self.strides.get(d, 1)
        unroll = unroll if d == self.vdim else 1
        thresholds, facts_true, facts_false = [], {}, {}
        depth = self.depth_of[d]
        if d == self.vdim:
            self.limits = {}
        for v, dims, coef, base, checks in self.atoms:
            if poly_const(coef.get(d, {})) != 1 or (v, dims) in self.facts:
                continue
            others = [o for o in coef if o != d]
            if any(self.depth_of.get(o, 0) >= depth for o in others):
                continue  # decided by a loop further in
            if self.vdim in others and self.lanes > 1:
                continue  # each lane has a limit of its own
            key = ("limit", poly_key(base), tuple(sorted((o, poly_key(coef[o])) for o in others)))
            t = self.hoisted(len(self.sections) - 1, key, lambda: self._limit(base, coef, others, n))
            sure = self.sure(checks)
            if d == self.vdim and sure.const:
                self.limits[(v, dims)] = t
            # What may have wrapped is known of no index: all of the range is computed.
            thresholds.append((self.b.select(sure, t, i64(0)), self.b.select(sure, t, i64(n))))
            facts_true[(v, dims)] = True
            facts_false[(v, dims)] = False
        end = i64(n)
        if not thresholds:
            yield from self._unrolled(i64(0), end, step, unroll, {}, n)
            return
        lo, hi = thresholds[0]
        for low, high in thresholds[1:]:
            if (low.s, high.s) != (lo.s, hi.s):
                lo = self.b.intrinsic("smin", lo, low)
                hi = self.b.intrinsic("smax", hi, high)
        full, partial = lo, hi
        if step * unroll > 1:
            full = self.b.and_(lo, i64(-(step * unroll)))
        if step > 1:
            partial = self.b.and_(self.b.add(hi, i64(step - 1)), i64(-step))
        yield i64(0), full, step * unroll, facts_true, unroll
        if step * unroll > 1 or lo.s != hi.s:
            yield full, partial, step, {}, 1
        yield partial, end, step, facts_false, 1

    def _limit(self, base, coef, others, n) -> Val:
        """How many indices of a dimension satisfy an atom: clamp(-(base + other terms), 0, n)."""
        b = self.b
        t = self.poly_value(poly_mul(base, poly(-1)))
        for o in others:
            t = b.sub(t, b.mul(self.index_of(o), self.poly_value(coef[o])))
        if t.const is not None:
            return i64(min(max(t.const, 0), n))
        return b.intrinsic("smin", b.intrinsic("smax", t, i64(0)), i64(n))

    def _unrolled(self, lo, end, step, unroll, facts, n):
        whole = n - n % (step * unroll)
        yield lo, i64(whole), step * unroll, facts, unroll
        if whole < n:
            yield i64(whole), end, step, facts, 1


def poly_key(p: Poly):
    return tuple(sorted((tuple(map(id, m)), c) for m, c in p.items()))


def _shr(b, v: Val, n: int) -> Val:
    if v.const is not None:
        return i64(v.const >> n)
    return b.value("i64", f"lshr i64 {v.s}, {n}")


def gather(b, elem: str, ptrs: Val, mask: Val, other: Val | None) -> Val:
    """The elements at a vector of pointers where `mask`; `other` (or zero) elsewhere."""
    n = ptrs.lanes
    ty = ir.vec(elem, n)
    passthru = b.splat(other, n) if other is not None else Val(ty, "zeroinitializer")
    return b.call(f"llvm.masked.gather.{ir.mangle(ty)}.{ir.mangle(ptrs.ty)}", ty,
                  [ptrs, const("i32", ir.bits_of(elem) // 8), b.splat(mask, n), passthru])


def scatter(b, v: Val, ptrs: Val, mask: Val):
    n = ptrs.lanes
    v = b.splat(v, n)
    b.call(f"llvm.masked.scatter.{ir.mangle(v.ty)}.{ir.mangle(ptrs.ty)}", "void",
           [v, ptrs, const("i32", ir.bits_of(v.elem) // 8), b.splat(mask, n)])


