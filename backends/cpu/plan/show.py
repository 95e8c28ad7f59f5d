"""A plan as text for people: which loops run in which order, what is kept or put into memory and why, what became bounds, what is checked at
launch, which roots go row by row and why others do not.

Values are called by what makes them and the Python line: `exp@14` is the exponential of line 14, `x_ptr[]@12` what line 12 loads through the
argument x_ptr.
"""

from __future__ import annotations

import math

from ..llvm.elements import bytes_of
from ..ttir.types import Func, Op, Value
from . import checks, looks, product, records
from .exchanges import through_memory
from .facts import root_pointer
from .records import Buffer, Induction, NestPlan, Plan
from .roots import combinations


def show(plan: Plan, func: Func, target: str) -> str:
    """The text of a kernel's plan."""
    return "\n".join(_Page(plan, func).lines(target)) + "\n"


class _Page:
    """One kernel's text on its way."""

    def __init__(self, plan: Plan, func: Func):
        self.plan, self.func = plan, func
        self.out: list[str] = []
        self.depth = 0

    def say(self, text: str):
        self.out.append("  " * self.depth + text)

    def lines(self, target: str) -> list[str]:
        self.say(f"plan of {self.func.name} for {target}")
        self.depth += 1
        if self.plan.scratch:
            self.say(f"scratch: {self.plan.scratch} bytes a thread")
        if self.plan.checks is not None:
            self.say(f"checked: {', '.join(sorted(self.plan.checks.kinds))}" + ("; programs run one after the other" if self.plan.checks.alone else ""))
        for (i, j), fine in sorted(self.plan.disjoint.items()):
            also = "; one and the same is fine" if fine else ""
            self.say(f"checked at launch: {self.argument(i)} (read) and {self.argument(j)} (written) do not overlap{also}")
        for (kind, n), most in sorted(self.plan.most.items()):
            what = f"grid {'xyz'[n]}" if kind == "grid" else self.argument(n)
            self.say(f"checked at launch: {what} <= {most}, so that no index wraps")
        for op in sorted(self.plan.estimates, key=lambda op: op.result.number):
            self.say(f"{_line(op)}{self.name(op.result)} by an estimate of 1 / {self.name(op.operands[1])}, which is at least 1, and two steps of Newton's")
        self.depth -= 1
        self.steps(self.plan.steps)
        return self.out

    # -- names
    def argument(self, n: int) -> str:
        return self.func.args[n].name

    def name(self, v: Value) -> str:
        """What a value is called."""
        op = v.op
        if op is None:
            return v.name
        at = f"@{op.loc.line}" if op.loc.line else ""
        if op.name == "tt.load":
            origin = root_pointer(op.operands[0])
            return f"{origin.name if origin is not None and origin.op is None else '?'}[]{at}"
        return op.name.rpartition(".")[2] + at

    def _place(self, v: Value, buf: Buffer) -> str:
        shape = "x".join(map(str, v.type.shape)) if buf.strides[:1] != (0,) else f"one row of {v.type.shape[1]}"
        where = f"at {self.offset(buf)}" if buf.piece is not None else "as a constant"
        return f"{shape} {buf.elem} {where}"

    def offset(self, buf: Buffer) -> int:
        """Where in scratch the piece is that a buffer is part of."""
        return self.plan.places[buf.piece].offset

    def nest(self, nest: NestPlan) -> str:
        """How a nest walks."""
        if not nest.shape:
            return "one element"
        text = "x".join(map(str, nest.shape))
        if nest.merged:
            text += f" (of {'x'.join(map(str, nest.tensor))})"
        loops = [d for d in nest.order if nest.shape[d] > 1]
        if len(loops) > 1:
            text += f", loops over {', '.join(map(str, loops))}"
        text += f", {nest.lanes} lanes along {nest.vdim}" if nest.lanes > 1 else ", element by element"
        if nest.registers > 1:
            text += f" in {nest.registers} registers"
        if nest.backwards is not None:
            text += f", {nest.backwards} from its end"
        if nest.picks:
            apart = sum(through_memory(v.op) for v, _ in nest.picks)
            counts = [f"{n} exchange{'s' * (n > 1)} {where}" for n, where in ((len(nest.picks) - apart, "within a chunk"), (apart, "with others")) if n]
            text += f", {' and '.join(counts)}"
        together = [key for key in nest.pieces or nest.looked_at if key not in nest.whole]
        for found, where in ((nest.whole, ""), (together, " where it has one quotient")):
            if found:
                text += f", {', '.join(dict.fromkeys(self.name(v) for v, _ in found))} a chunk at a time{where}"
        if nest.written_out:
            text += f", pieces of {nest.written_out} written out"
        elif nest.pieces and not together:
            text += ", piece by piece"
        bounded = sorted({d for a in nest.atoms for d in a.coef})
        if bounded:
            text += f", masks along {', '.join(map(str, bounded))} are bounds"
        return text

    def _beside(self, chunks: int) -> str:
        return f", {chunks} chunks side by side" if chunks > 1 else ""

    def _unrolled(self, times: int) -> str:
        return f", unrolled {times} times" if times > 1 else ""

    def keeps(self, keeps):
        for keep in keeps:
            skipped = "" if keep.unread is None else "; not where its readers' masks are off"
            self.say(f"keeps {self.name(keep.value)} ({self._place(keep.value, keep.buffer)}), which later roots read{skipped}")

    # -- steps
    def steps(self, steps):
        for step in steps:
            _STEPS.get(type(step), _nothing)(self, step)

    def within(self, steps):
        self.depth += 1
        self.steps(steps)
        self.depth -= 1


