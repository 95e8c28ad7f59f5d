"""Lanes a few elements apart, as every second number of a row or a row from its end: loaded with what lies between them, and shuffled together or apart.

A gather takes a cycle an element; two loads and a shuffle do as much in one.
"""

from __future__ import annotations

from ..llvm import ir
from ..llvm.ir import Val, bits_of, const, i64
from . import access
from .access import Strided

#: steps from lane to lane, and bytes, up to which everything between them is loaded. Of 16384 numbers in a cache on a Zen 5, gathered over loaded, launch left out, by steps of 2, 4, 6, 8: AVX-512 fp32 3.0 3.3 2.1 1.1,
#: bf16 7 4.2 3.8 2.9; AVX2 fp32 4 2 1.9 1.4, fp64 (2, 4) 2.1 1.2
APART, BYTES = 8, 32
#: the same for stores, of which each writes whole vectors under a mask
STORED = 4


def loads(nest, where, elem: str) -> bool:
    """Are lanes of LLVM's type `elem` near enough to be loaded so?"""
    return _near(nest, where, min(APART, nest.lanes - 1)) and abs(where.step) * _bytes(elem) <= BYTES


def masked_loads(nest, where, elem: str) -> bool:
    """Are they also where only some of the lanes are there?"""
    return loads(nest, where, elem) and _masks(nest, elem)


def stores(nest, where, elem: str) -> bool:
    """Are they to be stored?"""
    return _near(nest, where, STORED) and (abs(where.step) == 1 or _masks(nest, elem))


def _masks(nest, elem: str) -> bool:
    """Does an instruction access a vector under a mask?"""
    target = nest.k.target
    return target.masks and target.vector_bits >= (512 if _bytes(elem) < 4 else 256)


def _near(nest, where, most: int) -> bool:
    return isinstance(where, Strided) and isinstance(where.step, int) and abs(where.step) <= most and nest.k.target.turns


def first(nest, elem: str, where: Strided) -> Val:
    """The address of the lane that lies first."""
    return nest.b.gep(elem, where.pointer, i64(where.step * (nest.lanes - 1))) if where.step < 0 else where.pointer


def span(nest, elem: str, where: Strided) -> int:
    """Bytes from the first lane's to the last one's end."""
    return (abs(where.step) * (nest.lanes - 1) + 1) * _bytes(elem)


def load(nest, elem: str, where: Strided, p: Val) -> Val:
    """All lanes, of which the first to lie is at `p`. Nothing behind the last one is read, and what is between two is in the page of one of them."""
    return _loaded(nest, where, lambda at: nest.b.load(ir.vec(elem, nest.lanes), nest.b.gep(elem, p, i64(at)), _bytes(elem)))


def masked_load(nest, elem: str, where: Strided, mask: Val, left: Val | None) -> Val:
    """The lanes where `mask`, anything elsewhere. left: how many of the first lanes the mask is of, where it is of these: what is between two of them is read, too."""
    b, lanes, apart = nest.b, nest.lanes, abs(where.step)
    p, ty = first(nest, elem, where), ir.vec(elem, lanes)
    mask = backwards(b, mask) if where.step < 0 else mask

    def piece(at: int) -> Val:
        if left is not None and where.step > 0:
            here = b.icmp("sle", b.iota("i32", lanes), b.splat(b.sub(b.mul(b.sub(left, 1), apart), at), lanes))
        else:
            here = _spread(b, mask, apart, at)
        return access.masked_load(b, ty, b.gep(elem, p, i64(at)), here, Val(ty, "zeroinitializer"))

    return _loaded(nest, where, piece)


def _loaded(nest, where: Strided, piece) -> Val:
    """The lanes, of vectors that begin so many elements behind the first to lie."""
    b, lanes, apart = nest.b, nest.lanes, abs(where.step)
    starts = [min(k * lanes, apart * (lanes - 1) + 1 - lanes) for k in range(apart)]
    pieces = [piece(at) for at in starts]
    lies = [apart * k for k in range(lanes)]
    if apart == 1:
        return backwards(b, pieces[0])
    made = pieces[0]
    for k in range(1, apart):  # what the pieces up to this one hold
        made = b.shuffle(made, pieces[k], [at if k == 1 and at < lanes else n if at < k * lanes else at - starts[k] + lanes if at < (k + 1) * lanes else -1 for n, at in enumerate(lies)])
    return backwards(b, made) if where.step < 0 else made


def _spread(b, mask: Val, apart: int, at: int) -> Val:
    """A mask of lanes `apart` from each other, of the elements from `at` on: false between them."""
    n = mask.lanes
    return b.shuffle(mask, const("i1", False, n), [n if (at + k) % apart else (at + k) // apart for k in range(n)])


def store(nest, v: Val, where: Strided, mask: Val):
    """The lanes of `v` where `mask`."""
    b, lanes, apart = nest.b, nest.lanes, abs(where.step)
    v, mask = b.splat(v, lanes), b.splat(mask, lanes)
    p = first(nest, v.elem, where)
    if where.step < 0:
        v, mask = backwards(b, v), backwards(b, mask)
    for k in range(apart):
        lies = [(k * lanes + n) // apart if (k * lanes + n) % apart == 0 else -1 for n in range(lanes)]
        access.masked_store(b, b.shuffle(v, None, lies), b.gep(v.elem, p, i64(k * lanes)), _spread(b, mask, apart, k * lanes))


def backwards(b, v: Val) -> Val:
    """The last lane first."""
    return b.shuffle(v, None, list(range(v.lanes))[::-1])


def _bytes(elem: str) -> int:
    return bits_of(elem) // 8
