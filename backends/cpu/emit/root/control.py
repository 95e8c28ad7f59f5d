"""Control flow: program ids, loops, branches, and the assignment of values that a loop carries.

Scalars carried by a loop live in stack slots that LLVM turns into registers. Carried tensors live in scratch buffers,
except pointers and offsets that only advance by a fixed step: those are `initial + trips x step`.
"""

from __future__ import annotations

from ...llvm import ir
from ...plan.facts import walk
from ...llvm.ir import Val, const, i64
from ..nest import REGISTER, Buffer, Induction, Nest
from .shape import DIMS


def program_id(k, op):
    k.env[op.result] = k.pid[_axis(op)]


def num_programs(k, op):
    k.env[op.result] = k.grid[_axis(op)]


def _axis(op) -> str:
    if op.words:
        return op.words[0]
    return "xyz"[int(op.attrs.get("axis", 0))]


def function_body(k, region, slots, after):
    """The blocks of a function. `tt.return` gives `slots` its operands and goes to the LLVM block `after`."""
    frame, k.frame = k.frame, Frame(region, slots, after)
    f = k.frame
    for blk in region.blocks[1:]:
        f.blocks[blk.label] = (blk, k.fn.new_block("block"))
        for arg in blk.args:
            f.args[arg] = slot_for(k, arg)
    for n, blk in enumerate(region.blocks):
        before = set(k.buffers)
        if n:
            llvm = f.blocks[blk.label][1]
            k.b.place(llvm)
            read_slots(k, blk.args, [f.args[arg] for arg in blk.args])
        k.run_block(blk)
        # What this block put into scratch of other blocks' values is there on this path only.
        k.forget_foreign(before, {blk, *(o.block for o in walk(region, blk))})
    k.frame = frame


def branching_region(k, region) -> list[Val]:
    """The results of a region of several blocks, whose `return`s may stand in any of them."""
    types = next(o for o in walk(region) if o.name in REGION_RETURNS).operands
    slots = [k.b.alloca(REGISTER[v.type.elem], "result") for v in types]
    after = k.fn.new_block("returned")
    function_body(k, region, slots, after)
    k.b.place(after)
    return [k.b.load(REGISTER[v.type.elem], slot, 8) for v, slot in zip(types, slots)]


def region_return(k, op):
    """The end of a combine region. Where the region is one block, its operation reads the operands."""
    if k.frame.region is op.block.region:
        ret(k, op)


REGION_RETURNS = ("tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return")


class Frame:
    """The function being walked: where its blocks and their arguments are, and where it returns to."""

    def __init__(self, region, slots, after):
        self.region, self.slots, self.after = region, slots, after
        self.blocks: dict = {}
        self.args: dict = {}


def ret(k, op):
    if op.operands:
        assign(k, list(zip(k.frame.slots, op.operands)))
    k.b.br(k.frame.after)


def call(k, op):
    """A function that Triton did not inline: its body stands in the operation's region (types.expand_calls)."""
    b = k.b
    k.before_region(op)
    slots = result_slots(k, op)
    after = k.fn.new_block("returned")
    k.run_region(op.regions[0], lambda: function_body(k, op.regions[0], slots, after))
    b.place(after)
    b.dbg = k.debug_loc(op)
    read_slots(k, op.results, slots)


def branch(k, op):
    _settle(k, op)
    k.b.br(_successor(k, *op.successors[0]))


def cond_branch(k, op):
    c = k.scalar(op.operands[0])
    _settle(k, op)
    if any(vals for _, vals in op.successors):
        # Arguments are stored on the edge that carries them.
        edges = [k.fn.new_block("edge") for _ in op.successors]
        k.b.cond_br(c, *edges)
        for edge, succ in zip(edges, op.successors):
            k.b.enter(edge)
            before = set(k.buffers)
            k.b.br(_successor(k, *succ))
            k.forget_foreign(before, set())
        return
    targets = [k.frame.blocks[label][1] for label, _ in op.successors]
    k.b.cond_br(c, *targets)


def _settle(k, op):
    """Before control goes on to other blocks: loads of this one that they use happen now."""
    for load in k.pending_loads:
        v = load.result
        if v not in k.buffers and any(o.block is not op.block for o in k.facts.consumers(v) - k.executed):
            k.materialise(v)


def _successor(k, label, vals):
    blk, llvm = k.frame.blocks[label]
    assign(k, [(k.frame.args[arg], v) for arg, v in zip(blk.args, vals)])
    return llvm


def slot_for(k, v):
    """A place for a value: a stack slot of a scalar, a buffer of a tensor."""
    return k.alloc(v.type.shape, v.type.elem) if v.type.is_tensor else k.b.alloca(REGISTER[v.type.elem], "slot")


def result_slots(k, op):
    """A place for each result of an operation."""
    return [slot_for(k, r) for r in op.results]


