"""Exchanges of neighbours, which sorts, top-k and flips are made of, as operations on rows.

Triton's `tl.sort` reshapes its operand to 2 x 2 x ... x 2 and takes `x ^ xor_sum(x, axis)` as each element's partner along an axis; Inductor's reshapes to n x 2 x m and takes the left and
the right partner as sums over the 2, one of both multiplied by 0. Here each of them becomes a `triport.pick`: element i of its result is element `(i & ~clear) ^ flip` of its operand, where
i counts elements in row-major order. What is computed between exchanges is computed in the shape that the operand was reshaped from: neighbours stay neighbours, a vector holds whole
groups of them, and an exchange within one is a shuffle. A top-k's maximum of two neighbours is that of two `triport.half`, of the first ones and of the second ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .ops import Kind, row
from .types import Block, Func, Op, Region, Type, Value, made, walk


class _Exchange(NamedTuple):
    """`value` with neighbours along `axis` exchanged (flip), or the first one of both in both places (clear), or the second one (clear and flip). casts: what becomes of it, name and
    element type."""

    value: Value
    axis: int
    clear: bool
    flip: bool
    casts: tuple[tuple[str, str], ...] = ()


def settle(func: Func, width: Callable[[str], int]):
    """Make the exchanges of `func` picks. width: an element's type -> how many neighbours a chunk holds. A pick's attributes: "clear" and "flip", masks of an element's number, and
    "width", the neighbours in a chunk; a half's, whose element i is its operand's i // stride * 2 * stride + second * stride + i % stride: "stride", "second" and "width"."""
    found = {op: exchange for op in walk(func.body) if (exchange := _partner(op) or _side(op)) is not None}
    if found:
        _Rows(func, found, width).run()


# --- what is an exchange ----------------------------------------------------------------------------------------------


def _through(v: Value, *names: str) -> list[Op] | None:
    """The operations that `v` is made by, the last one first, if they are so called and nobody else reads what is between them."""
    chain = []
    for name in names:
        if v.op is None or v.op.name != name or (chain and len(v.uses) != 1):
            return None
        chain.append(v.op)
        v = v.op.operands[0]
    return chain


def _sum_of_two(v: Value, combine: str) -> tuple[Op, list[Op]] | None:
    """(the reduction of two elements by `combine` that `v` repeats along that axis, the cast between), or None."""
    for between in ((), ("arith.trunci",)):
        chain = _through(v, "tt.broadcast", "tt.expand_dims", *between, "tt.reduce")
        if chain is None:
            continue
        reduce, body = chain[-1], chain[-1].regions[0].block.ops
        axis = reduce.attrs["axis"]
        fine = len(reduce.operands) == 1 and reduce.operands[0].type.shape[axis] == 2 and chain[1].attrs["axis"] == axis
        if fine and len(body) == 2 and body[0].name == combine and set(body[0].operands) == set(reduce.regions[0].block.args) and body[1].operands == [body[0].result]:
            return reduce, chain[2:-1]
    return None


def _partner(op: Op) -> _Exchange | None:
    """x ^ broadcast(xor_sum(x, axis))."""
    if op.name != "arith.xori" or not op.result.type.is_tensor:
        return None
    x, other = op.operands
    found = _sum_of_two(other, "arith.xori")
    if found is None or found[1] or found[0].operands[0] is not x or len(other.uses) != 1:
        return None
    elem, value = x.type.elem, x
    while value.op is not None and value.op.name == "tt.bitcast" and value.op.operands[0].type.elem not in ("i1", "ptr"):
        value = value.op.operands[0]
    return _Exchange(value, found[0].attrs["axis"], False, True, () if value.type.elem == elem else (("tt.bitcast", elem),))


