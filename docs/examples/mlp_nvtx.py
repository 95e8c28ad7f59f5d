"""A lecture's MLP with NVTX ranges, as written for Nsight Systems on a GPU: `annotate.as_nvtx()` lets it run, and show, anywhere.

    triport profile -o profile-mlp -- docs/examples/mlp_nvtx.py --steps 3
"""

import argparse

import torch
import torch.cuda.nvtx as nvtx
from triport.tools import annotate


def train(steps, layers=4, dim=128):
    model = torch.nn.Sequential(*(torch.nn.Linear(dim, dim) for _ in range(layers)))
    x = torch.randn(64, dim)
    for step in range(steps):
        nvtx.range_push(f"step_{step}")
        with nvtx.range("forward"):
            y = x
            for n, layer in enumerate(model):
                with nvtx.range(f"layer_{n}"):
                    y = torch.nn.functional.gelu(layer(y))
        with nvtx.range("backward"):
            y.mean().backward()
        nvtx.range_pop()
    return y


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    with annotate.as_nvtx():
        print(train(parser.parse_args().steps).shape)
