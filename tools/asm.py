"""`triport asm`: any kernel's machine code for any target, its hot loops, and a verdict on their vectors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from . import exits, outputs

EXAMPLES = (
    "triport asm softmax --target spacemit-x60",
    "triport asm kernels.py:add_kernel --target sm_90 --arg 'x_ptr=fp32[16]' --arg n=i32:16 --const BLOCK=1024",
    'triport asm matmul --target native --require "vector>=0.9, spills=0"',
    "triport asm softmax --stage plan",
    "triport asm libfast.so:saxpy",
    "triport asm ~/.triton/cache --kernel softmax",
    "triport asm kernel.cubin --html kernel.html",
    "triport asm matmul --baseline before.json --format github",
    "triport asm --run train.py --steps 3",
    "triport asm --list-targets",
)
#: options that say what is compiled, which a program says itself
_NOT_OF_A_RUN = ("what", "target", "on", "vlen", "backend", "case", "dtype", "arg", "const", "option", "config", "stage", "output", "diff")
#: what is printed: option's value -> what it is
FORMATS = ("text", "json", "github", "sarif")


def add(parser):
    parser.add_argument("what", nargs="?", help="an op; file.py:kernel; file.py:OP; file.cu:kernel; a file of assembly, a disassembly, .ptx, .o, "
                        ".so, .a, .cubin, .hsaco, TTIR or LLVM IR, also FILE:FUNCTION; or a folder of Triton's cache")
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help="a target, repeatable (default: native); --list-targets")
    parser.add_argument("--on", metavar="RUNNER", help="the CPU of a board, besides those of --target: ssh:user@board, qemu:riscv64?vlen=256 or local")
    parser.add_argument("--list-targets", action="store_true", help="list the targets and stop")
    parser.add_argument("--vlen", type=int, metavar="BITS", help="width of RISC-V's vector registers")
    parser.add_argument("--backend", choices=("triton", "torch-compile"),
                        help="who writes an op's kernels: triport's Triton (default), or Inductor: its C++ for native, its Triton elsewhere")
    parser.add_argument("--case", metavar="TEXT", help="an op's case: sizes like 700x300, or a case's name or part of it (default: the first)")
    parser.add_argument("--dtype", metavar="NAME", help="an op's element type (default: fp32)")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=TYPE",
                        help="a kernel's argument: fp32[16] is a pointer aligned to 16 bytes, fp32[] one that is not; i32, i32:16, a number")
    parser.add_argument("--const", action="append", default=[], metavar="NAME=VALUE", help="a kernel's constexpr")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a launch option: num_warps=8")
    parser.add_argument("--config", type=int, metavar="N", help="which configuration of an autotuned kernel (default: 0)")
    parser.add_argument("--kernel", metavar="TEXT", help="only kernels, and of a file functions, whose name contains TEXT")
    parser.add_argument("--stage", metavar="NAME", help="print a stage and nothing else: source, ttir, plan, ttgir, llir, ptx, sass, amdgcn, asm, obj")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the stage there")
    parser.add_argument("--all", action="store_true", help="show the code outside hot loops too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON (docs/asm-schema.md)")
    parser.add_argument("--format", choices=FORMATS, metavar="NAME", help="what is printed: text, json, github (annotations, and the step summary) or sarif")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page that opens offline")
    parser.add_argument("--diff", metavar="OTHER", help="compare with another target, another backend, another WHAT, or a report saved by --json")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="PROGRAM ...",
                        help="run a program (script.py, -m module, or a command) and judge every kernel that it launched; goes last")
    parser.add_argument("--model", metavar="CPU",
                        help="whose ports bound the loops, by llvm-mca: znver5, goldencove, neoverse-v2, ... (default: the target's)")
    parser.add_argument("--bandwidth", type=float, metavar="BYTES",
                        help="bytes a cycle that the target's memory gives (default: not known, memory bounds nothing)")
    parser.add_argument("--require", metavar="TEXT", help="exit 1 when a hot loop falls short of, for example, \"vector>=0.9, spills=0\"")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="a report saved by --json: exit 1 where something got worse since, and say what")


def run(args) -> int:
    from .inspector import baseline, targets, verdict

    if args.list_targets:
        for name in targets.names():
            goal = targets.get(name)
            print(f"{name:18} {goal.about if goal.name in (name, 'native') else f'{goal.name}, {goal.about}'}")
        return exits.GOOD
    _checked(args)
    required = verdict.requirements(args.require) if args.require is not None else []
    before = baseline.read(args.baseline) if args.baseline else []
    program, inputs, goals = exits.GOOD, None, [None]
    if args.run is not None:
        from .inspector import running
        reports, program = running.run(args.run, args.kernel or "", quiet=args.format != "text")
    else:
        from .inspector.inputs import Inputs
        inputs = Inputs(args)
        if args.on:
            inputs.check(args.what)  # before the board is asked
        goals = _goals(args) or [None]
        codes = _named([c for goal in goals for c in inputs.codes(args.what, goal)], args.kernel)
        if args.stage:
            return _stage(codes, args)
        from .inspector import files, report
        reports = [report.of(c) for c in codes]
        for r in reports:
            files.refuse_unread(r)
    from .inspector import bound
    bound.fill(reports, args.model, args.bandwidth)
    failed = [line for r in reports for line in r.failures(required)] if required else []
    if required and not reports:
        failed = ["there is no kernel to judge"]
    worse, remarks = baseline.worse(before, [r.as_dict(instructions=False) for r in reports]) if args.baseline else ([], [])
    for line in remarks:
        print(line, file=sys.stderr)
    quiet = args.html or args.require is not None or args.baseline
    others = _diff(reports, args, inputs, goals[0]) if args.diff else []
    if not args.diff:
        _print(reports, args, failed, worse, quiet)
    if args.html and (reports or args.run is None):
        from ..bench import whole
        from .inspector import page
        whole.write(args.html, page.render(reports, others))
        print(f"wrote {args.html}", file=sys.stderr)
    judged = _judged(reports, args, failed, worse)
    return program or judged


def _checked(args):
    """Raise `Error` for options that do not go together, and for files that cannot be written, before anything is compiled."""
    from ..backends.base import Error
    if args.run is not None:
        wrong = [name for name in _NOT_OF_A_RUN if getattr(args, name) not in (None, [])]
        if wrong:
            raise Error(f"--run judges what ran: {args.what if wrong[0] == 'what' else '--' + wrong[0]} does not go with it")
    elif not args.what:
        raise Error("say what to look at: an op (triport bench --list), file.py:kernel, a file of code (.s, .ptx, .o, .so, .a, .cubin, .ll, .ttir), "
                    "or a folder of Triton's cache")
    if args.json and args.format not in (None, "json"):
        raise Error(f"--json and --format {args.format} both print; choose one")
    args.format = args.format or ("json" if args.json else "text")
    for flag, path in (("--html", args.html), ("-o", args.output)):
        if path:
            outputs.file(flag, path, (args.what, args.diff, args.baseline))
    if args.bandwidth is not None and not 0 < args.bandwidth < 1e6:
        raise Error(f"--bandwidth {args.bandwidth:g}: it takes the bytes a cycle that memory gives, more than 0")
    if args.output and not args.stage:
        raise Error("-o goes with --stage NAME; the page is written by --html, the report is printed by --json")
    if args.stage:
        others = [flag for flag, on in (("--json", args.json), (f"--format {args.format}", not args.json and args.format != "text"), ("--html", args.html), ("--diff", args.diff),
                                        ("--require", args.require is not None), ("--baseline", args.baseline), ("--all", args.all)) if on]
        if others:
            raise Error(f"--stage prints a stage and nothing else; leave out {', '.join(others)}, or --stage")
    if args.diff and args.format in ("github", "sarif"):
        raise Error(f"--diff prints a comparison; --format {args.format} goes without it (and with --baseline FILE)")


def _goals(args) -> list:
    from .inspector import targets
    goals = [targets.get(t, args.vlen) for t in args.target]
    if args.on:
        from ..backends.spine import runner
        goals.append(targets.get(runner.get(args.on).board.row().name))
    return goals


def _named(codes: list, text: str | None) -> list:
    """The codes whose kernel's name has a text; of files, where it is the functions that have names, all. Raises `Error`."""
    from ..backends.base import Error
    found = [c for c in codes if not text or text in c.name or c.matching]
    if not found:
        raise Error(f"--kernel {text}: there is none of that name; there are {', '.join(dict.fromkeys(c.name for c in codes))}")
    return found


