"""Checks of one element after the other, in functions that many kernels share: for the accesses that whole vectors could not show to be fine."""

from __future__ import annotations

from ...llvm.ir import FALSE, NULL, TRUE, Builder, Module, Val, define, i32, i64
from ...llvm.targets import Target
from ...plan.checks import LOOK, READ, WRITE
from . import boxes, race, scattered
from .block import BLOCK, EACH, EXTENT, FOR_EVER, FOUND, JOINED, PATTERN, RECORD, SERVICES, SITE, STEP, UNIT, WAIT, WAITED


STRUCTS = (EXTENT, BLOCK, RECORD, SITE, JOINED, WAIT, boxes.DIMENSION)


def services_ir(target: Target, kinds: str, orders: bool) -> str:
    """LLVM IR of the functions that kernels call which check `kinds`: those that `block.SERVICES` names, as far as there are any."""
    m = Module("checks", target.triple)
    m.globals += [s.line() for s in STRUCTS]
    _record(m)
    _find(m)
    if "race" in kinds:
        race.add(m, orders)
        scattered.add(m, orders)
    if "uninit" in kinds:
        _missing(m)
        _written(m)
    _run(m, kinds)
    boxes.add(m, frozenset(kinds.split(",")), orders)
    _lanes(m, kinds)
    _wait(m)
    _indices(m)
    for f in m.functions:
        if f.name.removeprefix("check.") in SERVICES:
            f.linkage = ""
    return m.render()


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
    """The extent in which `bytes` from an address on lie that a site accesses, or null."""
    b = define(m, "check.find", "ptr", "internal", block="ptr", site="ptr", address="i64", bytes="i64")
    block, site, address, size = b.fn.args
    count = b.cast("zext", b.get(SITE, site, "count"), "i64")
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


