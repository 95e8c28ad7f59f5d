"""Races among lanes that lie anywhere: each has its granule's mark looked at in one short loop. (Vectors of marks, fetched by gathers and left by
scatters, took as long on a Zen 4.)"""

from __future__ import annotations

from ...llvm.ir import FALSE, TRUE, Module, define, i32, i64
from . import race
from .block import BLOCK, EXTENT, LINE_BITS, SITE


def add(m: Module, orders: bool):
    """@check.scattered: an i1, is there nothing to say of n active or inactive lanes? Then their marks say that they were here. Elements of one extent, each
    as wide as a granule: of others it does not know."""
    b = define(m, "check.scattered", "i1", "internal", "noinline", block="ptr", site="ptr", program="i64", addresses="ptr", active="ptr", n="i64")
    block, site, program, addresses, active, n = b.fn.args
    size = b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    with b.when(b.or_(b.icmp("ne", size, b.shl(i64(1), b.get(BLOCK, block, "granule"))), b.icmp("ne", b.get(SITE, site, "count"), i32(1)))):
        b.ret(FALSE)
    place = b.cast("zext", b.load("i32", b.gep(SITE.ty, site, i64(1))), "i64")
    extent = b.gep(EXTENT.ty, b.get(BLOCK, block, "extents"), place)
    touched = race.Touched(b, block, site, program, extent, orders)
    start, room = b.get(EXTENT, extent, "start"), b.sub(b.get(EXTENT, extent, "bytes"), size)
    with b.when(b.icmp("slt", room, 0)):
        b.ret(FALSE)
    shared = FALSE if orders else touched.reading

    with b.loop(i64(0), n) as k, b.when(b.icmp("ne", b.load("i8", b.gep("i8", active, k)), 0)):
        at = b.load("i64", b.gep("i64", addresses, k))
        with b.when(b.icmp("ugt", b.sub(at, start), room)):
            b.ret(FALSE)
        with b.when(b.not_(touched.unmarked)):
            granule = touched.granule_at(b.sub(at, touched.origin))
            line = b.lshr(granule, LINE_BITS)
            touched.tell_apart(touched.writers, touched.writers_apart, line)
            writer_at = b.gep("i32", touched.writers_apart, granule)
            writer = b.load("i32", writer_at)
            with b.when(touched.others.marked(writer)):
                b.ret(FALSE)
            with b.either(touched.unread) as (yes, no):
                with yes:
                    b.store(race.left(b, touched.me, writer), writer_at)
                with no:
                    touched.tell_apart(touched.readers, touched.readers_apart, line)
                    reader_at = b.gep("i32", touched.readers_apart, granule)
                    reader = b.load("i32", reader_at)
                    several = touched.others.marked(reader)
                    with b.when(b.and_(several, b.not_(shared))):
                        b.ret(FALSE)
                    with b.either(touched.reading) as (reads, writes):
                        with reads:
                            b.store(b.select(several, touched.base, race.left(b, touched.me, reader)), reader_at)
                        with writes:
                            b.store(race.left(b, touched.me, writer), writer_at)
    b.ret(TRUE)
