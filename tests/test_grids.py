"""What a launch is given: a grid of whole numbers, tensors of dtypes that Triton has."""

import collections
import functools
import inspect
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triton.tools.tensor_descriptor import TensorDescriptor
from triport.backends.dispatch import quick
from triport.backends.base import ArgumentError
from triport.backends.cpu.run.grid import sizes


@triton.jit
def fill_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * N + tl.arange(0, N), 1.0)


WRONG = {"negative": ((-1,), "-1 is out of range"), "two negative": ((-2, -3), "-2 is out of range"), "fractional": ((1.5,), "not a whole number"),
         "whole, but a float": ((2.0,), "2.0 .float. is not a whole number"), "text": (("3",), "not a whole number"),
         "nothing": ((None,), "not a whole number"), "beyond an axis": ((2**31,), "2147483648 is out of range"),
         "beyond 32 bits": ((2**32 + 1,), "out of range"), "beyond 64 bits": ((2**70,), "out of range"),
         "on y": ((1, 2**31), "out of range"), "on z": ((1, 1, -1), "-1 is out of range"),
         "a product beyond 64 bits": ((2**31 - 1,) * 3, "programs are too many"), "NumPy's float": ((np.float32(2),), "not a whole number"),
         "NumPy's product": ((np.int64(2**31 - 1),) * 3, "programs are too many"), "NumPy's wrap": ((np.int32(2**16), np.int32(-2**16)), "out of range"),
         "four dimensions": ((1, 1, 1, 2), "has 4 dimensions"), "a tensor of floats": ((torch.tensor(2.5),), "not a whole number")}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("way", ["launch", "callable", "again", "quick", "quick again", "compiled"])
def test_a_grid_that_is_none_is_an_error(case, way):
    grid, why = WRONG[case]
    x = torch.zeros(8)
    expected = pytest.raises(ArgumentError, match=r"kernel fill_kernel: grid \(.*: .*" + why)
    if way in ("again", "quick again"):  # what was compiled is remembered
        fill_kernel[(1,)](x, N=8)
        quick.launch(fill_kernel, (1,), (x,), {"N": 8})
        x.zero_()
    if way == "compiled":
        if len(grid) > 3:
            pytest.skip("a compiled kernel takes the first three of whatever it is given")
        compiled = fill_kernel.warmup(x, N=8, grid=(1,))
        with expected:
            compiled[(*grid, 1, 1)[:3]](x, 8)
    elif way.startswith("quick"):
        if way == "quick":
            quick.forget(fill_kernel)
        with expected:
            quick.launch(fill_kernel, grid, (x,), {"N": 8})
    else:
        with expected:
            fill_kernel[(lambda meta: grid) if way == "callable" else grid](x, N=8)
    assert torch.equal(x, torch.zeros(8)), "something ran"


NONE = {"of nothing": ((), r"grid \(\) has no sizes"), "an empty list": ([], r"grid \[\] has no sizes"), "an empty text": ("", r"grid '' \(str\) is no tuple"),
        "None": (None, r"grid None \(NoneType\) is no tuple"), "an int": (5, r"grid 5 \(int\) is no tuple.*: write fill_kernel\[\(5,\)\]"),
        "a set": ({5}, r"grid \{5\} \(set\) is no tuple"), "a tensor of no dimension": (torch.tensor(3), r"grid tensor\(3\) \(Tensor\) is no tuple.*: write fill_kernel\[\(3,\)\]")}


