"""The search behind `triport tune`: candidates' times, interleaved, over an op's own cases."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import statistics

import torch
from triton.runtime.errors import OutOfResources

from ..backends.base import Error
from ..ops import cases, registry, room, tuning
from ..ops import tiles as of_products
from ..ops.records import DTYPES, Case
from ..ops.sizes import next_power_of_2
from . import check, clock, prune


def searches() -> dict[str, tuning.Tiles]:
    """Name -> tiles, of every table that a search can fill. matmul's speeds are measured tile by tile."""
    found = {}
    for name in registry.NAMES:
        module = importlib.import_module(f"..ops.{name}", __package__)
        for t in vars(module).values():
            if isinstance(t, tuning.Tiles) and t.op.startswith(name) and (t.candidates or t.op == "matmul"):
                found[t.op] = t
    return found


def names(device: str) -> list[str]:
    """Of the tables those that have candidates for a device."""
    return [n for n, t in searches().items() if n == "matmul" or (t.cuda_candidates if device == "cuda" else t.candidates)]


def _op_of(name: str):
    """The op whose tiles a table has."""
    return registry.get(next(n for n in sorted(registry.NAMES, key=len, reverse=True) if name.startswith(n)))


def _cases(op, device: str, texts: list[str], sweeps: list[str]) -> list:
    own = [c for c in op.cases if c.device == "cuda"] if device == "cuda" else op.cases_on("cpu")
    return cases.sweep(op, cases.select(op, texts) if texts else own, sweeps)


def checked(names: list[str], dtypes: list[str], device: str, texts: list[str], sweeps: list[str]):
    """Raise `Error` for cases that an op of a search has not, and where none of the dtypes is one of its, before anything is measured."""
    for name in names:
        if name == "matmul" and (texts or sweeps):
            raise Error("--case and --sweep do not go with matmul: its tiles' speeds are measured one by one, whatever the sizes")
        if name == "matmul":
            measured = ("fp32", "fp16") if device == "cuda" else tuple(searches()[name].cpu)
            if dtypes and not set(dtypes) & set(measured):
                raise Error(f"matmul: its tiles are measured in {', '.join(measured)}, not {', '.join(dtypes)}")
        else:
            for case in _cases(op := _op_of(name), device, texts, sweeps):
                if any(0 in shape for shape in case.shapes):
                    raise Error(f"{name} {case.name}: there is nothing to time in a tensor without elements")
            if dtypes and not set(dtypes) & set(op.dtypes):
                raise Error(f"{name}: {op.name} takes {', '.join(op.dtypes)}, not {', '.join(dtypes)}")


def search(name: str, dtypes: list[str], rounds: int, gain: float, say, device: str = "cpu", texts: list[str] = [],
           sweeps: list[str] = [], pruning: prune.Pruning = prune.NONE, known: dict | None = None) -> object | None:
    """The tiles to use, or None where the default is as good. `say` takes a line for every candidate; device: cpu, cuda, or board, the one that
    backend spine has. texts, sweeps: the cases to search over (`ops.cases`; default: the
    op's own). pruning: which candidates are measured; known: of matmul, what the table has, for what is not measured. Raises `Error` where a candidate's result is wrong."""
    tiles = searches()[name]
    if name == "matmul":
        return gpu_matmul_speeds(tiles, rounds, say) if device == "cuda" else matmul_speeds(tiles, dtypes, rounds, say, device, pruning, known)
    op = _op_of(name)
    default, more = (tiles.cuda, tiles.cuda_candidates) if device == "cuda" else (tiles.cpu, tiles.candidates)
    candidates = [default, *(c for c in more if c != default)]
    chosen = _cases(op, device, texts, sweeps)
    by_name = {str(c): c for c in candidates}
    asked = [(case, dtype) for case in chosen for dtype in dtypes if dtype in op.dtypes]
    candidates = [by_name[n] for n in pruning.kept(name, name, by_name, op, asked, [], say)]
    times: dict[int, list[float]] = {n: [] for n in range(len(candidates))}
    for case, dtype in asked:
        room.require(op, case, dtype, device)
        args = case.make(DTYPES[dtype], "cuda" if device == "cuda" else "cpu")
        want = op.expected(*args, **case.kwargs)
        runs = {n: _with(tiles, c, op, args, case.kwargs, device, rounds) for n, c in enumerate(candidates)}
        for n, c in enumerate(candidates):
            _check(runs[n](), want, op.allowed(DTYPES[dtype]), f"{op.name} {case.name} {dtype} with {name} {c}")
            _progress(runs[n], f"{op.name} {case.name} {dtype} with {name} {c}", n, len(candidates), say)
        for n, wall in seconds_of(runs, rounds, device).items():
            times[n].append(math.log(statistics.median(wall)))
    score = {n: math.exp(statistics.fmean(x - y for x, y in zip(t, times[0]))) for n, t in times.items()}
    for n, c in enumerate(candidates):
        say(f"{name} {c}: {score[n]:.3f} of the default's time")
    best = min(score, key=score.get)
    return candidates[best] if score[best] < 1 - gain else None


