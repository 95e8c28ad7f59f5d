"""What is printed of a crash inside a kernel. It runs in a Python of its own, with nothing but the standard library, beside a process that is dying
(`crash.py` writes what it reads)."""

from __future__ import annotations

import linecache
import os
import re
import signal
import struct
import sys

from . import lines

#: `crash.REPORT`
FIELDS = ("signal", "code", "address", "where", "inner", "first", "last", "program", "gx", "gy", "gz", "label", "arguments", "slots", "size")
_ANYWHERE = 128  # SI_KERNEL: the processor does not say which address
_SECONDS = 20
#: bytes from which on a distance says no more which argument was meant
_FAR = 1 << 20


def main(file: int):
    """Print the report of an open file's number."""
    signal.alarm(_SECONDS)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with os.fdopen(file, "rb") as f:
        print(text(f.read()), file=sys.stderr, flush=True)


def text(data: bytes) -> str:
    """The report, for what a handler wrote."""
    head = struct.unpack_from(f"<{len(FIELDS)}q", data)
    r = dict(zip(FIELDS, head))
    at = 8 * len(FIELDS)
    name, arguments, packed, obj = (data[a:b] for a, b in _pieces(at, r["label"], r["arguments"], 8 * r["slots"], r["size"]))
    line = lines.line_of(obj, r["where"]) if obj else None
    where = f" at {line[0]}:{line[1]}" if line else ""
    called = "" if r["inner"] else " (in a function that it calls there)"
    out = [f"triton-cpu: kernel {name.decode()} crashed{where}{called}: {signal.Signals(r['signal']).name} in {_program(r)}"]
    source = linecache.getline(*line).strip() if line else ""
    if source:
        out.append(f"    {source}")
    if r["signal"] != signal.SIGFPE:
        address = r["address"] & (1 << 64) - 1
        out.append("  " + _address(address, r["code"], nearest(address, arguments.decode().splitlines(), packed, source)))
    out.append("  Run it again with TRITON_CPU_CHECK=bounds: that says which access leaves which tensor, and carries none out.")
    return "\n".join(out)


def _pieces(at: int, *sizes: int):
    for size in sizes:
        yield at, at + size
        at += size


def _program(r) -> str:
    """Which program it was, as its place in the grid."""
    gx, gy, gz = r["gx"], r["gy"], r["gz"]
    place = lambda p: f"({p % gx}, {p // gx % gy}, {p // gx // gy})"  # noqa: E731
    which = f"program {place(r['program'])}" if r["program"] >= 0 else f"one of the programs {place(r['first'])} to {place(r['last'] - 1)}"
    return f"{which} of grid ({gx}, {gy}, {gz})"


def nearest(address: int, arguments: list[str], packed: bytes, source: str) -> tuple[str, str, int] | None:
    """(name, type, value) of the pointer among the arguments that an address is nearest to; of those that are all far away one that the line names."""
    found = []
    for k, argument in enumerate(arguments):
        label, ty = argument.split("\t")
        value, = struct.unpack_from("<Q", packed, 8 * k)
        if ty.startswith("*"):
            distance = abs(address - value)
            found.append((min(distance, _FAR), not re.search(rf"\b{re.escape(label)}\b", source), distance, (label, ty, value)))
    return min(found)[-1] if found else None


def _address(address: int, code: int, pointer: tuple[str, str, int] | None) -> str:
    """What was accessed, and where that is from the pointer that is nearest."""
    if code == _ANYWHERE:
        return "The address that it accessed is none that memory can have."
    out = f"It accessed address {address:#x}"
    if pointer is None:
        return out + "."
    label, ty, value = pointer
    if not value:
        return out + f"; argument {label} is a null pointer."
    bits = re.search(r"\d+", ty)
    size = max(1, int(bits[0]) // 8) if bits else 0
    elements = f" ({abs(address - value) // size} elements of {ty[1:]})" if size else ""
    return out + f", {abs(address - value)} bytes{elements} {'behind' if address >= value else 'before'} where argument {label} points."
