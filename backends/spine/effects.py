"""Which of its pointer arguments a kernel reads and writes, and whether two of them may be one address.

A bundle's tensors come from C, so what may overlap has to be known before. Where a read and a written tensor have one address, results
are right if no program, and no turn of a loop, reads what another has written. That is proved here from the kernel's TTIR, or it is not
so: addresses are sums of program ids, loop counters and indices with coefficients, and such a sum is read as digits: with
`row * n + col` and `col < n`, equal addresses are equal rows. Whatever has another form counts as not proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cpu.llvm import ir
from ..cpu.ttir import reader
from ..cpu.plan.facts import Poly, poly, poly_add, poly_const, poly_mul, poly_of
from ..cpu.llvm.elements import memory_type
from ..cpu.ttir.ops import TABLE, Kind, row
from ..cpu.ttir.types import Op, Value, expand_calls, walk


class _NotASum(Exception):
    """A value that is no sum of program ids, loop counters and indices."""


@dataclass
class Sum:
    """base + coefficients x variables. A variable is ("pid", axis), ("index", dimension) or a loop (its `Op`: turns from 0 on)."""

    terms: dict = field(default_factory=dict)
    base: Poly = field(default_factory=dict)

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        terms = dict(self.terms)
        for a, c in other.terms.items():
            terms[a] = poly_add(terms.get(a, {}), c, sign)
        return Sum({a: c for a, c in terms.items() if c}, poly_add(self.base, other.base, sign))

    def times(self, p: Poly) -> Sum:
        return Sum({a: q for a, c in self.terms.items() if (q := poly_mul(c, p))}, poly_mul(self.base, p))


@dataclass
class Access:
    """A load or store: the element that it goes to (`at`, counted in elements of `width` bytes from its argument; None: no such sum),
    how long its dimensions are, and sums that its mask says are below zero."""

    op: Op
    at: Sum | None
    width: int
    shape: tuple[int, ...]
    below: list[Sum]


class Effects:
    """What a kernel does to the memory of its arguments. `reads`, `writes`: numbers of its runtime arguments."""

    def __init__(self, text: str):
        """text: the kernel's TTIR."""
        module = reader.parse(text)
        expand_calls(module)
        self.func = module.kernel
        self._everything = frozenset(n for n, a in enumerate(self.func.args) if a.type.elem == "ptr")
        self._fixed: dict[Value, bool] = {}
        self._roots: dict[Value, frozenset[int]] = {}
        self._follow()
        self._loads: list[tuple[frozenset[int], Op]] = []
        self._stores: list[tuple[frozenset[int], Op]] = []
        for op in walk(self.func.body):
            pointers = [v for v in op.operands if v.type.elem == "ptr" and not (op.name == "tt.store" and v is not op.operands[0])]
            for v in pointers:
                if op.name == "tt.load":
                    self._loads.append((self._points_to(v), op))
                elif row(op).writes or op.name not in TABLE:  # who knows what an unknown one does
                    self._stores.append((self._points_to(v), op))
                    if op.name != "tt.store":
                        self._loads.append((self._points_to(v), op))
        self.reads = frozenset().union(*(r for r, _ in self._loads))
        self.writes = frozenset().union(*(r for r, _ in self._stores))

    # -- which arguments

    def _points_to(self, v: Value) -> frozenset[int]:
        """The arguments that an address may come from: all, where it comes out of memory or out of numbers."""
        return self._roots.get(v) or self._everything

    def _follow(self):
        """`_roots`: for each value the arguments whose addresses go into it, until nothing is added."""
        roots = self._roots
        for n, a in enumerate(self.func.args):
            if n in self._everything:
                roots[a] = frozenset({n})
        changed = True

        def flow(to: Value, *sources: Value):
            nonlocal changed
            new = roots.get(to, frozenset()).union(*(roots.get(v, frozenset()) for v in sources))
            if new != roots.get(to, frozenset()):
                roots[to] = new
                changed = True

        while changed:
            changed = False
            for op in walk(self.func.body):
                ends = [r.blocks[-1].ops[-1].operands for r in op.regions if r.blocks and r.blocks[-1].ops]
                if op.name == "scf.for":
                    for arg, res, init, last in zip(op.regions[0].block.args[1:], op.results, op.operands[3:], ends[0]):
                        flow(arg, init, last)
                        flow(res, init, last)
                elif op.name == "scf.if":
                    for values in ends:
                        for res, v in zip(op.results, values):
                            flow(res, v)
                elif op.name != "tt.load":  # what is loaded is no address of an argument; if it is one at all it may be any
                    inner = [v for r in op.regions for o in walk(r) for v in o.operands] if op.regions else []
                    for v in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
                        flow(v, *op.operands, *inner)
                region = op.block.region
                for label, values in op.successors:
                    for arg, v in zip(next(b for b in region.blocks if b.label == label).args, values):
                        flow(arg, v)

    # -- equal addresses

    def may_coincide(self, read: int, written: int, open_axes: frozenset[str]) -> bool:
        """Are results right where the arguments `read`, which the kernel only reads, and `written` have one address? open_axes: the axes on
        which there may be more than one program."""
        loads = [op for roots, op in self._loads if read in roots]
        stores = [(roots, op) for roots, op in self._stores if written in roots]
        if any(op.name != "tt.store" or len(roots) != 1 for roots, op in stores):
            return False
        if any(op.name != "tt.load" or roots != {read} for roots, op in self._loads if read in roots):
            return False
        stored = [self._access(op, open_axes) for _, op in stores]
        loaded = [self._access(op, open_axes) for op in loads]
        return all(self._in_order(x, y, open_axes) for x in loaded for y in stored)

    def _in_order(self, load: Access, store: Access, open_axes: frozenset[str]) -> bool:
        """Does an element that both go to belong to one program, and to one turn of each loop around both, and is it loaded there first?"""
        if load.at is None or store.at is None or load.width != store.width:
            return False
        to_load, to_store = _path(load.op), _path(store.op)
        if to_load is None or to_store is None:
            return False
        common = 0
        while common < min(len(to_load), len(to_store)) and to_load[common][0] is to_store[common][0]:
            common += 1
            if to_load[common - 1][1] is not to_store[common - 1][1]:
                break
        block, first = to_load[common - 1]
        second = to_store[common - 1][1]
        if first is second:  # in two branches, of which one is taken
            if first.name != "scf.if":
                return False
        elif block.ops.index(first) > block.ops.index(second):
            return False
        loops = [op for _, op in to_load[:common - 1] if op.name == "scf.for"]
        wanted = {("pid", axis) for axis in open_axes} | set(loops)
        one, other = Sum(load.at.terms, load.at.base), Sum(store.at.terms, store.at.base)
        both = {m: c for m, c in one.base.items() if other.base.get(m) == c}
        one, other = one.plus(Sum({}, both), -1), other.plus(Sum({}, both), -1)
        return _agree(one, other, wanted, load, store)

    def _access(self, op: Op, open_axes: frozenset[str]) -> Access:
        ptr = op.operands[0]
        mask = next(iter(op.operands[1 if op.name == "tt.load" else 2:]), None)
        dims = tuple(range(len(ptr.type.shape)))
        width = ir.bits_of(memory_type(ptr.type.pointee.elem)) // 8
        try:
            at = self._sum(ptr, dims, open_axes, width)
        except _NotASum:
            at = None
        return Access(op, at, width, ptr.type.shape, self._below(mask, dims, open_axes) if mask is not None else [])

    def _sum(self, v: Value, dims, axes: frozenset[str], width: int = 0) -> Sum:
        """A value at the indices `dims` (of a tensor: an index variable's number for each dimension) as a sum; of pointers: elements of `width`
        bytes from the argument. Address arithmetic is taken not to wrap, as the compiler takes it."""
        op = v.op
        if v.type.elem not in ("ptr", "i32", "i64"):  # narrower numbers wrap
            raise _NotASum
        if v in self.func.args:
            return Sum() if v.type.elem == "ptr" else Sum({}, poly_of(v))
        if op is None:
            loop = v.block.region.op
            if loop is not None and loop.name == "scf.for" and v is loop.regions[0].block.args[0] and not loop.attrs.get("unsigned"):
                low, step = (self._sum(loop.operands[k], (), axes) for k in (0, 2))
                if not step.terms:
                    return low.plus(Sum({loop: step.base}))
            raise _NotASum
        name = op.name
        if name == "arith.constant":
            if isinstance(op.attrs["value"], int):
                return Sum({}, poly(int(op.attrs["value"])))
        elif name == "tt.get_program_id":
            axis = op.attrs["axis"]
            return Sum({("pid", axis): poly(1)}) if axis in axes else Sum()
        elif name == "tt.make_range":
            start = int(op.attrs["start"])
            return Sum({("index", dims[0]): poly(1)} if v.type.shape[0] > 1 else {}, poly(start))
        elif name == "tt.splat":
            return self._sum(op.operands[0], (), axes, width)
        elif name == "tt.expand_dims":
            axis = op.attrs["axis"]
            return self._sum(op.operands[0], dims[:axis] + dims[axis + 1:], axes, width)
        elif name == "tt.broadcast":
            return self._sum(op.operands[0], dims, axes, width)  # a dimension of length 1 adds nothing: `make_range`
        elif name == "arith.extsi":
            return self._sum(op.operands[0], dims, axes)
        elif name in ("arith.addi", "arith.subi"):
            x, y = (self._sum(o, dims, axes) for o in op.operands)
            return x.plus(y, 1 if name == "arith.addi" else -1)
        elif name == "arith.muli":
            x, y = (self._sum(o, dims, axes) for o in op.operands)
            if not x.terms or not y.terms:
                return x.times(y.base) if not y.terms else y.times(x.base)
        elif name == "tt.addptr":
            if ir.bits_of(memory_type(v.type.pointee.elem)) // 8 == width:
                return self._sum(op.operands[0], dims, axes, width).plus(self._sum(op.operands[1], dims, axes))
        if v.type.elem != "ptr" and not v.type.is_tensor and self._is_fixed(v):
            return Sum({}, poly_of(v))
        raise _NotASum

    def _is_fixed(self, v: Value) -> bool:
        """Is a scalar the same in every program and turn: computed from arguments alone?"""
        if v not in self._fixed:
            op = v.op
            self._fixed[v] = v in self.func.args if op is None else op.name in ("arith.constant", "tt.get_num_programs") or (
                row(op).kind is Kind.ELEMENTWISE and not op.regions and all(map(self._is_fixed, op.operands)))
        return self._fixed[v]

    def _below(self, mask: Value, dims, axes) -> list[Sum]:
        """Sums that are below zero wherever the mask holds."""
        op = mask.op
        if op is None:
            return []
        if op.name == "arith.andi":
            return [s for o in op.operands for s in self._below(o, dims, axes)]
        if op.name == "tt.splat":
            return self._below(op.operands[0], (), axes)
        if op.name == "tt.broadcast":
            return self._below(op.operands[0], dims, axes)
        if op.name == "tt.expand_dims":
            axis = op.attrs["axis"]
            return self._below(op.operands[0], dims[:axis] + dims[axis + 1:], axes)
        if op.name == "arith.cmpi" and op.attrs["predicate"] in ("slt", "sle", "sgt", "sge"):
            try:
                x, y = (self._sum(o, dims, axes) for o in op.operands)
            except _NotASum:
                return []
            lower_, upper = (x, y) if op.attrs["predicate"] in ("slt", "sle") else (y, x)
            return [lower_.plus(upper, -1).plus(Sum({}, poly(1 if op.attrs["predicate"] in ("sle", "sge") else 0)), -1)]
        return []


