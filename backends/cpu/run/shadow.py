"""What checked launches remember of memory from one launch to the next: who touched it last, and what of it has been written."""

from __future__ import annotations

import ctypes
import mmap
import threading

#: episodes of a process before all marks are cleared: they take the upper 24 bits
EPISODES = (1 << 24) - 1
#: bytes of marks that are kept
_MOST = 1 << 31


class Zeros:
    """Memory that is zero until somebody writes it, of which only what is touched takes room."""

    def __init__(self, size: int):
        self.size = max(size, 1)
        self._memory = mmap.mmap(-1, self.size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


class Marks:
    """(writers, readers) of each storage that a launch touched, as `emit/checks/race.py` says, and the number of the next episode."""

    def __init__(self):
        self._of: dict[tuple[int, int, int], tuple[Zeros, Zeros]] = {}
        self._size = 0
        self.episode = 1  # memory that nobody marked is 0: before all launches
        self.lock = threading.RLock()  # held while a launch runs: programs of two launches are in no order of ours

    def begin(self, episodes: int) -> int:
        """The episode in front of a launch's first; it may have so many."""
        if self.episode + episodes > EPISODES:
            self._of.clear()
            self._size, self.episode = 0, 1
        before = self.episode
        self.episode += episodes
        return before

    def of(self, start: int, size: int, granule: int) -> tuple[Zeros, Zeros]:
        key = (start, size, granule)
        if key not in self._of:
            count = size // granule + 2
            if self._size + 8 * count > _MOST:
                self._of.clear()
                self._size = 0
            self._of[key] = (Zeros(4 * count + 64), Zeros(4 * count + 64))
            self._size += 8 * count
        return self._of[key]


marks = Marks()