def _nothing(page, step):
    """Scalars, and jumps: as they stand in the kernel."""


def _line(op: Op) -> str:
    return f"line {op.loc.line}: " if op.loc.line else ""


def _what(page, op: Op) -> str:
    """A root, for people."""
    short = op.name.rpartition(".")[2]
    if op.name in ("tt.store", "tt.atomic_store"):
        origin = root_pointer(op.operands[0])
        to = origin.name if origin is not None and origin.op is None else "memory"
        return f"{_line(op)}{short} {page.name(op.operands[1])} to {to}"
    if op.name in ("tt.reduce", "tt.scan"):
        ops = op.regions[0].block.ops
        known = combinations(op) or (ops[0].name,) * (len(ops) == 2)
        by = " and ".join(dict.fromkeys(name.rpartition(".")[2] for name in known)) or "function"
        return f"{_line(op)}{short} by {by} of {', '.join(map(page.name, op.operands))} along {op.attrs['axis']}"
    return f"{_line(op)}{short} {', '.join(page.name(o) for o in op.operands if o.type.is_tensor)}".rstrip()


def _root(page, step: records.Root):
    if step.nest is None:
        if step.op.name != "tt.split":
            page.say(f"{_what(page, step.op)}, one element")
        return
    unless = ", unless the product has" if isinstance(step, records.Rest) else ""
    page.say(f"{_what(page, step.op)}{unless}: {page.nest(step.nest)}{page._beside(step.nest.chunks)}{page._unrolled(step.nest.times)}")
    _more(page, step)


def _turned(page, step: records.Turned):
    fill = step.fill
    page.say(f"{_what(page, step.op)}: {page.nest(step.nest)}, in {_blocks(fill)}: {page.name(fill.value)} is loaded with {page.nest(fill.nest)}, because {fill.why}")
    _more(page, step)


def _blocks(fill: records.Fill) -> str:
    return f"blocks of {fill.nest.lanes} x {fill.nest.lanes} that are transposed"


def _more(page, step: records.Root):
    page.depth += 1
    if step.op in page.plan.notes:
        page.say(f"not row by row with what follows: {page.plan.notes[step.op]}")
    if step.nest is not None:
        page.keeps(step.nest.keeps)
    page.depth -= 1


def _reduction(page, step: records.Reduction):
    quick = ", by comparisons first, exactly where those find no number" if step.quick else ""
    lines = f", {step.lines} lines at a time" if step.lines > 1 else ""
    page.say(f"{_what(page, step.op)}: {page.nest(step.nest)}{page._beside(step.chunks)}{lines}{quick}")
    _more(page, step)


def _check(page, step: looks.Check):
    site = step.site
    to = " or ".join(page.argument(n) for n in site.arguments) if site.arguments else "wherever it points" if site.bytes else ""
    what = f"that what it {checks.WORDS[site.access]} is of {to}" if site.bytes else "its indices" if site.access == checks.INDEX else "its range"
    page.say(f"{_line(step.op)}check {step.op.name.rpartition('.')[2]}: {what}: {page.nest(step.nest) if step.nest is not None else 'one element'}")


def _prints(page, step: records.Prints):
    page.say(_what(page, step.op))


def _named(page, step: records.Named):
    if not step.name.name:
        return
    what = f"{page._place(step.value, step.buffer)}" if step.buffer is not None else "a scalar" if step.value is not None else f"{step.name.value!r}"
    page.say(f"{_line(step.op)}{step.name.name} is {what}")


def _fill(page, step: records.Fill):
    why = f", because {step.why}" if step.why else ""
    if step.turned:
        why = f", in {_blocks(step)}{why}"
    page.say(f"put {page.name(step.value)} into memory ({page._place(step.value, step.buffer)}): {page.nest(step.nest)}{page._beside(step.nest.chunks)}{why}")
    page.depth += 1
    for keep in step.nest.keeps:
        page.say(f"and {page.name(keep.value)} ({page._place(keep.value, keep.buffer)})")
    page.depth -= 1


def _copy(page, step: records.Copy):
    page.say(f"copy {math.prod(step.to.shape) * bytes_of(step.to.elem)} bytes from {page.offset(step.source)} to {page.offset(step.to)}")


def _rows(page, step: records.Rows):
    rows, columns = step.nest.shape
    page.say(f"row by row, {rows} rows of {columns}: {page.nest(step.nest)}")
    page.depth += 1
    for stage in step.stages:
        side = page._beside(stage.chunks) or page._unrolled(stage.times)
        quick = ", by comparisons first, exactly where those find no number" if stage.quick else ""
        page.say(f"{_what(page, stage.op)}{side}{quick}")
        page.depth += 1
        page.keeps(stage.keeps)
        page.depth -= 1
    first = step.stages[0].op
    if first in page.plan.notes:
        page.say(f"ends here: {page.plan.notes[first]}")
    page.depth -= 1


