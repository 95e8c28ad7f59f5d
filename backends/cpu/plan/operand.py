"""Where the operands of a matrix product lie for the micro-kernel: rows of A, panels of B.

A's elements are broadcast one at a time, so where A is a plain load of contiguous rows in the computing type it is read
where it lies. Else it goes row by row into scratch, with a stride that avoids cache-set conflicts. B goes in panels as wide
as the micro-kernel, in its order. An operand that lies the other way round in memory is turned in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..llvm import ir
from ..llvm.elements import REGISTER
from ..llvm.targets import Product as Instruction
from ..ttir.types import Value
from .control import apart, captured
from .facts import poly_const
from .records import Buffer, row_major
from .schedule import Schedule
from .source import End, Source

#: elements of the shortest lines of which several fill a vector that are transposed so, and not gathered: 15 x 8 x 741 with a transposed B takes an Ice Lake 11.9 us, gathered 17.0
SHORT = 4


@dataclass(frozen=True)
class Kind:
    """How products are computed: element types of packed operands and accumulators, and the target's instruction for pairs along K (None: one that
    multiplies and one that adds)."""

    packed: str
    acc: str
    by: Instruction | None = None

    @property
    def tiles(self) -> bool:
        """Are whole tiles multiplied (AMX)?"""
        return self.by is not None and self.by.tiles is not None

    @property
    def blocks(self) -> bool:
        """Are blocks in vector registers multiplied (SpacemiT's IME)?"""
        return self.by is not None and self.by.blocks is not None

    @property
    def left(self) -> str:
        """What A's elements are packed to."""
        return "u8" if self.by is not None and self.by.unsigned else self.packed

    @property
    def widens(self) -> bool:
        """Are operands narrower than what they are multiplied into, by one instruction?"""
        return self.by is None and self.packed != self.acc

    @property
    def group(self) -> int:
        """How many elements along K share one lane, the first one low, where an instruction takes several; those of a block lie together, too."""
        return 1 if self.by is None else self.by.group

    def depth_of_tiles(self, k: int) -> int:
        """Elements along K in a tile of A, in products of k of them: as many as 64 bytes hold, or all."""
        return min(k, 512 // ir.bits_of(REGISTER[self.packed]))


@dataclass(frozen=True)
class Operand:
    """Where the micro-kernel finds an operand.

    how: "buffer" (it is in scratch already), "blocks" ([K / 8][rows or columns][8], by `packing`), "strips" (rows of a strip beside one another, by `packing`), "in place" (where it is loaded from), "turned" (transposed in registers on its way into `buffer`),
    "copied" (row by row into panels) or "packed" (by `packing`). only_if: it is so where the source's conditions hold, which the kernel looks
    at; else it is packed. limit, padded: of rows read in place (`Rows` of emit/product/pack.py); whole: read in whole tiles, so in place only where all of it is there, else from
    a strip of its rows, copied; apart: in place only where its rows begin with lines of the first cache, too, which do not all share the same few places in it; kept: panels
    serve the thread's next program, too, where that would put the same ones there; direct: where a whole tile's rows and columns are there, panels are read where they lie, and not copied;
    woven: they are so by the first strip of A alone, which puts them into panels for the others, and whose own rows are copied to this buffer before (None: they are not)."""

    how: str
    buffer: Buffer | None = None
    packing: tuple = ()
    only_if: bool = False
    limit: End | None = None
    padded: bool = True
    whole: bool = False
    apart: bool = False
    kept: bool = False
    direct: bool = False
    woven: Buffer | None = None
    why: str = ""


# --- A: rows ---------------------------------------------------------------------------------------------------------


def rows(s: Schedule, values: list[Value], src: Source | None, kind: Kind, depth: End | None, strip: int) -> Operand:
    """A's rows, in place where they lie contiguous in the computing type, else in scratch. `values`: its pieces along K; `src`: the load
    that they are; `depth`: where B ends along K. In place A may be read up to its own end only, so the product must end there, too. strip: rows of a strip, where the
    target takes such (0: too few columns)."""
    v = values[0]
    if kind.blocks:
        return _blocks(s, values, kind, src, 1)
    buf = s.buffers.get(v) if len(values) == 1 else None
    if buf is not None and buf.elem == kind.left and buf.strides[-1] == 1 and buf.panel is None:
        return Operand("buffer", buf)
    *batch, m, piece = v.type.shape
    k = piece * len(values)
    if strip and s.target.strips and kind.by is None and m % strip == 0:
        return _strips(s, values, kind, strip)
    lies_right = src and v.type.elem == kind.left and poly_const(src.steps[1]) == 1
    in_place = lies_right and not kind.tiles and src.exact and (
        src.limits[1] is None or depth is not None and src.limits[1].key == depth.key)
    limit = src.limits[0] if src else None
    if in_place and src.is_given:
        return Operand("in place", limit=limit, padded=src.limits[1] is None)
    pitch = k + 64 // (ir.bits_of(REGISTER[kind.packed]) // 8) if k >= 64 else k
    out = s.alloc((*batch, m, k), kind.left, (*_batches(batch, m * pitch), pitch, 1), size=math.prod(batch) * m * pitch)

    lanes = min(s.target.lanes(ir.bits_of(REGISTER[kind.packed])), piece) if kind.tiles and all(x.type.elem == kind.packed for x in values) else None

    def pack():
        for u, x in enumerate(values):
            s.fill(s.view(out, u * piece, x.type.shape, out.strides), x, lanes=lanes, why="rows of a product's operand")

    if lies_right and kind.tiles and src.exact:
        return _either(s, out, src.is_given, pack, "in place", whole=True, apart=bool(strip))
    if in_place:
        return replace(_either(s, out, src.is_given, pack, "in place"), limit=limit, padded=src.limits[1] is None)
    block = s.target.lanes(ir.bits_of(REGISTER[kind.packed]) * kind.group)
    if _turnable(s, src, (m, k), kind.packed, (block, block * kind.group)):
        return _either(s, out, src.is_given, pack, "turned")
    return _either(s, out, False, pack, "packed", why=_why_packed(src, v, kind))


def _strips(s: Schedule, values: list[Value], kind: Kind, strip: int) -> Operand:
    """A in strips of `strip` rows, each [K][strip]: the micro-kernel walks along one pointer."""
    *batch, m, piece = values[0].type.shape
    k, axis = piece * len(values), len(batch)
    out = s.alloc((*batch, m, k), kind.packed, (*_batches(batch, m * k), 1, strip), panel=(axis, strip, k * strip))
    with captured(s) as steps:
        for u, x in enumerate(values):
            part = replace(s.view(out, u * piece * strip, x.type.shape, out.strides), panel=out.panel)
            s.fill(part, x, vdim=axis, inner=axis + 1, why="strips of a product's operand")
    return Operand("strips", out, tuple(steps))


def _blocks(s: Schedule, values: list[Value], kind: Kind, src: Source | None, k_axis: int) -> Operand:
    """An operand in blocks along its dimension `k_axis`: [K / group][rows of A, or columns of B][group]."""
    *batch, height, width = values[0].type.shape
    piece, side = (height, width)[k_axis], (height, width)[1 - k_axis]
    k, group, axis = piece * len(values), kind.group, len(batch) + k_axis
    other = len(batch) + 1 - k_axis
    strides = (group, 1) if k_axis else (1, group)
    out = s.alloc((*batch, *((side, k) if k_axis else (k, side))), kind.packed, (*_batches(batch, side * k), *strides), panel=(axis, group, side * group))
    # Neighbours in memory are lanes: those along K go to one place, those of the other dimension `group` apart.
    beside = src is not None and poly_const(src.steps[1 - k_axis]) == 1 or src is None and k_axis == 0
    with captured(s) as steps:
        for u, x in enumerate(values):
            part = replace(s.view(out, u * piece * side, x.type.shape, out.strides), panel=out.panel)
            s.fill(part, x, vdim=other if beside else axis, lanes=None if beside else group, why="blocks of a product's operand")
    return Operand("blocks", out, tuple(steps))


def _batches(batch, size: int) -> tuple[int, ...]:
    """The strides of a batch's dimensions whose matrices take `size` elements each."""
    return tuple(n * size for n in row_major(batch))


def _why_packed(src: Source | None, v: Value, kind: Kind) -> str:
    if src is None:
        return "it is no plain load"
    if v.type.elem != kind.left:
        return f"{v.type.elem} is multiplied as {kind.left}"
    return "its rows are not contiguous" if poly_const(src.steps[1]) != 1 else "its mask is not a plain bound"


def _either(s: Schedule, out: Buffer, holds: bool | None, pack, how: str, **more) -> Operand:
    """An operand that is `how` where a condition holds, else packed into `out`."""
    if holds:
        return Operand(how, out, **more)
    if holds is not None:
        with captured(s) as steps:
            pack()
        return Operand("packed", out, tuple(steps), **more)
    with apart(s), captured(s) as steps:
        pack()
    return Operand(how, out, tuple(steps), only_if=True, **more)


# --- B: panels -------------------------------------------------------------------------------------------------------


def panels(s: Schedule, values: list[Value], src: Source | None, kind: Kind, width: int, direct: bool = False, strip: int = 0) -> Operand:
    """B in panels of `width` columns, each [K / group][width][group]. `values`: its pieces along K; `src`: the load that they are. A batch
    follows the other. direct: so few rows of A go by that panels may as well be read where they lie; strip: so many that the first ones, this many, may put them there (0: they may not)."""
    if kind.blocks:
        return _blocks(s, values, kind, src, 0)
    *batch, piece, n = values[0].type.shape
    k = piece * len(values)
    lanes = s.target.lanes(ir.bits_of(REGISTER[kind.acc]))
    axis, group = len(batch) + 1, kind.group
    out = s.alloc((*batch, k, n), kind.packed, (*_batches(batch, k * n), width, group), panel=(axis, width, k * width))

    def pack():
        for u, x in enumerate(values):
            part = replace(s.view(out, u * piece * width, x.type.shape, out.strides), panel=out.panel)
            s.fill(part, x, vdim=axis, inner=axis - 1, unroll=max(1, width // lanes), group=group, why="panels of a product's operand")

    if _turnable(s, src, (k, n), kind.packed, (lanes * group, lanes)):
        return _either(s, out, src.is_given, pack, "turned")
    if src and (not src.is_given or len(values) > 1 or s.target.ahead or direct or strip) and src.exact and poly_const(src.steps[1]) == 1 and s.target.lanes(32) > 1:
        pitch = k + 64 // (ir.bits_of(REGISTER[kind.packed]) // 8)
        woven = s.alloc((strip, k), kind.packed, (pitch, 1), size=strip * pitch) if strip else None
        return _either(s, out, src.is_given, pack, "copied", direct=direct, woven=woven)
    return _either(s, out, False, pack, "packed")


def may_lie(values: list[Value], src: Source | None, kind: Kind) -> bool:
    """Are rows of B, where it was loaded from, as those of a panel are?"""
    if src is None or not src.exact or src.is_given is False or kind.by is not None or len(values) > 1 or poly_const(src.steps[1]) != 1:
        return False
    return values[0].type.elem == kind.packed == src.load.operands[0].type.pointee.elem


def _turnable(s: Schedule, src: Source | None, shape, packed: str, block: tuple[int, int]) -> bool:
    """Is the operand contiguous along its first dimension, and such that registers turn it, a block at a time?"""
    if src is None or not src.exact or not s.target.turns:
        return False
    elem = src.load.operands[0].type.pointee.elem
    fits = elem == packed or (packed, elem) in (("f32", "f16"), ("f32", "bf16"), ("i16", "i8"), ("i32", "i8"))
    short = SHORT * max(1, block[0] // block[1]) <= shape[0] < block[0]
    return (fits and (short or shape[0] % block[0] == 0) and shape[1] % block[1] == 0
            and poly_const(src.steps[0]) == 1 and poly_const(src.steps[1]) != 1)
