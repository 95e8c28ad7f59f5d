"""Single numbers and arithmetic in Inductor's kernels for the CPU: `cpu_backend = "triton"`, against eager."""

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

inductor = pytest.importorskip("torch._inductor.config")
pytestmark = pytest.mark.usefixtures("through_triton")
R = torch.randn


def equal(fn, *args, allowed=1e-5):
    """Is what `fn` gives compiled what it gives eagerly, and what is left of its arguments?"""
    kept = [a.clone() for a in args]
    got, want = torch.compile(fn)(*args), fn(*kept)
    torch.testing.assert_close((got, args), (want, tuple(kept)), rtol=allowed, atol=allowed)


def allowed(dtype) -> float:
    """Kernels compute in fp32 what eager rounds to 16 bits in between."""
    return 2e-2 if dtype.itemsize == 2 else 1e-5


# --- tensors of one element ---

SCALARS = {
    "a sum": lambda x, s: x.sum() * s,
    "exp": lambda x, s: x.mean() * s.exp(),
    "a weight of a loss": lambda x, s: (x**2).mean() * torch.exp(-s) + s,
    "and elements": lambda x, s: (x * s).sum() * s + (x + s).mean(),
    "of one sum two": lambda x, s: x.sum() * s + (x.sum() - s) ** 2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SCALARS)
def test_gradients_of_a_scalar(name, dtype, seed):
    """Backward begins with a gradient of one element, and puts what it computes of it in its place."""
    torch.manual_seed(seed)
    x, s = R(9, 13, dtype=dtype) + 1, torch.tensor(1.5, dtype=dtype)  # no sum of them cancels
    for shape, dynamic in ((), None), ((1,), None), ((), True):
        ours, eager = ([t.clone().requires_grad_() for t in (x, s.reshape(shape))] for _ in range(2))
        torch.compile(SCALARS[name], dynamic=dynamic)(*ours).sum().backward()
        SCALARS[name](*eager).sum().backward()
        for got, want in zip(ours, eager):
            torch.testing.assert_close(got.grad, want.grad, rtol=allowed(dtype), atol=allowed(dtype))
        torch._dynamo.reset()


def test_a_scalar_that_is_learned(seed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(13, 1), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.scale * (self.linear(x)**2).mean()

    torch.manual_seed(seed)
    model, x = Model(), R(9, 13)
    torch.compile(model)(x).backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool], ids=str)
def test_scalars_of_each_dtype(dtype):
    """As they are, at addresses that no vector has, and changed in place."""
    x, s = R(9, 13), torch.tensor([0, 3]).to(dtype)[1]
    equal(lambda x, s: (x * s, torch.where(x > s, x, x - s.float()), s.float() + 1), x, s)
    if dtype.is_floating_point:
        equal(lambda x, s: (x * s, s.mul_(0.5).add_(x.mean().to(s.dtype)), x * s), x, s, allowed=allowed(dtype))


def test_a_scalar_of_64_bits_is_whole():
    equal(lambda x, s: x + s, torch.zeros(5, dtype=torch.int64), torch.tensor(2**62 + 1))
    equal(lambda x, s: x + s, torch.zeros(5, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64))


@triton.jit
def scaled_kernel(out_ptr, scale_ptr, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out_ptr + i, i * tl.load(scale_ptr), i < n)


def test_a_users_kernel_loads_a_scalar():
    def scaled(x, s):
        out = torch.empty_like(x)
        scaled_kernel[(1,)](out, s, x.numel(), 16)
        return out + x

    equal(scaled, R(9), torch.tensor(2.0))


# --- arithmetic ---

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
DIVISIONS = {
    "floor": lambda a, b: a // b,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
}


