"""Reports on a program's kernels: `triport asm --run program`, and the files that TRIPORT_ASM asks for."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ...backends.base import Error


def reports(found) -> list:
    """Reports of [(`Code`, `Run`)], in that order, without bounds."""
    from . import report
    out = []
    for code, run in found:
        try:
            r = report.of(code)
        except Error as e:
            print(f"triport: {code.name}: {e}", file=sys.stderr)
            continue
        r.run = run
        out.append(r)
    return out


def write(found: list, path: Path):
    """Write reports to an .html, .json or .txt file."""
    from ...bench import whole
    from . import bound, page, record, terminal
    bound.fill(found)
    if path.suffix == ".html":
        whole.write(path, page.render(found))
    elif path.suffix == ".json":
        with whole.file(path) as f:
            record.write(found, f)
    else:
        from rich.console import Console
        with whole.file(path) as f:
            console = Console(file=f, width=160, highlight=False)
            console.print(terminal.ranking(found, console.width))
            for r in found:
                terminal.show(r, console)


def command(words: list[str]) -> list[str]:
    """What to start for `--run words`: a Python file, -m MODULE or -c CODE with this Python, or a program on PATH. Raises `Error`."""
    if not words:
        raise Error("--run takes a program and its arguments: --run train.py --steps 3, --run -m package.module, --run torchrun train.py")
    first = words[0]
    if first in ("-m", "-c"):
        if len(words) < 2:
            raise Error(f"--run {first} takes {'a module' if first == '-m' else 'code'} after it")
        return [sys.executable, *words]
    if Path(first).is_file() and (first.endswith(".py") or not os.access(first, os.X_OK)):
        return [sys.executable, *words]
    if shutil.which(first):
        return words
    raise Error(f"--run {first}: there is no such file or program")


def run(words: list[str], kernel: str = "", quiet: bool = False) -> tuple[list, int]:
    """(reports, exit code) of a program that is run to its end, in this terminal; those of its child processes are among them. kernel: only those whose
    name has that in it; quiet: the program's output goes to stderr, so that stdout is the caller's. Raises `Error`."""
    started = command(words)
    with tempfile.TemporaryDirectory(prefix="triport-asm-") as folder:
        env = {k: v for k, v in os.environ.items() if k != "TRIPORT_ASM_OWNER"} | {"TRIPORT_ASM": os.path.join(folder, "run.pickle"), "TRIPORT_ASM_MARK": os.path.join(folder, "running")}
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's: what it launched until then is judged
        try:
            child = subprocess.Popen(started, env=env, stdout=sys.stderr if quiet else None, preexec_fn=lambda: signal.signal(signal.SIGINT, before))
            try:
                code = child.wait()
            except BaseException:  # whoever ends us ends what we run
                child.terminate()
                raise
        finally:
            signal.signal(signal.SIGINT, before)
        cut = Path(env["TRIPORT_ASM_MARK"]).exists()
        found = []
        for path in sorted(Path(folder).glob("run*.pickle"), key=lambda p: (p.name != "run.pickle", p.name)):
            with path.open("rb") as f:
                found += pickle.load(f)  # noqa: S301  (what our child wrote, into a folder that is this user's alone)
    found.sort(key=lambda pair: -pair[1].seconds)
    total = sum(run.seconds for _, run in found) or 1.0
    for _, one in found:
        one.share = one.seconds / total
    if cut:
        print(f"{' '.join(words)[:80]}: it ended by a signal or by os._exit, so that it left no report: what it launched is not known", file=sys.stderr)
    elif not found:
        print(f"{' '.join(words)[:80]}: no Triton kernel was seen to be launched{_why()}", file=sys.stderr)
    chosen = [(one, run) for one, run in found if kernel in one.name]
    if found and not chosen:
        raise Error(f"--kernel {kernel}: none that {' '.join(words)[:80]} launched has it in its name: {', '.join(sorted({one.name for one, _ in found}))}")
    return reports(chosen), code if code >= 0 else 128 - code


def _why() -> str:
    if os.environ.get("TRITON_BACKENDS_IN_TREE") == "1":
        return ": TRITON_BACKENDS_IN_TREE=1 hides triport from Triton"
    from importlib.metadata import entry_points
    if not any(e.value.startswith("triport") for e in entry_points(group="triton.backends")):
        return ": Triton finds triport through the entry point of an installed triport (pip install triport)"
    return ""
