"""What a launch believes of a kernel's metadata, which comes from a file: a digest says that it is what was written, and each
value is looked at before it is used as a size, a position or a name."""

from __future__ import annotations

import hashlib
import json
import os

from ...base import CompileError

#: bytes of scratch per thread from which on a number is no size: no address space holds as much
_NO_SIZE = 1 << 47


#: "work" of a kernel whose programs run one after the other, in the thread that launches it
ALONE = -1
#: and of one whose programs run all at once (`together.py`)
TOGETHER = -2


#: where the file stands in what is written of a check's site (plan/checks.py)
_FILE = 3


def _count(limit, least=0):
    return lambda v: type(v) is int and least <= v < limit


def _every(v, test) -> bool:
    return isinstance(v, (list, tuple)) and all(map(test, v))


#: field -> is it what the compiler writes there?
_FIELDS = {
    "name": lambda v: isinstance(v, str) and bool(v),
    "shared": _count(_NO_SIZE),
    "scratch_bytes": _count(_NO_SIZE),
    "work": _count(1 << 62, TOGETHER),  # vector operations of a program, but for those of `loops`; 0: not known
    # (vector operations of a trip, the loops that it is in), a loop as (position of an argument, add, per) of which (argument + add) // per are its trips
    "loops": lambda v: _every(v, lambda w: isinstance(w, (list, tuple)) and len(w) == 2 and _count(1 << 62)(w[0]) and _every(w[1], lambda t: _every(
        t, lambda n: type(n) is int) and len(t) == 3 and t[0] >= 0 and t[2] > 0)),
    "arguments": lambda v: _every(v, lambda t: isinstance(t, str)),
    "checks": lambda v: isinstance(v, dict),  # what a checked kernel checks, in the digest like all of this
    "asserts": lambda v: _every(v, lambda a: _every(a, lambda t: isinstance(t, str)) and len(a) == 2),
    "file": lambda v: isinstance(v, str),  # that the kernel was compiled from
    # (position, position, are equal addresses fine?) of pointers that are to be apart
    "disjoint": lambda v: _every(v, lambda d: _every(d, lambda t: type(t) in (int, bool)) and len(d) == 3 and min(d) >= 0),
    # ("grid", axis) or ("argument", position), and the most that is fine there
    "most": lambda v: _every(v, lambda m: _every(m, lambda t: type(t) in (int, str)) and len(m) == 3 and (
        m[0] == "grid" and m[1] in (0, 1, 2) or m[0] == "argument" and type(m[1]) is int and m[1] >= 0) and type(m[2]) is int),
}


def digest(metadata: dict) -> str:
    """The digest of what a launch reads."""
    return hashlib.sha256(json.dumps([metadata[k] for k in _FIELDS]).encode()).hexdigest()


def checked(metadata, file: str | None = None) -> dict:
    """What a launch reads of a kernel's metadata (a named tuple). file: that the kernel is from now, where that is known: Triton's cache knows kernels by their text,
    and what comes from there names the file that this text was compiled from. Raises `CompileError` where it is not what was written."""
    given = metadata._asdict() if hasattr(metadata, "_asdict") else vars(metadata)
    wrong = [k for k, fine in _FIELDS.items() if k not in given or not fine(given[k])]
    if not wrong and any(max(d[:2]) >= len(given["arguments"]) for d in given["disjoint"]):
        wrong = ["disjoint"]
    if not wrong and any(kind == "argument" and place >= len(given["arguments"]) for kind, place, _ in given["most"]):
        wrong = ["most"]
    if not wrong and any(t[0] >= len(given["arguments"]) for _, loops in given["loops"] for t in loops):
        wrong = ["loops"]
    if not wrong and digest(given) != given.get("facts"):
        wrong = ["facts"]
    if wrong:
        raise CompileError(f"triton-cpu: the metadata of kernel {given.get('name')!r} in Triton's cache is damaged ("
                           + ", ".join(f"{k!r} is {str(given.get(k))[:40]!r}" for k in wrong) + "); delete the folder of the "
                           f"entry, {given.get('hash')}, or compile with TRITON_ALWAYS_COMPILE=1")
    found = {k: given[k] for k in _FIELDS}
    return found if not file or file == found["file"] else _moved(found, file)


def _moved(found: dict, file: str) -> dict:
    """With the names of files as they are since the kernel's own became `file`; another's changes as that one's did, where it is there and not where it was."""
    old, new = found["file"].split(os.sep), file.split(os.sep)
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    before, after = os.sep.join(old), os.sep.join(new)

    def now(name: str) -> str:
        if name == found["file"]:
            return file
        moved = after + name[len(before):] if name.startswith(before + os.sep) else name
        return moved if os.path.exists(moved) and not os.path.exists(name) else name

    def place(where: str) -> str:
        name, colon, line = where.rpartition(":")
        return f"{now(name)}:{line}" if colon and line.isdigit() else now(where)

    checks = found["checks"]
    if "sites" in checks:
        checks = {**checks, "sites": [[*s[:_FILE], now(s[_FILE]), *s[_FILE + 1:]] for s in checks["sites"]]}
    return {**found, "asserts": [(message, place(where)) for message, where in found["asserts"]], "checks": checks}
