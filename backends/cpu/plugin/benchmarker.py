"""What `triton.autotune` times a configuration with on the CPU: short, with warm caches, no device events.

Triton's own fills a buffer before each of some hundred runs, to empty a GPU's L2: on a CPU that would time memory, and take longer
than the search saves.
"""

from __future__ import annotations

import statistics
import time

#: seconds that a configuration is timed for, and how many samples at least and at most
BUDGET, FEWEST, MOST = 0.015, 5, 60
#: seconds that one sample takes at least: the clock and a launch's jitter stay below a hundredth of it
SAMPLE = 1e-4


def benchmark(fn, warmup=None, rep=None, grad_to_none=None, quantiles=None, return_mode: str = "mean"):
    """Milliseconds that `fn()` takes, as `triton.testing.do_bench` gives them: a list for `quantiles` (each 0 to 1), else one number
    by `return_mode` (mean, median, min, max), or every sample ("all"). `warmup` and `rep` (milliseconds) lengthen it where given."""
    if return_mode not in ("mean", "median", "min", "max", "all"):
        raise ValueError(f"return_mode is {return_mode!r}; it takes mean, median, min, max or all")
    fn()
    once = _seconds(fn, 1)
    end = time.perf_counter() + (warmup or 0) / 1e3
    while time.perf_counter() < end:
        fn()
    times = max(1, round(SAMPLE / max(once, 1e-7)))
    count = max(FEWEST, min(MOST, round((rep / 1e3 if rep else BUDGET) / max(once * times, 1e-7))))
    samples = []
    for _ in range(count):
        for x in grad_to_none or ():
            x.grad = None
        samples.append(1e3 * _seconds(fn, times))
    if quantiles is not None:
        import numpy as np
        return np.quantile(samples, quantiles).tolist()
    return samples if return_mode == "all" else {"mean": statistics.fmean, "median": statistics.median, "min": min,
                                                 "max": max}[return_mode](samples)


def _seconds(fn, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        fn()
    return (time.perf_counter() - start) / times
