"""Operands of matrix products: which load each is, where it ends, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ttir.types import Op, Value
from .facts import Affine, Poly, expanded, poly, poly_add, poly_const, poly_key, poly_mul
from .lazy import renamed
from .records import Atom, NestPlan
from .schedule import Schedule
from .space import Space


@dataclass(frozen=True)
class End:
    """The index from which on an operand is zero along a dimension of `size`: the least of those at which a polynomial of `bases` stops
    being below 0 (or of none where an i1 does not hold). Equal keys mean equal values."""

    size: int
    bases: tuple[Poly | Value | bool, ...]

    @property
    def key(self) -> frozenset:
        return frozenset(b if isinstance(b, (Value, bool)) else poly_key(expanded(b)) for b in self.bases)

    @property
    def known(self) -> int | None:
        """The index, where it is one number."""
        return _known(self.bases[0], self.size) if len(self.bases) == 1 else None


def _known(base, size: int) -> int | None:
    if isinstance(base, bool):
        return size if base else 0
    if isinstance(base, Value):
        return None
    c = poly_const(base)
    return None if c is None else min(max(-c, 0), size)


@dataclass(frozen=True)
class Inside:
    """A range of indices lies within a size: 0 <= first and first + span <= end."""

    first: Poly
    span: int
    end: Poly

    @property
    def known(self) -> bool | None:
        first, end = poly_const(self.first), poly_const(self.end)
        above = None if first is None else first >= 0
        below = None if first is None or end is None else first + self.span <= end
        return False if False in (above, below) else True if above and below else None


def all_known(tests) -> bool | None:
    """Do all of the tests, each True, False or None (it depends), hold?"""
    tests = list(tests)
    return False if False in tests else None if None in tests else True


@dataclass(frozen=True)
class Source:
    """A load that an operand is, element for element: elements `base + row x steps[0] + column x steps[1]` from `origin`, zero
    from `limits` on (None: there is no limit). `exact`: nothing else masks it. All that where `given` holds: an index that is
    taken modulo a size, as kernels do to stay inside a matrix, is itself unless the block passes the end."""

    load: Op
    origin: Value
    base: Poly
    steps: tuple[Poly, Poly]
    limits: tuple[End | None, End | None]
    exact: bool
    shape: tuple[int, int]
    given: tuple[Inside, ...]
    along: int | None = None

    @property
    def is_given(self) -> bool | None:
        return all_known(i.known for i in self.given)


class Look:
    """What is found out of one product's operands; `requires`: what must hold for it."""

    def __init__(self, s: Schedule):
        self.s = s
        self.requires: list[tuple[Op, NestPlan, Atom]] = []

    def _ends(self, found, shape) -> tuple[End | None, End | None]:
        """For each of the last two dimensions where elements end, of what was `found` of them."""
        rank = len(shape)
        out = []
        for d in (rank - 2, rank - 1):
            end = End(shape[d], tuple(found[d])) if found.get(d) else None
            out.append(None if end is None or end.known == shape[d] else end)
        return tuple(out)

    def _limits(self, v: Value) -> tuple[End | None, End | None]:
        """For each of the last two dimensions of `v` where its elements end: from there on all are certainly +0 because they are masked
        off. None where nothing is known."""
        space = Space(self.s.known, v.type.shape)
        found: dict[int, list] = {}
        self._zeros(space, v, space.identity, found)
        return self._ends(found, v.type.shape)

    def _zeros(self, space: Space, v: Value, dims, found):
        op = v.op
        if op is None or v in self.s.buffers:
            return
        if op.name == "tt.load":
            if len(op.operands) > 1 and (len(op.operands) < 3 or is_zero(op.operands[2])):
                self._bounds(space, op.operands[1], dims, found)
        elif op.name in ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "tt.fp_to_fp"):
            self._zeros(space, op.operands[0], dims, found)
        elif op.name == "arith.select" and is_zero(op.operands[2]):
            self._bounds(space, op.operands[0], dims, found)
        else:
            mapped = renamed(op, dims)
            if mapped is not None:
                self._zeros(space, op.operands[0], mapped, found)

    def _bounds(self, space: Space, mask: Value, dims, found) -> bool:
        """Note in `found` (dimension -> polynomials p: false where index + p >= 0; or an i1) what `mask` is bounded by. Says whether that is all."""
        op = mask.op
        if not mask.type.is_tensor:
            found.setdefault(0, []).append(_truth(mask))
            return True
        if op is None or mask in self.s.buffers:
            return False
        whole = len(space.shape) - 2
        if op.name == "tt.splat":
            found.setdefault(whole, []).append(_truth(op.operands[0]))
            return True
        if op.name == "arith.constant" and not isinstance(op.attrs["value"], list):
            if not op.attrs["value"]:
                found.setdefault(whole, []).append(False)
            return True
        if op.name == "arith.andi":
            return all([self._bounds(space, o, dims, found) for o in op.operands])
        if op.name == "arith.cmpi":
            return self._bound(space, mask, dims, found)
        mapped = renamed(op, dims)
        return mapped is not None and self._bounds(space, op.operands[0], mapped, found)

    def _bound(self, space: Space, mask: Value, dims, found) -> bool:
        atoms = space.atoms([(mask, dims)], self.s.proved)
        if not atoms or len(atoms[0].coef) != 1:
            return False
        (d, p), = atoms[0].coef.items()
        if poly_const(p) != 1:  # a larger step might wrap in 32 bits, on purpose
            return False
        if any(c.bits == 64 for c in atoms[0].checks):
            return False  # numbers so large that a difference might wrap are no error: they are compared one by one
        self._must_not_wrap(space, atoms[0], mask.op)
        found.setdefault(d, []).append(atoms[0].base)
        return True

    def _must_not_wrap(self, space: Space, atom: Atom, op: Op):
        """A row or column number of a matrix that wraps would lie outside it: where one does, the launch raises."""
        s = self.s
        if atom.checks and (op, s.block) not in s.required:
            s.required.add((op, s.block))
            self.requires.append((op, NestPlan(space.shape, space.shape), atom))

    def source(self, v: Value) -> Source | None:
        """The load that matrix `v` is, element for element, if its address is affine."""
        s = self.s
        if len(v.type.shape) != 2:
            return None
        shape = v.type.shape
        space = Space(s.known, shape)
        dims = space.identity
        while v not in s.buffers and v.op is not None and v.op.name == "tt.trans":
            dims = renamed(v.op, dims)
            v = v.op.operands[0]
        op = v.op
        if op is None or op.name != "tt.load" or v in s.buffers or v.type.elem == "i1":
            return None
        aff, given = _without_wrapping(space, space.affine(op.operands[0], dims))
        if aff is None or aff.ptr is None or aff.ptr.type.is_tensor:
            return None
        found: dict[int, list] = {}
        exact = True
        if len(op.operands) > 1:
            exact = self._bounds(space, op.operands[1], dims, found) and (len(op.operands) < 3 or is_zero(op.operands[2]))
        return Source(op, aff.ptr, aff.base, (aff.coef.get(0, {}), aff.coef.get(1, {})), self._ends(found, shape), exact, shape, given)

    def joined(self, values: list[Value], along: int) -> Source | None:
        """The one load that `values`, pieces of an operand that follow each other along dimension `along`, are together; None where they are
        not a load each, or do not follow each other in memory and in their masks."""
        pieces = [self.source(v) for v in values]
        if None in pieces or len(pieces) == 1:
            return None if None in pieces else pieces[0]
        first, size = pieces[0], values[0].type.shape[along]
        if not all(_follows(x, first, u * size, along) for u, x in enumerate(pieces[1:], 1)):
            return None
        limits = list(first.limits)
        if limits[along]:
            limits[along] = replace(limits[along], size=size * len(values))
        given: list[Inside] = []  # a later piece may wrap where the first one does not
        for i in (i for x in pieces for i in x.given):
            if i not in given:
                given.append(i)
        return replace(first, limits=tuple(limits), along=along, given=tuple(given))

    def ends(self, values: list[Value], src: Source | None) -> tuple[End | None, End | None]:
        """Where an operand in pieces ends; `src`: what they are together."""
        if src and src.exact:
            return src.limits
        return self._limits(values[0]) if len(values) == 1 else (None, None)


