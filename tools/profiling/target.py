"""What `triport profile` and `triport check` take: an op with a case, a function of a file, a model, or a script with its arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from ...ops.records import Case, Op

#: where our own files are; a checkout has examples beside them
_OURS = tuple(f"{Path(__file__).resolve().parents[2] / part}/" for part in ("backends", "ops", "bench", "tools", "checking", "testing"))


@dataclass
class Target:
    """title: for people. step: does it once, or None for a script. backend: what a column is called. synchronize: waits for a GPU. argv: a
    script's path and arguments. op, case, dtype: of an op, its records and the dtype's name. nbytes, flops: of one step, where they are known. error: of an
    op, calls it and returns the normalised error of its result."""

    title: str
    backend: str = ""
    step: Callable[[], object] | None = None
    synchronize: Callable[[], None] = lambda: None
    argv: tuple[str, ...] = ()
    op: Op | None = None
    case: Case | None = None
    dtype: str = ""
    device: str = "cpu"
    nbytes: int | None = None
    flops: int | None = None
    error: Callable[[], float] | None = None


def add(parser):
    """The arguments of a command that takes targets: which one, of a model its variant and size, the inputs' seed."""
    parser.add_argument("target", nargs="+", metavar="TARGET", help="an op (its name, or FILE.py:NAME), FILE.py:FUNCTION (of no arguments), a model, or a script "
                        "with its arguments after --")
    parser.add_argument("--variant", metavar="NAME", help="of a model (default: its last)")
    parser.add_argument("--size", choices=("small", "main"), help="of a model (default: small)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the inputs (default: 0)")


def find(words: list[str], args) -> list[Target]:
    """The targets of a command line: one, or two with --against. Raises `Error` for what is none."""
    from ...backends.base import Error, suggest
    from ...ops import registry

    first, rest = words[0], words[1:]
    known = models()
    if first not in (*registry.NAMES, *known) and (wrong := _no_script(first)):
        raise Error(f"{first}{wrong}; it takes an op ({', '.join(registry.NAMES)}), FILE.py:FUNCTION, a model, or a script with its arguments after --")
    if first.endswith(".py"):
        refuse(args, "a script", "against", "backend", "case", "dtype", "variant", "size", "steps")
        return [Target(" ".join(words), argv=tuple(words))]
    if rest:
        raise Error(f"arguments {' '.join(rest)!r} after {first}: only a script takes some (triport profile -- script.py arguments)")
    if first in known and first not in registry.NAMES:
        refuse(args, "a model", "backend", "case", "dtype")
        return _model(first, known[first], args)
    if ":" in first:
        path, _, attribute = first.rpartition(":")
        found = registry.load(Path(path), attribute)
        if hasattr(found, "cases") and hasattr(found, "eager"):
            return _op(registry.get(first), args)
        refuse(args, "a function", "against", "backend", "case", "dtype", "variant", "size")
        return [_function(first, found)]
    if first not in registry.NAMES:
        raise Error(suggest("target", first, [*registry.NAMES, *known]) + ", or FILE.py:FUNCTION, or a script with its arguments after --")
    refuse(args, "an op", "variant", "size")
    return _op(registry.get(first), args)


def raised(e: BaseException) -> str:
    """What a user's step raised, and where that was in files that are neither ours nor a library's."""
    from ...bench import words

    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith((*_OURS, "<"))]
    theirs = [f for f in frames if "site-packages" not in f.filename] or frames
    return words.raised(e) + (f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else "")


def _no_script(path: str) -> str:
    """What a path is instead of a Python script; nothing where it is one, or may be another target's name."""
    if Path(path).is_dir():
        return " is a folder"
    if path.endswith(".py"):
        return "" if Path(path).is_file() else ": there is no such script"
    return " is no Python script: its name does not end in .py" if Path(path).is_file() else ""


def refuse(args, what: str, *names: str):
    """`Error` for options that `what` does not take."""
    from ...backends.base import Error

    given = [n for n in names if getattr(args, n, None)]
    if given:
        raise Error(f"--{given[0]} does not go with {what}")