@pytest.mark.parametrize("case", NONE)
@pytest.mark.parametrize("way", ["launch", "callable", "again", "callable again", "checked", "autotuned", "quick", "quick again"])
def test_what_has_no_sizes_is_an_error(case, way):
    grid, why = NONE[case]
    if case == "None" and way in ("launch", "checked", "autotuned", "quick") and "assert grid is not None" in inspect.getsource(triton.JITFunction.run):
        pytest.skip("an assertion of an older Triton's says so")
    if way.startswith("callable"):
        grid = functools.partial(lambda given, meta: given, grid)
    kernel, x, options = triton.jit(fill_kernel.fn), torch.zeros(8), {"N": 8}
    if way.endswith("again"):
        kernel[(1,)](x, N=8)
        quick.launch(kernel, (1,), (x,), options)
        x.zero_()
    with pytest.raises(ArgumentError, match=f"kernel fill_kernel: {why}") as told:
        if way.startswith("quick"):
            quick.launch(kernel, grid, (x,), options)
        elif way == "autotuned":
            triton.autotune([triton.Config(options)], key=[])(kernel)[grid](x)
        else:
            kernel[grid](x, N=8, **{"check": "bounds"} if way == "checked" else {})
    assert "; a grid is a tuple of one to three whole numbers, or a function of the meta-parameters that returns one" in str(told.value)
    assert torch.equal(x, torch.zeros(8)), "something ran"


def test_the_first_launch_of_a_process_has_a_grid(tmp_path):
    """It is in the middle of Triton's `run` when what is mended of that is mended."""
    (tmp_path / "first.py").write_text("import torch, triton, triton.language as tl\n@triton.jit\ndef fill_kernel(x):\n    tl.store(x, 1.0)\nfill_kernel[()](torch.zeros(1))\n")
    p = subprocess.run([sys.executable, "first.py"], cwd=tmp_path, env={**os.environ, "TRITON_DEFAULT_BACKEND": "cpu"}, capture_output=True, text=True, timeout=HANGS)
    assert p.stderr.splitlines()[-1].startswith("triport.backends.base.ArgumentError: triton-cpu: kernel fill_kernel: grid () has no sizes; "), p.stderr


def test_warmup_asks_for_no_grid():
    assert fill_kernel.warmup(torch.zeros(8), N=8, grid=()) is not None


def test_the_errors_of_a_function_for_a_grid_are_its_own():
    for _ in range(2):
        with pytest.raises(KeyError, match="BLOCK"):
            fill_kernel[lambda meta: (meta["BLOCK"],)](torch.zeros(8), N=8)
        fill_kernel[(1,)](torch.zeros(8), N=8)


@pytest.mark.parametrize("grid", [(3,), (1, 3), (1, 1, 3), [3], (np.int64(3),), (np.uint8(3), np.int32(1)), (torch.tensor(3),), (True, 3)], ids=repr)
def test_whole_numbers_of_other_libraries(grid):
    counts = torch.zeros(3, dtype=torch.int32)
    count_kernel[grid](counts)
    assert counts.tolist() == [1, 1, 1]
    counts.zero_()
    quick.launch(count_kernel, tuple(grid), (counts,), {})
    assert counts.tolist() == [1, 1, 1]


@triton.jit
def count_kernel(out_ptr):
    tl.atomic_add(out_ptr + tl.program_id(0) + tl.program_id(1) + tl.program_id(2), 1)


@pytest.mark.parametrize("grid", [(0,), (0, 5), (5, 0, 2), (2**31 - 1, 0), (np.int64(0),)], ids=repr)
def test_no_programs(grid):
    x = torch.zeros(8)
    fill_kernel[grid](x, N=8)
    quick.launch(fill_kernel, tuple(grid), (x,), {"N": 8})
    assert torch.equal(x, torch.zeros(8))


def test_as_many_programs_as_can_be_counted():
    assert sizes("k", (2**31 - 1, 2**31 - 1, 2)) == (2**31 - 1, 2**31 - 1, 2)
    assert sizes("k", ()) == (1, 1, 1) and math.prod(sizes("k", (7, 8))) == 56
    with pytest.raises(ArgumentError, match="too many"):
        sizes("k", (2**31 - 1, 2**31 - 1, 3))


def test_an_argument_of_a_wrong_type_is_not_called_a_wrong_grid():
    with pytest.raises(ArgumentError, match="argument 'x_ptr' is"):
        fill_kernel.warmup(torch.float32, N=8, grid=(1,))[(1, 1, 1)](2.5, 8)


