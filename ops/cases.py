"""An op's sizes, layouts and parameters as text: what `--case` and `--sweep` of every command take.

A case is its tensors and parameters, separated by commas: "4096x4096,4096x4096t,dim=0". A tensor is its sizes, "t" where it is the transpose of a
contiguous matrix (each of a batch), and ":int64", ":int64<1000" or ":bool" where it keeps a dtype of its own; "scalar" has no dimensions. Tensors that follow from those
before are left out where the op names its dimensions (`Op.dims`), and dimensions go by their names: "700x300,N=500" of MxK,KxN. What is no
case is looked for in the names of the op's own cases, whole numbers and words only: "dim=0", "1823x781".

A sweep is NAME=START..STOP:STEP with a step of xFACTOR or +ADDEND (x2 without one), or NAME=1,2,4; NAME is a dimension, several at once (M=N=...), or a
parameter.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re

from ..backends.base import Error, suggest
from .case import Case, shape_text

#: more sizes than this are taken for a slip of the pen
LONGEST_SWEEP = 1000
#: elements of a tensor; torch counts them in 64 bits, and no machine holds so many
LARGEST = 1 << 48

_TENSOR = re.compile(r"(scalar|\d+(?:x\d+)*)(t?)(?::([a-z]\w*(?:<\d+)?))?")
_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)")


def dims_of(op) -> list[list[str]] | None:
    """The names of each tensor's dimensions: those of `Op.dims`, or M, N, ... where every case has one tensor, or tensors of one shape."""
    if op.dims:
        return [part.partition(":")[0].split("x") for part in op.dims.split(",")]
    shapes = [c.shapes for c in op.cases if isinstance(c, Case)]
    if not shapes or any(len(set(s)) != 1 or len(s) != len(shapes[0]) for s in shapes):
        return None
    rank = {len(s[0]) for s in shapes}
    names = {1: ["N"], 2: ["M", "N"], 3: ["B", "M", "N"], 4: ["A", "B", "M", "N"]}.get(rank.pop() if len(rank) == 1 else 0)
    return [names] * len(shapes[0]) if names else None


def parse(op, text: str) -> Case:
    """The case that a text says; an op's own one of that name, with its scale, where there is one. Raises `Error` where it says none."""
    if known := next((c for c in op.cases if isinstance(c, Case) and c.name == text.strip()), None):
        return known
    shapes, turned, types, settings = [], [], [], {}
    for part in text.split(","):
        part = part.strip()
        if tensor := _TENSOR.fullmatch(part):
            if settings:
                raise Error(f"case {text!r}: the tensor {part} stands behind {next(iter(settings))}=; tensors come first")
            shapes.append(() if tensor[1] == "scalar" else tuple(map(int, tensor[1].split("x"))))
            turned += [len(shapes) - 1] if tensor[2] else []
            types.append(tensor[3] or "")
        elif setting := _SETTING.fullmatch(part):
            if setting[1] in settings:
                raise Error(f"case {text!r}: {setting[1]} is there twice")
            settings[setting[1]] = setting[2]
        else:
            raise Error(f"case {text!r}: {part!r} is neither a tensor's sizes, like 1823x781 or 512x512t, nor a parameter, like dim=0")
    dims = dims_of(op)
    named = {n for names in dims or [] for n in names}
    sizes = {k: _size(text, k, settings.pop(k)) for k in [*settings] if k in named}
    _check_names(op, text, settings, named)
    shapes = _completed(op, text, shapes, dims, sizes)
    if too_many := next((s for s in shapes if math.prod(s) > LARGEST), None):
        raise Error(f"case {text!r}: a tensor of {shape_text(too_many)} is larger than any memory")
    usual = _types(op, shapes)
    types = [(types[k] if k < len(types) else "") or usual[k] for k in range(len(shapes))]
    try:
        made = Case(shapes, {k: _value(v) for k, v in settings.items()}, tuple(turned), _scale(op), "", tuple(types) if any(types) else ())
    except Error as e:
        raise Error(f"case {text!r}: {e}") from None
    _check_number(op, made)
    return next((c for c in op.cases if isinstance(c, Case) and c.name == made.name), made)


def select(op, texts: list[str], device: str = "cpu") -> list[Case]:
    """The cases that texts choose, each once, in their order; those that `device` runs by default where there are none. Raises `Error` for a text
    that is no case of the op, nor part of one's name."""
    if not texts and not op.cases:
        raise Error(f'{op.name} has no cases: choose one, as in --case 1823x781, or say cases=("1823x781",) in its Op')
    if not texts:
        return op.cases_on(device)
    found: dict[str, Case] = {}
    for text in texts:
        if not text.strip():  # part of any name: a shell's variable that was not set would choose all
            raise Error(f"case {text!r}: there is nothing in it; leave --case out for the op's own cases")
        try:
            chosen = [parse(op, text)]
        except Error as e:
            chosen = [c for c in op.cases_on(device) if _within(text.strip(), c.name)] or [c for c in op.cases if _within(text.strip(), c.name)]
            if not chosen:
                raise Error(_unknown(op, text, e)) from None
        found |= {c.name: c for c in chosen}
    return list(found.values())


