"""Scratch memory: which buffer holds which tensor, and which bytes of a thread's scratch block are free again.

A buffer is free once every root that could read what it holds has been carried out. Only the block that a value was put
into scratch in may say so: inside a loop, what comes from outside is read again in the next trip.
"""

from __future__ import annotations


class Layout:
    """Offsets in the scratch block: first the freed pieces, then new room at the end."""

    def __init__(self):
        self.size = 0
        self.large = 0
        self.free: list[tuple[int, int]] = []
        self.pieces: dict[int, int] = {}  # offset -> bytes

    def take(self, size: int) -> int:
        fits = [p for p in self.free if size <= p[1] <= 2 * size + 256]
        if fits:
            best = min(fits, key=lambda p: p[1])
            self.free.remove(best)
            return best[0]
        offset = self.size
        if size >= 2048:
            # A load that is 4 KiB (modulo) from a store still in flight waits for it. Loops read one buffer a little ahead
            # of where they write another, so each buffer starts 64 bytes short of the one before, modulo 4 KiB.
            self.large += 1
            offset += (-64 * self.large - offset) % 4096
        self.size = offset + (size + 127) // 64 * 64
        self.pieces[offset] = size
        return offset

    def give(self, offset: int):
        self.free.append((offset, self.pieces[offset]))


class Buffers(dict):
    """Value -> Buffer. Remembers, per open block, what was put there."""

    def __init__(self):
        super().__init__()
        self.scopes: list[list] = []
        self.pinned: set = set()

    def __setitem__(self, value, buffer):
        if self.scopes and value not in self:
            self.scopes[-1].append(value)
        super().__setitem__(value, buffer)

    def release(self, layout: Layout, finished):
        """Forget the current block's values that `finished(value)` says nobody reads any more, and free their memory."""
        scope = self.scopes[-1]
        done = [v for v in scope if v not in self or (v not in self.pinned and finished(v))]
        if not done:
            return
        gone = set(done)
        self.scopes[-1] = [v for v in scope if v not in gone]
        bases = {self.pop(v).base for v in done if v in self}
        bases.discard(None)
        if bases:
            held = {buf.base for buf in self.values()}
            for base in bases - held:
                layout.give(base)