def _truth(v: Value) -> Value | bool:
    """A scalar i1: what it is, where that is known."""
    return bool(v.op.attrs["value"]) if v.op is not None and v.op.name == "arith.constant" else v


def is_zero(v: Value) -> bool:
    """Is `v` a constant, all of whose elements are (not minus) zero?"""
    while v.op is not None and v.op.name == "tt.splat":
        v = v.op.operands[0]
    return v.op is not None and v.op.name == "arith.constant" and v.op.attrs["value"] in (0, 0.0) and str(
        v.op.attrs["value"])[0] != "-"


def _follows(x: Source, first: Source, distance: int, along: int) -> bool:
    """Is `x` the load `distance` behind `first` along a dimension, masked as it is?"""
    apart = poly_add(expanded(x.base), expanded(first.base), -1)
    if (x.origin is not first.origin or x.steps != first.steps or not (x.exact and first.exact)
            or x.load.operands[0].type != first.load.operands[0].type
            or apart != expanded(poly_mul(poly(distance), first.steps[along]))):
        return False
    p, q = x.limits[1 - along], first.limits[1 - along]
    if (p is None) != (q is None) or p and p.key != q.key:
        return False
    p, q = x.limits[along], first.limits[along]
    if (p is None) != (q is None):
        return False
    return p is None or (len(p.bases) == len(q.bases) == 1 and isinstance(p.bases[0], dict) and isinstance(q.bases[0], dict)
                         and poly_add(expanded(p.bases[0]), expanded(q.bases[0]), -1) == poly(distance))


def _without_wrapping(space: Space, aff: Affine) -> tuple[Affine | None, tuple[Inside, ...]]:
    """An address with `(base + index) % size` taken as `base + index`, and under which conditions it is that."""
    out, given = Affine(aff.base, dict(aff.coef), [], aff.ptr), []
    for v, dims, scale in aff.opaque:
        if v.op is None or v.op.name not in ("arith.remsi", "arith.remui"):
            return None, ()
        x, size = (space.affine(o, dims) for o in v.op.operands)
        if x.opaque or x.ptr is not None or not size.uniform or len(x.coef) != 1:
            return None, ()
        (d, step), = x.coef.items()
        if poly_const(step) != 1:
            return None, ()
        out = out.plus(x.times(scale))
        given.append(Inside(x.base, space.shape[d], size.base))
    return out, tuple(given)
