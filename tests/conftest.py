"""Shared by all tests: the import name in a bare checkout, seeds that are printed, and what a device test needs."""

import contextlib
import functools
import importlib.util
import inspect
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
    config.addinivalue_line("markers", "userland: runs a riscv64 Debian under QEMU")


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


def pytest_collection_modifyitems(items):
    """A test that takes a backend which needs a GPU is one of marker `gpu`, and skipped with the reason where there is none."""
    for item in items:
        where = getattr(item, "callspec", None) and item.callspec.params.get("where")
        if where in ("triton-gpu", "cuda"):
            item.add_marker(pytest.mark.gpu)
            if (reason := unavailable(where)):
                item.add_marker(pytest.mark.skip(reason=reason))


#: who serves the ops in a test of parameter `where`
SERVING = ("triton-cpu", "triton-gpu", "cuda")


@contextlib.contextmanager
def served_by(where: str):
    """Within it a backend serves the ops, and new tensors are on its device."""
    import torch
    from triport import backends
    if where == "triton-cpu":
        yield
        return
    with backends.use(where), torch.device(backends.get(where).device):
        yield


def everywhere(test):
    """Run a test once for each of SERVING, on that backend's device."""
    signature = inspect.signature(test)

    @functools.wraps(test)
    def run(*args, where, **kwargs):
        with served_by(where):
            return test(*args, **kwargs)

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY)])
    return pytest.mark.parametrize("where", SERVING)(run)


def unavailable(backend: str):
    """The reason why a backend cannot run here, for a visible skip."""
    from triport.backends import get
    return get(backend).unavailable()
