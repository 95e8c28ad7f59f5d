"""Do integers stay within their type? What may be assumed of index arithmetic, and how the rest is checked.

An affine form is computed in 64 bits; the kernel's own arithmetic wraps at the width of its type. The two agree modulo that width, so
they are equal exactly where the form's value lies within the type. That is

- *proved* where base and coefficients are constants, or where the form is one scalar of the type;
- *checked at launch* where it follows from bounds of the grid and of integer arguments (`pid * BLOCK + arange(BLOCK)`, a loop up to an
  argument): a launch beyond them runs a second version, compiled without (as one whose tensors overlap does);
- *checked* in the kernel, once per nest and from its corners, where other scalars decide: a comparison that may wrap is not turned into
  loop bounds but computed lane by lane;
- *assumed* in one place only: the 32-bit offset of a memory access does not wrap inside one block (nor, then, when it is extended to 64
  bits). Offsets of fewer bits are used as computed unless they are proved not to wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import Poly, poly_const
from ..ttir.types import Value, constant

#: how many trips a loop may have made, and how large a 64-bit scalar may be, where forms of them are used for loop bounds: both are checked
TRIPS, WIDE = 1 << 30, 1 << 56
#: differences of two sides are made in 64 bits, so each must stay below this
_LIMIT = 1 << 62


def _limit(bits: int) -> int:
    """What numbers of so many bits stay below: of 64 a difference has to fit, too."""
    return min(1 << (bits - 1), _LIMIT)


@dataclass(frozen=True)
class Check:
    """base + sum of coef[d] x index[d] lies within signed integers of `bits` at every index of the nest."""

    base: tuple
    coef: tuple
    bits: int

    @staticmethod
    def of(base: Poly, coef: dict[int, Poly], bits: int) -> Check:
        return Check(tuple(base.items()), tuple((d, tuple(p.items())) for d, p in coef.items()), bits)


def scalars(check: Check):
    for p in (check.base, *(p for _, p in check.coef)):
        for m, _ in p:
            yield from m


def _bits(scalar) -> int:
    """The bits that a scalar of a form has, or had before it was extended."""
    if not isinstance(scalar, Value):
        return 64
    op = scalar.op
    if op is not None and op.name in ("arith.extsi", "arith.extui", "arith.index_cast") and not scalar.type.is_tensor:
        return _bits(op.operands[0]) + (op.name == "arith.extui")
    elem = scalar.type.elem
    return int(elem[1:]) if elem[0] == "i" and elem[1:].isdigit() else 64


def _size(p, spread: int = 1) -> int:
    """An upper bound of the absolute value of a polynomial x spread."""
    total = 0
    for m, c in p:
        size = abs(c) * spread
        for s in m:
            size *= TRIPS if not isinstance(s, Value) else min(1 << (_bits(s) - 1), WIDE)
        total += size
    return total


def decided(check: Check, shape) -> bool | None:
    """True where the check is proved, False where it cannot be made, None where the kernel has to make it."""
    parts = [(check.base, 1)] + [(p, shape[d] - 1) for d, p in check.coef]
    constants = [poly_const(dict(p)) for p, _ in parts]
    if None not in constants:
        ends = [0 if n == 0 else c * spread for n, (c, (_, spread)) in enumerate(zip(constants, parts))]
        low, high = (constants[0] + sum(f(0, e) for e in ends) for f in (min, max))
        return -_limit(check.bits) <= low and high < _limit(check.bits)
    if None not in constants[1:] and sum(abs(c) * spread for c, (_, spread) in zip(constants[1:], parts[1:])) >= 1 << check.bits:
        return False
    if not check.coef and len(check.base) == 1:
        (m, c), = check.base
        if len(m) == 1 and c == 1 and isinstance(m[0], Value) and _bits(m[0]) <= min(check.bits, 57):
            return True
    if sum(_size(p, max(spread, 1)) for p, spread in parts) >= _LIMIT:
        return False
    if check.bits == 64 and not any(is_wide(s) for s in scalars(check)):
        return True
    return None


def is_wide(scalar) -> bool:
    """Is it for the kernel to look how large a scalar is?"""
    return not isinstance(scalar, Value) or _bits(scalar) > 57


def at_launch(check: Check, shape, arguments) -> dict[tuple[str, int], int] | None:
    """What a launch has to keep to for the check to hold: ("grid", axis) or ("argument", its place in `arguments`) -> the most that it may
    be. None where that does not follow from these alone. Sizes are added up and nothing cancels, so no step on the way wraps either."""
    ends = [poly_const(dict(p)) for _, p in check.coef]
    if None in ends:
        return None
    fixed = sum(abs(c) * (shape[d] - 1) for c, (d, _) in zip(ends, check.coef))
    weights: dict[tuple[str, int], int] = {}
    bits = check.bits
    for m, c in check.base:
        size = _Sizes(1, {}, check.bits) if not m else _sizes(m[0], arguments) if len(m) == 1 else None
        if size is None:
            return None
        fixed, bits = fixed + abs(c) * size.fixed, min(bits, size.bits)
        for key, weight in size.weights.items():
            weights[key] = weights.get(key, 0) + abs(c) * weight
    room = _limit(bits) - 1 - fixed
    if room < 0:
        return None
    # What is left of the range is shared out equally. A counter below n is n - 1 at most.
    return {key: room // len(weights) // weight + 1 for key, weight in weights.items()}


@dataclass(frozen=True)
class _Sizes:
    """A bound of a scalar's absolute value, and of everything that it is computed from: `fixed` + sum of weight x what a key of `at_launch`
    stays below. bits: the fewest that any of it is computed in."""

    fixed: int
    weights: dict
    bits: int


def _sizes(v, arguments) -> _Sizes | None:
    if not isinstance(v, Value):
        return None
    op, bits = v.op, width(v.type.elem)
    number = constant(v)
    if number is not None:
        return _Sizes(abs(number), {}, bits)
    if op is not None and op.name in ("arith.addi", "arith.subi", "arith.muli"):
        x, y = (_sizes(o, arguments) for o in op.operands)
        if x is None or y is None:
            return None
        bits = min(bits, x.bits, y.bits)
        if op.name == "arith.muli":
            if x.weights:
                x, y = y, x
            return None if x.weights else _Sizes(x.fixed * y.fixed, {k: w * x.fixed for k, w in y.weights.items() if x.fixed}, bits)
        return _Sizes(x.fixed + y.fixed, {k: x.weights.get(k, 0) + y.weights.get(k, 0) for k in x.weights.keys() | y.weights.keys()}, bits)
    if op is not None and op.name in ("arith.extsi", "arith.index_cast"):
        return _sizes(op.operands[0], arguments)
    found = _counter(v, arguments)
    if found is None:
        return None
    return _Sizes(found, {}, bits) if isinstance(found, int) else _Sizes(0, {found: 1}, bits)


def width(elem: str) -> int:
    """The bits of an integer element type."""
    return int(elem[1:]) if elem[1:].isdigit() else 64


def _counter(v, arguments):
    """What bounds the absolute value of a scalar that counts from 0 or more, or is a quotient or remainder of one: a key as in
    `at_launch` for what it stays below, or the most that it is."""
    if not isinstance(v, Value):
        return None
    op = v.op
    if op is not None and op.name in ("arith.divsi", "arith.remsi"):
        return _counter(op.operands[0], arguments)  # whatever the divisor: division by 0 gives the dividend
    if op is not None and op.name == "tt.get_program_id":
        return "grid", "xyz".index(op.attrs["axis"])
    loop = counted_by(v)
    if loop is None:
        return None
    lo, hi = (constant(x) for x in loop.operands[:2])
    if lo is None or lo < 0:
        return None
    if hi is not None:
        return max(hi - 1, 0)
    end = loop.operands[1]
    return ("argument", arguments.index(end)) if end in arguments else None


def counted_by(v):
    """The loop whose counter a scalar is, if it is one's."""
    region = v.block.region if v.op is None and v.block is not None else None
    loop = region.op if region is not None else None
    return loop if loop is not None and loop.name == "scf.for" and v is v.block.args[0] and not loop.attrs.get("unsigned") else None
