"""What Triton's front end knows of Python's names, in the TTIR of a kernel that is compiled for a debugger (`CPUOptions.debugger`).

Each assignment of a kernel, and of the functions that it calls, and each statement's begin leaves a `tt.print` that prints nothing: its prefix is
`ttir.names.MARK` and what is assigned, as JSON, its operand the value. Unlike the names in Triton's locations, which every operation of a
statement has, it says which value is the variable's, where it becomes so, and with which sign; constants of the language, which TTIR does not have,
have one, too.
"""

from __future__ import annotations

import ast
import copy
import functools
import json
import sys

from ..ttir.names import MARK

#: functions of these modules keep their variables to themselves
_LIBRARY = ("triton.",)


def install(generator):
    """Have the code generator of a module (Triton's `code_generator`) leave marks, where a kernel is compiled for a debugger."""
    cls = generator.CodeGenerator
    cls.set_value = _assigned(cls.set_value, generator)
    cls.visit_compound_statement = _entered(cls.visit_compound_statement, generator)
    cls.visit_For = _looped(cls.visit_For)
    cls.visit_AnnAssign = _constant(cls.visit_AnnAssign, generator)
    cls.visit_Return = _returned(cls.visit_Return, generator)
    cls.call_JitFunction = _combining(cls.call_JitFunction, generator)
    cls.visit_Evaluated = lambda self, node: node.value
    for statement in ("Assign", "AugAssign", "AnnAssign", "Expr", "For", "While", "If", "Assert", "Return"):
        setattr(cls, f"visit_{statement}", _begun(getattr(cls, f"visit_{statement}")))
    if hasattr(cls, "_maybe_set_loc_to_name"):
        cls._maybe_set_loc_to_name = _named(cls._maybe_set_loc_to_name, generator)


def _wanted(self) -> bool:
    """Is the function that is compiled one whose variables are marked?"""
    found = self.__dict__.get("_triport_marks")
    if found is None:
        found = self._triport_marks = (getattr(self.builder.options, "debugger", False) and not isinstance(self.caller_context, _Combining)
                                       and not getattr(self.jit_fn, "__module__", "").startswith(_LIBRARY))
        self._triport_in_body, self._triport_marked, self._triport_placeholders, self._triport_static = False, {}, set(), []
    return found


def _mark(self, generator, name: str, value):
    """Leave the marks of `name`, which is `value` from here on."""
    if value is None or self._triport_marked.get(name) is value:
        return
    self._triport_marked[name] = value
    if isinstance(value, generator.language.tuple):
        fields = getattr(value.type, "fields", None) or range(len(value.values))
        for field, part in zip(fields, value.values):
            _mark(self, generator, f"{name}.{field}" if isinstance(field, str) else f"{name}[{field}]", part)
        return
    about = {"name": name, "function": self.jit_fn.__name__}
    if isinstance(value, generator.language.constexpr):
        v = value.value
        if callable(v) and not isinstance(v, generator.language.dtype):
            return
        about["value"] = v if isinstance(v, (bool, float)) or isinstance(v, int) and -1 << 63 <= v < 1 << 63 else str(v)
        if v != v or v in (float("inf"), float("-inf")):  # JSON has no such numbers
            about["value"] = str(v)
        _leave(self, about, [])
    elif isinstance(value, generator.language.tensor):
        about["type"] = str(value.type.scalar)
        _leave(self, about, [value.handle])


def _leave(self, about: dict, values: list):
    """A mark, at the line of what is being compiled: behind a loop Triton's builder stands elsewhere."""
    b, node = self.builder, self.cur_node
    before = b.get_loc()
    if hasattr(node, "lineno"):
        b.set_loc(b.create_loc(self.file_name, self.begin_line + node.lineno, getattr(self, "begin_col", 0) + node.col_offset))
    b.create_print(MARK + json.dumps(about), False, values, [False] * len(values))
    b.set_loc(before)


def _assigned(set_value, generator):
    @functools.wraps(set_value)
    def assigned(self, name, value):
        set_value(self, name, value)
        if _wanted(self) and self._triport_in_body:
            if name in self._triport_placeholders:
                self._triport_placeholders.discard(name)  # stands for a loop's number until there is one
            else:
                _mark(self, generator, name, value)

    return assigned


def _named(maybe_set_loc_to_name, generator):
    """A while loop gives its variables their values past `set_value`."""
    @functools.wraps(maybe_set_loc_to_name)
    def named(self, val, name):
        maybe_set_loc_to_name(self, val, name)
        if _wanted(self) and self._triport_in_body and self.lscope.get(name) is val:
            _mark(self, generator, name, val)

    return named


def _entered(visit_compound_statement, generator):
    @functools.wraps(visit_compound_statement)
    def entered(self, stmts):
        if _wanted(self):
            if not self._triport_in_body and self.fn:  # the function's body: its arguments have their values
                self._triport_in_body = True
                for name, value in self.lscope.items():
                    _mark(self, generator, name, value)
            for node in self._triport_static[-1:]:
                value = self.lscope.get(node.target.id)
                if stmts is node.body and isinstance(value, generator.language.constexpr):  # a turn of tl.static_range
                    _mark(self, generator, node.target.id, value)
        return visit_compound_statement(self, stmts)

    return entered


def _looped(visit_For):
    @functools.wraps(visit_For)
    def looped(self, node):
        if not _wanted(self):
            return visit_For(self, node)
        name = node.target.id
        self._triport_placeholders.add(name)
        self._triport_static.append(node)
        try:
            return visit_For(self, node)
        finally:
            self._triport_static.pop()
            self._triport_placeholders.discard(name)

    return looped


def _constant(visit_AnnAssign, generator):
    """`x: tl.constexpr = ...` goes past `set_value`."""
    @functools.wraps(visit_AnnAssign)
    def constant(self, node):
        found = visit_AnnAssign(self, node)
        value = self.lscope.get(getattr(node.target, "id", None))
        if _wanted(self) and self._triport_in_body and isinstance(value, generator.language.constexpr):
            _mark(self, generator, node.target.id, value)
        return found

    return constant


class _Combining:
    """The context of functions that the language itself calls, to combine elements (`tl.reduce`) or for each one: regions that have no effects. They are
    other functions than those that a kernel calls."""

    def mangle(self) -> str:
        return "_combining"

    def initialize_callee(self, fn, builder):
        """Nothing to say of it."""


def _combining(call_JitFunction, generator):
    @functools.wraps(call_JitFunction)
    def called(self, *args, **kwargs):
        if _wanted(self) and sys._getframe(1).f_globals.get("__name__") != generator.__name__:
            kwargs["caller_context"] = _Combining()
        return call_JitFunction(self, *args, **kwargs)

    return called


def _begun(visit_statement):
    """A mark without a name says where a statement begins: there is something to stop at, before what it calls."""
    @functools.wraps(visit_statement)
    def begun(self, node):
        if _wanted(self) and self._triport_in_body and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            _leave(self, {"name": "", "function": self.jit_fn.__name__}, [])
        return visit_statement(self, node)

    return begun


class Evaluated(ast.expr):
    """An expression whose value is known."""


def _returned(visit_Return, generator):
    """What a function returns is called `__return__`, as in pdb: there is something at that line to stop at."""
    @functools.wraps(visit_Return)
    def returned(self, node):
        if _wanted(self) and node.value is not None:
            value, node = self.visit(node.value), copy.copy(node)
            _mark(self, generator, "__return__", value)
            node.value = Evaluated()
            node.value.value = value
        return visit_Return(self, node)

    return returned
