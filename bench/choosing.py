"""The measurements behind `triport tune --choose`: a GPU's two backends, op by op, dtype by dtype, shape by shape, for `backends.use("auto")` to choose by.

What is timed was held against float64 before, and times are the GPU's own, the two in turns (`clock.on_gpu`). Kernels are compiled beforehand, by several
threads, for that takes most of the time. A shape that fails is told and leaves the others as they are.
"""

from __future__ import annotations

import dataclasses
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable, Iterator

import torch

from ..backends import get
from ..backends.base import Error
from ..ops import cases, choices, registry
from ..ops.records import DTYPES, Case, Op
from . import check, clock, noise

DTYPES_CHOSEN = ("fp32", "fp16", "bf16")
#: matrices for the ops on rows, beside their own cases: long rows, short ones, lines that 16 bytes divide and 16 elements do not, lines that nothing divides
_ROWS = ("1024x1024", "256x131072", "2048x16384", "65536x256", "32768x1000", "1024x50257", "333x257", "4096x8191")
_SQUARES = (128, 256, 512, 768, 1000, 1024, 1280, 1440, 1536, 2048, 2064, 3000, 3072, 4096)
#: products beside their own cases: squares, of which 1000 and 3000 have lines across sectors of the second cache, 1440 and 2064 across its lines; many terms, few rows, few terms, few columns, both; lines that nothing divides
_FEW_ROWS = tuple(f"{rows}x4096,4096x4096" for rows in (1, 16, 64))
_PRODUCTS = (*(f"{s}x{s},{s}x{s}" for s in _SQUARES), *_FEW_ROWS, "512x8192,8192x512", "1024x4096,4096x1024", "8192x512,512x8192", "4096x4096,4096x64", "65536x64,64x128", "65536x256,256x512", "333x257,257x511", "2047x2049,2049x2045")
#: op -> shapes beside its own cases
_GRID = {
    "add_relu": _ROWS, "add_mul_act": _ROWS,
    "softmax": (*(f"{text},dim={d}" for text in (*_ROWS, "128x128", "256x256", "512x512", "4096x2048", "4096x8192", "1823x781") for d in (0, -1)),
                "64x512x128,dim=1"),
    "matmul": (*_PRODUCTS, *(f"{s}x{s},{s}x{s}t" for s in (512, 2048, 4096)), *(f"{text}t" for text in _FEW_ROWS)),
    "matmul_softmax": tuple(f"{text},dim={d}" for text in _PRODUCTS for d in (0, -1)),
}
#: threads that compile
_THREADS = 8


@dataclass
class Measured:
    """What one op and dtype came to. times: kind of shape -> lines as the table has them; failed: a sentence for each backend that failed on a shape, or was
    wrong there."""

    op: str
    dtype: str
    times: dict[str, list] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def names() -> list[str]:
    """The ops that there is a choice for."""
    return [name for name in registry.NAMES if name in choices.LIKE]


def grid(op: Op, texts: list[str], sweeps: list[str]) -> list[Case]:
    """The cases that an op is measured on, one for each kind and sizes: those that texts and sweeps say (`ops.cases`); without them its own that run on a GPU,
    and more that lie around them. Raises `Error` for a case that the op has not."""
    if texts or sweeps:
        found = cases.sweep(op, cases.select(op, texts, "cuda"), sweeps)
    else:
        found = [*op.cases_on("cuda"), *cases.select(op, list(_GRID.get(op.name, ())), "cuda")] if op.name in _GRID else op.cases_on("cuda")
    return [_sized(op, case) for case in list({like(op, case, torch.float32): case for case in reversed(found)}.values())[::-1]]


def _sized(op: Op, case: Case) -> Case:
    """The case with values of which the result can be checked: the exponential of a sum is as wrong as the sum's roundings are large, and they grow with its
    terms. As `matmul_softmax.CASES` has it."""
    if op.name == "matmul_softmax":
        return dataclasses.replace(case, scale=0.3 * min(1.0, (1024 / case.shapes[1][0])**0.5))
    return case


def like(op: Op, case: Case, dtype: torch.dtype) -> choices.Like:
    """The kind and sizes of a case's calls."""
    return choices.LIKE[op.name](*case.blank(dtype, "meta"), *_parameters(op, case))


def _parameters(op: Op, case: Case) -> list:
    """What a call of the op gets behind its tensors, by position."""
    named = list(cases.parameters_of(op).items())[len(case.shapes):]
    return [case.kwargs.get(name, p.default) for name, p in named]


def measure(names: list[str], dtypes: list[str], texts: list[str], sweeps: list[str], rounds: int, say: Callable[[str], None]) -> Iterator[Measured]:
    """Each op and dtype in turn, as soon as it is measured, on the current GPU. `say` takes a line for every shape."""
    todo = [(registry.get(name), dtype) for name in names for dtype in dtypes if dtype in registry.get(name).dtypes]
    shapes = {op.name: grid(op, texts, sweeps) for op, _ in todo}
    total, done = sum(len(shapes[op.name]) for op, _ in todo), 0
    for op, dtype in todo:
        out = Measured(op.name, dtype)
        say(f"{op.name} {dtype}: compiling for {len(shapes[op.name])} shapes")
        _compile(op, shapes[op.name], DTYPES[dtype])
        for case in shapes[op.name]:
            done += 1
            what = f"[{done}/{total}] {op.name} {case.name} {dtype}"
            try:
                say(f"{what}: {_shape(op, case, dtype, rounds, out)}")
            except Exception as e:  # whatever it is, the other shapes stand without it
                out.failed.append(f"{op.name} {case.name} {dtype}: {_first_line(e)}")
                say(f"{what}: {_first_line(e)}")
        yield out


