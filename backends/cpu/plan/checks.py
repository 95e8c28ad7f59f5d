"""What a checked kernel checks: which operations, and whose memory each of them may touch.

A check is a root of its own in front of the operation, in program order: a load is checked where it stands, for all its lanes, although what it loads is
computed where somebody needs it. So an access outside is never carried out: the program ends before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..llvm.elements import bytes_of
from ..ttir.ops import row
from ..ttir.types import Func, Op, Value, walk
from .finite import Finite

READ, WRITE, ATOMIC, INDEX, OVERFLOW, FINITE, LOOK = range(7)  # LOOK: an atomic operation that only reads
WORDS = ("reads", "writes", "updates", "indexes", "computes", "makes", "reads")
#: operation -> (access, position of its mask among the operands)
_ACCESSES = {"tt.load": (READ, 1), "tt.store": (WRITE, 2), "tt.atomic_rmw": (ATOMIC, 2), "tt.atomic_cas": (ATOMIC, None),
             "tt.atomic_load": (LOOK, 1), "tt.atomic_store": (ATOMIC, 2), "tt.atomic_poll": (LOOK, None)}
#: how Triton's front end spells the assertions of sanitize_overflow
_OVERFLOW = "overflow detected for operation"
#: sites that a race's report can tell apart
SITES = 126


@dataclass(frozen=True)
class Site:
    """One operation that is checked. number: from 1 up; arguments: positions of those whose memory it may touch, None where that is known when it
    runs; bytes: of an element; orders: what an atomic operation of one element puts in order: "acquire", "release"; waits: does a program perhaps wait
    for what is there: is it one element that a `while` loop reads again and again?"""

    number: int
    op: Op
    access: int
    arguments: tuple[int, ...] | None = None
    bytes: int = 0
    mask: Value | None = None
    orders: tuple[str, ...] = ()
    waits: bool = False

    @property
    def record(self) -> list:
        """What a launch's report says of it, as data."""
        v = self.op.operands[0]
        elem = str(v.type.pointee.elem) if v.type.pointee is not None else v.type.elem
        return [self.number, self.access, self.op.name, self.op.loc.file, self.op.loc.line, list(self.arguments or ()), self.arguments is None,
                self.bytes, elem, list(v.type.shape), self.mask is not None, str(self.op.attrs.get("message", ""))]


class Checks:
    """The checks of one kernel. kinds: as `checking.parse` writes them; asserts: does the launch ask for the kernel's own assertions? lazy: which
    operations are."""

    def __init__(self, func: Func, kinds: str, asserts: bool, lazy: Callable[[Op], bool]):
        self.kinds = frozenset(kinds.split(","))
        self.asserts = asserts
        self.sites: dict[Op, Site] = {}
        self.dropped: set[Op] = set()  # assertions that are there for nobody
        origins = Origins(func)
        memory = bool(self.kinds & {"bounds", "race", "uninit"})
        self.alone = False
        again = {op for loop in walk(func.body) if loop.name == "scf.while" for r in loop.regions for op in walk(r)}
        for op in walk(func.body):
            number = len(self.sites) + 1
            if op.name in _ACCESSES:
                access, at = _ACCESSES[op.name]
                ptr = op.operands[0]
                if op.attrs.get("isVolatile") and access == READ:  # how kernels wait for what an atomic operation of another one writes
                    access = LOOK
                one, atomic = not ptr.type.is_tensor, access in (ATOMIC, LOOK)
                self.alone |= one and atomic
                if memory:
                    mask = op.operands[at] if at is not None and len(op.operands) > at else None
                    self.sites[op] = Site(number, op, access, origins.of(ptr), bytes_of(ptr.type.pointee.elem), mask, _orders(op) if one and atomic else (),
                                          one and access != WRITE and op in again)
            elif op.name == "tt.gather" and "bounds" in self.kinds:
                self.sites[op] = Site(number, op, INDEX)
            elif op.name == "tt.assert" and "overflow" in self.kinds:
                if _OVERFLOW in str(op.attrs.get("message", "")):
                    self.sites[op] = Site(number, op, OVERFLOW)
                elif not asserts:
                    self.dropped.add(op)
        #: where NaN and infinities are looked for
        self.finite = Finite.of(func, lazy, origins.given, len(self.sites) + 1) if "nan" in self.kinds else None
        self.alone |= self.finite is not None  # what a program noted is in one place
        #: programs run one after the other: they may wait for each other, or what they do is put in order by that
        self.alone |= "race" in self.kinds
        #: bytes of memory that a race is looked for in at once: no access is narrower
        self.granule = min((s.bytes for s in self.sites.values() if s.bytes), default=1)

    @property
    def records(self) -> list[list]:
        """What reports say of the sites, as data."""
        out = [s.record for s in self.sites.values()]
        for site in (*self.finite.makers.values(), *self.finite.outs.values()) if self.finite is not None else ():
            op = site.op
            v = op.results[0] if op.results and op in self.finite.makers else op.operands[1]
            out.append([site.number, FINITE, op.name, op.loc.file, op.loc.line, [], False, 0, v.type.elem, list(v.type.shape), False, ""])
        return out

    @property
    def orders(self) -> bool:
        """Do atomic operations put what programs do in order?"""
        return any(s.orders for s in self.sites.values())


