"""A store that takes a product's accumulators out of registers, block by block, as `plan/ending.py` decided.

A block that a mask cuts, or whose conversion needs more than an instruction, goes through memory as others do, and is stored from there at once, by a loop over its chunks. Of few terms it is stored
under its masks, where the target has such stores: to go through memory would take as long as the product.
"""

from __future__ import annotations

from collections.abc import Callable

from ...llvm import ir
from ...llvm.ir import Val, const, i64
from ...plan.ending import Ending
from ...plan.facts import poly, poly_const, poly_mul
from ...plan.product import SHALLOW
from ...ttir.types import Op, Value
from .. import access, bounds
from ..element import narrow
from ..root import memory

#: terms of a product up to which its results are stored faster than their lines come, so that these are fetched ahead. Of MKL's speed on one thread of an Ice Lake without and with: 335 x 8 x 2476 0.82, 0.94; 2000 x 8 x 2000
#: 0.71, 0.87; 1024 x 16 x 1024 0.82, 0.86; 1024 x 32 x 1024 by tiles of 256 x 256 0.91, 0.79
HURRIED = 16


def begin(k, step):
    """Before a product's loop: it has not ended in its store."""
    slot = k.ended[step.op] = k.b.alloca("i1", "ended")
    k.b.store(const("i1", False), slot, 1)


def left(k, step) -> Val:
    """An i1: is a store still to be carried out, which a product may have ended in (`Rest`)?"""
    return k.b.not_(k.b.load("i1", k.ended[step.product], 1))


class InRegisters:
    """A product's ending. holds: an i1, whether the store is carried out block by block now; limits: (dimension, up to which index a mask is true); shallow: of few terms."""

    def __init__(self, k, ending: Ending, holds: Val, limits: list[tuple[int, Val]], whole, cut, shallow: bool):
        self.k, self.ending, self.holds, self.limits, self.shallow = k, ending, holds, limits, shallow
        self.whole, self.cut = whole, cut  # nests: of blocks in which all masks are true, and of others

    def store(self, at: tuple[Val, Val], block: list[list[Val]], to_memory: Callable, full: bool):
        """What the store does for accumulators that begin `at` a row and a column, vectors of rows. to_memory: puts them where they are kept; full: a block as most are, else it
        always goes through memory, which is less code."""
        k, b = self.k, self.k.b
        outer, b.dbg = b.dbg, k.debug_loc(self.ending.op)
        sizes = len(block), len(block[0]) * self.whole.lanes

        def by_memory():
            to_memory()
            k.guarded(self.holds, lambda: self._from_memory(at, sizes))

        if full:
            done = b.alloca("i1", "done")
            b.store(const("i1", False), done, 1)
            k.guarded(self._is_whole(at, sizes), lambda: self._from_registers(at, block, len(block) if self.ending.reads else 1, done))
            under_masks = self.shallow and k.target.masks and self._cast is None
            if under_masks:  # whatever is carried out now is stored so
                k.guarded(b.and_(self.holds, b.not_(b.load("i1", done, 1))), lambda: self._under_masks(at, block, done))
            k.guarded(b.not_(b.load("i1", done, 1)), to_memory if under_masks else by_memory)
        else:
            by_memory()
        b.dbg = outer

    def store_tiles(self, at: tuple[Val, Val], sizes: tuple[int, int], elem: str, put: Callable, to_memory: Callable):
        """As `store`, of sizes[0] x sizes[1] accumulators (LLVM's type `elem`) in registers that only memory takes numbers from: `put(where, pitch)` lays them down row by row. Each row is
        loaded and stored while it is in the first cache."""
        k, b = self.k, self.k.b
        outer, b.dbg = b.dbg, k.debug_loc(self.ending.op)
        lanes = self.whole.lanes

        def from_tiles():
            laid = b.alloca(f"[{sizes[0] * sizes[1]} x {elem}]", "tiles", 64)
            put(laid, sizes[1])

            def row(x: Val):
                line = b.gep(elem, laid, b.mul(x, i64(sizes[1])))
                self._row(at, x, [b.load(ir.vec(elem, lanes), b.gep(elem, line, i64(n)), 64) for n in range(0, sizes[1], lanes)])

            k.loop(i64(0), i64(sizes[0]), 1, row, "ending")

        def by_memory():
            to_memory()
            k.guarded(self.holds, lambda: self._from_memory(at, sizes))

        k.either(self._is_whole(at, sizes), from_tiles, by_memory)
        b.dbg = outer

    def _is_whole(self, at: tuple[Val, Val], sizes: tuple[int, int]) -> Val:
        """An i1: is the store carried out now, and are its masks true for all of a block?"""
        b, whole = self.k.b, self.holds
        for d, limit in self.limits:
            whole = b.and_(whole, b.icmp("sle", b.add(at[d], i64(sizes[d])), limit))
        return whole

    @property
    def _cast(self) -> Op | None:
        """The conversion in front of the store that an instruction carries out, but for subnormal numbers."""
        stored = self.ending.op.operands[1]
        return stored.op if narrow.converts(self.k.b, stored.op, self.whole.lanes) else None

    def _across(self, nest, at: tuple[Val, Val], x: Val, vectors: list[Val], of: Value, what: Callable) -> list[Val]:
        """`what()` at each vector of row x of a block, which are what `of` is there, in one of its nests."""
        out = []

        def along():
            for n, v in enumerate(vectors):
                nest.given[of, (0, 1)] = v
                nest.enter(1, self.k.b.add(at[1], i64(n * nest.lanes)), lambda: out.append(what()))

        nest.enter(0, self.k.b.add(at[0], x), along)
        del nest.given[of, (0, 1)]
        return out

    def _store_row(self, at, x: Val, vectors: list[Val], of: Value):
        self._across(self.whole, at, x, vectors, of, lambda: memory.store_chunk(self.whole, self.ending.op, ()))

    def _row(self, at, x: Val, vectors: list[Val]):
        """Store row x of a block."""
        k, value, stored, cast = self.k, self.ending.value, self.ending.op.operands[1], self._cast
        if cast is None:
            self._store_row(at, x, vectors, value)
            return
        wide = self._across(self.whole, at, x, vectors, value, lambda: self.whole.at(cast.operands[0], (0, 1)))
        k.either(narrow.any_subnormal(k.b, wide), lambda: self._store_row(at, x, vectors, value),
                 lambda: self._store_row(at, x, [narrow.of_normal(k.b, v) for v in wide], stored))

    def _from_registers(self, at, block, together: int, done: Val):
        """Store the rows of a block, so many `together`, and note it at `done`. Where one has a number that cannot be converted so the rest is left, and all of the block is stored once
        more: what was stored may not be read again."""
        k, value, stored, cast = self.k, self.ending.value, self.ending.op.operands[1], self._cast

        def converted(first: int):
            if first >= len(block):
                k.b.store(const("i1", True), done, 1)
                return
            wide = {x: self._across(self.whole, at, i64(x), block[x], value, lambda: self.whole.at(cast.operands[0], (0, 1)))
                    for x in range(first, min(first + together, len(block)))}

            def there():
                for x, vectors in wide.items():
                    self._store_row(at, i64(x), [narrow.of_normal(k.b, v) for v in vectors], stored)
                converted(first + together)

            k.guarded(k.b.not_(narrow.any_subnormal(k.b, [v for vectors in wide.values() for v in vectors])), there)

        if cast is not None:
            converted(0)
            return
        for x, vectors in enumerate(block):
            self._store_row(at, i64(x), vectors, value)
        k.b.store(const("i1", True), done, 1)

    def _under_masks(self, at, block, done: Val):
        """Store a block's vectors, each under its mask, and note it at `done`."""
        for x, vectors in enumerate(block):
            self._across(self.cut, at, i64(x), vectors, self.ending.value, lambda: memory.store_chunk(self.cut, self.ending.op, ()))
        self.k.b.store(const("i1", True), done, 1)

    def _from_memory(self, at, sizes):
        """Store a block's chunks, each under its mask."""
        k, nest = self.k, self.cut

        def chunk():
            memory.store_chunk(nest, self.ending.op, ())

        def row():
            k.loop(at[1], k.b.add(at[1], i64(sizes[1])), nest.lanes, lambda j: nest.enter(1, j, chunk), "cut")

        k.loop(at[0], k.b.add(at[0], i64(sizes[0])), 1, lambda i: nest.enter(0, i, row), "cut")


