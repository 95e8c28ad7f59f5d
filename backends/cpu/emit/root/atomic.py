"""Atomic operations: real ones, since programs run on several threads.

Addresses, values and masks are computed a vector at a time; the operations themselves go one element after the other, but for additions of floats to
neighbours (`abreast.py`). A kernel that runs alone just adds (`CPUOptions.alone`). f16 and bf16, and every float where the target has no instruction, are exchanged in a compare-and-swap loop.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const, i64
from ...llvm.elements import REGISTER, memory_type
from .. import access
from . import abreast
from .memory import from_memory, may_be_masked, to_memory
from .scalars import register_type

_ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_RMW = {"and": "and", "or": "or", "xor": "xor", "add": "add", "max": "max", "min": "min", "umax": "umax",
        "umin": "umin", "exch": "xchg", "fadd": "fadd"}


def _ordering(k, op) -> str:
    word = op.attrs.get("sem")
    if word not in _ORDER:
        raise k.error(op, f"memory order {word} is not one of {', '.join(_ORDER)}")
    return _ORDER[word]


def _compare_and_swap(b, p: Val, expected: Val, new: Val, order: str) -> tuple[Val, Val]:
    """(what was there, whether it was `expected` and is `new` now), for integers."""
    failure = "acquire" if order in ("acquire", "acq_rel") else "monotonic"
    return b.compare_and_swap(p, expected, new, order, failure)


def rmw(k, step):
    op = step.op
    kind = op.attrs.get("kind")
    if kind not in _RMW:
        raise k.error(op, f"kind {kind} is not one of {', '.join(_RMW)}")
    order = _ordering(k, op)
    elem = op.operands[1].type.elem
    ptr, val = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None

    def one(p: Val, v: Val) -> Val:
        if k.alone and _RMW[kind] in ("add", "fadd"):
            return abreast.add_alone(k.b, elem, p, v)
        return _exchange(k, _RMW[kind], elem, order, p, v)

    def some(first: Val, v: Val, many: int, active: Val | None = None):
        if k.alone:
            abreast.add_alone(k.b, elem, first, v, active)
        else:
            abreast.add(k.b, elem, order, first, v, many, _compare_and_swap)

    neighbours = not step.out and (kind == "fadd" or kind == "add" and k.alone)
    _each(k, step, [ptr, val], mask, one, some if neighbours else None)


def _exchange(k, name: str, elem: str, order: str, p: Val, v: Val) -> Val:
    """The old value at `p`, where (old `name` v) is put."""
    b = k.b
    size = ir.bits_of(v.elem) // 8
    if name == "xchg" and v.elem in ir.FLOATS:
        whole = b.bitcast(v, f"i{8 * size}")
        return b.bitcast(b.atomic("xchg", p, whole, order), v.elem)
    if name != "fadd" or elem in ("f32", "f64"):
        return b.atomic(name, p, v, order)
    bits = f"i{8 * size}"
    first = b.atomic_load(bits, p)
    with b.repeat(first) as turn:
        seen, = turn.values
        new = b.bitcast(abreast.total(b, elem, b.bitcast(seen, REGISTER[elem]), v), bits)
        found, ok = _compare_and_swap(b, p, seen, new, order)
        turn.until(ok, found)
    return b.bitcast(found, REGISTER[elem])


def cas(k, step):
    op = step.op
    order = _ordering(k, op)

    def one(p: Val, expected: Val, new: Val) -> Val:
        b = k.b
        bits = f"i{ir.bits_of(new.elem)}"
        found, _ = _compare_and_swap(b, p, b.bitcast(expected, bits), b.bitcast(new, bits), order)
        return b.bitcast(found, new.elem)

    _each(k, step, list(op.operands), None, one)


def load(k, step):
    op = step.op
    order = _ordering(k, op)
    elem = memory_type(op.operands[0].type.pointee.elem)
    bits = f"i{ir.bits_of(elem)}"

    def one(p: Val) -> Val:
        return k.b.bitcast(k.b.atomic_load(bits, p, order), elem)

    _each(k, step, [op.operands[0]], op.operands[1] if len(op.operands) > 1 else None, one)


def store(k, step):
    op = step.op
    order = _ordering(k, op)

    def one(p: Val, v: Val):
        x = to_memory(k.b, v, v.elem)
        bits = f"i{ir.bits_of(x.elem)}"
        k.b.atomic_store(k.b.bitcast(x, bits), p, order)

    _each(k, step, list(op.operands[:2]), op.operands[2] if len(op.operands) > 2 else None, one)


def poll(k, step):
    """Wait until memory holds the expected value; False where the time is up first. Programs of one launch run in order on as
    many threads as there are, so a program may wait for an earlier one, not for a later one."""
    b, op = k.b, step.op
    order = _ordering(k, op)
    deadline = None
    if len(op.operands) > 2:
        start = _nanoseconds(k)
        deadline = b.call("llvm.uadd.sat.i64", "i64", [start, k.scalar(op.operands[2])])

    def one(p: Val, expected: Val) -> Val:
        again, wait, done = (k.fn.new_block(n) for n in ("poll", "wait", "polled"))
        b.br(again)
        b.enter(again)
        now = b.atomic_load(expected.ty, p, order)
        hit = b.icmp("eq", now, expected)
        b.cond_br(hit, done, wait)
        b.enter(wait)
        b.call("sched_yield", "i32", [])
        if deadline is None:
            b.br(again)
        else:
            b.cond_br(b.icmp("ult", _nanoseconds(k), deadline), again, done)
        b.enter(done)
        return hit

    _each(k, step, list(op.operands[:2]), None, one)


def _nanoseconds(k) -> Val:
    b = k.b
    spec = b.alloca("{ i64, i64 }", "time")
    b.call("clock_gettime", "i32", [const("i32", 1), spec])
    seconds = b.load("i64", spec, 8)
    rest = b.load("i64", b.gep("i64", spec, i64(1)), 8)
    return b.add(b.mul(seconds, i64(1000000000)), rest)


def _each(k, step, operands, mask, one, some=None):
    """`one(pointer, *values)` for every element where the mask holds; its results are the operation's. some(pointer of the first, value, at a time[, active lanes]): the
    same for a vector of neighbours, where there is such; of some lanes alone where the kernel runs alone."""
    if step.nest is None:
        _once(k, step.op, operands, mask, one)
        return
    b, op = k.b, step.op
    dims = tuple(range(len(operands[0].type.shape)))
    nest = k.nest(step.nest)
    lanes = nest.lanes
    elem = op.result.type.elem if step.out else None
    olds = b.alloca(ir.vec(memory_type(elem), lanes), "olds", 64) if step.out else None
    if some is not None and k.alone:
        may_be_masked(nest, op, step.nest.keeps)

    def body(u):
        k.write_keeps(nest, step.nest.keeps)
        where = access.address(nest, operands[0], dims)
        ptrs = access.pointers(nest, where, memory_type(operands[0].type.pointee.elem))
        vals = [b.splat(v, lanes) for v in [ptrs] + [nest.at(o, dims) for o in operands[1:]]]
        m = b.splat(nest.at(mask, dims), lanes) if mask is not None else const("i1", True, lanes)
        if nest.part is not None:
            m = b.and_(m, nest.part)
        if step.out:
            b.store(ir.Val(ir.vec(memory_type(elem), lanes), "zeroinitializer"), olds, 8)

        def apart():
            active, *given = (_spread(b, x) for x in (m, *vals))

            def lane(j):

                def act():
                    v = one(*[x(j) for x in given])
                    if step.out:
                        v = to_memory(b, v, v.elem)
                        b.store(v, b.gep(v.elem, olds, j), ir.bits_of(v.elem) // 8)

                k.guarded(active(j), act)

            k.loop(i64(0), i64(lanes), 1, lane, "lane")

        stored = operands[0].type.pointee.elem
        many = 0 if some is None else abreast.lanes_of(k, stored, lanes, where)
        if many and k.alone and isinstance(where, access.Unit) and k.target.masks:
            some(b.extract(vals[0], 0), vals[1], many, None if m.const else m)
        elif many:
            k.either(abreast.possible(k, where, vals[0], m, stored, many), lambda: some(b.extract(vals[0], 0), vals[1], many), apart)
        else:
            apart()
        if step.out:
            v = b.load(ir.vec(memory_type(elem), lanes), olds, 8)
            access.store_buffer(nest, step.out[0], dims, from_memory(b, v, elem))

    nest.run(body)


def _spread(b, v: Val):
    """(number) -> that lane of a vector, for a loop over them: from the stack, where LLVM would put all of it for each lane."""
    if v.ty[0] != "<" or v.const is not None:
        return lambda j: b.extract(v, j)
    known = to_memory(b, v, v.elem)
    size = 8 if known.elem == "ptr" else ir.bits_of(known.elem) // 8
    slot = b.alloca(known.ty, "lanes", 64)
    b.store(known, slot, 64)
    return lambda j: from_memory(b, b.load(known.elem, b.gep(known.elem, slot, j), size), v.elem)


def _once(k, op, operands, mask, one):
    """An atomic operation on scalars; what it returns where the mask does not hold is zero."""
    b = k.b
    slot = None
    if op.results:
        slot = b.alloca(register_type(op.result), "old")
        b.store(ir.Val(register_type(op.result), "zeroinitializer"), slot, 8)

    def act():
        v = one(*[k.scalar(o) for o in operands])
        if slot is not None:
            b.store(from_memory(b, v, op.result.type.elem) if v.elem == "i8" else v, slot, 8)

    k.guarded(k.scalar(mask) if mask is not None else const("i1", True), act)
    if slot is not None:
        k.env[op.result] = b.load(register_type(op.result), slot, 8)


ROOTS = {"tt.atomic_rmw": rmw, "tt.atomic_cas": cas, "tt.atomic_load": load, "tt.atomic_store": store,
         "tt.atomic_poll": poll}
