"""Checks of one element after the other, in functions of the kernel's module: for the accesses that whole vectors could not show to be fine."""

from __future__ import annotations

from ...llvm.ir import NULL, Builder, Module, Val, define, i32, i64
from ...plan.checks import READ, WRITE
from . import race
from .block import BLOCK, EACH, EXTENT, FOUND, PATTERN, RECORD, SITE


def add(m: Module, kinds: frozenset[str], granule: int, orders: bool):
    """@check.lanes and what it calls."""
    m.globals += [s.line() for s in (EXTENT, BLOCK, RECORD, SITE)]
    _record(m)
    _find(m)
    if "race" in kinds:
        race.add(m, granule, orders)
    if "uninit" in kinds:
        _written(m)
    _lanes(m, kinds)
    _indices(m)


def record(b: Builder, kind: str, block: Val, site: Val, program: Val, address: Val, lane: Val, value: Val = i64(0), other: Val = i64(0)):
    """Note a finding. site: its number, an i64."""
    b.call("check.record", "void", [i64(FOUND.index(kind)), block, site, program, address, lane, value, other])


def _record(m: Module):
    b = define(m, "check.record", "void", "internal", "noinline cold", kind="i64", block="ptr", site="i64", program="i64", address="i64", lane="i64",
               value="i64", other="i64")
    kind, block, site, program, address, lane, value, other = b.fn.args
    at = b.gep("i64", b.get(BLOCK, block, "counts"), b.add(b.mul(site, len(FOUND)), kind))
    with b.when(b.icmp("slt", b.atomic("add", at, i64(1)), EACH)):
        n = b.atomic("add", b.field(BLOCK, block, "count"), i64(1))
        with b.when(b.icmp("slt", n, b.get(BLOCK, block, "capacity"))):
            place = b.gep(RECORD.ty, b.get(BLOCK, block, "records"), n)
            for name, v in dict(kind=kind, site=site, program=program, address=address, lane=lane, value=value, other=other).items():
                b.put(RECORD, place, name, v)
    b.ret()


def inside(b: Builder, extent: Val, address: Val, size: Val) -> Val:
    """Do `size` bytes from `address` on lie in an extent?"""
    room = b.sub(b.get(EXTENT, extent, "bytes"), size)
    offset = b.sub(address, b.get(EXTENT, extent, "start"))
    return b.and_(b.icmp("sge", room, 0), b.icmp("ule", offset, room))


def _find(m: Module):
    """The extent that an access of a site lies in, or null."""
    b = define(m, "check.find", "ptr", "internal", block="ptr", site="ptr", address="i64")
    block, site, address = b.fn.args
    size, count = b.cast("zext", b.get(SITE, site, "bytes"), "i64"), b.cast("zext", b.get(SITE, site, "count"), "i64")
    extents, places = b.get(BLOCK, block, "extents"), b.gep(SITE.ty, site, i64(1))
    unknown = b.icmp("eq", count, 0)
    with b.loop(i64(0), b.select(unknown, b.get(BLOCK, block, "known"), count)) as n:
        at = b.variable(n)
        with b.when(b.not_(unknown)):
            at.set(b.cast("zext", b.load("i32", b.gep("i32", places, n)), "i64"))
        extent = b.gep(EXTENT.ty, extents, at.get())
        with b.when(inside(b, extent, address, size)):
            b.ret(extent)
    b.ret(NULL)


def _lanes(m: Module, kinds: frozenset[str]):
    """How many of the active lanes are outside; those are not active behind it."""
    b = define(m, "check.lanes", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", addresses="ptr", active="ptr", n="i64",
               first="i64", step="i64")
    block, site, program, addresses, active, n, first, step = b.fn.args
    number = b.cast("zext", b.get(SITE, site, "number"), "i64")
    outside = b.variable(i64(0))
    with b.loop(i64(0), n) as k:
        is_active = b.gep("i8", active, k)
        with b.when(b.icmp("ne", b.load("i8", is_active), 0)):
            address = b.load("i64", b.gep("i64", addresses, k))
            lane = b.add(first, b.mul(step, k))
            extent = b.call("check.find", "ptr", [block, site, address])
            with b.either(b.icmp("eq", extent, NULL)) as (yes, no):
                with yes:
                    if "bounds" in kinds:
                        record(b, "bounds", block, number, program, address, lane)
                        b.store(Val("i8", "0"), is_active)
                        outside.set(b.add(outside.get(), 1))
                with no:
                    if "race" in kinds:
                        b.call("check.race", "void", [block, site, extent, program, address, lane])
                    if "uninit" in kinds:
                        b.call("check.written", "void", [block, site, extent, program, address, lane])
    b.ret(outside.get())


def _written(m: Module):
    """Reading what nobody has written; writing makes it written."""
    b = define(m, "check.written", "void", "internal", "noinline", block="ptr", site="ptr", extent="ptr", program="i64", address="i64", lane="i64")
    block, site, extent, program, address, lane = b.fn.args
    written = b.get(EXTENT, extent, "written")
    with b.when(b.icmp("eq", written, NULL)):
        b.ret()
    here = b.gep("i8", written, b.sub(address, b.get(EXTENT, extent, "start")))
    access, size = b.get(SITE, site, "access"), b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    reads = b.icmp("ne", access, i32(WRITE))
    missing = b.variable(reads)
    with b.loop(i64(0), size) as k:
        at = b.gep("i8", here, k)
        pattern = b.icmp("eq", b.load("i8", b.address(b.add(address, k), "ptr")), PATTERN)
        missing.set(b.and_(missing.get(), b.and_(b.icmp("eq", b.load("i8", at), 0), pattern)))
        with b.when(b.icmp("ne", access, i32(READ))):
            b.store(Val("i8", "1"), at)
    with b.when(missing.get()):
        record(b, "uninit", block, b.cast("zext", b.get(SITE, site, "number"), "i64"), program, address, lane)
    b.ret()


def _indices(m: Module):
    """How many of n indices are not below `limit`."""
    b = define(m, "check.indices", "i64", "internal", "noinline", block="ptr", site="i64", program="i64", values="ptr", n="i64", first="i64", step="i64",
               limit="i64")
    block, site, program, values, n, first, step, limit = b.fn.args
    outside = b.variable(i64(0))
    with b.loop(i64(0), n) as k:
        v = b.load("i64", b.gep("i64", values, k))
        with b.when(b.icmp("uge", v, limit)):
            record(b, "bounds", block, site, program, i64(0), b.add(first, b.mul(step, k)), v)
            outside.set(b.add(outside.get(), 1))
    b.ret(outside.get())


