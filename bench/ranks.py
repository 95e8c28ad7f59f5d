"""The ranks of `triport bench --distributed`: a process group from torchrun's environment, and who of it has died.

torch says of a rank that died at best which connection closed, and with NCCL nothing before a timeout ends the process. So every rank leaves a mark in the
group's store each half second, from a thread of its own. Whose mark stays the same for the timeout has died, or hangs with its interpreter: the others name it,
with its machine, and end. The thread ends the process, for the main one waits within a collective then; after an error of torch's, or the SIGTERM that
torchrun sends the rest, a mark has to stay the same for a few seconds only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Iterator

import torch
import torch.distributed as dist

from ..backends.base import Error, Unavailable

#: seconds between marks, and for how many a mark stays the same where something else says that a rank has gone
BEAT, SOON = 0.5, 3.0
#: how ranks are started, for who did not
COMMAND = "torchrun --nproc-per-node 2 -m triport.tools bench --distributed"


def device_here(asked: str | None) -> str:
    """Where this machine's ranks compute: "cuda" where each has a GPU of its own, else "cpu". asked: --device. Raises `Unavailable`."""
    gpus, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if asked == "cuda" and gpus < ranks:
        raise Unavailable(f"--device cuda: {ranks} ranks on {socket.gethostname()} and {gpus} GPUs; start no more than one rank for each GPU")
    return asked or ("cuda" if gpus >= ranks and gpus else "cpu")


@contextlib.contextmanager
def group(device: str, timeout: float) -> Iterator[Marks]:
    """Within it torch.distributed's process group is up, of torchrun's ranks; gives this rank's marks. timeout: seconds that a rank may be silent, and that a
    collective may take. Raises `Error` outside of torchrun, and where a rank dies: with its number and machine."""
    missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise Error(f"--distributed runs under torchrun, which starts the ranks ({', '.join(missing)} not set): {COMMAND}")
    if not dist.is_available():
        raise Unavailable(f"--distributed: torch {torch.__version__} was built without torch.distributed")
    wait = timedelta(seconds=timeout)
    try:
        store, rank, world = next(dist.rendezvous("env://", timeout=wait))
        store.set_timeout(wait)
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        marks = Marks(store, rank, world, timeout)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=world, timeout=wait)
        dist.barrier()
    except (RuntimeError, ValueError) as e:  # dist.DistError is a RuntimeError
        raise Error(f"--distributed: the ranks did not meet within {timeout:g} s at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: "
                    f"{str(e).splitlines()[0]}") from e
    with marks.left():
        try:
            yield marks
            dist.barrier()  # who is done early ends no other's connections
        except BaseException as e:
            theirs = isinstance(e, RuntimeError) and not isinstance(e, Error)  # as torch says that a connection closed
            marks.say(f"{'cut off' if theirs else 'failed'}: {type(e).__name__}: {e}".splitlines()[0])
            if theirs and (said := marks.who(SOON)):
                raise Error(said) from e
            raise
        marks.say("done")
        dist.destroy_process_group()


class Marks:
    """What ranks say of themselves in a store: machine, and a count that goes up while they live, or how they ended."""

    def __init__(self, store, rank: int, world: int, timeout: float):
        self.rank, self.world, self.timeout = rank, world, timeout
        self.store = dist.PrefixStore("triport", store.clone())  # a connection of its own: the thread may not wait for the main one's
        self.store.set(f"host {rank}", socket.gethostname())
        self.store.set(f"mark {rank}", "0")
        self.lock, self.count, self.ended = threading.Lock(), 0, ""
        self.seen: dict[int, tuple[bytes, float]] = {}

    def say(self, ended: str):
        """This rank's last mark."""
        with self.lock:
            self.ended = ended
            self.store.set(f"mark {self.rank}", ended)

    def _beat(self):
        with self.lock:
            if not self.ended:
                self.count += 1
                self.store.set(f"mark {self.rank}", str(self.count))

    def _look(self) -> list[tuple[float, int, str]]:
        """(seconds that its mark has been the same, rank, mark) of every other."""
        now = time.monotonic()
        for rank in range(self.world):
            if rank != self.rank:
                mark = self.store.get(f"mark {rank}")
                if self.seen.get(rank, (None, 0))[0] != mark:
                    self.seen[rank] = mark, now
        return [(now - since, rank, mark.decode()) for rank, (mark, since) in self.seen.items()]

    def gone(self, silent: float, failed: float = 0.0) -> str | None:
        """A sentence on who has died: whose mark has been the same for `silent` seconds, or for `failed` that it failed."""
        for since, rank, mark in self._look():
            if mark.startswith("failed") and since >= failed:
                return f"{self._name(rank)} {mark}; {self._name(self.rank)} ends"
            if mark.isdigit() and since >= silent:
                return (f"{self._name(rank)} has died or hangs: nothing was heard of it for {since:.0f} s (--timeout {self.timeout:g}s); "
                        f"{self._name(self.rank)} ends")
        return None

    def who(self, silent: float) -> str | None:
        """As `gone`, for which it waits so long."""
        end, said = time.monotonic() + silent + 2 * BEAT, None
        try:
            while said is None and time.monotonic() < end:
                said = self.gone(silent)
                time.sleep(BEAT / 2)
        except RuntimeError as e:
            return self._no_store(e)
        return said

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self.store.get(f'host {rank}').decode()}"

    def _no_store(self, e: Exception) -> str:
        return (f"the ranks' store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} is gone, and with it the first machine's torchrun or rank 0: "
                f"{str(e).splitlines()[0]}; rank {self.rank} on {socket.gethostname()} ends")

    @contextlib.contextmanager
    def left(self):
        """Within it this rank's marks are left and the others' looked at, by a thread."""
        done = threading.Event()
        told, tell = os.pipe()  # Python's handlers run in the main thread, which may be waiting in a collective: the signal's number comes here
        os.set_blocking(tell, False)
        os.set_blocking(told, False)
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        fd = signal.set_wakeup_fd(tell)

        def work():
            try:
                while not done.wait(BEAT):
                    self._beat()
                    if self.ended:
                        continue  # the main thread has an exception, and looks for the reason
                    with contextlib.suppress(BlockingIOError):
                        if signal.SIGTERM in os.read(told, 64):
                            _end(self.who(SOON), 128 + signal.SIGTERM)
                    if said := self.gone(self.timeout, SOON):
                        _end(said)
            except RuntimeError as e:
                if not done.is_set():
                    _end(self._no_store(e))

        thread = threading.Thread(target=work, name="triport-marks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(2 * BEAT)
            signal.set_wakeup_fd(fd)
            signal.signal(signal.SIGTERM, before)
            for end in (told, tell):
                os.close(end)


def _end(said: str | None, code: int = 2):
    """End this process, whatever its main thread waits for."""
    if said:
        print(f"triport bench: {said}", file=sys.stderr, flush=True)
    os._exit(2 if said else code)