def _product(page, step: product.Product):
    count = f"{step.count} of " if step.count > 1 else ""
    pieces = f", {step.pieces} pieces of K at once" if step.pieces > 1 else ""
    wide = f"of {step.registers} registers" if step.registers > 1 else "in registers"
    how = step.kind.acc if step.kind.by is None else f"{'fours' if step.kind.group == 4 else 'pairs'} of {step.kind.packed} into {step.kind.acc}"
    how = f"{step.kind.packed} widened into {step.kind.acc}" if step.kind.widens else how
    how = f"AMX tiles of {step.kind.packed}" if step.kind.tiles else how
    how = f"IME's blocks of {step.kind.packed}" if step.kind.blocks else how
    page.say(f"{_line(step.op)}product {count}{step.m}x{step.k} by {step.k}x{step.n}{pieces}: {step.rows} rows x {step.vectors} vectors {wide}, {how}")
    page.depth += 1
    for name, operand in (("A", step.a), ("B", step.b)):
        if_not = ", where its indices do not wrap, else packed" if operand.only_if else ""
        if operand.whole:
            apart = ", its rows begin with lines of the cache and do not share the same few places there" if operand.apart else ""
            if_not = f", where all of it is there{apart}, else from copies of a strip of its rows{if_not}"
        why = f", because {operand.why}" if operand.why else ""
        kept = ", whole panels by the first strip of A's rows, which reads them where they lie" if operand.woven else ", whole panels read where they lie" if operand.direct else ""
        kept += ", unless the program before left the same there" if operand.kept else ""
        page.say(f"{name} {_HOW[operand.how]}{if_not}{kept}{why}")
        page.within(operand.packing)
    page.steps(step.filling)
    if step.in_place:
        page.say("adds to the loop's own accumulators, where they are")
    if step.zeros:
        when = ", in the first trip" if step.in_place else ""
        when += " where the loop before it made none" if len(step.first) > 1 else ""
        page.say(f"accumulators begin as zeros in registers{when}; where some are not computed, in memory")
        page.within(step.zeros)
    if step.ending is not None:
        when = "in the loop's last trip, " if step.ending.last is not None else ""
        page.say(f"ends in {_what(page, step.ending.op)} out of registers, {when}but for blocks that masks cut")
    if step.final is not None:
        page.say(f"converted to {step.final.elem}")
    page.depth -= 1


def _decode(page, step: product.Decode):
    page.say(f"decode {page.name(step.value)} ({step.form}) to f32")

# --- control flow ----------------------------------------------------------------------------------------------------



def _body(page, step: records.Body):
    several = len(step.blocks) > 1
    for block, steps in step.blocks:
        if several:
            page.say(f"block {block.label or 'entry'}")
        page.within(steps)


def _call(page, step: records.Call):
    page.say(f"{_what(page, step.op)}, called")
    page.within((step.body,))


def _for(page, step: records.For):
    carried = step.op.regions[0].block.args[1:]
    page.say(f"{_line(step.op)}for" + "".join(f", {text}" for text in _carried(page, carried, step.slots)))
    page.within(step.body)
    for idle in step.idle:
        page.say("where it makes no trip" + (", and the loop before it made none" if len(idle.trips) > 1 else ""))
        page.within(idle.steps)


def _carried(page, values, slots):
    moving = [v for v, slot in zip(values, slots) if isinstance(slot, Induction)]
    for v, slot in zip(values, slots):
        if isinstance(slot, Buffer):
            order = "" if slot.is_row_major else f", contiguous along {slot.strides.index(1)} as what it is made of is"
            yield f"carries {page._place(v, slot)}{order}"
    if moving:
        kinds = sorted({"pointers" if v.type.elem == "ptr" else "indices" for v in moving})
        yield f"{len(moving)} tensors of {' and '.join(kinds)} as start + trips x step"


def _if(page, step: records.If):
    for word, steps in zip(("if", "else"), step.branches):
        if word == "if" or steps:
            page.say(f"{_line(step.op) if word == 'if' else ''}{word}")
            page.within(steps)


def _while(page, step: records.While):
    page.steps(step.entry)
    page.say(f"{_line(step.op)}while")
    page.within(step.test + step.body)


_HOW = {"buffer": "is in memory", "in place": "is read where it lies", "turned": "lies the other way round: turned in registers",
        "copied": "is copied into panels by rows", "packed": "is packed",
        "strips": "is put into strips of its rows", "blocks": "is put into blocks along K"}
_STEPS = {records.Root: _root, records.Rest: _root, records.Turned: _turned, records.Reduction: _reduction, records.Lookup: _root, records.Prints: _prints, looks.Check: _check,
          records.Named: _named, records.Fill: _fill, records.Copy: _copy, records.Rows: _rows,
          product.Product: _product, product.Decode: _decode, records.Body: _body, records.Call: _call, records.For: _for, records.If: _if, records.While: _while}
