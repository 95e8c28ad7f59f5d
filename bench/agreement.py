"""Do two calls return the same? Results are tensors, arrays, numbers, and tuples, lists and dicts of them; whatever else must be equal."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any, Callable, Mapping

from ..backends.base import Error

#: a Python float's and an array's error that counts as right
FLOAT = 1e-14


def _is_tensor(x) -> bool:
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def tensors(values) -> list:
    """The tensors of nested tuples, lists and dicts."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return [t for v in values for t in tensors(v)]
    return [values] if _is_tensor(values) else []


def wide(values: Any) -> Any:
    """The same with floating-point tensors in float64 and complex ones in complex128, apart from any graph."""
    if type(values) is dict:
        return {k: wide(v) for k, v in values.items()}
    if type(values) in (tuple, list):
        return type(values)(map(wide, values))
    if not _is_tensor(values) or not (values.is_floating_point() or values.is_complex()):
        return values
    return values.detach().cdouble() if values.is_complex() else values.detach().double()


def error(got, want, allowed: float | None = None) -> tuple[float, float]:
    """(normalised error, what is allowed) of a result, of that part of it which is furthest off: infinite where they are not alike. allowed: by
    default that of the ops for a tensor's dtype."""
    return max(_errors(got, want, allowed), key=lambda e: e[0] / max(e[1], sys.float_info.min), default=(0.0, 0.0))


def _errors(got, want, allowed):
    if isinstance(got, Mapping) and isinstance(want, Mapping):
        if list(got) == list(want):
            got, want = list(got.values()), list(want.values())
        else:
            return [(math.inf, 0.0)]
    if isinstance(got, (tuple, list)) and isinstance(want, (tuple, list)):
        return [e for g, w in zip(got, want) for e in _errors(g, w, allowed)] if len(got) == len(want) else [(math.inf, 0.0)]
    if _is_tensor(got) and _is_tensor(want):
        return [_of_tensors(got, want, allowed)]
    if all(hasattr(x, "__array__") and not _is_tensor(x) for x in (got, want)):
        import numpy
        import torch
        return [_of_tensors(*(torch.from_numpy(numpy.array(x)) for x in (got, want)), allowed)]
    numbers = (bool, int, float, complex)
    got, want = (x.item() if getattr(x, "shape", None) == () and hasattr(x, "item") and not _is_tensor(x) else x for x in (got, want))
    if isinstance(got, numbers) and isinstance(want, numbers) and any(isinstance(x, (float, complex)) for x in (got, want)):
        if got == want:
            return [(0.0, FLOAT)]
        if got != got and want != want:
            return [(0.0, FLOAT)]
        off = abs(got - want) / abs(want) if want and math.isfinite(abs(want)) else math.inf
        return [(off if off == off else math.inf, FLOAT if allowed is None else allowed)]
    same = got is want or type(got) is type(want) and got == want
    return [(0.0 if same is True else math.inf, 0.0)]


def _of_tensors(got, want, allowed: float | None) -> tuple[float, float]:
    import torch

    from . import check
    got, want = (t if t.layout is torch.strided else t.to_dense() for t in (got, want))
    return check.error(got, want), _allowed(got.dtype) if allowed is None else allowed


def _allowed(dtype) -> float:
    """The error that counts as right: of complex numbers that of their parts, of floats of 8 bits and less one step."""
    import torch

    from ..ops.records import TOLERANCE, dtype_name
    part = dtype.to_real() if dtype.is_complex else dtype
    return TOLERANCE.get(dtype_name(part), torch.finfo(part).eps if part.is_floating_point else 0.0)


def checked(candidates: dict[str, Callable], call: Callable, inputs, want, against: str | None, allowed: float | None) -> dict[str, float]:
    """name -> error of each candidate's result `call(name)` against `want`, or where `against` is None against the first candidate's. Raises `Error`
    where one is wrong or changes `inputs` (tensors, arrays, lists and dicts) that all are given. Where a result lies in memory that an earlier one lies in, as of functions that write
    into one `out`, it is spoilt and made again: what another candidate left there is not taken for this one's."""
    given, others = tensors(inputs), _mutable(inputs)
    kept, before = [t.detach().clone() for t in given], copy.deepcopy(others)
    errors, places = {}, set()
    for name in candidates:
        got = call(name)
        _unchanged(name, given, kept)
        shared = [(t, _apart(t)) for t in _written(got) if _place(t) in places - {0}]
        if shared:
            for t, _ in shared:
                _spoil(t)
            got = call(name)
            _unchanged(name, given, kept)
        places |= {_place(t) for t in _written(got)} - {_place(t) for t in _written(inputs)}
        if error(others, before, 0.0)[0]:
            raise Error(f"compare: candidate {name} changes its arguments, which the others are given as well; compare functions that write into copies")
        if against is None:
            want, against = _apart(got), f"candidate {name}"
        errors[name], most = error(got, want, allowed)
        if not errors[name] <= most:
            _restored(shared)
            here = "; its result lies where an earlier candidate's does, and what it does not write itself is not its result" if shared else ""
            how = f" ({why})" if math.isinf(errors[name]) and (why := _differs(got, want)) else ""
            raise Error(f"compare: candidate {name} is wrong: its error against {against} is {errors[name]:.1e}{how}, and {most:.1e} is allowed{here}; nothing was "
                        "timed. Where that much is right, say allowed=")
    return errors


