"""Locks that a forked child finds free. A lock that another thread of the parent holds is held for ever in the child, whose copy of that thread is gone; so the forking thread takes them all
first, which is when nobody is half-way through what they guard."""

from __future__ import annotations

import os

#: where a lock stands in the order in which threads take several of them
COMPILER, GUARD, LINKER, CODES, MARKS = range(5)
#: seconds to wait for a lock before a fork: a kernel is compiled in less. A child of a fork that did not wait may hang, as any process's that forks beside threads
PATIENCE = 30
_locks: list[tuple[int, object]] = []
_taken: list = []


def hold(lock, place: int):
    """Take `lock` over each fork, in its place among the others."""
    _locks.append((place, lock))
    _locks.sort(key=lambda known: known[0])


def _before():
    _taken.extend(lock for _, lock in _locks if lock.acquire(timeout=PATIENCE))


def _after():
    while _taken:
        _taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