def unseen(k, step, d: int, end: Val) -> Val:
    """An i1: does the store in which a product ends, if it ends in one, let nothing through from index `end` of dimension `d` on? Nobody sees then what stands there."""
    b, found = k.b, const("i1", False)
    ending = step.ending
    if ending is None or len(ending.op.operands) < 3:
        return found
    nest = k.nest(ending.nest)
    nest.begin(ending.nest.order)
    for atom in ending.nest.atoms:
        (at, c), *more = atom.coef.items()
        if more or at != d or poly_const(c) != 1:
            continue
        nest.facts = {(atom.value, atom.dims): False}
        if bounds.is_false(nest, ending.op.operands[2], (0, 1)):
            limit = bounds.limit(nest, atom.base, atom.coef, [], nest.shape[d])
            found = b.or_(found, b.and_(access.holds(nest, atom.checks), b.icmp("sle", limit, end)))
    return found


def of(k, step, extent) -> InRegisters:
    """The ending of a product, with what it needs in front of the micro-kernels, and a note of whether it is carried out."""
    b, ending = k.b, step.ending
    if ending.last is None:
        begin(k, step)
    mask = ending.op.operands[2] if len(ending.op.operands) > 2 else None
    whole, cut = k.nest(ending.nest), k.nest(ending.nest)
    for nest in (whole, cut):
        nest.begin(ending.nest.order)
    whole.ahead = k.target.written if extent.k <= HURRIED else 0
    holds = const("i1", True) if ending.last is None else k.last[ending.last]
    ends, limits = [extent.rows, extent.columns], []
    covered = [b.icmp("sge", end, i64(n)) for end, n in zip(ends, whole.shape)]  # is there an accumulator wherever the mask is true?
    for atom in ending.nest.atoms:
        holds = b.and_(holds, access.holds(whole, atom.checks))
        (d, c), *more = atom.coef.items()
        if more or poly_const(c) != 1:
            most = access.poly_value(whole, atom.base)
            for d, c in atom.coef.items():
                most = b.add(most, access.poly_value(whole, poly_mul(c, poly(whole.shape[d] - 1))))
            holds = b.and_(holds, b.icmp("slt", most, i64(0)))
        else:
            limit = bounds.limit(whole, atom.base, atom.coef, [], whole.shape[d])
            limits.append((d, limit))
            whole.facts = {(atom.value, atom.dims): False}
            if mask is not None and bounds.is_false(whole, mask, (0, 1)):
                covered[d] = b.or_(covered[d], b.icmp("sle", limit, ends[d]))
    whole.facts = {(atom.value, atom.dims): True for atom in ending.nest.atoms}
    holds = b.and_(holds, b.and_(*covered))
    b.store(holds, k.ended[step.op], 1)
    return InRegisters(k, ending, holds, limits, whole, cut, extent.k <= SHALLOW)
