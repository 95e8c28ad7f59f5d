"""FlagGems' functions as C functions for a board: its kernels compiled for the board's target, checked there against torch in float64.

    python docs/users/flaggems_board.py [--target spacemit-x60] [--on 'qemu:riscv64?vlen=256'] [NAME ...]
    triport export docs/users/flaggems_board.py:softmax --target spacemit-x60 -o softmax    # one bundle, to keep

FlagGems as in flaggems.py. Nothing of the library is changed."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable

# SpacemiT's is the vendor with device "cpu" that takes the kernels which FlagGems has for all; torch.cuda is what others ask for
os.environ.setdefault("GEMS_VENDOR", "spacemit")
import flag_gems  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

gems = flag_gems.ops
X, Y = "x=fp32[37,133]", "y=fp32[37,133]"
#: name -> (an example call, the function, the same in torch)
OPS: dict[str, tuple[str, Callable, Callable]] = {
    "abs": (X, lambda x: gems.abs(x), torch.abs), "neg": (X, lambda x: gems.neg(x), torch.neg), "relu": (X, lambda x: gems.relu(x), torch.relu),
    "sigmoid": (X, lambda x: gems.sigmoid(x), torch.sigmoid), "tanh": (X, lambda x: gems.tanh(x), torch.tanh), "exp": (X, lambda x: gems.exp(x), torch.exp),
    "sin": (X, lambda x: gems.sin(x), torch.sin), "cos": (X, lambda x: gems.cos(x), torch.cos), "erf": (X, lambda x: gems.erf(x), torch.erf),
    "isfinite": (X, lambda x: gems.isfinite(x), torch.isfinite), "reciprocal": (X, lambda x: gems.reciprocal(x), torch.reciprocal),
    "gelu": (X, lambda x: gems.gelu(x), F.gelu), "silu": (X, lambda x: gems.silu(x), F.silu), "softplus": (X, lambda x: gems.softplus(x), F.softplus),
    "elu": (X, lambda x: gems.elu(x), F.elu), "clamp": (X, lambda x: gems.clamp(x, -0.5, 0.7), lambda x: x.clamp(-0.5, 0.7)),
    "bitwise_not": ("x=int32[37,133]", lambda x: gems.bitwise_not(x), torch.bitwise_not),
    "add": (f"{X}, {Y}", lambda x, y: gems.add(x, y), torch.add), "sub": (f"{X}, {Y}", lambda x, y: gems.sub(x, y), torch.sub),
    "mul": (f"{X}, {Y}", lambda x, y: gems.mul(x, y), torch.mul), "true_divide": (f"{X}, {Y}", lambda x, y: gems.true_divide(x, y), torch.true_divide),
    "maximum": (f"{X}, {Y}", lambda x, y: gems.maximum(x, y), torch.maximum), "minimum": (f"{X}, {Y}", lambda x, y: gems.minimum(x, y), torch.minimum),
    "gt": (f"{X}, {Y}", lambda x, y: gems.gt(x, y), torch.gt), "eq": (f"{X}, {Y}", lambda x, y: gems.eq(x, y), torch.eq),
    "square": (X, lambda x: gems.pow_tensor_scalar(x, 2.0), torch.square),
    "total": (X, lambda x: gems.sum(x), torch.sum), "sum_dim": (X, lambda x: gems.sum_dim(x, [1]), lambda x: x.sum(1)),
    "mean": (X, lambda x: gems.mean(x), torch.mean), "amax": (X, lambda x: gems.amax(x, [1]), lambda x: x.amax(1)),
    "argmax": (X, lambda x: gems.argmax(x, 1), lambda x: x.argmax(1)), "max_dim": (X, lambda x: tuple(gems.max_dim(x, 1)), lambda x: tuple(x.max(1))),
    "prod_dim": (X, lambda x: gems.prod_dim(x, 1), lambda x: x.prod(1)), "all_of": (X, lambda x: gems.all(x), torch.all), "any_of": (X, lambda x: gems.any(x), torch.any),
    "var_mean": (X, lambda x: tuple(gems.var_mean(x, [1])), lambda x: torch.var_mean(x, 1)),
    "vector_norm": (X, lambda x: gems.vector_norm(x), torch.linalg.vector_norm), "cumsum": (X, lambda x: gems.cumsum(x, 1), lambda x: x.cumsum(1)),
    "softmax": (X, lambda x: gems.softmax(x, 1), lambda x: x.softmax(1)), "log_softmax": (X, lambda x: gems.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    "layer_norm": (f"{X}, w=fp32[133], b=fp32[133]", lambda x, w, b: gems.layer_norm(x, (x.shape[1],), w, b)[0], lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b)),
    "rms_norm": (f"{X}, w=fp32[133]", lambda x, w: flag_gems.rms_norm(x, (x.shape[1],), w), lambda x, w: F.rms_norm(x, (x.shape[1],), w, 1e-5)),
    "group_norm": ("x=fp32[3,16,37], w=fp32[16], b=fp32[16]", lambda x, w, b: gems.group_norm(x, w, b, x.shape[0], x.shape[1], x.shape[2], 4)[0],
                   lambda x, w, b: F.group_norm(x, 4, w, b)),
    "mm": (f"{X}, y=fp32[133,65]", lambda x, y: gems.mm(x, y), torch.mm), "addmm": (f"b=fp32[65], {X}, y=fp32[133,65]", lambda b, x, y: gems.addmm(b, x, y), torch.addmm),
    "mv": (f"{X}, y=fp32[133]", lambda x, y: gems.mv(x, y), torch.mv), "dot": ("x=fp32[1333], y=fp32[1333]", lambda x, y: gems.dot(x, y), torch.dot),
    "embedding": ("w=fp32[37,133], i=int64[21]<37", lambda w, i: gems.embedding(w, i), lambda w, i: w[i]),
    "gather": (f"{X}, i=int64[21,133]<37", lambda x, i: gems.gather(x, 0, i), lambda x, i: x.gather(0, i)),
    "index_select": (f"{X}, i=int64[21]<37", lambda x, i: gems.index_select(x, 0, i), lambda x, i: x.index_select(0, i)),
    "masked_fill": (f"{X}, m=bool[37,133]", lambda x, m: gems.masked_fill(x, m, -1.0), lambda x, m: x.masked_fill(m, -1.0)),
    "cat": (f"{X}, {Y}", lambda x, y: gems.cat((x, y), 1), lambda x, y: torch.cat((x, y), 1)),
    "stack": (f"{X}, {Y}", lambda x, y: gems.stack((x, y)), lambda x, y: torch.stack((x, y))), "flip": (X, lambda x: gems.flip(x, [0]), lambda x: x.flip(0)),
    "tril": (X, lambda x: gems.tril(x, 3), lambda x: x.tril(3)), "triu": (X, lambda x: gems.triu(x, -3), lambda x: x.triu(-3)),
    "topk": (X, lambda x: tuple(gems.topk(x, 5)), lambda x: tuple(x.topk(5))), "repeat": (X, lambda x: gems.repeat(x, (2, 3)), lambda x: x.repeat(2, 3)),
}


def by_place(reference: Callable, names: list[str]) -> Callable:
    """A function of torch's as one that takes its arguments by the names that ours have."""
    return lambda **named: reference(*(named[n] for n in names))


