"""FlagGems' use_gems() on CPU tensors: torch's functions computed by its Triton kernels, against float64.

FlagGems 5.4 from its repository (a version that knows vendors with CPUs; PyPI's 5.0.2 does not), then `python docs/users/flaggems.py [PART OF A NAME ...]`.
Nothing of the library is changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

# SpacemiT's is the vendor with device "cpu" that takes the kernels which FlagGems has for all; torch.cuda is what others ask for
os.environ.setdefault("GEMS_VENDOR", "spacemit")
import flag_gems  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402


def way(op: str, call: Callable, make: Callable[[], tuple]) -> checked.Way:
    """torch's function with FlagGems' op of this name alone in place of torch's own, beside torch in float64."""
    def run():
        args = make()
        with flag_gems.use_gems(include=op.split()):
            got = call(*(a.clone() for a in args))
        want = call(*(a.double() if a.is_floating_point() else a for a in args))
        pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
        return [(g, w if g.is_floating_point() else w.to(g.dtype)) for g, w in pairs]
    return run


R = torch.randn


def matrix() -> tuple:
    return (R(37, 133),)


def positive() -> tuple:
    return (R(37, 133).abs() + 0.1,)


def two() -> tuple:
    return R(37, 133), R(37, 133)


def whole() -> tuple:
    return (torch.randint(-99, 99, (37, 133), dtype=torch.int32),)


POSITIONS = torch.arange(21) * 5 % 37
UNARY = dict.fromkeys("abs neg sigmoid tanh exp sin cos erf relu isfinite".split(), matrix) | dict.fromkeys("log sqrt rsqrt reciprocal".split(), positive)
#: op of FlagGems -> what calls it, on which inputs
OPS: dict[str, tuple[Callable, Callable[[], tuple]]] = {name: (getattr(torch, name), make) for name, make in UNARY.items()} | {
    "add": (torch.add, two), "sub": (torch.sub, two), "mul": (torch.mul, two), "true_divide": (torch.div, lambda: (R(37, 133), *positive())),
    "maximum": (torch.maximum, two), "minimum": (torch.minimum, two), "gt": (torch.gt, two), "eq": (torch.eq, two),
    "pow_tensor_scalar": (lambda x: x ** 2.5, positive), "clamp": (lambda x: x.clamp(-0.5, 0.7), matrix),
    "bitwise_not": (torch.bitwise_not, whole),
    "gelu": (F.gelu, matrix), "silu": (F.silu, matrix), "softplus": (F.softplus, matrix), "elu": (F.elu, matrix),
    "sum": (torch.sum, matrix), "sum_dim": (lambda x: x.sum(1), matrix), "mean": (torch.mean, matrix),
    "amax": (lambda x: x.amax(1), matrix), "argmax": (lambda x: x.argmax(1), matrix), "max_dim": (lambda x: tuple(x.max(1)), matrix),
    "prod_dim": (lambda x: x.prod(1), lambda: (R(37, 13),)), "all": (lambda x: (x > -9).all(), matrix), "any": (lambda x: (x > 3).any(), matrix),
    "var_mean": (lambda x: torch.var_mean(x, 1), matrix), "vector_norm": (lambda x: torch.linalg.vector_norm(x), matrix),
    "cumsum": (lambda x: x.cumsum(1), matrix), "softmax": (lambda x: x.softmax(-1), matrix), "log_softmax": (lambda x: x.log_softmax(-1), matrix),
    "native_layer_norm": (lambda x, w, b: F.layer_norm(x, (133,), w, b), lambda: (R(37, 133), R(133), R(133))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), lambda: (R(3, 16, 37), R(16), R(16))),
    "mm": (torch.mm, lambda: (R(37, 133), R(133, 65))),
    "addmm": (torch.addmm, lambda: (R(65), R(37, 133), R(133, 65))), "mv": (torch.mv, lambda: (R(37, 133), R(133))),
    "dot": (torch.dot, lambda: (R(1333), R(1333))),
    "embedding": (lambda w: F.embedding(POSITIONS, w), matrix), "gather": (lambda x: x.gather(0, POSITIONS[:, None].expand(21, 133)), matrix),
    "index_select": (lambda x: x.index_select(0, POSITIONS), matrix), "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), matrix),
    "cat": (lambda x, y: torch.cat((x, y), 1), two), "stack": (lambda x, y: torch.stack((x, y)), two), "flip": (lambda x: x.flip(0), matrix),
    "tril": (lambda x: x.tril(3), matrix), "triu": (lambda x: x.triu(-3), matrix), "sort": (lambda x: tuple(x.sort(1)), matrix),
    "topk": (lambda x: tuple(x.topk(5)), matrix), "nonzero": (lambda x: (x > 0).nonzero(), matrix), "repeat": (lambda x: x.repeat(2, 3), matrix),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), lambda: (R(2, 3, 17, 19), R(8, 3, 3, 3))),
    "nll_loss_forward": (lambda x: F.nll_loss(x, torch.arange(37) % 133), matrix),
}
WAYS = {name: way(name, call, make) for name, (call, make) in OPS.items()}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
