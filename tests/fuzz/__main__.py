"""python -m tests.fuzz: random kernels until the time is over; every failing one is made small and written to a folder."""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from pathlib import Path

from . import repro, source
from .generate import generate
from .reduce import reduce
from .worker import Worker


class Session:
    """What the jobs share: the next seed, the counts, the folder of failures."""

    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.minutes * 60 if options.minutes else None
        self.lock = threading.Lock()
        self.next, self.count, self.invalid = options.seed, 0, 0
        self.failures: list[str] = []
        self.kinds: dict[str, int] = {}
        self.began = time.monotonic()

    def take(self) -> int | None:
        """The next seed, or None at the end."""
        with self.lock:
            given = self.next - self.options.seed
            over = self.options.kernels and given >= self.options.kernels or self.end and time.monotonic() > self.end
            if over or self.options.failures and len(self.failures) >= self.options.failures:
                return None
            self.next += 1
            return self.next - 1

    def done(self, seed: int, answer: str, what):
        with self.lock:
            self.count += 1
            self.invalid += answer == "invalid"
            if answer in ("failed", "error"):
                self.failures.append(f"seed {seed}: {what.kind if answer == 'failed' else 'error in the fuzzer'}")
                print(f"seed {seed}: {f'{what.kind}: {what.detail[:300]}' if answer == 'failed' else what}", flush=True)
            if self.count % 100 == 0:
                minutes = (time.monotonic() - self.began) / 60
                print(f"{self.count} kernels in {minutes:.1f} minutes, up to seed {seed}, {len(self.failures)} failing", flush=True)

    def written(self, seed: int, program, failure, worker: Worker):
        """Write a failing program and its small form."""
        folder = self.options.out
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{seed}.py").write_text(repro.script(program, failure))
        with self.lock:
            self.kinds[failure.cause] = self.kinds.get(failure.cause, 0) + 1
            if self.options.tries == 0 or self.kinds[failure.cause] > self.options.reduce_each:
                return
        small, how = reduce(program, failure, worker.test, self.options.tries)
        (folder / f"{seed}_small.py").write_text(repro.script(small, how))
        lines = source.kernel(small)
        with self.lock:
            print(f"seed {seed}: {len(lines)} lines: {folder / f'{seed}_small.py'}\n" + "\n".join("    " + x for x in lines), flush=True)


def work(session: Session):
    worker = Worker(session.options.limit)
    while (seed := session.take()) is not None:
        answer, what = worker.ask(seed)
        session.done(seed, answer, what)
        if answer == "failed":
            session.written(seed, generate(seed), what, worker)
    worker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="run so long")
    parser.add_argument("--kernels", type=int, help="run so many")
    parser.add_argument("--failures", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the next kernels have the next ones")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"), help="folder for failing kernels")
    parser.add_argument("--tries", type=int, default=600, help="attempts to make a failing kernel small; 0: none")
    parser.add_argument("--reduce-each", type=int, default=1000, help="kernels of one kind of failure that are made small")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a kernel may take")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    if not (options.minutes or options.kernels or options.failures):
        options.minutes = 1
    print(f"seed {options.seed}", flush=True)
    session = Session(options)
    threads = [threading.Thread(target=work, args=(session,)) for _ in range(options.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    minutes = (time.monotonic() - session.began) / 60
    print(f"{session.count} kernels from seed {options.seed} in {minutes:.1f} minutes, {session.invalid} without a defined result, "
          f"{len(session.failures)} failing")
    for line in session.failures:
        print("  " + line)
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