@triton.jit
def imag_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + 2 * i))


@triton.jit
def first_kernel(x, out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tl.load(x[0] + tl.arange(0, N)))


@triton.jit
def described_kernel(x, out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), x.load([0]))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("way", ["launch", "again", "checked", "compiled", "sliced"])
def test_a_view_that_negates(dtype, way, seed):
    """A kernel would read it without its sign. `kernel[grid](...)` was launched before with a tensor of the same kind: nothing is taken for known."""
    kernel, z = triton.jit(imag_kernel.fn), torch.randn(9, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    x, out = torch.conj(z).imag, torch.zeros(8, dtype=z.real.dtype)
    if way != "launch":
        compiled = kernel[(1,)](z.imag, out, 8)
        assert torch.equal(out, z.imag[:8])
    with pytest.raises(ArgumentError, match=r"kernel imag_kernel: argument 'x_ptr' is a view that negates another tensor.*without its sign; give it t.resolve_neg\(\)"):
        if way == "compiled":
            compiled[(1, 1, 1)](x, out, 8)
        else:
            kernel[(1,)](x[1:] if way == "sliced" else x, out, 8, **{"check": "bounds"} if way == "checked" else {})
    resolved = x.resolve_neg()
    kernel[(1,)](torch.stack([resolved, resolved], 1), out, 8)
    assert torch.equal(out, -z.imag[:8])


@pytest.mark.parametrize("which", ["read", "parameter", "written"])
def test_a_view_that_negates_where_others_lie(which):
    """At a multiple of 16 bytes, after launches of the same kind with what does not."""
    kernel, x, out = triton.jit(copy_kernel.fn), torch.ones(8), torch.zeros(8)
    for _ in range(2):
        kernel[(1,)](x if which != "parameter" else torch.nn.Parameter(x), out, 8)
    given = {"read": (torch._neg_view(x), out), "parameter": (torch.nn.Parameter(torch._neg_view(x)), out), "written": (x, torch._neg_view(out))}[which]
    assert all(t.data_ptr() % 16 == 0 for t in given)
    with pytest.raises(ArgumentError, match="is a view that negates another tensor"):
        kernel[(1,)](*given, 8)


Pair = collections.namedtuple("Pair", "x number")


def test_a_view_that_negates_in_a_tuple_and_in_a_descriptor():
    x, out = torch._neg_view(torch.ones(8)), torch.zeros(8)
    with pytest.raises(ArgumentError, match="kernel first_kernel: argument 'x' is a Pair with a view that negates"):
        first_kernel[(1,)](Pair(x, 3), out, 8)
    with pytest.raises(ArgumentError, match="kernel first_kernel: argument 'x' is a tuple with a view that negates"):
        first_kernel[(1,)]((x, 3), out, 8)
    with pytest.raises(ArgumentError, match="kernel described_kernel: argument 'x' is a TensorDescriptor with a view that negates"):
        described_kernel[(1,)](TensorDescriptor.from_tensor(x, [8]), out, 8)


@triton.jit
def copy_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i))


@pytest.mark.parametrize("dtype, how", [(torch.complex64, "view_as_real"), (torch.complex128, "view_as_real"),
                                        (torch.float8_e8m0fnu, r"view\(torch.uint8\)")], ids=str)
def test_a_dtype_that_triton_has_no_name_for(dtype, how):
    x, out = torch.zeros(8, dtype=dtype), torch.zeros(8)
    with pytest.raises(ArgumentError, match=rf"kernel copy_kernel: argument 'x_ptr' is a tensor of {dtype}.*{how}"):
        copy_kernel[(1,)](x, out, 8)
    with pytest.raises(ArgumentError, match=rf"kernel copy_kernel: arguments 'x_ptr', 'out_ptr' are tensors of {dtype}"):
        copy_kernel[(1,)](x, x, 8)
    with pytest.raises(ArgumentError, match=rf"kernel copy_kernel: argument '\?' is a tensor of {dtype}"):
        copy_kernel[(1,)]((x,), out, 8)
