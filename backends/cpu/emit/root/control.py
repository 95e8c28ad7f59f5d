"""Control flow: loops, branches, calls, and the assignment of values that a loop carries.

Scalars carried by a loop live in stack slots that LLVM turns into registers; tensors in the buffers that the plan names.
"""

from __future__ import annotations

import math

from ...llvm import ir
from ...llvm.elements import REGISTER, bytes_of
from ...llvm.ir import Val, const, i64
from ...ttir.ops import row
from ...ttir.types import walk
from ...plan.product import Product
from ...plan.records import Assign, Body, Branch, Call, Copy, For, If, Induction, Jump, Return, Trips, While
from ..product import ending
from . import scalars


class Frame:
    """The function being walked: its LLVM blocks by label, and where it returns to."""

    def __init__(self, after):
        self.after = after
        self.blocks: dict = {}


def function_body(k, body: Body, after):
    """The blocks of a function, which goes to the LLVM block `after` where it ends."""
    frame, k.frame = k.frame, Frame(after)
    outside = k.lines.scopes
    for block, _ in body.blocks[1:]:
        k.frame.blocks[block.label] = k.fn.new_block("block")
        for arg in block.args:
            if not arg.type.is_tensor:
                k.slots[arg] = scalars.slot(k, arg)
    for n, (block, steps) in enumerate(body.blocks):
        if n:
            k.b.place(k.frame.blocks[block.label])
            k.lines.arrive(k.frame.blocks[block.label])
            _read(k, block.args)
        k.run(steps)
    k.frame, k.lines.scopes = frame, outside


def _read(k, values):
    for v in values:
        if not v.type.is_tensor:
            scalars.read(k, v, k.slots[v])


def branching_region(k, body: Body) -> list[Val]:
    """The results of a region of several blocks, whose `return`s may stand in any of them."""
    types = [REGISTER[v.type.elem] for v in next(o for o in walk(body.region) if row(o).region_return).operands]
    for n, ty in enumerate(types):
        k.slots[body.region, n] = k.b.alloca(ty, "result")
    slots = [k.slots[body.region, n] for n in range(len(types))]
    after = k.fn.new_block("returned")
    function_body(k, body, after)
    k.b.place(after)
    return [k.b.load(ty, slot, 8) for ty, slot in zip(types, slots)]


def call(k, step: Call):
    op = step.op
    for r in op.results:
        if not r.type.is_tensor:
            k.slots[r] = scalars.slot(k, r)
    after = k.fn.new_block("returned")
    function_body(k, step.body, after)
    k.b.place(after)
    k.b.dbg = k.debug_loc(op)
    _read(k, op.results)


def ret(k, step: Return):
    k.b.br(k.frame.after)


def jump(k, step: Jump):
    k.lines.leave(k.frame.blocks[step.label])
    k.b.br(k.frame.blocks[step.label])


def branch(k, step: Branch):
    c = k.scalar(step.condition)
    for label, _ in step.edges:
        k.lines.leave(k.frame.blocks[label])
    if any(values for _, values in step.op.successors):
        # Arguments are stored on the edge that carries them.
        edges = [k.fn.new_block("edge") for _ in step.edges]
        k.b.cond_br(c, *edges)
        for edge, (label, steps) in zip(edges, step.edges):
            k.b.enter(edge)
            k.run(steps)
            k.b.br(k.frame.blocks[label])
        return
    k.b.cond_br(c, *[k.frame.blocks[label] for label, _ in step.edges])


def assign(k, step: Assign):
    for slot, v in [(k.slots[key], k.scalar(v)) for key, v in step.pairs]:
        k.b.store(v, slot, 8)


def copy(k, step: Copy):
    size = math.prod(step.to.shape) * bytes_of(step.to.elem)
    k.b.call("llvm.memcpy.p0.p0.i64", "void", [k.pointer(step.to), k.pointer(step.source), i64(size), const("i1", False)])


# --- loops and branches ----------------------------------------------------------------------------------------------


