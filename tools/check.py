"""`triport check`: an op, a function or a script with kernels that check what they do."""

from __future__ import annotations

import os
import sys
from unittest import mock

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
    seen, code, raised = _Seen(), exits.GOOD, None
    checking.watchers.append(seen)
    told = {checking.VARIABLE: kinds} | ({checking.KEEP_GOING: "1"} if args.keep_going else {})  # to processes that a script starts
    try:
        with mock.patch.dict(os.environ, told), checking.checks(kinds), checking.keeping_going(print_error) if args.keep_going else checking.raising():
            code = _targets(args)
        if not args.keep_going and code == exits.GOOD:
            for e in seen.errors:  # which nobody let out
                print_error(e)
    except checking.CheckError as e:
        print_error(e)
    except Error as e:
        if not seen.launches:
            raise
        raised = e  # behind what was found until then
    finally:
        checking.watchers.remove(seen)
    if not seen.launches:  # a CI job must not take it for a run that found nothing
        print(f"triport check {args.target[0]}: nothing was checked for {kinds.replace(',', ', ')}: no kernel was launched on the CPU")
        return code or exits.USAGE
    places = {(r.kind, r.file, r.line) for e in seen.errors for r in e.reports}
    said = f"{_count(len(places), 'fault')} in {_count(len({e.kernel for e in seen.errors}), 'kernel')}" if places else "nothing found"
    print(f"triport check {args.target[0]}: {_count(seen.launches, 'launch')} of {_count(len(seen.kernels), 'kernel')} checked for "
          f"{kinds.replace(',', ', ')}: {said}", flush=True)
    if raised is not None:
        if not places:
            raise raised
        print_error(raised)
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
        return _step(t.title, lambda: (t.step(), t.synchronize()))
    for dtype in [args.dtype] if args.dtype else op.dtypes:
        chosen = [cases.one(op, args.case, op.cases[0])] if args.case is not None else op.cases_on("cpu")
        for case in chosen:
            of = target.of_op(op, case, dtype, "triton-cpu", "cpu", args.seed, reference=False)
            if code := _step(of.title, of.step):
                return code
    return exits.GOOD


def _step(title: str, step) -> int:
    """A user's step. The exit code that it asks for; what else it raises is an `Error` that says where, and no fault of ours."""
    from ..backends.base import Error
    try:
        step()
    except Error:
        raise
    except SystemExit as e:
        if isinstance(e.code, str):
            print_error(e.code)
        return e.code if isinstance(e.code, int) else exits.WRONG if e.code else exits.GOOD
    except Exception as e:
        raise Error(f"{title} raised {target.raised(e)}") from e
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
