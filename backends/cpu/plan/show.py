"""A plan as text for people: which loops run in which order, what is kept or put into memory and why, what became bounds, what is checked at
launch, which roots go row by row and why others do not.

Values are called by what makes them and the Python line: `exp@14` is the exponential of line 14, `x_ptr[]@12` what line 12 loads through the
argument x_ptr.
"""

from __future__ import annotations

from ..llvm.elements import bytes_of
from ..ttir.types import Func, Op, Value
from . import product, records
from .facts import root_pointer
from .records import Buffer, Induction, NestPlan, Plan


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
        for (i, j), fine in sorted(self.plan.disjoint.items()):
            also = "; one and the same is fine" if fine else ""
            self.say(f"checked at launch: {self.argument(i)} (read) and {self.argument(j)} (written) do not overlap{also}")
        for (kind, n), most in sorted(self.plan.most.items()):
            what = f"grid {'xyz'[n]}" if kind == "grid" else self.argument(n)
            self.say(f"checked at launch: {what} <= {most}, so that no index wraps")
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
        where = f"at {buf.base}" if buf.base is not None else "as a constant"
        return f"{shape} {buf.elem} {where}"

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
        if nest.backwards is not None:
            text += f", {nest.backwards} from its end"
        bounded = sorted({d for a in nest.atoms for d in a.coef})
        if bounded:
            text += f", masks along {', '.join(map(str, bounded))} are bounds"
        return text

    def _unrolled(self, times: int) -> str:
        return f", unrolled {times} times" if times > 1 else ""

    def keeps(self, keeps):
        for keep in keeps:
            skipped = "" if keep.unread is None else "; not where its readers' masks are off"
            self.say(f"keeps {self.name(keep.value)} ({self._place(keep.value, keep.buffer)}), which later roots read{skipped}")

    # -- steps
    def steps(self, steps):
        for step in steps:
            getattr(self, "_" + type(step).__name__.lower(), self._nothing)(step)

    def within(self, steps):
        self.depth += 1
        self.steps(steps)
        self.depth -= 1

    def _nothing(self, step):
        """Scalars, and jumps: as they stand in the kernel."""

    def _what(self, op: Op) -> str:
        """A root, for people."""
        line = f"line {op.loc.line}: " if op.loc.line else ""
        short = op.name.rpartition(".")[2]
        if op.name in ("tt.store", "tt.atomic_store"):
            origin = root_pointer(op.operands[0])
            to = origin.name if origin is not None and origin.op is None else "memory"
            return f"{line}{short} {self.name(op.operands[1])} to {to}"
        if op.name in ("tt.reduce", "tt.scan"):
            by = op.regions[0].block.ops[0].name.rpartition(".")[2] if len(op.regions[0].block.ops) == 2 else "function"
            return f"{line}{short} by {by} of {', '.join(map(self.name, op.operands))} along {op.attrs['axis']}"
        return f"{line}{short} {', '.join(self.name(o) for o in op.operands if o.type.is_tensor)}".rstrip()

    def _root(self, step: records.Root):
        if step.nest is None:
            if step.op.name != "tt.split":
                self.say(f"{self._what(step.op)}, one element")
            return
        self.say(f"{self._what(step.op)}: {self.nest(step.nest)}{self._unrolled(step.nest.times)}")
        self._more(step)

    def _more(self, step: records.Root):
        self.depth += 1
        if step.op in self.plan.notes:
            self.say(f"not row by row with what follows: {self.plan.notes[step.op]}")
        if step.nest is not None:
            self.keeps(step.nest.keeps)
        self.depth -= 1

    def _reduction(self, step: records.Reduction):
        side = f", {step.chunks} chunks side by side" if step.chunks > 1 else ""
        quick = ", by comparisons first, exactly where those find no number" if step.quick else ""
        self.say(f"{self._what(step.op)}: {self.nest(step.nest)}{side}{quick}")
        self._more(step)

    def _lookup(self, step: records.Lookup):
        self._root(step)

    def _prints(self, step: records.Prints):
        self.say(self._what(step.op))

    def _fill(self, step: records.Fill):
        why = f", because {step.why}" if step.why else ""
        self.say(f"put {self.name(step.value)} into memory ({self._place(step.value, step.buffer)}): {self.nest(step.nest)}{why}")

    def _copy(self, step: records.Copy):
        size = bytes_of(step.to.elem)
        for d in step.to.shape:
            size *= d
        self.say(f"copy {size} bytes from {step.source.base} to {step.to.base}")

    def _rows(self, step: records.Rows):
        rows, columns = step.nest.shape
        self.say(f"row by row, {rows} rows of {columns}: {self.nest(step.nest)}")
        self.depth += 1
        for stage in step.stages:
            side = f", {stage.chunks} chunks side by side" if stage.chunks > 1 else self._unrolled(stage.times)
            quick = ", by comparisons first, exactly where those find no number" if stage.quick else ""
            self.say(f"{self._what(stage.op)}{side}{quick}")
            self.depth += 1
            self.keeps(stage.keeps)
            self.depth -= 1
        first = step.stages[0].op
        if first in self.plan.notes:
            self.say(f"ends here: {self.plan.notes[first]}")
        self.depth -= 1

    def _product(self, step: product.Product):
        line = f"line {step.op.loc.line}: " if step.op.loc.line else ""
        count = f"{step.count} of " if step.count > 1 else ""
        pieces = f", {step.pieces} pieces of K at once" if step.pieces > 1 else ""
        how = {1: step.kind.acc, 2: f"pairs of {step.kind.packed} into {step.kind.acc}"}[step.kind.group]
        how = f"AMX tiles of {step.kind.packed}" if step.kind.tiles else how
        self.say(f"{line}product {count}{step.m}x{step.k} by {step.k}x{step.n}{pieces}: {step.rows} rows x {step.vectors} vectors in registers, {how}")
        self.depth += 1
        for name, operand in (("A", step.a), ("B", step.b)):
            if_not = ", where its indices do not wrap, else packed" if operand.only_if else ""
            why = f", because {operand.why}" if operand.why else ""
            self.say(f"{name} {_HOW[operand.how]}{if_not}{why}")
            self.within(operand.packing)
        self.steps(step.filling)
        if step.in_place:
            self.say("adds to the loop's own accumulators, where they are")
        if step.final is not None:
            self.say(f"converted to {step.final.elem}")
        self.depth -= 1

    def _decode(self, step: product.Decode):
        self.say(f"decode {self.name(step.value)} ({step.form}) to f32")

    # -- control flow
    def _body(self, step: records.Body):
        several = len(step.blocks) > 1
        for block, steps in step.blocks:
            if several:
                self.say(f"block {block.label or 'entry'}")
            self.within(steps)

    def _call(self, step: records.Call):
        self.say(f"{self._what(step.op)}, called")
        self.within((step.body,))

    def _for(self, step: records.For):
        line = f"line {step.op.loc.line}: " if step.op.loc.line else ""
        carried = step.op.regions[0].block.args[1:]
        self.say(f"{line}for" + "".join(f", {text}" for text in self._carried(carried, step.slots)))
        self.within(step.body)

    def _carried(self, values, slots):
        moving = [v for v, slot in zip(values, slots) if isinstance(slot, Induction)]
        for v, slot in zip(values, slots):
            if isinstance(slot, Buffer):
                yield f"carries {self._place(v, slot)}"
        if moving:
            kinds = sorted({"pointers" if v.type.elem == "ptr" else "indices" for v in moving})
            yield f"{len(moving)} tensors of {' and '.join(kinds)} as start + trips x step"

    def _if(self, step: records.If):
        line = f"line {step.op.loc.line}: " if step.op.loc.line else ""
        for word, steps in zip(("if", "else"), step.branches):
            if word == "if" or steps:
                self.say(f"{line if word == 'if' else ''}{word}")
                self.within(steps)

    def _while(self, step: records.While):
        self.steps(step.entry)
        self.say(f"line {step.op.loc.line}: while" if step.op.loc.line else "while")
        self.within(step.test + step.body)


_HOW = {"buffer": "is in memory", "in place": "is read where it lies", "turned": "lies the other way round: turned in registers",
        "copied": "is copied into panels by rows", "packed": "is packed"}