def one(op, text: str | None, default: Case | None = None) -> Case:
    """The first case that a text chooses; without one `default`, or the op's first."""
    if text is not None or not op.cases:
        return select(op, [text] if text is not None else [])[0]
    return default or op.cases[0]


def sweep(op, cases: list[Case], texts: list[str]) -> list[Case]:
    """Each of `cases` with the sizes and parameters of sweeps, all combinations, the last sweep fastest. Raises `Error`."""
    if not texts:
        return cases
    said = f"--sweep {' --sweep '.join(texts)}"
    steps = [_steps(text) for text in texts]
    swept = [name for step in steps for name in step[0]]
    if twice := next((n for n in swept if swept.count(n) > 1), None):
        raise Error(f"{said}: {twice} is there twice; say NAME=1,2,4 for a list of values")
    out: dict[str, Case] = {}
    for case in cases:
        for settings in itertools.product(*steps):
            try:
                made = resized(op, case, {k: v for setting in settings for k, v in setting.items()})
            except Error as e:
                raise Error(f"{said}: {e}") from None
            out[made.name] = made
            if len(out) > LONGEST_SWEEP:
                raise Error(f"{said}: more than {LONGEST_SWEEP} cases")
    return list(out.values())


def _steps(text: str) -> list[dict[str, str]]:
    """What a sweep sets, step by step."""
    *names, values = text.split("=")
    usage = f"--sweep {text}: it takes NAME=START..STOP:xFACTOR, NAME=START..STOP:+ADDEND or NAME=1,2,4, as in M=256..8192:x2"
    if not names or not all(re.fullmatch(r"[A-Za-z_]\w*", n) for n in names) or not values:
        raise Error(usage)
    if ".." not in values:
        return [dict.fromkeys(names, v.strip()) for v in values.split(",")]
    hit = re.fullmatch(r"(\d+)\.\.(\d+)(?::([x+])(\d+(?:\.\d+)?))?", values.strip())
    if not hit:
        raise Error(usage)
    start, stop, kind, step = int(hit[1]), int(hit[2]), hit[3] or "x", float(hit[4] or 2)
    if start > stop or kind == "x" and (step <= 1 or not start) or kind == "+" and (step < 1 or step != int(step)):
        raise Error(f"--sweep {text}: it goes upwards, by a factor above 1 (from 1 up) or an addend of 1 or more")
    out, at = [], start
    while at <= stop:
        out.append(at)
        at = max(at + 1, math.floor(at * step + 0.5)) if kind == "x" else at + int(step)
        if len(out) > LONGEST_SWEEP:
            raise Error(f"--sweep {text}: more than {LONGEST_SWEEP} sizes")
    return [dict.fromkeys(names, str(n)) for n in out]


def resized(op, case: Case, settings: dict[str, str]) -> Case:
    """A case with other sizes and parameters."""
    dims = dims_of(op)
    named = {n for names in dims or [] for n in names}
    if dims is None and (odd := next((k for k in settings if k not in parameters_of(op)), None)):
        raise Error(f"{op.name} has no dimension or parameter {odd!r}; where it is a dimension say dims= in its Op, as in dims=\"MxK,KxN\"")
    sizes = {k: _size(f"{k}={v}", k, v) for k, v in settings.items() if k in named}
    kwargs = {**case.kwargs, **{k: _value(v) for k, v in settings.items() if k not in named}}
    shapes = case.shapes
    if sizes:
        known = _sizes(op, case.name, shapes, dims) | sizes
        shapes = tuple(tuple(known[n] for n in names) for names in dims)
    made = dataclasses.replace(case, shapes=shapes, kwargs=kwargs, types=tuple(_types(op, shapes)) if ":" in op.dims else case.types)
    _check_names(op, made.name, [k for k in settings if k not in named], named)
    return next((c for c in op.cases if c.name == made.name), made)


def _completed(op, text: str, shapes: list, dims, sizes: dict[str, int]) -> tuple:
    """All tensors' shapes: those that the text says, and those that follow by the dimensions' names."""
    if shapes and not sizes and (dims is None or len(shapes) == len(dims)):
        if op.dims and all(len(s) >= len(names) for s, names in zip(shapes, dims)):  # that they fit each other, whatever is in front
            _sizes(op, text, tuple(s[len(s) - len(names):] for s, names in zip(shapes, dims)), dims)
        return tuple(shapes)
    if dims is None:
        raise Error(f"case {text!r}: say the sizes of all of {op.name}'s tensors, as in {op.cases[0].name}" if op.cases else f"case {text!r} has no tensor")
    if len(shapes) > len(dims) and not sizes and not op.dims:
        return tuple(shapes)  # dimensions that were told from the op's cases limit nothing
    if len(shapes) > len(dims):
        raise Error(f"case {text!r}: {op.name} takes {_form(dims)}, not {len(shapes)} tensors")
    known = _sizes(op, text, tuple(shapes), dims)
    for name, size in sizes.items():
        if known.setdefault(name, size) != size:
            raise Error(f"case {text!r}: {name} is {known[name]} by a tensor's sizes and {size} by its name ({op.name} takes {_form(dims)})")
    absent = list(dict.fromkeys(n for names in dims for n in names if n not in known))
    if absent:
        raise Error(f"case {text!r}: {op.name} takes {_form(dims)}; say {absent[0]}, as in {','.join([text, f'{absent[0]}=500'])}")
    return tuple(tuple(known[n] for n in names) for names in dims)