def _print(reports, args, failed, worse, quiet):
    """What goes to stdout, but for the lines of what failed."""
    if args.format == "json":
        from .inspector import record
        record.write(reports, sys.stdout)
    elif args.format == "text":
        from .inspector import terminal
        if args.run is not None and reports and not quiet:
            console().print(terminal.ranking(reports, console().width))
        for r in reports if not quiet else ():
            terminal.show(r, console(), args.all)
    else:
        from .inspector import annotations
        found = annotations.findings(reports, failed, worse)
        print(annotations.github(found) if args.format == "github" else annotations.sarif(found), end="")
        if args.format == "github" and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
            _append(Path(summary), annotations.summary(reports, found).encode())


def _append(path: Path, data: bytes):
    from ..backends.base import Error
    try:
        with open(path, "ab") as f:
            f.write(data)
    except OSError as e:
        raise Error(f"{path} cannot be written: {e.strerror}") from None


def console():
    """Where what is for people goes: as wide as the terminal or as COLUMNS says, else 200."""
    from ..bench import screen
    return screen.console(200, highlight=False)


def _judged(reports, args, failed, worse) -> int:
    """The exit code, with a line for everything that failed: on stdout, and beside data of another format on stderr."""
    out = sys.stdout if args.format == "text" else sys.stderr
    for line in (*failed, *(f"worse: {line}" for line in worse)):
        print(line, file=out)
    if args.require is not None and not failed:
        for r in reports:
            print(f"{r.code.name} [{r.code.target}]: {len(r.hot)} hot loop{'s' if len(r.hot) != 1 else ''} as required, {r.verdict}", file=sys.stderr)
    if args.baseline and not worse:
        print(f"nothing is worse than in {args.baseline}", file=sys.stderr)
    return exits.WRONG if failed or worse else exits.GOOD


