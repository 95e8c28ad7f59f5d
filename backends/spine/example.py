"""An example call of a user's function: which of its parameters are tensors, of which types, shapes and layouts, and which are numbers.

As text, on the command line or in the function's docstring: "x=fp32[300,77], labels=int64[300]<77, eps=1e-5". A tensor is its type and sizes; "t" behind
them: the transpose of a dense matrix; ";ld=80" within: a matrix whose lines lie so many elements apart, which becomes an argument of the C function;
"<N": integers below N. Numbers, True and False become arguments of the C function, too; None and 'words' are constants, and so is the default of a
parameter that the example leaves out. As a function of the same file, FUNCTION_example, it returns real arguments in a dict.
"""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass, replace

import torch

from ...ops.case import KEPT, dtype_name
from ..base import Error, suggest

#: other spellings of the dtypes' short names
ALIASES = {"float32": "fp32", "f32": "fp32", "float": "fp32", "float16": "fp16", "f16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64", "f64": "fp64",
           "double": "fp64", "i8": "int8", "i16": "int16", "i32": "int32", "int": "int32", "i64": "int64", "long": "int64", "u8": "uint8", "i1": "bool"}
FORM = "NAME=fp32[300,77], NAME=int64[300]<77, NAME=1e-5"
WORDS_OF_C = {"threads", *"""auto bool break case char const continue default do double else enum extern float for goto if inline int int64_t long register restrict return
                 short signed sizeof static struct switch typedef union unsigned void volatile while class delete new private public this template namespace operator
                 true false catch throw try using virtual""".split()}
_TENSOR = re.compile(r"(?:torch\.)?([A-Za-z]\w*)\s*\[([^\]]*)\]\s*(t?)\s*(?:<\s*(\d+))?")


@dataclass(frozen=True)
class Argument:
    """One argument of a call. dtype: a tensor's; None: a number, which `value` is. ld: elements from line to line of a matrix whose C function is told that; 0: dense.
    below: its integers are less; data: the tensor itself, where an example has one. constant: the value is the function's for good."""

    name: str
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    turned: bool = False
    ld: int = 0
    below: int = 0
    value: object = None
    data: torch.Tensor | None = None
    constant: bool = False

    @property
    def kind(self) -> str:
        """"tensor", "constant", "bool", "int" or "float"."""
        return "tensor" if self.dtype is not None else "constant" if self.constant else type(self.value).__name__

    @property
    def layout(self) -> tuple:
        """What calls of one C function have in common."""
        if self.dtype is not None:
            return self.name, self.dtype, len(self.shape), self.turned, bool(self.ld)
        return (self.name, self.kind, repr(self.value) if self.constant else "")

    def __str__(self) -> str:
        if self.dtype is None:
            return f"{self.name}={self.value!r}"
        sizes = ",".join(map(str, self.shape)) + (f";ld={self.ld}" if self.ld else "")
        return f"{self.name}={dtype_name(self.dtype)}[{sizes}]{'t' if self.turned else ''}{f'<{self.below}' if self.below else ''}"

    def make(self, g: torch.Generator) -> object:
        """Its value: a number, its data, or random elements: normal, of all that 8 bits hold (of 16 from -1000 to 999), 0 to `below` - 1, or as many True as False."""
        if self.dtype is None:
            return self.value
        if self.data is not None:
            return self.data.clone()
        if self.dtype.is_floating_point:
            t = torch.randn(self.shape, generator=g).to(self.dtype)
        elif self.dtype == torch.bool:
            t = torch.randint(0, 2, self.shape, generator=g).bool()
        else:
            few = torch.iinfo(self.dtype)
            low, high = (0, self.below) if self.below else (max(-1000, few.min), min(999, few.max) + 1)
            t = torch.randint(low, high, self.shape, generator=g, dtype=self.dtype)
        if self.ld:
            lines, line = reversed(self.shape) if self.turned else self.shape
            view = torch.zeros(lines, self.ld, dtype=self.dtype)[:, :line]
            return (view.T if self.turned else view).copy_(t)
        return t.T.contiguous().T if self.turned else t


def parse(function, text: str, where: str) -> list[Argument]:
    """The arguments that an example's text says, in the order of the function's parameters. where: for messages. Raises `Error`."""
    given: dict[str, Argument] = {}
    for part in filter(None, map(str.strip, re.split(r",(?![^\[]*\])", text))):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise Error(f"{where}: {part!r} is no argument; an example is {FORM}")
        if name in given:
            raise Error(f"{where}: {name} is there twice")
        given[name] = _argument(name, value.strip(), where)
    return complete(function, given, where)


def _argument(name: str, text: str, where: str) -> Argument:
    hit = _TENSOR.fullmatch(text)
    if hit is None:
        return _number(name, text, where)
    kind = ALIASES.get(hit[1], hit[1])
    if kind not in KEPT:
        raise Error(f"{where}: {name}: {suggest('type', hit[1], [*KEPT])}")
    dtype, (sizes, _, option) = KEPT[kind], hit[2].partition(";")
    shape = [s.strip() for s in re.split(r"[,x]", sizes)] if sizes.strip() else []
    if not all(s.isdecimal() and len(s) < 16 for s in shape):
        raise Error(f"{where}: {name}={text}: its sizes are {sizes!r}; they are numbers, as in {kind}[300,77], and {kind}[] is one element")
    ld = re.fullmatch(r"\s*ld\s*=\s*(\d+)\s*", option)
    if option.strip() and not ld:
        raise Error(f"{where}: {name}={text}: {option!r} is no layout; it takes ;ld=N, elements from line to line")
    made = Argument(name, dtype, tuple(map(int, shape)), bool(hit[3]), int(ld[1]) if ld else 0, int(hit[4] or 0))
    if (made.turned or ld) and len(shape) != 2:
        raise Error(f"{where}: {name}={text}: only a matrix is transposed or has a leading dimension, and this has {len(shape)} dimensions")
    line = made.shape[0 if made.turned else 1] if made.ld else 0
    if ld and made.ld < max(1, line):
        raise Error(f"{where}: {name}={text}: lines of {line} elements cannot lie {made.ld} apart")
    if hit[4] and (dtype.is_floating_point or dtype == torch.bool or not 0 < made.below <= torch.iinfo(dtype).max):
        raise Error(f"{where}: {name}={text}: <N goes with an integer type that holds it, as in int64[300]<77")
    return made


