"""Shared by all tests: the import name in a bare checkout, seeds that are printed, and what a device test needs."""

import importlib.util
import os
import random
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("triport") is None:  # not installed: the folders are the package
    module = types.ModuleType("triport")
    module.__path__ = [str(ROOT)]
    sys.modules["triport"] = module

SEED = int(os.environ.get("TRIPORT_SEED", random.SystemRandom().randrange(1 << 31)))


def pytest_report_header(config):
    return f"triport: inputs from TRIPORT_SEED={SEED}"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if terminalreporter.stats.get("failed"):  # -q leaves the header out
        terminalreporter.write_line(f"inputs were from TRIPORT_SEED={SEED}")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")


@pytest.fixture
def seed(request):
    """A seed of this test's own, from the run's printed one."""
    return (SEED + sum(map(ord, request.node.nodeid))) % (1 << 31)


@pytest.fixture
def tmp_cache(tmp_path, monkeypatch):
    """A Triton cache of this test's own: what it launches is compiled."""
    from triton import knobs
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return tmp_path


def unavailable(backend: str):
    """The reason why a backend cannot run here, for a visible skip."""
    from triport.backends import get
    return get(backend).unavailable()
