"""The search behind `triport tune`: candidates' times, interleaved, over an op's own cases."""

from __future__ import annotations

import importlib
import math
import statistics

import torch

from ..backends.base import Error
from ..ops import registry, tuning
from ..ops.common import DTYPES
from . import check, clock


def searches() -> dict[str, tuning.Tiles]:
    """Name -> tiles, of every table that a search can fill. matmul's speeds are measured tile by tile."""
    found = {}
    for name in registry.NAMES:
        module = importlib.import_module(f"..ops.{name}", __package__)
        for t in vars(module).values():
            if isinstance(t, tuning.Tiles) and t.op.startswith(name) and (t.candidates or t.op == "matmul"):
                found[t.op] = t
    return found


def search(name: str, dtypes: list[str], rounds: int, gain: float, say) -> object | None:
    """The tiles to use, or None where the default is as good. `say` takes a line for every candidate. Raises `Error` where a candidate's
    result is wrong."""
    tiles = searches()[name]
    if name == "matmul":
        return matmul_speeds(tiles, dtypes, rounds, say)
    op = registry.get(next(n for n in sorted(registry.NAMES, key=len, reverse=True) if name.startswith(n)))
    candidates = [tiles.cpu, *(c for c in tiles.candidates if c != tiles.cpu)]
    times: dict[int, list[float]] = {n: [] for n in range(len(candidates))}
    for case in op.cases:
        for dtype in dtypes:
            if dtype not in op.dtypes:
                continue
            args = case.make(DTYPES[dtype])
            runs = {n: (_with(tiles, c, op, args, case.kwargs), lambda: None) for n, c in enumerate(candidates)}
            for n, c in enumerate(candidates):
                right, e = check.verdict(op, runs[n][0](), args, case.kwargs)
                if not right:
                    raise Error(f"{op.name} {case.name} {dtype} with {name} {c}: the result is wrong (error {e:.2e})")
            for n, s in clock.interleave(runs, rounds).items():
                times[n].append(math.log(statistics.median(s.wall)))
    score = {n: math.exp(statistics.fmean(x - y for x, y in zip(t, times[0]))) for n, t in times.items()}
    for n, c in enumerate(candidates):
        say(f"{name} {c}: {score[n]:.3f} of the default's time")
    best = min(score, key=score.get)
    return candidates[best] if score[best] < 1 - gain else None


def _with(tiles, candidate, op, args, kwargs):
    """A call of the op with a candidate's tiles: what it launches under them, again."""
    plans: dict = {}

    def call():
        with tuning.trying(tiles.op, candidate, op.name, plans):
            return op.call(*args, **kwargs)

    call()
    plan = next(iter(plans.values()), None)
    return call if plan is None else lambda: plan(*args)


def matmul_speeds(tiles, dtypes, rounds: int, say) -> dict:
    """dtype -> [BM, BN, BK, speed], the fastest tile's speed being 1: products that give every thread four of the largest tiles."""
    matmul = importlib.import_module("..ops.matmul", __package__)
    out = {k: [list(t) for t in v] for k, v in tiles.cpu.items()}
    size = matmul.next_power_of_2(math.isqrt(4 * torch.get_num_threads() * max(bm * bn for bm, bn, _ in matmul.SHAPES)))
    for dtype in dtypes:
        if dtype not in tiles.cpu:
            continue
        a, b = torch.randn(size, 1024).to(DTYPES[dtype]), torch.randn(1024, size).to(DTYPES[dtype])
        want = a.double() @ b.double()
        runs = {}
        for shape in matmul.SHAPES:
            runs[shape] = (_with(tiles, {**tiles.cpu, dtype: ((*shape, 1.0),)}, matmul.OP, (a, b), {}), lambda: None)
            e = check.error(runs[shape][0](), want)
            if not e <= matmul.OP.allowed(DTYPES[dtype]):
                raise Error(f"matmul {dtype} with tiles of {shape}: the result is wrong (error {e:.2e})")
        samples = clock.interleave(runs, rounds)
        took = {shape: statistics.median(s.wall) for shape, s in samples.items()}
        best = min(took.values())
        out[dtype] = sorted(([*shape, round(best / t, 4)] for shape, t in took.items()), key=lambda x: -x[3])
        for *shape, speed in out[dtype]:
            say(f"matmul {dtype} {'x'.join(map(str, shape))}: {speed:.3f} of the fastest")
    return out