def _differs(got, want) -> str:
    """Where results differ so that no number says by how much, of tensors and of dicts and sequences of values."""
    from . import check
    if isinstance(got, Mapping) and isinstance(want, Mapping):
        if list(got) != list(want):
            return f"keys {', '.join(map(repr, got))}; {', '.join(map(repr, want))} expected"
        got, want = list(got.values()), list(want.values())
    got, want = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (got, want))
    if len(got) != len(want):
        return f"{len(got)} results, {len(want)} expected"
    for g, w in zip(got, want):
        if all(map(_is_tensor, (g, w))) and (why := check.differs([g], [w])):
            return why
        if type(g) is not type(w):
            return f"{type(g).__name__}, {type(w).__name__} expected"
        if isinstance(g, str) and g != w:
            return f"{g[:60]!r}, {w[:60]!r} expected"
    return ""


def dtypes(values) -> list[str]:
    """Those of the tensors and arrays of nested tuples, lists and dicts."""
    return [str(x.dtype).removeprefix("torch.") for x in _written(values)]


def _written(values) -> list:
    """The tensors and arrays of nested tuples, lists and dicts, which have memory of their own."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return [t for v in values for t in _written(v)]
    if _is_tensor(values):
        return [values] if values.layout is sys.modules["torch"].strided and values.numel() else []
    return [values] if "numpy" in sys.modules and isinstance(values, sys.modules["numpy"].ndarray) and values.size else []


def _place(x) -> int:
    """Where the memory begins that x lies in, as a view, too; 0 where it has none of its own, as a DTensor."""
    if _is_tensor(x):
        try:
            return x.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):
            return 0
    while x.base is not None and hasattr(x.base, "ctypes"):
        x = x.base
    return x.ctypes.data


def _spoil(x):
    """Fill x with what no candidate returns: NaN, or the largest number."""
    if not _is_tensor(x):
        import numpy
        if x.flags.writeable and x.dtype.kind in "fciub":
            x[...] = ~x if x.dtype.kind == "b" else math.nan if x.dtype.kind in "fc" else numpy.iinfo(x.dtype).max
        return
    import torch
    with torch.inference_mode():  # in which tensors of either mode can be written to
        t = x.detach()
        for d, stride in enumerate(t.stride()):
            t = t.narrow(d, 0, 1) if stride == 0 else t  # one for all that are one number
        if t.dtype is torch.bool:
            t.logical_not_()
        else:
            t.fill_(math.nan if t.is_floating_point() or t.is_complex() else torch.iinfo(t.dtype).max)


def _restored(shared: list):
    """Put back what was spoilt: (tensor or array, what it was)."""
    for x, was in shared:
        if not _is_tensor(x):
            if x.flags.writeable:
                x[...] = was
            continue
        import torch
        with torch.inference_mode():
            x, was = x.detach(), was.detach()
            for d, stride in enumerate(x.stride()):
                x, was = (t.narrow(d, 0, 1) if stride == 0 else t for t in (x, was))
            x.copy_(was)


def _apart(values: Any) -> Any:
    """The same with tensors and arrays in memory of their own."""
    if type(values) is dict:
        return {k: _apart(v) for k, v in values.items()}
    if type(values) in (tuple, list):
        return type(values)(map(_apart, values))
    if _is_tensor(values):
        return values.detach().clone()
    return values.copy() if "numpy" in sys.modules and isinstance(values, sys.modules["numpy"].ndarray) else values


def _mutable(inputs) -> list:
    """Arrays, lists and dicts without tensors among a call's (args, kwargs): what a candidate may change in place."""
    args, kwargs = inputs
    return [x for x in (*args, *kwargs.values()) if not tensors(x) and (hasattr(x, "__array__") or isinstance(x, (list, dict)))]


def _unchanged(name: str, given: list, kept: list):
    """Raises `Error` where a candidate changed what the others are to be given, and puts it right."""
    from . import check
    if changed := check.put_back(given, kept):
        raise Error(f"compare: candidate {name} changes tensor {', '.join(map(str, changed))} of its arguments, which the others are given as well; "
                    "compare functions that write into copies")
