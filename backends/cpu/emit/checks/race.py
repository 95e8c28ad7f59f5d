"""Races: two programs that meet in an element, one of which writes it, with nothing that puts them in order.

Programs of a checked launch run one after the other, so what is found does not depend on timing: two accesses race where no chain of atomic operations
leads from the first one's program to the second's. Such a chain goes through places in memory: what a program did before it *releases* a place (an atomic
operation of one element, sem release or acq_rel) is in order before what another does after it *acquires* the place. This is the happens-before
relation of Lamport, kept by epochs as in FastTrack (Flanagan and Freund, PLDI 2009): an *episode* is what a program does between two releases,
and they are numbered through all launches of the process. For each granule of memory the last writer and the last reader are kept, as
episode << 8 | atomic << 7 | site; what earlier launches left there has smaller numbers, so nothing is ever cleared.
`launch << 8` as a reader says that several read it that are in no order.
"""

from __future__ import annotations

from ...llvm.ir import TRUE, Builder, Module, Val, define, i32, i64
from ...plan.checks import ATOMIC, READ, SITES
from .block import BLOCK, EXTENT, PLACES, SITE

ATOMICALLY = 1 << 7


def add(m: Module, granule: int, orders: bool):
    """@check.race, @check.begin, and where atomic operations put programs in order @check.order."""
    if orders:
        _ordered(m)
        _order(m)
    _begin(m, orders)
    _race(m, granule, orders)


def begin(k, block: Val, program: Val):
    k.b.call("check.begin", "void", [block, program])


def _begin(m: Module, orders: bool):
    """A program begins."""
    b = define(m, "check.begin", "void", "internal", block="ptr", program="i64")
    block, program = b.fn.args
    episode = b.add(b.get(BLOCK, block, "episode"), 1)
    b.put(BLOCK, block, "episode", episode)
    b.put(BLOCK, block, "first", episode)
    here = b.cast("zext", b.sub(episode, b.get(BLOCK, block, "launch")), "i64")
    b.store(b.cast("trunc", program, "i32"), b.gep("i32", b.get(BLOCK, block, "owners"), here))
    if orders:
        mine, words = b.get(BLOCK, block, "mine"), b.get(BLOCK, block, "words")
        with b.loop(i64(0), words) as w:
            b.store(i64(0), b.gep("i64", mine, w))
    b.ret()


def foreign(b: Builder, block: Val, who: Val) -> Val:
    """Lanes of `who`, a granule's writers or readers: of this launch, and of another program than the one that runs."""
    base = b.shl(b.get(BLOCK, block, "launch"), 8)
    span = b.sub(b.shl(b.get(BLOCK, block, "first"), 8), base)
    return b.icmp("ult", b.sub(who, b.splat(base, who.lanes)), b.splat(span, who.lanes))


def mark(b: Builder, block: Val, number: Val, atomically: Val | None = None) -> Val:
    """What the program that runs leaves in the granules that a site touches. number: the site's, an i32."""
    place = b.intrinsic("umin", number, i32(SITES + 1))
    out = b.or_(b.shl(b.get(BLOCK, block, "episode"), 8), place)
    return out if atomically is None else b.or_(out, b.select(atomically, i32(ATOMICALLY), i32(0)))


def several(b: Builder, block: Val) -> Val:
    return b.shl(b.get(BLOCK, block, "launch"), 8)


def _ordered(m: Module):
    """Is what another program left in order before now?"""
    b = define(m, "check.ordered", "i1", "internal", block="ptr", who="i32")
    block, who = b.fn.args
    n = b.cast("zext", b.sub(b.lshr(who, 8), b.get(BLOCK, block, "launch")), "i64")
    word = b.lshr(n, 6)
    with b.when(b.icmp("uge", word, b.get(BLOCK, block, "words"))):
        b.ret(TRUE)  # not kept: too many episodes
    bits = b.load("i64", b.gep("i64", b.get(BLOCK, block, "mine"), word))
    b.ret(b.cast("trunc", b.lshr(bits, b.and_(n, i64(63))), "i1"))


