"""Loads, stores and pointers.

A mask that is uniform over the lanes selects the address instead of masking the vector: inactive loads
read a zero block that is always there.
"""

from __future__ import annotations

from ...llvm import ir
from ...llvm.builder import LINE
from ...llvm.ir import Val, const, i64
from ...llvm.elements import REGISTER, memory_type
from .. import access, bounds, near
from ..access import Access, Same, Scattered, Unit


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
    v = _loaded(nest, op, dims)
    _acquire(nest.b, op)
    return v


def _acquire(b, op):
    """Behind a volatile load, with which kernels wait for what another program stores: it is carried out each time, and what is loaded after it is not loaded before."""
    if op.attrs.get("isVolatile"):
        b.acquire()


def _loaded(nest, op, dims):
    b, k = nest.b, nest.k
    ptr = op.operands[0]
    mask = nest.at(op.operands[1], dims) if len(op.operands) > 1 else const("i1", True)
    elem = ptr.type.pointee.elem
    mem = memory_type(elem)

    def other():
        return nest.at(op.operands[2], dims) if len(op.operands) > 2 else const(REGISTER[elem], 0)

    if mask.const is not None and not mask.const:
        return other()
    where = access.address(nest, ptr, dims)
    left = nest.left if mask.const else None  # the first lanes that are there, where that is all
    if nest.part is not None and not (isinstance(where, Same) and mask.lanes == 1):  # of an address for all at least one lane is there
        mask = b.and_(b.splat(mask, nest.lanes), nest.part)
    if isinstance(where, Scattered):
        return from_memory(b, access.gather(b, mem, where.pointers, mask, to_memory(b, other(), elem)), elem)
    if mask.lanes == 1:
        return _load_all(nest, where, mask, mem, elem, other)
    size = ir.bits_of(mem) // 8
    if isinstance(where, Same):
        any_lane = b.some(mask)
        v = b.load(mem, b.select(any_lane, where.pointer, k.zeros), size)
        return b.select(mask, from_memory(b, v, elem), other())
    if isinstance(where, Unit):
        ty = ir.vec(mem, nest.lanes)
        passthru = b.splat(to_memory(b, other(), elem), nest.lanes)
        v = access.masked_load(b, ty, where.pointer, mask, passthru)
        return from_memory(b, v, elem)
    if near.masked_loads(nest, where, mem):
        return b.select(mask, from_memory(b, near.masked_load(nest, mem, where, mask, left), elem), b.splat(other(), nest.lanes))
    v = access.gather(b, mem, access.spread(nest, mem, *where), mask, to_memory(b, other(), elem))
    return from_memory(b, v, elem)


def _load_all(nest, where: Access, mask: Val, mem: str, elem: str, other) -> Val:
    """A load under a mask that all lanes share: it selects the address, or a zero block that is always there."""
    b = nest.b
    size = ir.bits_of(mem) // 8
    together = near.loads(nest, where, mem) and (mask.const is not None or near.span(nest, mem, where) <= nest.k.zeros_bytes)
    p = near.first(nest, mem, where) if together else where.pointer
    p = p if mask.const is not None else b.select(mask, p, nest.k.zeros)
    if together:
        v = near.load(nest, mem, where, p)
    elif isinstance(where, Same):
        v = b.load(mem, p, size)
    elif isinstance(where, Unit):
        v = b.load(ir.vec(mem, nest.lanes), p, size)
    else:
        v = access.gather(b, mem, access.spread(nest, mem, p, where.step), mask, to_memory(b, other(), elem))
    v = from_memory(b, v, elem)
    return v if mask.const is not None else b.select(mask, v, other())


def scalar_load(k, op):
    """A load through a scalar pointer, at once."""
    b = k.b
    ptr = k.scalar(op.operands[0])
    elem = op.operands[0].type.pointee.elem
    mem = memory_type(elem)
    mask = k.scalar(op.operands[1]) if len(op.operands) > 1 else const("i1", True)
    other = k.scalar(op.operands[2]) if len(op.operands) > 2 else const(REGISTER[elem], 0)
    v = b.load(mem, b.select(mask, ptr, k.zeros), ir.bits_of(mem) // 8, volatile=bool(op.attrs.get("isVolatile")))
    _acquire(b, op)
    v = from_memory(b, v, elem)
    k.env[op.result] = v if mask.const else b.select(mask, v, other)


def store(k, step):
    ptr, val = step.op.operands[:2]
    mask = step.op.operands[2] if len(step.op.operands) > 2 else None
    if step.nest is None:
        k.guarded(k.scalar(mask) if mask else const("i1", True),
                  lambda: _store_scalar(k, k.scalar(val), k.scalar(ptr), val.type.elem))
        return
    nest = k.nest(step.nest)
    nest.first, nest.ahead = ahead(nest, step.nest.chunks, [val] + ([mask] if mask else [])), k.target.written
    may_be_masked(nest, step.op, step.nest.keeps)
    nest.run(lambda u: store_chunk(nest, step.op, step.nest.keeps), step.nest.chunks or 1)


def may_be_masked(nest, op, keeps):
    """The nest's innermost loop stores, and nothing else."""
    mask = op.operands[2] if len(op.operands) > 2 else None
    nest.masked = nest.maskable(keeps)
    nest.idle = lambda: mask is not None and bounds.is_false(nest, mask, nest.plan.identity)


def ahead(nest, chunks: int, values):
    """What of `values` several chunks compute before the first one stores; None where none goes beside another."""
    if chunks < 2:
        return None
    return lambda u: [nest.at(v, nest.plan.identity) for v in values if v.type.is_tensor]


def store_chunk(nest, op, keeps):
    """What a store does at the nest's current indices, after what is kept there for later roots."""
    ptr, val, *mask = op.operands
    dims = tuple(range(len(ptr.type.shape)))
    nest.k.write_keeps(nest, keeps)
    m = nest.at(mask[0], dims) if mask else const("i1", True)
    if m.const is None or m.const:
        store_lanes(nest, ptr, dims, nest.at(val, dims), m)


def store_lanes(nest, ptr, dims, v: Val, mask: Val):
    """Store the lanes of `v` where `mask`."""
    b, k = nest.b, nest.k
    elem = ptr.type.pointee.elem
    v = to_memory(b, v, elem)
    size = ir.bits_of(v.elem) // 8
    where = access.address(nest, ptr, dims)
    n = nest.lanes
    if nest.part is not None:
        mask = b.and_(b.splat(mask, n), nest.part)
    if isinstance(where, Same):
        # Every lane writes one address: the last active lane's value stays.
        if v.lanes == 1:
            any_lane = b.some(mask)
            k.guarded(any_lane, lambda: b.store(v, where.pointer, size))
        else:
            access.scatter(b, v, b.splat(where.pointer, n), b.splat(mask, n))
    elif isinstance(where, Unit):
        v = b.splat(v, n)
        if mask.lanes == 1:
            if nest.ahead and n * size >= LINE:
                b.fetch(b.gep("i8", where.pointer, i64(nest.ahead)), written=True)
            k.guarded(mask, lambda: b.store(v, where.pointer, size))
        else:
            access.masked_store(b, v, where.pointer, mask)
    elif near.stores(nest, where, v.elem):
        near.store(nest, v, where, mask)
    else:
        access.scatter(b, b.splat(v, n), access.pointers(nest, where, v.elem), b.splat(mask, n))


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
ROOTS = {"tt.store": store}
SCALARS = {"tt.load": scalar_load, "llvm.intr.assume": assume,
           **dict.fromkeys(("ttg.barrier", "gpu.barrier", "tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"), barrier)}
