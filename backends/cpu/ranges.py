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

from .analysis import Poly, expanded, poly_const
from .ir import Val, const, i64

#: the trips of a loop are taken to be below this: twelve days of a nanosecond each
_TRIPS = 1 << 50
#: how large a 64-bit scalar may be where a form of it is used for loop bounds, which is checked
_WIDE = 1 << 56
#: sums are made in 64 bits, so their parts must stay below this
_LIMIT = 1 << 62


@dataclass(frozen=True)
class Check:
    """base + sum of coef[d] x index[d] lies within signed integers of `bits` at every index of the nest."""

    base: tuple
    coef: tuple
    bits: int

    @staticmethod
    def of(base: Poly, coef: dict[int, Poly], bits: int) -> Check:
        return Check(tuple(base.items()), tuple((d, tuple(p.items())) for d, p in coef.items()), bits)


def _scalars(check: Check):
    for p in (check.base, *(p for _, p in check.coef)):
        for m, _ in p:
            yield from m


def _bits(scalar) -> int:
    """The bits that a scalar of a form has, or had before it was extended."""
    if isinstance(scalar, Val):
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
            size *= _TRIPS if isinstance(s, Val) else min(1 << (_bits(s) - 1), _WIDE)
        total += size
    return total


def decided(check: Check, shape) -> bool | None:
    """True where the check is proved, False where it cannot be made, None where the kernel has to make it."""
    parts = [(check.base, 1)] + [(p, shape[d] - 1) for d, p in check.coef]
    constants = [poly_const(dict(p)) for p, _ in parts]
    if None not in constants:
        ends = [0 if n == 0 else c * spread for n, (c, (_, spread)) in enumerate(zip(constants, parts))]
        low, high = (constants[0] + sum(f(0, e) for e in ends) for f in (min, max))
        return -(1 << (check.bits - 1)) <= low and high < 1 << (check.bits - 1)
    if not check.coef and len(check.base) == 1:
        (m, c), = check.base
        if len(m) == 1 and c == 1 and not isinstance(m[0], Val) and _bits(m[0]) <= check.bits:
            return True
    if sum(_size(p, max(spread, 1)) for p, spread in parts) >= _LIMIT:
        return False
    if check.bits == 64 and not any(_wide(s) for s in _scalars(check)):
        return True
    return None


def _wide(scalar) -> bool:
    return not isinstance(scalar, Val) and _bits(scalar) > 57


def at_launch(check: Check, shape, arguments) -> dict[tuple[str, int], int] | None:
    """What a launch has to keep to for the check to hold: ("grid", axis) or ("argument", its place in `arguments`) -> the most that it may
    be. None where that does not follow from these alone."""
    base = expanded(dict(check.base))
    const_part = base.pop((), 0)
    ends = [(poly_const(dict(p)) or 0) * (shape[d] - 1) for d, p in check.coef]
    if None in [poly_const(dict(p)) for _, p in check.coef]:
        return None
    low, high = (const_part + sum(f(0, e) for e in ends) for f in (min, max))
    open_ones = []
    for m, c in base.items():
        found = _counter(m[0], arguments) if len(m) == 1 else None
        if found is None:
            return None
        if isinstance(found, int):
            low, high = low - abs(c) * found, high + abs(c) * found
        else:
            open_ones.append((found, c))
    most = (1 << (check.bits - 1)) - 1
    room = min(most - high, low + most + 1)
    if room < 0:
        return None
    out: dict[tuple[str, int], int] = {}
    for key, c in open_ones:  # what is left of the range is shared out equally; a counter below n is n - 1 at most
        n = room // len(open_ones) // abs(c) + 1
        out[key] = min(n, out.get(key, n))
    return out


def _counter(v, arguments):
    """What bounds the absolute value of a scalar that counts from 0 or more, or is a quotient or remainder of one: a key as in
    `at_launch` for what it stays below, or the most that it is."""
    if isinstance(v, Val):
        return None
    op = v.op
    if op is not None and op.name in ("arith.extsi", "arith.extui", "arith.index_cast"):
        return _counter(op.operands[0], arguments)
    if op is not None and op.name in ("arith.divsi", "arith.remsi"):
        return _counter(op.operands[0], arguments)  # whatever the divisor: division by 0 gives the dividend
    if op is not None and op.name == "tt.get_program_id":
        return "grid", "xyz".index(op.words[0]) if op.words else int(op.attrs.get("axis", 0))
    loop = v.block.region.op if op is None and v.block is not None and v.block.region is not None else None
    if loop is None or loop.name != "scf.for" or v is not v.block.args[0] or loop.attrs.get("unsigned"):
        return None
    lo, hi = (_constant(x) for x in loop.operands[:2])
    if lo is None or lo < 0:
        return None
    if hi is not None:
        return max(hi - 1, 0)
    end = loop.operands[1]
    return ("argument", arguments.index(end)) if end in arguments else None


def _constant(v) -> int | None:
    value = v.op.attrs["value"] if v.op is not None and v.op.name == "arith.constant" else None
    return value if isinstance(value, int) else None


def emitted(nest, check: Check) -> Val:
    """An i1: does the check hold? Emitted where the nest begins."""
    b = nest.b
    out = const("i1", True)
    for s in dict.fromkeys(s for s in _scalars(check) if _wide(s)):
        out = b.and_(out, b.icmp("ult", b.add(nest.k.scalar(s), i64(_WIDE)), i64(2 * _WIDE)))
    if check.bits == 64:
        return out
    least, most = -(1 << (check.bits - 1)), (1 << (check.bits - 1)) - 1
    base = nest.poly_value(dict(check.base))
    ends = [(poly_const(dict(p)), p, nest.shape[d] - 1) for d, p in check.coef]
    if all(c is not None for c, _, _ in ends):  # one comparison: low - least is below 2^bits - span, unsigned
        low, high = (sum(f(0, c * n) for c, _, n in ends) for f in (min, max))
        return b.and_(out, b.icmp("ult", b.add(base, i64(low - least)), i64(most - least + 1 - (high - low))))
    low = high = base
    for _, p, n in ends:
        end = b.mul(nest.poly_value(dict(p)), i64(n))
        low, high = b.add(low, b.intrinsic("smin", end, i64(0))), b.add(high, b.intrinsic("smax", end, i64(0)))
    return b.and_(out, b.and_(b.icmp("sge", low, i64(least)), b.icmp("sle", high, i64(most))))