def for_loop(k, step: For):
    b, op = k.b, step.op
    block = op.regions[0].block
    iv, args, inits = block.args[0], block.args[1:], op.operands[3:]
    lo, hi, by = (k.scalar(v) for v in op.operands[:3])
    ty = lo.ty
    count_slot = b.alloca("i64", "trips")
    for arg, init, slot in zip(args, inits, step.slots):
        if slot is None:
            k.slots[arg] = scalars.slot(k, arg, "carry")
            b.store(k.scalar(init), k.slots[arg], 8)
    # The number behind the last one may be too large for its type, so the numbers are counted in more bits.
    unsigned = bool(op.attrs.get("unsigned"))
    wide = ir.bits_of(ty) < 64 and by.const != 1
    first, end, by = (b.cast("zext" if unsigned else "sext", x, "i64") if wide else x for x in (lo, hi, by))
    ends = [x for x in step.body if isinstance(x, Product) and x.ending is not None]
    for x in ends:
        ending.begin(k, x)
    iv_slot = b.alloca(first.ty, "iv")
    b.store(first, iv_slot, 8)
    b.store(i64(0), count_slot, 8)
    head, body, done = (k.fn.new_block(n) for n in ("for", "do", "endfor"))
    b.br(head)
    b.enter(head)
    at = b.load(first.ty, iv_slot, 8)
    below = "ult" if unsigned and not wide else "slt"
    b.cond_br(b.icmp(below, at, end), body, done)
    b.enter(body)
    k.env[iv] = b.cast("trunc", at, ty)
    count = b.load("i64", count_slot, 8)
    _note_trips(k, step, count, after=False)
    _read(k, args)
    if ends:
        k.last[step.number] = b.not_(b.icmp(below, _next_number(b, at, end, by, wide), end))
    k.run(step.body)
    b.dbg = k.debug_loc(op)
    b.store(b.bin("add", count, 1, "nuw nsw"), count_slot, 8)
    b.store(_next_number(b, at, end, by, wide), iv_slot, 8)
    b.br(head)
    b.place(done)
    made = b.load("i64", count_slot, 8)
    _note_trips(k, step, made, after=True)
    for idle in step.idle:
        k.guarded(k.none(idle.trips), lambda: k.run(idle.steps))
    for res, arg in zip(op.results, args):
        if not res.type.is_tensor:
            scalars.read(k, res, k.slots[arg])


def _note_trips(k, step: For, count: Val, after: bool):
    """How often the loop's body ran, for what the loop carries as initial + trips x step."""
    for counted in (Trips(step.number, 1, after), *(slot.count._replace(after=after) for slot in step.slots if isinstance(slot, Induction))):
        k.trips[counted] = k.b.mul(count, i64(counted.times))


def _next_number(b, at: Val, end: Val, by: Val, wide: bool) -> Val:
    """What follows `at` in a range; `end` where that would pass it and, in 64 bits, might wrap."""
    if wide:
        return b.bin("add", at, by, "nsw")
    if by.const == 1:  # `at` is below `end`
        return b.add(at, by)
    return b.add(at, b.intrinsic("umin", b.sub(end, at), by))


def if_op(k, step: If):
    b, op = k.b, step.op
    c = k.scalar(op.operands[0])
    for r, slot in zip(op.results, step.slots):
        if slot is None:
            k.slots[r] = scalars.slot(k, r)
    then, after = k.fn.new_block("then"), k.fn.new_block("endif")
    other = k.fn.new_block("else") if len(op.regions) > 1 else after
    if c.const is not None:
        b.br(then if c.const else other)
    else:
        b.cond_br(c, then, other)
    for block, steps in zip((then, other), step.branches):
        b.enter(block)
        k.run(steps)
        b.dbg = k.debug_loc(op)
        b.br(after)
    b.place(after)
    _read(k, op.results)


def while_loop(k, step: While):
    b, op = k.b, step.op
    before, after = op.regions
    for v in (*before.block.args, *op.results):
        if not v.type.is_tensor:
            k.slots[v] = scalars.slot(k, v)
    k.run(step.entry)
    head, body, done = (k.fn.new_block(n) for n in ("while", "do", "endwhile"))
    b.br(head)
    b.enter(head)
    _read(k, before.block.args)
    k.run(step.test)
    b.cond_br(k.scalar(before.block.ops[-1].operands[0]), body, done)
    b.enter(body)
    for arg, r in zip(after.block.args, op.results):
        if not arg.type.is_tensor:
            scalars.read(k, arg, k.slots[r])
    k.run(step.body)
    b.dbg = k.debug_loc(op)
    b.br(head)
    b.place(done)
    _read(k, op.results)


STEPS = {Call: call, Return: ret, Jump: jump, Branch: branch, Assign: assign, Copy: copy, For: for_loop, If: if_op, While: while_loop}