def _side(op: Op) -> _Exchange | None:
    """broadcast(sum(x * side, axis)), where side is 1, 0 or 0, 1 along the axis: integers only, for which all of that is exact."""
    found = _sum_of_two(op.result, "arith.addi") if op.name == "tt.broadcast" and op.result.type.is_tensor else None
    if found is None:
        return None
    (reduce, cut), v, casts = found, found[0].operands[0], []
    if v.op is not None and v.op.name in ("arith.extsi", "arith.extui"):
        casts.append((v.op.name, v.type.elem))
        v = v.op.operands[0]
    if v.op is None or v.op.name != "arith.muli":
        return None
    casts += [(c.name, c.result.type.elem) for c in cut]
    axis = reduce.attrs["axis"]
    if v.type.shape != op.result.type.shape:  # one sum for more than the two
        return None
    for x, side in (v.op.operands, reversed(v.op.operands)):
        sides = [_number(side, axis, i) for i in (0, 1)]
        if sides in ([1, 0], [0, 1]):
            return _Exchange(x, axis, True, sides == [0, 1], tuple(casts))
    return None


def _number(v: Value, axis: int, i: int, depth: int = 16) -> int | None:
    """An integer tensor's element at index i of `axis`, if it is the same at all others' indices; None where nobody knows."""
    op = v.op
    if op is None or not depth:
        return None
    if op.name == "arith.constant":
        return None if isinstance(op.attrs["value"], (list, tuple)) else int(op.attrs["value"])
    if op.name == "arith.subi":
        a, b = (_number(o, axis, i, depth - 1) for o in op.operands)
        return None if a is None or b is None or abs(a - b) > 1 else a - b
    if op.name in ("arith.trunci", "arith.extsi", "arith.extui", "tt.broadcast"):
        if op.name == "tt.broadcast" and v.type.shape[axis] != op.operands[0].type.shape[axis]:
            return None
        x = _number(op.operands[0], axis, i, depth - 1)
        return x if x is not None and (0 <= x <= 1) and op.operands[0].type.elem != "i1" else None
    steps = _two(v)
    return None if steps is None or v.type.shape[axis] != 2 else steps + i


def _two(v: Value) -> int | None:
    """Where a range of two starts that `v` is, in any shape; None for what is none."""
    while v.op is not None and v.op.name in ("tt.reshape", "tt.expand_dims") and v.type.numel == 2:
        v = v.op.operands[0]
    return v.op.attrs["start"] if v.op is not None and v.op.name == "tt.make_range" and v.type.numel == 2 else None


# --- the kernel in rows -----------------------------------------------------------------------------------------------


