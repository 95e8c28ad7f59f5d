"""Control flow: loops, branches, calls, and the assignment of values that a loop carries.

Carried tensors live in scratch buffers, except pointers and offsets that only advance by a fixed step: those are `initial + trips x step`.
What is put into scratch inside a region of values from outside is forgotten behind it: it is there only where control came this way.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..ttir.ops import row
from ..ttir.types import Op, Value, walk
from . import keeping, together
from .memory_order import before_region
from .records import Assign, Body, Branch, Buffer, Call, Copy, For, Idle, If, Induction, Jump, Return, Slot, Trips, While, inner_first, row_major
from .schedule import Schedule
from .source import is_zero
from .space import Space


@dataclass
class Frame:
    """The function being walked: where its blocks' arguments are, and (slot, key) of each thing that it returns."""

    region: object
    slots: list[tuple[object, Slot]]
    args: dict[Value, Slot] = field(default_factory=dict)


# --- scopes ----------------------------------------------------------------------------------------------------------


@contextmanager
def captured(s: Schedule):
    """The steps that are made within, as a list of their own."""
    outer, s.steps = s.steps, []
    try:
        yield s.steps
    finally:
        s.steps = outer


@contextmanager
def apart(s: Schedule, block=None):
    """What is put into memory within is there only where control came this way: behind it only that of the values of `block` is known."""
    outer = s.buffers
    s.remember(dict(outer))
    try:
        yield
    finally:
        own = {v: buf for v, buf in s.buffers.items() if (v.op.block if v.op is not None else v.block) is block} if block is not None else {}
        s.remember({**outer, **own} if own else outer)


def _region(s: Schedule, fn) -> tuple:
    """The steps of `fn()` inside a nested region."""
    with apart(s), captured(s) as steps:
        fn()
    return tuple(steps)


# --- slots -----------------------------------------------------------------------------------------------------------


def _slot(s: Schedule, v: Value) -> Slot:
    return s.alloc(v.type.shape, v.type.elem) if v.type.is_tensor else None


def _read(s: Schedule, values, slots):
    """From here on `values` are what `slots` hold."""
    for v, slot in zip(values, slots):
        if isinstance(slot, Buffer):
            s.buffers[v] = slot


def assign(s: Schedule, pairs: list[tuple[object, Slot, Value]]):
    """Give slots (key, slot) the values of a yield, all at once: every value is computed from what the slots hold before."""
    scalars = tuple((key, v) for key, slot, v in pairs if slot is None)
    tensors = [(buf, v, keeping.reads(s, v)) for _, buf, v in pairs if isinstance(buf, Buffer) and not _holds(s, buf, v)]
    staged, direct = [], []
    for n, (buf, v, own) in enumerate(tensors):
        # Slots are told apart by their place, not by what they are given: two of them may be given one value.
        others = any(buf.piece in theirs for m, (_, _, theirs) in enumerate(tensors) if m != n)
        if others or not own.get(buf.piece, True):
            staged.append((buf, v))
        else:
            direct.append((buf, v))
    copies = []
    for buf, v in staged:
        temporary = s.alloc(buf.shape, buf.elem, buf.strides)
        s.fill(temporary, v, why="carried on, by way of a copy: others read the place that it goes to")
        copies.append(Copy(s.op, buf, temporary))
    together.fill(s, [(v, buf) for buf, v in direct], why="carried on")
    for step in copies:
        s.add(step)
    if scalars:
        s.add(Assign(s.op, scalars))


def _holds(s: Schedule, buf: Buffer, v: Value) -> bool:
    held = s.buffers.get(v)
    return held is not None and held.place == buf.place and held.strides == buf.strides


# --- functions -------------------------------------------------------------------------------------------------------


def function(s: Schedule, region, slots) -> Body:
    """The blocks of a function, which returns into `slots`."""
    outer, s.frame = s.frame, Frame(region, slots)
    for block in region.blocks[1:]:
        for arg in block.args:
            s.frame.args[arg] = _slot(s, arg)
    blocks = []
    for n, block in enumerate(region.blocks):
        with apart(s, block), captured(s) as steps:
            if n:
                _read(s, block.args, [s.frame.args[arg] for arg in block.args])
            s.run(block)
        blocks.append((block, tuple(steps)))
    s.frame = outer
    return Body(region, tuple(blocks))


def scalar_region(s: Schedule, region):
    """The steps (of one block) or the body (of several) of a region of scalars."""
    if region in s.regions:
        return
    if len(region.blocks) == 1:
        with captured(s) as steps:
            s.run(region.block)
        s.regions[region] = tuple(steps)
    else:
        results = next(o for o in walk(region) if row(o).region_return).operands
        s.regions[region] = function(s, region, [((region, n), None) for n in range(len(results))])


