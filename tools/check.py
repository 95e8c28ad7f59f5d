"""`triport check`: an op, a function or a script with kernels that check what they do."""

from __future__ import annotations

import sys

from . import exits
from .profiling import target

EXAMPLES = (
    "triport check softmax",
    "triport check my_kernels.py:run --kinds bounds,race,uninit",
    "triport check --keep-going -- train.py --steps 3",
)


def add(parser):
    from ..backends.checking import KINDS

    parser.usage = "triport check [options] TARGET\n       triport check [options] -- SCRIPT.py [arguments]"
    target.add(parser)
    parser.add_argument("--kinds", metavar="LIST", default="bounds,race",
                        help=f"what is checked: {', '.join(KINDS)}, joined by commas, or all (default: bounds,race)")
    parser.add_argument("--keep-going", action="store_true", help="launches that fail go on, and all that they found is printed")
    parser.add_argument("--case", metavar="TEXT", help="of an op: sizes like 700x300, or a case's name or part of it (default: all its cases)")
    parser.add_argument("--dtype", metavar="NAME", help="of an op: fp32, fp16, bf16, fp64 (default: all that it takes)")


def run(args) -> int:
    from ..backends import checking
    from ..backends.base import Error

    kinds = checking.parse(args.kinds, "--kinds")
    if not kinds:
        raise Error(f"--kinds {args.kinds}: it takes {', '.join(checking.KINDS)}, joined by commas, or all")
    if "uninit" in kinds:
        from ..backends.cpu.run import unwritten
        unwritten.watch()
    seen, code = _Seen(), exits.GOOD
    checking.watchers.append(seen)
    try:
        with checking.checks(kinds), checking.keeping_going(print_error) if args.keep_going else checking.raising():
            code = _targets(args)
    except checking.CheckError as e:
        print_error(e)
    finally:
        checking.watchers.remove(seen)
    if not seen.launches:  # a CI job must not take it for a run that found nothing
        print(f"triport check {args.target[0]}: nothing was checked for {kinds.replace(',', ', ')}: no kernel was launched on the CPU")
        return code or exits.USAGE
    places = {(r.kind, r.file, r.line) for e in seen.errors for r in e.reports}
    said = f"{_count(len(places), 'fault')} in {_count(len({e.kernel for e in seen.errors}), 'kernel')}" if places else "nothing found"
    print(f"triport check {args.target[0]}: {_count(seen.launches, 'launch')} of {_count(len(seen.kernels), 'kernel')} checked for "
          f"{kinds.replace(',', ', ')}: {said}")
    return exits.WRONG if places else code


def print_error(error):
    print(error, file=sys.stderr, flush=True)


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 'es' if word.endswith('ch') else 's'}"


def _targets(args) -> int:
    """Run what is to be checked. The exit code: a script's own."""
    from types import SimpleNamespace

    from ..ops import cases
    from .profiling import session

    options = SimpleNamespace(**{"backend": None, "against": None, "steps": 0, **vars(args)})
    t = target.find(args.target, options)[0]  # refuses what is none, and options that do not fit
    if t.argv:
        return session.run_script(t.argv)
    op = t.op
    if op is None:
        t.step()
        t.synchronize()
        return exits.GOOD
    for dtype in [args.dtype] if args.dtype else op.dtypes:
        chosen = [cases.one(op, args.case, op.cases[0])] if args.case is not None else op.cases_on("cpu")
        for case in chosen:
            target.of_op(op, case, dtype, "triton-cpu", "cpu", args.seed, reference=False).step()
    return exits.GOOD


class _Seen:
    """What was launched, and what failed."""

    def __init__(self):
        self.launches, self.kernels, self.errors = 0, set(), []

    def launched(self, kernel: str):
        self.launches += 1
        self.kernels.add(kernel)

    def failed(self, error):
        self.errors.append(error)
