"""This repository's own kernels are right: the ops, forward and backward, the models, and the kernels whose plans are held. Nothing is reported of them."""

import sys

import pytest
import torch
from conftest import ROOT
from faults import ALL
from triport import checking, ops
from triport.bench import check, models
from triport.bench.models import variants
from triport.ops import registry

sys.path.append(str(ROOT / "tests"))
import plan_kernels  # noqa: E402

SHAPES = {"square": ((37, 29),), "gelu": ((37, 29),), "softmax": ((37, 29),), "matmul": ((37, 21), (21, 19)), "matmul_softmax": ((37, 21), (21, 19)),
          "lora_linear": ((37, 21), (21, 19), (21, 4), (4, 19)), "add_relu": ((37, 29), (29,)), "add_mul_act": ((37, 29), (37, 29), (29,))}


def test_every_op_is_there():
    assert SHAPES.keys() == set(registry.NAMES)


def given(name, dtype, seed, grad=True):
    g = torch.Generator("cpu").manual_seed(seed)
    return [(torch.randn(s, generator=g) * 0.5).to(dtype).requires_grad_(grad) for s in SHAPES[name]]


@pytest.mark.parametrize("name, dtype", [*((n, torch.float32) for n in SHAPES), ("softmax", torch.bfloat16), ("matmul", torch.float16)], ids=str)
def test_op(name, dtype, seed):
    """Forward, and backward of a sum, whose gradient is expanded."""
    op = registry.get(name)
    kwargs = op.cases[0].kwargs
    args = given(name, dtype, seed)
    with checking.checks(ALL):
        out = getattr(ops, name)(*args, **kwargs)
        out.sum().backward()
    assert check.error(out.detach(), op.expected(*[a.detach() for a in args], **kwargs)) <= op.allowed(dtype)
    assert all(a.grad.isfinite().all() for a in args)


@pytest.mark.parametrize("name", SHAPES)
def test_op_of_views(name, seed):
    """Turned and with a storage offset, in rows that are longer than what is used."""
    op = registry.get(name)
    kwargs = op.cases[0].kwargs
    args = []
    for a in given(name, torch.float32, seed, grad=False):
        base = torch.empty([d + 3 for d in reversed(a.shape)])
        view = base.permute(*reversed(range(a.dim())))[tuple(slice(2, 2 + d) for d in a.shape)]
        view.copy_(a)
        args.append(view)
    with checking.checks(ALL):
        out = getattr(ops, name)(*args, **kwargs)
    assert check.error(out, op.expected(*args, **kwargs)) <= op.allowed(torch.float32)


@pytest.mark.parametrize("name", models.MODELS)
def test_model(name, monkeypatch):
    monkeypatch.setattr(variants.Variants, "compiled", lambda *a, **k: None)
    with checking.checks(ALL):
        for variant, step in models.get(name).steps("small", "cpu", 3).items():
            if variant != "torch":
                step()


@pytest.mark.parametrize("name", plan_kernels.KERNELS)
def test_kernel_of_a_plan(name, seed):
    kernel = plan_kernels.KERNELS[name]
    sizes = plan_kernels.SIZES | plan_kernels.OWN.get(name, {})
    g = torch.Generator("cpu").manual_seed(seed)

    def argument(arg):
        if arg in sizes:
            return sizes[arg]
        if arg == "a":
            return 2.0
        if arg in ("n", "m", "k", "step", "sa", "sb"):
            return 3 if arg == "step" else 64 if arg in ("m", "k", "sa", "sb") else sizes["N"] - 5
        if arg == "out_ptr":
            return torch.empty(1 << 17) if name != "atomic" else torch.zeros(7)
        x = torch.rand(1 << 17, generator=g)
        return (x * 31).floor() if arg == "i_ptr" or name == "histogram" else x

    with checking.checks(ALL):
        kernel[(1,)](*[argument(a) for a in kernel.arg_names])
