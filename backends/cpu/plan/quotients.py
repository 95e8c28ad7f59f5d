"""Quotients and remainders of indices, a chunk of lanes at a time: `x // 64` and `x % 64`, where x counts the lanes of a chunk.

A chunk that begins at a multiple of its lanes does not pass a multiple of a divisor that its lanes divide: all of it has one quotient, and remainders that
follow each other. So `tl.load(bias + x % 768)` is one vector, and `tl.load(ids + x // 64)` one element, where lanes by themselves would be gathered.
Flat indices of that kind are most of what Inductor's kernels address by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

from ..llvm.targets import Target
from ..ttir.types import Value
from .facts import Affine, Poly, expanded, poly, poly_add, poly_const, poly_of
from .ranges import Check, constant, counted_by, width

#: operation -> how far the results of neighbouring lanes are apart
STEPS = {"arith.divsi": 0, "arith.divui": 0, "arith.remsi": 1, "arith.remui": 1}


@dataclass(frozen=True)
class Quotient:
    """A quotient by `divisor` (step 0) or a remainder (step 1) of `dividend`, an index that is a multiple of `of` where a chunk begins. divisor: a number above 0, or the items of a
    polynomial, of which the kernel has to see that it is one. within: of `i % (h * w) // w`, where the kernel knows h and w as it runs, what the index's remainder is taken of first, a
    polynomial like that; exact: scalars, products of integers of 32 bits, of which it has to see that none wrapped, so that `within` is a multiple of the divisor."""

    divisor: int | tuple
    step: int
    of: int
    dividend: Value
    within: tuple | None = None
    exact: tuple[Value, ...] = ()

    def always(self, lanes: int) -> bool:
        """Has every chunk one quotient?"""
        return lanes > 1 and self.of % lanes == 0

    def mostly(self, lanes: int) -> bool:
        """Have at least half of the chunks one, though not all? A look at its first lane says which."""
        return lanes > 1 and self.of % lanes != 0 and isinstance(self.divisor, int) and self.divisor >= 2 * lanes and self.within is None

    def pays(self, target: Target, lanes: int) -> bool:
        """Is the code better off by chunks of so many lanes and by pieces than lane by lane?"""
        return self.always(lanes) or self.mostly(lanes) or target.masks and not self.is_short(lanes)

    def is_short(self, lanes: int) -> bool:
        """Is it certain that pieces from one multiple of the divisor to the next are too short to be worth a turn of a loop?"""
        return isinstance(self.divisor, int) and self.divisor < least(lanes)


def least(lanes: int) -> int:
    """Elements of the shortest pieces that a loop is worth: a quarter of a chunk's lanes."""
    return max(1, lanes // 4)


#: chunks of a piece that are written one behind the other, without a loop; quotients of whole chunks from which on pieces are worth it: a copy of planes of 784 numbers, which asks for four, took 12.8 cycles a chunk, where
#: those of a piece are numbers outside of its loop 5.8 (Zen 4); with one and two it makes no difference
WRITTEN_OUT, MANY = 8, 3


def finest(quotients) -> list[tuple]:
    """Those that change wherever another one does: where x // 50 stays, x // 100 does."""
    divided: dict[tuple, dict] = {}
    for (v, dims), p in quotients.items():
        divided.setdefault((p.dividend, dims), {})[p.divisor] = v
    multiples = {(p.dividend, dims, p.within) for (_, dims), p in quotients.items() if p.within != p.divisor}
    return [(v, dims) for (x, dims), each in divided.items() for d, v in each.items()
            if (x, dims, d) not in multiples and not any(other != d and isinstance(other, int) and isinstance(d, int) and d % other == 0 for other in each)]


def by_level(pieces) -> list[dict]:
    """Those that change less often first: of a loop round another one, within which the others change, where one divisor divides all of them."""
    which = finest(pieces)
    if len(which) > 1:
        return [pieces]
    least = pieces[which[0]].divisor
    coarser = {key: p for key, p in pieces.items() if p.divisor != least}
    return [coarser, {key: p for key, p in pieces.items() if p.divisor == least}] if coarser else [pieces]


def written_out(pieces, lanes: int) -> int | None:
    """The size of pieces that are written out, if these are."""
    which = finest(pieces)
    size = pieces[which[0]].divisor if len(which) == 1 else None
    return size if isinstance(size, int) and lanes <= size <= WRITTEN_OUT * lanes else None


def found(space, visited, vdim: int, proved: Callable) -> dict[tuple[Value, tuple], Quotient]:
    """Those along `vdim` among visited values; `proved` as for `Space.atoms`."""
    out = {(v, dims): quotient(space, v, dims, vdim, proved) for v, dims in visited}
    return {key: p for key, p in out.items() if p is not None}


def by_one(space, at: Affine, d: int, proved: Callable, together: Callable[[Quotient], bool]) -> bool:
    """Do neighbours along `d` lie side by side at an address, as far as quotients and remainders stay together? `together`: those of which enough chunks have one; `proved` as for `Space.atoms`."""
    step = at.coef.get(d, {})
    for v, on, scale in at.opaque:
        if d in on:
            found = quotient(space, v, on, d, proved)
            if found is None or not together(found):
                return False
            step = poly_add(step, scale) if found.step else step
    return step == poly(1)


def divides(v: Value) -> bool:
    """Is it a quotient or remainder of integers?"""
    return v.op is not None and v.op.name in STEPS


def quotient(space, v: Value, dims, vdim: int, proved: Callable) -> Quotient | None:
    """`v` at `dims` as one of these along `vdim`, if it is."""
    op = v.op
    if op is None or op.name not in STEPS or not v.type.is_tensor or vdim not in dims or width(v.type.elem) not in (32, 64):
        return None
    dividend, (x, by), within, exact = op.operands[0], (space.affine(o, dims) for o in op.operands), None, ()
    if by.uniform and (found := _of_a_remainder(space, op, by, dims)) is not None:
        dividend, within, exact = found
        x = space.affine(dividend, dims)
    if not by.uniform or x.opaque or x.ptr is not None or poly_const(x.coef.get(vdim, {})) != 1:
        return None
    divisor = poly_const(by.base)
    rest = [x.base, *(p for d, p in x.coef.items() if d != vdim)]
    if divisor is not None and divisor <= 0 or not all(map(_counts, rest)):
        return None
    of = 1 if divisor is None or within else math.gcd(divisor, *map(_multiple, rest))
    bits = width(op.operands[0].type.elem)
    alone = len(by.base) == 1 and all(c == 1 and len(m) == 1 for m, c in by.base.items())  # a scalar, of which nothing was computed that might wrap
    checks = (*x.exact, *by.exact, Check.of(x.base, x.coef, bits), *(() if alone else (Check.of(by.base, {}, bits),)), *(c for p in rest for m in p for s in m for c in _steps(s)))
    if not all(proved(c, space.shape) is True for c in checks):
        return None
    return Quotient(tuple(by.base.items()) if divisor is None else divisor, STEPS[op.name], of, dividend, within, exact)


def _of_a_remainder(space, op, by, dims) -> tuple[Value, tuple, tuple[Value, ...]] | None:
    """Of a quotient or remainder of a remainder by a scalar, of which `by` is a factor: what that is taken of, its divisor's items, and the products that the scalar is. Of a remainder of a
    remainder likewise, and so on."""
    name = "arith.remsi" if op.name[-2:] == "si" else "arith.remui"
    dividend, factor, within, exact = op.operands[0], by, None, ()
    while dividend.op is not None and dividend.op.name == name:
        whole = space.affine(dividend.op.operands[1], dims)
        product, number = (_scalar(a) if a.uniform else None for a in (whole, factor))
        products = _products(product, number) if isinstance(product, Value) and number is not None else None
        if products is None:
            break
        dividend, factor, within, exact = dividend.op.operands[0], whole, within or tuple(whole.base.items()), (*exact, *products)
    return (dividend, within, exact) if within else None


def _scalar(form) -> Value | int | None:
    """The number that a form is, or the one scalar."""
    if (number := poly_const(form.base)) is not None:
        return number
    (m, c), *more = form.base.items()
    return m[0] if not more and c == 1 and len(m) == 1 and isinstance(m[0], Value) else None


def _products(product: Value, factor: Value | int) -> list[Value] | None:
    """The products of integers of 32 bits by which one scalar is a multiple of another, or of a number; [] where it is that itself, or is a number, too."""
    number = constant(product)
    if product is factor or number is not None and isinstance(factor, int) and factor > 0 and number % factor == 0:
        return []
    op = product.op
    if op is not None and op.name in _WIDER:
        narrow = factor.op.operands[0] if isinstance(factor, Value) and factor.op is not None and factor.op.name == op.name else factor
        return _products(op.operands[0], narrow)
    if op is None or op.name != "arith.muli" or width(product.type.elem) != 32:
        return None
    found = next((f for o in op.operands if (f := _products(o, factor)) is not None), None)
    return None if found is None else [product, *found]


#: scalars of indices -> what is asked of their operands
_SUMS, _WIDER = ("arith.addi", "arith.muli"), ("arith.extsi", "arith.index_cast")


def _steps(s):
    """Checks that a scalar is what its operands make of it in numbers without bounds: `pid * BLOCK` in 32 bits is below 0 where it wraps, also where it is extended to 64
    behind that."""
    op = s.op if isinstance(s, Value) else None
    if op is not None and op.name in _SUMS:
        yield Check.of(expanded(poly_of(s)), {}, width(s.type.elem))
    if op is not None and op.name in _SUMS + _WIDER:
        for o in op.operands:
            yield from _steps(o)


def _multiple(p: Poly) -> int:
    """What divides a polynomial's value; 0: it is zero."""
    return math.gcd(*(c * math.prod(map(_multiple_of, m)) for m, c in p.items()))


def _multiple_of(s) -> int:
    if not isinstance(s, Value):
        return 1
    if (number := constant(s)) is not None:
        return abs(number)
    if s.op is not None and s.op.name in _SUMS + _WIDER:
        each = [_multiple_of(o) for o in s.op.operands]
        return math.prod(each) if s.op.name == "arith.muli" else math.gcd(*each)
    loop = counted_by(s)
    return math.gcd(*map(_multiple_of, (loop.operands[0], loop.operands[2]))) if loop is not None else 1


def _counts(p: Poly) -> bool:
    """Is a polynomial's value 0 or more, whatever its scalars?"""
    return all(c >= 0 and all(map(_counts_from_zero, m)) for m, c in p.items())


def _counts_from_zero(s) -> bool:
    if not isinstance(s, Value):
        return False
    if (number := constant(s)) is not None:
        return number >= 0
    if s.op is not None and s.op.name in _SUMS + _WIDER:
        return all(map(_counts_from_zero, s.op.operands))
    loop = counted_by(s)
    return s.op is not None and s.op.name == "tt.get_program_id" or loop is not None and _counts_from_zero(loop.operands[0]) and _counts_from_zero(loop.operands[2])