def _order(m: Module):
    """An atomic operation on one element: what it acquires, and what it releases."""
    b = define(m, "check.order", "void", "internal", "noinline", block="ptr", address="i64", program="i64", acquires="i1", releases="i1")
    block, address, program, acquires, releases = b.fn.args
    words, mine = b.get(BLOCK, block, "words"), b.get(BLOCK, block, "mine")
    place = b.and_(b.lshr(address, 2), i64(PLACES - 1))
    theirs = b.gep("i64", b.get(BLOCK, block, "sets"), b.mul(place, words))
    with b.when(acquires), b.loop(i64(0), words) as w:
        at = b.gep("i64", mine, w)
        b.store(b.or_(b.load("i64", at), b.load("i64", b.gep("i64", theirs, w))), at)
    with b.when(releases):
        with b.loop(i64(0), words) as w:
            at = b.gep("i64", theirs, w)
            b.store(b.or_(b.load("i64", at), b.load("i64", b.gep("i64", mine, w))), at)
        launch, episode = b.get(BLOCK, block, "launch"), b.get(BLOCK, block, "episode")
        begun, now = (b.cast("zext", b.sub(e, launch), "i64") for e in (b.get(BLOCK, block, "first"), episode))
        most = b.mul(words, i64(64))
        with b.loop(begun, b.smin(b.add(now, 1), most)) as n:
            at = b.gep("i64", theirs, b.lshr(n, 6))
            b.store(b.or_(b.load("i64", at), b.shl(i64(1), b.and_(n, i64(63)))), at)
        with b.when(b.icmp("slt", b.add(now, 1), most)):
            b.put(BLOCK, block, "episode", b.add(episode, 1))
            b.store(b.cast("trunc", program, "i32"), b.gep("i32", b.get(BLOCK, block, "owners"), b.add(now, 1)))
    b.ret()


def _race(m: Module, granule: int, orders: bool):
    b = define(m, "check.race", "void", "internal", "noinline", block="ptr", site="ptr", extent="ptr", program="i64", address="i64", lane="i64")
    block, site, extent, program, address, lane = b.fn.args
    access, number = b.get(SITE, site, "access"), b.get(SITE, site, "number")
    reading, atomic = b.icmp("eq", access, i32(READ)), b.icmp("eq", access, i32(ATOMIC))
    start = b.sub(address, b.get(EXTENT, extent, "start"))
    first = b.udiv(start, granule)
    last = b.udiv(b.sub(b.add(start, b.cast("zext", b.get(SITE, site, "bytes"), "i64")), 1), granule)
    writers, readers = b.get(EXTENT, extent, "writers"), b.get(EXTENT, extent, "readers")
    me = mark(b, block, number, atomic)

    def stranger(who: Val) -> Val:
        out = b.variable(foreign(b, block, who))
        if orders:
            with b.when(out.get()):
                out.set(b.not_(b.call("check.ordered", "i1", [block, who])))
        return out.get()

    with b.loop(first, b.add(last, 1)) as n:
        writer_at, reader_at = b.gep("i32", writers, n), b.gep("i32", readers, n)
        writer, reader = b.load("i32", writer_at), b.load("i32", reader_at)
        both = b.and_(atomic, b.icmp("ne", b.and_(writer, i32(ATOMICALLY)), 0))
        written, read = b.and_(stranger(writer), b.not_(both)), stranger(reader)
        clash = b.or_(written, b.and_(read, b.not_(reading)))
        with b.when(clash):
            other = b.select(written, writer, reader)
            b.call("check.record", "void", [i64(1), block, b.cast("zext", number, "i64"), program, address, lane,
                                            b.cast("zext", other, "i64"), b.cast("zext", written, "i64")])
        with b.either(reading) as (yes, no):
            with yes:
                b.store(b.select(read, several(b, block), me), reader_at)
            with no:
                b.store(me, writer_at)
    b.ret()


