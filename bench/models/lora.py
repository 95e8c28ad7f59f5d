"""A linear layer with LoRA's factors, its weight frozen: forward, and forward with backward, at ranks 8 to 64.

torch computes x w + s ((x a) b) in five passes; `lora_linear` is two kernels. The gradients are of x, a and b, as inside a network.
"""

from __future__ import annotations

from functools import partial

import torch

from ...backends.base import Error, suggest
from ...ops import registry
from ...ops.records import DTYPES
from . import common
from .variants import Variants, of_size

#: size -> the (M, K, N) of x: M x K and w: K x N, ranks, dtypes
SIZES = {"small": (((33, 48, 40),), (5,), ("fp32",)), "main": (((512, 1024, 1024), (2048, 1024, 1024)), (8, 16, 32, 64), ("fp32", "bf16"))}
SCALE = 0.5
#: accepted normalised error of a step's tensors, by dtype: torch rounds between its passes
ALLOWED = {"fp32": 1e-5, "bf16": 0.05, "fp16": 0.01, "fp64": 1e-12}


def tensors(m: int, k: int, n: int, rank: int, device: str, seed: int, dtype: str) -> tuple[torch.Tensor, ...]:
    """x: M x K, w: K x N, a: K x R, b: R x N and the result's gradient; products have a variance of about 1. x, a and b ask for gradients."""
    g = torch.Generator("cpu").manual_seed(seed)
    shapes = ((m, k), 1.0), ((k, n), k**-0.5), ((k, rank), k**-0.5), ((rank, n), rank**-0.5), ((m, n), 1.0)
    made = [(torch.randn(s, generator=g) * scale).to(DTYPES[dtype]).to(device) for s, scale in shapes]
    for t in (made[0], made[2], made[3]):
        t.requires_grad_()
    return tuple(made)


def forward(fn, x, w, a, b, grad) -> list[torch.Tensor]:
    with torch.no_grad():
        return [fn(x, w, a, b, SCALE)]


def forward_backward(fn, x, w, a, b, grad) -> list[torch.Tensor]:
    out = fn(x, w, a, b, SCALE)
    return [out.detach(), *torch.autograd.grad(out, (x, a, b), grad)]


def studies(size: str, device: str, seed: int, ranks=(), dtypes=()):
    op = registry.get("lora_linear")
    shapes, known_ranks, known_dtypes = of_size(SIZES, size)
    for dtype in dtypes or known_dtypes:
        for m, k, n in shapes:
            for rank in ranks or known_ranks:
                for name, run in (("forward", forward), ("forward+backward", forward_backward)):
                    v = Variants(device)
                    v.add("torch", op.eager)
                    v.compiled(op.eager, triton=False)
                    v.ours(op.call)
                    v.calls.pop("cuda", None)  # which has no such op
                    v.left_out.pop("cuda", None)
                    whole, thin = m * k * n, m * rank * (k + n)
                    back = run is forward_backward  # of x: one whole product and both thin ones; of a and b: a thin one each
                    yield common.Study("lora_linear", f"{m}x{k},{k}x{n} rank {rank} {name}", v.each(lambda fn, run=run: partial(run, fn)),
                                       tensors(m, k, n, rank, device, seed, dtype), partial(run, op.eager), dtype=dtype, allowed=ALLOWED[dtype],
                                       flops=2 * (whole * (1 + back) + thin * (1 + 2 * back)), left_out=v.left_out)


def steps(size: str, device: str, seed: int) -> dict:
    return list(studies(size, device, seed))[-1].steps()


def add(parser):
    parser.add_argument("--rank", type=int, action="append", metavar="R", help="rank of the update; repeatable (default: 8, 16, 32, 64)")
    parser.add_argument("--dtype", action="append", metavar="NAME", help="element type; repeatable (default: fp32 and bf16)")


def run(args) -> int:
    for rank in args.rank or ():
        if rank < 1:
            raise Error(f"--rank {rank}: it takes a number from 1 up")
    for dtype in args.dtype or ():
        if dtype not in ALLOWED:
            raise Error(suggest("dtype", dtype, ALLOWED))
    return common.measure(studies(args.size, args.device, args.seed, args.rank or (), args.dtype or ()), args)[0]