for name, (example, function, reference) in OPS.items():  # what `triport export FILE:NAME` looks for
    function.__name__, function.__doc__ = name, f"example: {example}"
    globals()[name], globals()[f"{name}_reference"] = function, by_place(reference, list(inspect.signature(function).parameters))


def run(name: str, target: str, board: str, folder: str) -> tuple[bool, str]:
    """(right?, what was said) of a function, exported and run on a board."""
    triport = [sys.executable, "-m", "triport.tools"]
    made = subprocess.run([*triport, "export", f"{__file__}:{name}", "--target", target, "-o", f"{folder}/{name}"], capture_output=True, text=True)
    if made.returncode:
        return False, "".join(line for line in made.stderr.splitlines() if line.startswith("triport export: "))
    done = subprocess.run([*triport, "bench", "--bundle", f"{folder}/{name}", "--on", board], capture_output=True, text=True)
    said = re.findall(r"\.case: (.*), median", done.stdout)
    return done.returncode == 0 and bool(said), "; ".join(said) or done.stderr.strip()


def main(given: list[str] | None = None) -> int:
    """A line for each function, or for those that are named; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"functions (default: all): {', '.join(OPS)}")
    parser.add_argument("--target", default="spacemit-x60", help="as triport export has it (default: %(default)s)")
    parser.add_argument("--on", default="qemu:riscv64?vlen=256", metavar="BOARD", help="as triport bench has it (default: %(default)s)")
    args = parser.parse_args(given)
    if unknown := set(args.names) - OPS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in args.names or OPS:
            right, said = run(name, args.target, args.on, folder)
            wrong += not right
            print(f"{name:<14} {said}", flush=True)
    print(f"{len(args.names or OPS) - wrong} of {len(args.names or OPS)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
