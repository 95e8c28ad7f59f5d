"""`triport tune`: search the ops' tiles on this machine, or measure which of a GPU's two backends is the faster, and write the table."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

EXAMPLES = (
    "triport tune --op square --dry-run",
    "triport tune --op matmul --dtype fp32 --threads 2",
    "triport tune --on ssh:user@board -o tuned.json",
    "triport tune --on ssh:user@board --op matmul --most 8",
    "triport tune --choose -o tuned.json",
)
#: by which part tiles must be faster than the default
GAIN = 0.02


def add(parser):
    parser.add_argument("--op", action="append", default=[], metavar="NAME", help="an op with candidates; repeatable (default: all)")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME", help="repeatable (default: fp32 and bf16; on a GPU fp32 and fp16)")
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="search over these: sizes like 700x300, or a case's name or part of it; "
                        "repeatable (default: the op's own)")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A..B", help="these with other sizes: M=256..8192:x2; repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to search for (default: cpu)")
    parser.add_argument("--choose", action="store_true", help="on a GPU: measure triton-gpu and cuda on many shapes, which backends.use(\"auto\") chooses between by "
                        "(default dtypes: fp32, fp16 and bf16)")
    parser.add_argument("--on", metavar="RUNNER", help="search for a board, on it: ssh:user@board, qemu:riscv64?vlen=256 or local; several with commas between them")
    parser.add_argument("--most", type=int, metavar="N", help="with --on: measure the default and the N candidates that llvm-mca's model of the board's CPU "
                        "predicts to be fastest; 0: all (default: 4)")
    parser.add_argument("--reps", type=int, default=7, metavar="N", help="rounds of timing (default: 7)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's number)")
    parser.add_argument("--gain", type=float, default=GAIN, metavar="X",
                        help=f"a candidate replaces the default only if it is faster by this part over all cases (default: {GAIN})")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table to update (default: the one that ops read)")
    parser.add_argument("--dry-run", action="store_true", help="search and print, write nothing")


def run(args) -> int:
    import torch

    from ..backends import get
    from ..backends.base import Error, Unavailable, suggest
    from ..backends.cpu.llvm import targets
    from ..bench import counts, search
    from ..ops import tuning
    from ..ops.records import DTYPES

    if args.choose:
        return _choose(args)
    names = args.op or search.names(args.device)
    for name in names:
        if name not in search.searches():
            raise Error(suggest("op to tune", name, search.searches()))
    for d in args.dtype:
        if d not in DTYPES:
            raise Error(suggest("dtype", d, DTYPES))
    counts.check(reps=args.reps, threads=args.threads)
    if not 0 <= args.gain < 1:
        raise Error(f"--gain {args.gain}: it takes a part from 0 up to 1, as 0.02")
    if args.dry_run and args.output:
        raise Error("--dry-run writes nothing: leave it or -o out")
    path = args.output or tuning.path()
    if not args.dry_run:
        tuning.writable(path)
    tuning.load(path)
    if args.on and args.device == "cuda":
        raise Error("--on is for a board's CPU; it does not go with --device cuda")
    if args.most is not None and not args.on:
        raise Error("--most goes with --on: on this machine every candidate is measured")
    if args.most is not None and args.most < 0:
        raise Error(f"--most {args.most}: it takes how many candidates are measured beside the default, or 0 for all")
    if args.device == "cuda" and (reason := get("triton-gpu").unavailable()):
        raise Unavailable(f"--device cuda: {reason}")
    search.checked(names, args.dtype, args.device, args.case, args.sweep)
    if args.threads:
        torch.set_num_threads(args.threads)
    if not args.on:
        kind = tuning.gpu_kind() if args.device == "cuda" else tuning.kind(targets.native())
        return _search(args, names, kind, args.device, torch.cuda.get_device_name() if args.device == "cuda" else None)
    from ..backends.spine import backend as spine
    from ..bench.prune import Pruning
    from .predict import Predictor
    with spine.on(args.on) as runner:
        if not args.threads:
            torch.set_num_threads(runner.board.cores)  # by which tiles are chosen
        row = runner.board.row()
        pruning = Pruning(Predictor(dataclasses.replace(row, cores=torch.get_num_threads())), 4 if args.most is None else args.most)
        return _search(args, names, tuning.kind(row), "board", runner.board.cpu, pruning)


def _choose(args) -> int:
    import torch

    from ..backends import get
    from ..backends.base import Error, Unavailable, suggest
    from ..bench import choosing, counts, noise
    from ..ops import choices, registry, tuning
    from ..ops.records import DTYPES
    from . import exits

    for option, given in (("--on", args.on), ("--most", args.most is not None), ("--threads", args.threads), ("--gain", args.gain != GAIN)):
        if given:
            raise Error(f"{option} does not go with --choose, which measures the two backends of this machine's GPU")
    for name in args.op:
        if name not in choosing.names():
            raise Error(suggest("op to choose for", name, choosing.names()))
    for d in args.dtype:
        if d not in DTYPES:
            raise Error(suggest("dtype", d, DTYPES))
    counts.check(reps=args.reps)
    if args.reps < noise.FEW:
        raise Error(f"--choose --reps {args.reps}: of fewer than {noise.FEW} rounds nobody knows how sure a ratio is, and triton-gpu would be chosen for everything; use --reps {noise.FEW}")
    names, whole = args.op or choosing.names(), not (args.case or args.sweep)
    for name in names:
        choosing.grid(registry.get(name), args.case, args.sweep)
    if reason := get("cuda").unavailable():
        raise Unavailable(f"--choose: {reason}")
    path, kind, machine = args.output or tuning.path(), tuning.gpu_kind(), torch.cuda.get_device_name()
    if not args.dry_run:
        tuning.writable(path)
    choices.read(tuning.load(path).get(kind, {}), f"{path}: {kind}")  # that it can be added to is known before anything is measured
    run = _run_facts(machine, get("triton-gpu").versions() | get("cuda").versions())
    failed = []
    for found in choosing.measure(names, args.dtype or list(choosing.DTYPES_CHOSEN), args.case, args.sweep, args.reps,
                                  lambda text: print(text, file=sys.stderr, flush=True)):
        failed += found.failed
        lines = [choices.faster(*line[-3:]) for of in found.times.values() for line in of]
        print(f"{found.op} {found.dtype}: {choices.FASTER} on {sum(lines)} of {len(lines)} shapes", flush=True)
        if lines and not args.dry_run:  # after each, so that what ends on the way keeps what it measured
            with tuning.updating(path) as table:
                choosing.add(table.setdefault(kind, {"tiles": {}, "runs": []}), found, run, whole)
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    if not args.dry_run:
        print(f"{path}: the choices of {kind} written", file=sys.stderr)
    return exits.WRONG if failed else exits.GOOD


def _run_facts(machine: str, versions: dict) -> dict:
    """Who measures, as a table's "runs" say it."""
    return {"machine": machine, "date": time.strftime("%Y-%m-%d"), "command": "triport " + " ".join(sys.argv[1:]), "versions": versions}


