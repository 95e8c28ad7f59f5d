"""Programs checked in processes of their own, which a kernel may end or hang.

A process that has imported everything forks those that check, so the next one is there at once: making small what ends its process takes
hundreds of them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from pathlib import Path

from .check import Failure

#: a process is replaced after so many kernels: memory is not all given back
KERNELS = 400
#: seconds that a kernel may take
LIMIT = 120
#: how a process ends that is to be followed by none
OVER = 86


def prepare(pipe):
    """The process that forks: each fork serves until it dies, which is answered for it, or has served enough."""
    os.environ.setdefault("TRITON_DEFAULT_BACKEND", "cpu")
    import torch
    torch.set_num_threads(min(2, torch.get_num_threads()))
    import triton  # noqa: F401
    from triton.backends import backends  # noqa: F401
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    try:
        while True:
            child = os.fork()
            if not child:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a kernel that hangs ends with the one who forked
                serve(pipe, folder)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            shutil.rmtree(folder / "cache", ignore_errors=True)
            if code == OVER:
                return
            if code:
                pipe.send(("failed", Failure("crash", f"the process ended with {code}")))
    except (OSError, KeyboardInterrupt):  # whoever asked has gone
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve(pipe, folder: Path):
    """For each seed or program one answer: ("passed" | "invalid" | "failed" | "error", what). Ends the process."""
    from .check import check
    from .generate import generate
    from .operations import Invalid
    try:
        for count in range(KERNELS):
            job = pipe.recv()
            if job is None:
                os._exit(OVER)
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
        os._exit(0)
    except (EOFError, OSError, KeyboardInterrupt):
        os._exit(OVER)
    finally:
        os._exit(1)


class Worker:
    """What checks programs, started again when it hangs."""

    def __init__(self, limit: float = LIMIT):
        self.limit, self.process, self.pipe = limit, None, None

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=prepare, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def ask(self, job):
        """(answer, what) of a seed or a program."""
        new = self.process is None
        if new:
            self.start()
        try:
            self.pipe.send(job)
            if not self.pipe.poll(self.limit + (60 if new else 0)):
                self.stop(kill=True)
                return "failed", Failure("hang", f"no end within {self.limit:.0f} seconds")
            return self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.stop(kill=True)
            return "error", "the process that forks has ended"

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
            except OSError:
                pass
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process = None
