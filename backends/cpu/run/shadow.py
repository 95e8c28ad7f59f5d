"""What checked launches remember of memory: who touched it last."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

from ... import forks
from ..emit.checks.block import LINE

#: episodes of a process before all marks are cleared: they take the upper 24 bits
EPISODES = (1 << 24) - 1
#: bytes of marks that are kept from one launch to the next, and that are made at first
_MOST, _LEAST = 1 << 31, 1 << 20
_HUGE = 1 << 21


#: a forked child has marks of its own: what Python makes otherwise is shared with it
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class Zeros:
    """Memory that is zero until somebody writes it, of which only what is touched takes room."""

    def __init__(self, size: int):
        self.size = max(size, 1)
        large = self.size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE")
        self._memory = mmap.mmap(-1, self.size + (_HUGE if large else 0), **_PRIVATE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if large:  # 4 KiB pages cost five times what the checks do: a fault each, and a place in the TLB
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            self.address += -self.address % _HUGE


class Marks:
    """(writers, readers) of each storage that a launch touches, as `emit/checks/race.py` says, and the number of the next episode.

    They are for one launch: the next one's storages take the same memory, in which all that is there has smaller numbers and so says nothing."""

    def __init__(self):
        self._room: list[Zeros] = []  # the last is the largest, and the one that is given out
        self._used = 0
        self._given: dict[tuple[int, int], tuple] = {}
        self.episode = 1  # memory that nobody marked is 0: before all launches
        self.lock = threading.RLock()  # held while a launch runs: programs of two launches are in no order of ours

    def begin(self, episodes: int) -> int:
        """The episode in front of a launch's first; it may have so many."""
        del self._room[:-1]
        if self.episode + episodes > EPISODES or self._room and self._room[0].size > _MOST:
            self._room, self.episode = [], 1 if self.episode + episodes > EPISODES else self.episode
        self._used, self._given = 0, {}
        before = self.episode
        self.episode += episodes
        return before

    def of(self, start: int, size: int, granule: int) -> tuple[int, int, int, int, int]:
        """Of a storage: the addresses of its lines' writers and readers, bytes from its first line's start to its own, and the addresses of its granules'
        writers and readers."""
        if (start, size) not in self._given:
            line = LINE * granule
            skew = start % line
            lines = (skew + size) // line + 2
            writers, readers = (self._take(4 * (LINE + 1) * lines) for _ in range(2))
            self._given[start, size] = writers, readers, skew, writers + 4 * lines, readers + 4 * lines
        return self._given[start, size]

    def _take(self, size: int) -> int:
        """The address of so many bytes, from a multiple of 64 on."""
        size = -(-size // 64) * 64
        if not self._room or self._used + size > self._room[-1].size:
            self._room.append(Zeros(max(size, 2 * self._room[-1].size if self._room else _LEAST)))
            self._used = 0
        self._used += size
        return self._room[-1].address + self._used - size


marks = Marks()
# A child is forked between two launches: it finds the marks whole, and the lock free.
forks.hold(marks.lock, forks.MARKS)
