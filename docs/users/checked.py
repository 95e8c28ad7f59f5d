"""What the scripts of this folder share: run each way that a library is used, hold its result against float64, count the kernels, print a line for each."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from triport.checking import CheckError
from triport.ops.accuracy import error
from triport.testing import launches

#: a way gives pairs of a result and what it should be, computed in float64
Way = Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]
#: for each element type the largest error, in norm, relative to what is wanted
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float8_e5m2: 0.1}


def run(name: str, way: Way) -> tuple[bool, float, int]:
    """(right?, the largest error, how many Triton kernels were launched) of one way; what launched none is not right. Random inputs are the same
    each time."""
    torch.manual_seed(0)
    with launches.watched() as report:
        pairs = way()
    errors = [(error(got, want), ALLOWED.get(got.dtype, 0.0)) for got, want in pairs]
    right = bool(errors and report.launches) and all(e <= allowed for e, allowed in errors)
    return right, max((e for e, _ in errors), default=float("inf")), len(report.kernels)


def main(ways: dict[str, Way]) -> int:
    """A line for each way, or for those that the command line names by a part of their name; 1 where one is wrong."""
    wanted = {n: w for n, w in ways.items() if not sys.argv[1:] or any(part in n for part in sys.argv[1:])}
    wrong = not wanted
    for name, way in wanted.items():
        try:
            right, e, kernels = run(name, way)
            said = f"{'right' if right else 'WRONG'}, error {e:.1e}, {kernels} kernel{'s' * (kernels != 1)}"
        except Exception as reason:
            lines = str(reason).strip().splitlines() or [""]  # Triton's own errors begin with a place, and end with what is wrong
            right, said = False, f"FAILED: {type(reason).__name__}: {' '.join(lines[::len(lines) - 1 or 1]) if lines[0].endswith(':') else lines[0]}"
            if isinstance(reason, CheckError):
                said = "\n".join([said, *lines[1:5]])  # the access: line, program, element, and why it was made
        wrong |= not right
        print(f"{name:<42} {said}", flush=True)
    return int(wrong)
