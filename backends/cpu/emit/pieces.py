"""Loops over flat indices of which quotients and remainders are asked (`plan/quotients.py`), whatever is divided by.

Where what a nest does can be masked, its innermost loop goes piece by piece, each up to the next multiple of a divisor: all of a piece has one quotient, which is a number outside the
loop over its chunks, and remainders that follow each other; the last chunk is masked. Pieces of a few chunks are written out, chunk behind chunk, but for those that are cut off: of rows
of 50 a loop and its address took as long as what it moved. Else each chunk's first lane is looked at: those that have one quotient, most of them, are written
once more for that, others lane by lane.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..llvm.ir import Val, const, i64
from ..plan.facts import poly_mul, poly_of
from ..plan.quotients import Quotient, by_level, finest, least
from . import access

#: divisors of this many times the lanes of several chunks, and more, are looked at for all of them at once
APART = 4


def goes_by_pieces(nest) -> bool:
    """Does the innermost loop, in the range that is walked now?"""
    return nest.masked and nest.whole_range and nest.in_pieces and nest.plan.backwards is None and bool(nest.plan.pieces)


def long_enough(nest) -> Val:
    """An i1: are pieces of divisors that are known as the kernel runs worth a turn of a loop, all of them, and what remainders are divided by factors of what these were taken of?"""
    b, found = nest.b, nest.plan.pieces.values()
    shortest = dict.fromkeys((p.within for p in found if p.within), 1) | dict.fromkeys((p.divisor for p in found if not isinstance(p.divisor, int)), least(nest.lanes))
    out = const("i1", True)
    for divisor, least_of_it in shortest.items():
        out = b.and_(out, b.icmp("sge", access.poly_value(nest, dict(divisor)), i64(least_of_it)))
    for product in dict.fromkeys(v for p in found for v in p.exact):
        wide = poly_mul(*map(poly_of, product.op.operands))
        out = b.and_(out, b.icmp("eq", access.poly_value(nest, wide), access.poly_value(nest, poly_of(product))))
    return out


def by_pieces(nest, lo: Val, hi: Val, step: int, d: int, inside):
    """The loop over dimension `d` round `inside()`, whose chunks begin and end where they may: `step` indices at a time, and those that are left one chunk at a time."""
    found, quotients, at_first = nest.plan.pieces, nest.quotients, nest.at_first
    nest.quotients, nest.at_first = found, {}
    levels, size = by_level(found), nest.plan.written_out

    def at_level(n: int, lo: Val, hi: Val):
        if n < len(levels):
            _each(nest, levels[n], lo, hi, lambda start, end: at_level(n + 1, start, end))
        elif size is None:
            _chunks(nest, lo, hi, step, d, inside)
        else:
            nest.k.either(nest.b.icmp("eq", nest.b.sub(hi, lo), i64(size)), lambda: _written_out(nest, lo, size, d, inside), lambda: _masked(nest, lo, hi, d, inside))

    at_level(0, lo, hi)
    nest.quotients, nest.at_first = quotients, at_first


def _each(nest, found, lo: Val, hi: Val, piece):
    """`piece(start, end)` of all the pieces between two indices within which none of these quotients changes."""
    b, first = nest.b, nest.b.variable(lo)
    # Of each divisor, the index from which on its quotient is another one: counted on from piece to piece, for a division would be what each next piece waits for.
    changes = [(b.variable(_next_change(nest, *key, lo)), _far(nest, key[0], found[key])) for key in finest(found)]
    with b.loop_while(lambda: b.icmp("slt", first.get(), hi)):
        start = first.get()
        nest.at_first.update({key: (_divided(nest, *key, p, start), start) for key, p in found.items()})
        end = functools.reduce(lambda x, y: b.intrinsic("smin", x, y), [change.get() for change, _ in changes], hi)
        piece(start, end)
        first.set(end)
        for change, divisor in changes:
            at = change.get()
            change.set(b.select(b.icmp("eq", at, end), b.add(at, divisor), at) if len(changes) > 1 else b.add(at, divisor))


def _chunks(nest, start: Val, end: Val, step: int, d: int, inside):
    """A piece: `step` indices at a time, and what is left one chunk at a time."""
    b = nest.b
    whole = b.add(start, b.and_(b.sub(end, start), i64(-step)))
    nest.loop_over(start, whole, step, d, inside)
    _masked(nest, whole, end, d, inside)


def _masked(nest, start: Val, end: Val, d: int, inside):
    """Indices one chunk at a time, of which the last need not be whole."""
    b, chunks, nest.chunks = nest.b, nest.chunks, 1

    def masked():
        _of_first(nest, b.cast("trunc", b.sub(end, nest.index[d]), "i32"), inside)

    nest.loop_over(start, end, nest.lanes, d, masked)
    nest.chunks = chunks


def _written_out(nest, start: Val, size: int, d: int, inside):
    """A piece of so many indices, chunk behind chunk."""
    chunks, nest.chunks = nest.chunks, 1
    for at in range(0, size, nest.lanes):
        left = size - at
        nest.enter(d, nest.b.add(start, i64(at)), inside if left >= nest.lanes else lambda left=left: _of_first(nest, const("i32", left), inside))
    nest.chunks = chunks


def _of_first(nest, left: Val, inside):
    """`inside()`, of the first `left` of the chunk's lanes."""
    nest.left, nest.part = left, nest.b.icmp("slt", nest.b.iota("i32", nest.lanes), nest.b.splat(left, nest.lanes))
    inside()
    nest.left = nest.part = None