def read_slots(k, values, slots):
    """From here on `values` are what `slots` hold."""
    for v, slot in zip(values, slots):
        if isinstance(slot, Buffer):
            k.buffers[v] = slot
        elif slot is not None:
            k.env[v] = k.b.load(REGISTER[v.type.elem], slot, 8)


# --- assignment ------------------------------------------------------------------------------------------------------


def assign(k, pairs: list[tuple[object, object]]):
    """Give slots (stack slots of scalars, buffers of tensors) the values of a yield, all at once: every value is
    computed from what the slots hold before."""
    scalars = [(slot, k.scalar(v)) for slot, v in pairs if isinstance(slot, Val)]
    tensors = [(buf, v, reads(k, v)) for buf, v in pairs if isinstance(buf, Buffer) and not _holds(k, buf, v)]
    staged, direct = [], []
    for n, (buf, v, own) in enumerate(tensors):
        # Slots are told apart by their place, not by what they are given: two of them may be given one value.
        others = any(buf.base in theirs for m, (_, _, theirs) in enumerate(tensors) if m != n)
        if others or not own.get(buf.base, True):
            staged.append((buf, v))
        else:
            direct.append((buf, v))
    copies = []
    for buf, v in staged:
        tmp = k.alloc(buf.shape, buf.elem)
        k.materialise_into(tmp, v)
        copies.append((buf, tmp))
    for buf, v in direct:
        k.materialise_into(buf, v)
    for buf, tmp in copies:
        copy(k, buf, tmp)
    for slot, v in scalars:
        k.b.store(v, slot, 8)


def _holds(k, buf: Buffer, v) -> bool:
    held = k.buffers.get(v)
    return held is not None and held.ptr.s == buf.ptr.s and held.strides == buf.strides


def reads(k, v) -> dict[int | None, bool]:
    """The pieces of scratch that computing `v` reads: their offset -> whether element k is read only for element k. A piece may be
    read through views of it (halves of a split, an axis walked backwards, another shape), whose elements are other ones."""
    out: dict[int | None, bool] = {}
    stack = [(v, True)]
    seen = set()
    while stack:
        root, alike = stack.pop()
        nest = Nest(k, root.type.shape)
        for w, dims in nest.explore([(root, nest.identity)]):
            buf = k.buffers.get(w)
            if buf is not None:
                same = alike and dims == nest.identity and w.type.shape == v.type.shape and buf.is_row_major
                out[buf.base] = out.get(buf.base, True) and same
            elif w.op is not None and w.op.name in DIMS and k.mapped_dims(w.op, dims) is None and w not in seen:
                seen.add(w)  # a change of shape that no index follows: its elements go through memory
                stack.append((w.op.operands[0], False))
    return out


