"""Convolutions with a bias where `max_autotune` times Inductor's templates beside torch's own: `cpu_backend = "triton"`, against eager."""

import copy

import pytest
import torch
from torch import nn

inductor = pytest.importorskip("torch._inductor.config")
pytestmark = pytest.mark.usefixtures("through_triton")
R = torch.randn


CONVOLUTIONS = {
    "3 x 3": (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 12, 12)),
    "of groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (2, 4, 12, 12)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), (2, 8, 12, 12)),
    "strides": (lambda: nn.Conv2d(3, 8, (3, 2), stride=2), (2, 3, 13, 12)),
    "one image": (lambda: nn.Conv2d(3, 8, 3), (3, 12, 12)),
    "1 x 1": (lambda: nn.Conv2d(3, 8, 1), (2, 3, 12, 12)),
    "1 x 1 with strides": (lambda: nn.Conv2d(3, 8, 1, stride=2), (2, 3, 12, 12)),
    "1 x 1 x 1": (lambda: nn.Conv3d(3, 8, 1), (2, 3, 4, 6, 6)),
    "3 x 3 x 3": (lambda: nn.Conv3d(3, 8, 3), (2, 3, 6, 6, 6)),
    "a line, depthwise": (lambda: nn.Conv1d(8, 8, 3, groups=8), (2, 8, 30)),
    "a line": (lambda: nn.Conv1d(3, 8, 3), (2, 3, 30)),
    "dilated": (lambda: nn.Conv2d(3, 8, 3, dilation=2), (2, 3, 12, 12)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 8, 3), (2, 3, 12, 12)),
}
#: what Inductor has no template for
TORCHS = {"a line", "dilated", "transposed"}
CASES = [(name, backends, channels_last) for name in CONVOLUTIONS for backends in ("ATEN,TRITON", "TRITON") for channels_last in (False, True)
         if (backends != "TRITON" or name not in TORCHS) and (not channels_last or name in ("3 x 3", "of groups", "1 x 1 with strides"))]


@pytest.mark.parametrize("name,backends,channels_last", CASES)
def test_a_bias_is_added(name, backends, channels_last, seed):
    """Whichever is chosen, and where a template is all that there is."""
    torch.manual_seed(seed)
    make, shape = CONVOLUTIONS[name]
    model, x = make(), R(shape)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with inductor.patch(max_autotune=True, max_autotune_conv_backends=backends), torch.no_grad():
        got, want = torch.compile(lambda x: model(x).relu())(x), model(x).relu()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backends", ["ATEN,TRITON", "TRITON"])
def test_training(dtype, backends, seed):
    torch.manual_seed(seed)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(dtype), R(2, 3, 12, 12, dtype=dtype)
    ours, eager = copy.deepcopy(model), copy.deepcopy(model)
    with inductor.patch(max_autotune=True, max_autotune_conv_backends=backends):
        got, want = torch.compile(ours)(x), eager(x)
        got.square().mean().backward()
    want.square().mean().backward()
    allowed = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close((got, [p.grad for p in ours.parameters()]), (want, [p.grad for p in eager.parameters()]), rtol=allowed, atol=allowed)


def test_a_mode_of_torch_compile(seed):
    torch.manual_seed(seed)
    model, x = nn.Conv2d(3, 8, 3, padding=1), R(1, 3, 12, 12)
    torch.testing.assert_close(torch.compile(model, mode="max-autotune", dynamic=True)(x), model(x), rtol=1e-4, atol=1e-4)


def test_where_nothing_is_timed_torch_adds_it(seed):
    from torch._inductor.utils import run_and_get_code
    model, x = nn.Conv2d(3, 8, 3), R(1, 3, 12, 12)
    with torch.no_grad():
        _, code = run_and_get_code(torch.compile(model), x)
    assert "extern_kernels.convolution(" in code[0] and "bias=None" not in code[0]
