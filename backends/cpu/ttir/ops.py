"""The table of operations: one row for each TTIR operation that the compiler takes, with what it knows of it.

Analyses ask an operation's row, so that an operation like another one is treated like it everywhere. Code is made by the rule of the same
name (a function in `emit/element`, `emit/root` or `emit/product`; `emit/rules.py` holds rows and rules together). To add an operation: a row
here and a function there. A row's form says how Triton prints the operation (`forms.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from . import forms
from .types import Op, Type


class Kind(Enum):
    """When an operation is computed, and by which shape of rule (`emit/rules.py`)."""

    ELEMENTWISE = "elementwise"  # lazy: each element of the result comes from the operands' elements at the same index; scalars too
    RENAME = "rename"  # lazy: the operand's elements at other indices, which `Row.renames` tells
    SOURCE = "source"  # lazy: elements that depend on where in the nest they are
    SCALAR = "scalar"  # carried out where it stands, on scalars
    ROOT = "root"  # carried out where it stands
    CONTROL = "control"  # carried out where it stands: it runs regions
    TERMINATOR = "terminator"  # ends a block


LAZY = (Kind.ELEMENTWISE, Kind.RENAME, Kind.SOURCE)


@dataclass(frozen=True)
class Row:
    """What the compiler knows of the operation `name`.

    `form`: how it is written behind its name (`forms.py`).
    `types`: the types printed -> the types of the results, where these are not the ones behind an arrow nor, without an arrow, the last.
    `cost`: rough cost of computing one element again, in simple vector operations; 0 where it is part of an address or a constant.
    `heavy`: becomes a polynomial, whose terms take many registers at once.
    `renames(op, dims)`: the index of the operand's element that stands at index `dims` of the result (a dimension of the nest, or -1 for the
    first element), or None where no renaming says it.
    `view`: the result holds operand 0's elements, the same ones wherever it is computed: two views of equal things are equal.
    `pointer`: a result that is a pointer is derived from operand 0.
    `address`: takes part in computing addresses and never in computing floats.
    `reads`, `writes`: memory that others see.
    `region_return`: ends a region that combines elements, and hands out its results.
    `operands`, `elements`: how many operands it has, and the element types that they may have, all of one type and shape; () where it is not
    as simple as that. `tools/probes.py` tries each.
    """

    name: str
    kind: Kind
    form: str = "values attributes : types"
    types: Callable[[list[Type]], list[Type]] | None = None
    cost: int = 1
    heavy: bool = False
    renames: Callable[[Op, tuple[int, ...]], tuple[int, ...] | None] | None = None
    view: bool = False
    pointer: bool = False
    address: bool = False
    reads: bool = False
    writes: bool = False
    region_return: bool = False
    operands: int = 0
    elements: tuple[str, ...] = ()

    @property
    def lazy(self) -> bool:
        return self.kind in LAZY


# --- how indices are renamed -----------------------------------------------------------------------------------------


def expand_dims(op, dims):
    axis = op.attrs["axis"]
    return dims[:axis] + dims[axis + 1:]


def broadcast(op, dims):
    return tuple(-1 if n == 1 else d for n, d in zip(op.operands[0].type.shape, dims))


def trans(op, dims):
    out = [-1] * len(dims)
    for d, src in zip(dims, op.attrs["order"]):
        out[src] = d
    return tuple(out)


def reshape(op, dims):
    """Only dimensions of size 1 come and go: a renaming. Anything else needs its elements in memory (None)."""
    src, dst = op.operands[0].type.shape, op.result.type.shape
    if [n for n in src if n != 1] != [n for n in dst if n != 1]:
        return None
    rest = [d for n, d in zip(dst, dims) if n != 1]
    return tuple(rest.pop(0) if n != 1 else -1 for n in src)


# --- how it is written ------------------------------------------------------------------------------------------------

_ARROW = "values attributes : types -> results"
_CAST = "value attributes : types to results"
_ATOMIC = "sem:word , scope:word , values attributes : "


def _nothing(ts):
    return []


def _truth(ts):
    """i1 in the shape of the operands."""
    return [Type("i1", ts[0].shape)]


# --- the table -------------------------------------------------------------------------------------------------------


def table(*rows: Row) -> dict[str, Row]:
    out = {}
    for r in rows:
        if r.name in out:
            raise ValueError(f"two rows for {r.name}")
        out[r.name] = r
    return out


def _alike(dialect: str, names: str, row: Row) -> list[Row]:
    """A row for each of the dialect's operations `names` (separated by blanks), which differ in nothing but the rule."""
    return [replace(row, name=f"{dialect}.{n}") for n in names.split()]