def models() -> dict:
    """The examples that can be profiled (bench/models), by name."""
    if importlib.util.find_spec("triport.bench.models") is None:
        return {}
    from ...bench.models import MODELS
    return MODELS


def _function(name: str, found) -> Target:
    from triton.runtime.jit import KernelInterface

    from ...backends.base import Error

    if isinstance(found, KernelInterface):
        raise Error(f"{name} is a kernel; name a function that launches it")
    if not callable(found):
        raise Error(f"{name} is {type(found).__name__}; it takes a function of no arguments, or a triport.ops.Op")
    try:
        needed = [p.name for p in inspect.signature(found).parameters.values()
                  if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise Error(f"{name} needs arguments ({', '.join(needed)}); it takes a function of none, as one that makes its own inputs and calls it")
    return Target(name, name.rpartition(":")[2], found, _synchronize())


def _synchronize() -> Callable[[], None]:
    import torch
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def _op(op, args) -> list[Target]:
    from ...backends import available, get
    from ...backends.base import Error, suggest
    from ...ops import cases
    from ...ops.records import DTYPES

    device = "cuda" if any(b.device == "cuda" for b in available()) else "cpu"
    usual = "triton-gpu" if device == "cuda" else "triton-cpu"
    names = [args.backend or (usual if op.call else next(iter(op.variants), "torch")), *([args.against] if args.against else [])]
    if names[0] not in op.variants:
        device = get(names[0]).device or device  # both sides on one
    dtype = args.dtype or ("fp32" if "fp32" in op.dtypes else op.dtypes[0])
    if dtype not in DTYPES:
        raise Error(suggest("dtype", dtype, DTYPES))
    if dtype not in op.dtypes:
        raise Error(f"{op.name} takes {', '.join(op.dtypes)}, not {dtype}")
    case = cases.one(op, args.case, max(op.cases_on(device) or op.cases, key=lambda c: c.elements, default=None))
    return [of_op(op, case, dtype, name, device, args.seed) for name in names]


def of_op(op, case, dtype: str, name: str, device: str = "cpu", seed: int = 0, reference: bool = True) -> Target:
    """One call of an op, with a case's inputs in dtype `dtype` (its short name), by a backend or a variant. reference: is its error asked for? Raises `Error` where
    it cannot."""
    from ...backends import get
    from ...backends.base import Error, Unavailable
    from ...bench import check, columns
    from ...ops import room
    from ...ops.records import DTYPES

    if name in op.variants:
        column, = columns.of(op, [], [name], device)
    else:
        backend = get(name)
        if reason := backend.unavailable():
            raise Unavailable(f"backend {name} cannot run here: {reason}")
        if backend.elsewhere:
            raise Error(f"backend {name} runs on another machine, where nothing of this can be seen; `triport bench --on` times it there")
        if not backend.takes(op):
            raise Error(f"backend {name} does not run {op.name}")
        column, = columns.of(op, [backend], [], device)
    room.require(op, case, dtype, column.device, reference)
    inputs = columns.Inputs(op, case, case.make(DTYPES[dtype], column.device, seed))
    call = inputs.call(fn := column.bind())
    return Target(f"{op.name} {case.name} {dtype}", name, call, column.synchronize, op=op, case=case, dtype=dtype, device=column.device,
                  nbytes=op.nbytes(*inputs.args, **case.kwargs) if op.nbytes else None, flops=op.flops(*inputs.args, **case.kwargs) if op.flops else None,
                  error=lambda: check.largest(inputs.result(fn), inputs.expected()))


def _model(name: str, entry, args) -> list[Target]:
    from ...backends.base import Error, suggest

    module = importlib.import_module(f"triport.bench.models.{entry[0]}")
    steps = module.steps(args.size or "small", "cuda" if _cuda() else "cpu", args.seed)
    wanted = [args.variant or next(reversed(steps)), *([args.against] if args.against else [])]
    for variant in wanted:
        if variant not in steps:
            raise Error(f"{name}: {suggest('variant', variant, steps)}")
    return [Target(f"{name} {args.size or 'small'}", variant, steps[variant], _synchronize()) for variant in wanted]


def _cuda() -> bool:
    import torch
    return torch.cuda.is_available()
