"""`triport profile`: where an op's, a function's, a model's or a script's time goes, as a folder of profiles and a page of them."""

from __future__ import annotations

import sys
from pathlib import Path

from . import exits
from .profiling import target

EXAMPLES = (
    "triport profile softmax --case 1823x781 --against torch -o profile",
    "triport profile mlp --variant torch-compile --steps 5",
    "triport profile -o profile -- train.py --steps 3",
)


def add(parser):
    parser.usage = "triport profile [options] TARGET\n       triport profile [options] -- SCRIPT.py [arguments]"
    target.add(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="the folder (default: profile-TARGET)")
    parser.add_argument("--case", metavar="TEXT", help="of an op: sizes like 700x300, or a case's name or part of it (default: the largest)")
    parser.add_argument("--dtype", metavar="NAME", help="of an op: fp32, fp16, bf16, fp64 (default: fp32)")
    parser.add_argument("--backend", metavar="NAME", help="of an op: who runs it (default: triton-gpu beside a GPU, else triton-cpu)")
    parser.add_argument("--against", metavar="NAME", help="beside it: another backend of an op, or another variant of a model")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="steps under torch.profiler (default: as many as fill 0.3 s, 3 to 50)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's number)")
    parser.add_argument("--no-counters", action="store_true", help="do not count instructions")
    parser.add_argument("--no-roof", action="store_true", help="do not measure this machine's bandwidth and arithmetic")


def run(args) -> int:
    from ..backends.base import Error
    from ..bench import counts

    counts.check(threads=args.threads, steps=args.steps)
    counts.seed(args.seed)
    import torch

    from .profiling import session

    if args.threads:
        torch.set_num_threads(args.threads)
    targets = target.find(args.target, args)
    shown = args.output or Path("profile-" + "".join(c if c.isalnum() else "-" for c in Path(args.target[0]).stem + args.target[0].partition(":")[2]))
    folder = shown.absolute()  # what is profiled may go elsewhere
    if folder.exists() and not folder.is_dir():
        raise Error(f"-o {shown}: there is a file of that name; it takes a folder")
    sides = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.html").unlink(missing_ok=True)  # the page of an earlier one: whatever becomes of this, its figures are no longer those beside it
        try:
            for n, t in enumerate(targets):
                below = folder / "against" if n else folder
                sides.append(("against" if n else "", session.script(t, below, not args.no_roof) if t.argv else _own(
                    t.title, folder, lambda t=t, below=below: _steps(session, t, below, args))))
            if sides and not targets[0].argv:
                _own(" or ".join(t.title for t in targets), folder, lambda: session.times([p for _, p in sides]))
        finally:
            if sides:
                _page(sides, folder)
    except OSError as e:
        if not str(e.filename or "").startswith(str(folder)):
            raise
        raise Error(f"-o {shown}: {e.filename} cannot be written: {e.strerror}") from None
    print(f"{shown / 'index.html'}: " + "; ".join(_said(p) for _, p in sides))
    for _, p in sides:
        for remark in p.remarks:
            print(remark, file=sys.stderr)
    return sides[0][1].code


def _steps(session, target, folder: Path, args):
    """`session.steps`, by the command's options."""
    options = {name: getattr(args, name) for name in ("case", "dtype", "backend", "against", "variant", "size", "steps", "seed")}
    return session.steps(target, folder, args.steps or 0, not args.no_counters, not args.no_roof, (args.target, options))


def _own(title: str, folder: Path, run):
    """`run()`; what a user's step raises in it is an `Error` that says where."""
    from ..backends.base import Error
    try:
        return run()
    except Error:
        raise
    except OSError as e:
        if str(e.filename or "").startswith(str(folder)):
            raise  # ours
        if e.errno in exits.FULL and not e.filename:  # a full disk's error names no file
            raise Error(f"{folder}: it cannot be written: {e.strerror}") from None
        raise Error(f"{title} raised {target.raised(e)}") from e
    except (Exception, SystemExit) as e:
        raise Error(f"{title} raised {target.raised(e)}") from e


def _page(sides, folder: Path):
    from ..bench import results
    from .profiling import page

    page.write(sides, folder / "index.html", results.machine(), "triport " + " ".join(sys.argv[1:]))


def _said(profile) -> str:
    """A side in words."""
    import statistics

    from ..bench.report import time_text

    t = profile.target
    if t.argv:
        return f"{t.title}: {time_text(profile.wall[0])} under the profilers, exit code {profile.code}, {len(profile.kernels)} kernels of the CPU backend"
    kernels = "".join(f", {k.name} {time_text(k.wall_s)} in the median" + (  # a few slow launches decide the share, and the median does not know of them
        f" and all its launches together with {100 * k.busy:.0f} % of {k.threads} threads busy" if k.busy is not None else "") for k in profile.kernels[:1])
    noisy = f" (noisy, not to be relied on: {profile.noisy})" if profile.noisy else ""
    return f"{t.title} by {t.backend}: {'~' * bool(profile.unsteady)}{time_text(statistics.median(profile.wall))} a step{noisy}, first call {time_text(profile.first_s)}{kernels}"
