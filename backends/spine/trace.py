"""A call with its sizes left open: which kernels it launches on what, as expressions in the sizes of its tensors and in its numbers.

The function runs once on torch's fake tensors whose sizes are symbols (`symbols.py`), and launches are caught. What it asks of the symbols meanwhile ("does
K fit?") becomes a condition of the program.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from dataclasses import dataclass, field
from typing import Callable

import sympy
import torch

from ...ops import capture
from ...ops.case import KEPT
from ...ops.records import DTYPES
from ..base import Error, Unsupported
from ..context import EXPORT, calling
from . import blame, plain, scalars
from .example import WORDS_OF_C, Argument, of_case
from .steps import OWN, Steps
from .symbols import Open, Parameter, expression


@dataclass(frozen=True)
class Call:
    """A function and an example of its arguments. dtype: in names and for people; file: where a user's function stands; reference: the same in torch, for float64."""

    name: str
    function: Callable
    arguments: list[Argument]
    dtype: str
    file: str = ""
    reference: Callable | None = None

    @property
    def constants(self) -> dict:
        return {a.name: a.value for a in self.arguments if a.kind == "constant"}


@dataclass
class Buffer:
    """A tensor's memory. nbytes: an expression; role: "in", "out", "inout" or "temporary"; shape, strides: of arguments and results; turned: it is
    the transpose of a matrix with lines in memory; ld: the symbol of its leading dimension."""

    name: str
    role: str
    dtype: torch.dtype
    nbytes: sympy.Expr
    shape: tuple = ()
    turned: bool = False
    ld: sympy.Symbol | None = None

    @property
    def strides(self) -> tuple:
        """In elements: dense but for a leading dimension, of a transposed matrix column by column."""
        out, step = [], sympy.Integer(1)
        for k, s in enumerate(self.shape if self.turned else reversed(self.shape)):
            out.append(step)
            step = self.ld if self.ld is not None and k == 0 else step * s
        return tuple(out if self.turned else reversed(out))


@dataclass(frozen=True)
class At:
    """A pointer argument: `offset` bytes into buffer number `buffer`."""

    buffer: int
    offset: sympy.Expr


@dataclass
class Launch:
    """A kernel, its runtime arguments by name (`At`, an expression, or a float), constants, the grid (3 expressions), and what it is compiled
    with: {"debug": True} keeps tl.device_assert."""

    kernel: object
    args: dict
    types: dict[str, str]
    consts: dict
    grid: tuple
    options: dict = field(default_factory=dict)


@dataclass
class Program:
    """parameters: the open sizes and numbers, in the order of the arguments that have them first; conditions: what must hold of them -> the line that
    asked; results: the numbers of the buffers that the function returns; powers: (expression, the power of two that holds it here); hints:
    parameter -> its value in this trace; groups: parameters that are one; equations: conditions that may be otherwise for another class (`Open.equations`)."""

    op: str
    dtype: str
    kwargs: dict
    buffers: list[Buffer]
    parameters: list[Parameter]
    launches: list[Launch]
    conditions: dict = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    powers: list = field(default_factory=list)
    hints: dict = field(default_factory=dict)
    groups: list = field(default_factory=list)
    equations: set = field(default_factory=set)

    @property
    def arguments(self) -> list[Buffer]:
        return [b for b in self.buffers if b.role != "temporary"]

    @property
    def sizes(self) -> set:
        """The symbols of those parameters that are never negative."""
        return {q.symbol for q in self.parameters if q.kind in ("size", "ld", "bool")}

    def is_like(self, other: Program) -> bool:
        """Do both have one C function: the same arguments and results, where this program's conditions hold?"""
        known = {e.lhs: e.rhs for e in self.conditions if isinstance(e, sympy.Eq) and isinstance(e.lhs, sympy.Symbol)}

        def form(p: Program) -> tuple:
            return ([(b.name, b.dtype, [sympy.sympify(s).xreplace(known) for s in b.shape], b.turned, b.ld) for b in p.arguments], [q.name for q in p.parameters], p.results)

        return form(self) == form(other)


