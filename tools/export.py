"""`triport export`: ops as C functions for a board, in a folder to copy there."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

EXAMPLES = (
    "triport export softmax matmul --target spacemit-x60 --case 256x256 -o bundle",
    "triport export docs/my_op.py:my_op --target rv64gcv:vlen512 -o bundle",
    "triport export gelu --on ssh:user@board -o bundle",
)


def add(parser):
    parser.add_argument("op", nargs="+", metavar="OP", help="an op, built in or a triport.ops.Op in a file of yours (FILE.py:NAME)")
    parser.add_argument("--target", metavar="NAME", help="the CPU: spacemit-x60, rv64gcv:vlen512, aarch64, x86-64-v3, native, ...")
    parser.add_argument("--on", metavar="RUNNER", help="instead of --target: the CPU of a board, ssh:user@board, qemu:riscv64?vlen=256 or local")
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="sizes like 700x300, or a case's name or part of it; repeatable "
                        "(default: each op's first). Sizes stay arguments: a case chooses layouts, parameters, the sizes that tiles are made for, and what is checked")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A..B", help="the cases with other sizes: M=256..8192:x2; repeatable")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME", help="fp32, fp16, bf16, int32, ...; repeatable (default: fp32, or the op's first)")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="the folder; it is made")
    parser.add_argument("--name", default="", metavar="NAME", help="name of library, header and program (default: the op, or ops)")
    parser.add_argument("--reps", type=int, default=20, metavar="N", help="timed calls of a case file (default: 20)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads that functions will be called with, for which tiles are chosen (default: the "
                        "board's cores where they are known, 8 for a K1; else this machine's). Any number is right")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the case files' inputs (default: 0)")


def wanted(names: list[str], cases: list[str], dtypes: list[str], sweeps: list[str] = []) -> list[tuple]:
    """(op, case, dtype) of a selection. Raises `Error` where an op has none of it."""
    from ..backends.base import Error, suggest
    from ..ops import registry
    from ..ops.cases import select, sweep
    from ..ops.records import DTYPES

    for d in dtypes:
        if d not in DTYPES:
            raise Error(suggest("dtype", d, DTYPES))
    out = []
    for name in names:
        op = registry.get(name)
        chosen = sweep(op, select(op, cases) if cases else list(op.cases[:1]), sweeps)
        takes = [d for d in dtypes if d in op.dtypes] if dtypes else ["fp32" if "fp32" in op.dtypes else op.dtypes[0]]
        if not takes:
            raise Error(f"{op.name} takes {', '.join(op.dtypes)}, not {', '.join(dtypes)}")
        out += [(op, c, d) for d in takes for c in chosen]
    return out


def run(args) -> int:
    from ..backends.base import Error
    from ..backends.cpu.llvm import targets
    from ..backends.spine import bundle, runner

    if args.name and not re.fullmatch(r"[A-Za-z0-9][\w-]*", args.name):
        raise Error(f"--name {args.name!r}: it takes letters, digits, - and _, a letter or digit first")
    if not 0 <= args.reps <= 10_000:
        raise Error(f"--reps {args.reps}: it takes a number from 0 to 10000")
    if not 0 <= args.threads <= 1024:
        raise Error(f"--threads {args.threads}: it takes a number from 1 to 1024")
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir()) and not (args.output / "manifest.json").is_file()):
        raise Error(f"-o {args.output}: there is something else already; it takes a new folder, an empty one, or one with a bundle")
    if not args.target and not args.on:
        raise Error("say for which CPU: --target NAME or --on RUNNER")
    row = targets.get(args.target) if args.target else runner.get(args.on).board.row()
    if args.threads:
        row = dataclasses.replace(row, cores=args.threads)
    made = bundle.make(wanted(args.op, args.case, args.dtype, args.sweep), row, args.name, seed=args.seed, repetitions=args.reps)
    made.write(args.output)
    m = made.manifest
    print(f"{args.output}: {m['library']}, {m['header']}, {m['program']}, {len(m['cases'])} cases, manifest.json; for {row.name} ({row.triple})")
    for f in m["functions"]:
        print(f"  {f['declaration']};")
    print(f"on the machine: {args.output.name}/{m['program']} {args.output.name}/cases/*", file=sys.stderr)
    return 0
