"""A user's function, plain Python with launches of Triton kernels, as calls to export: by examples of its arguments.

They are given on the command line (`--example`), as lines "example: x=fp32[300,77], eps=1e-5" of the function's docstring, or by a function FUNCTION_example
beside it that returns its arguments (or a list of such); `example.py` has the form.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from ...ops.case import dtype_name
from ..base import Error
from .example import FORM, Argument, of_values, parse
from .trace import Call


def calls(function, path: Path, module, texts: list[str]) -> list[Call]:
    """The calls that the examples of a function say. module: where it stands; texts: examples from elsewhere, which count before its own. Raises `Error`."""
    name = function.__name__
    where = f"{path.name}:{name}"
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise Error(f"{where} does not say its parameters; export a plain Python function that launches kernels") from None
    found = [parse(function, text, f"--example of {name}") for text in texts] or _own(function, module, where)
    if not found:
        raise Error(f"{where}: an example call is missing: --example '{_form(function)}', a line `example: ...` like that in its docstring, or a function {name}_example beside it "
                    "that returns its arguments")
    reference = getattr(module, f"{name}_reference", None)
    return [Call(name, function, arguments, _dtype(arguments), str(path), reference) for arguments in found]


def _own(function, module, where: str) -> list[list[Argument]]:
    """Those of the docstring and of FUNCTION_example."""
    found = [parse(function, text, f"the docstring of {where}") for text in re.findall(r"^\s*example:\s*(\S.*)$", function.__doc__ or "", re.M | re.I)]
    maker = getattr(module, f"{function.__name__}_example", None)
    if maker is None:
        return found
    try:
        made = maker()
    except Exception as e:
        raise Error(f"{maker.__name__} of {where} failed: {type(e).__name__}: {e}") from e
    many = isinstance(made, list) and made and all(isinstance(m, (dict, tuple)) for m in made)
    return found + [of_values(function, m, f"{maker.__name__} of {where}") for m in (made if many else [made])]


def _form(function) -> str:
    """What an example of this function looks like."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return ", ".join(f"{p.name}=fp32[300,77]" if k == 0 else f"{p.name}=..." for k, p in enumerate(parameters)) or FORM


def _dtype(arguments: list[Argument]) -> str:
    tensors = [a.dtype for a in arguments if a.kind == "tensor"]
    return dtype_name(next((d for d in tensors if d.is_floating_point), tensors[0]))


def split(texts: list[str]) -> dict[str, list[str]]:
    """Examples by the function that they are for: "softmax(x=fp32[300,77])"; "" for one that does not say."""
    out: dict[str, list[str]] = {}
    for text in texts:
        hit = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", text, re.S)
        out.setdefault(hit[1] if hit else "", []).append(hit[2] if hit else text)
    return out
