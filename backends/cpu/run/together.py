"""Cooperative launches (`launch_cooperative_grid=True`), whose programs wait for each other: each has a thread of its own, as on a GPU all of them are there at once.

Any other launch has its programs run in order, on as many threads as there are (`job.py`): one that waits for a later one would wait for ever. Threads here are Python's, which are in a kernel without its lock.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from typing import Callable

from ...base import ArgumentError, Error

#: programs of such a launch, at most
MOST = 1024
#: bytes that scratch begins at multiples of
_ALIGNED = 4096
#: what stands before the arguments in what a launch packs (`pool.py`, `_call`)
_HEADER = struct.Struct("<8Q")
#: a kernel: status of (arguments, scratch, first program, behind the last, grid x, y, z)
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int32] * 3)


class Threads:
    """What a launch of the kernel `name` calls in place of `launch.Pool`."""

    openmp = (0, 0)

    def __init__(self, name: str):
        self.name = name
        self._launched = threading.local()

    def around(self, launch: Callable) -> Callable:
        """A launch function, of whose arguments each program has hold: where Ctrl-C ends the wait for them they go on, and write."""
        @functools.wraps(launch)
        def held(*given):
            self._launched.given = given
            try:
                return launch(*given)
            finally:
                self._launched.given = ()
        return held

    def call(self, packed: bytes) -> int:
        """Run all programs, and return one's status that is not 0, if there is such. Raises `ArgumentError` for more than MOST."""
        address, *grid, scratch = _HEADER.unpack_from(packed)[:5]
        count = grid[0] * grid[1] * grid[2]
        if count > MOST:
            raise ArgumentError(f"triton-cpu: kernel {self.name}: launch_cooperative_grid with a grid of {count:,} programs: each has a thread of its own, and there are {MOST:,} at most")
        kernel, arguments = _KERNEL(address), (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        statuses, hold = [0] * count, (arguments, getattr(self._launched, "given", ()))

        def run(program: int):
            given = ctypes.addressof(hold[0]) + _HEADER.size
            memory = (ctypes.c_char * (scratch + _ALIGNED))() if scratch else None
            place = -(-ctypes.addressof(memory) // _ALIGNED) * _ALIGNED if memory else None
            statuses[program] = kernel(given, place, program, program + 1, *grid)

        threads = [threading.Thread(target=run, args=(program,), name=f"{self.name} {program}", daemon=True) for program in range(count)]
        for n, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as e:  # those that run may wait for others for ever
                raise Error(f"triton-cpu: kernel {self.name}: launch_cooperative_grid: no thread for program {n} of {count} ({e})") from None
        for thread in threads:
            thread.join()
        return next((s for s in statuses if s), 0)
