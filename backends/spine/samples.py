"""A bundle's case files: inputs, and what a right result is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...ops.records import DTYPES, TOLERANCE, dtype_name, shape_text, wide
from ..base import Error
from . import request
from .arguments import inputs_of
from .library import Function
from .trace import Call

#: of what this machine computes itself, both are wrong by a few roundings
_BOTH = 4
#: bytes of a case's inputs
MOST = 1 << 29


@dataclass
class Sample:
    """values: tensors and numbers in the function's order; wants: (written tensor, its right values in fp64, the error that still counts as right); source: where those
    are from."""

    name: str
    shapes: list
    values: list
    wants: list[tuple[str, torch.Tensor, float]]
    source: str


def of_op(op, case, dtype: str, function: Function, seed: int) -> Sample:
    """An op's case with inputs from `seed` and what float64 gives for them."""
    tensors = case.make(DTYPES[dtype], seed=seed)
    if any(b.ld is not None for b in function.program.arguments):
        tensors = [_apart(t, k in case.transposed) if t.dim() == 2 else t for k, t in enumerate(tensors)]
    expected = op.expected(*tensors, **case.kwargs)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    wants = [(n, e, op.allowed(DTYPES[dtype])) for n, e in zip(_results(function), expected)]
    return Sample(case.name, [list(s) for s in case.shapes], tensors, wants, "float64")


def _apart(t: torch.Tensor, turned: bool) -> torch.Tensor:
    """A matrix whose lines lie 5 elements further apart."""
    lines = t.T if turned else t
    view = torch.zeros(lines.shape[0], lines.shape[1] + 5, dtype=t.dtype)[:, :lines.shape[1]].copy_(lines)
    return view.T if turned else view


def _results(function: Function) -> list[str]:
    return [function.program.buffers[k].name for k in function.program.results]


def of_call(call: Call, function: Function, seed: int) -> Sample:
    """An example with inputs from `seed`, and what FUNCTION_reference gives for them in float64, or the function itself on this machine. Raises `Error` where
    that fails."""
    if (size := sum(math.prod(a.shape) * a.dtype.itemsize for a in call.arguments if a.kind == "tensor")) > MOST:
        raise Error(f"the example of {call.name} has {size} bytes, too many for a case: give a smaller one (sizes stay open), or --no-cases")
    g = torch.Generator().manual_seed(seed)
    values = {a.name: a.make(g) for a in call.arguments}
    truth = call.reference or call.function
    used = {k: wide(v) if call.reference else v.clone(memory_format=torch.preserve_format) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    try:
        out = truth(**used)
    except Exception as e:
        raise Error(f"{truth.__name__} does not run on this machine with the example {', '.join(map(str, call.arguments))}: {type(e).__name__}: {e}. A bundle's cases need a right "
                    f"result: mend it, write {call.name}_reference beside it (in torch, on float64), or leave cases out with --no-cases") from e
    out = [] if out is None else [out] if isinstance(out, torch.Tensor) else list(out.values() if isinstance(out, dict) else out)
    out = [t for t in out if t is not None]
    names = _results(function)
    if len(out) < len(names):
        raise Error(f"{truth.__name__} returns {len(out)} tensors, and {call.name} {len(names)}")
    roles = {b.name: b.role for b in function.program.arguments}
    wants = [(n, t) for n, t in zip(names, out) if roles.get(n) != "in"]
    wants += [(n, used[n]) for n, role in roles.items() if role == "inout" and n not in dict(wants)]
    done = []
    for name, t in wants:
        b = next(b for b in function.program.arguments if b.name == name)
        allowed = TOLERANCE.get(dtype_name(b.dtype), 0.0) * (1 if call.reference else _BOTH)
        done.append((name, t.double(), allowed))
    said = ",".join(shape_text(tuple(a.shape)) for a in call.arguments if a.kind == "tensor")
    return Sample(said, [list(a.shape) for a in call.arguments if a.kind == "tensor"], [values[a.name] for a in call.arguments if a.kind != "constant"], done,
                  "float64" if call.reference else "this machine")


def file(number: int, description: dict, sample: Sample, repetitions: int) -> bytes:
    """A request for function `number`, of that description, that says what is right."""
    given, numbers = inputs_of(description, sample.values)
    wants = {}
    for (a, (_, like)), (name, want, allowed) in ((x, w) for w in sample.wants for x in zip(description["arguments"], given) if x[0]["name"] == w[0]):
        t = want.T if a["transposed"] else want
        if a["ld"]:  # what lies between the lines stays what it is
            ld = numbers[[q["name"] for q in description["numbers"]].index(a["ld"])]
            whole = like.double()
            whole.as_strided(t.shape, (ld, 1)).copy_(t)
            t = whole
        wants[[x["name"] for x in description["arguments"]].index(name)] = t, allowed
    return request.encode((number, description), given, numbers, warmup=2, repetitions=repetitions, wants=wants, its_own=sample.source != "float64")
