"""The arguments of a call with their sizes and numbers left open: torch's symbols (`ShapeEnv`), and what they are called in C.

What is asked of a symbol meanwhile ("is n even?", "is n 300?", "which power of two holds n?") becomes a condition, with the line that asked.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import sympy
import torch
import triton
from torch._dynamo.source import ConstantSource
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from triton.runtime.jit import ConstexprFunction

from ..base import Unsupported
from .example import Argument

_HERE = str(Path(__file__).parents[2])
_FOREIGN = tuple(str(Path(m.__file__).parent) for m in (torch, triton, sympy, contextlib)) + ("<",)
_TORCH = _FOREIGN[0]
_ROOT = math.sqrt


@dataclass(frozen=True)
class Parameter:
    """A number that the C function takes. kind: "size", "ld" (of `tensor`), "int", "float" or "bool"."""

    name: str
    kind: str
    symbol: sympy.Symbol
    tensor: str = ""

    @property
    def c(self) -> str:
        return {"float": "double", "bool": "int"}.get(self.kind, "int64_t")


def is_users(file: str) -> bool:
    """Is code in this file a user's?"""
    return not file.startswith(_FOREIGN) and (not file.startswith(_HERE) or "/ops/" in file.removeprefix(_HERE) or "/docs/" in file or "/tests/" in file)


def users_line(frame=None) -> str:
    """file.py:23 of the innermost frame that is a user's; "" where none is."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _asked_by_user() -> bool:
    """Is a condition asked for by bool(...) in code that is not torch's?"""
    frame, asked = sys._getframe(2), False
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        asked = frame.f_code.co_name == "__bool__" and frame.f_code.co_filename == torch.__file__
        frame = frame.f_back
    return asked


class _Env(ShapeEnv):
    """A ShapeEnv that knows who asked first."""

    lines: dict
    ones: dict  # what was asked and is otherwise where a size is 1 -> the line
    equal: set  # equations among the guards that a function asked by `==`, as a condition and not as a number
    strict = False  # are `ones` asked for?
    where = ""  # who asks, where that is not to be seen
    addresses: dict  # a symbol for where a tensor's memory begins -> that memory

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None):
        return SLoc(framework_loc, None), ""  # `lines` has it; torch would look at the whole stack for each guard, and import Inductor to do so

    def evaluate_expr(self, orig_expr, *args, **kwargs):
        before = len(self.guards)
        out = super().evaluate_expr(orig_expr, *args, **kwargs)
        if self.strict and len(self.guards) == before and isinstance(orig_expr, sympy.logic.boolalg.Boolean) and orig_expr.free_symbols and _asked_by_user():
            e = self.replace(orig_expr)
            if any(e.xreplace({s: sympy.Integer(1)}) == (sympy.false if out else sympy.true) for s in e.free_symbols):
                self.ones.setdefault(e if out else sympy.Not(e), self.where or users_line())  # torch takes it that no size is 1
        if len(self.guards) > before:
            for guard in self.guards[before:]:
                if guard.expr.free_symbols & self.addresses.keys():
                    raise Unsupported("what it does depends on a tensor's address, which a bundle's function does not look at")
                self.lines.setdefault(guard.expr, self.where or users_line())
                if isinstance(guard.expr, sympy.Eq) and isinstance(orig_expr, sympy.logic.boolalg.Boolean) and _asked_by_user():
                    self.equal.add(guard.expr)
        return out


