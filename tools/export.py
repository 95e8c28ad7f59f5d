"""`triport export`: ops, and users' own functions with Triton kernels, as C functions for a board, in a folder to copy there."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path

EXAMPLES = (
    "triport export softmax matmul --target spacemit-x60 --case 256x256 -o bundle",
    "triport export docs/my_op.py:my_op --target rv64gcv:vlen512 -o bundle",
    "triport export my.py:layer_norm --example 'x=fp32[300,77], w=fp32[77], b=fp32[77], eps=1e-5' --target spacemit-x60 -o bundle",
    "triport export gelu --on ssh:user@board -o bundle",
)


def add(parser):
    parser.add_argument("op", nargs="+", metavar="OP", help="an op, built in, or in a file of yours (FILE.py:NAME) a triport.ops.Op or a plain function that "
                        "launches Triton kernels, which needs an example call")
    parser.add_argument("--example", action="append", default=[], metavar="TEXT", help="an example call of a function of yours: 'x=fp32[300,77], labels=int64[300]<77, eps=1e-5', or "
                        "'NAME(x=...)' where several are exported; repeatable (default: what its docstring or NAME_example says). Sizes and numbers become arguments")
    parser.add_argument("--classes", metavar="A..B", help="the powers of two for which a function with triton.next_power_of_2 gets code (default: 1..4096, or the example's)")
    parser.add_argument("--ld", action="store_true", help="the leading dimensions of ops' matrices are arguments of the C functions (in an example: x=fp32[300,77;ld=80])")
    parser.add_argument("--debug", action="store_true", help="keep tl.device_assert in all kernels: as TRITON_DEBUG=1")
    parser.add_argument("--no-cases", action="store_true", help="without case files: no inputs, and nothing to be checked against")
    parser.add_argument("--target", metavar="NAME", help="the CPU: k1, k3, spacemit-x60, rv64gcv:vlen512, aarch64, x86-64-v3, native, ...")
    parser.add_argument("--on", metavar="RUNNER", help="instead of --target: the CPU of a board, ssh:user@board, qemu:riscv64?vlen=256 or local")
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="sizes like 700x300, or a case's name or part of it; repeatable "
                        "(default: each op's first). Sizes stay arguments: a case chooses layouts, parameters, the sizes that tiles are made for, and what is checked")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A..B", help="the cases with other sizes: M=256..8192:x2; repeatable")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME", help="fp32, fp16, bf16, int32, ...; repeatable (default: fp32, or the op's first)")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="the folder; it is made")
    parser.add_argument("--name", default="", metavar="NAME", help="name of library, header and program (default: the op, or ops)")
    parser.add_argument("--reps", type=int, default=20, metavar="N", help="timed calls of a case file (default: 20)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads that functions will be called with, for which tiles are chosen (default: the "
                        "board's cores where they are known, 8 for a K1; else this machine's). Any number is right")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the case files' inputs (default: 0)")


def wanted(names: list[str], cases: list[str], dtypes: list[str], sweeps: list[str] = [], examples: list[str] = [], classes: str | None = None) -> list:
    """What a selection exports: (op, case, dtype), and calls of users' functions. Raises `Error` where an op has none of it."""
    from ..backends.base import Error, suggest
    from ..backends.spine import user
    from ..ops import registry
    from ..ops.records import DTYPES, Op

    for d in dtypes:
        if d not in DTYPES:
            raise Error(suggest("dtype", d, DTYPES))
    texts = user.split(examples)
    out = []
    found = {name: registry.find(name) for name in names}
    functions = {name: one for name, one in found.items() if not isinstance(one[0], Op)}
    known = [f.__name__ for f, _, _ in functions.values()]
    if odd := next((n for n in texts if n and n not in known), None):
        raise Error(f"--example {odd}(...): {suggest('function', odd, known)}" if known else f"--example goes with functions of yours, and {', '.join(names)} has none")
    if "" in texts and len(functions) != 1:
        raise Error("--example: say which function it is of, as in 'NAME(x=fp32[300,77])'" if functions else "--example goes with a plain function of yours; an op takes --case")
    if classes and not functions:
        raise Error("--classes goes with functions of yours that ask for triton.next_power_of_2; an op's sizes are arguments")
    for option, given in (("--case", cases), ("--dtype", dtypes), ("--sweep", sweeps)):
        if given and len(functions) == len(found):
            raise Error(f"{option} goes with ops; a function's sizes and types are its example's: --example '{known[0]}(x=fp32[300,77])'")
    for name, one in found.items():
        if name in functions:
            function, path, module = one
            out += user.calls(function, path, module, texts.get(function.__name__, []) + texts.get("", []))
        else:
            out += _of_op(one[0], cases, dtypes, sweeps)
    return out