def _first_line(e: Exception) -> str:
    return f"{type(e).__name__}: {e}".split("\n")[0]


def _inputs(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    """As `Case.make`'s, made on the GPU, which takes it no time."""
    g = torch.Generator(_device()).manual_seed(0)
    return [t.normal_(0, case.scale, generator=g) for t in case.blank(dtype, _device())]


def _device() -> str:
    return get(choices.OTHERWISE).device


def _compile(op: Op, shapes: list[Case], dtype: torch.dtype):
    """Have each backend called once for each shape, several at a time. What fails fails again when it is measured, and is told then."""
    def once(backend: str, case: Case):
        try:
            get(backend).bind(op)(*_inputs(case, dtype), **case.kwargs)
        except Exception:
            return

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda args: once(*args), [(b, case) for case in shapes for b in (choices.OTHERWISE, choices.FASTER)]))
    get(choices.OTHERWISE).synchronize()


def _shape(op: Op, case: Case, dtype: str, rounds: int, out: Measured) -> str:
    """Check and time both backends on a shape, and add the line to `out`; what is to be said of it. Raises where `triton-gpu` fails, or is wrong: nothing is
    to be chosen there."""
    args = _inputs(case, DTYPES[dtype])
    found = choices.LIKE[op.name](*args, *_parameters(op, case))
    if found is None:
        raise Error("it is of no kind that calls are chosen for by")
    kind, sizes = found
    want = op.expected(*args, **case.kwargs)
    runs, why = {}, ""
    for name in (choices.OTHERWISE, choices.FASTER):
        run = _call(name, op, args, case.kwargs)
        try:
            e = check.error(run(), want)
            if not e <= op.allowed(DTYPES[dtype]):  # NaN is no smaller than anything
                raise Error(f"{name}: the result is wrong (error {e:.2e})")
        except Exception as problem:
            if name == choices.OTHERWISE:
                raise
            why = _first_line(problem)
            out.failed.append(f"{op.name} {case.name} {dtype}: {why}")
        else:
            runs[name] = run
    del want
    seconds = clock.on_gpu(runs, rounds)
    ours, other, unsure = _microseconds(seconds[choices.OTHERWISE]), None, 0.0
    if choices.FASTER in seconds:
        other, unsure = _microseconds(seconds[choices.FASTER]), _noise(seconds)
    out.times.setdefault(kind, []).append([*sizes, ours, other, unsure])
    if other is None:
        return f"{choices.OTHERWISE} {ours} us, {choices.FASTER} failed: {why}"
    served = choices.FASTER if choices.faster(ours, other, unsure) else choices.OTHERWISE
    return f"{choices.OTHERWISE} {ours} us, {choices.FASTER} {other} us, +-{unsure:.1%}: {served}"


def _call(name: str, op: Op, args: list, kwargs: dict) -> Callable[[], torch.Tensor]:
    bound = get(name).bind(op)
    return lambda: bound(*args, **kwargs)


def _microseconds(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 3)


def _noise(seconds: dict[str, list[float]]) -> float:
    """Half the width of the confidence interval of the two times' ratio, as a share of it; 1, which nothing is surer than, where rounds are too few to say."""
    ratio = noise.paired(seconds[choices.OTHERWISE], seconds[choices.FASTER])
    return 1.0 if ratio.ci is None else round((ratio.ci[1] - ratio.ci[0]) / 2 / ratio.median, 4)


def add(entry: dict, found: Measured, run: dict, whole: bool):
    """Put what was measured into a table's entry. run: who measured, the same for all that it measured; whole: it takes the place of all that was measured for
    the op and dtype, else of the same shapes alone."""
    kept = entry.setdefault("choices", {})
    runs = kept.setdefault("runs", [])
    by_kind = kept.setdefault("times", {}).setdefault(found.op, {}).setdefault(found.dtype, {})
    what = f"{found.op} {found.dtype}"
    if whole:
        by_kind.clear()
        for other in runs:
            other["measured"] = [m for m in other["measured"] if m != what]
    for kind, lines in found.times.items():
        fresh = {tuple(line[:-3]): line for line in lines}
        by_kind[kind] = sorted([*(line for line in by_kind.get(kind, []) if tuple(line[:-3]) not in fresh), *fresh.values()])
    mine = next((r for r in runs if {k: v for k, v in r.items() if k != "measured"} == run), None)
    if mine is None:
        runs.append(mine := {**run, "measured": []})
    mine["measured"] = sorted({*mine["measured"], what})
    kept["runs"] = [r for r in runs if r["measured"]]
