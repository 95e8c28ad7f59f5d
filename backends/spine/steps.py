"""What a call does between its own kernels: tensors that begin as zeros or another number, and copies. Each becomes a kernel of the bundle's, too; other torch
operations that compute are refused, with what to write instead.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ...ops.capture import Caught
from ..base import Unsupported

#: torch ops that make a tensor or look at one otherwise, and compute nothing
VIEWS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "reshape", "_unsafe_view", "alias", "detach", "t", "transpose", "permute",
         "slice", "select", "expand", "unsqueeze", "squeeze", "as_strided", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous",
         "_reshape_alias", "size", "stride", "numel", "dim", "storage_offset", "split", "chunk", "unbind", "narrow", "unfold", "view_as_real",
         "movedim", "diagonal", "split_with_sizes", "promote_types", "result_type", "can_cast"}
#: torch ops whose tensors begin as one number -> what it is; None: the last argument
FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero_": 0, "ones": 1, "ones_like": 1, "new_ones": 1, "full": None, "full_like": None, "new_full": None, "fill_": None}
#: what our own launches say of themselves
OWN = ("fill", "copy")
COPIED = {"clone", "copy_", "_to_copy", "contiguous"}
#: torch op -> what to write instead
INSTEAD = {"_local_scalar_dense": "a bundle's function does not look at a tensor's values: take the number as an argument of the function",
           "nonzero": "a result's size cannot depend on values in a bundle", "arange": "compute the numbers in the kernel (tl.arange), or take the tensor as an argument",
           "rand": "use tl.rand in a kernel, with a seed that the function takes", "randn": "use tl.randn in a kernel, with a seed that the function takes",
           "randint": "take the seed as an argument of the function", "rand_like": "use tl.rand in a kernel, with a seed that the function takes",
           "bernoulli": "use tl.rand in a kernel, with a seed that the function takes", "cat": "let the kernels write into views of one torch.empty",
           "stack": "let the kernels write into views of one torch.empty"}


@triton.jit
def fill_kernel(out_ptr, value, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def fill_double_kernel(out_ptr, value: tl.float64, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, d1, d2, d3, xs0, xs1, xs2, xs3, os0, os1, os2, os3, BLOCK: tl.constexpr):
    """Elements of 4 dimensions, each tensor with strides of its own."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i3, r = offs % d3, offs // d3
    i2, r = r % d2, r // d2
    i1, i0 = r % d1, r // d1
    x = tl.load(x_ptr + (i0 * xs0 + i1 * xs1 + i2 * xs2 + i3 * xs3), mask=offs < n)
    tl.store(out_ptr + (i0 * os0 + i1 * os1 + i2 * os2 + i3 * os3), x, mask=offs < n)


class Steps(TorchDispatchMode):
    """Adds fills and copies to the launches that are `caught`, in their order. keep: stores a tensor so that none is freed meanwhile."""

    def __init__(self, name: str, caught: list[Caught]):
        super().__init__()
        self.name, self.caught = name, caught

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().partition("::")[2].partition(".")[0]
        if func.namespace != "aten" or name in VIEWS:
            return func(*args, **kwargs)
        if name == "lift_fresh":
            return self._numbers(func, args[0])
        if name in FILLED:
            out = func(*args, **kwargs)
            value = FILLED[name]
            if value is None:
                value = kwargs["fill_value"] if "fill_value" in kwargs else args[-1]
            self._fill(out, value)
            return out
        if name in COPIED and not any(isinstance(a, torch.Tensor) and not isinstance(a, torch._subclasses.FakeTensor) for a in args):
            out = func(*args, **kwargs)
            self._copy(args[1] if name == "copy_" else args[0], out)
            return out
        instead = INSTEAD.get(name, "compute that in a kernel, or take its result as an argument of the function")
        raise Unsupported(f"between its kernels it calls torch's {func.name()}, and a bundle has kernels alone: {instead}")

    def _numbers(self, func, given: torch.Tensor) -> torch.Tensor:
        """torch.tensor(3.0)."""
        if isinstance(given, torch._subclasses.FakeTensor) or given.numel() != 1:
            raise Unsupported("a tensor is made of several numbers (torch.tensor), and a bundle has kernels alone: take it as an argument of the function")
        out = func(given)
        with no_dispatch():
            value = given.item()
        self._fill(out, value)
        return out

    def _fill(self, out: torch.Tensor, value):
        if isinstance(value, torch.Tensor):
            raise Unsupported("a tensor is filled with another tensor's value; fill it with a number, or in a kernel")
        if not out.is_contiguous():
            raise Unsupported("a part of a tensor that does not lie in one piece is filled; fill the whole tensor, or the part in a kernel")
        if out.dtype == torch.bool:
            out, value = out.view(torch.int8), int(bool(value))
        elif out.dtype.is_floating_point:
            value = value if isinstance(value, torch.SymFloat) else torch.sym_float(value)
        elif isinstance(value, float):
            value = int(value)
        n = out.numel()
        kernel = fill_double_kernel if out.dtype == torch.float64 else fill_kernel
        self.caught.append(Caught(kernel, (out, value, n), {"BLOCK": 1024}, (triton.cdiv(n, 1024),), "fill"))

    def _copy(self, x: torch.Tensor, out: torch.Tensor):
        x = x.expand(out.shape)
        if out.dtype == torch.bool and x.dtype == torch.bool:
            x, out = x.view(torch.int8), out.view(torch.int8)
        if torch.bool in (x.dtype, out.dtype) or x.dtype != out.dtype and not (x.dtype.is_floating_point and out.dtype.is_floating_point):
            raise Unsupported(f"it converts {x.dtype} to {out.dtype} between its kernels; convert in a kernel (.to(tl.float32)), or take the tensor in that type")
        if out.dim() > 4:
            raise Unsupported(f"it copies a tensor of {out.dim()} dimensions between its kernels; at most 4 are copied: give the tensor in the layout that needs no copy")
        absent = 4 - out.dim()
        sizes = [1] * absent + list(out.shape)
        n = math.prod(sizes)
        self.caught.append(Caught(copy_kernel, (x, out, n, *sizes[1:], *[0] * absent, *x.stride(), *[0] * absent, *out.stride()), {"BLOCK": 1024},
                                  (triton.cdiv(n, 1024),), "copy"))
