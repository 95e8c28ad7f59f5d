"""Products of square matrices over sizes: torch, torch.compile, our kernels; with the exponent by which time grows."""

from __future__ import annotations

import torch

from ... import ops
from .. import scaling
from . import common
from .variants import Variants, of_size

SIZES = {"small": (33, 64, 97), "main": (64, 128, 256, 512, 1024)}


def studies(size: str, device: str, seed: int):
    for n in of_size(SIZES, size):
        v = Variants(device)
        v.add("torch", torch.matmul)
        v.compiled(lambda a, b: torch.matmul(a, b), triton=False)  # which calls torch's product: there is nothing to fuse
        v.ours(ops.matmul)
        yield common.of_op("matmul", ((n, n), (n, n)), device, seed, v)


def steps(size: str, device: str, seed: int) -> dict:
    return next(studies(size, device, seed)).steps()


def add(parser):
    pass


def run(args) -> int:
    code, rows = common.measure(studies(args.size, args.device, args.seed), args)
    for name in dict.fromkeys(r["backend"] for r in rows):
        right = [r for r in rows if r["backend"] == name and r["status"] == "ok"]
        if len(right) > 1:
            law = scaling.fit([int(r["case"].partition("x")[0]) for r in right], [common.stats(r, args.clock)["p50"] for r in right])
            print(f"{name}: {common.basis(args)} grows as n ** {law.text} (n ** 3 is what the flops do)")
    return code
