"""Calls on CUDA tensors in native code, without a GPU: a plan's launches reach the driver as they should. tests/test_gpu_calls.py has them on one."""

import contextlib
import ctypes
import struct
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from test_cuda_launch import FakeDriver, compiled
from triport.backends.base import Error
from triport.backends.dispatch import cuda_calls, cuda_launch
from triport.ops import dispatch

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 7, ctypes.c_uint64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
_EXTENDED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
_ENTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)


class Driver(FakeDriver):
    """Native code calls it: launches note grid, threads, shared memory, stream and the buffer of parameters."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self._launch, self._extended, self._enter = _LAUNCH(self._launched), _EXTENDED(self._clustered), _ENTER(self._entered)
        self.launch_address, self.extended_address, self.use_address = (
            ctypes.cast(f, ctypes.c_void_p).value for f in (self._launch, self._extended, self._enter))

    def kernel_parameter(self, kernel, index):
        return self.parameter(kernel, index)

    def context(self, device):
        return 4242

    def _launched(self, function, x, y, z, threads, _, __, shared, stream, pointers, extra):
        if self.codes and (code := self.codes.pop()):
            return code
        if pointers is None:
            assert [extra[0], extra[2], extra[4]] == [1, 2, 0]
            parameters = ctypes.string_at(extra[1], ctypes.c_uint64.from_address(extra[3]).value)
        else:
            each = (ctypes.c_uint64 * len(self.sizes)).from_address(pointers)
            parameters = b"".join(ctypes.string_at(p, size) for p, size in zip(each, self.sizes))
        self.launched.append((function, (x, y, z), threads, shared, stream, parameters))
        return 0

    def _clustered(self, config, function, pointers, extra):
        numbers = struct.unpack("=7I4xQQI4x", ctypes.string_at(config, 56))
        *launch, stream, attributes, count = numbers
        assert count == 1 and (pointers is None) != (not extra)
        self.attributes = struct.unpack("=IxxxxIII", ctypes.string_at(attributes, 20))
        return self._launched(function, *launch, stream, pointers, extra)

    def _entered(self, context):
        self.entered.append(context)
        return 0


@pytest.fixture
def driver(monkeypatch):
    def made(sizes):
        d = Driver(sizes)
        monkeypatch.setattr(cuda_launch, "driver", lambda: d)
        monkeypatch.setattr(cuda_launch, "enter_new_thread", d.entered.append)
        monkeypatch.setattr(cuda_calls, "_empty_strided_cuda", lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))
        monkeypatch.setattr(cuda_calls, "_stream", lambda device: 7000 + (device or 0))
        return d

    return made


SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "m": "i32", "BLOCK": "constexpr"}
SIZES = [8, 8, 4, 4, 8, 8]


def test_a_plan_launches_with_new_addresses_on_the_current_stream(driver):
    d = driver(SIZES)
    x, out = torch.zeros(48), torch.zeros(48)
    plan = cuda_calls.plan([(compiled(SIGNATURE), None, (6, 2), (x, out, 48, -3))], [], (x,), out)
    for _ in range(3):
        y = torch.zeros(48)
        got = plan(y)
        assert got.shape == (48,) and got.data_ptr() != out.data_ptr()
        function, grid, threads, shared, stream, parameters = d.launched.pop()
        assert (function, grid, threads, shared, stream) == (99, (6, 2, 1), 128, 1234, 7000)
        assert parameters == struct.pack("=QQiiQQ", y.data_ptr(), got.data_ptr(), 48, -3, 0, 0)
    assert plan(torch.zeros(60)[1:49]) is None and not d.launched, "another alignment is another kernel"


def test_temporaries_and_several_launches(driver):
    d = driver(SIZES)
    x, out, mid = torch.zeros(48), torch.zeros(48), torch.zeros(4, 12)
    launches = [(compiled(SIGNATURE), None, (1,), (x, mid, 1, 2)), (compiled(SIGNATURE), None, (2, 3, 4), (mid, out, 3, 4))]
    got = cuda_calls.plan(launches, [mid], (x,), out)(x)
    (*_, first), (_, grid, *_, second) = d.launched
    a, b = struct.unpack_from("=QQ", first), struct.unpack_from("=QQ", second)
    assert a[0] == x.data_ptr() and a[1] == b[0] and b[1] == got.data_ptr() and grid == (2, 3, 4)


def test_several_results_and_those_that_are_empty(driver):
    d = driver(SIZES)
    x, first, last, mid = torch.zeros(48), torch.zeros(48), torch.zeros(12), torch.zeros(4, 12)
    launches = [(compiled(SIGNATURE), None, (1,), (x, first, 1, 2)), (compiled(SIGNATURE), None, (2,), (mid, last, 3, 4))]
    got = cuda_calls.plan(launches, [mid], (x,), (first, torch.zeros(0), torch.zeros(0), last))(x)
    assert [t.shape for t in got] == [(48,), (0,), (0,), (12,)]
    a, b = (struct.unpack_from("=QQ", parameters) for *_, parameters in d.launched)
    assert a == (x.data_ptr(), got[0].data_ptr()) and b[1] == got[3].data_ptr() and b[0] not in (x.data_ptr(), got[0].data_ptr(), got[3].data_ptr())
    assert cuda_calls.plan(launches, [mid], (x,), (first, None)) is None and cuda_calls.plan(launches, [mid], (x,), (first, first)) is None


def test_a_thread_without_a_context_gets_it_and_a_refusal_is_an_error(driver):
    d = driver(SIZES)
    x, out = torch.zeros(48), torch.zeros(48)
    plan = cuda_calls.plan([(compiled(SIGNATURE), None, (1,), (x, out, 1, 2))], [], (x,), out)
    d.codes = [0, 201]
    plan(x)
    assert d.entered == [4242] and len(d.launched) == 1
    d.codes = [700]
    with pytest.raises(Error, match=r"some_kernel on 1 x 128 threads failed: CUDA_ERROR \(700\)"):
        plan(x)


def test_descriptions_are_made_once_for_each_address(driver, monkeypatch):
    tools = pytest.importorskip("triton.tools.tensor_descriptor")
    monkeypatch.setattr(cuda_launch, "_kind", lambda facts: 6)
    facts = {"elem_size": 2, "block_size": [64, 32], "swizzle": 3}
    signature = {"out": "*fp16", "a": "tensordesc<fp16[64, 32]>", "BLOCK": "constexpr"}
    d = driver([8, 128, 4, 4, 8, 8, 8, 8])
    a, out = torch.zeros(128, 64, dtype=torch.float16), torch.zeros(16, dtype=torch.float16)
    described = tools.TensorDescriptor.from_tensor(a, [64, 32])
    plan = cuda_calls.plan([(compiled(signature, [facts]), None, (1,), (out, described))], [], (a,), out)
    others = [torch.zeros(128, 64, dtype=torch.float16) for _ in range(100)]
    for x in (a, *others, a, a, *others):
        got = plan(x)
        *_, parameters = d.launched[-1]
        assert struct.unpack_from("=Q", parameters) == (got.data_ptr(),)
        assert struct.unpack_from("=QQ", parameters, d.offsets[1]) == (x.data_ptr(), 0xABCD)
    assert len(d.encoded) == 101, "also where two addresses share a place in the table"


def test_two_descriptions_and_a_dozen_numbers_have_a_plan(driver, monkeypatch):
    """What a product takes whose parts a Tensor Memory Accelerator fetches."""
    tools = pytest.importorskip("triton.tools.tensor_descriptor")
    monkeypatch.setattr(cuda_launch, "_kind", lambda facts: 6)
    facts = {"elem_size": 2, "block_size": [64, 32], "swizzle": 3}
    pointers, numbers = ("c", "stats", "flags", "x", "y"), [f"n{k}" for k in range(9)]
    signature = {**dict.fromkeys(pointers, "*fp32"), "a": "tensordesc<fp16[64, 32]>", "b": "tensordesc<fp16[64, 32]>", **dict.fromkeys(numbers, "i32")}
    operand = [128, 4, 4, 8, 8]
    d = driver([8] * 5 + operand * 2 + [4] * 9 + [8, 8])
    x, y, out, stats = torch.zeros(48), torch.zeros(48), torch.zeros(48), torch.zeros(4)
    a, b = (torch.zeros(128, 64, dtype=torch.float16) for _ in range(2))
    args = (out, stats, stats, x, y, *(tools.TensorDescriptor.from_tensor(t, [64, 32]) for t in (a, b)), *range(9))
    got = cuda_calls.plan([(compiled(signature, [facts] * 2), None, (1,), args)], [a, b, stats], (x, y), out)(x, y)
    *_, parameters = d.launched[-1]
    assert struct.unpack_from("=QQQQQ", parameters)[0::3] == (got.data_ptr(), x.data_ptr())
    assert struct.unpack_from("=9i", parameters, d.offsets[15]) == tuple(range(9))


@pytest.mark.parametrize("cuda", [True, False])
@pytest.mark.parametrize("described", [True, False])
def test_a_thread_has_a_context_before_matrices_are_described(described, cuda, monkeypatch):
    """Of a GPU's alone: what runs on the CPU, as under TRITON_INTERPRET, has no use for one."""
    tools = pytest.importorskip("triton.tools.tensor_descriptor")
    entered, launched = [], []
    monkeypatch.setattr(dispatch, "enter_new_thread", entered.append)
    monkeypatch.setattr(dispatch, "on_device", lambda x: contextlib.nullcontext())
    out = SimpleNamespace(is_cuda=cuda, is_cpu=not cuda, device=SimpleNamespace(type="cuda" if cuda else "cpu", index=1 if cuda else None))
    args = (out, tools.TensorDescriptor.from_tensor(torch.zeros(64, 32), [16, 16])) if described else (out,)
    dispatch.launch({(1,): lambda *given, **consts: launched.append(given)}, (1,), *args)
    assert launched == [args] and entered == ([1] if cuda and described else [])