def _number(name: str, text: str, where: str) -> Argument:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return Argument(name, value=words[text], constant=text == "None")
    if quoted := re.fullmatch(r"(['\"])(.*)\1", text):
        return Argument(name, value=quoted[2], constant=True)
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if kind is int and not -1 << 63 <= value < 1 << 63:
            raise Error(f"{where}: {name}={text}: it does not fit 64 bits")
        return Argument(name, value=value)
    raise Error(f"{where}: {name}={text}: that is neither a tensor, as fp32[300,77], nor a number, True, False, None or a word in quotes")


def of_values(function, values, where: str) -> list[Argument]:
    """The arguments of a dict (or a tuple, by position) of real ones. Raises `Error`."""
    names = list(inspect.signature(function).parameters)
    if isinstance(values, (tuple, list)):
        values = dict(zip(names, values)) if len(values) <= len(names) else {}
    if not isinstance(values, dict) or not values:
        raise Error(f"{where} returns {type(values).__name__}; it returns a dict of {function.__name__}'s arguments by name, or a tuple of them")
    given = {}
    for name, v in values.items():
        if isinstance(v, torch.Tensor):
            given[name] = _of_tensor(name, v, where)
        elif v is None or isinstance(v, (str, torch.dtype)):
            given[name] = Argument(name, value=v, constant=True)
        elif isinstance(v, (bool, int, float)):
            given[name] = Argument(name, value=v)
        else:
            raise Error(f"{where}: {name} is {type(v).__name__}; arguments are tensors, numbers, None and words")
    return complete(function, given, where)


def _of_tensor(name: str, v: torch.Tensor, where: str) -> Argument:
    if v.dtype not in KEPT.values():
        raise Error(f"{where}: {name} is {dtype_name(v.dtype)}; a bundle's tensors are {', '.join(KEPT)}")
    turned = v.dim() == 2 and not v.is_contiguous() and v.stride(0) == 1
    lines = v.T if turned else v
    if lines.is_contiguous():
        ld = 0
    elif v.dim() == 2 and lines.stride(1) == 1 and lines.stride(0) >= lines.shape[1]:
        ld = lines.stride(0)
    else:
        raise Error(f"{where}: {name} has strides {tuple(v.stride())}; tensors are dense, transposed matrices, or matrices with lines further apart")
    return Argument(name, v.dtype, tuple(v.shape), turned, ld, data=v.detach())


def complete(function, given: dict[str, Argument], where: str) -> list[Argument]:
    """All arguments of a function in its parameters' order: what is not given keeps its default. Raises `Error`."""
    parameters = inspect.signature(function).parameters
    called = function.__name__
    for name in given:
        if name not in parameters:
            raise Error(f"{where}: {called} has no such parameter: {suggest('parameter', name, [*parameters])}")
    out = []
    for name, p in parameters.items():
        if name in WORDS_OF_C or not name.isascii():
            raise Error(f"{called} cannot be exported: a C function cannot have an argument called {name}; rename it")
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise Error(f"{called} cannot be exported: {'*' if p.kind is p.VAR_POSITIONAL else '**'}{name} is no parameter of a C function; name each argument")
        if name in given:
            out.append(given[name])
        elif p.default is not p.empty:
            out.append(Argument(name, value=p.default, constant=True))
        else:
            raise Error(f"{where}: it does not say {name}; {called} takes {', '.join(parameters)}, as in {FORM}")
    if not any(a.dtype is not None for a in out):
        raise Error(f"{where}: none of {called}'s arguments is a tensor; an example is {FORM}")
    return list(map(functools.partial(_as_indices, min((n for a in out if a.kind == "tensor" for n in a.shape), default=1)), out))


def _as_indices(least: int, a: Argument) -> Argument:
    """Integers of which nothing is said may be anybody's indices: they are below the smallest size."""
    return replace(a, below=max(1, least)) if a.dtype in (torch.int32, torch.int64) and not a.below and a.data is None else a


def of_case(op, case, dtype: torch.dtype, leading: bool = False) -> list[Argument]:
    """An op's case as a call. leading: leading dimensions of matrices are arguments of the C function. Raises `Error` for transposed batches."""
    names = list(inspect.signature(op.call).parameters)
    out = []
    for k, shape in enumerate(case.shapes):
        below = case.type_of(k).partition("<")[2]
        turned = k in case.transposed
        if turned and len(shape) != 2:
            raise Error(f"{op.name} {case.name}: a C function takes a transposed matrix, and contiguous tensors of {len(shape)} dimensions; leave out the t")
        one = Argument(names[k], case.dtype_of(k, dtype), tuple(shape), turned, 0, int(below or 0))
        out.append(replace(one, ld=max(1, shape[0 if turned else 1])) if leading and len(shape) == 2 else one)
    return out + [Argument(k, value=v, constant=True) for k, v in case.kwargs.items()]