class _Rows:
    """A kernel on its way. shapes: of exchanges -> the shape of what they are reshaped from; of: (value, the shape that it is of or broadcast to) -> that value in rows; made: what is
    computed from exchanges; back: values in rows -> the same in their own shape."""

    def __init__(self, func: Func, found: dict[Op, _Exchange], width: Callable[[str], int]):
        self.func, self.found, self.width = func, found, width
        self.after: dict[Op, list[Op]] = {}
        self.start: dict[Block, list[Op]] = {}
        self.of: dict[tuple[Value, tuple], Value] = {}
        self.made: set[Value] = set()
        self.back: dict[Value, Value] = {}
        self.picks: list[Op] = []
        self.shapes = {e.value.type.shape: None for e in found.values()}
        for op in walk(func.body):
            if op.name == "tt.reshape" and op.result.type.shape in self.shapes and self.shapes[op.result.type.shape] is None:
                self.shapes[op.result.type.shape] = self._rows_of(op)
        self.shapes = {shape: rows or (math.prod(shape),) for shape, rows in self.shapes.items()}

    def _rows_of(self, op: Op) -> tuple[int, ...] | None:
        """The shape that what is reshaped to an exchange's shape has, if neighbours are best left there."""
        source, shape = op.operands[0].type.shape, op.result.type.shape
        cube = all(n <= 2 for n in shape)
        if source in self.shapes or all(n <= 2 for n in source) or cube and source[-1] < self.width("f32"):
            return None
        return source

    def run(self):
        for op in list(walk(self.func.body)):
            self._operation(op)
        narrowest: dict[tuple, int] = {}
        for op in self.picks:
            shape, elem = op.result.type.shape, op.result.type.elem
            narrowest[shape] = min(narrowest.get(shape, shape[-1]), self.width(elem))
        for op in self.picks:
            op.attrs["width"] = narrowest[op.result.type.shape]
        _put(self.func.body, self.start, self.after)
        _clear(self.func.body)

    def _operation(self, op: Op):
        exchange = self.found.get(op)
        if exchange is not None:
            self._note(op.result, self._exchanged(op, exchange))
            return
        shape = op.results[0].type.shape if len(op.results) == 1 else ()
        tainted = [v for v in op.operands if v in self.made]
        if shape in self.shapes and tainted and _equal_lanes(op):
            self._note(op.result, self.rows(op.result, shape))
        elif op.name == "tt.reshape" and tainted:
            self._reshaped(op)
        elif tainted and _of_two(op):
            self._joined(op)
        else:
            for v in dict.fromkeys(v for v in (*tainted, *(v for _, vals in op.successors for v in vals if v in self.made))):
                _replace(op, v, self._own(v))

    def _note(self, v: Value, rows: Value):
        self.of[v, v.type.shape] = rows
        self.made.add(v)

    def _exchanged(self, op: Op, e: _Exchange) -> Value:
        shape = e.value.type.shape
        stride = math.prod(shape[e.axis + 1:])
        x = self.rows(e.value, shape)
        clear, flip = stride * e.clear, stride * e.flip
        if x.op is not None and x.op.name == "triport.pick":  # (i & ~clear) ^ flip of what is picked already
            within = x.op.attrs
            flip = (flip & ~within["clear"]) ^ within["flip"]
            clear |= within["clear"]
            x = x.op.operands[0]
        x = self._make(op, "triport.pick", [x], x.type, clear=clear, flip=flip)
        self.picks.append(x.op)
        for name, elem in e.casts:
            x = self._make(op, name, [x], Type(elem, x.type.shape))
        return x

    def _reshaped(self, op: Op):
        """A reshape of what is computed from exchanges."""
        v, out = op.operands[0], op.result
        x = self.of[v, v.type.shape]
        if x.type.shape == out.type.shape:
            for user in list(dict.fromkeys(out.uses)):
                _replace(user, out, x)
        else:
            _replace(op, v, x)
            if out.type.shape in self.shapes:
                self._note(out, self.rows(out, out.type.shape))

    def _joined(self, op: Op):
        """A reduction of two neighbours: its operation on all first ones and all second ones."""
        v, axis, combine = op.operands[0], op.attrs["axis"], op.regions[0].block.ops[0]
        shape, out = v.type.shape, op.result.type
        rows = self.shapes.setdefault(out.shape, (out.numel,))
        x, stride = self.of[v, shape], math.prod(shape[axis + 1:])
        halves = [self._make(op, "triport.half", [x], out.with_shape(rows), stride=stride, second=second) for second in (0, 1)]
        self.picks += [half.op for half in halves]
        self._note(op.result, self._make(op, combine.name, halves, out.with_shape(rows), **combine.attrs))

    def _own(self, v: Value) -> Value:
        """A value that is computed in rows, in its own shape."""
        if v not in self.back:
            x = self.of[v, v.type.shape]
            self.back[v] = self._make(x.op if x.op is not None else v.op, "tt.reshape", [x], v.type)
        return self.back[v]

    def rows(self, v: Value, shape: tuple[int, ...]) -> Value:
        """`v`, which is of `shape` or broadcast to it, in the shape of rows."""
        key = (v, shape)
        if key not in self.of:
            self.of[key] = self._in_rows(v, shape, Type(v.type.elem, self.shapes[shape], v.type.pointee))
        return self.of[key]

    def _in_rows(self, v: Value, shape, type: Type) -> Value:
        op, rows = v.op, type.shape
        if v in self.made and v.type.shape != shape:
            return self._repeated(self._own(v), shape, type)
        if op is not None and op.name == "tt.reshape" and v.type.shape == shape:
            x = op.operands[0]
            x = self.of.get((x, x.type.shape), x)
            return x if x.type.shape == rows else self._make(op, "tt.reshape", [x], type)
        if op is not None and op.name == "arith.constant" and not isinstance(op.attrs["value"], (list, tuple)):
            return self._make(op, op.name, [], type, **op.attrs)
        if op is not None and op.name == "tt.splat":
            return self._make(op, op.name, list(op.operands), type)
        if op is not None and op.name == "tt.broadcast":
            return self.rows(op.operands[0], shape)
        start = _two(v)
        if start is not None:
            axis = v.type.shape.index(2)
            return self._make(op, "triport.bit", [], type, start=start, bit=math.prod(shape[axis + 1:]))
        if op is not None and _equal_lanes(op) and len(v.type.shape) == len(shape):
            operands = [self.rows(o, shape) if o.type.is_tensor else o for o in op.operands]
            return self._make(op, op.name, operands, type, **op.attrs)
        return self._repeated(v, shape, type)

    def _repeated(self, v: Value, shape, type: Type) -> Value:
        """`v`, broadcast to `shape`, reshaped."""
        if v.type.shape != shape:
            v = self._make(v, "tt.broadcast", [v], Type(type.elem, shape, type.pointee))
        return self._make(v, "tt.reshape", [v], type)

    def _make(self, at: Op | Value, name: str, operands: list[Value], type: Type, **attrs) -> Value:
        """The result of a new operation behind `at`: an operation, or a value's definition."""
        where = self.start.setdefault(at.block, []) if isinstance(at, Value) and at.op is None else self.after.setdefault(at.op if isinstance(at, Value) else at, [])
        origin = at if isinstance(at, Op) else at.op
        label = f"{origin.results[0].name if origin is not None and origin.results else 'x'}.rows"
        op = made(name, operands, type, attrs, origin.loc if origin is not None else self.func.loc, at.block if isinstance(at, Op) or at.op is None else at.op.block, label)
        where.append(op)
        return op.result


