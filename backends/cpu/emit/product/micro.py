"""The inner loops of a matrix product: accumulators in registers across K, over rows of A and panels of B.

- outer products: a vector of B's row times one element of A's column, for every type that the target can multiply, or multiply and widen;
- pairs, and fours: the same over neighbours along K, where one of the target's instructions adds their products to a lane at once
  (`llvm/targets.py`, Product: x86's AVX512-BF16, pmaddwd and VNNI, Arm's BFDOT);
- tiles: 16 x 16 accumulators in AMX's tile registers;
- blocks: 4 x 4 accumulators in pairs of vector registers, by SpacemiT's IME (`ime.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ...llvm import ir
from ...llvm.ir import Val, const, i64
from ...llvm.elements import REGISTER
from ...plan.operand import Kind
from ...plan.product import SHALLOW
from ..element import single
from . import ime, pack
from .ending import InRegisters
from .pack import Panels, Rows


#: rows of a panel that is read where it lies, by which Intel's CPUs fetch ahead. Of torch's speed on an Emerald Rapids, one thread, by none, 8, 16 and 32: 4x3984x446 0.70, 0.78, 0.85, 0.85;
#: 13x96x3056 0.62, 0.71, 0.73, 0.63; 18x3792x464 0.60, 0.85, 0.89, 0.90; 32x1380x260 0.77, 0.83, 0.87, 0.86. A Zen 5 is as fast either way, and slower from memory (8x2000x4096 1.5 -> 1.75 ms).
#: What the first strip puts into a panel every CPU fetches, into the second cache: rows that lie a multiple of 4 KiB apart have one set of the first cache, of 12 places, for all 16 (64x1024x1024 there 0.75 by the
#: old way, 0.72 with the first cache, 0.88 with the second; 96x1536x896 0.78, 0.88, 0.92)
AHEAD = 16


@dataclass
class Extent:
    """How far a product goes: full sizes, and (i64 values) up to where it has to be computed."""

    m: int
    n: int
    k: int
    rows: Val
    columns: Val
    depth: Val


def accumulate(k, kind: Kind, dest: Val, a: Rows, panels: Panels, batch: int, extent: Extent, rows: int, vectors: int, fresh: Val,
               ends_in: InRegisters | None = None):
    """dest[batch, m, n] += a[batch, m, k] @ b[batch, k, n], micro-kernels of `rows` x `vectors` vectors. fresh: an i1, whether dest counts as zeros; ends_in: what may be done
    with accumulators instead of storing them there."""
    b = k.b
    t, packed = REGISTER[kind.acc], REGISTER[kind.packed]
    m, n, kk = extent.m, extent.n, extent.k
    lanes = min(k.target.dot_lanes(ir.bits_of(t)), n)
    width = lanes * vectors

    def one_batch(p):
        a_base = b.gep(packed, a.ptr, b.mul(p, i64(a.batch if batch > 1 else 0)))
        b_base = b.gep(packed, panels.ptr, b.mul(p, i64(kk * n)))
        c_base = b.gep(t, dest, b.mul(p, i64(m * n)))

        def block(i, j, r, vectors, strip=None, less=None, weaves=False):
            if weaves:
                (b_panel, b_pitch), source = pack.where_it_lies(k, kind, panels, j), (panels.strip, panels.strip.ptr)
            else:
                (b_panel, b_pitch), source = pack.panel(k, kind, panels, b_base, j), (a, a_base)
            given = b.gep(t, c_base, b.add(b.mul(i, i64(n)), j)), n, *source, (i, j), r, b_panel, width, lanes, vectors, extent
            if kind.blocks:
                _block_rows(k, kind, *given)
            elif kind.tiles:
                _tile_rows(k, kind, *given[:2], strip, *given[4:], fresh, ends_in)
            else:
                _vector_rows(k, kind, *given, b_pitch, panels.direct or weaves, fresh, ends_in, (r == rows or panels.direct) and (vectors * lanes == width or extent.k <= SHALLOW), less,
                             b.gep(packed, b_base, b.mul(j, i64(panels.across))) if weaves else None)

        def strips_of(body, first=i64(0)):
            """`body(first row, rows)` for each strip, from row `first` on."""
            if panels.direct and m % rows == 0 and rows % 2 == 0 and extent.rows.const is None:
                # So few rows that half a strip counts.
                end, half = b.intrinsic("smin", i64(m), extent.rows), rows // 2
                begun = b.and_(end, i64(-rows))
                whole = b.select(b.icmp("sle", b.sub(end, begun), i64(half)), begun, end)
                k.loop(i64(0), whole, rows, functools.partial(body, r=rows), "rows")
                k.loop(whole, end, half, functools.partial(body, r=half), "rows")
                return
            there = m if extent.rows.const is None or kind.tiles or kind.blocks else extent.rows.const
            for lo, hi, r in ((0, there - there % rows, rows), (there - there % rows, there, there % rows)):
                if r:
                    end = i64(hi) if extent.rows.const == there else b.intrinsic("smin", i64(hi), extent.rows)
                    begin = i64(lo) if lo else first
                    if panels.direct and (begin.const, end.const) == (lo, lo + r):  # LLVM, which knew each row's place, would read all of a step's elements of A at its begin, and spill
                        body(b.hidden(begin), r=r)
                    else:
                        k.loop(begin, end, r, functools.partial(body, r=r), "rows")

        def panels_of(body):
            """`body(first column, vectors)` for each panel."""
            columns, half, most = extent.columns, vectors // 2, vectors * 3 // 4
            if kind.blocks or not half or columns.const is not None and columns.const % width == 0:
                k.loop(i64(0), columns, width, lambda j: body(j, vectors), "panels")
                return
            # Of the last panel no more than the first half may be left: it takes a micro-kernel half as wide; of all that there is no more than three quarters.
            begun = b.and_(columns, i64(-width))
            left = b.sub(columns, begun)
            whole = halves = b.select(b.icmp("sle", left, i64(half * lanes)), begun, columns)
            if n == width and most > half and not kind.tiles:
                whole = b.select(b.icmp("sle", left, i64(most * lanes)), begun, columns)
            k.loop(i64(0), whole, width, lambda j: body(j, vectors), "panels")
            if whole is not halves:
                k.loop(whole, halves, width, lambda j: body(j, most), "panels")
            k.loop(halves, columns, width, lambda j: body(j, half), "panels")

        if kind.tiles:  # rows of A are wide, and stay in the first cache while the panels go by

            def strip(i, r):
                here = pack.strip(k, kind, a, a_base, i, r, extent.depth)
                panels_of(lambda j, vectors: block(i, j, r, vectors, here))

            strips_of(strip)
        else:
            unsigned = kind.by is not None and kind.by.unsigned

            def panel(j, vectors):
                less = None
                if unsigned:
                    less = _columns_by_128(k, kind, b.gep(packed, b_base, b.mul(j, i64(kk))), width, lanes, vectors, extent.depth)
                first = i64(0)
                if panels.woven is not None and vectors * lanes == width:
                    weaves = b.and_(panels.woven, pack.lies_whole(k, panels, j))
                    first = b.select(weaves, i64(rows), first)
                    k.loop(i64(0), first, rows, lambda i: block(i, j, rows, vectors, weaves=True), "rows")
                strips_of(lambda i, r: block(i, j, r, vectors, less=less), first)

            if panels.woven is not None:
                lines = _lines(k, kind, a, a_base, i64(0), rows, kk)
                k.guarded(panels.woven, lambda: pack.copy_rows(k, kind, lines, extent.depth, panels.strip))
            if ends_in is not None and kk <= SHALLOW and not unsigned:
                strips_of(lambda i, r: panels_of(lambda j, vectors: block(i, j, r, vectors)))
            else:
                panels_of(panel)

    k.loop(i64(0), i64(batch), 1, one_batch, "batch")


def _columns_by_128(k, kind: Kind, b_panel: Val, width: int, lanes: int, vectors: int, depth: Val) -> list[Val]:
    """What A's elements, packed 128 larger than they are, add to the accumulators of each vector of a panel."""
    b, g = k.b, kind.group
    acc, multiply = REGISTER[kind.acc], _by_instruction(k, kind, lanes)
    slots = [b.alloca(ir.vec(acc, lanes), "less") for _ in range(vectors)]
    for slot in slots:
        b.store(Val(ir.vec(acc, lanes), "zeroinitializer"), slot, 64)

    def body(q):
        row = b.gep("i8", b_panel, b.mul(q, i64(width)))
        for v, slot in enumerate(slots):
            column = b.load(ir.vec("i8", lanes * g), b.gep("i8", row, i64(v * lanes * g)), 1)
            b.store(multiply(const("i8", -128, lanes * g), column, b.load(ir.vec(acc, lanes), slot, 64)), slot, 64)

    k.loop(i64(0), depth, g, body, "sums")
    return [b.load(ir.vec(acc, lanes), slot, 64) for slot in slots]