def _orders(op: Op) -> tuple[str, ...]:
    """What an atomic operation of one element, or a volatile load, puts in order. Whoever does not look at what was there acquires nothing."""
    if op.name == "tt.load":
        return ("acquire",)
    sem = op.attrs.get("sem", "acq_rel")
    read = not op.results or bool(op.results[0].uses)
    return tuple(x for x in {"acquire": ("acquire",), "release": ("release",), "acq_rel": ("acquire", "release")}.get(sem, ())
                 if x == "release" or read)


def exact_result(cond: Value) -> Value | None:
    """The result in 64 bits whose range an assertion compares: (x <= most) & (x >= least)."""
    op = cond.op
    if op is None or op.name != "arith.andi" or any(o.op is None or o.op.name != "arith.cmpi" for o in op.operands):
        return None
    one, other = (o.op.operands[0] for o in op.operands)
    return one if one is other and one.type.elem == "i64" else None


class Origins:
    """From which arguments a kernel's pointers come."""

    def __init__(self, func: Func):
        self._place = {v: n for n, v in enumerate(func.args)}
        self.given: dict[Value, list[Value]] = {}  # block argument, or result of a region's operation -> what it may be
        for op in walk(func.body):
            self._note(op)
        _edges(func.body, self.given)

    def _note(self, op: Op):
        given = self.given
        for r in op.regions:
            _edges(r, given)
        if op.name == "scf.for":
            block = op.regions[0].block
            for arg, init, y, res in zip(block.args[1:], op.operands[3:], block.ops[-1].operands, op.results):
                given[arg] = given[res] = [init, y]
        elif op.name == "scf.if":
            for n, res in enumerate(op.results):
                given[res] = [r.block.ops[-1].operands[n] for r in op.regions]
        elif op.name == "scf.while":
            before, after = (r.block for r in op.regions)
            for arg, init, y in zip(before.args, op.operands, after.ops[-1].operands):
                given[arg] = [init, y]
            for arg, res, c in zip(after.args, op.results, before.ops[-1].operands[1:]):
                given[arg] = given[res] = [c]
        elif op.name == "tt.call" and op.regions:
            ends = [o for block in op.regions[0].blocks for o in block.ops if o.name == "tt.return"]
            for n, res in enumerate(op.results):
                given[res] = [o.operands[n] for o in ends]

    def of(self, v: Value) -> tuple[int, ...] | None:
        """The positions of the arguments that a pointer may be derived from; None where it may be another one."""
        out, seen, stack = set(), set(), [v]
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self._place:
                out.add(self._place[v])
            elif v in self.given:
                stack += self.given[v]
            elif v.op is None or v.op.name == "tt.load":
                return None
            elif row(v.op).pointer:
                stack.append(v.op.operands[0])
            else:
                pointers = [o for o in v.op.operands if o.type.elem == "ptr"]
                if not pointers:
                    return None
                stack += pointers
        return tuple(sorted(out)) or None


def _edges(region, given: dict[Value, list[Value]]):
    """What the blocks of a region are given by those that branch to them."""
    blocks = {b.label: b for b in region.blocks[1:]}
    for block in region.blocks:
        for op in block.ops:
            for label, values in op.successors:
                for arg, v in zip(blocks[label].args if label in blocks else (), values):
                    given.setdefault(arg, []).append(v)
