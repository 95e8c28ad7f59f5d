"""A minute with this torch, Triton, numpy and Python: ops, derivatives of every kind, replayed calls, the dispatcher, Inductor (`tests/matrix --quick`)."""

import sys
import warnings

import torch
import triton
warnings.simplefilter("error", RuntimeWarning)  # what is not checked says so
from triport import ops  # noqa: E402
from triport.backends import of_torch  # noqa: E402
from triport.backends.dispatch import replay  # noqa: E402
print(sys.version.split()[0], torch.__version__, triton.__version__, "missing", of_torch.missing, "quick", of_torch.quick)
x, w = torch.randn(5, 7), torch.randn(7, 5)
for _ in range(3):
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    torch.testing.assert_close(ops.matmul(x, w), x @ w)
    torch.testing.assert_close(ops.lora_linear(x, w, w[:, :2], x[:2, :5], 0.5), x @ w + 0.5 * (x @ w[:, :2]) @ x[:2, :5])
a, b = x.clone().requires_grad_(), x.clone().requires_grad_()


def gelu(t):
    return torch.nn.functional.gelu(t, approximate="tanh")


def twice(fn, t):
    """The second derivative."""
    g, = torch.autograd.grad(fn(t).pow(2).sum(), t, create_graph=True)
    return torch.autograd.grad(g.sum(), t)[0]


torch.testing.assert_close(twice(ops.gelu, a), twice(gelu, b), rtol=1e-4, atol=1e-5)
torch.testing.assert_close(torch.func.jvp(ops.softmax, (x,), (x,))[1], torch.func.jvp(lambda y: torch.softmax(y, -1), (x,), (x,))[1])
torch.testing.assert_close(torch.func.vmap(ops.softmax)(x), torch.softmax(x, -1))
with torch.autocast("cpu", torch.bfloat16):
    assert ops.matmul(x, w).dtype == torch.bfloat16
assert replay._plans, "nothing is replayed"
assert set(torch.library.opcheck(torch.ops.triport.softmax, (x, -1)).values()) == {"SUCCESS"}
f = torch.compile(lambda y: ops.gelu(y) + 1, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(f(x), gelu(x) + 1)
import torch._inductor.config as config  # noqa: E402

config.cpu_backend, config.compile_threads = "triton", 1
f = torch.compile(lambda y: (y - y.mean(-1, keepdim=True)).softmax(-1))
z = torch.randn(64, 100)
torch.testing.assert_close(f(z), (z - z.mean(-1, keepdim=True)).softmax(-1))
print("all right")
