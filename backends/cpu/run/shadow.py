"""What checked launches remember of memory from one launch to the next: who touched it last, and what of it has been written."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading

from ..emit.checks.block import LINE

#: episodes of a process before all marks are cleared: they take the upper 24 bits
EPISODES = (1 << 24) - 1
#: bytes of marks that are kept
_MOST = 1 << 31
_HUGE = 1 << 21
#: marks are made for memory between multiples of so many bytes: tensors come and go, and the next one lies where one was before
_AROUND = 1 << 20


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
    """(writers, readers) of each storage that a launch touched, as `emit/checks/race.py` says, and the number of the next episode."""

    def __init__(self):
        self._of: dict[tuple[int, int, int], tuple[Zeros, Zeros]] = {}  # by (first byte, end, granule)
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

    def of(self, start: int, size: int, granule: int) -> tuple[int, int, int, int, int, object]:
        """Of a storage: the addresses of its lines' writers and readers, bytes from its first line's start to its own, the addresses of its
        granules' writers and readers, and what all of this is in, to be held as long as it is used."""
        low, high = start // _AROUND * _AROUND, -(-(start + size) // _AROUND) * _AROUND
        key, line = (low, high, granule), LINE * granule
        lines = (high - low) // line + 2
        if key not in self._of:
            room = 4 * (LINE + 1) * lines
            if self._size + 2 * room > _MOST:
                self._of.clear()
                self._size = 0
            self._of[key] = (Zeros(room), Zeros(room))
            self._size += 2 * room
        first, skew = divmod(start - low, line)
        whole = [m.address + 4 * first for m in self._of[key]]
        return *whole, skew, *(m.address + 4 * (lines + LINE * first) for m in self._of[key]), self._of[key]


marks = Marks()
# A child is forked between two launches: it finds the marks whole, and the lock free.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=marks.lock.acquire, after_in_parent=marks.lock.release, after_in_child=marks.lock.release)
