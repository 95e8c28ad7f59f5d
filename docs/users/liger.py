"""Liger-Kernel on CPU tensors: its functions forward and backward, and its patch of HuggingFace's Llama, against float64.

`pip install liger-kernel transformers`, then `python docs/users/liger.py [PART OF A NAME ...]`. Nothing of the library is changed."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from liger_kernel.transformers import functional as liger

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402


def both(by_liger, by_torch, *args):
    """(got, wanted) of a result and of each gradient, for one random gradient of the result; by_torch runs in float64."""
    mine = [x.clone().requires_grad_() for x in args]
    theirs = [x.double().requires_grad_() for x in args]
    got, want = by_liger(*mine), by_torch(*theirs)
    grad = torch.randn(got.shape)
    pairs = [(got.detach().clone(), want)]
    got.backward(grad.clone())
    want.backward(grad.double())
    return pairs + [(m.grad, t.grad) for m, t in zip(mine, theirs)]


R = torch.randn
TARGET = torch.arange(37) * 31 % 1000


def rope():
    q, k, angle = R(2, 4, 16, 32), R(2, 2, 16, 32), R(1, 16, 16)
    cos, sin = (f(torch.cat((angle, angle), -1)) for f in (torch.cos, torch.sin))

    def rotated(x):
        first, second = x.chunk(2, -1)
        return x * cos.double() + torch.cat((-second, first), -1) * sin.double()
    return both(lambda q, k: torch.cat([x.flatten() for x in liger.liger_rope(q, k, cos, sin)]),
                lambda q, k: torch.cat([rotated(x).flatten() for x in (q, k)]), q, k)


def rms_norm():
    return both(lambda x, w: liger.liger_rms_norm(x, w, 1e-6), lambda x, w: F.rms_norm(x, (133,), w, 1e-6), R(37, 133), R(133))


def llama():
    """The patched model's loss and every parameter's gradient, beside the same model before it is patched, in float64."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, attn_implementation="eager"))
    theirs = copy.deepcopy(model).double()
    tokens = torch.randint(0, 320, (2, 19))
    losses = [theirs(input_ids=tokens, labels=tokens).loss]
    # Llama's module gets Liger's functions, too: the model in float64 has to be through with them before
    losses[0].backward()
    modeling = sys.modules[LlamaForCausalLM.__module__]
    before = dict(vars(modeling))
    try:
        apply_liger_kernel_to_llama(model=model)
        losses.append(model(input_ids=tokens, labels=tokens).loss)
        losses[1].backward()
    finally:
        vars(modeling).update(before)
    return [(losses[1], losses[0])] + [(m.grad, t.grad) for m, t in zip(model.parameters(), theirs.parameters())]


WAYS = {
    "rms_norm": rms_norm,
    "layer_norm": lambda: both(lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-6), lambda x, w, b: F.layer_norm(x, (133,), w, b, 1e-6),
                               R(37, 133), R(133), R(133)),
    "swiglu": lambda: both(liger.liger_swiglu, lambda a, b: F.silu(a) * b, R(37, 133), R(37, 133)),
    "geglu": lambda: both(liger.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, R(37, 133), R(37, 133)),
    "rope": rope,
    "cross_entropy": lambda: both(lambda x: liger.liger_cross_entropy(x, TARGET), lambda x: F.cross_entropy(x, TARGET), R(37, 1000)),
    "fused_linear_cross_entropy": lambda: both(lambda x, w: liger.liger_fused_linear_cross_entropy(x, w, TARGET),
                                               lambda x, w: F.cross_entropy(x @ w.T, TARGET), R(37, 65), R(1000, 65)),
    "Llama, patched": llama,
}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
