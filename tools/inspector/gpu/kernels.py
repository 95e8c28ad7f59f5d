"""Requests of a Triton kernel: addresses from TTGIR's arithmetic, threads from its layouts, widths from the machine code."""

from __future__ import annotations

import functools

import numpy as np

from ..stats import line_of_frames
from . import layout, ttgir
from .memory import Request, request

_WARPS, _PIECES = 4, 16


@functools.lru_cache(maxsize=64)
def _walk(text: str, known: tuple, ones: frozenset) -> ttgir.Walk:
    return ttgir.Walk(text, dict(known), ones)


@functools.lru_cache(maxsize=64)
def _places(text: str, types: tuple) -> dict:
    return layout.places(text, list(types))


class Kernel:
    """A kernel's accesses by source line. text: its TTGIR; known: values of its integer arguments, where they are known; unaligned: arguments not
    known divisible by 16; sector: bytes."""

    def __init__(self, text: str, known: dict[str, int], unaligned, threads: int, sector: int):
        self.text, self.known, self.threads, self.sector = text, tuple(sorted(known.items())), threads, sector
        self.unaligned = tuple(unaligned)
        self.walk = _walk(text, self.known, frozenset())
        self.places = _places(text, tuple(a.type for a in self.walk.accesses if a.type))
        self.at: dict[tuple, list[int]] = {}
        for k, a in enumerate(self.walk.accesses):
            if (at := line_of_frames(a.lines)) is not None:
                self.at.setdefault((at, a.kind), []).append(k)
        self.made = {line_of_frames(lines) for lines in self.walk.descriptors}
        self.dots = {line_of_frames(lines) for lines, _ in self.walk.dots}

    def straighten(self, instructions):
        """Give instructions of inline assembly, whose lines count on from the Python line that it belongs to (NVIDIA), that line."""
        known = self.walk.places.lines()
        for i in instructions:
            i.lines = tuple((file, next((n for n in range(number, number - 17, -1) if (file, n) in known), number)) for file, number in i.lines)

    def numbers(self, line: tuple, kind: str, bits: int, looped: bool, shifted: bool, seen: Request | None = None) -> list[int]:
        """Which accesses instructions of a source line stand for that move up to `bits` a thread; [] where there are none. looped: is it the code of
        a loop, of whose accesses only those in loops are meant? shifted: do instructions have the line of their place in inline assembly, where one
        register a line is cleared before the access (NVIDIA)? seen: what their addresses in the machine code look like, which decides between
        several."""
        file, number = line
        shifts = dict.fromkeys((max(1, bits // 32), max(1, bits // 64), 0, *range(1, 17)) if shifted and bits <= 128 else (0,))
        found = []
        for d in shifts:
            here = self.at.get(((file, number - d), kind), [])
            here = [k for k in here if bool(self.walk.accesses[k].loops) == looped] or here
            alike = [k for k in here if seen is not None and seen.known and any(_alike(q, seen) for q in self._of(k, bits))]
            if alike:
                return alike
            found = found or here
        return found

    def requests(self, numbers: list[int], bits: int) -> list[Request]:
        """The requests of accesses whose instructions move up to `bits` a thread."""
        return [q for k in numbers for q in self._of(k, bits)]

    def _of(self, number: int, bits: int) -> list[Request]:
        a = self.walk.accesses[number]
        found = self._requests(a, bits)
        if any(q.known and not q.uniform and not q.data and max(q.efficiency, q.together or 0) < 0.95 for q in found):
            for name in sorted(n for n in a.addresses.args if n[0] not in "*/"):
                other = _walk(self.text, self.known, frozenset({name})).accesses[number]
                if all(max(q.efficiency, q.together or 0) >= 0.95 for q in self._requests(other, bits)):
                    for q in found:
                        q.apart = name
                    break
        used = {n.lstrip("*") for n in a.args}
        names = tuple(n for n in self.unaligned if n in used)
        for q in found:
            if names and q.tile and q.tile[1] and not q.data:
                q.unaligned, q.could = names, min(128, q.tile[0] * a.width // q.tile[1])
        return found

    def _requests(self, a: ttgir.Access, bits: int) -> list[Request]:
        at = line_of_frames(a.lines)
        line = f"{at[0].rpartition('/')[2]}:{at[1]}" if at else ""
        if a.bulk:
            return [Request(a.kind, 128, self.threads, bulk=True, line=line)]
        where = self.places.get(a.type)
        if a.addresses is None or a.type and where is None:
            return [Request(a.kind, bits, self.threads, known=False, line=line)]
        x = a.addresses.x
        more = {"line": line, "args": frozenset(n for n in a.addresses.args if n[0] not in "*/"), "data": a.addresses.data,
                "divided": "/" in a.addresses.args}
        if not a.type:
            one = request(a.kind, np.broadcast_to(x, self.threads), None, a.width // 8, self.sector, **more)
            one.tile = (1, 1)
            return [one]
        x = np.broadcast_to(x, layout.shape_of(a.type))
        mask = None if a.mask is None or not a.mask.any() else np.broadcast_to(a.mask, x.shape)
        return list(self._pieces(a, x, mask, where, bits, more))

    def _pieces(self, a, x, mask, where, bits, more):
        """The requests of a tile: registers that lie side by side in memory make one, as wide as the instructions are."""
        index = tuple(where[..., d] for d in range(where.shape[-1]))
        at = x[index]  # [warps, lanes, registers]
        order = np.argsort(at[0, 0], kind="stable")
        order = order[np.concatenate([[True], np.diff(at[0, 0][order]) != 0])] if len(order) > 1 else order
        step = a.width // 8
        many = max(1, min(bits // a.width, len(order)))
        while many > 1 and not _side_by_side(at[..., order], many, step):
            many //= 2
        at = at[..., order][..., ::many]
        on = np.ones(at.shape, bool) if mask is None else mask[index][..., order][..., ::many]
        owns = np.unique(at[:, 0, 0]).size if at.shape[0] > 1 else 1
        for w in range(min(at.shape[0], _WARPS, owns if owns > 1 else 1)):
            all_ = np.unique(at[w][on[w]])
            reach = np.unique(np.concatenate([all_ // self.sector, (all_ + step * many - 1) // self.sector]))
            together = min(1.0, -(-len(all_) * step * many // self.sector) / max(1, len(reach)))
            for k in range(min(at.shape[-1], _PIECES)):
                if on[w, :, k].any():
                    one = request(a.kind, at[w, :, k], on[w, :, k], step * many, self.sector, **more)
                    one.together = together
                    one.times = at.shape[-1] / min(at.shape[-1], _PIECES)
                    one.tile = (x.size, at.shape[0] * at.shape[1])
                    yield one


def _alike(a: Request, b: Request) -> bool:
    return a.useful == b.useful and abs(a.efficiency - b.efficiency) < 0.01


def _side_by_side(at: np.ndarray, many: int, step: int) -> bool:
    if at.shape[-1] % many:
        return False
    groups = at.reshape(*at.shape[:-1], -1, many)
    return bool((np.diff(groups, axis=-1) == step).all())