def _sizes(op, text: str, shapes: tuple, dims) -> dict[str, int]:
    """The dimensions' sizes by name, as shapes say them."""
    if dims is None:
        raise Error(f"{op.name} has no names for its dimensions; say dims= in its Op, as in dims=\"MxK,KxN\"")
    known: dict[str, int] = {}
    for shape, names in zip(shapes, dims):
        if len(shape) != len(names):
            raise Error(f"case {text!r}: {op.name} takes {_form(dims)}, and {shape_text(shape)} has {len(shape)} dimensions where {'x'.join(names)} has {len(names)}")
        for name, size in zip(names, shape):
            if known.setdefault(name, size) != size:
                raise Error(f"case {text!r}: {op.name} takes {_form(dims)}, and {name} is {known[name]} in one tensor and {size} in another")
    return known


def _form(dims) -> str:
    return ",".join("x".join(names) for names in dims)


def _size(text: str, name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 15:
        raise Error(f"case {text!r}: {name} is a dimension and takes a size, not {value!r}")
    return int(value)


def _value(text: str):
    """A parameter's value: an int, a float, True, False, None, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"True": True, "False": False, "None": None}.get(text, text)


def _types(op, shapes: tuple) -> list[str]:
    """The types of tensors where a text says none: those of `Op.dims`, a limit by a dimension's name with its size; else as in the op's first case."""
    first = op.cases[0] if op.cases and isinstance(op.cases[0], Case) else None
    out = [first.type_of(k) if first else "" for k in range(len(shapes))]
    if ":" in op.dims and all(len(s) == len(names) for s, names in zip(shapes, dims_of(op))):
        sizes = _sizes(op, op.dims, shapes, dims_of(op))
        for k, part in enumerate(op.dims.split(",")[:len(shapes)]):
            kept, limited, below = part.partition(":")[2].partition("<")
            out[k] = f"{kept}<{max(1, sizes.get(below, 0) if not below.isdecimal() else int(below))}" if limited else kept
    return out


def _scale(op) -> float:
    """The size of the values that suits the op: that of its first case."""
    return op.cases[0].scale if op.cases and isinstance(op.cases[0], Case) else 1.0


def _check_names(op, text: str, names, dims):
    """Raises `Error` for a name that is none of the op's parameters (nor of its dimensions)."""
    parameters = parameters_of(op)
    if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for k in names:
            if k not in parameters:
                raise Error(f"case {text!r} of {op.name}: {suggest('parameter', k, [*parameters, *dims])}")


def _check_number(op, case: Case):
    """Raises `Error` where the op takes another number of tensors."""
    parameters = parameters_of(op)
    if not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return
    # what has a number or a word for its default is no tensor
    most = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and n not in case.kwargs
            and p.default in (p.empty, None)]
    least = [n for n in most if parameters[n].default is inspect.Parameter.empty]
    if not len(least) <= len(case.shapes) <= len(most):
        raise Error(f"case {case.name!r}: {op.name} takes {', '.join(parameters)}; {len(case.shapes)} tensor{'s' * (len(case.shapes) != 1)} do not fit")


def parameters_of(op) -> dict[str, inspect.Parameter]:
    """Those of the op's function, or of the first of its functions that says them; none where all are builtins that do not."""
    for fn in (op.function, op.call, op.eager, *op.variants.values(), op.reference):
        try:
            return dict(inspect.signature(fn).parameters)
        except (TypeError, ValueError):
            continue
    return {}


def _within(text: str, name: str) -> bool:
    """Is a text part of a name, from the beginning of a number or word to the end of one?"""
    if not text:
        return False
    before = r"(?<![\d.])" if text[0].isdecimal() else r"(?<![A-Za-z_])" if text[0].isalpha() else ""
    behind = r"(?![\d.])" if text[-1].isdecimal() else r"(?![A-Za-z_])" if text[-1].isalpha() else ""
    return re.search(before + re.escape(text) + behind, name) is not None


def _unknown(op, text: str, error: Error) -> str:
    """The sentence for a text that chooses nothing: what is wrong with it as a case, or the names that are known."""
    looks_like_one = text.strip().removeprefix("-")[:1].isdecimal() or "=" in text
    known = [c.name for c in op.cases]
    return str(error) if looks_like_one or not known else f"{op.name}: {suggest('case', text, known)}; or sizes of your own, like {known[0]}"
