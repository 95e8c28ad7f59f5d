"""What libraries hand to kernels in place of tensors, exported: an address with a type, a view that torch cannot make, a launcher of their own."""

import inspect
import platform
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.base import Unsupported
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, classes, runner, user
from triton.runtime.jit import JITFunction, KernelInterface

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]
FILE = Path(__file__).name


class Pointer:
    """The least that Triton takes for a tensor: a type and an address."""

    def __init__(self, base: torch.Tensor, dtype: torch.dtype | None = None, offset=0):
        self.dtype = dtype or base.dtype
        self.address = base.data_ptr() + self.dtype.itemsize * offset

    def data_ptr(self):
        return self.address


class Keeping(KernelInterface):
    """A launcher that looks at the values of a launch's arguments, which are open while it is exported: it would keep what it compiled by them."""

    def __init__(self, fn):
        self.fn, self.keys = fn, set()

    def run(self, *args, **kwargs):
        self.keys.add(tuple((a.dtype, a.data_ptr() % 16 == 0) if hasattr(a, "data_ptr") else (type(a), a) for a in args))
        return self.fn.run(*args, **kwargs)


Keeping.__module__ = "flag_gems.utils.libentry"  # whose launcher it is like: others' are run


class Zeroing(KernelInterface):
    """A launcher that does something of its own."""

    def __init__(self, fn):
        self.fn = fn

    def run(self, x, out, n, **kwargs):
        out.zero_()
        return self.fn.run(x, out, n - 1, **kwargs)


@triton.jit
def strided_kernel(x_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i * step, mask=i < n, other=0), mask=i < n)


@Keeping
@triton.heuristics({"BLOCK": lambda args: 64})
@triton.jit
def kept_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0) * 4, mask=i < n)


zeroed_kernel = Zeroing(kept_kernel.fn)


@triton.jit
def addressed_kernel(x_ptr, out_ptr, address):
    tl.store(out_ptr, tl.load(x_ptr) + address)


def backwards(x):
    """example: x=fp32[300]"""
    out, n = torch.empty_like(x), x.shape[0]
    strided_kernel[(triton.cdiv(n, 64),)](Pointer(x, offset=n - 1), Pointer(out), n, -1, BLOCK=64)
    return out


def words(x):
    """example: x=fp32[300]"""
    middle, out = torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
    strided_kernel[(triton.cdiv(x.shape[0], 64),)](triton.reinterpret(x, tl.int32), triton.reinterpret(middle, tl.int32), x.shape[0], 1, BLOCK=64)
    strided_kernel[(triton.cdiv(x.shape[0], 64),)](Pointer(middle, torch.int32), out, x.shape[0], 1, BLOCK=64)
    return out


def kept(x):
    """example: x=fp32[300]"""
    middle, out, n = torch.empty_like(x), torch.empty_like(x), x.shape[0]
    kept_kernel[(triton.cdiv(n, 64),)](x, middle, n)
    kept_kernel[(triton.cdiv(n, 64),)](middle, out, n)
    return out


def zeroed(x):
    """example: x=fp32[300]"""
    out, n = torch.empty_like(x), x.shape[0]
    zeroed_kernel[(triton.cdiv(n, 64),)](x, out, n)
    return out


def both(x, y):
    """example: x=fp32[300], y=fp16[300]"""
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype) if torch.can_cast(y.dtype, x.dtype) else torch.result_type(x, y), device=x.device)
    strided_kernel[(triton.cdiv(x.shape[0], 64),)](y, out, x.shape[0], 1, BLOCK=64)
    return out


def of_a_part(x):
    """example: x=fp32[300]"""
    out = torch.empty(x.shape[0] - 1, device=x.device)
    strided_kernel[(triton.cdiv(x.shape[0], 64),)](Pointer(x[1:]), out, x.shape[0] - 1, 1, BLOCK=64)
    return out


def aligned(x):
    out = torch.empty_like(x)
    strided_kernel[(5,)](x, out, x.shape[0], 1, BLOCK=64 if x.data_ptr() % 16 == 0 else 32)
    return out


def fixed(x):
    out = torch.empty_like(x)
    strided_kernel[(5,)](x, out, int(x.data_ptr()), 1, BLOCK=64)
    return out


def integer(x):
    out = torch.empty_like(x)
    addressed_kernel[(1,)](x, out, x.data_ptr() + 4)
    return out


def made(function, *examples: str, cases: bool = False) -> bundle.Bundle:
    calls = user.calls(function, Path(__file__), inspect.getmodule(function), list(examples))
    return bundle.make(calls, targets.get(HERE), cases=cases)


@pytest.mark.parametrize("function,wanted", [(backwards, lambda x: x.flip(0)), (words, lambda x: x.view(torch.int32)), (kept, lambda x: x * 16),
                                             (zeroed, lambda x: torch.cat([x[:-1] * 4, x.new_zeros(1)])), (of_a_part, lambda x: x[1:])])
def test_what_stands_for_a_tensor(function, wanted):
    """The C function does at other sizes than the example's what the function does when it is called."""
    b = made(function, cases=True)
    for n in (2, 63, 300, 1025):
        x = torch.randn(n)
        for got in (function(x), runner.get("local").call(b, b.manifest["functions"][0]["name"], [x])[0][0]):
            assert torch.equal(got, wanted(x)), n


def test_types_that_are_asked_for():
    b = made(both)
    x, y = torch.randn(77), torch.randn(77).half()
    assert torch.equal(runner.get("local").call(b, b.manifest["functions"][0]["name"], [x, y])[0][0], y.float())


def test_memory_is_one_however_it_is_named():
    """A tensor and what stands for it are one buffer, and what is between two kernels is one of the bundle's own."""
    program = classes.programs(user.calls(words, Path(__file__), inspect.getmodule(words), []), targets.get(HERE))[0][0]
    assert [(b.name, b.role) for b in program.buffers] == [("x", "in"), ("out", "out"), ("temporary1", "temporary")]
    assert [[v.buffer for v in x.args.values() if hasattr(v, "buffer")] for x in program.launches] == [[0, 2], [2, 1]]


@pytest.mark.parametrize("function,message", [(aligned, "depends on a tensor's address"), (fixed, "depends on a tensor's address"), (integer, "takes a tensor's address as the integer 'address'")])
def test_an_address_that_is_looked_at(function, message):
    with pytest.raises(Unsupported) as e:
        made(function, "x=fp32[300]")
    first = inspect.getsourcelines(function)[1]
    assert message in str(e.value) and f"{function.__name__} cannot be exported, {FILE}:{first + 2}" in str(e.value), str(e.value)


def test_an_address_is_torchs_again_afterwards():
    made(backwards)
    x = torch.randn(8)
    assert type(x.data_ptr()) is int and torch.Tensor.data_ptr is torch._C.TensorBase.data_ptr and JITFunction.__getitem__ is KernelInterface.__getitem__
    assert torch.equal(backwards(x), x.flip(0))
