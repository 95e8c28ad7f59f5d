"""What would tell an open number from a plain one while a user's function is exported: its text, isinstance, type(...) and `is`.

An open number is no int, and its text is its symbol's name: a function that looks would go another way than it goes when it is called. So its text is that of
the example's number, which is fixed by that, isinstance answers as for the number, and what cannot be answered for it is refused.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
import textwrap
from pathlib import Path
from unittest import mock

import torch

from ..base import Unsupported
from .symbols import is_users

#: our own ops, whose messages name sizes
_OPS = str(Path(__file__).parents[2] / "ops")
#: torch's open numbers -> what they stand for
STANDS_FOR = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@contextlib.contextmanager
def numbers(function):
    """Within it open numbers are to `function` and what it calls as the numbers that they stand for, where they are put into words or asked what they are."""
    with _words(), _isinstance(getattr(inspect.unwrap(function), "__globals__", {})):
        yield


@contextlib.contextmanager
def _words():
    """str(), repr() and format() of an open number by a user's line fix it: what is done with the text may depend on it. `print` alone shows its name."""

    def show(*args, **kwargs):
        plain(*(str(a) if type(a) in STANDS_FOR else a for a in args), **kwargs)

    def worded(kind, how):
        def word(n, *args):
            file = sys._getframe(1).f_code.co_filename
            if is_users(file) and not file.startswith(_OPS):
                return getattr(STANDS_FOR[kind](n), how)(*args)
            return before[kind, how](n, *args)

        return word

    plain = builtins.print
    before = {(kind, how): getattr(kind, how) for kind in STANDS_FOR for how in ("__str__", "__repr__", "__format__")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(builtins, "print", show))
        for kind, how in before:
            stack.enter_context(mock.patch.object(kind, how, worded(kind, how)))
        yield


@contextlib.contextmanager
def _isinstance(names: dict):
    """The module with these global names has an isinstance that takes an open number for what it stands for."""

    def answer(x, kinds) -> bool:
        return isinstance(x, kinds) or type(x) in STANDS_FOR and issubclass(STANDS_FOR[type(x)], kinds)

    if "isinstance" in names:
        yield
        return
    names["isinstance"] = answer
    try:
        yield
    finally:
        del names["isinstance"]


def refuse_looks(call):
    """Raise `Unsupported` where a user's function asks type(...) of one of its numbers, or whether it `is` True or False."""
    open_numbers = {a.name for a in call.arguments if a.kind in ("int", "float", "bool")}
    try:
        lines, first = inspect.getsourcelines(call.function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        what = _look(node, open_numbers)
        if what:
            code = lines[node.lineno - 1].strip()
            raise Unsupported(f"{call.name} cannot be exported, {Path(call.file).name}:{first + node.lineno - 1} (`{code[:100]}`): {what}")


def _look(node: ast.AST, names: set[str]) -> str:
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id in names and any(
            isinstance(how, (ast.Is, ast.IsNot)) and isinstance(x, ast.Constant) and type(x.value) in (bool, int, float) for how, x in zip(node.ops, node.comparators)):
        return f"{node.left.id} is open while it is exported, and `is` looks at the object; write `if {node.left.id}`, or =="
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1 and isinstance(
            node.args[0], ast.Name) and node.args[0].id in names:
        return f"{node.args[0].id} is open while it is exported, and is of a type of torch's; ask isinstance({node.args[0].id}, ...)"
    return ""