def of_op(op, case, dtype: str, leading: bool = False) -> Call:
    for k in range(len(case.shapes)):
        if case.dtype_of(k, DTYPES[dtype]) not in KEPT.values():
            raise Unsupported(f"{op.name} cannot be exported: a bundle's tensors are {', '.join(KEPT)}")
    return Call(op.name, op.call, of_case(op, case, DTYPES[dtype], leading), dtype)


def trace(op, case, dtype: str, row) -> Program:
    """`op`'s case with tensors of `dtype`, for a CPU of `row` (of the compiler's targets): tiles are those for the case's sizes, the sizes
    themselves stay open. Raises `Unsupported` for what no bundle can hold."""
    return trace_call(of_op(op, case, dtype), row)


def trace_call(call: Call, row, hints: dict | None = None, groups: list | None = None) -> Program:
    """A call on `row`. hints: other sizes than the example's; groups: of another trace of the call, whose parameters this one's are to be."""
    opened = Open(call.arguments, hints or {}, bool(call.file))
    with capture.launches(row) as caught, calling(EXPORT), opened.mode, Steps(call.name, caught), opened.asked():
        if call.file:
            plain.refuse_looks(call)
        with blame.told(call), plain.numbers(call.function) if call.file else contextlib.nullcontext():
            out = call.function(**opened.values) if call.file else call.function(*_positional(call, opened.values), **call.constants)
        if all(c.remark in OWN for c in caught):
            raise Unsupported(f"{call.name} cannot be exported{blame.returns_at(call)}: it launches no Triton kernel for {', '.join(str(a) for a in call.arguments if not a.constant)}")
        return _Tracing(call, opened, out, caught).program(groups)


def _positional(call: Call, values: dict) -> list:
    return [values[a.name] for a in call.arguments if a.kind != "constant"]