def _path(op: Op) -> list | None:
    """(block, the operation in it that holds `op`) from the kernel's body inwards; None where control flow other than loops and branches is
    on the way."""
    out = []
    while op is not None:
        region = op.block.region
        if len(region.blocks) != 1 or (region.op is not None and region.op.name not in ("scf.for", "scf.if")):
            return None
        out.append((op.block, op))
        op = region.op
    return out[::-1]


def _agree(x: Sum, y: Sum, wanted: set, one: Access, other: Access) -> bool:
    """Where x of an access and y of another are equal, are all `wanted` variables equal? Each sum is split into a high part, of multiples of
    some C, and a low part in 0 .. C - 1: then both parts are equal."""
    if not wanted:
        return True
    if not all(a in x.terms and a in y.terms for a in wanted):
        return False
    if x.terms.keys() == y.terms.keys() == wanted and len(wanted) == 1 and x.terms == y.terms and x.base == y.base:
        if poly_const(next(iter(x.terms.values()))) is not None:
            return True
    for c in [c for c in x.terms.values() if len(c) == 1]:
        x_low, x_high = _split(x, c)
        y_low, y_high = _split(y, c)
        nothing = not x_low.terms and not y_low.terms and c == poly(1)
        if nothing or not (_is_digit(x_low, c, one) and _is_digit(y_low, c, other)):
            continue
        in_low = {a for a in wanted if a in x_low.terms}
        if _agree(x_high, y_high, wanted - in_low, one, other) and _agree(x_low, y_low, in_low, one, other):
            return True
    return False