class Own(NamedTuple):
    kernel: object = SimpleNamespace(handle=55)
    name: str = "own<float>"
    threads: int = 256
    shared: int = 4096
    cluster: int = 1
    together: bool = False


def test_kernels_of_backend_cuda_have_parameters_as_wide_as_they_say(driver):
    d = driver([8, 8, 4, 8, 4, 8])
    x, out = torch.zeros(48), torch.zeros(48)
    plan = cuda_calls.plan([(Own(), None, (3,), (x, out, -7, 1 << 40, 2.5, 0.25))], [], (x,), out)
    y = torch.zeros(48)
    got = plan(y)
    assert d.launched == [(55, (3, 1, 1), 256, 4096, 7000, struct.pack("=QQixxxxqfxxxxd", y.data_ptr(), got.data_ptr(), -7, 1 << 40, 2.5, 0.25))]
    d.codes = [1]
    with pytest.raises(Error, match="own<float> on 3 x 256 threads failed"):
        plan(x)


def test_a_cluster_is_an_attribute_of_the_launch(driver):
    d = driver([8, 8, 4])
    x, out = torch.zeros(48), torch.zeros(48)
    got = cuda_calls.plan([(Own(cluster=4), None, (8, 2), (x, out, 5))], [], (x,), out)(x)
    assert d.launched == [(55, (8, 2, 1), 256, 4096, 7000, struct.pack("=QQi", x.data_ptr(), got.data_ptr(), 5))]
    assert d.attributes == (4, 4, 1, 1), "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"


