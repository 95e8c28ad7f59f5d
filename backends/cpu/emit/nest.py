"""Loop nests: the elements of lazy tensors, computed where a root needs them.

A `Nest` runs over an index space as its plan says. One dimension is the *vector dimension*, walked in chunks of `lanes`; the others are
scalar loops around it (or, for a reduction over another axis, inside it). `at(value, dims)` yields a value's elements at
the current indices: `dims[k]` names the nest dimension that indexes the value's dimension k; -1 - i says index i. Results
are remembered per loop depth and emitted at that depth, so a value that does not depend on the inner loop is computed
outside it.

Masks like `offs < n` become loop bounds: a dimension's range is cut into chunks where every such comparison is known
true, at most a few where it is computed, and the rest where it is known false.
"""

from __future__ import annotations

from ..llvm.elements import memory_type
from ..llvm.ir import Val, const, i64
from ..plan.records import Induction, NestPlan
from ..plan.space import Known, Space
from ..ttir.types import Value
from . import access, bounds, pieces


class Nest:
    """One loop nest, emitted into kernel `k`."""

    def __init__(self, k, plan: NestPlan):
        self.k, self.b, self.plan = k, k.b, plan
        self.shape, self.vdim, self.lanes, self.times = plan.shape, plan.vdim, plan.lanes, plan.times
        self.times_of_chunks = 1  # how often the innermost loop is unrolled where it takes several chunks at once already
        self.order: tuple[int, ...] = ()
        self.sections: list[list] = []
        self.memos: list[dict] = []
        self.index: dict[int, Val] = {}
        self.depth_of: dict[int, int] = {}
        self.u = 0  # the chunk, of those that go side by side
        self.facts: dict[tuple[Value, tuple], bool] = {}  # what masks are known to be in the range that is walked now
        self.given: dict[tuple[Value, tuple], Val] = {}  # results of this row's reductions
        self.limits: dict[tuple[Value, tuple], Val] = {}  # comparison -> up to which index along the vector dimension it is true
        #: quotients and remainders -> what they are of a chunk's lanes together
        self.quotients = plan.whole
        self.masked = False  # what the innermost loop does may be done of some lanes alone
        self.idle = lambda: False  # does it nothing in the range that is walked now?
        self.in_pieces = True  # if it may be, is it to go piece by piece (`pieces`)?
        #: quotients and remainders where the piece begins that is written now, and the index of the vector dimension there
        self.at_first: dict[tuple[Value, tuple], tuple[Val, Val]] = {}
        self.halves = ()  # of lanes that are written now where these have two quotients
        self.part: Val | None = None  # of which lanes what is written now is, where it is not of all
        self.left: Val | None = None  # how many of the first lanes that is
        self.chunks = 1
        self.first = None  # what each of several chunks computes before the first of them stores anything
        self.ahead = 0  # bytes behind what is stored, where the line is fetched for what is stored later
        self.whole_range = True  # nothing in the range that is walked now is masked
        self.ends_early = None  # of `run`
        self.abreast = 1  # lines that go side by side: indices of the loop round the innermost one
        self.lines = 1  # how many do in what is written now
        self.finds(plan.reads)

    def maskable(self, keeps) -> bool:
        """May what the innermost loop does be done of some lanes alone? What it keeps for later roots is written whole."""
        return not keeps and self.k.target.masks

    def finds(self, reads):
        """From here on `reads` are in memory."""
        self.reads = reads
        self.space = Space(Known(reads, self.plan.inductions, self.k.lazy), self.shape)

    # -- levels
    def level(self, dims) -> int:
        return max([self.depth_of.get(d, 0) for d in dims if d >= 0], default=0)

    def index_of(self, d: int) -> Val:
        """The scalar index of nest dimension `d`, at the start of the current chunk."""
        base = self.index[d]
        if d == self.vdim and self.u:
            return self.hoisted(self.depth_of[d], ("index", d, self.u), lambda: self.b.add(base, i64(self.u * self.lanes)))
        return base

    def lane_index(self, d: int, elem: str = "i64") -> Val:
        """The indices of nest dimension `d` in the current chunk: a vector where that is the vector dimension."""
        idx = self.b.cast("trunc", self.index_of(d), elem)
        if d != self.vdim or self.lanes == 1:
            return idx
        return self.b.add(self.b.splat(idx, self.lanes), self.b.iota(elem, self.lanes))

    def along(self, d: int, n: int, fn):
        """`fn()` at the n-th index from here of `d`, the innermost loop's dimension, which goes in steps of more."""
        if n == 0:
            return fn()
        lvl = self.depth_of[d]
        index, memo = self.index[d], self.memos[lvl]
        self.index[d], self.memos[lvl] = self.b.add(index, i64(n)), {}
        result = fn()
        self.index[d], self.memos[lvl] = index, memo
        return result

    def each_line(self, fn):
        """`fn(n)` for each of the lines that go side by side now. What it remembers it does for a line."""
        fn(0)
        for n in range(1, self.lines):
            self._on_line(n, fn)

    def _on_line(self, n: int, fn):
        level = len(self.order) - 1
        d, saved = self.order[level - 1], self.memos[level:]
        base = self.index[d]
        index = self.hoisted(level, ("line", n), lambda: self.b.add(base, i64(n)))
        self.memos[level:] = [memo.setdefault(("memo", n), {}) for memo in saved]
        self.index[d] = index
        fn(n)
        self.index[d], self.memos[level:] = base, saved

    def hoisted(self, level: int, key, fn):
        """`fn()` emitted once at loop depth `level` and remembered there under `key`.

        Outer depths emit into their open section, which precedes everything inside them; the innermost emits in place."""
        memo = self.memos[level]
        if key not in memo:
            saved = self.b.section
            if level < len(self.order):
                self.b.section = self.sections[level]
            try:
                memo[key] = fn()
            finally:
                if level < len(self.order):
                    self.b.section = saved
        return memo[key]

    # -- elements
    def at(self, v: Value, dims: tuple[int, ...]) -> Val:
        """The elements of `v` at the current indices: a vector of `lanes`, or a scalar where all lanes are equal."""
        if not v.type.is_tensor:
            return self.k.scalar(v)
        fact = self.facts.get((v, dims))
        if fact is not None:
            return const("i1", fact)
        if (v, dims) in self.given:
            return self.given[v, dims]
        lvl = self.level(dims)
        key = (v, dims, self.u if self.vdim in dims else 0)
        limit = self.limits.get((v, dims))
        if limit is not None and (self.k.target.reloads or self.plan.registers > 1):
            return self.hoisted(lvl, key, lambda: self._below(limit))
        return self.hoisted(lvl, key, lambda: self._compute(v, dims))

    def _below(self, limit: Val) -> Val:
        """Is the index along the vector dimension below `limit`? Lane numbers are constants: nothing needs a register round the loop. With
        registers enough, an index vector that stays in one is faster (softmax over columns, AVX-512: 1.13 times)."""
        left = self.b.sub(limit, self.index_of(self.vdim))
        if self.lanes == 1:
            return self.b.icmp("sgt", left, i64(0))
        return self.b.icmp("slt", self.b.iota("i32", self.lanes), self.b.splat(self.b.cast("trunc", left, "i32"), self.lanes))

    def first_of(self, v: Value, dims) -> Val:
        """The quotient of all of the chunk's lanes, or the first lane's remainder; `v` at `dims` is one of `quotients`."""
        return self.hoisted(self.level(dims), ("first", v, dims, self.u), lambda: pieces.first_of(self, v, dims))

    def wide_first_of(self, v: Value, dims) -> Val:
        """The same in 64 bits."""
        return self.hoisted(self.level(dims), ("wide first", v, dims, self.u), lambda: pieces.wide_first_of(self, v, dims))

    def dividend(self, v: Value, dims, at: Val | None = None) -> Val:
        """What a quotient or remainder divides, of the chunk's first lane, or at another index of the vector dimension."""
        form = self.space.affine(self.plan.quotients[v, dims].dividend, dims)
        x = access.poly_value(self, form.base)
        for d, p in form.coef.items():
            x = self.b.add(x, self.b.mul(self.index_of(d) if at is None or d != self.vdim else at, access.poly_value(self, p)))
        return self.b.cast("trunc", x, v.type.elem)

    def _compute(self, v: Value, dims) -> Val:
        k = self.k
        if (v, dims) in self.quotients:
            first = self.first_of(v, dims)
            return self.b.add(self.b.splat(first, self.lanes), self.b.iota(first.elem, self.lanes)) if self.quotients[v, dims].step else first
        buf = self.reads.get(v)
        if buf is not None:
            return access.load_buffer(self, buf, dims)
        ind = self.plan.inductions.get(v)
        if ind is not None:
            return self._induction(v, ind, dims)
        if v.op is None:
            raise k.error(None, f"value %{v.name} has no definition that the code generator knows")
        saved, self.b.dbg = self.b.dbg, k.debug_loc(v.op)
        try:
            return k.lane_rule(v.op)(self, v.op, dims)
        finally:
            self.b.dbg = saved

    def _induction(self, v: Value, ind: Induction, dims) -> Val:
        init, step = self.at(ind.init, dims), self.at(ind.step, dims)
        count = self.k.trips[ind.count]
        if v.type.elem == "ptr":
            off = self.b.mul(self.b.cast("sext", step, "i64"), count)
            return self.b.gep(memory_type(v.type.pointee.elem), init, off)
        return self.b.add(init, self.b.mul(step, self.b.cast("trunc", count, step.elem)))

    # -- loops
    def begin(self, order=()):
        """Stand before the loops of `order`: what belongs outside them is emitted here."""
        self.order = tuple(order)
        self.depth_of = {d: n + 1 for n, d in enumerate(order)}
        self.sections, self.memos = [self.b.open_section()], [{}]

    def run(self, body, unroll: int = 1, before_inner=None, after_inner=None, ends_early=None):
        """Emit the plan's loops round `body(u)`. The vector dimension advances by up to `unroll`
        chunks at a time; `before_inner(chunks)` and `after_inner(chunks)` bracket the innermost loop. In a range that masks exclude `ends_early(dimension)` may give a
        function, called at each turn's end, which returns whether the following ones change nothing (an i1)."""
        self.begin(self.plan.order)
        self.ends_early = ends_early
        unroll = max(1, min(unroll, self.shape[self.vdim] // self.lanes)) if self.shape else 1
        self._loops(0, body, unroll, before_inner, after_inner)

    def run_rows(self, row):
        """Emit one loop over dimension 0 round `row()`, which calls `inner` for every pass over dimension 1."""
        self.begin((0, 1))
        for n, (lo, hi, step, facts, _) in enumerate(bounds.ranges(self, 0, 1)):
            saved = self.facts
            self.facts = {**saved, **facts}
            self.whole_range = n == 0
            self.loop_over(lo, hi, step, 0, row)
            self.facts = saved
        self.whole_range = True

    def new_section(self):
        """From here on what belongs to the row, but not to its elements, is emitted here."""
        self.sections[1] = self.b.open_section()

    def inner(self, body, unroll: int = 1, before_inner=None, after_inner=None, ends_early=None):
        """One pass over dimension 1, within `run_rows`."""
        self.ends_early = ends_early
        unroll = max(1, min(unroll, self.shape[1] // self.lanes))
        self._loops(1, body, unroll, before_inner, after_inner)

    def _loops(self, depth: int, body, unroll, before_inner, after_inner):
        if depth == len(self.order):
            for chunks in pieces.together(self):
                pieces.written(self, chunks, lambda chunks=chunks: self._body_of(chunks, body), by_halves=bool(self.plan.steps))
            return
        d = self.order[depth]
        innermost = depth == len(self.order) - 1
        if innermost and before_inner:
            before_inner(unroll if d == self.vdim else self.chunks)
        if innermost and pieces.goes_by_pieces(self):
            self.k.either(pieces.long_enough(self), lambda: self._ranges(depth, body, unroll, before_inner, after_inner), lambda: self._not_in_pieces(depth, body, unroll, before_inner, after_inner))
        else:
            self._ranges(depth, body, unroll, before_inner, after_inner)
        if innermost and after_inner:
            after_inner(unroll if d == self.vdim else self.chunks)

    def _not_in_pieces(self, *how):
        self.in_pieces = False
        self._ranges(*how)
        self.in_pieces = True

    def _ranges(self, depth: int, body, unroll, before_inner, after_inner):
        d, innermost, whole = self.order[depth], depth == len(self.order) - 1, self.whole_range
        for n, (lo, hi, step, facts, chunks) in enumerate(bounds.ranges(self, d, unroll)):
            if d == self.vdim:
                self.chunks = chunks
            saved = self.facts
            self.facts = {**saved, **facts}
            self.whole_range = whole and n == 0
            inside = lambda: self._loops(depth + 1, body, unroll, before_inner, after_inner)  # noqa: E731
            if innermost and pieces.goes_by_pieces(self):
                pieces.by_pieces(self, lo, hi, step, d, inside)
                self.facts = saved
                continue
            idle = self.ends_early(d) if innermost and self.ends_early is not None and False in self.facts.values() else None
            if self.abreast > 1 and depth == len(self.order) - 2:
                self._loop_abreast(lo, hi, d, inside)
            elif idle is None:
                self.loop_over(lo, hi, step, d, inside)
            else:
                self._loop_until(lo, hi, step, d, inside, idle)
            self.facts = saved
        self.whole_range = whole

    def _body_of(self, chunks: range, body):
        """`body(u)` of these chunks."""
        # Loads do not pass stores that may meet them: one chunk would wait for the other.
        for each in ([self.first] if len(chunks) > 1 and self.first is not None else []) + [body]:
            for u in chunks:
                self.u = u
                for v, dims in self.plan.picks:  # operands first: a sort is too long a chain to begin at its end
                    self.at(v, dims)
                each(u)
        self.u = 0

    def loop_over(self, lo: Val, hi: Val, step: int, d: int, inner):
        """`inner()` at these indices of dimension `d`."""
        turn = lambda i: self.enter(d, i, inner)  # noqa: E731
        if self.k.loop(lo, hi, step, turn, flags="nuw nsw", tail=lambda: self.k.unrolled(self._unrolling(d))):
            self.b.place(self.b.block)  # behind the body's blocks: keep the printed order readable

    def _loop_abreast(self, lo: Val, hi: Val, d: int, inner):
        """As `loop_over`, by as many lines as go side by side, and by single ones where fewer are left."""
        b, n = self.b, self.abreast
        end = b.intrinsic("smax", lo, hi)
        rest = b.sub(end, b.bin("urem", b.sub(end, lo), i64(n)))
        self.lines = n
        self.loop_over(lo, rest, n, d, inner)
        self.lines = 1
        self.loop_over(rest, end, 1, d, inner)

    def _loop_until(self, lo: Val, hi: Val, step: int, d: int, inner, idle):
        """As `loop_over`, left behind a turn after which `idle()` holds."""
        if lo.const is not None and hi.const is not None and lo.const >= hi.const:
            return
        index = self.b.variable(lo)
        with self.b.forever() as turn:
            at = index.get()
            turn.leave(self.b.icmp("sge", at, hi))
            self.enter(d, at, inner)
            turn.leave(idle())
            index.set(self.b.add(at, i64(step)))

    def _unrolling(self, d: int) -> int:
        """How often LLVM is to unroll the loop over `d`."""
        if d == self.order[-1] and self.whole_range and not self.plan.looked_at:
            return self.times if self.chunks == 1 else self.times_of_chunks
        return 1

    def enter(self, d: int, idx: Val, inner):
        """`inner()` at index `idx` of dimension `d`, the next one of the order that the nest began with."""
        self.sections.append(self.b.open_section())
        self.memos.append({})
        if d == self.plan.backwards:
            idx = self.b.sub(i64(self.shape[d] - (self.lanes if d == self.vdim else 1)), idx)
        self.index[d] = idx
        inner()
        self.sections.pop()
        self.memos.pop()