_INTS, _FLOATS = ("i8", "i16", "i32", "i64"), ("f16", "bf16", "f32", "f64")
_BITS = ("i1", *_INTS)


def _numbers(operands: int, elements: tuple[str, ...], cost: int = 1, name: str = "", **facts) -> Row:
    """Numbers of one type and shape to numbers of that type."""
    return Row(name, Kind.ELEMENTWISE, operands=operands, elements=elements, cost=cost, **facts)


def _math(name: str, cost: int, heavy=False) -> Row:
    return _numbers(1, _FLOATS, cost, f"math.{name}", heavy=heavy)


def _view(name: str, renames=None, **facts) -> Row:
    """Elements of the one operand at other indices."""
    return Row(f"tt.{name}", Kind.RENAME if renames else Kind.SOURCE, _ARROW, cost=0, renames=renames, pointer=True, **facts)


def _atomic(name: str, form: str, types=None) -> Row:
    return Row(f"tt.{name}", Kind.ROOT, form, types, reads=True, writes=True)


_TO = Row("", Kind.ELEMENTWISE, _CAST)
_ROOT = Row("", Kind.ROOT, _ARROW)
_REGION = Row("", Kind.ROOT, forms.GENERIC)
_PROGRAM = Row("", Kind.SCALAR, "axis:word attributes : types")
_END = Row("", Kind.TERMINATOR, "attributes (? values : types ?)", _nothing)
_RETURN = replace(_END, region_return=True)
_OWN = Row("", Kind.CONTROL, forms.OWN)