class _Tracing:
    """What a call did, on the way to a `Program`."""

    def __init__(self, call: Call, opened: Open, out, caught: list):
        self.call, self.opened, self.caught = call, opened, caught
        self.returned = _flat(call, out)
        self.buffers: list[Buffer] = []
        self.held: dict[int, int] = {}  # storage -> buffer
        self.storages: list = []  # kept, so that no two have one address

    def program(self, groups) -> Program:
        call, opened = self.call, self.opened
        for c in self.caught:
            self._pin(c)
        given = [(a, opened.values[a.name]) for a in call.arguments if a.kind == "tensor"]
        for _, t in self.returned:
            if isinstance(t, torch.Tensor):
                t.is_contiguous()  # what that asks is a condition, too
        opened.settle(groups)
        for a, t in given:
            b = self.buffers[self._buffer_of(t, a.name, "in")]
            b.turned = a.turned
            self._keep_names(a, b)
        results = [self._result(name, t, given) for name, t in self.returned]
        done = []
        for c in self.caught:
            with blame.told(call, c.kernel, c.site if call.file else ""):
                done.append(self._launch(c.kernel, c.args, c.kwargs, c.grid))
        powers = [(opened.env.replace(e).xreplace(opened.names), p) for e, p, _ in opened.powers]
        hints = {p.name: opened.hints[p.name] for p in opened.parameters}
        made = Program(call.name, call.dtype, call.constants, self.buffers, opened.parameters, done, opened.conditions(), results, powers, hints,
                       opened.groups, opened.equations())
        self._check(made)
        taken = [b.name for b in made.arguments] + [p.name for p in made.parameters]
        if twice := next((n for n in taken if taken.count(n) > 1), None):
            raise Unsupported(f"{call.name} cannot be exported: two of its C function's arguments would be called {twice}; rename an argument or a result")
        return made

    def _keep_names(self, a: Argument, b: Buffer):
        """An argument's sizes are its parameters, whatever they are known to be."""
        names = {g: group[0] for group in self.opened.groups for g in group}
        symbols = {p.name: p.symbol for p in self.opened.parameters}
        own = [symbols[names[f"{a.name}_size{d}"]] for d in range(len(a.shape))]
        b.shape = tuple(own)
        if a.ld:
            b.ld = symbols[f"{a.name}_ld"]
            lines, line = (b.shape[1], b.shape[0]) if a.turned else b.shape
            b.nbytes = ((lines - 1) * b.ld + line) * a.dtype.itemsize * sympy.Min(1, lines) * sympy.Min(1, line)
        else:
            b.nbytes = sympy.Mul(*own, a.dtype.itemsize)

    def _check(self, made: Program):
        known = {p.symbol for p in made.parameters}
        used = set().union(*(e.free_symbols for e in [*(b.nbytes for b in made.buffers), *made.conditions, *(g for x in made.launches for g in x.grid),
                                                      *(v for x in made.launches for v in x.args.values() if isinstance(v, sympy.Expr))]))
        if used - known:
            raise Error(f"{self.call.name} cannot be exported: numbers {', '.join(map(str, used - known))} are no argument's; this is a bug in triport")

    def _buffer_of(self, t: torch.Tensor, name: str, role: str) -> int:
        return self._memory(t.untyped_storage(), t.dtype, name, role)

    def _memory(self, storage, dtype: torch.dtype, name: str, role: str) -> int:
        if storage._cdata not in self.held:
            self.storages.append(storage)
            self.held[storage._cdata] = len(self.buffers)
            self.buffers.append(Buffer(name, role, dtype, self.opened.simple(storage.nbytes())))
        return self.held[storage._cdata]

    def _result(self, name: str, t: torch.Tensor, given: list) -> int:
        simple = self.opened.simple
        at = self._buffer_of(t, name, "out")
        b, said = self.buffers[at], f"{self.call.name} cannot be exported{blame.returns_at(self.call)}: {'its result' if len(self.returned) == 1 else f'its result {name}'}"
        if b.role == "in":
            own = next(x for _, x in given if x.untyped_storage()._cdata == t.untyped_storage()._cdata)
            if [simple(v) for v in (*t.shape, *t.stride(), t.storage_offset())] != [simple(v) for v in (*own.shape, *own.stride(), own.storage_offset())]:
                raise Unsupported(f"{said} is a part or another view of its argument {b.name!r}; return the argument itself, or a tensor of the result's own")
            return at
        turned = t.dim() == 2 and not t.is_contiguous() and t.T.is_contiguous()
        if not (turned or t.is_contiguous()) or expression(t.storage_offset()) != 0 or simple(t.numel() * t.element_size()) != b.nbytes:
            raise Unsupported(f"{said} is a view that is not contiguous, or a part of a tensor; return the whole tensor, and view it in C")
        b.shape, b.turned, b.dtype = tuple(map(simple, t.shape)), turned, t.dtype
        return at

    def _pin(self, c):
        """Numbers that a kernel is compiled for: what was open is fixed, which becomes a condition."""
        for place in (c.kwargs, *([dict(enumerate(c.args))] if isinstance(c.args, tuple) else [])):
            for name, v in place.items():
                p = c.kernel.params[name] if isinstance(name, int) else next((p for p in c.kernel.params if p.name == name), None)
                if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)) and (p is None or p.is_constexpr):
                    self.opened.env.where = c.site
                    fixed = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(v)](v)
                    self.opened.env.where = ""
                    if isinstance(name, int):
                        c.args = (*c.args[:name], fixed, *c.args[name + 1:])
                    else:
                        c.kwargs[name] = fixed

    def _launch(self, kernel, args, kwargs, grid) -> Launch:
        from triton import knobs

        simple = self.opened.simple
        given = dict(zip(kernel.arg_names, args)) | {k: v for k, v in kwargs.items() if k in kernel.arg_names}
        for p in kernel.params:
            if p.name not in given:
                if p.default is inspect.Parameter.empty:
                    raise Unsupported(f"kernel {kernel.__name__} is launched without its argument {p.name!r}")
                given[p.name] = p.default
        unknown = [k for k in kwargs if k not in kernel.arg_names and k not in _options()]
        if unknown:
            raise Unsupported(f"kernel {kernel.__name__} has no argument {unknown[0]!r}; it takes {', '.join(kernel.arg_names)}")
        if callable(grid):
            grid = grid(given)
        grid = grid if isinstance(grid, (tuple, list)) else (grid,)
        grid = tuple(simple(g) for g in (*grid, 1, 1)[:3])
        values, types, consts = {}, {}, {}
        for p in kernel.params:
            value = given[p.name]
            if p.is_constexpr or value is None:
                consts[p.name] = value
            elif (e := self._word(kernel, p, value, len(values))) is None:
                consts[p.name] = 1
            else:
                values[p.name], types[p.name] = e
        debug = kwargs.get("debug", getattr(kernel, "debug", None)) or knobs.runtime.debug  # as JITFunction.run has it
        options = {"debug": bool(debug)} | {k: kwargs[k] for k in ("enable_fp_fusion", "sanitize_overflow") if kwargs.get(k) is not None}
        return Launch(kernel, values, types, consts, grid, options)

    def _word(self, kernel, p, value, count: int) -> tuple | None:
        """(a runtime argument, its type); None for the constant 1."""
        from triton.runtime.jit import mangle_type

        simple = self.opened.simple
        if isinstance(value, torch.Tensor):
            if not isinstance(value, torch._subclasses.FakeTensor):
                raise Unsupported(f"its kernel {kernel.__name__} takes for {p.name!r} a tensor that is neither an argument of the function nor allocated by it, and a bundle has no "
                                  "tensors of its own: take it as an argument")
            at = At(self._buffer_of(value, f"temporary{count}", "temporary"), simple(value.storage_offset() * value.element_size()))
            return at, mangle_type(value)
        if hasattr(value, "data_ptr") and hasattr(value, "dtype") and (found := self.opened.pointer(value.data_ptr())):
            memory, offset = found  # triton.reinterpret, FlagGems' StridedBuffer: what has a type and an address
            return At(self._memory(memory, torch.uint8, f"temporary{count}", "temporary"), simple(offset)), mangle_type(value)
        whole = isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool)
        if whole and self.opened.pointer(value):
            raise Unsupported(f"its kernel {kernel.__name__} takes a tensor's address as the integer {p.name!r}; pass the tensor itself")
        if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            ty = scalars.annotated(kernel, p)
            e = value if isinstance(value, (bool, float)) else simple(value)
            if whole:
                if scalars.is_constant(p, e):
                    return None
                ty = ty or scalars.whole_type(e, scalars.example_of(value))
            ty = ty or ("fp32" if isinstance(value, (float, torch.SymFloat)) else "u1")
            scalars.fits(kernel, p, value, ty)
            return e, ty
        raise Unsupported(f"its kernel {kernel.__name__} takes {type(value).__name__} for {p.name!r}; a bundle's takes tensors, integers, floats and truth values: "
                          "pass the tensor itself, or make the parameter a tl.constexpr")


