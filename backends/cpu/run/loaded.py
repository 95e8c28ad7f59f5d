"""Kernels' machine code in this process: who holds it, and when it goes.

Code stays mapped as long as its `Function` lives, and whoever keeps a kernel's address keeps that:

- Triton's compiled kernel, and through it the JITFunction that launches it;
- a launch, in its frame, for as long as it runs (`launch.make_launch`), and what `quick.launch` remembers;
- a plan (`call.plan`), which a site's known call holds, which native code holds while it runs it;
- a launch in native code (direct.py), which the Inductor's tuner has whose launch it was.

No thread of the pool is in a kernel when its launch returns: each has left it before it counts itself out. So when the last reference goes nobody is
in the code and nobody can enter it. It is unmapped when the next code is loaded (`free`), by whatever function the linker gave for it: the last reference
may go anywhere, inside a linker or a parser that the collector interrupts, where neither a lock nor the GIL should change hands.
"""

from __future__ import annotations

import collections
import os
import weakref
from typing import Callable

from ...active import Held

_mapped: dict[int, str] = {}  # address -> name, of the code that goes with its Function
_dropped: collections.deque = collections.deque()  # (process, address, unmap) of what nobody holds any more


class Function(Held):
    """A loaded kernel: its address and name. When nobody holds it any more `free` calls `unmap()`, once; without one its code stays for good."""

    __slots__ = ("address", "name", "__weakref__")

    def __init__(self, address: int, name: str, unmap: Callable[[], object] | None = None):
        self.address, self.name = address, name
        if unmap is not None:
            _mapped[address] = name
            weakref.finalize(self, _dropped.append, (os.getpid(), address, unmap)).atexit = False


def mapped() -> dict[int, str]:
    """Address -> name of the kernels whose code is mapped now and goes with their `Function`."""
    return dict(_mapped)


def free():
    """Unmap the code that nobody holds any more. A forked child leaves alone what its parent loaded: it has not the threads that may hold LLVM's locks."""
    while True:
        try:
            process, address, unmap = _dropped.popleft()
        except IndexError:
            return
        if process == os.getpid():
            del _mapped[address]  # first: the same address may be mapped again as soon as it is free
            unmap()