def _next_change(nest, v, dims, start: Val) -> Val:
    """The index from which on a quotient is another one than at `start`."""
    b, divisor = nest.b, by(nest, v, nest.plan.quotients[v, dims])
    return b.add(start, b.cast("zext", b.sub(divisor, b.bin("urem", nest.dividend(v, dims, start), divisor)), "i64"))


def _far(nest, v, p: Quotient) -> Val:
    """A divisor as indices are added to, which no sum of it and of one goes beyond: behind 2^62 there are none."""
    b, divisor = nest.b, by(nest, v, p)
    return b.cast("zext", divisor, "i64") if divisor.elem != "i64" else b.intrinsic("smin", divisor, i64(1 << 62))


def _divided(nest, v, dims, p: Quotient, at: Val | None = None) -> Val:
    """A quotient or remainder at an index of the vector dimension, or of the chunk's first lane."""
    x = nest.dividend(v, dims, at)
    if p.within and not p.step:
        x = nest.b.bin("urem", x, _whole(nest, v, p.within))
    return nest.b.bin("urem" if p.step else "udiv", x, by(nest, v, p))


def first_of(nest, v, dims) -> Val:
    """The quotient of all of the chunk's lanes, or the first lane's remainder; `v` at `dims` is one of the nest's `quotients`."""
    p = nest.quotients[v, dims]
    if (v, dims) not in nest.at_first:
        return _divided(nest, v, dims, p)
    return nest.b.cast("trunc", wide_first_of(nest, v, dims), v.type.elem) if p.step else nest.at_first[v, dims][0]


def wide_first_of(nest, v, dims) -> Val:
    """`first_of` in 64 bits, as addresses are counted: within a piece a remainder grows as the index does, so that between them is a number outside the loop."""
    if (v, dims) not in nest.at_first:
        return nest.b.cast("sext", nest.first_of(v, dims), "i64")
    found, start = nest.at_first[v, dims]
    found = nest.b.cast("sext", found, "i64")
    return nest.b.add(nest.index_of(nest.vdim), nest.b.sub(found, start)) if nest.quotients[v, dims].step else found


def by(nest, v, p: Quotient) -> Val:
    """What a quotient divides by."""
    return const(v.type.elem, p.divisor) if isinstance(p.divisor, int) else _whole(nest, v, p.divisor)


def _whole(nest, v, divisor: tuple) -> Val:
    return nest.b.cast("trunc", access.poly_value(nest, dict(divisor)), v.type.elem)


# --- chunk by chunk --------------------------------------------------------------------------------------------------