def _vector_rows(k, kind: Kind, c_tile: Val, pitch: int, a: Rows, a_base: Val, at: tuple[Val, Val], r: int, b_panel: Val, width: int, lanes: int,
                 vectors: int, extent: Extent, b_pitch: Val, lies: bool, fresh: Val, ends_in: InRegisters | None, full: bool, less: list[Val] | None, woven: Val | None):
    """r rows x `vectors` vectors of the accumulators at `c_tile`, which begin `at` a row and a column, from these rows of A, and from a panel of B `width` columns wide, whose rows are `b_pitch`
    elements apart; lies: it may be where it was loaded from, where nothing of it may be read behind its end. full: as most blocks are; less: what is taken off each vector; woven: where the panel is put, row
    by row, for other rows of A (None: nowhere)."""
    b, i = k.b, at[0]
    t, packed = REGISTER[kind.acc], REGISTER[kind.packed]
    ty, size, g = ir.vec(t, lanes), ir.bits_of(t) // 8, kind.group
    lines = _lines(k, kind, a, a_base, i, r, extent.k)
    where = [[b.gep(t, c_tile, i64(x * pitch + v * lanes)) for v in range(vectors)] for x in range(r)]
    slots = [[b.alloca(ty, "acc") for _ in range(vectors)] for _ in range(r)]

    def begin(value):
        for x in range(r):
            for v in range(vectors):
                begun = value(where[x][v])
                b.store(begun if less is None else b.sub(begun, less[v]), slots[x][v], 64)

    k.either(fresh, lambda: begin(lambda _: Val(ty, "zeroinitializer")), lambda: begin(lambda at: b.load(ty, at, size)))
    multiply = (_by_instruction if kind.by else _outer)(k, kind, lanes)

    def steps(count, single=False):
        """A body of `count` steps along K, each of `group` elements; `single`: of the one that is left."""

        def body(q):
            acc = [[b.load(ty, s, 64) for s in line] for line in slots]
            b_row = b.gep(packed, b_panel, b.mul(q, b_pitch))
            if lies and (k.target.assists or woven is not None):  # a row is in a page of its own, as in `copy_panels`
                for u in range(count):
                    later = b.gep(packed, b_row, b.mul(b_pitch, i64(u + AHEAD)))
                    pack.fetch(b, later, vectors * lanes * size, 1 if woven is None else 2)
            a_cols = [b.gep(packed, line, b.mul(q, i64(a.strip or 1))) for line in lines]
            for u in range(count):
                cols = [b.load(ir.vec(packed, lanes * g), b.gep(packed, b_row, b.mul(b.add(b.mul(b_pitch, i64(u)), i64(v * lanes)), i64(g))), size)
                        for v in range(vectors)]
                if woven is not None:
                    for v, column in enumerate(cols):
                        b.store(column, b.gep(packed, woven, b.add(b.mul(b.add(q, i64(u)), i64(width)), i64(v * lanes))), size)
                for x in range(r):
                    s = _broadcast(b, packed, 1 if single else g, g, b.gep(packed, a_cols[x], i64(u * (a.strip or g))), lanes)
                    for v in range(vectors):
                        acc[x][v] = multiply(s, cols[v], acc[x][v])
            for x in range(r):
                for v in range(vectors):
                    b.store(acc[x][v], slots[x][v], 64)

        return body

    depth = extent.depth
    unroll = next(u for u in (4, 2, 1) if extent.k % (u * g) == 0 and u <= k.target.dot_unroll)
    if woven is not None:  # one step at a time: addresses of four rows, and of four that are fetched, take more registers than there are
        k.loop(i64(0), depth, 1, steps(1), "k")
    elif a.padded and not lies or depth.const is not None and depth.const % (unroll * g) == 0:  # zeros follow up to the next whole step
        k.loop(i64(0), depth, unroll * g, steps(unroll), "k")
    else:
        main = b.and_(depth, i64(-unroll * g))
        k.loop(i64(0), main, unroll * g, steps(unroll), "k")
        pairs = b.and_(depth, i64(-g))
        if unroll > 1:
            k.loop(main, pairs, g, steps(1), "tail")
        if g == 2:
            k.loop(pairs, depth, g, steps(1, single=True), "last")

    if woven is not None and a.padded:  # other strips go on to the next whole step
        zero = Val(ir.vec(packed, lanes), "zeroinitializer")
        end = b.and_(b.add(depth, i64(unroll - 1)), i64(-unroll))
        k.loop(depth, end, 1, lambda q: [b.store(zero, b.gep(packed, woven, b.add(b.mul(q, i64(width)), i64(v * lanes))), size) for v in range(vectors)], "zeros")

    def to_memory():
        for x in range(r):
            for v in range(vectors):
                b.store(b.load(ty, slots[x][v], 64), where[x][v], size)

    if ends_in is None:
        to_memory()
    else:
        ends_in.store(at, [[b.load(ty, s, 64) for s in line] for line in slots], to_memory, full)