def _options() -> set[str]:
    """What a launch may say beside its kernel's arguments."""
    from ..cpu.compiler import CPUOptions
    return {*CPUOptions.__dataclass_fields__, "maxnreg", "num_ctas", "pre_hook", "stream", "device", "launch_cooperative_grid", "launch_pdl", "enable_warp_specialization", "ir_override"}


def _flat(call: Call, out) -> list[tuple[str, torch.Tensor]]:
    """(name, tensor) of everything that a call returned."""
    if isinstance(out, torch.Tensor):
        return [("out", out)]
    if out is None:
        return []
    if isinstance(out, dict):
        pairs = [(str(k), v) for k, v in out.items()]
    elif isinstance(out, (tuple, list)):
        names = getattr(out, "_fields", None) or blame.returned_names(call.function, len(out)) or [f"out{k}" for k in range(len(out))]
        pairs = list(zip(names, out))
    else:
        pairs = [("out", out)]
    taken = {a.name for a in call.arguments}
    pairs = [(n, v) for n, v in pairs if v is not None]
    for name, v in pairs:
        if not isinstance(v, torch.Tensor):
            kind = {"SymInt": "int", "SymFloat": "float", "SymBool": "bool"}.get(type(v).__name__, type(v).__name__)
            raise Unsupported(f"{call.name} cannot be exported{blame.returns_at(call)}: it returns {kind}{f' as {name}' if len(pairs) > 1 else ''}; a bundle's function has tensors "
                              "for its results: return a tensor, or a tuple or dict of tensors")
    return [(n if n not in taken and n.isidentifier() and n not in WORDS_OF_C else f"{re.sub('[^A-Za-z0-9_]+', '_', n)}_out", v) for n, v in pairs]