def _progress(run, what: str, n: int, count: int, say):
    """On a board, where a candidate may take minutes: what the one that was just measured took."""
    if isinstance(run, _OnBoard):
        say(f"[{n + 1}/{count}] {what}: {statistics.median(run.wall) * 1e6:.1f} us")


def _check(got, want, allowed: float, what: str):
    e = check.error(got, want)
    if not e <= allowed:  # NaN is no smaller than anything
        raise Error(f"{what}: the result is wrong (error {e:.2e})")


def seconds_of(runs: dict, rounds: int, device: str) -> dict:
    """Seconds of each round, by the runs' names."""
    if device == "cuda":
        return clock.on_gpu(runs, rounds)
    if device == "board":
        return {n: run.wall for n, run in runs.items()}  # of the calls whose results were checked
    return {n: s.wall for n, s in clock.interleave({n: (fn, lambda: None) for n, fn in runs.items()}, rounds).items()}


class _OnBoard:
    """A call of the op with a candidate's tiles, on backend spine's board, which times itself as it is called."""

    def __init__(self, tiles, candidate, op, args, kwargs, rounds: int):
        self._what, self._rounds = (tiles.op, candidate, op, args, kwargs), rounds
        self.wall: list[float] = []

    def __call__(self):
        from ..backends import get
        from ..backends.spine import bundle
        table, candidate, op, args, kwargs = self._what
        with tuning.trying(table, candidate, op.name, {}), bundle.fresh():
            out, answer = get("spine").measure(op, args, kwargs, self._rounds, torch.get_num_threads())
        self.wall = answer.wall
        return out


def _with(tiles, candidate, op, args, kwargs, device: str, rounds: int):
    """A call of the op with a candidate's tiles: what it launches under them, again."""
    if device == "board":
        return _OnBoard(tiles, candidate, op, args, kwargs, rounds)
    plans: dict = {}

    def call():
        with tuning.trying(tiles.op, candidate, op.name, plans):
            return op.call(*args, **kwargs)

    if args[0].is_cuda:
        return call
    call()
    plan = next(iter(plans.values()), None)
    return call if plan is None else lambda: plan(*args)