def _looks(nest) -> bool:
    """Not behind the end of what masks let through, where little is done. Blocks that are transposed lie across that end as well: all their lines are loaded where one of them is there."""
    there = nest.whole_range or nest.plan.steps and False not in nest.facts.values()
    return bool(nest.plan.looked_at) and there and not nest.masked


def together(nest) -> list[range]:
    """Chunks that go side by side: all of them, but where too many of such groups would have more than one quotient."""
    if _looks(nest) and min(p.divisor for p in nest.plan.looked_at.values()) < APART * nest.lanes * nest.chunks:
        return [range(u, u + 1) for u in range(nest.chunks)]
    return [range(nest.chunks)]


def written(nest, chunks: range, inside, by_halves: bool = False):
    """`inside()`, in both ways where chunks are looked at. by_halves: what it does to lanes is done in `each_half`."""
    if not _looks(nest):
        inside()
        return
    b, always, looked_at = nest.b, nest.quotients, nest.plan.looked_at
    level = nest.depth_of[nest.vdim]  # from there on what is remembered is of lanes, which have one quotient or each its own
    memos, sections = nest.memos[level:], nest.sections[level:]

    def as_if(quotients, halves=()):
        nest.memos[level:], nest.quotients, nest.halves = map(dict, memos), quotients, halves
        nest.sections[level:] = [b.open_section() for _ in sections]  # what belongs to outer loops is done here: it may load what is there in this case alone
        inside()
        nest.sections[level:] = sections

    nest.u = chunks[0]
    one = functools.reduce(b.and_, (_has_one(nest, *key, nest.lanes * len(chunks)) for key in finest(looked_at)))
    nest.u = 0
    halved = by_halves and nest.k.target.masks and len(finest(looked_at)) == 1
    nest.k.either(one, lambda: as_if(always | looked_at), lambda: as_if(always | looked_at, _halves(nest)) if halved else as_if(always))
    nest.memos[level:], nest.quotients, nest.halves = memos, always, ()


class Half(NamedTuple):
    """Lanes of a chunk up to where a quotient changes, or from there on: which, what `at_first` says of them, and what is remembered from the chunk's level on, but within the innermost loop."""

    lanes: Val
    at_first: dict
    memos: list[dict]


def _halves(nest) -> list[Half]:
    """Both of a chunk that has two quotients, for lanes are no more than half of what is divided by."""
    b, level, found = nest.b, nest.depth_of[nest.vdim], nest.plan.looked_at
    (v, dims), = finest(found)

    def made() -> list[Half]:
        first = nest.index_of(nest.vdim)
        last = b.add(first, i64(nest.lanes - 1))
        of_first = b.sub(_next_change(nest, v, dims, first), first)
        here = b.icmp("slt", b.iota("i32", nest.lanes), b.splat(b.cast("trunc", of_first, "i32"), nest.lanes))
        return [Half(lanes, {key: (_divided(nest, *key, p, at), at) for key, p in found.items()}, []) for lanes, at in ((here, first), (b.not_(here), last))]

    return nest.hoisted(level, ("halves", v, dims), made)


def each_half(nest, body) -> list:
    """What `body()` returns; where lanes have two quotients, once for those of each, where it loads and stores nothing for the others."""
    if not nest.halves:
        return [body()]
    level, memos, found = nest.depth_of[nest.vdim], nest.memos, []
    for half in nest.halves:
        half.memos.extend({} for _ in memos[level + len(half.memos):-1])
        nest.memos = memos[:level] + half.memos + [dict(memos[-1])]
        nest.at_first, nest.part = half.at_first, half.lanes
        found.append(body())
    nest.memos, nest.at_first, nest.part = memos, {}, None
    return found


def _has_one(nest, v, dims, lanes: int) -> Val:
    """Have so many lanes from here on one quotient?"""
    divisor, elem = nest.plan.looked_at[v, dims].divisor, v.type.elem
    return nest.b.icmp("ule", nest.b.bin("urem", nest.dividend(v, dims), const(elem, divisor)), const(elem, divisor - lanes))