def _stage(codes, args) -> int:
    from ..backends.base import Error
    from ..bench import whole
    for c in codes:
        value = c.stage(args.stage)
        if args.output:
            if len(codes) > 1:
                raise Error(f"-o {args.output}: there are {len(codes)} kernels ({', '.join(x.name for x in codes)}); choose one with --kernel")
            whole.write(args.output, value)
        elif isinstance(value, bytes):
            if sys.stdout.isatty():
                raise Error(f"stage {args.stage} is {len(value)} bytes of machine code: write it to a file with -o FILE")
            sys.stdout.buffer.write(value)
        else:
            if len(codes) > 1:
                print(f"{'#' if c.isa != 'ptx' else '//'} {c.name} {c.target}")
            print(value, end="" if value.endswith("\n") else "\n")
    return exits.GOOD


def _is_op(name: str) -> bool:
    from ..ops import registry
    return name in registry.NAMES


def _diff(reports, args, inputs, goal) -> list:
    """Compare each kernel with its counterpart for `goal` (or the target that --diff names): kernels of the same name, else in order. Returns the
    counterparts, None where there is none."""
    from ..backends.base import Error
    from .inspector import baseline, diff, report, targets

    other = args.diff
    if other.endswith(".json"):
        theirs = baseline.read(other)
        if not theirs:
            raise Error(f"--diff {other}: there is no kernel in it")
    else:
        changed = argparse.Namespace(**vars(args))
        what = args.what
        if other in ("triton", "torch-compile"):
            changed.backend = other
        elif other.partition(":")[0] not in targets.names() and (":" in other or Path(other).exists() or Path(other).suffix or _is_op(other)):
            what = other
        else:
            goal = targets.get(other, args.vlen if other.startswith(("rv", "spacemit")) and ":" not in other else None)
        theirs = [report.of(c) for c in _named(inputs.other(changed).codes(what, goal), args.kernel)]
    mine, brief = ([r if isinstance(r, dict) else r.as_dict(instructions=False) for r in some] for some in (reports, theirs))
    at = [next((k for k, b in enumerate(brief) if b["kernel"] == a["kernel"]), n if n < len(brief) else None) for n, a in enumerate(mine)]
    pairs = [diff.compare(a, brief[k]) for a, k in zip(mine, at) if k is not None]
    if args.format == "json":
        print(json.dumps(pairs, indent=1))
    else:
        for pair in pairs:
            diff.show(pair, console())
    return [None if k is None else theirs[k] for k in at]
