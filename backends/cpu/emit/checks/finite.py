"""NaN and infinities: operations that make infinities of finite numbers, or NaN of what is none, are noted, and a store of such a number says who is to blame (`plan/finite.py`)."""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import FALSE, Module, Struct, Val, const, define, i64
from ...plan.looks import FiniteStore, Made
from .. import access
from .block import FOUND, PROGRAM, service

#: what a site of the program that runs has made: has it?, in which lane, the number's bits
NOTED = Struct("check.noted", made="i64", lane="i64", bits="i64")
#: what all bits of an exponent are, by LLVM's type of a number in a register
_EXPONENT = {"half": 0x7C00, "i16": 0x7F80, "float": 0x7F800000, "double": 0x7FF0000000000000}


def add(m: Module, sites: int):
    m.globals.append(NOTED.line())
    m.variable("check.table", f"[{sites + 1} x {NOTED.ty}] zeroinitializer", tail=", align 64")
    table = Val("ptr", "@check.table")
    b = define(m, "check.forget", "void", "internal")
    b.call("llvm.memset.p0.i64", "void", [table, Val("i8", "0"), i64(24 * (sites + 1)), FALSE])
    b.ret()
    b = define(m, "check.note", "void", "internal", "noinline", site="i64", lane="i64", bits="i64")
    site, lane, bits = b.fn.args
    place = b.gep(NOTED.ty, table, site)
    with b.when(b.icmp("eq", b.get(NOTED, place, "made"), 0)):
        for name, v in dict(made=i64(1), lane=lane, bits=bits).items():
            b.put(NOTED, place, name, v)
    b.ret()
    # way: sites in program order, those that load as negative numbers
    b = define(m, "check.blame", "void", "internal", "noinline", block="ptr", program="i64", way="ptr", n="i64", store="i64")
    block, program, way, n, store = b.fn.args
    first = b.variable(i64(0))
    with b.loop(i64(0), n) as k:
        number = b.load("i64", b.gep("i64", way, k))
        loads = b.icmp("slt", number, 0)
        site = b.select(loads, b.sub(i64(0), number), number)
        with b.when(b.icmp("ne", b.get(NOTED, b.gep(NOTED.ty, table, site), "made"), 0)):
            with b.when(loads):
                b.ret()
            with b.when(b.icmp("eq", first.get(), 0)):
                first.set(site)
    with b.when(b.icmp("ne", first.get(), 0)):
        place = b.gep(NOTED.ty, table, first.get())
        b.call(service(b, block, "record"), "void", [i64(FOUND.index("nan")), block, first.get(), program, i64(0), b.get(NOTED, place, "lane"),
                                        b.get(NOTED, place, "bits"), store])
    b.ret()


def begin_program(k):
    k.b.call("check.forget", "void", [])


def _bits(b, v: Val) -> Val:
    """Floats as integers of their width; some are that in registers already."""
    return b.bitcast(v, {"half": "i16", "float": "i32", "double": "i64"}.get(v.elem, v.elem))


def _extreme(b, v: Val) -> Val:
    """Lanes that are NaN or infinite."""
    bits = _bits(b, v)
    exponent = const(bits.elem, _EXPONENT[v.elem], bits.lanes)
    return b.icmp("eq", b.and_(bits, exponent), exponent)


def _tell(b, maker, lane: Val, v: Val):
    """Note what a maker made in a lane."""
    b.call("check.note", "void", [i64(maker.number), lane, b.cast("zext", _bits(b, v), "i64")])


def _nan(b, v: Val) -> Val:
    """Lanes that are NaN."""
    bits = _bits(b, v)
    return b.icmp("ugt", b.and_(bits, const(bits.elem, (1 << ir.bits_of(bits.elem) - 1) - 1, bits.lanes)), const(bits.elem, _EXPONENT[v.elem], bits.lanes))


def _made(b, v: Val, operands, mask: Val | None) -> Val:
    """Lanes of `v` that are infinite, though all of the operands are finite, or NaN, though none of them is."""
    bad = nan = _extreme(b, v)
    if operands:
        nan = _nan(b, v)
    for o in operands:
        bad, nan = b.and_(bad, b.not_(_extreme(b, o))), b.and_(nan, b.not_(_nan(b, o)))
    bad = b.or_(bad, nan)
    return bad if mask is None else b.and_(bad, mask)


def made(k, step: Made):
    """Note what operations made."""
    b = k.b
    if step.nest is None:
        maker = step.makers[0]
        v = k.scalar(maker.op.result)
        k.guarded(_made(b, v, [k.scalar(o) for o in maker.given], None), lambda: _tell(b, maker, i64(0), v))
        return
    nest = k.nest(step.nest)
    dims = nest.plan.identity

    def body(u):
        first, stride = access.lane_number(nest)
        looks = []
        for maker in step.makers:
            v = nest.at(maker.op.result, dims)
            operands = [nest.at(o, dims) for o in maker.given]
            mask = nest.at(maker.mask, dims) if maker.mask is not None else None
            looks.append((maker, v, _made(b, v, operands, mask)))
        for maker, v, bad in looks:
            k.guarded(b.some(bad), lambda maker=maker, v=v, bad=bad: _note(k, maker, v, bad, first, stride))

    nest.run(body)


def _note(k, maker, v: Val, bad: Val, first: Val, stride: int):
    b = k.b
    n = max(v.lanes, bad.lanes)
    v, bad = b.splat(v, n), b.splat(bad, n)

    def one(j: Val):
        k.guarded(b.extract(bad, j), lambda: _tell(b, maker, b.add(first, b.mul(j, i64(stride))), b.extract(v, j)))

    k.loop(i64(0), i64(n), 1, one, "lane")


def store(k, step: FiniteStore):
    """Look at what is about to be stored."""
    b, out = k.b, step.out
    if not out.way:
        return
    way = k.module.variable(f"{k.name}.way.{out.number}", f"[{len(out.way)} x i64] [{', '.join(f'i64 {n}' for n in out.way)}]", "internal constant")

    def blame():
        b.call("check.blame", "void", [k.block, PROGRAM, way, i64(len(out.way)), i64(out.number)])

    if step.nest is None:
        mask = k.scalar(out.mask) if out.mask is not None else const("i1", True)
        k.guarded(b.and_(_extreme(b, k.scalar(out.value)), mask), blame)
        return
    nest = k.nest(step.nest)
    found = b.alloca("i1", "extreme")
    b.store(FALSE, found)

    def body(u):
        bad = _extreme(b, nest.at(out.value, nest.plan.identity))
        if out.mask is not None:
            bad = b.and_(bad, nest.at(out.mask, nest.plan.identity))
        b.store(b.or_(b.load("i1", found), b.some(bad)), found)

    nest.run(body)
    k.guarded(b.load("i1", found), blame)


STEPS = {Made: made, FiniteStore: store}
