"""`triport asm`: any kernel's machine code for any target, its hot loops, and a verdict on their vectors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

_FILES = (".s", ".S", ".asm", ".ptx", ".o", ".so", ".obj", ".cubin", ".hsaco", ".sass", ".amdgcn")

from . import exits

EXAMPLES = (
    "triport asm softmax --target spacemit-x60",
    "triport asm kernels.py:add_kernel --target sm_90 --arg 'x_ptr=fp32[16]' --arg n=i32:16 --const BLOCK=1024",
    'triport asm matmul --target native --require "vector>=0.9, spills=0"',
    "triport asm softmax --stage plan",
    "triport asm kernel.cubin --html kernel.html",
    "triport asm --list-targets",
)


def add(parser):
    parser.add_argument("what", nargs="?", help="an op; file.py:kernel; file.py:OP; file.cu:kernel; or a .s, .ptx, .o, .so, .cubin, .hsaco file")
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help="a target, repeatable (default: native); --list-targets")
    parser.add_argument("--on", metavar="RUNNER", help="the CPU of a board: ssh:user@board, qemu:riscv64?vlen=256 or local")
    parser.add_argument("--list-targets", action="store_true", help="list the targets and stop")
    parser.add_argument("--vlen", type=int, metavar="BITS", help="width of RISC-V's vector registers")
    parser.add_argument("--backend", choices=("triton", "torch-compile"), default="triton",
                        help="who writes an op's kernels: triport's Triton (default), or Inductor: its C++ for native, its Triton elsewhere")
    parser.add_argument("--case", metavar="TEXT", help="an op's case: sizes like 700x300, or a case's name or part of it (default: the first)")
    parser.add_argument("--dtype", default="fp32", metavar="NAME", help="an op's element type (default: fp32)")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=TYPE",
                        help="a kernel's argument: fp32[16] is a pointer aligned to 16 bytes, fp32[] one that is not; i32, i32:16, a number")
    parser.add_argument("--const", action="append", default=[], metavar="NAME=VALUE", help="a kernel's constexpr")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a launch option: num_warps=8")
    parser.add_argument("--config", type=int, default=0, metavar="N", help="which configuration of an autotuned kernel (default: 0)")
    parser.add_argument("--kernel", metavar="TEXT", help="only kernels whose name contains TEXT, where there are several")
    parser.add_argument("--stage", metavar="NAME", help="print a stage and nothing else: source, ttir, plan, ttgir, llir, ptx, sass, amdgcn, asm, obj")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the stage there")
    parser.add_argument("--all", action="store_true", help="show the code outside hot loops too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page that opens offline")
    parser.add_argument("--diff", metavar="OTHER", help="compare with another target, another backend, another WHAT, or a report saved by --json")
    parser.add_argument("--require", metavar="TEXT", help="exit 1 when a hot loop falls short of, for example, \"vector>=0.9, spills=0\"")


def run(args) -> int:
    from ..backends.base import Error
    from .inspector import report, targets, verdict

    if args.list_targets:
        for name in targets.names():
            print(f"{name:18} {targets.get(name).about}")
        return 0
    if not args.what:
        raise Error("say what to look at: an op (triport bench --list), file.py:kernel, or a .s, .ptx, .o, .so, .cubin file")
    required = verdict.requirements(args.require) if args.require else []
    goals = [targets.get(t, args.vlen) for t in args.target]
    if args.on:
        from ..backends.spine import runner
        name, _, vlen = runner.get(args.on).board.row().name.partition(":vlen")
        goals.append(targets.get(name, int(vlen) if vlen else None))
    for path in (args.html, args.output):
        if path and not path.resolve().parent.is_dir():
            raise Error(f"{path}: there is no folder {path.resolve().parent}")
    if args.output and not args.stage:
        raise Error("-o goes with --stage NAME; the page is written by --html, the report is printed by --json")
    codes = [c for goal in goals or [None] for c in codes_of(args.what, args, goal)]
    if args.kernel:
        names = [c.name for c in codes]
        codes = [c for c in codes if args.kernel in c.name]
        if not codes:
            raise Error(f"--kernel {args.kernel}: there is none of that name; there are {', '.join(dict.fromkeys(names))}")
    if args.stage:
        return _stage(codes, args)
    reports = [report.of(c) for c in codes]
    if args.diff:
        _diff(reports, args)
    elif args.json:
        print(json.dumps([r.as_dict() for r in reports], indent=1))
    elif not (args.html or args.require):
        from .inspector import terminal
        for r in reports:
            terminal.show(r, console(), args.all)
    if args.html:
        from .inspector import page
        args.html.write_text(page.render(reports))
        print(f"wrote {args.html}", file=sys.stderr)
    return _judge(reports, required)


def console():
    """Where what is for people goes: as wide as the terminal or as COLUMNS says, else 200."""
    from rich.console import Console
    told = os.environ.get("COLUMNS", "")
    return Console(width=None if sys.stdout.isatty() or told.isdigit() and int(told) else 200, highlight=False)


def _judge(reports, required) -> int:
    failed = [line for r in reports for line in r.failures(required)] if required else []
    for line in failed:
        print(line)
    if required and not failed:
        for r in reports:
            print(f"{r.code.name} [{r.code.target}]: {len(r.hot)} hot loop{'s' if len(r.hot) != 1 else ''} as required, {r.verdict}", file=sys.stderr)
    return exits.WRONG if failed else exits.GOOD


def _stage(codes, args) -> int:
    from ..backends.base import Error
    for c in codes:
        value = c.stage(args.stage)
        if args.output:
            if len(codes) > 1:
                raise Error(f"-o {args.output}: there are {len(codes)} kernels ({', '.join(x.name for x in codes)}); choose one with --kernel")
            args.output.write_bytes(value if isinstance(value, bytes) else value.encode())
        elif isinstance(value, bytes):
            if sys.stdout.isatty():
                raise Error(f"stage {args.stage} is {len(value)} bytes of machine code: write it to a file with -o FILE")
            sys.stdout.buffer.write(value)
        else:
            if len(codes) > 1:
                print(f"{'#' if c.isa != 'ptx' else '//'} {c.name} {c.target}")
            print(value, end="" if value.endswith("\n") else "\n")
    return 0


def _pairs(texts, flag: str) -> dict[str, str]:
    from ..backends.base import Error
    out = {}
    for text in texts:
        name, sep, value = text.partition("=")
        if not sep or not name.isidentifier() or not value:
            raise Error(f"{flag} {text}: it takes NAME=VALUE")
        out[name] = value
    return out


def codes_of(what: str, args, goal) -> list:
    """The codes of what a user named for a target (None: the default). Raises `Error`."""
    from ..backends.base import Error, suggest
    from ..ops import cases, registry
    from ..ops.records import DTYPES
    from .inspector import code, launches, targets

    path, sep, name = what.rpartition(":")
    if not sep and (Path(what).suffix in _FILES or Path(what).is_file()):
        if not Path(what).is_file():
            raise Error(f"there is no file {what}")
        if Path(what).suffix in (".py", ".cu"):
            raise Error(f"{what}: say which kernel: {what}:NAME")
        return [code.of_file(Path(what), goal, args.vlen)]
    goal = goal or targets.get("sm_90" if sep and path.endswith(".cu") else "native", args.vlen)
    if sep and path.endswith(".cu"):
        if not Path(path).is_file():
            raise Error(f"there is no file {path}")
        return [code.of_cuda(Path(path), name, goal)]
    thing = registry.load(Path(path), name) if sep else None
    if thing is not None and launches.is_kernel(thing):
        launch = launches.of_kernel(thing, _pairs(args.arg, "--arg"), _pairs(args.const, "--const"),
                                    {k: launches.constant(v) for k, v in _pairs(args.option, "--option").items()}, args.config)
        return [code.of_launch(launch, goal)]
    op = registry.get(what)
    if args.arg or args.const:
        raise Error(f"--arg and --const belong to a kernel (file.py:kernel); for the op {op.name} choose --case and --dtype")
    if args.dtype not in DTYPES:
        raise Error(f"{suggest('dtype', args.dtype, DTYPES)}; {op.name} takes {', '.join(op.dtypes)}")
    if args.dtype not in op.dtypes:
        raise Error(f"--dtype {args.dtype}: {op.name} takes {', '.join(op.dtypes)}")
    case = cases.one(op, args.case)
    if args.backend == "torch-compile":
        from .inspector import inductor
        return inductor.cpp(op, case, args.dtype) if goal.name == "native" else inductor.triton_kernels(op, case, args.dtype, goal)
    device = "cuda" if goal.gpu else "cpu"
    return [code.of_launch(launch, goal) for launch in launches.of_op(op, case, args.dtype, device, args.config, goal.row)]


def _diff(reports, args):
    """Compare each kernel with its counterpart: kernels of the same name, else in order."""
    from ..backends.base import Error
    from .inspector import diff, report, targets

    other = args.diff
    if other.endswith(".json"):
        try:
            theirs = json.loads(Path(other).read_text())
            assert isinstance(theirs, list) and all(isinstance(d, dict) and "loops" in d for d in theirs)
        except (OSError, ValueError, AssertionError):
            raise Error(f"--diff {other}: not a report that `triport asm --json` printed") from None
    else:
        changed = argparse.Namespace(**vars(args))
        what, goal = args.what, targets.get(args.target[0], args.vlen) if args.target else None
        if other in ("triton", "torch-compile"):
            changed.backend = other
        elif ":" in other or Path(other).suffix in _FILES:
            what = other
        else:
            goal = targets.get(other, args.vlen if other.startswith(("rv", "spacemit")) else None)
        theirs = [report.of(c).as_dict(instructions=False) for c in codes_of(what, changed, goal)]
    mine = [r.as_dict(instructions=False) for r in reports]
    pairs = []
    for n, a in enumerate(mine):
        named = next((b for b in theirs if b["kernel"] == a["kernel"]), theirs[n] if n < len(theirs) else None)
        if named:
            pairs.append(diff.compare(a, named))
    if args.json:
        print(json.dumps(pairs, indent=1))
    else:
        for pair in pairs:
            diff.show(pair, console())
