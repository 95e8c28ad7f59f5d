"""Memory of this process that holds code."""

from __future__ import annotations

import ctypes
import functools
import mmap

_PAGE = mmap.PAGESIZE


class Refused(Exception):
    """The system grants no such memory."""


@functools.lru_cache(maxsize=1)
def _libc():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class Memory:
    """Pages of this process that hold code, and behind it what may be written, until `free`. Raises `Refused` where the system grants none."""

    def __init__(self, size: int):
        self.size = -(-size // _PAGE) * _PAGE
        self.address = _libc().mmap(None, self.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise Refused(f"no memory for {size} bytes of code")

    def fill(self, image: bytes, code: int):
        """Put `image` there, whose first `code` bytes can be run and not written from now on."""
        ctypes.memmove(self.address, bytes(image), len(image))
        code = min(-(-code // _PAGE) * _PAGE, self.size)
        if _libc().mprotect(self.address, code, mmap.PROT_READ | mmap.PROT_EXEC):
            raise Refused("this system does not let memory that was written be run")

    def free(self):
        _libc().munmap(self.address, self.size)