TABLE: dict[str, Row] = table(
    Row("arith.constant", Kind.ELEMENTWISE, forms.OWN, cost=0),
    Row("ub.poison", Kind.ELEMENTWISE, "attributes : types"),
    # numbers
    *_alike("arith", "addi subi muli shli shrsi shrui ceildivsi floordivsi", _numbers(2, _INTS)),
    *_alike("arith", "andi ori xori maxsi minsi maxui minui", _numbers(2, _BITS)),
    *_alike("arith", "divsi remsi divui remui ceildivui", _numbers(2, _INTS, 16)),
    *_alike("arith", "addf subf mulf maxnumf minnumf maximumf minimumf", _numbers(2, _FLOATS)),
    _numbers(1, _FLOATS, name="arith.negf"),
    _numbers(2, _FLOATS, 4, "arith.divf"),
    _numbers(2, _FLOATS, 40, "arith.remf"),
    _numbers(2, ("f32", "f64"), 6, "tt.precise_divf"),
    _numbers(1, ("f32", "f64"), 6, "tt.precise_sqrt"),
    _numbers(2, ("f32",), name="tt.approx_divf"),
    _numbers(2, ("i32", "i64"), 3, "tt.mulhiui"),
    *_alike("arith", "cmpi cmpf", Row("", Kind.ELEMENTWISE, "predicate:word , values attributes : types", _truth)),
    Row("arith.select", Kind.ELEMENTWISE),
    Row("tt.clampf", Kind.ELEMENTWISE),
    # other types
    *_alike("arith", "extsi extui trunci extf truncf sitofp uitofp fptosi fptoui bitcast index_cast index_castui", _TO),
    *_alike("tt", "fp_to_fp ptr_to_int int_to_ptr", replace(_TO, form=_ARROW)),
    Row("tt.bitcast", Kind.ELEMENTWISE, _ARROW, pointer=True),
    # functions
    _math("exp", 12, heavy=True),
    _math("exp2", 10, heavy=True),
    _math("log", 14, heavy=True),
    _math("log2", 14, heavy=True),
    _math("sin", 20, heavy=True),
    _math("cos", 20, heavy=True),
    _math("tanh", 20, heavy=True),
    _math("erf", 24, heavy=True),
    _math("sqrt", 6),
    _math("rsqrt", 6),
    *_alike("math", "absf floor ceil trunc round roundeven", _numbers(1, _FLOATS)),
    *_alike("math", "acos acosh asin asinh atan atanh cbrt cosh erfc expm1 log10 log1p sinh tan", _numbers(1, _FLOATS, 30, heavy=True)),
    *_alike("math", "atan2 powf", _numbers(2, _FLOATS, 40, heavy=True)),
    _numbers(2, _FLOATS, name="math.copysign"),
    *_alike("math", "fma", _numbers(3, _FLOATS)),
    *_alike("math", "absi ctlz cttz ctpop", _numbers(1, _INTS)),
    *_alike("math", "isnan isinf isfinite", _numbers(1, _FLOATS, types=_truth)),
    Row("math.fpowi", Kind.ELEMENTWISE, types=lambda ts: ts[:1]),
    Row("tt.extern_elementwise", Kind.ELEMENTWISE, _ARROW, cost=30, heavy=True),
    Row("tt.elementwise_inline_asm", Kind.ELEMENTWISE, "asm:string attributes (? values : types ?) -> results"),
    # indices and addresses
    Row("tt.addptr", Kind.ELEMENTWISE, types=lambda ts: ts[:1], pointer=True, address=True),
    Row("tt.make_range", Kind.SOURCE, "attributes : types", cost=0, address=True),
    _view("splat", view=True, address=True),
    _view("expand_dims", expand_dims, view=True, address=True),
    _view("broadcast", broadcast, view=True, address=True),
    _view("trans", trans, view=True, address=True),
    replace(_view("reshape", reshape), form="value flags attributes : types -> results"),
    Row("tt.join", Kind.SOURCE, _ARROW),
    Row("tt.split", Kind.ROOT, _ARROW, lambda ts: ts * 2),  # the type of both
    Row("tt.unsplat", Kind.ROOT, "value attributes : types", lambda ts: [ts[0].scalar()]),
    *_alike("tt", "cat histogram", _ROOT),
    Row("tt.gather", Kind.ROOT, "value [ value ] attributes : types -> results"),
    # extremes that NaN goes through (`extremes.py` makes these)
    *_alike("triport", "max min", _numbers(2, ("f32", "f64"), 2)),
    # neighbours that change places, in rows (`exchanges.py` makes these; nobody writes them)
    Row("triport.pick", Kind.SOURCE),
    Row("triport.half", Kind.SOURCE),
    Row("triport.bit", Kind.SOURCE, cost=0),
    # memory
    Row("tt.load", Kind.SOURCE, types=lambda ts: [ts[0].pointee.with_shape(ts[0].shape)], reads=True),
    Row("tt.store", Kind.ROOT, types=_nothing, writes=True),
    _atomic("atomic_rmw", "kind:word , " + _ATOMIC + "types -> results"),
    _atomic("atomic_cas", _ATOMIC + "types -> results"),
    _atomic("atomic_load", _ATOMIC + "types -> results"),
    _atomic("atomic_store", _ATOMIC + "types", _nothing),
    _atomic("atomic_poll", "sem:word , scope:word , values (? timeout value ?) attributes : types -> results"),
    # whole tensors
    *_alike("tt", "reduce scan map_elementwise", _REGION),
    *_alike("tt", "reduce.return scan.return map_elementwise.return", _RETURN),
    Row("tt.dot", Kind.ROOT, _ARROW),
    Row("tt.dot_scaled", Kind.ROOT, "scaled , scaled , value attributes : types -> results"),
    # programs and control
    *_alike("tt", "get_program_id get_num_programs", _PROGRAM),
    *_alike("scf", "for if while", _OWN),
    Row("tt.call", Kind.CONTROL, "callee:symbol ( values ) attributes : types -> results"),
    *_alike("cf", "br cond_br", replace(_OWN, kind=Kind.TERMINATOR)),
    *_alike("scf", "yield", _END),
    *_alike("tt", "return", _END),
    Row("scf.condition", Kind.TERMINATOR, "( value ) attributes (? values : types ?)", _nothing),
    # other
    Row("tt.print", Kind.ROOT, "prefix:string attributes (? : values : types ?)", _nothing),
    Row("tt.assert", Kind.ROOT, "value , message:string attributes : types", _nothing),
    *_alike("tt", "grid_dependency_wait grid_dependency_launch_dependents", Row("", Kind.SCALAR, "attributes", _nothing)),
    *_alike("gpu", "barrier", Row("", Kind.SCALAR, "flags attributes", _nothing)),
    *_alike("ttg", "barrier", Row("", Kind.SCALAR, "flags attributes", _nothing)),
    Row("llvm.intr.assume", Kind.SCALAR, types=_nothing),
)

_UNKNOWN = Row("", Kind.ROOT)


def row(op: Op | str) -> Row:
    """The row of an operation (or of its name). One that has none is refused where code is made for it; until then it is an expensive root."""
    return TABLE.get(op if type(op) is str else op.name, _UNKNOWN)
