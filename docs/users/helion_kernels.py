"""Helion's kernels on CPU tensors, autotuned and not, against float64.

`pip install helion`, then `python docs/users/helion_kernels.py [PART OF A NAME ...]`. Nothing of the library is changed."""

from __future__ import annotations

import sys
from pathlib import Path

import helion
import helion.language as hl
import torch
from helion.autotuner.random_search import RandomSearch

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402

# Helion 1.5.1 compiles ahead in processes that it has for GPUs alone; it measures in another process only within the time that it takes on a GPU
HERE = {"autotune_precompile": None, "autotune_benchmark_subprocess": False, "autotune_progress_bar": False, "autotune_log_level": 0}


@helion.kernel(autotune_effort="none")
def gelu_of_sum(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.nn.functional.gelu(x[tile] + bias[tile[1]])
    return out


@helion.kernel(autotune_effort="none")
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=1)
    return out


@helion.kernel(config=helion.Config(block_sizes=[1], reduction_loops=[64]))
def rms_norm_in_a_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        out[tile, :] = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + 1e-6) * w[:]
    return out


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, y.size(1)]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], y[inner, columns])
        out[rows, columns] = acc.to(x.dtype)
    return out


#: the fastest of three
product_of_three = helion.kernel(product, configs=[helion.Config(block_sizes=[n, n, n]) for n in (16, 32, 64)], **HERE)
#: the fastest of some that are drawn; kernels that stay on a multiprocessor (`persistent`) ask for how many a GPU has
product_searched = helion.kernel(product, autotuner_fn=lambda bound, args, **_: RandomSearch(bound, args, 5), autotune_random_seed=7,
                                 autotune_config_overrides={"pid_type": "flat"}, **HERE)


@helion.kernel(config=helion.Config(block_sizes=[1, 32, 32]))
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of (heads, steps, features), by softmax in a loop over the keys."""
    features = hl.specialize(q.size(2))
    keys, out = k.transpose(1, 2), torch.empty_like(q)
    for head, rows in hl.tile([q.size(0), q.size(1)]):
        most = hl.full([head, rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([head, rows], dtype=torch.float32)
        acc = hl.zeros([head, rows, features], dtype=torch.float32)
        for columns in hl.tile(k.size(1)):
            scores = torch.bmm(q[head, rows, :], keys[head, :, columns]) * features**-0.5
            larger = torch.maximum(most, torch.amax(scores, -1))
            weights, before = torch.exp(scores - larger[:, :, None]), torch.exp(most - larger)
            total = total * before + weights.sum(-1)
            acc = torch.baddbmm(acc * before[:, :, None], weights.to(v.dtype), v[head, columns, :])
            most = larger
        out[head, rows, :] = (acc / total[:, :, None]).to(out.dtype)
    return out


def way(kernel, by_torch, *shapes, dtype=torch.float32):
    def run():
        args = [torch.randn(s).to(dtype) for s in shapes]
        return [(kernel(*args), by_torch(*(x.double() for x in args)))]
    return run


F = torch.nn.functional
WAYS = {
    "gelu(x + bias), not tuned": way(gelu_of_sum, lambda x, b: F.gelu(x + b), (77, 133), 133),
    "softmax, not tuned": way(softmax, lambda x: x.softmax(1), (77, 133)),
    "rms_norm, a row in a loop": way(rms_norm_in_a_loop, lambda x, w: F.rms_norm(x, (133,), w, 1e-6), (77, 133), 133),
    "product, the fastest of three": way(product_of_three, torch.mm, (77, 133), (133, 65)),
    "product, random search": way(product_searched, torch.mm, (77, 133), (133, 65)),
    "product in float16, random search": way(product_searched, torch.mm, (77, 133), (133, 65), dtype=torch.float16),
    "attention": way(attention, F.scaled_dot_product_attention, (3, 64, 32), (3, 64, 32), (3, 64, 32)),
}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