def region_return(s: Schedule, op: Op):
    """The end of a combine region. Where the region is one block, its operation reads the operands."""
    if s.frame is not None and s.frame.region is op.block.region:
        ret(s, op)


def ret(s: Schedule, op: Op):
    if op.operands:
        assign(s, [(key, slot, v) for (key, slot), v in zip(s.frame.slots, op.operands)])
    s.add(Return(op))


def call(s: Schedule, op: Op):
    before_region(s, op)
    slots = [(r, _slot(s, r)) for r in op.results]
    body = []
    _region(s, lambda: body.append(function(s, op.regions[0], slots)))
    s.add(Call(op, body[0]))
    _read(s, op.results, [slot for _, slot in slots])


def branch(s: Schedule, op: Op):
    _settle(s, op)
    label, values = op.successors[0]
    _to(s, label, values)
    s.add(Jump(op, label))


def cond_branch(s: Schedule, op: Op):
    _settle(s, op)
    edges = []
    for label, values in op.successors:
        with apart(s), captured(s) as steps:
            _to(s, label, values)
        edges.append((label, tuple(steps)))
    s.add(Branch(op, op.operands[0], tuple(edges)))


def _settle(s: Schedule, op: Op):
    """Before control goes on to other blocks: loads of this one that they use happen now."""
    for load in s.sequence.loads_before(s.now):
        v = load.result
        if load.block is op.block and v not in s.buffers and any(o.block is not op.block for o in s.sequence.later(v, s.now)):
            s.materialise(v, why="other blocks read it")


def _to(s: Schedule, label: str, values):
    block = next(b for b in s.frame.region.blocks if b.label == label)
    assign(s, [(arg, s.frame.args[arg], v) for arg, v in zip(block.args, values)])


# --- loops and branches ----------------------------------------------------------------------------------------------


def for_loop(s: Schedule, op: Op):
    region = op.regions[0]
    args, yielded, inits = region.block.args[1:], region.block.ops[-1], op.operands[3:]
    before_region(s, op)
    number = s.sequence.end[op]
    slots: list[Slot] = []
    zeros: dict[Value, tuple] = {}
    for arg, init, y in zip(args, inits, yielded.operands):
        moved = induction_step(op, arg, y) if arg.type.is_tensor else None
        slots.append(None if moved is None else _induction(s, arg, init, moved, number))
    s.inductions.update((arg, slot) for arg, slot in zip(args, slots) if slot is not None)
    for k, (arg, init, y) in enumerate(zip(args, inits, yielded.operands)):
        if not arg.type.is_tensor or slots[k] is not None:
            continue
        strides = _strides(s, arg, y)
        buf = slots[k] = _handed_on(s, op, init, strides)
        if buf is not None:
            if init in s.idle:
                s.zeros[arg] = zeros[arg] = s.idle[init]
            continue
        buf = slots[k] = s.alloc(arg.type.shape, arg.type.elem, strides)
        if not buf.is_row_major:
            s.turned[buf.piece] = strides
        before, zero = len(s.steps), is_zero(init)
        # Two vectors of zeros at once: one alone LLVM stores on Arm as two scalars.
        s.fill(buf, init, unroll=1 + zero, why="carried by the loop")
        if zero and s.variables is None:  # who debugs it sees memory
            s.zeros[arg] = zeros[arg] = Idle((), tuple(s.steps[before:]))
    _read(s, args, slots)

    def inside():
        s.run(region.block)
        assign(s, [(arg, slot, y) for arg, slot, y in zip(args, slots, yielded.operands)])

    body = _region(s, inside)
    idle = _spared(s, zeros, Trips(number, 1, True))
    s.add(For(op, number, tuple(slots), body, tuple(idle.values())))
    for res, arg, slot in zip(op.results, args, slots):
        if isinstance(slot, Induction):
            s.inductions[res] = Induction(slot.init, slot.step, slot.count._replace(after=True))
        elif arg in idle:
            s.idle[res] = idle[arg]
    _read(s, op.results, slots)


def _handed_on(s: Schedule, loop: Op, init: Value, strides: tuple[int, ...]) -> Buffer | None:
    """Where `init` lies, if `loop` may go on with it there: what a loop in front of it in the same block has carried, as an unrolled loop hands it to the one over the rest,
    or a product, if nobody else reads it."""
    buf = s.buffers.get(init)
    if s.variables is not None or init.op is None or init.op.name not in ("scf.for", "tt.dot") or init.op.block is not loop.block or len(init.uses) != 1:
        return None
    return buf if buf is not None and buf.panel is None and buf.strides == strides else None


