"""An op's call with its sizes left open: which kernels it launches on what, as expressions in the sizes of its tensors.

The op runs once on torch's fake tensors whose sizes are symbols (torch.fx's ShapeEnv), and launches are caught. What the op
asks of the symbols meanwhile ("does K fit?") becomes a condition of the program.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...ops import capture
from ...ops.records import DTYPES, dtype_name
from ..base import Error, Unsupported
from ..context import EXPORT, calling

#: torch ops that make a tensor or look at one otherwise, and compute nothing
_VIEWS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "reshape", "_unsafe_view", "alias", "detach", "t", "transpose", "permute",
          "slice", "select", "expand", "unsqueeze", "squeeze", "as_strided", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous",
          "_reshape_alias", "lift_fresh", "size", "stride", "numel", "dim", "storage_offset"}


@dataclass
class Buffer:
    """A tensor's memory. nbytes: an expression; role: "in", "out", "inout" or "temporary"; shape: of arguments and the result."""

    name: str
    role: str
    dtype: torch.dtype
    nbytes: sympy.Expr
    shape: tuple = ()
    turned: bool = False

    @property
    def strides(self) -> tuple:
        """In elements: dense, of a transposed matrix column by column."""
        out, step = [], sympy.Integer(1)
        for s in (self.shape if self.turned else reversed(self.shape)):
            out.append(step)
            step = step * s
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
    """sizes: the open sizes, in the order of the arguments that have them first; conditions: what must hold of them; result: the number of
    the buffer that the op returns."""

    op: str
    dtype: str
    kwargs: dict
    buffers: list[Buffer]
    sizes: list[sympy.Symbol]
    launches: list[Launch]
    conditions: list = field(default_factory=list)
    result: int = 0

    @property
    def arguments(self) -> list[Buffer]:
        return [b for b in self.buffers if b.role != "temporary"]


class _NothingComputed(TorchDispatchMode):
    """Refuses torch ops that compute: a program has kernels alone."""

    def __init__(self, op: str):
        super().__init__()
        self.op = op

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        if func.namespace == "aten" and name not in _VIEWS:
            raise Unsupported(f"{self.op} cannot be exported: between its kernels it calls torch's {func.name()}, and a bundle has kernels alone. "
                              "Compute that in a kernel, or give the tensor in the layout that needs none")
        return func(*args, **(kwargs or {}))


def _expression(value) -> sympy.Expr:
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(int(value))


