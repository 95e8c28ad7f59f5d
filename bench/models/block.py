"""Kernels over rows of length n, a program a row: a fixed BLOCK of 1024 against next_power_of_2(n), the habit of Triton's tutorials.

A block of next_power_of_2(n) holds the row: one pass, but up to half of its lanes lie past the row's end, and each n is a kernel of its own to
compile. BLOCK 1024 takes one kernel for every n: a longer row goes in pieces, a shorter one leaves lanes idle.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton import next_power_of_2

from ..clock import summary
from ..changes import FLOOR
from ..study import Study
from ...ops.records import traffic
from . import common
from .variants import Variants, launching, of_size

#: (elements in all, row lengths)
SIZES = {"small": (20000, (33, 1024, 1500)), "main": (1 << 20, (96, 257, 781, 1024, 1025, 2048, 3000, 4097, 16384))}
FIXED, FITTED = "BLOCK 1024", "BLOCK next_power_of_2(n)"


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    x = tl.load(x_ptr + row + cols, mask=cols < n)
    tl.store(out_ptr + row + cols, x * x, mask=cols < n)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The row in one block."""
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    x = tl.load(x_ptr + row + cols, mask=cols < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + cols, e / tl.sum(e, axis=0), mask=cols < n)


@triton.jit
def softmax_pieces_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The row in pieces, twice: for its maximum and sum, then for the result."""
    row = tl.program_id(0).to(tl.int64) * n
    lanes = tl.arange(0, BLOCK)
    top, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + lanes, mask=start + lanes < n, other=float("-inf"))
        new = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), axis=0)
        top = new
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + lanes, mask=start + lanes < n)
        tl.store(out_ptr + row + start + lanes, tl.exp(x - top) / total, mask=start + lanes < n)


def square(block: int | None = None):
    """x * x of a matrix, with blocks of that many elements or of next_power_of_2(n)."""
    def call(x):
        out, (rows, n) = torch.empty_like(x), x.shape
        size = block or next_power_of_2(n)
        square_kernel[(rows, triton.cdiv(n, size))](x, out, n, BLOCK=size)
        return out

    return call


def softmax(block: int | None = None):
    """softmax of a matrix's rows, likewise."""
    def call(x):
        out, (rows, n) = torch.empty_like(x), x.shape
        if block and n > block:
            softmax_pieces_kernel[(rows,)](x, out, n, BLOCK=block)
        else:
            softmax_kernel[(rows,)](x, out, n, BLOCK=block or next_power_of_2(n))
        return out

    return call


def studies(size: str, device: str, seed: int):
    elements, lengths = of_size(SIZES, size)
    for name, ours, theirs in (("square", square, torch.square), ("softmax", softmax, lambda x: torch.softmax(x, -1))):
        for n in lengths:
            v = Variants(device)
            v.add("torch", theirs)
            v.add(FIXED, launching(device, ours(1024)))
            v.add(FITTED, launching(device, ours()))
            g = torch.Generator("cpu").manual_seed(seed)
            x = torch.randn(max(1, elements // n), n, generator=g).to(device)
            yield Study(name, f"{x.shape[0]}x{n}", v.calls, (x,), theirs, nbytes=2 * traffic(x))


def steps(size: str, device: str, seed: int) -> dict:
    return next(studies(size, device, seed)).steps()


def idle(n: int, block: int) -> float:
    """The share of lanes that lie past a row's end."""
    return 1 - n / (triton.cdiv(n, block) * block)


def verdict(rows: list[dict], clock: str = "wall") -> list[str]:
    """What the rows say, a sentence for each op: who is faster where, beyond the noise of the rounds."""
    out = []
    for op in dict.fromkeys(r["op"] for r in rows):
        took = {(r["case"], r["backend"]): common.rounds(r, clock) for r in rows if r["op"] == op and r["status"] == "ok"}
        wins: dict[str, dict[int, float]] = {FITTED: {}, FIXED: {}}  # who -> n -> by how much
        alike, one = [], []
        for case in dict.fromkeys(case for case, name in took if {(case, FIXED), (case, FITTED)} <= took.keys()):
            n = int(case.partition("x")[2])
            logs = summary([math.log(a / b) for a, b in zip(took[case, FIXED], took[case, FITTED])])
            if next_power_of_2(n) == 1024:
                one.append(n)
            elif abs(logs["p50"]) > max(FLOOR, (logs["p80"] - logs["p20"]) / 2):
                wins[FITTED if logs["p50"] > 0 else FIXED][n] = math.exp(abs(logs["p50"]))
            else:
                alike.append(n)
        said = [_win(name, by) for name, by in wins.items() if by]
        for at, words in ((alike, "they are alike within the noise"), (one, "they are one kernel")):
            if at:
                said.append(f"at n = {', '.join(map(str, at))} {words}")
        if said:
            out.append(f"{op}: {'; '.join(said)}.")
    return out


def _win(name: str, by: dict[int, float]) -> str:
    n = max(by, key=by.get)
    return (f"{name} is faster at n = {', '.join(map(str, by))}, most at {n}, by {by[n]:.2f}x (where {100 * idle(n, 1024):.0f}% of the lanes of "
            f"blocks of 1024 lie past the row's end, and {100 * idle(n, next_power_of_2(n)):.0f}% of next_power_of_2(n)'s)")


def add(parser):
    pass


def run(args) -> int:
    code, rows = common.measure(studies(args.size, args.device, args.seed), args)
    if rows:
        print(f"by {common.basis(args)}, beyond the noise of the rounds:")
    for line in verdict(rows, args.clock):
        print(line)
    return code
