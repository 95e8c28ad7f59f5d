"""Values that are put into memory at one place, in as few nests as pay: what several of one shape are computed from is computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..ttir.ops import row
from ..ttir.types import Value
from . import exchanges, order
from .lazy import renamed
from .records import Buffer, Fill, Keep, NestPlan, Walk
from .space import Space

#: of the operations for an element, the part that a value has to have in common with those of a nest to be computed there
SHARE = 0.5
#: values of one nest, which is one piece of code: emit/parts.py makes functions of whole ones
MOST = 32

#: a value, and where its elements go: None for a place of its own
Wanted = tuple[Value, Buffer | None]


def materialise(s, values: Iterable[Value], why: str):
    """Put lazy tensors into scratch (once) and read them from there on."""
    for group in _groups(s, [(v, None) for v in values]):
        left = [v for v, _ in group if v not in s.buffers]  # one may have needed another in memory
        if len(left) > 1:
            nest = _nest(s, left)
            left = [v for v in left if v not in s.buffers]
            places = {v: s.kept_buffer(nest, v) for v in left}
            _add(s, nest, list(places.items()), why)
            s.buffers.update(places)
        for v in left:
            s.materialise(v, why=why)


def fill(s, wanted: list[tuple[Value, Buffer]], why: str):
    """Write tensors' elements into buffers of their own element types, none of which another one of them reads."""
    for group in _groups(s, wanted):
        if len(group) > 1:
            _add(s, _nest(s, [v for v, _ in group], group[0][1]), group, why)
        else:
            (v, buf), = group
            s.fill(buf, v, why=why)


def _groups(s, wanted: Iterable[Wanted]) -> list[list[Wanted]]:
    """What had better be computed in one nest: values of one shape, along one dimension, from what takes a good part of their operations."""
    groups: list[tuple[object, set, list[Wanted]]] = []
    for v, buf in wanted:
        space = Space(s.known, v.type.shape)
        visited = space.explore([(v, space.identity)])
        if not _may_share(s, v, buf, visited):
            groups.append((None, set(), [(v, buf)]))
            continue
        like = v.type.shape, order.vector_dimension(space, visited, s.target, s.proved, buf)
        made = set(visited)
        enough = SHARE * _operations(s, made)
        for other, shared, group in groups:
            if other == like and len(group) < MOST and 0 < enough <= _operations(s, made & shared):
                group.append((v, buf))
                shared |= made
                break
        else:
            groups.append((like, made, [(v, buf)]))
    return [group for _, _, group in groups]


def _may_share(s, v: Value, buf: Buffer | None, visited) -> bool:
    """May a nest that computes other values compute `v`, too? Not for a debugger, who sees one at a time, nor where elements change places."""
    if s.variables is not None or v.op is None or v in s.buffers or buf is not None and not buf.is_row_major:
        return False
    return not (row(v.op).renames and renamed(v.op, tuple(range(len(v.type.shape)))) is None) and not any(exchanges.is_pick(w) for w, _ in visited)


def _operations(s, visited) -> int:
    """Operations for an element, of which those for numbers of whole rows or columns are a few."""
    return sum(row(v.op).cost for v, _ in visited if v.op is not None and v not in s.buffers)


def _nest(s, values: list[Value], into: Buffer | None = None) -> NestPlan:
    dims = tuple(range(len(values[0].type.shape)))
    return s.nest(Walk(values[0].type.shape, [(v, dims) for v in values], into=into, merge=True, groups=True))


def _add(s, nest: NestPlan, wanted: list[tuple[Value, Buffer]], why: str):
    """The step that carries out `nest`, where anything is left to it."""
    if wanted:
        (v, buf), *rest = wanted
        s.add(Fill(s.op, v, buf, replace(nest, keeps=tuple(Keep(w, place, None) for w, place in rest)), why=why))
