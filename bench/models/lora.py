"""A linear layer with LoRA's factors, its weight frozen: forward, and forward with backward, at ranks 8 to 64.

Eager computes x w + s ((x a) b) in five passes; `lora_linear` is two kernels. The gradients are of x, a and b, as inside a network. Each variant is
compared with float64 before any is timed; then they take turns (bench/clock.py), and a ratio is the median of the rounds' own ratios.

    python -m triport.bench.models.lora --rows 512 --rows 2048 --dtype fp32 --dtype bf16
"""

from __future__ import annotations

import argparse
import sys
from typing import Callable

import torch

from ...backends import get
from ...backends.base import Error
from ...ops import registry
from ...ops.common import DTYPES
from .. import check, clock

RANKS = (8, 16, 32, 64)
SCALE = 0.5
PASSES = ("forward", "forward+backward")
#: accepted normalised error of a step's tensors, by dtype: eager rounds between its steps
ALLOWED = {"fp32": 1e-5, "bf16": 0.05, "fp16": 0.01, "fp64": 1e-12}


def tensors(size: tuple[int, int, int, int], device: str, seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x: M x K, w: K x N, a: K x R, b: R x N and the result's gradient, for size (M, K, N, R); products have a variance of about 1."""
    m, k, n, r = size
    g = torch.Generator("cpu").manual_seed(seed)
    shapes = ((m, k), 1.0), ((k, n), k**-0.5), ((k, r), k**-0.5), ((r, n), r**-0.5), ((m, n), 1.0)
    return [(torch.randn(s, generator=g) * scale).to(dtype).to(device) for s, scale in shapes]


def _step(fn: Callable, made: list[torch.Tensor], backward: bool) -> Callable:
    x, w, a, b, grad = made
    if not backward:
        def forward():
            with torch.no_grad():
                return [fn(x, w, a, b, SCALE)]

        return forward
    x, a, b = (t.clone().requires_grad_() for t in (x, a, b))

    def both():
        out = fn(x, w, a, b, SCALE)
        return [out.detach(), *torch.autograd.grad(out, (x, a, b), grad)]

    return both


def steps(size, device: str, seed: int, dtype: str = "fp32", backward: bool = True) -> dict[str, Callable]:
    """Variant -> one step, for size (M, K, N, R): it returns the result and, with `backward`, the gradients of x, a and b. torch-compile is there
    where it can run."""
    op = registry.get("lora_linear")
    made = tensors(size, device, seed, DTYPES[dtype])
    out = {"eager": _step(op.eager, made, backward), "triport": _step(op.call, made, backward)}
    if get("torch-compile").unavailable() is None:
        out["torch-compile"] = _step(torch.compile(op.eager, dynamic=False), made, backward)
    return out


def wrong(made: dict[str, Callable], size, device: str, seed: int, dtype: str, backward: bool) -> dict[str, float]:
    """Variant -> its largest normalised error, of those beyond what is accepted."""
    wide = [t.double() for t in tensors(size, device, seed, DTYPES[dtype])]
    wanted = _step(registry.get("lora_linear").eager, wide, backward)()
    errors = {name: max(map(check.error, step(), wanted)) for name, step in made.items()}
    return {name: e for name, e in errors.items() if not e <= ALLOWED[dtype]}


def add(parser: argparse.ArgumentParser):
    parser.add_argument("--rows", type=int, action="append", metavar="M", help="rows of x (default: 512 and 2048)")
    parser.add_argument("--width", type=int, default=1024, metavar="N", help="columns of x and of the result (default: 1024)")
    parser.add_argument("--rank", type=int, action="append", metavar="R", help=f"rank of the update (default: {', '.join(map(str, RANKS))})")
    parser.add_argument("--dtype", action="append", choices=sorted(ALLOWED), help="element type (default: fp32 and bf16)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=10, help="rounds of turns (default: 10)")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (default: as many as it takes)")
    parser.add_argument("--seed", type=int, default=0)


def _checked(args):
    for name, values in (("rows", args.rows), ("rank", args.rank), ("width", [args.width]), ("rounds", [args.rounds])):
        if min(values) < 1:
            raise Error(f"lora: --{name} {min(values)}: it takes 1 or more")
    if args.threads < 0:
        raise Error(f"lora: --threads {args.threads}: it takes 1 or more, or 0 for torch's own number")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise Error("lora: --device cuda: torch sees no GPU here; --device cpu runs everywhere")


def run(args) -> int:
    """Print the table; 1 where a variant was wrong. Raises `Error`."""
    args.rows, args.rank, args.dtype = args.rows or [512, 2048], args.rank or list(RANKS), args.dtype or ["fp32", "bf16"]
    _checked(args)
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads or before)
    try:
        return _table(args)
    finally:
        torch.set_num_threads(before)


def _table(args) -> int:
    from rich.console import Console
    from rich.table import Table

    def wait():
        if args.device == "cuda":
            torch.cuda.synchronize()

    status = 0
    table = Table("x, w", "rank", "dtype", "pass", "eager", "torch-compile", "triport", "against eager", "against torch-compile")
    for dtype, m, r, which in ((d, m, r, p) for d in args.dtype for m in args.rows for r in args.rank for p in PASSES):
        size, backward = (m, args.width, args.width, r), which != "forward"
        torch._dynamo.reset()
        made = steps(size, args.device, args.seed, dtype, backward)
        for name, error in wrong(made, size, args.device, args.seed, dtype, backward).items():
            print(f"{m}x{args.width} rank {r} {dtype} {which}: {name} is wrong: error {error:.1e}, accepted {ALLOWED[dtype]:.0e}", file=sys.stderr)
            del made[name]
            status = 1
        turns = {name: (step, wait) for name, step in made.items()}
        walls = {name: s.wall for name, s in clock.interleave(turns, args.rounds).items()} if turns else {}
        table.add_row(f"{m}x{args.width}, {args.width}x{args.width}", str(r), dtype, which,
                      *(_time(walls.get(name)) for name in ("eager", "torch-compile", "triport")),
                      *(_ratio(walls.get(name), walls.get("triport")) for name in ("eager", "torch-compile")))
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    print(f"medians of {args.rounds} rounds; ratios: median (p20 to p80) of each round's own; threads: {torch.get_num_threads()}; w is frozen",
          file=sys.stderr)
    return status


def _time(wall: list[float] | None) -> str:
    return "" if wall is None else f"{clock.summary(wall)['p50'] * 1e3:.2f} ms"


def _ratio(other: list[float] | None, ours: list[float] | None) -> str:
    if other is None or ours is None:
        return ""
    q = clock.summary([o / t for o, t in zip(other, ours)])
    return f"{q['p50']:.2f}x ({q['p20']:.2f} to {q['p80']:.2f})"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m triport.bench.models.lora", description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add(parser)
    try:
        return run(parser.parse_args(argv))
    except Error as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
