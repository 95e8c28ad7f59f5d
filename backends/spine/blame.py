"""What went wrong while a user's function was exported, in one sentence: the line of theirs that did it, and what to write instead."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import re
import textwrap
from pathlib import Path

from .. import of_triton
from ..base import ArgumentError, CompileError, Error, Unsupported
from .symbols import users_line

_OPEN = "its sizes and numbers are open while it is exported: int(...) or float(...) of one fixes it, which the header then says"
#: what an error's text has -> what to do
_ADVICE = (("must be of type tl.constexpr", "tl.arange, tl.zeros and shapes take constants: make it a parameter `NAME: tl.constexpr` of the kernel, and pass triton.next_power_of_2(n)"),
           ("'SymInt' object", _OPEN), ("'SymFloat' object", _OPEN), ("'SymBool' object", _OPEN), ("SymNode", _OPEN),
           ("FakeTensor", "a tensor has no values while it is exported: let a kernel look at them"), ("fake", "a tensor has no values while it is exported: let a kernel look at them"),
           ("power of 2", "pass triton.next_power_of_2(n), and mask what is beyond n"),
           ("converted to Scalar", "a bundle's function does not look at a tensor's values: take the number as an argument of the function"),
           ("CUDA", "allocate beside the arguments, device=x.device: a bundle computes on CPUs"))


def _users_frame(error: BaseException):
    """(file, line) of the innermost frame of a traceback that is a user's."""
    found, tb = None, error.__traceback__
    while tb is not None:
        if users_line_of(tb):
            found = tb.tb_frame.f_code.co_filename, tb.tb_lineno
        tb = tb.tb_next
    return found


def users_line_of(tb) -> bool:
    """Is a traceback's frame a user's?"""
    return users_line(tb.tb_frame).startswith(f"{Path(tb.tb_frame.f_code.co_filename).name}:{tb.tb_frame.f_lineno}") and tb.tb_frame.f_code.co_filename[:1] != "<"


def _users_own(e: BaseException) -> bool:
    """Was an error raised by a line of a user's itself?"""
    tb = e.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and users_line_of(tb)


@contextlib.contextmanager
def told(call, kernel=None, site: str = ""):
    """Within it an error of a user's function, or of one of its kernels, becomes `Unsupported` with the line; site: that of what is being done."""
    try:
        yield
    except CompileError:
        raise
    except Exception as e:
        where = _kernels_place(e, kernel) or _place(e) or (f", {site}" if site else "")
        text = _said(e, call)
        if isinstance(e, Error) and (not call.file and not isinstance(e, Unsupported) or isinstance(e, ArgumentError) and not call.file):
            raise  # an op's own words about its arguments
        raise Unsupported(f"{call.name} cannot be exported{where}: {text}") from e


def _place(e: BaseException) -> str:
    frame = _users_frame(e)
    if frame is None:
        return ""
    code = linecache.getline(*frame).strip()
    return f", {Path(frame[0]).name}:{frame[1]}" + (f" (`{code[:100]}`)" if code else "")


def _kernels_place(e: BaseException, kernel) -> str:
    """Where in a kernel the compiler stopped; "" for another error."""
    from triton.compiler.errors import CompilationError
    if kernel is None or not isinstance(e, CompilationError):
        return ""
    inner = of_triton.innermost(e)
    function, line = _function_of(inner, kernel), getattr(inner.node, "lineno", None)
    if line is None:
        return f", kernel {kernel.__name__}"
    path = inspect.getsourcefile(function.fn)
    lines, first = inspect.getsourcelines(function.fn)
    line += first + next((k for k, text in enumerate(lines) if re.match(r"\s*def\s", text)), 0) - 1  # decorators are no part of what Triton reads
    code = linecache.getline(path, line).strip()
    return f", {Path(path).name}:{line} (`{code[:100]}`, kernel {kernel.__name__})"


def _function_of(e, kernel):
    """The function whose source an error is about: the kernel, or one that it calls."""
    from triton.runtime.jit import JITFunction
    seen, waiting = set(), [kernel]
    while waiting:
        f = waiting.pop()
        if id(f) in seen:
            continue
        seen.add(id(f))
        if getattr(f, "src", None) == e.src:
            return f
        names = {**f.fn.__globals__, **inspect.getclosurevars(f.fn).nonlocals} if hasattr(f, "fn") else {}
        waiting += [v for n, v in names.items() if isinstance(v, JITFunction)]
    return kernel


def _said(e: BaseException, call) -> str:
    from triton.compiler.errors import CompilationError
    text = str(e).strip()
    if isinstance(e, CompilationError):
        text = of_triton.refused(e)
    elif isinstance(e, Error):
        return text
    elif isinstance(e, AssertionError) and _users_own(e):
        text = f"its assertion does not hold for the example{f' ({text})' if text else ''}: give an example that it holds for, of tensors on a CPU"
        return text
    elif isinstance(e, KeyError):
        text = f"KeyError: {text}"
    else:
        text = f"{type(e).__name__}: {text}"
    text = " ".join(text.split())[:400]
    advice = next((a for part, a in _ADVICE if part in text), "" if isinstance(e, CompilationError) else
                  "the function runs once with the example's types and open sizes, and has to get through: it may allocate, take views and launch kernels")
    return text + (f"; {advice}" if advice else "")


def returns_at(call) -> str:
    """", file.py:line" of a user's function's last return statement, or of the function."""
    try:
        lines, first = inspect.getsourcelines(call.function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    if not call.file:
        return ""
    line = max((n.lineno for n in ast.walk(tree) if isinstance(n, ast.Return)), default=1)
    return f", {Path(call.file).name}:{first + line - 1}"


def returned_names(function, count: int) -> list[str] | None:
    """The variables that a function returns as a tuple of so many, where it says so in one place."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = {tuple(x.id for x in n.value.elts) for n in ast.walk(tree) if isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple)
             and len(n.value.elts) == count and all(isinstance(x, ast.Name) for x in n.value.elts)}
    names = list(found.pop()) if len(found) == 1 else None
    return names if names and len(set(names)) == count else None