def matmul_speeds(tiles, dtypes, rounds: int, say, device: str = "cpu", pruning: prune.Pruning = prune.NONE, known: dict | None = None) -> dict:
    """dtype -> [BM, BN, BK, speed], the fastest tile's speed being 1: products that give every thread four of the largest tiles. known: speeds that
    stay where they are not measured. What one or two threads of a machine of many do goes beside what all of them do (`ops.tiles.few`)."""
    matmul = registry.get("matmul")
    out = {k: [list(t) for t in v] for k, v in {**tiles.cpu, **(known or {})}.items()}
    beside = device == "cpu" and torch.get_num_threads() <= of_products.FEW < (os.cpu_count() or 1) // 2
    size = next_power_of_2(math.isqrt(4 * torch.get_num_threads() * max(bm * bn for bm, bn, _ in of_products.SHAPES)))
    for dtype in dtypes:
        if dtype not in tiles.cpu:
            continue
        a, b = torch.randn(size, 1024).to(DTYPES[dtype]), torch.randn(1024, size).to(DTYPES[dtype])
        want = a.double() @ b.double()
        shapes = {"x".join(map(str, shape)): shape for shape in (_board_shapes(a, b) if device == "board" else of_products.SHAPES)}
        kept = pruning.kept(f"matmul {dtype}", tiles.op, {n: {**tiles.cpu, dtype: ((*shape, 1.0),)} for n, shape in shapes.items()}, matmul,
                            [(Case((tuple(a.shape), tuple(b.shape))), dtype)], [(Case(((n, n), (n, n))), dtype) for n in (128, 256, 512)], say)
        runs = {}
        for shape in (shapes[n] for n in kept):
            runs[shape] = _with(tiles, {**tiles.cpu, dtype: ((*shape, 1.0),)}, matmul, (a, b), {}, device, rounds)
            _check(runs[shape](), want, matmul.allowed(DTYPES[dtype]), f"matmul {dtype} with tiles of {shape}")
            _progress(runs[shape], f"matmul {dtype} with tiles of {shape}", len(runs) - 1, len(kept), say)
        out[of_products.few(dtype) if beside else dtype] = _by_speed(seconds_of(runs, rounds, device), f"matmul {dtype}", say)
    return out


def _board_shapes(a, b) -> list[tuple[int, int, int]]:
    """The shape that the board's code has for a @ b so far, and those that may be better: among them what fits in a thread's scratch, where its row says
    how much that is."""
    from ..backends.spine import backend as spine
    row = dataclasses.replace(spine.board_runner().board.row(), cores=torch.get_num_threads())
    with tuning.on(row):
        now = of_products.tile_for(a, b)
    small = [t[:3] for t in of_products.fitting(row.scratch, a.dtype)] if row.scratch else []
    return list(dict.fromkeys([(now["BM"], now["BN"], now["BK"]), *of_products.SHAPES, *small]))


def _by_speed(seconds: dict, what: str, say) -> list:
    """[BM, BN, BK, speed, then the rest of the shape] of each shape that was timed, the fastest, whose speed is 1, first."""
    took = {shape: statistics.median(s) for shape, s in seconds.items()}
    best = min(took.values())
    out = sorted(([*shape[:3], round(best / t, 4), *shape[3:]] for shape, t in took.items()), key=lambda x: -x[3])
    for bm, bn, bk, speed, *how in out:
        say(f"{what} {bm}x{bn}x{bk}{''.join(f', {n} {h}' for n, h in zip(how, ('warps', 'stages')))}: {speed:.3f} of the fastest")
    return out


def gpu_matmul_speeds(tiles, rounds: int, say) -> dict:
    """What multiplies -> [BM, BN, BK, speed, warps, stages], the fastest's speed being 1: products of 4096 x 4096 x 4096."""
    matmul = registry.get("matmul")
    out = {k: [list(t) for t in v] for k, v in tiles.cuda.items()}
    for key, dtype in (("bf16", torch.float16), ("fp32", torch.float32)):
        a, b = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
        want = a.cpu().double() @ b.cpu().double()
        runs = {}
        for *shape, warps, stages in of_products.GPU_SHAPES[key]:
            run = _with(tiles, {**tiles.cuda, key: ((*shape, 1.0, warps, stages),)}, matmul, (a, b), {}, "cuda", rounds)
            try:
                got = run()
            except OutOfResources as e:
                say(f"matmul {key} {shape}, {warps} warps, {stages} stages: {e}".split("\n")[0])
                continue
            _check(got, want, matmul.allowed(dtype), f"matmul {key} with tiles of {shape}")
            runs[(*shape, warps, stages)] = run
        out[key] = _by_speed(seconds_of(runs, rounds, "cuda"), f"matmul {key}", say)
    return out