def _search(args, names: list[str], kind: str, device: str, on: str | None, pruning=None) -> int:
    """Search and write the table's entry `kind`; on: the name of the machine that is searched for, where it is not this one's CPU; pruning: which
    candidates are measured (default: all)."""
    from ..bench import prune, search
    from ..bench.results import machine
    from ..ops import tuning

    path = args.output or tuning.path()
    m = machine()
    facts = {"threads": m["threads"], **_run_facts(on or m["cpu"], {k: m[k] for k in ("torch", "triton", "LLVM")})}
    for name in names:
        known = tuning.load(path).get(kind, {"tiles": {}})["tiles"].get(name)
        found = search.search(name, args.dtype or ["fp32", "fp16" if args.device == "cuda" else "bf16"], args.reps, args.gain,
                              lambda text: print(text, file=sys.stderr), device, args.case, args.sweep, pruning or prune.NONE, known)
        print(f"{name}: {'the default stays' if found is None else found}")
        if not args.dry_run:  # after each, so that an interrupted search keeps what it found, and what others found meanwhile stays
            with tuning.updating(path) as table:
                _enter(table.setdefault(kind, {"tiles": {}, "runs": []}), name, found, facts)
    if not args.dry_run:
        print(f"{path}: {kind} written", file=sys.stderr)
    return 0


def _enter(entry: dict, name: str, found, facts: dict):
    """What a search found (None: the default stays) into a table's entry, and who searched last."""
    if found is None:
        entry["tiles"].pop(name, None)
    else:
        entry["tiles"][name] = found
    for r in entry["runs"]:
        r["searched"] = [n for n in r["searched"] if n != name]
    if not entry["runs"] or {**entry["runs"][-1], "searched": 0} != {**facts, "searched": 0}:
        entry["runs"].append({"searched": [], **facts})
    entry["runs"][-1]["searched"] = sorted([*entry["runs"][-1]["searched"], name])
    entry["runs"] = [r for r in entry["runs"] if r["searched"]]
