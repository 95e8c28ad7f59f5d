"""Peak memory of one call: the most bytes of tensors alive at once beyond the inputs."""

from __future__ import annotations

import contextlib
import os
import sys

import torch


@contextlib.contextmanager
def quiet():
    """Without what the profiler writes to stderr from C++ at every start (torch 2.13 "USDT" lines, at any log level)."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def peak(fn, device: str = "cpu") -> int:
    """Bytes. On the CPU from the profiler's allocation events; a compiler's own scratch is not among them."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fn()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        keep = fn()
    live = top = 0
    for e in prof.profiler.kineto_results.events():
        if e.name() == "[memory]":
            live += e.nbytes()
            top = max(top, live)
    del keep
    return top
