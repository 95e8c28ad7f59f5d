"""What a bundle's program is asked, and what it answers: words of 8 bytes, little-endian, then tensors.

Request: `HEAD` words as numbered here; for each tensor its `ENTRY` words; the sizes and numbers (floats as the bits of doubles); then, each at a multiple
of 64, the tensors and, in a case file, what is expected of those that are written, in fp64; `CHECKSUM` is that of all of it (`sealed`). Result: `R_HEAD` words, what the library said of a call that failed,
wall times, CPU times (nanoseconds), then the tensors that were written, as the first call left them.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass

import torch

from ...ops.records import dtype_name
from ..base import Error
from .messages import LENGTH

MAGIC = int.from_bytes(b"TRIPORT1", "little")
#: words of a request; NAMED is the `named` of its function, ITS_OWN 1 where what is expected is what the function gave on another machine, and no float64's: they and the checksum are
#: what programs of older bundles do not look at
(_, FUNCTION, THREADS, WARMUP, REPETITIONS, TENSORS, SIZES, BYTES, NAMED, CHECKSUM, ITS_OWN) = range(11)
HEAD = 16
#: what is said of a result that was found right or wrong where ITS_OWN is 1
BY_ITS_OWN = " by what the function gave on another machine, not by float64"
#: words of a tensor: its role, bytes and offset; its type; offset and number of the expected values (0: none), and the error that still counts as right
(ROLE, NBYTES, OFFSET, CODE, WANT, WANTED, ALLOWED) = range(7)
ENTRY = 8
#: words of a result
(_, R_BAD, R_STATUS, R_VLEN, R_CPUS, R_WHOLE, R_FIRST, R_REPETITIONS, R_SAID) = range(9)
R_HEAD = 9
MOST_TENSORS, MOST_SIZES, MOST_REPETITIONS = 64, 256, 100_000
#: what a tensor's surroundings hold
SLACK = 90
ROLES = {"in": 0, "out": 1, "inout": 2}
WIDTHS = {"fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
CODES = {name: code for code, name in enumerate(WIDTHS)}
NOT_A_REQUEST, SHORT, NO_MEMORY, LONG, DAMAGED, CHANGED = 1, 2, 3, 4, 5, 6
BAD = {NOT_A_REQUEST: "is no case of this program", SHORT: "is truncated", NO_MEMORY: "is too large for this machine's memory",
       LONG: "has bytes behind its end", DAMAGED: "is damaged: its sizes, its tensors and its length do not fit each other",
       CHANGED: "is damaged: its bytes are not those that were written"}
#: of a function's description, what its cases depend on: another function of this name may differ in it
_INTERFACE = ("name", "parameters", "order", "numbers", "arguments", "results")


def named(description: dict) -> int:
    """The word that stands for a function, by its description in the manifest: no other function's case is taken for one of its own."""
    text = json.dumps([description.get(k) for k in _INTERFACE], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _bytes(t: torch.Tensor) -> bytes:
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def tensor(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """The elements that bytes hold, of one dimension."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def encode(function: tuple[int, dict], tensors: list[tuple[str, torch.Tensor]], numbers: list, threads: int = 0, warmup: int = 0, repetitions: int = 0,
           wants: dict[int, tuple[torch.Tensor, float]] | None = None, its_own: bool = False) -> bytes:
    """A request: call a function (its number and description) with tensors (role, values; contiguous as memory has them), sizes and numbers. wants: tensor -> (its right
    values in fp64, the error that still counts as right), which the program itself is to compare; its_own: the function gave them, elsewhere."""
    parts, table, offset = [], [], (HEAD + ENTRY * len(tensors) + len(numbers)) * 8

    def put(data: bytes) -> int:
        nonlocal offset
        pad = -offset % 64
        parts.append(bytes(pad) + data)
        offset += pad + len(data)
        return offset - len(data)

    for k, (role, t) in enumerate(tensors):
        data = _bytes(t)
        entry = [ROLES[role], len(data), put(data), CODES[dtype_name(t.dtype)], *[0] * (ENTRY - 4)]
        if k in (wants or {}):
            right, allowed = wants[k]
            data = _bytes(right.double())
            entry[WANT], entry[WANTED], entry[ALLOWED] = put(data), len(data) // 8, _bits(allowed)
        table += entry
    head = [0] * HEAD
    head[0], head[FUNCTION], head[THREADS], head[WARMUP], head[REPETITIONS] = MAGIC, function[0], threads, warmup, repetitions
    head[TENSORS], head[SIZES], head[BYTES] = len(tensors), len(numbers), offset
    head[NAMED], head[ITS_OWN] = named(function[1]), int(its_own)
    words = [*head, *table, *(_bits(n) if isinstance(n, float) else n for n in numbers)]
    return sealed(struct.pack(f"<{len(words)}q", *words) + b"".join(parts))


def with_threads(data: bytes, threads: int) -> bytes:
    """A request with another number of threads."""
    return sealed(data[:8 * THREADS] + struct.pack("<q", threads) + data[8 * THREADS + 8:])


def sealed(data: bytes) -> bytes:
    """A request with its checksum: the sum of its other words, the n-th of them (from 0; the last one filled up with zeros) times 2 n + 1, modulo 2^64. An odd factor leaves no change of a word unseen, and
    tells words that changed places."""
    before, after = data[:8 * CHECKSUM], data[8 * CHECKSUM + 8:]
    whole = before + bytes(8) + after
    found = tensor(whole + bytes(-len(whole) % 8), torch.int64)
    total = int((found * (2 * torch.arange(len(found)) + 1)).sum())
    return before + struct.pack("<q", total) + after


def _bits(x: float) -> int:
    return struct.unpack("<q", struct.pack("<d", x))[0]


@dataclass
class Answer:
    """status: the function's; vlen: bits of a vector register there, 0 for none; cpus: those that the program may run on; first, wall,
    cpu: seconds of the first call and of each timed one; outputs: the written tensors' bytes; said: what the library says of a status
    that is not 0."""

    status: int
    vlen: int
    cpus: int
    first: float
    wall: list[float]
    cpu: list[float]
    outputs: list[bytes]
    said: str = ""


def decode(data: bytes, lengths: list[int], repetitions: int) -> Answer:
    """The result of a request whose written tensors have these lengths. Raises `Error` for anything else than such a result."""
    if len(data) < R_HEAD * 8:
        raise Error(f"the program answered {len(data)} bytes where its answer has at least {R_HEAD * 8}")
    magic, bad, status, vlen, cpus, whole, first, reps, said = struct.unpack_from(f"<{R_HEAD}q", data)
    if magic != MAGIC:
        raise Error(f"the program's answer does not begin as an answer does but with {data[:16]!r}")
    if bad:
        raise Error(f"the program refused the request: it {BAD.get(bad, f'is wrong in way {bad}')}")
    if not 0 <= said < (LENGTH if status else 1) or reps != (0 if status else repetitions) or len(data) != R_HEAD * 8 + said + 16 * reps + sum(lengths):
        raise Error(f"the program's answer has {len(data)} bytes and {reps} times; {R_HEAD * 8 + 16 * repetitions + sum(lengths)} bytes and {repetitions} "
                    "times were asked for")
    if not whole:
        raise Error("memory before a tensor was written; this is a bug in triport or in the kernel")
    times = struct.unpack_from(f"<{2 * reps}q", data, R_HEAD * 8 + said)
    if min((first, *times), default=0) < 0 or not all(map(math.isfinite, times)):
        raise Error("the program's answer has times below zero")
    outputs, at = [], R_HEAD * 8 + said + 16 * reps
    for n in lengths:
        outputs.append(data[at:at + n])
        at += n
    return Answer(status, vlen, cpus, first / 1e9, [t / 1e9 for t in times[:reps]], [t / 1e9 for t in times[reps:]], outputs,
                  data[R_HEAD * 8:R_HEAD * 8 + said].decode(errors="replace"))


@dataclass
class Asked:
    """What a case file asks: lengths of the tensors that are written, in order; repetitions; what is expected of which of those: (number, dtype, values
    in fp64, the error that still counts as right)."""

    lengths: list[int]
    repetitions: int
    wants: list[tuple[int, str, torch.Tensor, float]]


def parse(data: bytes, path) -> Asked:
    """A case file of a bundle that was believed already. Raises `Error` for what is none."""
    try:
        head = struct.unpack_from(f"<{HEAD}q", data)
        count = head[TENSORS]
        if head[0] != MAGIC or head[BYTES] != len(data) or not 0 < count <= MOST_TENSORS:
            raise ValueError
        table = [struct.unpack_from(f"<{ENTRY}q", data, 8 * (HEAD + ENTRY * k)) for k in range(count)]
        names = {code: name for name, code in CODES.items()}
        written = [e for e in table if e[ROLE]]
        wants = [(n, names[e[CODE]], tensor(data[e[WANT]:e[WANT] + 8 * e[WANTED]], torch.float64), struct.unpack("<d", struct.pack("<q", e[ALLOWED]))[0])
                 for n, e in enumerate(written) if e[WANT]]
    except (struct.error, ValueError, KeyError):
        raise Error(f"{path} is no case file") from None
    return Asked([e[NBYTES] for e in written], head[REPETITIONS], wants)
