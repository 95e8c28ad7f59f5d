"""Shared by the tests of the language: their plain kernels are on tensors of the CPU."""

import pytest
import triton  # noqa: F401, first: it looks for drivers itself
from triport.backends.dispatch import drivers


@pytest.fixture(autouse=True, scope="module")
def by_the_cpu():
    """Beside a GPU Triton's own driver would serve them."""
    with drivers.serving("cpu"):
        yield
