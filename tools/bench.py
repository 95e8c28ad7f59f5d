"""`triport bench`: check and time ops on the backends of this machine."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from . import exits, outputs

#: options that --compare takes, and what is no option; the others are of a run
_COMPARED = ("compare", "json", "csv", "markdown", "format")

EXAMPLES = (
    "triport bench --op softmax --case 1823x781",
    "triport bench --op matmul --case 700x300,N=500 --dtype fp64      # sizes of your own",
    "triport bench --op softmax --sweep N=256..4096:x2 --mode fwd+bwd",
    "triport bench --op matmul --random 50 --seed 1 --no-cold --backend torch --backend triton-cpu",
    "triport bench --op matmul --backend torch --backend triton-cpu --threads 1",
    "triport bench --op docs/my_op.py:my_op --json new.json --csv new.csv",
    "triport bench --op gelu --markdown -            # for GitHub",
    "triport bench --compare old.json new.json       # exit code 1: a row got slower",
    "torchrun --nproc-per-node 2 -m triport.tools bench --distributed --op matmul",
    "triport bench --list",
)


def add(parser):
    parser.add_argument("--op", action="append", default=[], metavar="NAME|FILE.py:NAME",
                        help="an op, built in or a triport.ops.Op in a file of yours; repeatable (default: all)")
    parser.add_argument("--backend", action="append", default=[], metavar="NAME",
                        help="a backend, or a variant of the op; repeatable (default: all that can run here)")
    parser.add_argument("--case", action="append", default=[], metavar="TEXT",
                        help="sizes of your own, like 700x300 or 4096x4096,4096x4096t,dim=0, or a case's name or part of it; repeatable (default: each op's own)")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A..B",
                        help="the cases with other sizes: M=256..8192:x2, N=100..500:+100, M=N=K=64,128, dim=0,1; repeatable")
    parser.add_argument("--random", type=int, metavar="N", help="N cases of sizes drawn at random instead, by --seed: up to 4096, a quarter of the matrices transposed")
    parser.add_argument("--mode", choices=("fwd", "bwd", "fwd+bwd"), default="fwd", help="forward, backward or both (default: fwd)")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME",
                        help="fp32, fp16, bf16, fp64, int32, int64; repeatable (default: fp32)")
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        help="where the torch columns run, and which cases are the default (default: cuda where there is a GPU); a run on cpu "
                             "leaves the GPU's backends out")
    parser.add_argument("--on", metavar="RUNNER", help="the board of backend spine: ssh:user@board, qemu:riscv64?vlen=256 or local (default: $TRIPORT_SPINE); several "
                        "with commas between them run side by side, a table each; without --backend it runs alone")
    parser.add_argument("--target", metavar="NAME", help="with --on: the CPU to compile for (default: what suits the board)")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="with --on: run the cases of an exported bundle there, and nothing else")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's number; with --on all CPUs of the board)")
    parser.add_argument("--reps", type=int, metavar="N", help="rounds of timing (default: as many as it takes, see --precision)")
    parser.add_argument("--precision", default="2%", metavar="P", help="measure until the median's 95%% confidence interval is within +-P (default: 2%%)")
    parser.add_argument("--budget", default="2s", metavar="T", help="or until so much time went into a case: 500ms, 60s, 2min (default: 2s)")
    parser.add_argument("--no-cold", action="store_true", help="do not measure first calls (cold, reloaded, in a new process)")
    parser.add_argument("--distributed", action="store_true", help="under torchrun: ops on DTensors over 1, 2, 4, ... ranks, weak and strong scaling, "
                        "communication apart from kernels (docs/distributed.md)")
    parser.add_argument("--timeout", default="60s", metavar="T", help="with --distributed: a rank that is silent for so long has died (default: 60s)")
    outputs.add(parser)
    parser.add_argument("--artefacts", type=Path, metavar="DIR", help="with --json: write the page of each right op's machine code and its profile "
                        "there, and name them in the rows")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the inputs, and of --random (default: 0)")
    _printing(parser)
    parser.add_argument("--compare", nargs="+", type=Path, metavar="FILE.json",
                         help="hold results files against the first of them row by row, with a noise band from their rounds; exit 1 where a row is "
                              "slower beyond it, or no longer right")
    parser.add_argument("--list", action="store_true", help="list ops, cases, dtypes and backends, and stop")


def _printing(parser):
    """The options of what is printed."""
    from ..bench import fields

    group = parser.add_argument_group("what is printed", f"Where the table is wider than the screen (away from a terminal: COLUMNS, else 120), columns "
                                      f"leave in this order: {', '.join(fields.LEAVE)}. What never leaves: {', '.join(fields.KEPT)}.")
    group.add_argument("--format", choices=("table", "markdown", "github", "spine"), default="table",
                       help="table; markdown, with the machine and the command; github, for a CI job's $GITHUB_STEP_SUMMARY; or the lines of "
                            "spine-triton's benchmarks, of single calls (default: table)")
    fields.add(group)


def run(args) -> int:
    if args.compare:
        return _compare(args)
    from ..backends import BACKENDS, available
    from ..backends.base import Error, suggest
    from ..bench import counts
    from ..ops import registry
    from ..ops.cases import LONGEST_SWEEP
    from ..ops.records import DTYPES

    counts.check(threads=args.threads, reps=args.reps, random=args.random)
    _share(args.precision), _seconds("--budget", args.budget)
    if not -2**63 <= args.seed < 2**63 - 1:
        raise Error(f"--seed {args.seed}: it takes a number of 64 bits")
    if (args.random or 0) > LONGEST_SWEEP:
        raise Error(f"--random {args.random}: it takes {LONGEST_SWEEP} at most")
    if args.random is not None and (args.case or args.sweep):
        raise Error("--random draws cases of its own; --case and --sweep do not go with it")
    for d in args.dtype:
        if d not in DTYPES:
            raise Error(suggest("dtype", d, DTYPES))
    ops = [registry.get(n) for n in args.op or registry.NAMES]
    if args.list:
        for op in ops:
            print(f"{op.name}: {', '.join(op.dtypes)}")
            for case in op.cases:
                print(f"  {case.name}")
        print("backends: " + ", ".join(BACKENDS))
        return 0
    import torch

    if args.bundle:
        return _bundle(args)
    if args.artefacts and (not args.json or str(args.json) == "-"):
        raise Error("--artefacts goes with --json FILE: the rows there name what it writes")
    if args.target and not args.on:
        raise Error("--target goes with --on; this machine's backends compile for it as it is")
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.distributed:
        from . import distributed
        return distributed.run(args, _defaults(), _seconds("--timeout", args.timeout))
    if args.timeout != _defaults()["timeout"]:
        raise Error("--timeout goes with --distributed: it is for ranks that wait for one another")
    if args.on:
        if args.backend and "spine" not in args.backend:
            raise Error(f"--on is the board of backend spine, and --backend {', '.join(dict.fromkeys(args.backend))} runs here: leave one of them out, or add --backend spine")
        from ..backends.spine import backend as spine
        with spine.on(args.on, args.target):
            return _selected(args, ops, args.backend or ["spine"], [])
    return _selected(args, ops, args.backend, available())


def _defaults() -> dict:
    """Option -> its default."""
    add(plain := argparse.ArgumentParser())
    return {action.dest: action.default for action in plain._actions}


def _share(text: str) -> float:
    """--precision as a share: "2%" and "0.02" are 0.02. Raises `Error`."""
    from ..backends.base import Error
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise Error(f"--precision {text}: it takes a share between 0 and 1, like 2% or 0.02")
    return value


def _seconds(option: str, text: str) -> float:
    """A time in seconds. Raises `Error`."""
    from ..backends.base import Error
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|min|)", text.strip())
    value = float(hit[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}[hit[2]] if hit else 0.0
    if not 0 < value < float("inf"):
        raise Error(f"{option} {text}: it takes a time, like 500ms, 60s or 2min")
    return value


def _without(args, taken: tuple[str, ...], why: str):
    """Raise `Error` for an option that is none of `taken`."""
    from ..backends.base import Error
    defaults = _defaults()
    for name, value in vars(args).items():
        if name not in (*taken, "command") and value != defaults.get(name):
            raise Error(f"--{name.replace('_', '-')} is of a run; {why}")


def _bundle(args) -> int:
    """Send an exported bundle to a board, after its files were found to be what its manifest says, and run its cases."""
    import statistics

    from ..backends.base import Error
    from ..backends.spine import bundle, request, runner
    from ..bench.report import time_text

    _without(args, ("bundle", "on", "threads"), "--bundle runs the cases that a bundle has, as often as it says, and prints a line each")
    loaded = bundle.load(args.bundle)
    board = runner.chosen(args.on)
    if board is None:
        raise Error("--bundle runs on a board: say --on ssh:user@board, qemu:riscv64?vlen=256 or local")
    if not loaded.manifest["cases"]:
        raise Error(f"{args.bundle} has no cases to run")
    target = loaded.manifest["target"]
    if (isa := target["triple"].partition("-")[0]) != (there := board.arch()):
        raise Error(f"{args.bundle} is code for {target['name']} ({isa}), and {board.name} is a machine of {there}: name another with --on, or make a bundle "
                    f"for this one by `triport export ... --on {board.name}`")
    if isinstance(board, runner.Qemu):
        print(f"{board.name}: an emulation, whose times say nothing of a board's")
    wrong = 0
    for case in loaded.manifest["cases"]:
        try:
            error, allowed, answer = board.case(loaded, case["file"], args.threads or 0)
        except Error as e:
            wrong += 1
            print(f"{case['file']}: failed: {e}")
            continue
        right = error <= allowed
        wrong += not right
        times = f", median {time_text(statistics.median(answer.wall))} of {len(answer.wall)}" if answer.wall else ""
        against = "" if case.get("expected", "float64") == "float64" else request.BY_ITS_OWN
        print(f"{case['file']}: {'right' if right else 'WRONG'}{against}, error {error:.2g} of {allowed:.2g} allowed{times}")
    return exits.WRONG if wrong else exits.GOOD


def _selected(args, ops, names: list[str], usable: list) -> int:
    from ..backends import get
    from ..backends.base import Error, Unavailable
    from ..bench import plan

    device = args.device or ("cuda" if any(b.device == "cuda" for b in usable) else "cpu")
    if device == "cuda" and (reason := get("triton-gpu").unavailable()):
        raise Unavailable(f"--device cuda: {reason}")
    backends, variants = plan.split(names, ops)
    if not names:
        backends, variants = [b.name for b in usable if device == "cuda" or b.device != "cuda"], None
    if args.artefacts and args.artefacts.exists() and not args.artefacts.is_dir():
        raise Error(f"--artefacts {args.artefacts}: it is a file; name a folder")
    wanted = plan.Plan(
        ops, backends, args.dtype or ["fp32"], args.case, args.sweep, variants, args.mode, args.reps, _share(args.precision), _seconds("--budget", args.budget),
        cold=not args.no_cold, singles=(args.reps or 10) if args.format == "spine" else 0, seed=args.seed, device=device, threads=args.threads or 0, drawn=args.random or 0, named=bool(names))
    wanted.items()  # a selection that is empty, or a case that is none, says so before a board is asked
    for name in backends if names else ():
        reason = get(name).unavailable()
        if reason:
            raise Unavailable(f"backend {name} cannot run here: {reason}")
    with outputs.opened(args) as results:
        return _measure(args, wanted, results)


def _compare(args) -> int:
    from ..backends.base import Error
    from ..bench import changes, changes_report, results, screen

    if args.format == "spine":
        raise Error("--format spine is of a run; --compare prints a table or markdown")
    _without(args, _COMPARED, "--compare holds whole files against each other")
    with outputs.kept(outputs.wanted(args, args.compare)) as put:
        result = changes.beside([(str(path), results.load(path)) for path in args.compare])
        if args.format == "table":
            changes_report.show(result, screen.console())
        else:
            print(changes_report.markdown(result))
        put({"json": lambda: results.text(changes_report.data(result)), "csv": lambda: changes_report.as_csv(result),
             "markdown": lambda: changes_report.markdown(result) + "\n"})
    return exits.WRONG if result.regressions else exits.GOOD


def _measure(args, plan, results) -> int:
    from ..bench import fields, progress, runner

    names = fields.chosen(args.columns, [m for op in plan.ops for m in op.metrics]) if args.columns is not None else None
    plan.items()  # a selection that is empty says so before anything is measured
    stopped = False
    with progress.shown(results.rows) as display:
        try:
            wrong = runner.run(plan, results, display.tick, display.say)
        except KeyboardInterrupt:
            stopped, wrong = True, sum(r["status"] != "ok" for r in results.rows)
        if args.artefacts and not stopped:
            from . import artefacts
            artefacts.write(results, plan.ops, args.artefacts, display.say)
    _print(args, {"complete": results.complete, "machine": results.meta, "rows": results.rows}, names)
    if stopped:
        results.save()
        print(f"interrupted after {len(results.rows)} rows" + (f"; {args.json} holds them" if args.json and results.rows else ""),
              file=sys.stderr)
        return exits.INTERRUPTED
    return exits.WRONG if wrong else exits.GOOD


def _print(args, data: dict, names: list[str] | None):
    """A run's results, as the options ask for them."""
    from ..bench import report

    if args.format == "spine":
        print(report.spine(data))
    elif args.format != "table":
        print({"markdown": report.markdown, "github": report.github}[args.format](data, names))
    elif data["rows"]:
        report.show(data, report.console(), names, args.wide, "--wide shows them, --columns chooses")
