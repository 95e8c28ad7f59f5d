"""The table of operations: one row for each TTIR operation that the compiler takes, with what it knows of it.

Analyses ask an operation's row, so that an operation like another one is treated like it everywhere. Code is made by the rule of the same
name (a function in `emit/element`, `emit/root` or `emit/product`; `emit/rules.py` holds rows and rules together). To add an operation: a row
here and a function there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from .types import Op


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

    `cost`: rough cost of computing one element again, in simple vector operations; 0 where it is part of an address or a constant.
    `heavy`: becomes a polynomial, whose terms take many registers at once.
    `renames(op, dims)`: the index of the operand's element that stands at index `dims` of the result (a dimension of the nest, or -1 for the
    first element), or None where no renaming says it.
    `view`: the result holds operand 0's elements, the same ones wherever it is computed: two views of equal things are equal.
    `pointer`: a result that is a pointer is derived from operand 0.
    `address`: takes part in computing addresses and never in computing floats.
    `reads`, `writes`: memory that others see.
    `region_return`: ends a region that combines elements, and hands out its results.
    """

    name: str
    kind: Kind
    cost: int = 1
    heavy: bool = False
    renames: Callable[[Op, tuple[int, ...]], tuple[int, ...] | None] | None = None
    view: bool = False
    pointer: bool = False
    address: bool = False
    reads: bool = False
    writes: bool = False
    region_return: bool = False

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


# --- the table -------------------------------------------------------------------------------------------------------


def _table(*rows: Row) -> dict[str, Row]:
    out = {}
    for r in rows:
        if r.name in out:
            raise ValueError(f"two rows for {r.name}")
        out[r.name] = r
    return out


def _alike(dialect: str, names: str, row: Row) -> list[Row]:
    """A row for each of the dialect's operations `names` (separated by blanks), which differ in nothing but the rule."""
    return [replace(row, name=f"{dialect}.{n}") for n in names.split()]


def _math(name: str, cost: int, heavy=False) -> Row:
    return Row(f"math.{name}", Kind.ELEMENTWISE, cost=cost, heavy=heavy)


_ELEMENTWISE = Row("", Kind.ELEMENTWISE)
_DIVISION = Row("", Kind.ELEMENTWISE, cost=16)
_ROOT = Row("", Kind.ROOT)
_SCALAR = Row("", Kind.SCALAR)
_ATOMIC = Row("", Kind.ROOT, reads=True, writes=True)
_TERMINATOR = Row("", Kind.TERMINATOR)
_RETURN = Row("", Kind.TERMINATOR, region_return=True)

TABLE: dict[str, Row] = _table(
    Row("arith.constant", Kind.ELEMENTWISE, cost=0),
    Row("ub.poison", Kind.ELEMENTWISE),
    # numbers
    *_alike("arith", "addi subi muli andi ori xori shli shrsi shrui maxsi minsi maxui minui ceildivsi floordivsi", _ELEMENTWISE),
    *_alike("arith", "divsi remsi divui remui", _DIVISION),
    *_alike("arith", "addf subf mulf negf maxnumf minnumf maximumf minimumf", _ELEMENTWISE),
    Row("arith.divf", Kind.ELEMENTWISE, cost=4),
    Row("arith.remf", Kind.ELEMENTWISE, cost=40),
    Row("tt.precise_divf", Kind.ELEMENTWISE, cost=6),
    Row("tt.precise_sqrt", Kind.ELEMENTWISE, cost=6),
    Row("tt.mulhiui", Kind.ELEMENTWISE, cost=3),
    *_alike("arith", "cmpi cmpf select", _ELEMENTWISE),
    *_alike("tt", "clampf approx_divf", _ELEMENTWISE),
    # other types
    *_alike("arith", "extsi extui trunci extf truncf sitofp uitofp fptosi fptoui bitcast index_cast index_castui", _ELEMENTWISE),
    *_alike("tt", "fp_to_fp ptr_to_int int_to_ptr", _ELEMENTWISE),
    Row("tt.bitcast", Kind.ELEMENTWISE, pointer=True),
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
    *_alike("math", "absf absi floor ceil trunc round roundeven fma copysign isnan isinf isfinite ctlz cttz ctpop", _ELEMENTWISE),
    *_alike("math", "acos acosh asin asinh atan atan2 atanh cbrt cosh erfc expm1 log10 log1p sinh tan powf fpowi", _ELEMENTWISE),
    Row("tt.extern_elementwise", Kind.ELEMENTWISE, cost=30, heavy=True),
    Row("tt.elementwise_inline_asm", Kind.ELEMENTWISE),
    # indices and addresses
    Row("tt.addptr", Kind.ELEMENTWISE, pointer=True, address=True),
    Row("tt.make_range", Kind.SOURCE, cost=0, address=True),
    Row("tt.splat", Kind.SOURCE, cost=0, view=True, pointer=True, address=True),
    Row("tt.expand_dims", Kind.RENAME, cost=0, renames=expand_dims, view=True, pointer=True, address=True),
    Row("tt.broadcast", Kind.RENAME, cost=0, renames=broadcast, view=True, pointer=True, address=True),
    Row("tt.trans", Kind.RENAME, cost=0, renames=trans, view=True, pointer=True, address=True),
    Row("tt.reshape", Kind.RENAME, cost=0, renames=reshape, pointer=True),
    Row("tt.join", Kind.SOURCE),
    *_alike("tt", "unsplat split cat gather histogram", _ROOT),
    # memory
    Row("tt.load", Kind.SOURCE, reads=True),
    Row("tt.store", Kind.ROOT, writes=True),
    *_alike("tt", "atomic_rmw atomic_cas atomic_load atomic_store atomic_poll", _ATOMIC),
    # whole tensors
    *_alike("tt", "reduce scan map_elementwise dot dot_scaled", _ROOT),
    *_alike("tt", "reduce.return scan.return map_elementwise.return", _RETURN),
    # programs and control
    *_alike("tt", "get_program_id get_num_programs", _SCALAR),
    *_alike("scf", "for if while", Row("", Kind.CONTROL)),
    Row("tt.call", Kind.CONTROL),
    *_alike("scf", "yield condition", _TERMINATOR),
    *_alike("cf", "br cond_br", _TERMINATOR),
    Row("tt.return", Kind.TERMINATOR),
    # other
    *_alike("tt", "print assert", _ROOT),
    *_alike("tt", "grid_dependency_wait grid_dependency_launch_dependents", _SCALAR),
    *_alike("gpu", "barrier", _SCALAR),
    *_alike("ttg", "barrier", _SCALAR),
    *_alike("llvm", "intr.assume", _SCALAR),
)

_UNKNOWN = Row("", Kind.ROOT)


def row(op: Op | str) -> Row:
    """The row of an operation (or of its name). One that has none is refused where code is made for it; until then it is an expensive root."""
    return TABLE.get(op if isinstance(op, str) else op.name, _UNKNOWN)
