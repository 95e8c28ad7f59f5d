"""TTIR operations -> LLVM IR: one kernel, walked in program order.

Scalars are computed where they stand. Lazy tensor operations emit nothing; a root asks a `Nest` for the elements that it
needs. What several roots need and is dear to compute is kept in scratch by the first nest that computes it. Scratch is
one block per thread, laid out here at compile time.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field

from ...base import CompileError
from ..plan import facts as analysis, ranges
from ..llvm import ir
from . import rules as lower, rows
from ..ttir import types as ttir, unrolled
from ..plan.facts import KEEP_ABOVE, Facts, partners, root_pointer, same_expression, same_offsets, walk
from ..llvm.ir import Builder, Val, const, i64
from .nest import Buffer, Induction, Nest, memory_type, row_major
from ..plan.scratch import Buffers, Layout
from ..llvm.targets import Target
from ..ttir.types import Func, Loc, Module, Op, Value

#: what a kernel's compiled function takes: packed arguments, scratch, first and last program, grid. It returns 0, or says which
#: assertion failed in which program.
SIGNATURE = [("ptr", "args"), ("ptr", "scratch"), ("i64", "begin"), ("i64", "end"), ("i32", "gx"), ("i32", "gy"),
             ("i32", "gz")]
SCRATCH_LIMIT = 1 << 28


@dataclass
class Lowered:
    """What code generation yields: LLVM IR text, bytes of scratch per thread, and which pointer arguments were taken
    not to overlap: (loaded, stored, whether equal addresses are fine because both use the same offsets)."""

    text: str
    scratch_bytes: int
    disjoint: list[tuple[int, int, bool]] = field(default_factory=list)
    #: (message, Python file:line) of each assertion: the function returns its number << 48 | program where it fails
    asserts: list[tuple[str, str]] = field(default_factory=list)
    #: the element types of the function's arguments
    arguments: list[str] = field(default_factory=list)
    #: ("grid", axis) or ("argument", place), and the most that it may be: beyond it, integers that are compared might wrap
    most: list[tuple[str, int, int]] = field(default_factory=list)
    #: vector operations of a program, roughly; 0 where a loop's length is not known
    work: int = 0


class Kernel:
    DEFERRED = object()  # what a root returns that a later one carries out with itself

    def __init__(self, module: Module, target: Target, name: str, *, fp_fusion: bool = True,
                 assume: bool = True):
        self.func: Func = module.kernel
        ttir.expand_calls(module)
        unrolled.mend(self.func)
        self.partners = partners(self.func.body)
        self.target, self.name = target, name
        self.assume = assume
        self.module = ir.Module(name, target.triple)
        self.module.named = {}
        self.facts = Facts(self.is_lazy)
        self.env: dict[Value, Val] = {}
        self.buffers = Buffers()
        self.layout = Layout()
        self.asserts: list[tuple[str, str]] = []  # message, where
        self.required: set = set()  # comparisons, and blocks in which it has been seen to that they do not wrap
        self._unroll: dict[int, str] = {}
        self.pool: dict[float, int] = {}  # coefficients of polynomials -> place in the pool
        self.stores_here = True  # does the loop that is emitted now store? Without a store LLVM would hoist reads of the pool
        self._pairs: dict[Op, bool] = {}
        self._depths: dict[Value, int] = {}
        self.inductions: dict[Value, Induction] = {}
        self.keeps: list[Value] = []
        self.pending_loads: list[Op] = []
        self.executed: set[Op] = set()
        #: carried out already, as part of a group, or not needed
        self.fused: set[Op] = {x.operands[1].op.operands[0].op.operands[0].op for x in self.partners}
        self.buffers_after: dict[Value, Buffer] = {}
        self.disjoint: dict[tuple[int, int], bool] = {}
        self.most: dict[tuple[str, int], int] = {}  # ("grid", axis) or ("argument", place) -> the most that a launch may have there
        self.carried: dict[Value, Value] = {}  # loop-carried pointer -> what it starts from
        self.current_op: Op | None = None
        self._debug: dict = {}
        sp = self._debug_info()
        self.fn = ir.Function(self.module, name, "i64", SIGNATURE, dbg=sp)
        self.fn.kernel = self
        self.fn.fp_fusion = fp_fusion
        self.fn.soft_half = None if target.half else lower.narrow.soft_half
        self.b = Builder(self.fn)

    # -- errors and debug locations
    def error(self, op: Op | None, message: str) -> CompileError:
        where = f" at {op.loc}" if op is not None else ""
        what = f"{op.name}: " if op is not None else ""
        return CompileError(f"triton-cpu cannot compile kernel {self.func.name}{where} (target {self.target.name}): "
                            f"{what}{message}")

    def _debug_info(self) -> str:
        loc = self.func.loc
        m = self.module
        f = m.add_meta(_di_file(loc.file))
        cu = m.add_meta(f'distinct !DICompileUnit(language: DW_LANG_C, file: {f}, producer: "triport", '
                        'isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)')
        ty = m.add_meta("!DISubroutineType(types: !{})")
        sp = m.add_meta(f'distinct !DISubprogram(name: "{self.name}", file: {f}, line: {loc.line}, type: {ty}, '
                        f"scopeLine: {loc.line}, spFlags: DISPFlagDefinition, unit: {cu})")
        m.named["llvm.dbg.cu"] = [cu]
        m.flags = [m.add_meta('!{i32 2, !"Dwarf Version", i32 4}'),
                   m.add_meta('!{i32 2, !"Debug Info Version", i32 3}')]
        self._debug = {"file": loc.file, "scopes": {loc.file: sp}, "locs": {}, "sp": sp, "line": loc.line}
        return sp

    def debug_loc(self, op: Op | None) -> str:
        loc = op.loc if op is not None and op.loc.line else Loc(self._debug["file"], self._debug["line"])
        cached = self._debug["locs"].get(loc)
        if cached is None:
            scopes = self._debug["scopes"]
            if loc.file not in scopes:
                f = self.module.add_meta(_di_file(loc.file))
                scopes[loc.file] = self.module.add_meta(
                    f"!DILexicalBlockFile(scope: {self._debug['sp']}, file: {f}, discriminator: 0)")
            ref = self.module.add_meta(f"!DILocation(line: {loc.line}, column: 0, scope: {scopes[loc.file]})")
            cached = self._debug["locs"][loc] = f", !dbg {ref}"
        return cached

    # -- rules
    def is_lazy(self, op: Op) -> bool:
        if not op.results or not op.results[0].type.is_tensor:
            return False
        if op.name == "tt.reduce":
            if op not in self._pairs:
                # Pairs of pairs of pairs would be written out in full: 2^n times what is under them.
                self._pairs[op] = lower.reduce.is_pair(op) and self._pair_depth(op.operands[0]) < 2
            return self._pairs[op]
        return op.name in lower.ELEMENTWISE or op.name in lower.DIMS or op.name in lower.LANES

    def _pair_depth(self, v: Value) -> int:
        """How many reductions of two elements an element of `v` goes through before it meets memory."""
        depth = self._depths.get(v)
        if depth is None:
            op = v.op
            depth = 0
            if op is not None and self.is_lazy(op):
                depth = max((self._pair_depth(o) for o in op.operands if o.type.is_tensor), default=0) + (
                    op.name == "tt.reduce")
            self._depths[v] = depth
        return depth

    def mapped_dims(self, op: Op, dims):
        fn = lower.DIMS.get(op.name)
        return fn(op, dims) if fn else None

    def lane_rule(self, op: Op):
        if op.name in lower.LANES:
            return lower.LANES[op.name]
        if op.name in lower.DIMS:
            return lambda nest, op, dims: nest.at(op.operands[0], self.mapped_dims(op, dims))
        if op.name == "tt.reduce":
            return lower.reduce.pair
        rule = lower.ELEMENTWISE.get(op.name)
        if rule is None:
            raise self.error(op, "no lowering rule yet; add one to backends/cpu/emit/")
        return lambda nest, op, dims: rule(self.b, op, *[nest.at(o, dims) for o in op.operands])

    def children(self, v: Value, dims):
        """The (value, dims) that evaluating `v` at `dims` reads."""
        if v in self.buffers:
            return []
        if v in self.inductions:
            ind = self.inductions[v]
            return [(ind.init, dims), (ind.step, dims)]
        op = v.op
        if op is None or not self.is_lazy(op):
            return []
        if op.name == "tt.reduce":
            return [(op.operands[0], d) for d in lower.reduce.halves(op, dims)]
        if op.name == "tt.join":
            return [(o, dims[:-1]) for o in op.operands]
        if op.name in lower.DIMS:
            mapped = self.mapped_dims(op, dims)
            return [(op.operands[0], mapped)] if mapped is not None else []
        return [(o, dims) for o in op.operands if o.type.is_tensor]

    # -- scalars
    def scalar(self, v: Value) -> Val:
        if v in self.env:
            return self.env[v]
        if v.op is not None and v.op.name == "arith.constant":
            return lower.arith.constant_value(v.op.attrs["value"], v.type.elem)
        raise self.error(v.op, f"scalar %{v.name} is used before it is computed")

    @property
    def large(self) -> bool:
        """Has so much code been made already that LLVM should not multiply what is still to come?"""
        return self.fn.count > 3000

    def times_unrolled(self, visited) -> int:
        """How often a loop over these expressions is unrolled: as often as its target has registers for. LLVM unrolls nothing by
        itself: it does so where registers are short, too."""
        work = {v for v, _ in visited if v.op is not None and v not in self.buffers and v.type.elem[0] in "fb"
                and v.op.name.startswith(("arith.", "math.", "tt.extern"))}
        heavy = len(work) > 4 or lower.reduce.is_heavy(self, visited)
        return min(self.target.unroll, self.target.polynomials) if heavy else self.target.unroll

    def unrolled(self, times: int) -> str:
        """What a loop's branch says to be unrolled."""
        if times == 1:
            return ""
        if times not in self._unroll:
            self._unroll[times] = self.module.add_meta(f'!{{!"llvm.loop.unroll.count", i32 {times}}}')
        n = len(self.module.meta)
        return f", !llvm.loop {self.module.add_meta(f'distinct !{{!{n}, {self._unroll[times]}}}')}"

    # -- scratch
    def alloc(self, shape, elem: str, strides=None, panel=None, size: int | None = None) -> Buffer:
        """A new buffer in this thread's scratch block, 64-byte aligned."""
        n = 1
        for d in shape:
            n *= d
        size = (size if size is not None else n) * (ir.bits_of(memory_type(elem)) // 8)
        offset = self.layout.take(size)
        if self.layout.size > SCRATCH_LIMIT:
            raise self.error(self.current_op, f"the kernel's blocks need over {SCRATCH_LIMIT >> 20} MiB of scratch per thread; "
                             "use smaller blocks")
        self.fn.count += 1
        name = f"%buf{self.fn.count}"
        self.entry.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {offset}")
        return Buffer(Val("ptr", name), elem, tuple(shape), tuple(strides or row_major(shape)), panel, offset)

    def view(self, buf: Buffer, offset: int, shape, strides, elem: str | None = None) -> Buffer:
        """Part of a buffer, `offset` elements in, under a shape and strides (and an element type) of its own."""
        ptr = buf.ptr
        if offset:
            self.fn.count += 1
            ptr = Val("ptr", f"%view{self.fn.count}")
            size = ir.bits_of(memory_type(buf.elem)) // 8
            self.entry.append(f"  {ptr.s} = getelementptr i8, ptr {buf.ptr.s}, i64 {offset * size}")
        return Buffer(ptr, elem or buf.elem, tuple(shape), tuple(strides), base=buf.base)

    def table(self, elem: str, values, shape) -> Buffer:
        """A constant tensor, laid down in the module."""
        mem = memory_type(elem)
        texts = [lower.arith.constant_value(v, elem) for v in values]
        texts = [ir.const("i8", bool(t.const)) if elem == "i1" else t for t in texts]
        name = f"@{self.name}.table{len(self.module.globals)}"
        body = ", ".join(f"{mem} {t.s}" for t in texts)
        self.module.globals.append(f"{name} = internal constant [{len(texts)} x {mem}] [{body}], align 64")
        return Buffer(Val("ptr", name), elem, tuple(shape), row_major(shape))

    # -- nests
    def begin_nest(self, shape, sinks, op: Op | None = None, vdim: int | None = None, lanes: int | None = None,
                   keep: bool = True, inner: int | None = None, into: Buffer | None = None, merge: bool = False) -> Nest:
        """A nest over `shape` that can evaluate `sinks` [(value, dims)]. What must be in memory first is put there.
        Sets `keeps`: the values that this nest computes and later roots want.

        inner: the dimension of the innermost loop where that is not the vector dimension (a reduction's axis).
        merge: dimensions that everything walks together, in order, may become one; `into` is a buffer that is written."""
        self.stores_here = True
        full = tuple(shape)
        while True:
            shape = full
            nest = Nest(self, shape)
            visited = nest.explore(sinks)
            if merge and vdim is None:
                nest.shape = shape = self._merged(visited, shape, inner, into)
                nest.merged = shape != full
            vector_dim = vdim if vdim is not None else self._vector_dim(nest, visited, shape)
            nest.vdim = vector_dim
            others = [d for d in range(len(shape)) if d not in (vector_dim, inner)]
            order = others + [vector_dim] if shape else []
            if inner is not None and inner != vector_dim:
                order.append(inner)
            early = self._first_to_materialise(nest, visited, order)
            if early is None:
                break
            self.materialise(early)
        nest.default_order = order
        if lanes is None:
            lanes = min(self.target.lanes(self._lane_bits(visited)), shape[vector_dim]) if shape else 1
        nest.lanes = lanes
        nest.times = self.times_unrolled(visited)
        nest.find_atoms(visited)
        self.keeps = []
        if keep:
            ident = nest.identity
            for v, dims in visited:
                if dims == ident and v.type.shape == full and self._worth_keeping(v, op):
                    self.keeps.append(v)
        return nest

    def _merged(self, visited, shape, inner: int | None, into: Buffer | None):
        """`shape` with each run of dimensions that all of `visited` walks as one put into the run's last dimension. Sorting
        works on [2, 2, ..., 2]: ten nested loops of two trips would be a bad way through it."""
        n = len(shape)
        if n < 3:
            return shape
        together = [shape[d] > 1 and shape[d + 1] > 1 for d in range(n - 1)] + [False]

        def apart(d):
            together[d] = False
            if d:
                together[d - 1] = False

        def check(buf: Buffer, dims):
            axis = {d: a for a, d in enumerate(dims)}
            for d in range(n - 1):
                x, y = axis.get(d), axis.get(d + 1)
                if together[d] and (x, y) != (None, None) and (
                        x is None or y is None or (buf.shape[x], buf.shape[y]) != (shape[d], shape[d + 1])
                        or buf.strides[x] != buf.strides[y] * shape[d + 1]):
                    together[d] = False

        if inner is not None:
            apart(inner)
        if into is not None:
            if into.panel:
                return shape
            check(into, tuple(range(n)))
        for v, dims in visited:
            buf = self.buffers.get(v)
            if v in self.inductions or v.type.elem == "ptr" or (buf is None and v.op is None) or (buf and buf.panel):
                return shape
            if buf is not None:
                check(buf, dims)
            elif v.op.name in lower.LANES and v.op.name != "tt.splat":
                for d in dims:
                    if d >= 0:
                        apart(d)
        out, run = [], 1
        for d in range(n):
            run *= shape[d]
            out.append(1 if together[d] else run)
            if not together[d]:
                run = 1
        return tuple(out)

    def _vector_dim(self, nest: Nest, visited, shape) -> int:
        """The dimension with the most unit-stride accesses; the last one that is not 1 otherwise."""
        if not shape:
            return 0
        votes = {d: 0.0 for d, n in enumerate(shape) if n > 1}
        if not votes:
            return len(shape) - 1
        last = max(votes)
        volume = 1
        for n in shape:
            volume *= n
        votes[last] += 0.01
        for v, dims in visited:
            # What is read once for a whole row or column matters as little as it is read.
            weight = 1.0 / volume
            for d in set(dims):
                weight *= shape[d] if d >= 0 else 1
            buf = self.buffers.get(v)
            if buf is not None:
                for axis, d in enumerate(dims):
                    if d in votes and buf.strides[axis] == 1:
                        votes[d] += weight
            elif v.type.elem == "ptr" and any(u.name in ("tt.load", "tt.store") for u in v.uses):
                for d, p in nest.affine(v, dims).coef.items():
                    if d in votes and p == {(): 1}:
                        votes[d] += weight * len(v.uses)
        # A dimension too short for a vector is a last resort.
        width = self.target.lanes(32)
        return max(votes, key=lambda d: (min(shape[d], width), votes[d], d)) if \
            all(n < width for n in shape) else max((d for d in votes if shape[d] >= width), key=lambda d: (votes[d], d))

    def _lane_bits(self, visited) -> int:
        """The element width that lanes are counted by: the widest float, at least 32 where 32-bit data is in play."""
        bits = 8
        for v, _ in visited:
            e = v.type.elem
            if e == "f64":
                return 64
            if e in ("f32", "bf16") or (e == "i32" and v.op is not None):
                bits = max(bits, 32)
            elif e in ("f16", "i16"):
                bits = max(bits, 16)
            elif e == "i64":
                bits = max(bits, 32)
        return bits

    def _first_to_materialise(self, nest: Nest, visited, order) -> Value | None:
        depth = {d: n for n, d in enumerate(order)}
        for v, dims in reversed(visited):  # users first
            if v in self.buffers or v.op is None or not self.is_lazy(v.op):
                continue
            if v.op.name in lower.DIMS and self.mapped_dims(v.op, dims) is None:
                return v
            if not self._keepable(v):
                continue
            deepest = max((depth[d] for d in dims if d >= 0), default=-1)
            again = 1
            for d in order[:deepest + 1]:
                if d not in dims:
                    again *= nest.shape[d]
            if again > 1:
                return v
        return None

    def _keepable(self, v: Value) -> bool:
        """Dear enough that reading it back from scratch beats computing it again."""
        cost, e = self.facts.cost(v), v.type.elem
        if e == "i1":
            return cost > 24
        if e == "ptr" or e[0] == "i":
            if cost < 12:
                return False
            probe = Nest(self, v.type.shape)
            return e != "ptr" and bool(probe.affine(v, probe.identity).opaque)
        return cost > KEEP_ABOVE

    def _worth_keeping(self, v: Value, op: Op | None) -> bool:
        if v in self.buffers or v.op is None or not self.is_lazy(v.op) or not self._keepable(v):
            return False
        if v.op.block is not self.current_block:
            return False
        later = self.facts.consumers(v) - self.executed
        return len(later - {op}) > 0

    def write_keeps(self, nest: Nest, keeps, op: Op | None = None):
        """Store what the nest keeps, at its current indices."""
        for v in keeps:
            if v not in self._keep_bufs:
                self._keep_bufs[v] = self._kept_buffer(nest, v)
        self.write_keeps_to(nest, keeps, self._keep_bufs, op)

    def _never_read_here(self, nest: Nest, v: Value, op: Op | None) -> bool:
        """Where a mask is known false, do all later readers of `v` skip these elements?"""
        for later in self.facts.consumers(v) - self.executed - {op}:
            if later.name != "tt.store" or len(later.operands) < 3 or later.operands[0].type.shape != nest.shape:
                return False
            if not self._known_false(nest, later.operands[2], nest.identity) or not self._reads_identically(later, v):
                return False
        return True

    def _known_false(self, nest: Nest, mask: Value, dims) -> bool:
        fact = nest.facts.get((mask, dims))
        if fact is not None:
            return not fact
        op = mask.op
        if op is None:
            return False
        if op.name == "arith.andi":
            return any(self._known_false(nest, o, dims) for o in op.operands)
        mapped = self.mapped_dims(op, dims)
        return mapped is not None and self._known_false(nest, op.operands[0], mapped)

    def write_keeps_to(self, nest: Nest, keeps, buffers, op: Op | None):
        """Store `keeps` at the nest's current indices, in `buffers`."""
        wanted = [v for v in keeps if all(nest.facts.values()) or not self._never_read_here(nest, v, op)]
        self.stores_here = bool(wanted) or op is None or op.name not in ("tt.reduce", "tt.scan")
        for v in wanted:
            nest.store_buffer(buffers[v], nest.identity, nest.at(v, nest.identity))

    def _kept_buffer(self, nest: Nest, v: Value) -> Buffer:
        shape = v.type.shape
        if nest.merged:
            return self.alloc(shape, v.type.elem)
        strides, n = [0] * len(shape), 1
        for d in [nest.vdim] + [d for d in reversed(range(len(shape))) if d != nest.vdim]:
            strides[d] = n
            n *= shape[d]
        return self.alloc(shape, v.type.elem, strides)

    def finish_root(self):
        """After a root's nest: what it kept is now read from scratch."""
        for v, buf in self._keep_bufs.items():
            self.buffers[v] = buf
        self._keep_bufs = {}

    def materialise(self, v: Value, row_major_only: bool = False) -> Buffer:
        """Put a lazy tensor into scratch (once) and read it from there on."""
        if v in self.buffers:
            return self.buffers[v]
        saved_keeps, saved_bufs = self.keeps, self._keep_bufs
        self._keep_bufs = {}
        op = v.op
        if op is not None and op.name in lower.DIMS and self.mapped_dims(op, tuple(range(len(v.type.shape)))) is None:
            src = self.materialise_row_major(op.operands[0])
            self.buffers[v] = src.reshaped(v.type.shape)
        else:
            dims = tuple(range(len(v.type.shape)))
            nest = self.begin_nest(v.type.shape, [(v, dims)], keep=False, merge=True)
            buf = self.alloc(v.type.shape, v.type.elem) if row_major_only else self._kept_buffer(nest, v)
            nest.run(nest.default_order, lambda u: nest.store_buffer(buf, dims, nest.at(v, dims)))
            self.buffers[v] = buf
        self.keeps, self._keep_bufs = saved_keeps, saved_bufs
        return self.buffers[v]

    def materialise_row_major(self, v: Value) -> Buffer:
        """As `materialise`, in row-major order."""
        if v not in self.buffers:
            return self.materialise(v, row_major_only=True)
        buf = self.buffers[v]
        if buf.is_row_major:
            return buf
        out = self.alloc(v.type.shape, v.type.elem)
        self.materialise_into(out, v)
        return out

    def materialise_into(self, buf: Buffer, v: Value, convert=None, vdim: int | None = None, inner: int | None = None,
                         unroll: int = 1, pairs: bool = False):
        """Write a tensor's elements into `buf`, through `convert(b, lanes)` if given. `inner` names the innermost loop's
        dimension where that is not the vector dimension; `unroll` chunks of that one go together. `pairs`: a lane is two neighbours along
        `inner`, the first one low."""
        saved_keeps, saved_bufs = self.keeps, self._keep_bufs
        self._keep_bufs = {}
        dims = tuple(range(len(v.type.shape)))
        lanes = min(self.target.lanes(32), v.type.shape[vdim]) if pairs else None
        nest = self.begin_nest(v.type.shape, [(v, dims)], keep=False, vdim=vdim, lanes=lanes, inner=inner, into=buf, merge=inner is None)
        if pairs:
            nest.strides[inner] = 2

        def element():
            x = nest.at(v, dims)
            return convert(self.b, x) if convert else x

        def body(u):
            if not pairs:
                nest.store_buffer(buf, dims, element())
                return
            n = nest.lanes
            low, high = (self.b.splat(x, n) for x in (element(), nest.next_along(inner, element)))
            both = self.b.shuffle(low, high, [x // 2 + n * (x % 2) for x in range(2 * n)])
            self.b.store(both, nest.buffer_address(buf, dims)[0], ir.bits_of(both.elem) // 8)

        nest.run(nest.default_order, body, unroll)
        self.keeps, self._keep_bufs = saved_keeps, saved_bufs

    # -- memory order
    def _arg_index(self, ptr: Value) -> int | None:
        root = root_pointer(ptr, self.carried)
        return self.func.args.index(root) if root in self.func.args else None

    def _settle_loads(self, met):
        """Loads that have not happened yet and for which `met(load)` says so happen now."""
        still = []
        for load in self.pending_loads:
            v = load.result
            if v in self.buffers or not self.facts.consumers(v) - self.executed:
                continue
            if met(load):
                self.materialise(v)
            else:
                still.append(load)
        self.pending_loads = still

    def _may_meet(self, load: Op, target: int | None, fine: bool = False) -> bool:
        """Might a write to argument `target` change what `load` reads? Other arguments are taken to be disjoint, which the launch
        checks; `fine`: equal addresses would do no harm."""
        source = self._arg_index(load.operands[0])
        if source is None or target is None or source == target or not self.assume:
            return True
        self.disjoint[source, target] = self.disjoint.get((source, target), True) and fine
        return False

    def before_write(self, op: Op, ptr: Value):
        """Loads that stand before a write but have not happened yet, and that the write might change, happen now."""
        target = self._arg_index(ptr)

        def met(load):
            v = load.result
            own = self.facts.consumers(v) - self.executed == {op} and self._reads_identically(op, v)
            if target is not None and self._arg_index(load.operands[0]) == target:
                return not (own and same_expression(load.operands[0], ptr))
            return self._may_meet(load, target, own and same_offsets(load.operands[0], ptr))

        self._settle_loads(met)

    def before_atomic(self, op: Op, ptr: Value):
        """As `before_write`, for an operation whose elements may meet one another in memory: every load that it might change
        happens first."""
        target = self._arg_index(ptr)
        self._settle_loads(lambda load: self._may_meet(load, target))

    def _reads_identically(self, op: Op, value: Value) -> bool:
        """Does `op` read the value's element k only for its own element k?"""
        if not op.operands[0].type.is_tensor:
            return False
        shape = op.operands[0].type.shape
        nest = Nest(self, shape)
        visited = nest.explore([(o, nest.identity) for o in op.operands if o.type.is_tensor])
        found = [dims == nest.identity and v.type.shape == shape for v, dims in visited if v is value]
        return bool(found) and all(found)  # what is not found is read behind a change of shape that no index follows

    def before_region(self, op: Op):
        """Values from outside that a loop needs: dear ones and loads that the loop may overwrite are computed first."""
        inner = set()
        writes = []
        for r in op.regions:
            for o in walk(r):
                inner.add(o.block)
                if o.name in lower.WRITES:
                    writes.append(o)
        loops = op.name in ("scf.for", "scf.while")
        outside = []
        for r in op.regions:
            for o in walk(r):
                for v in o.operands:
                    home = v.op.block if v.op is not None else v.block
                    if v.type.is_tensor and home not in inner and v.op is not None and self.is_lazy(v.op):
                        outside.append(v)
        for v in dict.fromkeys(outside):
            if v in self.buffers:
                continue
            many = len(self.facts.consumers(v)) > 1
            if self._keepable(v) and (loops or many):
                self.materialise(v)
        if writes:
            targets = [self._arg_index(w.operands[0]) for w in writes]
            self._settle_loads(lambda load: any([self._may_meet(load, t) for t in targets]))  # a list: every pair is noted

    def proved(self, check: ranges.Check, shape) -> bool | None:
        """Does the check hold: certainly, or in every launch that keeps to `self.most`? None where the kernel has to look, False where
        it cannot."""
        found = ranges.decided(check, shape)
        if found is None and self.assume and (bounds := ranges.at_launch(check, shape, self.func.args)) is not None:
            for key, most in bounds.items():
                self.most[key] = min(most, self.most.get(key, most))
            return True
        return found

    def _largest(self, kind: str, place: int) -> int:
        """The most that a grid or an argument can be at all."""
        bits = 32 if kind == "grid" else int(self.func.args[place].type.elem[1:])
        return (1 << (bits - 1)) - 1

    # -- walking
    def run_block(self, block):
        """Carry out a block's operations in order."""
        saved = getattr(self, "current_block", None)
        self.current_block = block
        self.buffers.scopes.append([])
        for op in block.ops:
            self.run_op(op)
            if not self.is_lazy(op) and op is not block.ops[-1]:  # who holds this block reads the terminator's operands yet
                self.buffers.release(self.layout, lambda v: self.facts.consumers(v) <= self.executed)
        left = self.buffers.scopes.pop()
        if self.buffers.scopes:
            self.buffers.scopes[-1] += left
        self.current_block = saved

    def run_region(self, region, fn):
        """`fn()` inside a nested region: what it puts into scratch of outer values is forgotten afterwards, for it is there only
        where control came this way."""
        before, pending = set(self.buffers), list(self.pending_loads)
        fn()
        inner = {o for o in walk(region)}
        self.forget_foreign(before, {*region.blocks, *(o.block for o in inner)})
        self.pending_loads = [x for x in self.pending_loads if x not in inner or x in pending]

    def forget_foreign(self, before: set[Value], blocks):
        """Take out of `buffers` what came since `before` and is not a value of `blocks`."""
        for v in self.buffers.keys() - before:
            if (v.op.block if v.op is not None else v.block) not in blocks:
                del self.buffers[v]

    def run_op(self, op: Op):
        b = self.b
        self.current_op = op
        b.dbg = self.debug_loc(op)
        if op in self.partners:
            self._exchange(op)
            return
        if self.is_lazy(op):
            if op.name == "tt.load":
                self.pending_loads.append(op)
            elif op.name == "arith.constant" and isinstance(op.attrs["value"], list):
                self.buffers[op.result] = self.table(op.result.type.elem, op.attrs["value"], op.result.type.shape)
            return
        if op in self.fused:
            return
        group = rows.find(self, op) if op.name == "tt.reduce" else None
        if group:
            rows.emit(self, *group)
            for v, buf in self.buffers_after.items():
                self.buffers[v] = buf
            self.buffers_after = {}
            return
        root = lower.ROOTS.get(op.name)
        if root is not None:
            if root(self, op) is self.DEFERRED:
                return
            self.finish_root()
        elif op.name == "tt.load":
            lower.memory.scalar_load(self, op)
        elif op.name in lower.ELEMENTWISE:
            self.env[op.result] = lower.ELEMENTWISE[op.name](b, op, *[self.scalar(o) for o in op.operands])
        else:
            raise self.error(op, "this operation is not covered yet; `backends/cpu/emit/rules.py` lists what is")
        self.executed.add(op)

    def _exchange(self, op: Op):
        """`x ^ xor_sum(x, axis)` over two elements is each element's partner: a view of x that walks the axis backwards."""
        if self.facts.consumers(op.result) <= self.executed:
            return
        x, axis = self.partners[op]
        buf = self.materialise(x)
        if buf.panel:
            buf = self.materialise_row_major(x)
        strides = list(buf.strides)
        strides[axis] = -strides[axis]
        self.buffers[op.result] = self.view(buf, buf.strides[axis], x.type.shape, strides, op.result.type.elem)

    def scalar_region(self, block, args: list[Val]) -> list[Val]:
        """The results of a region of scalars, whatever it holds, for `args`."""
        saved = self.keeps, self._keep_bufs, self.current_op
        self.keeps, self._keep_bufs = [], {}
        self.env.update(zip(block.args, args))
        if len(block.region.blocks) == 1:
            self.run_block(block)
            results = [self.scalar(v) for v in block.ops[-1].operands]
        else:
            results = lower.control.branching_region(self, block.region)
        self.keeps, self._keep_bufs, self.current_op = saved
        return results

    def helper(self, name: str, ret: str, args: list[Val], build) -> Val:
        """Call an LLVM function of this module, made on first use by `build(b, *parameters)` and inlined by LLVM: so that an
        expression may hold branches wherever it is emitted."""
        if not any(f.name == name for f in self.module.functions):
            fn = ir.Function(self.module, name, ret, [(a.ty, f"x{n}") for n, a in enumerate(args)], linkage="internal ",
                             attrs=" alwaysinline")
            fn.kernel, fn.fp_fusion, fn.soft_half = self, self.fn.fp_fusion, self.fn.soft_half
            build(Builder(fn), *[Val(a.ty, f"%x{n}") for n, a in enumerate(args)])
        return self.b.call(name, ret, args)

    # -- plain control flow, for roots that need their own
    def guarded(self, mask: Val, fn):
        """Run `fn` where the scalar `mask` holds."""
        b = self.b
        if mask.const is not None:
            if mask.const:
                fn()
            return
        then, after = self.fn.new_block("then"), self.fn.new_block("after")
        b.cond_br(mask, then, after)
        b.enter(then)
        fn()
        b.br(after)
        b.enter(after)

    def either(self, test: Val, yes, no):
        """Run `yes` where the scalar `test` holds, else `no`. What either puts into scratch is forgotten: it is there on one path only."""
        b = self.b
        if test.const is not None:
            (yes if test.const else no)()
            return
        then, other, after = (self.fn.new_block(x) for x in ("then", "else", "after"))
        b.cond_br(test, then, other)
        for block, fn in ((then, yes), (other, no)):
            before = set(self.buffers)
            b.enter(block)
            fn()
            b.br(after)
            self.forget_foreign(before, ())
        b.enter(after)

    def pooled(self, b, value: float, lanes: int) -> Val:
        """A polynomial's coefficient. Where registers are few it is read from memory by the instruction that uses it: as a constant it
        would be hoisted out of the loop, take a register and push something else to the stack."""
        if self.target.registers > 16 or lanes * 32 != self.target.vector_bits or not self.stores_here:
            return const("float", value)
        at = self.pool.setdefault(value, len(self.pool))
        ty = ir.vec("float", lanes)
        return b.load(ty, b.gep(ty, Val("ptr", f"@{self.name}.pool"), i64(at)), self.target.vector_bits // 8)

    def _render_pool(self):
        """The pool is no constant to LLVM, which would hoist loads from it, and hidden, so that no table of addresses is needed."""
        if self.pool:
            ty = ir.vec("float", self.target.lanes(32))
            rows = ", ".join(f"{ty} splat (float {const('float', v).s})" for v in self.pool)
            self.module.globals.append(f"@{self.name}.pool = hidden global [{len(self.pool)} x {ty}] [{rows}], align 64")

    def loop(self, lo: Val, hi: Val, step: int, fn, hint: str = "loop"):
        """`for i in range(lo, hi, step): fn(i)` over i64."""
        b = self.b
        if lo.const is not None and hi.const is not None:
            if hi.const <= lo.const:
                return
            if hi.const - lo.const <= step:
                fn(lo)
                return
        pre, head, body = b.block, self.fn.new_block(hint), self.fn.new_block("body")
        done = self.fn.new_block("done")
        b.br(head)
        b.enter(head)
        self.fn.count += 1
        i, nxt = Val("i64", f"%i{self.fn.count}"), f"%n{self.fn.count}"
        at = len(head.items)
        head.items.append("")
        b.cond_br(b.icmp("slt", i, hi), body, done)
        b.enter(body)
        fn(i)
        latch = b.block
        b.emit(f"{nxt} = add nsw i64 {i.s}, {step}")
        b.br(head)
        head.items[at] = f"  {i.s} = phi i64 [ {lo.s}, %{pre.label} ], [ {nxt}, %{latch.label} ]"
        b.enter(done)

    # -- the whole function
    def lower(self) -> Lowered:
        b = self.b
        self._keep_bufs = {}
        b.dbg = self.debug_loc(None)
        self.entry = b.open_section()
        zeros = max(64, self.target.vector_bits // 8 * 2) * 2
        self.module.globals.append(f"@{self.name}.zeros = internal constant [{zeros} x i8] zeroinitializer, align 64")
        self.zeros = Val("ptr", f"@{self.name}.zeros")
        self.grid = {a: Val("i32", f"%g{a}") for a in "xyz"}
        end = Val("i64", "%end")
        # The loop over programs is here, inside the compiled function.
        latch = ir.Block("next_program")
        pre, head = b.block, self.fn.new_block("program")
        b.br(head)
        b.enter(head)
        p = Val("i64", "%program.id")
        at = len(head.items)
        head.items.append("")
        go, leave = self.fn.new_block("start"), self.fn.new_block("leave")
        b.cond_br(b.icmp("slt", p, end), go, leave)
        b.enter(go)
        # Read anew by each program: what follows from them is then computed in it, and does not fill registers from the top.
        for n, arg in enumerate(self.func.args):
            if arg.type.is_tensor:
                raise self.error(None, f"argument {arg.name} is a tensor descriptor, which is not covered yet")
            slot = b.gep("i8", Val("ptr", "%args"), i64(8 * n))
            mem = memory_type(arg.type.elem)
            v = b.load(mem, slot, 8)
            self.env[arg] = b.cast("trunc", v, "i1") if arg.type.elem == "i1" else v
        gx = b.cast("sext", self.grid["x"], "i64")
        gy = b.cast("sext", self.grid["y"], "i64")
        rest = b.bin("udiv", p, gx)
        self.pid = {"x": b.cast("trunc", b.bin("urem", p, gx), "i32"),
                    "y": b.cast("trunc", b.bin("urem", rest, gy), "i32"),
                    "z": b.cast("trunc", b.bin("udiv", rest, gy), "i32")}
        self.frame = None
        lower.control.function_body(self, self.func.body, [], latch)
        self.fn.blocks.append(latch)
        b.enter(latch)
        b.dbg = self.debug_loc(None)
        b.emit("%program.next = add nuw nsw i64 %program.id, 1")
        b.br(head)
        head.items[at] = f"  %program.id = phi i64 [ %begin, %{pre.label} ], [ %program.next, %{latch.label} ]"
        b.place(leave)
        b.emit("ret i64 0")
        self._render_pool()
        pairs = [(i, j, same) for (i, j), same in sorted(self.disjoint.items())]
        work = analysis.work(self.func.body, self.is_lazy)
        vectors = 0 if work is None else max(1, work // self.target.lanes(32))
        most = [(*key, n) for key, n in sorted(self.most.items()) if n < self._largest(*key)]
        return Lowered(self.module.render(), self.layout.size, pairs, self.asserts, [a.type.elem for a in self.func.args],
                       most, vectors)


def _di_file(path: str) -> str:
    directory, _, name = path.rpartition("/")
    quote = lambda s: s.replace("\\", "\\5C").replace('"', "\\22")  # noqa: E731
    return f'!DIFile(filename: "{quote(name or "unknown")}", directory: "{quote(directory)}")'


def lower_module(module: Module, target: Target, **options) -> Lowered:
    """Compile a TTIR module's kernel to LLVM IR for `target`. Raises `CompileError`, and nothing else."""
    try:
        return _lower(module, target, options)
    except RecursionError:
        # Expressions are walked by recursion, and an unrolled loop makes one as deep as it is long.
        return _with_deep_stack(lambda: _lower(module, target, options))


def _lower(module: Module, target: Target, options) -> Lowered:
    kernel = Kernel(module, target, module.kernel.name, **options)
    try:
        return kernel.lower()
    except (CompileError, RecursionError):
        raise
    except Exception as e:
        raise kernel.error(kernel.current_op, f"this is a bug in triport ({type(e).__name__}: {e}); please report it with "
                           "the kernel") from e


_deep = threading.Lock()


def _with_deep_stack(fn):
    """`fn()` on a thread with a stack for 100,000 frames."""
    found = []

    def run():
        try:
            found.append((fn(), None))
        except RecursionError:
            found.append((None, CompileError("triton-cpu: the kernel's expressions are nested over 10,000 operations deep; "
                                             "unroll less (tl.static_range, tl.range(loop_unroll_factor=...))")))
        except BaseException as e:
            found.append((None, e))

    with _deep:
        limit, size = sys.getrecursionlimit(), threading.stack_size(512 << 20)
        try:
            sys.setrecursionlimit(max(limit, 100_000))
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(limit)
    result, error = found[0]
    if error is not None:
        raise error
    return result