def _strides(s: Schedule, arg: Value, y: Value) -> tuple[int, ...]:
    """How a loop keeps `arg`, which is `y` after each trip: in row-major order, unless what y is made of is read from memory that is contiguous along
    another dimension. Sums of columns are added to a vector at a time then."""
    shape = arg.type.shape
    long = [d for d, n in enumerate(shape) if n > 1]
    space = Space(s.known, shape)
    contiguous = set()
    if len(long) > 1:
        for v, dims in space.explore([(y, space.identity)]):
            if v.type.elem == "ptr" and set(long) <= set(dims) and any(u.name == "tt.load" for u in v.uses):
                contiguous |= {d for d, step in space.affine(v, dims).coef.items() if step == {(): 1}}
    if len(contiguous) != 1 or (inner := contiguous.pop()) == long[-1] or shape[inner] < s.target.lanes(32):
        return row_major(shape)
    return inner_first(shape, inner)


def _spared(s: Schedule, zeros: dict[Value, Idle], trips: Trips) -> dict[Value, Idle]:
    """What puts `zeros` into memory for what a loop carries, where a product in the loop has taken over: not before the loop any more, nor behind one before it, but where
    none of its `trips` is made either."""
    taken = {arg: idle for arg, idle in zeros.items() if s.zeros.pop(arg, None) is None}
    gone = [step for idle in taken.values() for step in idle.steps]

    def left(step):
        return replace(step, idle=tuple(i for i in step.idle if not any(i is t for t in taken.values()))) if isinstance(step, For) else step

    s.steps[:] = [left(step) for step in s.steps if not any(step is g for g in gone)]
    return {arg: Idle((*idle.trips, trips), idle.steps) for arg, idle in taken.items()}


def _induction(s: Schedule, arg: Value, init: Value, moved, number: int) -> Induction:
    step, times = moved
    # Read in the loop and after it, when memory may hold something else: loads happen now.
    probe = Space(s.known, arg.type.shape)
    sinks = [(init, probe.identity), (step, probe.identity)]
    while (load := next((v for v, _ in probe.explore(sinks) if v.op is not None and v.op.name == "tt.load" and v not in s.buffers), None)) is not None:
        s.materialise(load, why="the loop's addresses are made of it")
    return Induction(init, step, Trips(number, times, False))


def induction_step(loop: Op, arg: Value, y: Value):
    """(the loop-invariant tensor that `arg` grows by in each trip, how many times), or None."""
    if arg.type.elem not in ("ptr", "i32", "i64"):
        return None
    step, times = None, 0
    while y is not arg:  # an unrolled loop takes its step several times
        op = y.op
        if op is None or op.name not in ("tt.addptr", "arith.addi") or op.block is not loop.regions[0].block:
            return None
        y, by = op.operands
        if times and by is not step:
            if op.name != "arith.addi" or y is not step:
                return None
            y, by = by, y
        elif not times and op.name == "arith.addi" and by is arg:
            y, by = by, y
        step, times = by, times + 1
    if not times or not _is_invariant(loop, step):
        return None
    return step, times


def _is_invariant(loop: Op, step: Value) -> bool:
    inside = {o for r in loop.regions for o in walk(r)}
    stack, seen = [step], set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op is None:
            if v.block is not None and v.block.region is not None and v.block.region.op is loop:
                return False
        elif v.op in inside:
            if not row(v.op).view and v.op.name != "arith.constant":
                return False
            stack.extend(v.op.operands)
    return True


def if_op(s: Schedule, op: Op):
    before_region(s, op)
    slots = [_slot(s, r) for r in op.results]
    branches = []
    for region in op.regions:

        def inside(region=region):
            s.run(region.block)
            if slots:  # without results a branch may be empty: it has no terminator then
                assign(s, list(zip(op.results, slots, region.block.ops[-1].operands)))

        branches.append(_region(s, inside))
    s.add(If(op, tuple(slots), tuple(branches)))
    _read(s, op.results, slots)


def while_loop(s: Schedule, op: Op):
    before, after = op.regions
    before_region(s, op)
    ins = [_slot(s, v) for v in before.block.args]
    outs = [_slot(s, r) for r in op.results]
    with captured(s) as entry:
        assign(s, list(zip(before.block.args, ins, op.operands)))
    _read(s, before.block.args, ins)

    def test():
        s.run(before.block)
        assign(s, list(zip(op.results, outs, before.block.ops[-1].operands[1:])))

    test = _region(s, test)
    _read(s, after.block.args, outs)

    def inside():
        s.run(after.block)
        assign(s, list(zip(before.block.args, ins, after.block.ops[-1].operands)))

    s.add(While(op, tuple(entry), test, _region(s, inside)))
    _read(s, op.results, outs)


def nothing(s: Schedule, op: Op):
    """Terminators of regions: their region's operation reads them."""


CONTROL = {"tt.return": ret, "tt.call": call, "cf.br": branch, "cf.cond_br": cond_branch, "scf.for": for_loop, "scf.if": if_op,
           "scf.while": while_loop, "scf.yield": nothing, "scf.condition": nothing,
           **dict.fromkeys(("tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"), region_return)}