class Open:
    """The symbols of one trace. hints: parameter -> the value that it has this time, where that is another than the example's; strict: a
    function may do otherwise where a size is 1 (ops of ours do not)."""

    def __init__(self, arguments: list[Argument], hints: dict[str, object], strict: bool = False):
        self.env = _Env(duck_shape=False)
        self.env.lines, self.env.ones, self.env.addresses, self.env.equal, self.env.strict = {}, {}, {}, set(), strict
        self.mode = FakeTensorMode(shape_env=self.env)
        self.raw: list[tuple[Parameter, sympy.Symbol]] = []  # each argument's own symbols: the parameter that it would be alone
        self.powers: list[tuple[sympy.Expr, int, str]] = []  # (what was asked for its power of two, that, where)
        self.values: dict[str, object] = {}
        for a in arguments:
            self.values[a.name] = self._tensor(a, hints) if a.kind == "tensor" else a.value if a.kind == "constant" else self._number(a, hints)

    def _symbol(self, name: str, kind: str, hint, tensor: str = "", **how) -> sympy.Symbol:
        symbol = self.env.create_symbol(hint, ConstantSource(name), DimDynamic.DYNAMIC, **how)
        self.raw.append((Parameter(name, kind, sympy.Symbol(name, **({"real": True} if kind == "float" else {"integer": True})), tensor), symbol))
        return symbol

    def _int(self, name: str, kind: str, hint: int, tensor: str = ""):
        # torch takes sizes 0 and 1 for fixed; 1 is one that was asked for (`classes.py`)
        how = {"positive": kind in ("size", "ld") or None, "do_not_specialize_zero_one": kind not in ("size", "ld") or hint == 1}
        return self.env.create_symintnode(self._symbol(name, kind, hint, tensor, **how), hint=hint, source=ConstantSource(name))

    def _tensor(self, a: Argument, hints: dict) -> torch.Tensor:
        sizes = []
        for d, n in enumerate(a.shape):
            name = f"{a.name}_size{d}"
            sizes.append(self._int(name, "size", hints.get(name, max(2, n)), a.name))
        dims = [*range(len(sizes))] if a.turned else [*reversed(range(len(sizes)))]  # from the innermost
        strides, step = {}, 1
        for place, d in enumerate(dims):
            strides[d] = step
            if a.ld and place == 0:
                line = self._hint(sizes[d])
                pad = max(0, a.ld - max(2, a.shape[d]))
                step = self._int(f"{a.name}_ld", "ld", max(line, hints.get(f"{a.name}_ld", line + pad)), a.name)
            else:
                step = step * sizes[d]
        with self.mode:
            return torch.empty_strided(sizes, [strides[d] for d in range(len(sizes))], dtype=a.dtype)

    def _hint(self, n) -> int:
        return n.node.hint if isinstance(n, torch.SymInt) else n

    def _number(self, a: Argument, hints: dict):
        value = hints.get(a.name, a.value)
        if a.kind == "float":
            symbol = self._symbol(a.name, "float", float(value), positive=None, do_not_specialize_zero_one=True)
            return self.env.create_symfloatnode(symbol, hint=float(value), source=ConstantSource(a.name))
        made = self._int(a.name, a.kind, int(value))
        return made != 0 if a.kind == "bool" else made

    @contextlib.contextmanager
    def asked(self):
        """Within it functions of the host that would make numbers of symbols keep them open."""
        def call(function, *args, _semantic=None, **kwargs):
            if function.fn is triton.next_power_of_2.fn and _semantic is None and args and isinstance(args[0], torch.SymInt):
                return self._power(args[0])
            return plain(function, *args, _semantic=_semantic, **kwargs)

        def root(x):
            return torch.sym_sqrt(x) if isinstance(x, (torch.SymInt, torch.SymFloat)) else _ROOT(x)

        def bit_length(n: torch.SymInt) -> int:
            return self._power(n + 1).bit_length() - 1  # n is below that power of two, and not below its half

        def data_ptr(t: torch.Tensor):
            return self._address(t) if isinstance(t, FakeTensor) else own(t)

        plain, own = ConstexprFunction.__call__, torch.Tensor.data_ptr
        with (mock.patch.object(torch.Tensor, "data_ptr", data_ptr), mock.patch.object(ConstexprFunction, "__call__", call), mock.patch.object(math, "sqrt", root),
              mock.patch.object(torch.SymInt, "bit_length", bit_length)):
            yield

    def _power(self, n: torch.SymInt) -> int:
        e, hint = n.node.expr, n.node.hint
        known = next((p for x, p, _ in self.powers if x == e), None)
        if known is None:
            known = triton.next_power_of_2.fn(int(hint))
            self.powers.append((e, known, users_line()))
        return known

    def _address(self, t: torch.Tensor) -> torch.SymInt:
        """`t.data_ptr()`: a symbol for the address of its memory, and how far into that it begins."""
        storage, addresses = t.untyped_storage(), self.env.addresses
        known = next((s for s, held in addresses.items() if held._cdata == storage._cdata), None)
        if known is None:
            known = self.env.create_symbol(1 << 20, ConstantSource(f"address{len(addresses)}"), DimDynamic.DYNAMIC, positive=True)
            addresses[known] = storage
        return self.env.create_symintnode(known, hint=1 << 20) + t.storage_offset() * t.element_size()

    def pointer(self, value) -> tuple[object, sympy.Expr] | None:
        """(a tensor's memory, bytes into it) of what `data_ptr` gave and was added to; None for another number."""
        e, known = expression(value), self.env.addresses
        at = [s for s in e.free_symbols if s in known]
        if len(at) == 1 and not (offset := sympy.expand(e - at[0])).has(at[0]):
            return known[at[0]], offset
        return None

    # -- what they are called

    def settle(self, groups: list[list[str]] | None = None):
        """Choose the C function's parameters, when everything was asked: symbols that are equal are one. groups: those of another trace of the same
        function, whose parameters these are to be."""
        first: dict[sympy.Symbol, int] = {}
        if groups is None:
            same: dict = {}
            for k, (p, raw) in enumerate(self.raw):
                r = self.env.replace(raw)
                key = (r, p.kind) if isinstance(r, sympy.Symbol) and p.kind == "size" else (raw, k)
                same.setdefault(key, []).append(p.name)
            groups = list(same.values())
        at = {p.name: k for k, (p, _) in enumerate(self.raw)}
        for group in groups:
            for name in group:
                first[self.raw[at[name]][1]] = at[group[0]]
        self.groups = groups
        self.names = {raw: self.raw[k][0].symbol for raw, k in first.items()}
        self.parameters = [self.raw[at[g[0]]][0] for g in groups]
        self.hints = {p.name: (float if p.kind == "float" else int)(self.env.backed_var_to_val[raw]) for p, raw in self.raw}

    def simple(self, value) -> sympy.Expr:
        """A number as an expression in the parameters' symbols."""
        return self.env.simplify(expression(value)).xreplace(self.names)

    def equations(self) -> set[sympy.Expr]:
        """Those of `conditions` that say what one parameter is, or leaves over, and that the function asked for as such: `if kind == 0`, `n % 64 == 0`."""
        own = {self.env.replace(e).xreplace(self.names) for e in self.env.equal}
        fixed = {sympy.Eq(self.names[raw], self.env.replace(raw), evaluate=False) for _, raw in self.raw if raw in self.names and any(raw in e.free_symbols for e in self.env.equal)}
        return {e for e in own | fixed if isinstance(e, sympy.Eq) and len(e.free_symbols) == 1}

    def conditions(self) -> dict[sympy.Expr, str]:
        """What must hold of the parameters -> the line that asked."""
        out: dict[sympy.Expr, str] = {}

        def add(c, line: str):
            if c is not sympy.true and c not in out:
                out[c] = line

        lines = self.env.lines
        for p, raw in self.raw:
            r = self.env.replace(raw).xreplace(self.names)
            if r != self.names[raw]:
                why = next((lines[g.expr] for g in self.env.guards if raw in g.expr.free_symbols and isinstance(g.expr, sympy.Eq) and g.expr in lines), "")
                add(sympy.Eq(self.names[raw], r, evaluate=False), why)
        for guard in self.env.guards:
            add(self.env.replace(guard.expr).xreplace(self.names), lines.get(guard.expr, ""))
        for e, line in self.env.ones.items():
            add(self.env.replace(e).xreplace(self.names), line)
        for e, power, line in self.powers:
            n = self.env.replace(e).xreplace(self.names)
            add(sympy.Gt(n, power // 2), line)
            add(sympy.Le(n, power), line)
        return {e: line for e, line in out.items() if not any(x is not e and _implies(x, e) for x in out)}


def _implies(x, e) -> bool:
    """Are both bounds of one expression by a number, to one side, and x the closer?"""
    if type(x) is not type(e) or not isinstance(e, (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le)) or x.lhs != e.lhs or not (x.rhs.is_number and e.rhs.is_number):
        return False
    return bool(x.rhs > e.rhs) if isinstance(e, (sympy.Gt, sympy.Ge)) else bool(x.rhs < e.rhs)


def expression(value) -> sympy.Expr:
    if isinstance(value, sympy.Expr):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return sympy.Float(value) if isinstance(value, float) else sympy.Integer(int(value))
