"""flash-linear-attention's chunked ops on CPU tensors, forward and backward, against their recurrences in float64.

`pip install flash-linear-attention`, then `python docs/users/flash_linear_attention.py [PART OF A NAME ...]`. Nothing of the library is changed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402

B, T, H, D = 1, 77, 2, 32   # a batch, steps that no chunk divides, heads, features


def recurrent(q, k, v, decay=None):
    """o_t = scale q_t S_t with S_t = decay_t S_(t-1) + k_t v_t^T: (B, T, H, D), decay (B, T, H, D) or (B, T, H, 1)."""
    state, out = q.new_zeros(*q.shape[::2], q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        if decay is not None:
            state = state * decay[:, t, :, :, None]
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append((q[:, t, :, None, :] @ state)[:, :, 0] * q.shape[-1]**-0.5)
    return torch.stack(out, 1)


def gated_delta(q, k, v, beta, log_decay):
    """The gated delta rule: S_t = S + beta_t k_t (v_t - k_t S)^T with S = exp(log_decay_t) S_(t-1); beta and log_decay are (B, T, H)."""
    state, out = q.new_zeros(B, H, D, D), []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t, :, None, None].exp()
        seen = (k[:, t, :, None, :] @ state)[:, :, 0]
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - seen))[:, :, None, :]
        out.append((q[:, t, :, None, :] @ state)[:, :, 0] * D**-0.5)
    return torch.stack(out, 1)


def both(by_fla, by_torch, *args):
    """(got, wanted) of the result and of each gradient."""
    mine, theirs = [x.clone().requires_grad_() for x in args], [x.double().requires_grad_() for x in args]
    got, want = by_fla(*mine)[0], by_torch(*theirs)
    grad = torch.randn(got.shape)
    got.backward(grad)
    want.backward(grad.double())
    return [(got, want)] + [(m.grad, t.grad) for m, t in zip(mine, theirs)]


def qkv():
    return [torch.randn(B, T, H, D) for _ in range(3)]


def linear_attn():
    from fla.ops.linear_attn import chunk_linear_attn
    return both(lambda q, k, v: chunk_linear_attn(q, k, v, normalize=False), recurrent, *qkv())


def retention():
    from fla.ops.retention import chunk_retention
    decay = (1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))).view(1, 1, H, 1).expand(B, T, H, 1)
    return both(chunk_retention, lambda q, k, v: recurrent(q, k, v, decay), *qkv())


def gla():
    from fla.ops.gla import chunk_gla
    return both(chunk_gla, lambda q, k, v, g: recurrent(q, k, v, g.exp()), *qkv(), F.logsigmoid(torch.randn(B, T, H, D)))


def simple_gla():
    from fla.ops.simple_gla import chunk_simple_gla
    return both(lambda q, k, v, g: chunk_simple_gla(q, k, v, g=g), lambda q, k, v, g: recurrent(q, k, v, g.exp()[..., None]), *qkv(),
                F.logsigmoid(torch.randn(B, T, H)))


def gated_delta_rule():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    q, k, v = qkv()
    return both(lambda q, k, v, beta, g: chunk_gated_delta_rule(q, k, v, g=g, beta=beta), gated_delta, q, F.normalize(k, dim=-1), v, torch.rand(B, T, H),
                F.logsigmoid(torch.randn(B, T, H)))


WAYS = {f"chunk_{way.__name__}": way for way in (linear_attn, retention, gla, simple_gla, gated_delta_rule)}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