def trace(op, case, dtype: str, row) -> Program:
    """`op`'s case with tensors of `dtype`, for a CPU of `row` (of the compiler's targets): tiles are those for the case's sizes, the sizes
    themselves stay open. Raises `Unsupported` for what no bundle can hold."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env)
    names = list(inspect.signature(op.call).parameters)
    inputs = []
    for k, shape in enumerate(case.shapes):
        turned = k in case.transposed
        open_ = [max(2, n) for n in (reversed(shape) if turned else shape)]  # torch takes sizes 0 and 1 for fixed
        kind = case.dtype_of(k, DTYPES[dtype])
        if dtype_name(kind) not in DTYPES:
            raise Unsupported(f"{op.name} cannot be exported: argument {names[k]!r} is {dtype_name(kind)}; a bundle's tensors are {', '.join(DTYPES)}")
        real = torch.empty(open_, dtype=kind)
        fake = mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * real.dim()))
        inputs.append(fake.T if turned else fake)
    with capture.launches(row) as caught, calling(EXPORT), mode, _NothingComputed(op.name):
        out = op.call(*inputs, **case.kwargs)
    if not caught:
        raise Unsupported(f"{op.name} cannot be exported: it launches no Triton kernel for case {case.name}")
    return _program(op, case, dtype, env, names, inputs, out, caught)


def _program(op, case, dtype, env, names, inputs, out, caught) -> Program:
    if not isinstance(out, torch.Tensor):
        raise Unsupported(f"{op.name} cannot be exported: it returns {type(out).__name__}, and a bundle's function has one tensor for its result")

    def simple(value) -> sympy.Expr:
        return env.simplify(_expression(value))

    buffers: list[Buffer] = []
    held: dict[int, int] = {}  # storage -> buffer
    storages = []  # kept, so that no two have one address

    def buffer_of(t: torch.Tensor, name: str, role: str) -> int:
        storage = t.untyped_storage()
        if storage._cdata not in held:
            storages.append(storage)
            held[storage._cdata] = len(buffers)
            buffers.append(Buffer(name, role, t.dtype, simple(storage.nbytes())))
        return held[storage._cdata]

    for k, t in enumerate(inputs):
        b = buffers[buffer_of(t, names[k], "in")]
        b.shape, b.turned = tuple(simple(s) for s in t.shape), k in case.transposed
    at = buffer_of(out, "out", "out")
    if buffers[at].role == "in":
        given = next(t for t in inputs if t.untyped_storage()._cdata == out.untyped_storage()._cdata)
        if (*out.shape, *out.stride(), out.storage_offset()) != (*given.shape, *given.stride(), given.storage_offset()):
            raise Unsupported(f"{op.name} cannot be exported: its result is a part or another view of its argument {buffers[at].name!r}; return the "
                              "argument itself, or a tensor of the result's own")
        buffers[at].role = "inout"
    elif not out.is_contiguous() or _expression(out.storage_offset()) != 0:
        raise Unsupported(f"{op.name} cannot be exported: its result is a view that is not contiguous")
    else:
        buffers[at].shape = tuple(simple(s) for s in out.shape)
    done = [_launch(op, c.kernel, c.args, c.kwargs, c.grid, buffer_of, simple) for c in caught]
    sizes: list = []
    for b in buffers:
        for s in b.shape:
            if isinstance(s, sympy.Symbol) and s not in sizes:
                sizes.append(s)
    conditions = []
    for guard in env.guards:
        c = env.simplify(guard.expr)
        if c is not sympy.true and c not in conditions:
            conditions.append(c)
    used = set().union(*(e.free_symbols for e in [*(b.nbytes for b in buffers), *conditions, *(g for x in done for g in x.grid),
                                                  *(v for x in done for v in x.args.values() if isinstance(v, sympy.Expr))]))
    if used - set(sizes):
        raise Error(f"{op.name} cannot be exported: sizes {', '.join(map(str, used - set(sizes)))} are no tensor's; this is a bug in triport")
    return Program(op.name, dtype, dict(case.kwargs), buffers, sizes, done, conditions, at)


def _launch(op, kernel, args, kwargs, grid, buffer_of, simple) -> Launch:
    from triton import knobs
    from triton.runtime.jit import mangle_type

    given = dict(zip(kernel.arg_names, args)) | {k: v for k, v in kwargs.items() if k in kernel.arg_names}
    for p in kernel.params:
        if p.name not in given and p.default is not inspect.Parameter.empty:
            given[p.name] = p.default
    if callable(grid):
        grid = grid(given)
    grid = tuple(simple(g) for g in (*grid, 1, 1)[:3])
    values, types, consts = {}, {}, {}
    for p in kernel.params:
        value = given[p.name]
        if p.is_constexpr or value is None:
            consts[p.name] = value
        elif isinstance(value, torch.Tensor):
            values[p.name] = At(buffer_of(value, f"temporary{len(values)}", "temporary"), simple(value.storage_offset() * value.element_size()))
            types[p.name] = mangle_type(value)
        elif isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            e = simple(value)
            if e == 1 and not p.do_not_specialize:
                consts[p.name] = 1
            else:
                values[p.name], types[p.name] = e, "i32" if e.free_symbols or abs(int(e)) < 1 << 31 else "i64"
        elif isinstance(value, (float, bool)):
            values[p.name], types[p.name] = value, "fp32" if isinstance(value, float) else "u1"
        else:
            raise Unsupported(f"{op.name} cannot be exported: its kernel {kernel.__name__} takes {type(value).__name__} for {p.name!r}; a bundle's takes "
                              "tensors, integers and floats")
    debug = kwargs.get("debug", getattr(kernel, "debug", None)) or knobs.runtime.debug  # as JITFunction.run has it
    options = {"debug": bool(debug)} | {k: kwargs[k] for k in ("enable_fp_fusion", "sanitize_overflow") if kwargs.get(k) is not None}
    return Launch(kernel, values, types, consts, grid, options)
