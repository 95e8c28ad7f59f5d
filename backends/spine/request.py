"""What a bundle's program is asked, and what it answers: words of 8 bytes, little-endian, then tensors.

Request: `HEAD` words as numbered here; for each tensor (role, bytes, offset); the sizes; then, each at a multiple of 64, the
tensors and, in a case file, the expected result in fp64. Result: `R_HEAD` words, what the library said of a call that failed,
wall times, CPU times (nanoseconds), then the tensors that were written, as the first call left them.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from ...ops.records import dtype_name
from ..base import Error
from .messages import LENGTH

MAGIC = int.from_bytes(b"TRIPORT1", "little")
#: words of a request
(_, FUNCTION, THREADS, WARMUP, REPETITIONS, TENSORS, SIZES, BYTES, CODE, ALLOWED, WANT, WANTED, RESULT) = range(13)
HEAD = 16
#: words of a result
(_, R_BAD, R_STATUS, R_VLEN, R_CPUS, R_WHOLE, R_FIRST, R_REPETITIONS, R_SAID) = range(9)
R_HEAD = 9
MOST_TENSORS, MOST_SIZES, MOST_REPETITIONS = 16, 32, 100_000
#: what a tensor's surroundings hold
SLACK = 90
ROLES = {"in": 0, "out": 1, "inout": 2}
WIDTHS = {"fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8, "int16": 2, "int8": 1}
CODES = {name: code for code, name in enumerate(WIDTHS)}
NOT_A_REQUEST, SHORT, NO_MEMORY = 1, 2, 3
BAD = {NOT_A_REQUEST: "is no case of this program", SHORT: "is truncated", NO_MEMORY: "is too large for this machine's memory"}


def _bytes(t: torch.Tensor) -> bytes:
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def tensor(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """The elements that bytes hold, of one dimension."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def encode(number: int, tensors: list[tuple[str, torch.Tensor]], sizes: list[int], threads: int = 0, warmup: int = 0, repetitions: int = 0,
           expected: torch.Tensor | None = None, allowed: float = 0.0, result: int | None = None) -> bytes:
    """A request: call function `number` with tensors (role, values; contiguous as memory has them) and sizes. expected: the result in
    fp64, which the program itself is to compare; result: which tensor that is, by default the last that is written."""
    parts, table, offset = [], [], (HEAD + 3 * len(tensors) + len(sizes)) * 8

    def put(data: bytes) -> int:
        nonlocal offset
        pad = -offset % 64
        parts.append(bytes(pad) + data)
        offset += pad + len(data)
        return offset - len(data)

    for role, t in tensors:
        data = _bytes(t)
        table += [ROLES[role], len(data), put(data)]
    head = [0] * HEAD
    if expected is not None:
        data = _bytes(expected.double())
        head[WANT], head[WANTED] = put(data), len(data) // 8
        head[ALLOWED] = struct.unpack("<q", struct.pack("<d", allowed))[0]
    if result is None:
        result = max(k for k, (role, _) in enumerate(tensors) if role != "in")
    head[0], head[FUNCTION], head[THREADS], head[WARMUP], head[REPETITIONS] = MAGIC, number, threads, warmup, repetitions
    head[TENSORS], head[SIZES], head[BYTES], head[RESULT] = len(tensors), len(sizes), offset, result
    head[CODE] = CODES[dtype_name(tensors[result][1].dtype)]
    words = [*head, *table, *sizes]
    return struct.pack(f"<{len(words)}q", *words) + b"".join(parts)


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
    """What a case file asks: lengths of the tensors that are written, in order; repetitions; which of those is the result, its dtype, the
    expected values (fp64) and the error that still counts as right."""

    lengths: list[int]
    repetitions: int
    result: int
    dtype: str
    expected: torch.Tensor
    allowed: float


def parse(data: bytes, path) -> Asked:
    """A case file of a bundle that was believed already. Raises `Error` for what is none."""
    try:
        head = struct.unpack_from(f"<{HEAD}q", data)
        count = head[TENSORS]
        if head[0] != MAGIC or head[BYTES] != len(data) or not 0 < count <= MOST_TENSORS or not 0 <= head[RESULT] < count:
            raise ValueError
        table = [struct.unpack_from("<3q", data, HEAD * 8 + 24 * k) for k in range(count)]
        dtype = next(name for name, code in CODES.items() if code == head[CODE])
        expected = tensor(data[head[WANT]:head[WANT] + 8 * head[WANTED]], torch.float64)
    except (struct.error, ValueError, StopIteration):
        raise Error(f"{path} is no case file") from None
    written = [k for k, (role, _, _) in enumerate(table) if role]
    return Asked([table[k][1] for k in written], head[REPETITIONS], written.index(head[RESULT]), dtype, expected, struct.unpack_from("<d", data, 8 * ALLOWED)[0])
