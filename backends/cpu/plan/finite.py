"""Where a checked kernel looks for NaN and infinities: which operations may make infinities of finite numbers, or NaN of what is none, and which of those a store writes out.

Lanes that nobody stores hold anything: what stands behind a mask is computed, too. So what an operation made is only noted, in a *site* of its own, and
becomes a finding where a store writes something that is not finite: then the first noted operation on the way there is to blame, unless what was loaded on
that way was not finite already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..ttir.ops import row
from ..ttir.types import Func, Op, Value, walk

FLOATS = ("f16", "bf16", "f32", "f64")
#: roots that make floats; what they make is looked at behind them
_MAKERS = ("tt.dot", "tt.dot_scaled", "tt.reduce", "tt.scan", "tt.map_elementwise")
#: what a reduction or scan does that only chooses among what it is given
_CHOOSE = {"arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf", "triport.max", "triport.min", "arith.cmpf", "arith.cmpi", "arith.select", "arith.ori", "arith.andi", "arith.xori", "arith.constant"}
#: a float's bits may go on as an integer's for a while, as where neighbours change places
_BITCASTS = ("tt.bitcast", "arith.bitcast")
_STORES = {"tt.store": (1, 2), "tt.atomic_rmw": (1, 2), "tt.atomic_store": (1, 2)}


@dataclass(frozen=True)
class Maker:
    """An operation that may make what is not finite; number: of its site. loaded: it loads, and what it finds is nobody's fault here."""

    number: int
    op: Op
    loaded: bool

    @property
    def given(self) -> list[Value]:
        """The operands that are finite numbers where it makes an infinity, and no NaN where it makes one; of loads, sums and products nothing is asked. A scan's
        are those in the same place: what came before is not looked at."""
        op = self.op
        return [] if self.loaded or op.regions and op.name != "tt.scan" or op.name.startswith("tt.dot") else [o for o in op.operands if o.type.elem in FLOATS]

    @property
    def mask(self) -> Value | None:
        """Where it makes something at all, of a load."""
        return self.op.operands[1] if self.loaded and len(self.op.operands) > 1 else None


@dataclass(frozen=True)
class Out:
    """A store of floats; way: the sites on the way to it, in program order, those that load as negative numbers."""

    number: int
    op: Op
    value: Value
    mask: Value | None
    way: tuple[int, ...]


@dataclass
class Finite:
    """What one kernel looks at. first: the first number of a site."""

    makers: dict[Op, Maker] = field(default_factory=dict)
    outs: dict[Op, Out] = field(default_factory=dict)

    @classmethod
    def of(cls, func: Func, is_lazy: Callable[[Op], bool], given: dict[Value, list[Value]], first: int) -> Finite:
        """given: what values of blocks and regions may be (`checks.Origins`)."""
        out, combined = cls(), set()
        for op in walk(func.body):
            if row(op).region_return:
                combined |= set(op.block.ops)
        order = {}
        for op in walk(func.body):
            order[op] = len(order)
            if op in combined or not op.results or op.results[0].type.elem not in FLOATS or op.name == "arith.constant" or _chooses(op):
                continue
            if op.name == "tt.load" or op.name in _MAKERS or row(op).cost and not row(op).renames and (is_lazy(op) or not op.results[0].type.is_tensor) \
                    and not op.regions and any(o.type.elem in FLOATS for o in op.operands) and op.name not in ("arith.select", "tt.join"):
                out.makers[op] = Maker(first + len(out.makers), op, op.name == "tt.load")
        for op in walk(func.body):
            if op.name in _STORES and op.operands[1].type.elem in FLOATS:
                at, mask = _STORES[op.name]
                value = op.operands[at]
                way = sorted((order[m.op], -m.number if m.loaded else m.number) for m in out._before(value, given))
                out.outs[op] = Out(first + len(out.makers) + len(out.outs), op, value, op.operands[mask] if len(op.operands) > mask else None,
                                   tuple(number for _, number in way))
        return out

    def _before(self, v: Value, given) -> list[Maker]:
        """The makers that a value is computed from."""
        found, seen, stack = [], set(), [v]
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            stack += given.get(v, ())
            if v.op is not None:
                if v.op in self.makers:
                    found.append(self.makers[v.op])
                if v.op.name != "tt.load":
                    alike = FLOATS if v.type.elem in FLOATS else (v.type.elem,)
                    stack += [o for o in v.op.operands if o.type.elem in alike or o in given or v.op.name in _BITCASTS]
        return found


def _chooses(op: Op) -> bool:
    """Is it a reduction or scan that makes no numbers, as the largest of some?"""
    return op.name in ("tt.reduce", "tt.scan") and all(o.name in _CHOOSE or row(o).region_return for r in op.regions for o in walk(r))
