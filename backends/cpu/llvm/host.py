"""What LLVM knows about this machine and itself, without loading LLVM once it has said it (it takes 20 to 30 ms in each process).

Its answers follow from the CPU and from llvmlite's files, and are remembered (`backends/memo.py`) under what CPUID says here, now, and those files. On
machines without CPUID, and where llvmlite's library is but a door to a shared LLVM, LLVM is asked each time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform

from ... import memo
from ...base import Unavailable
from .. import pages
from .binding import llvm

#: void cpuid(leaf, subleaf, uint32_t out[4]); uint64_t xgetbv()
_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")
#: leaves that say what instructions there are; not those that say which core this is
_LEAVES = ((0, 0), (1, 0), (7, 0), (7, 1), (7, 2), (0xd, 0), (0xd, 1), (0x14, 0), (0x19, 0), (0x1d, 0), (0x1d, 1), (0x1e, 0), (0x1e, 1), (0x21, 0), (0x24, 0),
           (0x24, 1), (0x29, 0), (0x80000000, 0), (0x80000001, 0), (0x80000007, 0), (0x80000008, 0), (0x8000000a, 0), (0x80000021, 0))
#: a library of fewer bytes holds no LLVM
_WHOLE = 16 << 20


def cpuid() -> str | None:
    """What CPUID and XGETBV say of this CPU's instructions; None on a machine that has none."""
    if platform.machine() != "x86_64":
        return None
    try:
        memory = pages.Memory(1)
    except pages.Refused:
        return None
    try:
        memory.fill(_CPUID.ljust(32, b"\xcc") + _XGETBV, 64)
        return _said(memory.address)
    except pages.Refused:
        return None
    finally:
        memory.free()


def _said(address: int) -> str:
    """What the functions at an address, `_CPUID` and 32 bytes further `_XGETBV`, say."""
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(address)
    out = (ctypes.c_uint32 * 4)()
    ask(0, 0, out)
    basic = out[0]
    ask(0x80000000, 0, out)
    extended = out[0]
    said = []
    for leaf, subleaf in _LEAVES:
        if leaf <= basic or 0x80000000 <= leaf <= extended:
            ask(leaf, subleaf, out)
            a, b, c, d = out
            said.append(f"{leaf:x}.{subleaf:x}:{a:x},{0 if leaf == 1 else b:x},{c:x},{d:x}")  # of leaf 1 ebx is the core's number
            if leaf == 1 and c >> 27 & 1:  # OSXSAVE
                said.append(f"x:{ctypes.CFUNCTYPE(ctypes.c_uint64)(address + 32)():x}")
    return " ".join(said)


def _ask() -> dict:
    features = dict(llvm.get_host_cpu_features())
    import llvmlite
    return {"features": features, "llvmlite": llvmlite.__version__, "LLVM": ".".join(map(str, llvm.llvm_version_info))}


@functools.lru_cache(maxsize=1)
def facts() -> dict:
    spec = importlib.util.find_spec("llvmlite")
    said = cpuid()
    if said is None or spec is None or spec.origin is None:
        return _ask()
    root = os.path.dirname(spec.origin)
    library = os.path.join(root, "binding", "libllvmlite.so")
    try:
        if os.path.getsize(library) < _WHOLE:
            return _ask()
    except OSError:
        return _ask()
    files = [spec.origin, os.path.join(root, "_version.py"), library]
    return memo.remembered("llvm", root, lambda: memo.State(files, said), _ask)


def features() -> dict[str, bool]:
    """This CPU's features by LLVM's names, and whether it has them."""
    return dict(facts()["features"])


def versions() -> dict[str, str]:
    """llvmlite's version, and its LLVM's; "missing" where it is not installed."""
    try:
        return {k: facts()[k] for k in ("llvmlite", "LLVM")}
    except Unavailable:
        return {"llvmlite": "missing", "LLVM": "missing"}