def _run(m: Module, kinds: frozenset[str]):
    """n elements side by side, active all of them: how many are outside? first: the first one's lane; step: lanes from one to the next."""
    b = define(m, "check.run", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", address="i64", n="i64", first="i64", step="i64")
    block, site, program, address, n, first, step = b.fn.args
    size = b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    bytes_ = b.mul(n, size)
    extent = b.call("check.find", "ptr", [block, site, address, bytes_])
    with b.when(b.icmp("ne", extent, NULL)):
        for kind in ("race", "written"):
            if (kind if kind == "race" else "uninit") in kinds:
                b.call(f"check.{kind}", "void", [block, site, extent, program, address, bytes_, first, step])
        b.ret(i64(0))
    with b.when(b.icmp("sgt", n, 1)):
        outside = b.variable(i64(0))
        with b.loop(i64(0), n) as k:
            found = b.call("check.run", "i64", [block, site, program, b.add(address, b.mul(k, size)), i64(1), b.add(first, b.mul(step, k)), step])
            outside.set(b.add(outside.get(), found))
        b.ret(outside.get())
    if "bounds" in kinds:
        record(b, "bounds", block, b.cast("zext", b.get(SITE, site, "number"), "i64"), program, address, first)
    b.ret(i64(1))


def _lanes(m: Module, kinds: str):
    """How many of n lanes are active and outside."""
    b = define(m, "check.lanes", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", addresses="ptr", active="ptr", n="i64",
               first="i64", step="i64")
    block, site, program, addresses, active, n, first, step = b.fn.args
    size = b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    if "race" in kinds and "uninit" not in kinds:
        with b.when(b.call("check.scattered", "i1", [block, site, program, addresses, active, n])):
            b.ret(i64(0))
    outside, at = b.variable(i64(0)), b.variable(i64(0))

    def address(k: Val) -> Val:
        return b.load("i64", b.gep("i64", addresses, k))

    def is_active(k: Val) -> Val:
        return b.icmp("ne", b.load("i8", b.gep("i8", active, k)), 0)

    with b.loop_while(lambda: b.icmp("slt", at.get(), n)) as turn:
        begin = at.get()
        at.set(b.add(begin, 1))
        turn.again(b.not_(is_active(begin)))
        start = address(begin)
        with b.loop_while(lambda: b.icmp("slt", at.get(), n)) as more:
            here = at.get()
            more.leave(b.not_(is_active(here)))
            more.leave(b.icmp("ne", address(here), b.add(start, b.mul(b.sub(here, begin), size))))
            at.set(b.add(here, 1))
        found = b.call("check.run", "i64", [block, site, program, start, b.sub(at.get(), begin), b.add(first, b.mul(step, begin)), step])
        outside.set(b.add(outside.get(), found))
    b.ret(outside.get())


def _wait(m: Module):
    """1 where a program has found the same at a place so often that it waits for ever, else 0."""
    b = define(m, "check.wait", "i64", "internal", "noinline", block="ptr", site="ptr", program="i64", address="i64", at="ptr")
    block, site, program, address, at = b.fn.args
    size, value, shift = b.cast("zext", b.get(SITE, site, "bytes"), "i64"), b.variable(i64(0)), b.variable(i64(0))
    with b.loop(i64(0), b.smin(size, 8)) as n:
        byte = b.cast("zext", b.load("i8", b.address(b.add(address, n), "ptr")), "i64")
        value.set(b.or_(value.get(), b.shl(byte, shift.get())))
        shift.set(b.add(shift.get(), 8))
    same = b.and_(b.icmp("eq", b.get(WAIT, at, "address"), address), b.icmp("eq", b.get(WAIT, at, "value"), value.get()))
    times = b.select(same, b.add(b.get(WAIT, at, "times"), 1), i64(0))
    for name, v in dict(address=address, value=value.get(), times=times).items():
        b.put(WAIT, at, name, v)
    over = b.icmp("sge", times, FOR_EVER)
    with b.when(over):
        record(b, "race", block, b.cast("zext", b.get(SITE, site, "number"), "i64"), program, address, i64(0), i64(0), i64(WAITED))
    b.ret(b.cast("zext", over, "i64"))


def _written(m: Module):
    """Reading what nobody has written; writing makes it written."""
    b = define(m, "check.written", "void", "internal", "noinline", block="ptr", site="ptr", extent="ptr", program="i64", address="i64", bytes="i64",
               first="i64", step="i64")
    block, site, extent, program, address, bytes_, first, step = b.fn.args
    written = b.get(EXTENT, extent, "written")
    with b.when(b.icmp("eq", written, NULL)):
        b.ret()
    begin = b.sub(address, b.get(EXTENT, extent, "start"))
    here = b.gep("i8", written, begin)
    access, size = b.get(SITE, site, "access"), b.cast("zext", b.get(SITE, site, "bytes"), "i64")
    with b.when(b.icmp("ne", access, i32(WRITE))):
        all_ = b.variable(Val("i8", "1"))
        with b.loop(i64(0), bytes_) as k:
            all_.set(b.and_(all_.get(), b.load("i8", b.gep("i8", here, k))))
        with b.when(b.icmp("eq", all_.get(), 0)), b.loop(i64(0), b.udiv(bytes_, size)) as n:
            at = b.add(begin, b.mul(n, size))
            with b.when(b.call("check.missing", "i1", [extent, at, size])):
                record(b, "uninit", block, b.cast("zext", b.get(SITE, site, "number"), "i64"), program, b.add(address, b.mul(n, size)),
                       b.add(first, b.mul(step, n)))
    with b.when(b.and_(b.icmp("ne", access, i32(READ)), b.icmp("ne", access, i32(LOOK)))):
        b.call("llvm.memset.p0.i64", "void", [here, Val("i8", "1"), bytes_, FALSE])
    b.ret()


def _missing(m: Module):
    """Has nobody written any of the bytes of an element? at: its place in its storage."""
    b = define(m, "check.missing", "i1", "internal", "noinline", extent="ptr", at="i64", bytes="i64")
    extent, at, bytes_ = b.fn.args
    start, written = b.get(EXTENT, extent, "start"), b.get(EXTENT, extent, "written")
    low, end = b.and_(at, i64(-UNIT)), b.add(at, bytes_)
    with b.loop(low, b.smin(b.smax(b.add(low, i64(UNIT)), end), b.get(EXTENT, extent, "bytes"))) as k:
        mine = b.and_(b.icmp("sge", k, at), b.icmp("slt", k, end))
        marked = b.icmp("ne", b.load("i8", b.gep("i8", written, k)), 0)
        pattern = b.cast("trunc", b.add(b.mul(k, i64(STEP)), i64(PATTERN)), "i8")
        touched = b.icmp("ne", b.load("i8", b.address(b.add(start, k), "ptr")), pattern)
        with b.when(b.select(marked, mine, touched)):
            b.ret(FALSE)
    b.ret(TRUE)


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


