"""The hooks: options, what they switch on, and what each test's report carries to the end of the run.

pytest imports this in every run on a machine where triport is installed, so it imports nothing but the standard library and pytest until
an option asks for more. What is switched on is so before the first conftest.py is imported: projects ask for a GPU there.
"""

from __future__ import annotations

import copy

import pytest

#: what is checked (`backends.checking.KINDS`)
KINDS = "bounds, race, uninit, overflow, nan"
#: options that may stand without a value -> the value that they then have
BARE = {"--triton-check": "1", "--triton-lint": "warn"}
MARKER = "triton_kernel(*names): the test launches a Triton kernel (those of these names); with --triton-launches it fails if it launched none"


def pytest_addoption(parser):
    group = parser.getgroup("triton", "Triton kernels (triport)")
    group.addoption("--triton-check", metavar="KINDS", nargs="?", const=BARE["--triton-check"],
                    help=f"run kernels on the CPU with checks: {KINDS}, with commas between, or all; without a value bounds,race. An access outside a tensor, a race and so "
                         "on is an exception in the test, and all are summed up at the end")
    group.addoption("--triton-cpu", action="store_true",
                    help="run a GPU's tests on this CPU: device=\"cuda\", .cuda() and torch.cuda are answered; what cannot be is skipped with the reason")
    group.addoption("--triton-cpu-as", metavar="GPU", help="--triton-cpu, and which GPU torch.cuda describes (default: h100)")
    group.addoption("--triton-launches", action="store_true",
                    help="how often each test launched which kernels; tests marked triton_kernel that launched none fail")
    group.addoption("--triton-lint", metavar="HOW", nargs="?", const=BARE["--triton-lint"],
                    help="what no GPU would take of the kernels launched: warn at the end (the default with --triton-cpu), error: their tests fail, off")


def pytest_configure(config):
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config, parser, args):
    if _bare_made_whole(args):
        known = early_config.known_args_namespace
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
        early_config.known_args_namespace.confcutdir = known.confcutdir
    options = early_config.known_args_namespace
    if any(getattr(options, name) not in (None, False) for name in ("triton_check", "triton_cpu", "triton_cpu_as", "triton_launches", "triton_lint")):
        from .session import Session
        Session(options).start(early_config)


def _bare_made_whole(args: list) -> bool:
    """`--triton-check tests/` means `--triton-check=1 tests/`: argparse would take the path for the value. Changes `args`; has it changed any?"""
    end = args.index("--") if "--" in args else len(args)
    bare = [n for n, arg in enumerate(args[:end]) if arg in BARE]
    for n in bare:
        args[n] = f"{args[n]}={BARE[args[n]]}"
    return bool(bare)


@pytest.fixture
def triton_kernel_report():
    """The launches of Triton kernels in this test so far: `.launches`, in order, each with `kernel`, `grid`, `constexprs`, `options`, `seconds` and
    `reports` (what --triton-check found in it); `.kernels`, how often each was launched; `.seconds` of all."""
    from .launches import watched
    with watched() as report:
        yield report