def copy(k, dst: Buffer, src: Buffer):
    """Copy one row-major buffer to another of the same shape."""
    n = 1
    for d in dst.shape:
        n *= d
    size = n * ((ir.bits_of(REGISTER[dst.elem]) + 7) // 8)
    k.b.call("llvm.memcpy.p0.p0.i64", "void", [dst.ptr, src.ptr, i64(size), const("i1", False)])


# --- loops -----------------------------------------------------------------------------------------------------------


def for_loop(k, op):
    b = k.b
    region = op.regions[0]
    iv, args = region.block.args[0], region.block.args[1:]
    yielded = region.block.ops[-1]
    inits = op.operands[3:]
    lo, hi, step = (k.scalar(v) for v in op.operands[:3])
    k.before_region(op)
    ty = lo.ty
    count_slot = b.alloca("i64", "trips")
    slots, inductions = [], []
    for arg, init, y, res in zip(args, inits, yielded.operands, op.results):
        if not arg.type.is_tensor:
            slot = b.alloca(REGISTER[arg.type.elem], "carry")
            b.store(k.scalar(init), slot, 8)
            slots.append(slot)
        elif (moved := _induction_step(k, op, arg, y)) is not None:
            if arg.type.elem == "ptr":
                k.carried[arg] = init
                k.carried[res] = init
            inductions.append((arg, init, moved, res))
            # Read in the loop and after it, when memory may hold something else: loads happen now, and scratch is kept.
            probe = Nest(k, arg.type.shape)
            while (load := next((v for v, _ in probe.explore([(init, probe.identity), (moved[0], probe.identity)])
                                 if v.op is not None and v.op.name == "tt.load" and v not in k.buffers), None)) is not None:
                k.materialise(load)
            k.buffers.pinned.update(v for v, _ in probe.explore([(init, probe.identity), (moved[0], probe.identity)]))
            slots.append(None)
        else:
            buf = k.alloc(arg.type.shape, arg.type.elem)
            k.materialise_into(buf, init)
            slots.append(buf)
    # The number behind the last one may be too large for its type, so the numbers are counted in more bits.
    unsigned = bool(op.attrs.get("unsigned"))
    wide = ir.bits_of(ty) < 64 and step.const != 1
    first, end, by = (b.cast("zext" if unsigned else "sext", x, "i64") if wide else x for x in (lo, hi, step))
    iv_slot = b.alloca(first.ty, "iv")
    b.store(first, iv_slot, 8)
    b.store(i64(0), count_slot, 8)
    head, body, done = (k.fn.new_block(n) for n in ("for", "do", "endfor"))
    b.br(head)
    b.enter(head)
    at = b.load(first.ty, iv_slot, 8)
    b.cond_br(b.icmp("ult" if unsigned and not wide else "slt", at, end), body, done)
    b.enter(body)
    k.env[iv] = b.cast("trunc", at, ty)
    count = b.load("i64", count_slot, 8)
    for arg, init, (moved, times), _ in inductions:
        k.inductions[arg] = Induction(init, moved, b.mul(count, i64(times)))
    read_slots(k, args, slots)

    def inside():
        k.run_block(region.block)
        assign(k, [(s, y) for s, y in zip(slots, yielded.operands) if s is not None])

    k.run_region(region, inside)
    b.dbg = k.debug_loc(op)
    b.store(b.value("i64", f"add nuw nsw i64 {count.s}, 1"), count_slot, 8)
    b.store(_next_number(b, at, end, by, wide), iv_slot, 8)
    b.br(head)
    b.place(done)
    trips = b.load("i64", count_slot, 8)
    for _, init, (moved, times), res in inductions:
        k.inductions[res] = Induction(init, moved, b.mul(trips, i64(times)))
    read_slots(k, op.results, slots)


def _next_number(b, at: Val, end: Val, by: Val, wide: bool) -> Val:
    """What follows `at` in a range; `end` where that would pass it and, in 64 bits, might wrap."""
    if wide:
        return b.value(at.ty, f"add nsw {at.ty} {at.s}, {by.s}")
    if by.const == 1:  # `at` is below `end`
        return b.add(at, by)
    return b.add(at, b.intrinsic("umin", b.sub(end, at), by))


def _induction_step(k, loop, arg, y):
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
    if not times:
        return None
    inside = {o for r in loop.regions for o in walk(r)}
    stack, seen = [step], set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op is None:
            if v.block is not None and v.block.region is not None and v.block.region.op is loop:
                return None
            continue
        if v.op in inside:
            if v.op.name not in ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.constant"):
                return None
            stack.extend(v.op.operands)
    return step, times


def if_op(k, op):
    b = k.b
    c = k.scalar(op.operands[0])
    k.before_region(op)
    slots = result_slots(k, op)
    then, after = k.fn.new_block("then"), k.fn.new_block("endif")
    other = k.fn.new_block("else") if len(op.regions) > 1 else after
    if c.const is not None:
        b.br(then if c.const else other)
    else:
        b.cond_br(c, then, other)
    for block, region in zip((then, other), op.regions):
        b.enter(block)

        def inside(region=region):
            k.run_block(region.block)
            if slots:  # without results a branch may be empty: it has no terminator then
                assign(k, list(zip(slots, region.block.ops[-1].operands)))

        k.run_region(region, inside)
        b.dbg = k.debug_loc(op)
        b.br(after)
    b.place(after)
    read_slots(k, op.results, slots)


def while_loop(k, op):
    b = k.b
    before, after = op.regions
    k.before_region(op)

    ins = [slot_for(k, v) for v in before.block.args]
    outs = result_slots(k, op)
    assign(k, list(zip(ins, op.operands)))
    head, body, done = (k.fn.new_block(n) for n in ("while", "do", "endwhile"))
    b.br(head)
    b.enter(head)
    read_slots(k, before.block.args, ins)

    def test():
        k.run_block(before.block)
        cond = before.block.ops[-1]
        assign(k, list(zip(outs, cond.operands[1:])))
        test.cond = k.scalar(cond.operands[0])

    k.run_region(before, test)
    b.cond_br(test.cond, body, done)
    b.enter(body)
    read_slots(k, after.block.args, outs)

    def inside():
        k.run_block(after.block)
        assign(k, list(zip(ins, after.block.ops[-1].operands)))

    k.run_region(after, inside)
    b.dbg = k.debug_loc(op)
    b.br(head)
    b.place(done)
    read_slots(k, op.results, outs)


def nothing(k, op):
    """Terminators of regions: their region's operation reads them."""


ROOTS = {
    "tt.get_program_id": program_id, "tt.get_num_programs": num_programs, "tt.return": ret, "tt.call": call, "cf.br": branch,
    "cf.cond_br": cond_branch, "scf.for": for_loop, "scf.if": if_op, "scf.while": while_loop, "scf.yield": nothing,
    "scf.condition": nothing, **dict.fromkeys(REGION_RETURNS, region_return),
}