def _lines(k, kind: Kind, a: Rows, a_base: Val, i: Val, count: int, length: int) -> list[Val]:
    """Where `count` rows of A, of `length` elements, begin, from row i on."""
    b, packed, lines = k.b, REGISTER[kind.packed], []
    for x in range(count):
        row = b.add(i, i64(x))
        line = b.gep(packed, a_base, b.mul(row, a.pitch)) if not a.strip else b.gep(packed, b.gep(packed, a_base, b.mul(i, a.pitch)), i64(x))
        # Rows that are not there read as zeros: what they add to the accumulators is what a masked load would have.
        lines.append(line if a.limit is None else b.select(b.icmp("slt", row, a.limit), line, zero_row(k, kind, length)))
    return lines


def zero_row(k, kind: Kind, length: int) -> Val:
    """`length` zeros, laid down in the module."""
    size = length * ir.bits_of(REGISTER[kind.packed]) // 8
    return k.module.variable(f"{k.name}.row{size}", f"[{size} x i8] zeroinitializer", "internal constant", ", align 64")


def _broadcast(b, packed: str, have: int, group: int, ptr: Val, lanes: int) -> Val:
    """The next `have` of `group` elements of A in every lane, the rest zero."""
    size = ir.bits_of(packed) // 8
    if group == 1:
        return b.splat(b.load(packed, ptr, size), lanes)
    unit = f"i{size * 8 * group}"
    pair = b.load(unit, ptr, size) if have == group else b.cast("zext", b.load(packed, ptr, size), unit)
    v = b.splat(pair, lanes)
    return b.reinterpret(v, ir.vec(packed, lanes * group))


