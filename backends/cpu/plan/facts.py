"""What the compiler knows about a kernel before it emits anything.

- *lazy* operations cost nothing until a root needs their elements; everything else is a *root* (tables in emit/rules.py);
- `consumers(v)`: the roots that reach a value through lazy operations, which decides what is worth keeping;
- `cost(v)`: operations needed to compute one element again;
- `Affine`: an integer or pointer tensor as base + sum of coefficient x index, coefficients being polynomials in the
  kernel's scalars, plus opaque rest terms. It is computed in 64 bits; ranges.py says where that is what the kernel computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ttir.ops import row
from ..ttir.types import Op, Value

# --- polynomials in scalars ------------------------------------------------------------------------------------------

Poly = dict  # monomial (tuple of scalar Values or Trips, in the order of `_place`) -> integer coefficient


def _place(scalar) -> tuple[int, ...]:
    """Where a scalar stands among those of a monomial: where it was made, not where Python put it, so that a kernel's code is the same
    in every process."""
    return (0, scalar.number) if isinstance(scalar, Value) else (1, *scalar)


def poly(c: int = 0) -> Poly:
    return {(): c} if c else {}


def poly_of(scalar) -> Poly:
    return {(scalar,): 1}


def poly_add(a: Poly, b: Poly, sign: int = 1) -> Poly:
    out = dict(a)
    for m, c in b.items():
        c = out.get(m, 0) + sign * c
        if c:
            out[m] = c
        else:
            out.pop(m, None)
    return out


def poly_mul(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m1, c1 in a.items():
        for m2, c2 in b.items():
            m = tuple(sorted(m1 + m2, key=_place))
            c = out.get(m, 0) + c1 * c2
            if c:
                out[m] = c
            else:
                out.pop(m, None)
    return out


def expanded(a: Poly) -> Poly:
    """`a` with scalars that are sums, differences and products of others written out."""
    out: Poly = {}
    for m, c in a.items():
        term = poly(c)
        for s in m:
            term = poly_mul(term, _scalar_poly(s))
        out = poly_add(out, term)
    return out


def _scalar_poly(v) -> Poly:
    op = getattr(v, "op", None)
    if op is not None and op.name == "arith.constant" and isinstance(op.attrs["value"], int):
        return poly(int(op.attrs["value"]))
    if op is not None and op.name in ("arith.addi", "arith.subi", "arith.muli"):
        x, y = map(_scalar_poly, op.operands)
        return poly_mul(x, y) if op.name == "arith.muli" else poly_add(x, y, 1 if op.name == "arith.addi" else -1)
    return poly_of(v)


def poly_key(p: Poly) -> tuple:
    """What equal polynomials have in common."""
    return tuple(sorted((tuple(map(_place, m)), c) for m, c in p.items()))


def poly_const(a: Poly) -> int | None:
    """The integer that `a` is, or None."""
    return 0 if not a else a[()] if len(a) == 1 and () in a else None


@dataclass
class Affine:
    """base + sum over nest dimensions d of coef[d] * index[d] + sum of scale * opaque value, from pointer `ptr`. All of it is computed in
    64 bits; it is what the kernel computes where each of `exact` (ranges.Check) holds."""

    base: Poly = field(default_factory=dict)
    coef: dict[int, Poly] = field(default_factory=dict)
    opaque: list[tuple[Value, tuple[int, ...], Poly]] = field(default_factory=list)
    ptr: Value | None = None
    exact: tuple = ()

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        coef = dict(self.coef)
        for d, p in other.coef.items():
            coef[d] = poly_add(coef.get(d, {}), p, sign)
        rest = [(v, dims, s if sign == 1 else poly_mul(s, poly(-1))) for v, dims, s in other.opaque]
        return Affine(poly_add(self.base, other.base, sign), {d: p for d, p in coef.items() if p}, self.opaque + rest,
                      self.ptr or other.ptr, self.exact + other.exact)

    def times(self, p: Poly) -> Affine:
        return Affine(poly_mul(self.base, p), {d: poly_mul(c, p) for d, c in self.coef.items() if poly_mul(c, p)},
                      [(v, dims, poly_mul(s, p)) for v, dims, s in self.opaque], exact=self.exact)

    @property
    def uniform(self) -> bool:
        """The same for every index (and not a pointer): just `base`."""
        return not self.coef and not self.opaque and self.ptr is None


# --- the facts of one kernel -----------------------------------------------------------------------------------------

KEEP_ABOVE = 5


class Facts:
    """Consumers and costs of a kernel's values. `is_lazy(op)` is the rule tables' answer."""

    def __init__(self, is_lazy):
        self.is_lazy = is_lazy
        self._consumers: dict[Value, frozenset[Op]] = {}
        self._cost: dict[Value, int] = {}
        self._indices: dict[Value, bool] = {}

    def consumers(self, v: Value) -> frozenset[Op]:
        got = self._consumers.get(v)
        if got is None:
            out: set[Op] = set()
            for use in v.uses:
                if self.is_lazy(use):
                    for r in use.results:
                        out |= self.consumers(r)
                else:
                    out.add(use)
            got = self._consumers[v] = frozenset(out)
        return got

    def cost(self, v: Value) -> int:
        """Operations to compute one element of `v` again from loads and scratch."""
        got = self._cost.get(v)
        if got is None:
            op = v.op
            if op is None or not v.type.is_tensor or not self.is_lazy(op):
                got = 0
            else:
                operands = op.operands
                if op.name == "tt.load":  # a mask of indices is mostly a loop's bounds
                    operands = op.operands[2:] if len(op.operands) > 1 and self._of_indices(op.operands[1]) else op.operands[1:]
                got = row(op).cost + sum(self.cost(o) for o in operands)
            got = self._cost[v] = min(got, 1 << 20)
        return got


    def _of_indices(self, v: Value) -> bool:
        """Is `v` made of numbers of elements and scalars alone, by arithmetic, comparisons and views?"""
        got = self._indices.get(v)
        if got is None:
            op = v.op
            got = self._indices[v] = not v.type.is_tensor or op is not None and (op.name == "tt.make_range" or self.is_lazy(op) and not row(op).reads and op.name.startswith(
                ("arith.", "tt.splat", "tt.expand_dims", "tt.broadcast")) and all(map(self._of_indices, op.operands)))
        return got


def root_pointer(v: Value, through=None) -> Value | None:
    """The kernel argument (a scalar pointer) that a pointer value is derived from; None when that is not known.

    through: loop-carried values -> Induction."""
    for _ in range(10000):
        if through and v in through:
            v = through[v].init
            continue
        op = v.op
        if op is None:
            return v
        if row(op).pointer:
            v = op.operands[0]
            continue
        return None
    return None


def same_expression(a: Value, b: Value, depth: int = 0) -> bool:
    """True when two values are certainly computed alike (the same value, or the same pure operations on the same)."""
    if a is b:
        return True
    if depth > 40 or a.op is None or b.op is None or a.type != b.type or a.index != b.index:
        return False
    x, y = a.op, b.op
    if x.name != y.name or x.attrs != y.attrs or x.regions or len(x.operands) != len(y.operands):
        return False
    if row(x).reads or row(x).writes:
        return False
    return all(same_expression(p, q, depth + 1) for p, q in zip(x.operands, y.operands))


def same_offsets(p: Value, q: Value) -> bool:
    """Do two pointers or tensors of pointers reach the same bytes at each index where their bases are the same address? That takes
    elements of one width: offsets count elements."""
    if p is q:
        return True
    if _element_bytes(p) != _element_bytes(q):
        return False
    if p.op is None and q.op is None:
        return not p.type.is_tensor and not q.type.is_tensor  # two kernel arguments
    if p.op is None or q.op is None:
        return False
    if p.op.name != q.op.name or p.op.attrs != q.op.attrs:
        return False
    if p.op.name == "tt.addptr":
        return same_offsets(p.op.operands[0], q.op.operands[0]) and same_expression(p.op.operands[1],
                                                                                    q.op.operands[1])
    if row(p.op).view:
        return p.type.shape == q.type.shape and same_offsets(p.op.operands[0], q.op.operands[0])
    return False


def _element_bytes(p: Value) -> int:
    """The bytes of the elements that a pointer points to."""
    elem = p.type.pointee.elem
    return 8 if elem in ("ptr", "index") else 2 if elem == "bf16" else 1 if elem.startswith("fp8") else (int(elem[1:]) + 7) // 8