def _of_op(op, cases: list[str], dtypes: list[str], sweeps: list[str]) -> list[tuple]:
    from ..backends.base import Error
    from ..ops.cases import select, sweep
    chosen = sweep(op, select(op, cases) if cases else list(op.cases[:1]), sweeps)
    floats = any(d in ("fp32", "fp16", "bf16") for d in op.dtypes)
    takes = [d for d in dtypes if d in op.dtypes or d == "fp64" and floats] if dtypes else ["fp32" if "fp32" in op.dtypes else op.dtypes[0]]
    if not takes:
        raise Error(f"{op.name} takes {', '.join(op.dtypes)}, not {', '.join(dtypes)}")
    return [(op, c, d) for d in takes for c in chosen]


def _range(text: str | None) -> tuple[int, int] | None:
    """The powers of two of --classes."""
    from ..backends.base import Error
    if text is None:
        return None
    hit = re.fullmatch(r"(\d{1,7})(?:\.\.(\d{1,7}))?", text.strip())
    low, high = (int(hit[1]), int(hit[2] or hit[1])) if hit else (0, 0)
    if not 1 <= low <= high or low & (low - 1) or high & (high - 1):
        raise Error(f"--classes {text}: it takes powers of two, as in 64..4096")
    return low, high


def run(args) -> int:
    from triton import knobs

    from ..backends.base import Error
    from ..backends.cpu.llvm import targets
    from ..backends.spine import bundle, runner
    from ..bench import counts

    if args.name and not re.fullmatch(r"[A-Za-z0-9][\w-]*", args.name):
        raise Error(f"--name {args.name!r}: it takes letters, digits, - and _, a letter or digit first")
    if args.name == "cases":
        raise Error("--name cases: the folder of the case files has that name")
    if args.target and args.on:
        raise Error("--target and --on both say for which CPU; give one of them")
    counts.seed(args.seed)
    if not 0 <= args.reps <= 10_000:
        raise Error(f"--reps {args.reps}: it takes a number from 0 to 10000")
    if args.threads is not None and not 1 <= args.threads <= 1024:
        raise Error(f"--threads {args.threads}: it takes a number from 1 to 1024")
    for above in args.output.absolute().parents:
        if above.exists():
            if not above.is_dir() or not os.access(above, os.W_OK):
                raise Error(f"-o {args.output}: {above} is {'no folder' if not above.is_dir() else 'a folder in which nothing can be written'}")
            break
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir()) and not (args.output / "manifest.json").is_file()):
        raise Error(f"-o {args.output}: there is something else already; it takes a new folder, an empty one, or one with a bundle")
    if not args.target and not args.on:
        raise Error("say for which CPU: --target NAME or --on RUNNER")
    with knobs.runtime.scope():
        knobs.runtime.debug = knobs.runtime.debug or args.debug
        row = targets.get(args.target) if args.target else None
        within = _range(args.classes)
        chosen = wanted(args.op, args.case, args.dtype, args.sweep, args.example, args.classes)  # what is wrong is said before a board is asked
        row = row or runner.get(args.on).board.row()
        if args.threads:
            row = dataclasses.replace(row, cores=args.threads)
        made = bundle.make(chosen, row, args.name, seed=args.seed, repetitions=args.reps, cases=not args.no_cases,
                           leading=args.ld, within=within)
    made.write(args.output)
    m = made.manifest
    print(f"{args.output}: {m['library']}, {m['header']}, {m['program']}, {len(m['cases'])} case{'s' * (len(m['cases']) != 1)}, manifest.json; for {row.name} ({row.triple})")
    for f in m["functions"]:
        print(f"  {f['declaration']};" + (f"  /* {len(f['classes'])} classes of sizes */" if f["classes"] else ""))
    if m["cases"]:
        folder = shlex.quote(args.output.name)
        print(f"on the machine: {folder}/{shlex.quote(m['program'])} {folder}/cases/*", file=sys.stderr)
    return 0