def around(dtype) -> list[int]:
    """Integers near 0 and near the ends."""
    most = torch.iinfo(dtype).max
    return [*range(-9, 10), -most // 2, most // 2, -most - 1, -most, -most + 1, most - 1, most]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_are_divided(name, dtype):
    """The least one by negative numbers, too; but not by -1, of which eager's division dies, and which gives the least one here."""
    least = torch.iinfo(dtype).min
    pairs = [(a, b) for a in around(dtype) for b in around(dtype) if b != 0 and (a, b) != (least, -1)]
    a, b = (torch.tensor(x, dtype=dtype) for x in zip(*pairs))
    got = torch.compile(DIVISIONS[name])(a, b)
    assert torch.equal(got, DIVISIONS[name](a, b))
    if name == "floor":
        assert got.tolist() == [x // y for x, y in pairs]
        one = torch.tensor([least, 7], dtype=dtype)
        assert torch.compile(DIVISIONS[name])(one, torch.tensor([-1, 0], dtype=dtype)).tolist() == [least, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("divisor", [-3, -8, 3, 8, 768])
def test_integers_are_divided_by_one_that_is_known(divisor, dtype):
    """Those that a kernel counts itself, and below 0, among them."""
    equal(lambda a: (a // divisor, (torch.arange(300, dtype=dtype) - 20) // divisor), torch.tensor(around(dtype), dtype=dtype))


def test_unsigned_integers_are_divided():
    equal(lambda a, b: a // b, torch.arange(256, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8).flip(0).clamp(min=1))


@pytest.mark.parametrize("upcast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool], ids=str)
def test_a_sign(dtype, upcast):
    """Zeros have one, and NaN."""
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), -float("nan")])
    x = x.to(dtype) if dtype.is_floating_point else x[:4].abs().to(dtype) if dtype in (torch.uint8, torch.bool) else x[:4].to(dtype)
    with inductor.patch({"triton.codegen_upcast_to_fp32": upcast}):
        assert torch.equal(torch.compile(torch.signbit)(x), torch.signbit(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_remainder_has_its_divisors_sign(dtype):
    a, b = torch.tensor([[0.0, -0.0, 5.0, -5.0, 6.0, -6.0]] * 2, dtype=dtype), torch.tensor([[3.0], [-3.0]], dtype=dtype)
    got, want = torch.compile(torch.remainder)(a, b), torch.remainder(a, b)
    assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())


# --- padding ---

PADDED = {
    "of a sum's only column": (lambda x: F.pad(x.sum(-1, keepdim=True), (-1, 1)), (5, 33)),
    "on both sides of it": (lambda x: F.pad(x.sum(-1, keepdim=True), (1, 2), value=3), (5, 33)),
    "of a pool": (lambda x: F.avg_pool1d(x.flatten(2).sum(-1, keepdim=True), 3, 1, 1), (2, 8, 6, 6)),
    "of a step of one": (lambda x: x - F.pad(x.sum(-1, keepdim=True)[:, :, :1], (0, 0, 1, -1)), (2, 1, 8)),
    "of a comparison": (lambda x: F.pad((x.amax(-1) > 0), (1, -1), value=True), (4, 1, 64)),
    "of an argmax": (lambda x: F.pad(x.argmax(-1), (1, -1), value=-7), (4, 1, 64)),
    "within padding": (lambda x: F.pad(F.pad(x.sum(-1), (1, -1), value=2).exp(), (0, 1), value=5), (4, 1, 64)),
    "and what is padded": (lambda x: (F.pad(x.sum(-1), (1, -1), value=-1), x.sum(-1) + 1), (4, 1, 64)),
    "of what is loaded": (lambda x: F.pad(x, (2, 3), value=7), (4, 65)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PADDED)
def test_padding(name, dtype, seed):
    """Of what the same kernel has computed, and not stored."""
    fn, shape = PADDED[name]
    equal(fn, R(shape, dtype=dtype), allowed=allowed(dtype))


@pytest.mark.parametrize("dynamic", [False, True])
def test_padding_of_several_sizes(dynamic, seed):
    fn = torch.compile(PADDED["of a pool"][0], dynamic=dynamic)
    for shape in ((2, 8, 6, 6), (3, 5, 7, 4), (1, 1, 1, 1)):
        x = R(shape)
        torch.testing.assert_close(fn(x), PADDED["of a pool"][0](x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_small_integers_wrap_behind_a_division_and_a_relu(dtype):
    """Both came out in 32 bits: what follows is computed in the dtype's own."""
    limits = torch.iinfo(dtype)
    t = torch.arange(limits.min, limits.max + 1).to(dtype)
    for f in (lambda t: ((t // 2) * 100).float(), lambda t: (t // 2) * 4 > 50, lambda t: (-(t // 3)).long(), lambda t: (t // (t | 1) * 99).float(),
              lambda t: (t.relu() * 100).long(), lambda t: (t // 3).argmin(0), lambda t: t // 3):
        torch._dynamo.reset()
        equal(f, t)


def test_sizes_are_divided_in_fp64():
    """Dynamic shapes: what is chosen by a quotient of a size is what Python chooses, and a factor of fp64 has all its digits."""
    chosen = torch.compile(lambda x: (x[int(x.shape[0] / 3 * 0.87)] * 2, x[int(x.shape[0] / 7 * 6.3):] * 2, x + int(x.shape[0] * (1 - 1 / x.shape[0]))), dynamic=True)
    for n in (7, 100, 200, 311, 400, 700, 1000):
        x = torch.arange(float(n))
        torch.testing.assert_close(chosen(x), (x[int(n / 3 * 0.87)] * 2, x[int(n / 7 * 6.3):] * 2, x + int(n * (1 - 1 / n))), rtol=0, atol=0)
    factor = torch.compile(lambda x: (x * (x.shape[-1] / 9), F.interpolate(x, size=(9, 13), mode="bilinear")), dynamic=True)
    for n in (31, 40):
        x = torch.randn(2, 3, n, n, dtype=torch.float64)
        torch.testing.assert_close(factor(x), (x * (n / 9), F.interpolate(x, size=(9, 13), mode="bilinear")), rtol=1e-13, atol=1e-13)
