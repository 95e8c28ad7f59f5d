"""A plan -> LLVM IR: one kernel's function, step by step. What is computed where was decided before (plan/)."""

from __future__ import annotations

import functools

from ..llvm import ir
from ..llvm.elements import memory_type
from ..llvm.ir import Builder, Val, const, i64
from ..llvm.targets import Target
from ..plan.lazy import Lazy, halves, renamed
from ..plan.records import Buffer, Keep, NestPlan, Plan, Trips
from ..ttir.types import Func, Op, Value
from . import access, bounds, parts, places, rules
from .element import arith, narrow
from .lines import Lines
from .nest import Nest
from .variables import Variables

#: what a kernel's compiled function takes: packed arguments, scratch, first and last program, grid. It returns 0, or says which
#: assertion failed in which program.
SIGNATURE = [("ptr", "args"), ("ptr", "scratch"), ("i64", "begin"), ("i64", "end"), ("i32", "gx"), ("i32", "gy"),
             ("i32", "gz")]


class Kernel:
    """The function that is written. error: (operation, sentence) -> the error to raise.

    env: scalars; pointers: of the plan's places; slots: stack slots of scalars, by the value that is read from them; trips: how often loops ran; last: of a loop by its
    number, whether this is its last trip; ended: of a product, where it is noted whether it ended in a store (ending.py)."""

    def __init__(self, func: Func, plan: Plan, target: Target, name: str, lazy: Lazy, error, fp_fusion: bool, debugger: bool = False,
                 alone: bool = False):
        self.func, self.plan, self.target, self.name, self.lazy, self.error = func, plan, target, name, lazy, error
        self.checks, self.alone = plan.checks, alone
        self.module = ir.Module(name, target.triple)
        self.env: dict[Value, Val] = {}
        self.pointers: list[Val] = []
        self.slots: dict = {}
        self.trips: dict[Trips, Val] = {}
        self.last: dict[int, Val] = {}
        self.ended: dict[Op, Val] = {}
        self.asserts: list[tuple[str, str]] = []  # message, where
        self.frame = None  # the function that is walked
        self.parts = parts.Parts()
        self.current_op: Op | None = None
        self.stores_here = True  # does the loop that is emitted now store? Without a store LLVM would hoist reads of the pool
        self._coefficients: dict[float, int] = {}  # of polynomials -> place in the pool
        self._unroll: dict[int, str] = {}
        self.lines = Variables(self.module, name, func, lazy) if debugger else Lines(self.module, name, func.loc)
        self.fn = ir.Function(self.module, name, "i64", SIGNATURE, dbg=self.lines.subprogram)
        self.fn.kernel = self
        self.fn.fp_fusion = fp_fusion
        self.fn.soft_half = None if target.half else narrow.soft_half
        self.b = Builder(self.fn)

    def debug_loc(self, op: Op | None) -> str:
        return self.lines.of(op)

    # -- steps
    def run(self, steps):
        """Carry out steps, in order."""
        outside = self.lines.scopes
        self.parts.begin()
        for step in steps:
            op = getattr(step, "op", None)
            if op is not None:
                self.current_op = op
                self.b.dbg = self.debug_loc(op)
            self.parts.carry_out(self, step, rules.STEPS[type(step)])
        self.lines.scopes = outside

    def lane_rule(self, op: Op):
        """(nest, op, dims) -> elements, for a lazy operation."""
        if op.name in rules.LANES:
            return rules.LANES[op.name]
        if op.name in rules.DIMS:
            return lambda nest, op, dims: nest.at(op.operands[0], renamed(op, dims))
        if op.name == "tt.reduce" and self.lazy(op):  # else it is a root's, and read before that was carried out
            return lambda nest, op, dims: rules.region.inline(self, op.regions[0].block, [nest.at(op.operands[0], d) for d in halves(op, dims)])[0]
        rule = rules.ELEMENTWISE.get(op.name)
        if rule is None:
            raise self.error(op, "no lowering rule yet; add one to backends/cpu/emit/")
        return lambda nest, op, dims: rule(self.b, op, *[nest.at(o, dims) for o in op.operands])

    # -- values
    def scalar(self, v: Value) -> Val:
        if v in self.env:
            return self.env[v]
        if v.op is not None and v.op.name == "arith.constant":
            return arith.constant_value(v.op.attrs["value"], v.type.elem)
        raise self.error(v.op, f"scalar %{v.name} is used before it is computed")

    def none(self, trips: tuple[Trips, ...]) -> Val:
        """An i1: was none of these trips made?"""
        if not trips:
            return const("i1", True)
        return self.b.icmp("eq", functools.reduce(self.b.or_, (self.trips[t] for t in trips)), i64(0))

    def pointer(self, buf: Buffer) -> Val:
        """Where a buffer starts."""
        return self.pointers[buf.place]

    def nest(self, plan: NestPlan) -> Nest:
        self.stores_here = True  # until its root says otherwise
        return Nest(self, plan)

    def kept_here(self, nest: Nest, keeps: tuple[Keep, ...]) -> list[Keep]:
        """Of what a nest keeps, what somebody reads in the range that is walked now."""
        return [keep for keep in keeps if all(nest.facts.values()) or keep.unread is None
                or not all(bounds.is_false(nest, mask, nest.plan.identity) for mask in keep.unread)]

    def write_keeps(self, nest: Nest, keeps: tuple[Keep, ...], reduces: bool = False):
        """Store what a nest keeps at its current indices, where somebody reads it. reduces: the nest stores nothing else in its innermost loop."""
        wanted = self.kept_here(nest, keeps)
        self.stores_here = bool(wanted) or not reduces
        for keep in wanted:
            access.store_buffer(nest, keep.buffer, nest.plan.identity, nest.at(keep.value, nest.plan.identity))

    # -- how loops are unrolled
    def unrolled(self, times: int) -> str:
        """What a loop's branch says to be unrolled."""
        if times == 1:
            return ""
        if times not in self._unroll:
            self._unroll[times] = self.module.add_meta(f'!{{!"llvm.loop.unroll.count", i32 {times}}}')
        n = len(self.module.meta)
        return f", !llvm.loop {self.module.add_meta(f'distinct !{{!{n}, {self._unroll[times]}}}')}"

    # -- plain control flow, for roots that need their own
    def guarded(self, mask: Val, fn):
        """Run `fn` where the scalar `mask` holds."""
        self.either(mask, fn, None)

    def either(self, test: Val, yes, no):
        """Run `yes` where the scalar `test` holds, else `no` (None: nothing)."""
        b = self.b
        if test.const is not None:
            chosen = yes if test.const else no
            if chosen is not None:
                chosen()
            return
        then = self.fn.new_block("then")
        other = self.fn.new_block("else") if no is not None else None
        after = self.fn.new_block("after")
        b.cond_br(test, then, other or after)
        for block, fn in ((then, yes), (other, no)):
            if fn is not None:
                b.enter(block)
                fn()
                b.br(after)
        b.enter(after)

    def loop(self, lo: Val, hi: Val, step: int, fn, hint: str = "loop", **more) -> bool:
        """`for i in range(lo, hi, step): fn(i)` over i64. Says whether it takes a loop: what is known to run once, or never, takes none. more: as in
        `Flow.loop`."""
        if lo.const is not None and hi.const is not None and hi.const - lo.const <= step:
            if lo.const < hi.const:
                fn(lo)
            return False
        with self.b.loop(lo, hi, step, hint, **more) as i:
            fn(i)
        return True

    def helper(self, name: str, ret: str, args: list[Val], build) -> Val:
        """Call an LLVM function of this module, made on first use by `build(b, *parameters)` and inlined by LLVM: so that an
        expression may hold branches wherever it is emitted."""
        if not any(f.name == name for f in self.module.functions):
            fn = ir.Function(self.module, name, ret, [(a.ty, f"x{n}") for n, a in enumerate(args)], linkage="internal ",
                             attrs=" alwaysinline")
            fn.kernel, fn.fp_fusion, fn.soft_half = self, self.fn.fp_fusion, self.fn.soft_half
            build(Builder(fn), *[Val(a.ty, f"%x{n}") for n, a in enumerate(args)])
        return self.b.call(name, ret, args)

    # -- constants in memory
    def pooled(self, b, value: float, lanes: int) -> Val:
        """A polynomial's coefficient. Where registers are few it is read from memory by the instruction that uses it: as a constant it
        would be hoisted out of the loop, take a register and push something else to the stack."""
        if not self.target.reloads or lanes * 32 != self.target.vector_bits or not self.stores_here:
            return const("float", value)
        at = self._coefficients.setdefault(value, len(self._coefficients))
        ty = ir.vec("float", lanes)
        return b.load(ty, b.gep(ty, Val("ptr", f"@{self.name}.pool"), i64(at)), self.target.vector_bits // 8)

    def _render_pool(self):
        """The pool is no constant to LLVM, which would hoist loads from it, and hidden, so that no table of addresses is needed."""
        if self._coefficients:
            ty = ir.vec("float", self.target.lanes(32))
            rows = ", ".join(f"{ty} splat (float {const('float', v).s})" for v in self._coefficients)
            self.module.variable(f"{self.name}.pool", f"[{len(self._coefficients)} x {ty}] [{rows}]", "hidden global", ", align 64")

    # -- the whole function
    def write(self) -> str:
        """LLVM IR of the kernel. The loop over programs is inside the compiled function."""
        b = self.b
        self.zeros_bytes = max(64, self.target.vector_bits // 8 * 2) * 2
        self.zeros = self.module.variable(f"{self.name}.zeros", f"[{self.zeros_bytes} x i8] zeroinitializer", "internal constant", ", align 64")
        self.pointers = places.addresses(self)
        b.dbg = self.debug_loc(None)
        self.grid = {a: Val("i32", f"%g{a}") for a in "xyz"}
        self.latch = latch = ir.Block("next_program")
        if self.checks is not None:
            rules.checks.begin_kernel(self)
        with b.loop(Val("i64", "%begin"), Val("i64", "%end"), flags="nuw nsw", name="program", latch=latch) as p:
            self._read_arguments(p)
            self.lines.program(self)
            if self.checks is not None:
                rules.checks.begin_program(self)
            rules.control.function_body(self, self.plan.steps[0], latch)
            b.dbg = self.debug_loc(None)
        b.place(b.block)
        b.ret(ir.i64(0))
        self.parts.split(self)
        self._render_pool()
        return self.module.render()

    def _read_arguments(self, program: Val):
        """Read anew by each program: what follows from them is then computed in it, and does not fill registers from the top."""
        b = self.b
        for n, arg in enumerate(self.func.args):
            slot = b.gep("i8", Val("ptr", "%args"), i64(8 * n))
            v = b.load(memory_type(arg.type.elem), slot, 8)
            self.env[arg] = b.cast("trunc", v, "i1") if arg.type.elem == "i1" else v
        gx = b.cast("sext", self.grid["x"], "i64")
        gy = b.cast("sext", self.grid["y"], "i64")
        rest = b.bin("udiv", program, gx)
        self.pid = {"x": b.cast("trunc", b.bin("urem", program, gx), "i32"),
                    "y": b.cast("trunc", b.bin("urem", rest, gy), "i32"),
                    "z": b.cast("trunc", b.bin("udiv", rest, gy), "i32")}