def _outer(k, kind: Kind, lanes: int):
    b = k.b
    if kind.widens:
        ty = REGISTER[kind.acc]
        return lambda s, col, acc: single.mul_add(b, b.cast("fpext", s, ty), b.cast("fpext", col, ty), acc)
    if kind.acc[0] == "f":
        return lambda s, col, acc: single.mul_add(b, s, col, acc)
    return lambda s, col, acc: b.add(b.mul(s, col), acc)


def _by_instruction(k, kind: Kind, lanes: int):
    """The target's instruction for neighbours along K."""
    b, how = k.b, kind.by
    acc = REGISTER[kind.acc]
    acc_ty, ty = ir.vec(acc, lanes), ir.vec(how.lane, lanes if how.lane == acc else kind.group * lanes)  # a lane of its operands is one number, or all neighbours

    def multiply(s, col, acc):
        s, col = b.reinterpret(s, ty), b.reinterpret(col, ty)
        if how.adds:
            return b.call(how.intrinsic, acc_ty, [acc, s, col])
        return b.add(acc, b.call(how.intrinsic, acc_ty, [s, col]))

    return multiply


def _block_rows(k, kind: Kind, c_tile: Val, pitch: int, a: Rows, a_base: Val, at: tuple[Val, Val], r: int, b_panel: Val, width: int, lanes: int,
                vectors: int, extent: Extent):
    """r x `lanes` accumulators at `c_tile`, which begin `at` a row, from these of A: in whole blocks along K, which are zeros behind an operand's end."""
    a_tile = k.b.gep(REGISTER[kind.packed], a_base, k.b.mul(at[0], a.pitch))
    ime.call(k, c_tile, a_tile, b_panel, extent.depth, (extent.m, extent.n), r // ime.SIDE, lanes * vectors // ime.SIDE)


# --- AMX -----------------------------------------------------------------------------------------------------------------

#: rows, and bytes of a row, of a tile register; which registers hold accumulators, and tiles of A and of B
TILE_ROWS, TILE_BYTES = 16, 64
C_TILES, A_TILES, B_TILES = range(4), range(4, 6), range(6, 8)


def configure_tiles(k, kind: Kind, depth: int):
    """The eight tile registers, for products of `depth` elements along K. Intel's manual, "LDTILECFG": palette 1, bytes per row at 16, rows at 48."""
    elements = kind.depth_of_tiles(depth)
    width, rows = [TILE_BYTES] * 8, [TILE_ROWS] * 8
    for register in A_TILES:
        width[register] = elements * ir.bits_of(REGISTER[kind.packed]) // 8
    for register in B_TILES:
        rows[register] = elements // kind.group
    data = [1] + [0] * 15 + [byte for n in width for byte in (n, 0)] + [0] * 16 + rows + [0] * 8
    value = f"[64 x i8] [{', '.join(f'i8 {x}' for x in data)}]"
    k.b.call("llvm.x86.ldtilecfg", "void", [k.module.variable(f"{k.name}.tiles{elements}", value, "internal constant", ", align 64")])


def release_tiles(k):
    k.b.call("llvm.x86.tilerelease", "void", [])


def _tile_rows(k, kind: Kind, c_tile: Val, pitch: int, strip: tuple[Val, Val], at: tuple[Val, Val], r: int, b_panel: Val, width: int, lanes: int,
               vectors: int, extent: Extent, fresh: Val, ends_in: InRegisters | None):
    """r / 16 x `vectors` tiles of the accumulators at `c_tile`, which begin `at` a row and a column, from a `strip` of A (its first row, and elements to the next), and from a panel of
    B `width` columns wide."""
    b = k.b
    t, packed = REGISTER[kind.acc], REGISTER[kind.packed]
    size = ir.bits_of(packed) // 8
    down = r // TILE_ROWS
    step = kind.depth_of_tiles(extent.k)
    tile = lambda n: const("i8", n)  # noqa: E731
    c_of = lambda x, v: C_TILES[x * vectors + v]  # noqa: E731
    a_of, b_of = A_TILES[0], B_TILES[0]
    c_pitch, b_pitch = i64(pitch * 4), i64(width * kind.group * size)
    a_pitch = b.mul(strip[1], i64(size))
    places = [(x, v, b.gep(t, c_tile, i64(x * TILE_ROWS * pitch + v * lanes))) for x in range(down) for v in range(vectors)]

    def zeros():
        for x, v, _ in places:
            b.call("llvm.x86.tilezero", "void", [tile(c_of(x, v))])

    def accumulators():
        for x, v, place in places:
            b.call("llvm.x86.tileloadd64", "void", [tile(c_of(x, v)), place, c_pitch])

    k.either(fresh, zeros, accumulators)
    lines = [b.gep(packed, strip[0], b.mul(i64(x * TILE_ROWS), strip[1])) for x in range(down)]

    def body(q):
        b_row = b.gep(packed, b_panel, b.mul(q, i64(width)))
        for v in range(vectors):
            b.call("llvm.x86.tileloadd64", "void", [tile(b_of + v), b.gep(packed, b_row, i64(v * lanes * kind.group)), b_pitch])
        for x in range(down):
            b.call("llvm.x86.tileloadd64", "void", [tile(a_of + x), b.gep(packed, lines[x], q), a_pitch])
            for v in range(vectors):
                b.call(kind.by.intrinsic, "void", [tile(c_of(x, v)), tile(a_of + x), tile(b_of + v)])

    k.loop(i64(0), extent.depth, step, body, "k")

    def put(where: Val, pitch: int):
        for x, v, _ in places:
            b.call("llvm.x86.tilestored64", "void", [tile(c_of(x, v)), b.gep(t, where, i64(x * TILE_ROWS * pitch + v * lanes)), i64(pitch * 4)])

    if ends_in is None:
        put(c_tile, pitch)
    else:
        ends_in.store_tiles(at, (r, vectors * lanes), t, put, lambda: put(c_tile, pitch))
