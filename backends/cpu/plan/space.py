"""One index space: what its values need, and their affine forms.

Nothing here is changed by looking: a `Space` remembers what it worked out and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ttir.ops import row
from ..ttir.types import Value
from . import ranges
from .facts import Affine, poly, poly_add, poly_const, poly_of
from .lazy import Lazy, halves, renamed
from .records import Atom, Buffer, Induction, at_index


@dataclass(frozen=True)
class Known:
    """What is known where a nest stands: which values are in memory, which are initial + trips x step, which operations are lazy."""

    buffers: Mapping[Value, Buffer]
    inductions: Mapping[Value, Induction]
    lazy: Lazy

    def children(self, v: Value, dims):
        """The (value, dims) that evaluating `v` at `dims` reads, or an address that is made of it."""
        if v in self.inductions:  # in memory or not: addresses are made of what it starts from
            ind = self.inductions[v]
            return [(ind.init, dims), (ind.step, dims)]
        if v in self.buffers:
            return []
        op = v.op
        if op is None or not self.lazy(op):
            return []
        if op.name == "tt.reduce":
            return [(op.operands[0], d) for d in halves(op, dims)]
        if op.name == "tt.join":
            return [(o, dims[:-1]) for o in op.operands]
        if op.name == "triport.half":  # it reads the operand from memory, at other indices
            return [(op.operands[0], (at_index(0),) * len(op.operands[0].type.shape))]
        if (renames := row(op).renames) is not None:
            mapped = renames(op, dims)
            return [(op.operands[0], mapped)] if mapped is not None else []
        return [(o, dims) for o in op.operands if o.type.is_tensor]


class Space:
    """The index space `shape` where `known` holds."""

    def __init__(self, known: Known, shape):
        self.known, self.shape = known, tuple(shape)
        self._affine: dict = {}

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
            stack.extend((o, d, False) for o, d in self.known.children(v, dims))
        return order

    def atoms(self, visited, proved) -> list[Atom]:
        """Comparisons of an affine value with a uniform one, which loop bounds can decide. `proved(check)`: does a range check hold (None: the kernel
        has to look; False: it cannot)?"""
        out = []
        for v, dims in visited:
            op = v.op
            if op is None or op.name != "arith.cmpi" or op.attrs["predicate"] not in ("slt", "sle", "sgt", "sge") or v in self.known.buffers:
                continue
            lhs, rhs = (self.affine(o, dims) for o in op.operands)
            if lhs.opaque or rhs.opaque:
                continue
            pred = op.attrs["predicate"]
            diff = lhs.plus(rhs, -1) if pred[1] == "l" else rhs.plus(lhs, -1)
            if pred[2] == "e":  # a <= b is a - b - 1 < 0
                diff.base = poly_add(diff.base, poly(-1))
            if diff.coef:
                checks = [*lhs.exact, *rhs.exact] + [ranges.Check.of(x.base, x.coef, ranges.width(op.operands[0].type.elem)) for x in (lhs, rhs)]
                found = {c: proved(c, self.shape) for c in checks}
                if False not in found.values():
                    out.append(Atom(v, dims, diff.coef, diff.base, tuple(c for c, proved in found.items() if not proved)))
        return out

    # -- affine forms
    def affine(self, v: Value, dims) -> Affine:
        """`v` as an affine form of the space's indices. What is not affine is one opaque term."""
        key = (v, dims)
        if key not in self._affine:
            self._affine[key] = self._affine_of(v, dims)
        return self._affine[key]

    def _affine_of(self, v: Value, dims) -> Affine:
        if not v.type.is_tensor:
            if v.type.elem == "ptr":
                return Affine(ptr=v)
            op = v.op
            if op is not None and op.name == "arith.constant":
                return Affine(poly(int(op.attrs["value"])))
            return Affine(poly_of(v))
        if v in self.known.inductions:
            ind = self.known.inductions[v]
            return self.affine(ind.init, dims).plus(self.affine(ind.step, dims).times(poly_of(ind.count)))
        if v in self.known.buffers or v.op is None:
            return _opaque(v, dims)
        return self._of_operation(v, v.op, dims)

    def _of_operation(self, v: Value, op, dims) -> Affine:
        name = op.name
        if name == "arith.constant":
            value = op.attrs["value"]
            return Affine(poly(int(value))) if not isinstance(value, (list, tuple)) else _opaque(v, dims)
        if name == "tt.splat":
            return self.affine(op.operands[0], ())
        if name == "tt.make_range":
            d = dims[0]
            if d < 0:
                return Affine(poly(op.attrs["start"] + at_index(d)))
            return Affine(poly(op.attrs["start"]), {d: poly(1)} if self.shape[d] > 1 else {})
        mapped = renamed(op, dims)
        if mapped is not None:
            return self.affine(op.operands[0], mapped)
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
        return self._of_arithmetic(op, dims) or _opaque(v, dims)

    def _of_arithmetic(self, op, dims) -> Affine | None:
        if op.name not in ("arith.addi", "arith.subi", "arith.muli", "arith.shli"):
            return None
        a, b = (self.affine(o, dims) for o in op.operands)
        if op.name in ("arith.addi", "arith.subi"):
            return a.plus(b, 1 if op.name == "arith.addi" else -1)
        if op.name == "arith.muli":
            if not (b.uniform or a.uniform):
                return None
            product = a.times(b.base) if b.uniform else b.times(a.base)
            return replace(product, exact=a.exact + b.exact)
        c = poly_const(b.base) if b.uniform else None
        return a.times(poly(1 << c)) if c is not None and 0 <= c < 31 else None

    def _extended(self, v: Value, dims) -> Affine:
        """The affine form of an integer that is extended to 64 bits."""
        form, bits = self.affine(v, dims), ranges.width(v.type.elem)
        if not v.type.is_tensor or bits == 64:
            return form
        check = ranges.Check.of(form.base, form.coef, bits)
        if not form.opaque and ranges.decided(check, self.shape):
            return form
        if bits < 32:  # arithmetic of few bits wraps, and on purpose
            return _opaque(v, dims)
        return replace(form, exact=(*form.exact, check))

    def _nonnegative(self, a: Affine) -> bool:
        return not a.opaque and a.ptr is None and all(
            m == () and c >= 0 for p in [a.base, *a.coef.values()] for m, c in p.items()) and bool(
            ranges.decided(ranges.Check.of(a.base, a.coef, 32), self.shape))


def _opaque(v: Value, dims) -> Affine:
    if v.type.elem == "ptr":
        return Affine(opaque=[(v, dims, poly(1))], ptr=v)
    return Affine(opaque=[(v, dims, poly(1))])
