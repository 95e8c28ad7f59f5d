"""A run with one of the options: what is switched on before conftest.py is imported, what each test's report says of its kernels, and what the end of
the run sums up of them. Workers of pytest-xdist each have a session; their reports carry what it saw to the one that prints."""

from __future__ import annotations

import contextlib
import os

import pytest

from . import gpus, summary
from ..backends import checking
from ..backends.base import Error, suggest
from .launches import watched

_LINT = ("warn", "error", "off")


def found_by_checks(error: BaseException | None) -> list[dict]:
    """The records of the `CheckError` that an exception is, or that caused it, as plain values."""
    while error is not None:
        if isinstance(error, checking.CheckError):
            return [{"kind": r.kind, "kernel": r.kernel, "file": r.file, "line": r.line, "program": str(tuple(r.program)), "argument": r.argument}
                    for r in error.reports]
        error = error.__cause__ or error.__context__
    return []


class Session:
    """What the options ask for, from before the first conftest.py to the end; a plugin of pytest's itself."""

    def __init__(self, options):
        self.launches, self.cpu = options.triton_launches, options.triton_cpu or options.triton_cpu_as is not None
        if options.triton_check is not None and not options.triton_check.strip(" ,"):  # as of a variable that is not set: it is no way to say "none"
            raise pytest.UsageError(f"--triton-check names no kind: it takes {', '.join(checking.KINDS)}, joined by commas, all, or off")
        try:
            self.check = checking.parse(options.triton_check, "--triton-check") if options.triton_check is not None else None
            self.gpu = gpus.get(gpus.DEFAULT if options.triton_cpu_as is None else options.triton_cpu_as)
        except Error as e:
            raise pytest.UsageError(str(e)) from None
        self.lint = ("warn" if self.cpu else "off") if options.triton_lint is None else options.triton_lint
        if self.lint not in _LINT:
            raise pytest.UsageError(f"--triton-lint: {suggest('way', self.lint, _LINT)}")
        self._open = contextlib.ExitStack()
        self._seen = None  # launches.Report of the whole run; a test's are taken out as it ends
        self._test: list = []  # launches of the test that runs, in phases that have ended
        self.told: list[dict] = []  # what reports carried: {"test": node id, "launches": ..., "checks": ..., "lint": ...}

    def start(self, config):
        """Switch on what was asked for, until the run ends."""
        config.pluginmanager.register(self, "triton-session")
        if self.cpu:
            self._set("TRITON_DEFAULT_BACKEND", "cpu")
            from .gpu import pretending
            self._open.enter_context(pretending(self.gpu))
        if self.check is not None:
            self._set(checking.VARIABLE, self.check)  # for processes that tests and xdist start
            self._open.enter_context(checking.checks(self.check))
            if "uninit" in self.check:
                from ..backends.cpu.run import unwritten
                unwritten.watch()
        self._seen = self._open.enter_context(watched())

    def _set(self, name, value):
        before = os.environ.get(name)
        os.environ[name] = value
        self._open.callback(os.environ.pop, name, None) if before is None else self._open.callback(os.environ.__setitem__, name, before)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        self._open.close()

    def pytest_report_header(self):
        out = []
        if self.cpu:
            out.append(f"triton: tests of a GPU run on this CPU; torch.cuda answers as {self.gpu.name}'s")
        if self.check:
            out.append(f"triton: kernels run with checks of {self.check.replace(',', ', ')}")
        return out

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._seen.launches.clear()
        self._test.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        launched = self._seen.launches[:]
        self._seen.launches.clear()
        self._test += launched
        found = found_by_checks(call.excinfo.value if call.excinfo else None)
        lint = sorted({text for launch in launched for text in self._findings(launch)})
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            why = self._unlaunched(item) if self.launches else ""
            if lint and self.lint == "error":
                why = "\n".join(["No GPU would take:", *lint])
            if why:
                report.outcome, report.longrepr = "failed", why
        if launched or found or (self.launches and report.when == "call"):
            by_kernel = {}
            for x in launched:
                row = by_kernel.setdefault(x.kernel, [0, 0, 0.0])
                row[x.tuning] += 1
                row[2] += x.seconds
            report.triton = {"launches": by_kernel, "checks": found, "lint": lint, "when": report.when}
        return report

    def _findings(self, launch) -> list[str]:
        if self.lint == "off":
            return []
        from . import lint
        return lint.findings(launch, self.gpu)

    def _unlaunched(self, item) -> str:
        """Why a test that is marked as a kernel's fails although it passed; "" where it does not."""
        mark = item.get_closest_marker("triton_kernel")
        if mark is None:
            return ""
        names = {x.kernel for x in self._test}
        missing = [n for n in mark.args if n not in names]
        if not names:
            wanted = f" ({', '.join(mark.args)})" if mark.args else ""
            return f"marked triton_kernel{wanted}, and it launched no Triton kernel: did it take another path, as without a GPU?"
        if missing:
            return f"marked triton_kernel({', '.join(mark.args)}), and {', '.join(missing)} was not launched; launched were {', '.join(sorted(names))}"
        return ""

    def pytest_runtest_logreport(self, report):
        if getattr(report, "triton", None):
            self.told.append({"test": report.nodeid, **report.triton})

    def pytest_terminal_summary(self, terminalreporter):
        summary.write(terminalreporter, self)