def _of_two(op: Op) -> bool:
    """Does a reduction combine just two elements, by one operation?"""
    if op.name != "tt.reduce" or len(op.operands) != 1 or not op.result.type.is_tensor or op.operands[0].type.shape[op.attrs["axis"]] != 2:
        return False
    block = op.regions[0].block
    return len(op.regions[0].blocks) == 1 and len(block.ops) == 2 and _equal_lanes(block.ops[0]) and block.ops[0].operands == list(block.args)


def _equal_lanes(op: Op) -> bool:
    """Does each element of an operation's one result come from the operands' elements at its index, and from nothing else?"""
    return row(op).kind is Kind.ELEMENTWISE and len(op.results) == 1 and not op.regions and op.name not in ("arith.constant", "tt.elementwise_inline_asm")


def _replace(op: Op, old: Value, new: Value):
    """`op` reads `new` in place of `old`."""
    n = op.operands.count(old) + sum(vals.count(old) for _, vals in op.successors)
    op.operands = [new if v is old else v for v in op.operands]
    op.successors = [(label, [new if v is old else v for v in vals]) for label, vals in op.successors]
    for _ in range(n):
        old.uses.remove(op)
        new.uses.append(op)


def _put(region: Region, start: dict[Block, list[Op]], after: dict[Op, list[Op]]):
    """Put new operations at the start of blocks, and behind operations."""
    for block in region.blocks:
        ops, stack = [], [*reversed(block.ops), *reversed(start.get(block, ()))]
        while stack:
            op = stack.pop()
            ops.append(op)
            stack.extend(reversed(after.get(op, ())))
            for r in op.regions:
                _put(r, start, after)
        block.ops[:] = ops


def _clear(region: Region):
    """Take away what nobody reads any more, of what only computes."""
    for block in region.blocks:
        left = []
        for op in reversed(block.ops):
            if op.results and not any(r.uses for r in op.results) and _only_computes(op):
                for v in op.operands:
                    v.uses.remove(op)
                continue
            left.append(op)
            for r in op.regions:
                _clear(r)
        block.ops[:] = reversed(left)


def _only_computes(op: Op) -> bool:
    inside = [o for r in op.regions for o in walk(r)]
    return (op.name == "tt.reduce" or row(op).lazy and not row(op).reads) and all(row(o).kind is Kind.ELEMENTWISE or row(o).region_return for o in inside)
