"""Large memory that Inductor's graphs take anew at each call asks for huge pages."""

import re
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from triport.backends import huge

pytestmark = pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no transparent huge pages")


def advised(x: torch.Tensor) -> bool:
    """Does the system know of advice ("hg") for what lies in the middle of a tensor?"""
    middle, found = x.data_ptr() + x.nbytes // 2, None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if m := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(m[1], 16) <= middle < int(m[2], 16)
        elif found and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no such memory")


def graph(n: int, backend: str, dynamic: bool):
    torch._dynamo.reset()
    x = torch.randn(n, n)
    got, code = run_and_get_code(torch.compile(lambda x: (x * 2 + 1, x.sum(1)), options={"cpu_backend": backend}, dynamic=dynamic), x)
    torch.testing.assert_close(got, (x * 2 + 1, x.sum(1)), rtol=1e-5, atol=1e-3)
    return got, re.findall(r"= (\w*strided_cpu)\(", "\n".join(code))


@pytest.mark.parametrize("dynamic", [False, True])
def test_large_tensors_of_graphs(dynamic):
    (large, sums), calls = graph(3100, "triton", dynamic)  # 38 MB, beyond what glibc keeps
    assert sorted(calls) == (["roomy_strided_cpu"] * 2 if dynamic else ["empty_strided_cpu", "roomy_strided_cpu"])
    assert advised(large)


def test_small_tensors_and_other_graphs_are_torchs():
    assert graph(100, "triton", False)[1] == ["empty_strided_cpu"] * 2
    assert "roomy_strided_cpu" not in graph(3100, "cpp", False)[1]


@pytest.mark.parametrize("shape, strides", [((0, 4), (4, 1)), ((1 << 20, 4), (4, 1)), ((4, 1 << 20), (1, 4)), ((3 << 20,), (1,)), ((7, 5), (8, 1))])
def test_sizes_and_strides(shape, strides):
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        made = huge.empty_strided(shape, strides, dtype)
        assert made.shape == shape and made.stride() == strides and made.dtype == dtype
        made.fill_(1)
        assert made.sum(dtype=torch.int64) == made.numel()
