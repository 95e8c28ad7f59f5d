"""Programs checked in a process of their own, which a kernel may end or hang."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import traceback
from pathlib import Path

from .check import Failure

#: a process is replaced after so many kernels: compiled code is never unloaded
KERNELS = 400
#: seconds that a kernel may take
LIMIT = 120


def serve(pipe):
    """The process: for each (seed or program) one answer, ("passed" | "invalid" | "failed" | "error", what)."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    os.environ.setdefault("TRITON_DEFAULT_BACKEND", "cpu")
    import torch
    torch.set_num_threads(min(2, torch.get_num_threads()))
    from .check import check
    from .generate import generate
    from .operations import Invalid
    try:
        for count in range(1 << 60):
            job = pipe.recv()
            if job is None:
                return
            try:
                program = generate(job) if isinstance(job, int) else job
                failure = check(program, folder)
                answer = ("failed", failure) if failure else ("passed", None)
            except Invalid as e:
                answer = "invalid", str(e)
            except Exception:
                answer = "error", traceback.format_exc()
            pipe.send(answer)
            if count % 50 == 49:
                shutil.rmtree(folder / "cache", ignore_errors=True)
                for path in folder.glob("*.py"):
                    path.unlink()
    except (EOFError, OSError, KeyboardInterrupt):  # whoever asked has gone
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Worker:
    """A process that checks programs, started again when it dies."""

    def __init__(self, limit: float = LIMIT):
        self.limit, self.process, self.pipe, self.count = limit, None, None, 0

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.count = 0

    def ask(self, job):
        """(answer, what) of a seed or a program."""
        if self.process is None or self.count >= KERNELS:
            self.stop()
            self.start()
        self.count += 1
        try:
            self.pipe.send(job)
            if not self.pipe.poll(self.limit if self.count > 1 else self.limit + 60):
                self.stop(kill=True)
                return "failed", Failure("hang", f"no end within {self.limit:.0f} seconds")
            return self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(10)
            code = self.process.exitcode
            self.stop(kill=True)
            return "failed", Failure("crash", f"the process ended with {code}")

    def test(self, program):
        """A program's Failure, or None."""
        answer, what = self.ask(program)
        return what if answer == "failed" else None

    def stop(self, kill=False):
        if self.process is None:
            return
        if not kill:
            try:
                self.pipe.send(None)
                self.process.join(5)
            except (BrokenPipeError, OSError):
                pass
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process = None


