"""The tests under other conditions than this machine's: tile tables, thread counts, load.

    python tests/conditions.py [--only tiles|threads|load] [--list] [pytest's arguments]

Runs pytest once under each condition, all of the tests or what the arguments select, and says which conditions failed. A condition is
environment variables, and for load processes beside it:

- tiles: ops take those of each kind of CPU in ops/tuned.json in turn, whatever this CPU is (TRIPORT_TUNED), and the defaults.
- threads: 1, 2 and 16 threads, as torch is told when it starts (OMP_NUM_THREADS).
- load: a busy loop on every core.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import ROOT
from triport.backends.cpu.llvm import targets
from triport.ops import tuning

THREADS = (1, 2, 16)


def tables(folder: Path):
    """(name, file) of tile tables in which every vector ISA has the tiles of one kind of CPU, and of an empty one."""
    table = tuning.load(tuning.FILE)
    gpus = {kind: entry for kind, entry in table.items() if kind.startswith("sm_")}
    for n, kind in enumerate([*sorted(table.keys() - gpus.keys()), None]):
        path = folder / f"{n}.json"
        path.write_text(json.dumps(gpus | {isa: table[kind] for isa in {row.isa for row in targets.TARGETS.values()}} if kind else {}))
        yield f"tiles of {kind}" if kind else "no tiles", path


def conditions(folder: Path):
    """(group, name, environment, with load?) of each."""
    for name, path in tables(folder):
        yield "tiles", name, {"TRIPORT_TUNED": str(path)}, False
    for n in THREADS:
        yield "threads", f"{n} threads", {"OMP_NUM_THREADS": str(n)}, False
    yield "load", "a busy loop on every core", {}, True


@contextlib.contextmanager
def busy(wanted: bool):
    """A process on every core that computes for as long as this is open."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)] if wanted else []
    try:
        yield
    finally:
        for p in loops:
            p.kill()
            p.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("tiles", "threads", "load"), action="append", help="these conditions")
    parser.add_argument("--list", action="store_true", help="say which conditions there are")
    args, rest = parser.parse_known_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="triport-conditions-") as folder:
        for group, name, env, load in conditions(Path(folder)):
            if args.only and group not in args.only:
                continue
            print(f"{group}: {name}", flush=True)
            if args.list:
                continue
            with busy(load):
                code = subprocess.run([sys.executable, "-m", "pytest", *rest], cwd=ROOT, env={**os.environ, **env}).returncode
            if code:
                failed.append(f"{name} (pytest's exit code {code})")
    if failed:
        print(f"failed under: {'; '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
