"""A torch that nobody has checked, or that lacks private names: ops go the public way, right and with one warning (`backends/of_torch.py`)."""

import subprocess
import sys

import pytest
from conftest import HANGS, ROOT

#: run with a torch that is another: each op's result and gradient, and how many warnings there were
PROGRAM = """
import warnings, sys
import torch, torch._dynamo, torch._C._dynamo.guards, torch.autograd.function, torch._library.triton
version, hidden = {version!r}, {hidden!r}
torch.__version__ = version or torch.__version__
kept = [(eval(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in hidden]  # torch needs them itself, later
kept = [(where, name, getattr(where, name)) for where, name in kept]
for where, name, _ in kept:
    delattr(where, name)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from triport import ops
    from triport.backends import of_torch
    for where, name, value in kept:
        setattr(where, name, value)
    x, w = torch.randn(5, 7), torch.randn(7, 5)
    for _ in range(3):
        torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
        torch.testing.assert_close(ops.matmul(x, w), x @ w)
        torch.testing.assert_close(ops.lora_linear(x, w, w[:, :2], x[:2, :5], 0.5), x @ w + 0.5 * (x @ w[:, :2]) @ x[:2, :5])
    torch.testing.assert_close(ops.add_mul_act_(x.clone(), x, x[0]), torch.relu(x + 0.5 * x + x[0]))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ops.gelu(a).pow(2).sum().backward()
    torch.nn.functional.gelu(b, approximate="tanh").pow(2).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
said = [str(w.message) for w in seen if "dispatcher" in str(w.message)]
from triport.backends.dispatch import replay
print(len(said), of_torch.quick, len(replay._plans), said)
"""


@pytest.mark.parametrize("version,hidden,words", [
    ("2.99.1+cpu", [], ["2.99.1", "is not one", "2.11 to 2.15"]),
    ("", ["torch._C._dynamo.guards.TensorGuards", "torch._C._dynamo.guards._empty_strided_cpu", "torch._C._len_torch_function_stack",
          "torch.autograd.function._SingleLevelFunction", "torch._C._ExcludeDispatchKeyGuard", "torch._library.triton.is_wrap_triton_enabled"],
     ["lacks torch._C._len_torch_function_stack", "TensorGuards", "_SingleLevelFunction", "backward derivatives only", "autocast"]),
], ids=["version", "names"])
def test_another_torch(version, hidden, words):
    p = subprocess.run([sys.executable, "-c", PROGRAM.format(version=version, hidden=hidden)], capture_output=True, text=True, timeout=HANGS, cwd=ROOT.parent)
    assert p.returncode == 0, p.stderr[-2500:]
    assert p.stdout.startswith("1 False 0 ") and all(w in p.stdout for w in words), p.stdout


def test_this_torch_is_checked():
    from triport.backends import of_torch
    from triport.backends.dispatch import replay
    assert of_torch.quick and not of_torch.missing and replay.TensorGuards is of_torch.TensorGuards
