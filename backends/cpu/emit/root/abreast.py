"""Atomic additions of neighbours in memory, several by one compare-and-swap.

An exchange of 16 bytes takes x86 hardly longer than one of 4, in which four f32 are added (each of them still atomically: no other write gets in between).
Where addresses follow one another, all lanes are active and the first one is aligned, which is looked at as the kernel runs, that is how lanes are added.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.elements import REGISTER, bytes_of
from ...llvm.ir import Val, const, i64
from .. import access
from ..access import Access, Same, Strided, Unit
from ..element import convert


def lanes_of(k, elem: str, lanes: int, where: Access) -> int:
    """Lanes that one exchange takes, of a vector of `lanes`, all of them where nothing is exchanged; 0 where they go one after the other."""
    apart = isinstance(where, Same) or isinstance(where, Strided) and isinstance(where.step, int)
    many = lanes if k.alone else k.target.exchanges // bytes_of(elem)
    return 0 if apart or many < 2 or lanes % many else many


def add_alone(b, elem: str, p: Val, v: Val, mask: Val | None = None) -> Val:
    """What lies from `p` on, to which `v` is added, a number or a vector of them, of which lanes `mask` may say; nobody else writes there."""
    old = b.load(v.ty, p, bytes_of(elem)) if mask is None else access.masked_load(b, v.ty, p, mask, b.splat(const(v.elem, 0), v.lanes))
    new = b.add(old, v) if elem[0] == "i" else total(b, elem, old, v)
    if mask is None:
        b.store(new, p, bytes_of(elem))
    else:
        access.masked_store(b, new, p, mask)
    return old


def total(b, elem: str, x: Val, y: Val) -> Val:
    """x + y of floats of type `elem`, numbers or vectors: short ones are added as f32, and rounded once."""
    wide = "f64" if elem == "f64" else "f32"
    sum_ = b.fbin("fadd", convert.float_to_float(b, x, elem, wide), convert.float_to_float(b, y, elem, wide), "")
    return convert.float_to_float(b, sum_, wide, elem)


def possible(k, where: Access, pointers: Val, mask: Val, elem: str, many: int) -> Val:
    """An i1: are all lanes active, side by side, and the first one where an exchange of `many` is aligned?"""
    b = k.b
    first = b.address(b.extract(pointers, 0))
    aligned = const("i1", True) if k.alone else b.icmp("eq", b.and_(first, i64(many * bytes_of(elem) - 1)), 0)
    if isinstance(where, Unit):
        return b.and_(b.every(mask), aligned)
    follow = b.add(b.splat(first, pointers.lanes), b.mul(b.iota("i64", pointers.lanes), i64(bytes_of(elem))))
    return b.and_(b.every(b.and_(mask, b.icmp("eq", b.address(pointers), follow))), aligned)


def add(b, elem: str, order: str, first: Val, v: Val, many: int, swap):
    """Add the lanes of `v` to what lies from `first` on, `many` at a time. swap: as `atomic._compare_and_swap`."""
    for at in range(0, v.lanes, many):
        _add(b, elem, order, b.gep(v.elem, first, i64(at)), b.shuffle(v, None, list(range(at, at + many))), swap)


def _add(b, elem: str, order: str, p: Val, v: Val, swap):
    kind, wide = ir.vec(REGISTER[elem], v.lanes), "f64" if elem == "f64" else "f32"
    more = convert.float_to_float(b, v, elem, wide)
    with b.repeat(_seen(b, p, ir.bits_of(v.elem) * v.lanes)) as turn:
        seen, = turn.values
        sum_ = b.fbin("fadd", convert.float_to_float(b, b.reinterpret(seen, kind), elem, wide), more, "")
        found, ok = swap(b, p, seen, b.reinterpret(convert.float_to_float(b, sum_, wide, elem), seen.ty), order)
        turn.until(ok, found)


def _seen(b, p: Val, bits: int) -> Val:
    """What the first exchange expects, 64 bits at a time: no instruction reads more at once, and one that meets a write fails, to come again."""
    whole = f"i{bits}"
    low = b.atomic_load("i64", p)
    if bits == 64:
        return low
    high = b.cast("zext", b.atomic_load("i64", b.gep("i64", p, i64(1))), whole)
    return b.or_(b.cast("zext", low, whole), b.bin("shl", high, const(whole, 64)))
