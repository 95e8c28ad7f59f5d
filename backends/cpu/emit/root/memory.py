"""Loads, stores and pointers.

A pointer tensor is an address and a step from lane to lane: step 1 is one vector access, 0 a scalar one, anything else a
gather or scatter. A mask that is uniform over the lanes selects the address instead of masking the vector: inactive loads
read a zero block that is always there.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.ir import Val, const
from ..nest import gather, memory_type, scatter


def addptr(b, op, p, off):
    """Pointer plus elements; on the scalar path, and per lane where a pointer is data."""
    elem = memory_type(op.operands[0].type.pointee.elem)
    n = max(p.lanes, off.lanes)
    return b.gep(elem, b.splat(p, n), b.splat(b.cast("sext", off, "i64"), n))


def from_memory(b, v: Val, elem: str) -> Val:
    """What memory holds, as a register holds it: a bool takes a byte there."""
    return b.icmp("ne", v, const("i8", 0)) if elem == "i1" else v


def to_memory(b, v: Val, elem: str) -> Val:
    return b.cast("zext", v, "i8") if elem == "i1" else v


def load(nest, op, dims):
    """Elements of a masked load."""
    b, k = nest.b, nest.k
    ptr = op.operands[0]
    mask = nest.at(op.operands[1], dims) if len(op.operands) > 1 else const("i1", True)
    elem = ptr.type.pointee.elem
    mem = memory_type(elem)

    def other():
        return nest.at(op.operands[2], dims) if len(op.operands) > 2 else const(_reg(elem), 0)

    if mask.const is not None and not mask.const:
        return other()
    address, step = nest.address(ptr, dims)
    if step is None:
        v = gather(b, mem, address, mask, to_memory(b, other(), elem))
        return from_memory(b, v, elem)
    size = ir.bits_of(mem) // 8
    uniform = isinstance(step, int) and step == 0
    if mask.lanes == 1:
        if mask.const is None:
            address = b.select(mask, address, k.zeros)
        if uniform:
            v = b.load(mem, address, size)
        elif isinstance(step, int) and step == 1:
            v = b.load(ir.vec(mem, nest.lanes), address, size)
        else:
            v = gather(b, mem, nest._spread(mem, address, step), mask, to_memory(b, other(), elem))
        v = from_memory(b, v, elem)
        return v if mask.const is not None else b.select(mask, v, other())
    if uniform:
        any_lane = b.call(f"llvm.vector.reduce.or.{ir.mangle(mask.ty)}", "i1", [mask])
        v = b.load(mem, b.select(any_lane, address, k.zeros), size)
        return b.select(mask, from_memory(b, v, elem), other())
    if isinstance(step, int) and step == 1:
        ty = ir.vec(mem, nest.lanes)
        passthru = b.splat(to_memory(b, other(), elem), nest.lanes)
        v = b.call(f"llvm.masked.load.{ir.mangle(ty)}.p0", ty, [address, const("i32", size), mask, passthru])
        return from_memory(b, v, elem)
    v = gather(b, mem, nest._spread(mem, address, step), mask, to_memory(b, other(), elem))
    return from_memory(b, v, elem)


def _reg(elem):
    from ..nest import REGISTER
    return REGISTER[elem]


def scalar_load(k, op):
    """A load through a scalar pointer, at once."""
    b = k.b
    ptr = k.scalar(op.operands[0])
    elem = op.operands[0].type.pointee.elem
    mem = memory_type(elem)
    mask = k.scalar(op.operands[1]) if len(op.operands) > 1 else const("i1", True)
    other = k.scalar(op.operands[2]) if len(op.operands) > 2 else const(_reg(elem), 0)
    v = b.load(mem, b.select(mask, ptr, k.zeros), ir.bits_of(mem) // 8)
    v = from_memory(b, v, elem)
    k.env[op.result] = v if mask.const else b.select(mask, v, other)


def store(k, op):
    ptr, val = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    k.before_write(op, ptr)
    if not ptr.type.is_tensor:
        k.guarded(k.scalar(mask) if mask else const("i1", True),
                 lambda: _store_scalar(k, k.scalar(val), k.scalar(ptr), val.type.elem))
        return
    dims = tuple(range(len(ptr.type.shape)))
    sinks = [(ptr, dims), (val, dims)] + ([(mask, dims)] if mask else [])
    nest = k.begin_nest(ptr.type.shape, sinks, op=op, merge=True)
    keeps = k.keeps

    def body(u):
        k.write_keeps(nest, keeps, op)
        m = nest.at(mask, dims) if mask else const("i1", True)
        if m.const is not None and not m.const:
            return
        store_lanes(nest, ptr, dims, nest.at(val, dims), m)

    nest.run(nest.default_order, body)


def store_lanes(nest, ptr, dims, v: Val, mask: Val):
    """Store the lanes of `v` where `mask`."""
    b, k = nest.b, nest.k
    elem = ptr.type.pointee.elem
    v = to_memory(b, v, elem)
    size = ir.bits_of(v.elem) // 8
    address, step = nest.address(ptr, dims)
    n = nest.lanes
    if step == 0 and isinstance(step, int):
        # Every lane writes one address: the last active lane's value stays.
        if v.lanes == 1:
            any_lane = mask if mask.lanes == 1 else b.call(f"llvm.vector.reduce.or.{ir.mangle(mask.ty)}", "i1", [mask])
            k.guarded(any_lane, lambda: b.store(v, address, size))
        else:
            scatter(b, v, b.splat(address, n), b.splat(mask, n))
    elif step == 1 and isinstance(step, int):
        v = b.splat(v, n)
        if mask.lanes == 1:
            k.guarded(mask, lambda: b.store(v, address, size))
        else:
            b.call(f"llvm.masked.store.{ir.mangle(v.ty)}.p0", "void", [v, address, const("i32", size), mask])
    else:
        ptrs = address if step is None else nest._spread(v.elem, address, step)
        scatter(b, b.splat(v, n), ptrs, b.splat(mask, n))


def _store_scalar(k, v: Val, ptr: Val, elem: str):
    v = to_memory(k.b, v, elem)
    k.b.store(v, ptr, ir.bits_of(v.elem) // 8)


def barrier(k, op):
    """One program runs on one thread: everything before a barrier has happened."""


def assume(k, op):
    """What the kernel promises (`tl.assume`) is LLVM's to use, from here on: where control does not come, nothing is promised."""
    holds = k.scalar(op.operands[0])
    if holds.const is None:
        k.b.call("llvm.assume", "void", [holds])


ELEMENTWISE = {"tt.addptr": addptr}
LANES = {"tt.load": load}
ROOTS = {"tt.store": store, "ttg.barrier": barrier, "gpu.barrier": barrier, "llvm.intr.assume": assume,
         "tt.grid_dependency_wait": barrier, "tt.grid_dependency_launch_dependents": barrier}