def _split(x: Sum, c: Poly) -> tuple[Sum, Sum]:
    """(what of x is no multiple of c, the rest divided by c)."""
    low, high = Sum(), Sum()
    for m, k in x.base.items():
        q = _quotient({m: k}, c)
        if q is None:
            low.base[m] = k
        else:
            high.base |= q
    for a, p in x.terms.items():
        q = _quotient(p, c)
        if q is None:
            low.terms[a] = p
        else:
            high.terms[a] = q
    return low, high


def _quotient(p: Poly, c: Poly) -> Poly | None:
    """p / c, of a c that is one product; None where that is no polynomial."""
    (by, factor), out = next(iter(c.items())), {}
    for m, k in p.items():
        left = list(m)
        for s in by:
            if s not in left:
                return None
            left.remove(s)
        if k % factor:
            return None
        out[tuple(left)] = k // factor
    return out


def _is_digit(x: Sum, c: Poly, access: Access) -> bool:
    """Is x certainly in 0 .. c - 1?"""
    base, factors = poly_const(x.base), [poly_const(p) for p in x.terms.values()]
    if base is None or base < 0 or any(f is None or f <= 0 for f in factors):
        return False
    most = base
    for a, f in zip(x.terms, factors):
        if not (isinstance(a, tuple) and a[0] == "index"):
            most = None
            break
        most += f * (access.shape[a[1]] - 1)
    if most is not None and poly_const(c) is not None and most < poly_const(c):
        return True
    over = x.plus(Sum({}, c), -1)
    for below in access.below:  # x - c <= below < 0
        rest = over.plus(below, -1)
        if not rest.terms and (k := poly_const(rest.base)) is not None and k <= 0:
            return True
    return False