def test_blocks_that_wait_for_each_other_are_a_cooperative_launch(driver):
    """Its parameters go by pointers: with a buffer it could not be captured."""
    d = driver([8, 4, 8, 4])
    x, out = torch.zeros(48), torch.zeros(48)
    got = cuda_calls.plan([(Own(together=True), None, (132,), (x, -3, out, 5))], [], (x,), out)(x)
    assert d.launched == [(55, (132, 1, 1), 256, 4096, 7000, struct.pack("=QiQi", x.data_ptr(), -3, got.data_ptr(), 5))]
    assert d.attributes[:2] == (2, 1), "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"
    d = driver([8, 8] + [4] * 31)
    assert cuda_calls.plan([(Own(together=True), None, (132,), (x, out, *range(31)))], [], (x,), out) is None, "more than there are pointers for"


def test_what_is_not_known_has_no_plan(driver):
    driver(SIZES)
    x, out, other = torch.zeros(48), torch.zeros(48), torch.zeros(48)
    known = compiled(SIGNATURE)
    assert cuda_calls.plan([(known, None, (1,), (x, other, 1, 2))], [], (x,), out) is None, "memory from nowhere"
    assert cuda_calls.plan([(known, None, (1,), (x, out, 1, 2)), None], [], (x,), out) is None, "something odd happened"
    assert cuda_calls.plan([], [], (x,), out) is None
    assert cuda_calls.plan([(known, None, (1,), (x, x, 1, 2))], [], (x, x), out) is None, "one tensor twice"
    assert cuda_calls.plan([(compiled(SIGNATURE, num_ctas=2), None, (1,), (x, out, 1, 2))], [], (x,), out) is None, "a cluster"
