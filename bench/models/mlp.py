"""An MLP's forward and backward, and how its time grows: a sweep along steps, layers, batch and dim, with the exponent of each.

A layer is gelu(h @ W), the loss the mean of squares; a step is forward and backward, and ranges of that name stand in traces. The exponents that
flops alone would give are 1, 1, 1 and 2.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from ... import ops
from ...backends.base import Error, suggest
from ...ops.records import TOLERANCE
from .. import scaling
from ..study import Study
from . import common
from .variants import Variants, annotate, of_size


@dataclass(frozen=True)
class Shape:
    """steps: forward and backward so many times; layers of dim x dim; batch: rows of the input."""

    steps: int
    layers: int
    batch: int
    dim: int

    @property
    def case(self) -> str:
        return ",".join(f"{k}={v}" for k, v in asdict(self).items())

    @property
    def flops(self) -> int:
        """Of the products: one for each layer forward, two backward, of the first one, for nobody asks for the input's gradient."""
        return self.steps * 2 * self.batch * self.dim**2 * (3 * self.layers - 1)


#: the shape that all axes go through, and each axis' values
SIZES = {"small": (Shape(1, 2, 16, 32), {"steps": (1, 2, 4), "layers": (1, 2, 4), "batch": (16, 32, 64), "dim": (16, 32, 64)}),
         "main": (Shape(2, 4, 256, 256),
                  {"steps": (1, 2, 4, 8), "layers": (2, 4, 8, 16), "batch": (128, 256, 512, 1024), "dim": (128, 256, 512, 1024)})}
DEFAULT = ("torch", "triton-cpu", "triton-gpu")


def torch_layer(h, w):
    return F.gelu(h @ w, approximate="tanh")


def our_layer(h, w):
    return ops.gelu(ops.matmul(h, w))


def loss(x: torch.Tensor, *weights: torch.Tensor, layer=torch_layer, mark=contextlib.nullcontext) -> torch.Tensor:
    h = x
    for k, w in enumerate(weights):
        with mark(f"layer {k}"):
            h = layer(h, w)
    return h.square().mean()


def forward_backward(steps: int, loss, x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(loss, gradients of the weights) of the last of `steps`."""
    for k in range(steps):
        with annotate(f"step {k}"):
            with annotate("forward"):
                value = loss(x, *weights)
            with annotate("backward"):
                grads = torch.autograd.grad(value, weights)
    return (value.detach(), *grads)


def study(shape: Shape, device: str, seed: int, names=None) -> Study:
    """The variants of one shape, all of them or those named."""
    v = Variants(device)
    v.add("torch", partial(loss, mark=annotate))
    v.compiled(loss)
    v.ours(partial(loss, layer=our_layer, mark=annotate))
    for name in names or ():
        if name not in v.calls and name in v.left_out:
            raise Error(f"--variant {name} cannot run here: {v.left_out[name]}")
        if name not in v.calls:
            raise Error(suggest("variant", name, v.calls))
    v.calls = {n: fn for n, fn in v.calls.items() if not names or n in names}
    g = torch.Generator("cpu").manual_seed(seed)
    # gelu halves the variance and more: this keeps layers' values of one size
    weights = [(torch.randn(shape.dim, shape.dim, generator=g) * 1.5 * shape.dim**-0.5).to(device).requires_grad_() for _ in range(shape.layers)]
    inputs = (torch.randn(shape.batch, shape.dim, generator=g).to(device), *weights)
    return Study("mlp", shape.case, v.each(lambda fn: partial(forward_backward, shape.steps, fn)), inputs,
                 partial(forward_backward, 1, loss), allowed=2 * shape.layers * TOLERANCE["fp32"],  # a chain of that many layers there and back
                 flops=shape.flops, left_out={} if names else v.left_out)


def shapes(size: str) -> dict[str, list[Shape]]:
    """axis -> the shapes along it."""
    base, axes = of_size(SIZES, size)
    return {axis: [replace(base, **{axis: v}) for v in values] for axis, values in axes.items()}


def steps(size: str, device: str, seed: int) -> dict:
    return study(of_size(SIZES, size)[0], device, seed).steps()


def laws(size: str, rows: list[dict], clock: str = "wall") -> dict[tuple[str, str], tuple[scaling.Law, list[int], list[float]]]:
    """(variant, axis) -> the law of its time along the axis, the values and the seconds; of axes with two right rows at least."""
    out = {}
    for name in dict.fromkeys(r["backend"] for r in rows):
        took = {r["case"]: common.stats(r, clock)["p50"] for r in rows if r["backend"] == name and r["status"] == "ok"}
        for axis, along in shapes(size).items():
            x = [getattr(s, axis) for s in along if s.case in took]
            if len(x) > 1:
                t = [took[s.case] for s in along if s.case in took]
                out[name, axis] = scaling.fit(x, t), x, t
    return out


def table(found):
    """The laws as rich's table."""
    from rich.table import Table

    from ..report import time_text
    t = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in ("variant", "axis", "values", "times"):
        t.add_column(name, no_wrap=True)
    t.add_column("exponent", justify="right", no_wrap=True)
    for (name, axis), (law, x, y) in found.items():
        t.add_row(name, axis, " ".join(map(str, x)), " ".join(map(time_text, y)), law.text)
    return t


def draw(size: str, clock: str, rows: list[dict], figure):
    """A panel for each axis, both scales logarithmic: times, and the fitted laws as lines."""
    found = laws(size, rows, clock)
    for axes, axis in zip(figure.subplots(2, 2).flat, shapes(size)):
        for (name, of), (law, x, t) in found.items():
            if of == axis:
                dots, = axes.loglog(x, [1e3 * s for s in t], "o")
                axes.loglog(x, [1e3 * law(v) for v in x], "-", color=dots.get_color(), label=f"{name}: {law.text}")
                axes.set_xticks(x, list(map(str, x)))
                axes.set_xticks([], minor=True)
        axes.set_xlabel(axis)
        axes.set_ylabel("ms")
        axes.legend()


def add(parser):
    parser.add_argument("--variant", action="append", default=[], metavar="NAME",
                        help="torch, torch-compile, torch-compile-triton, triton-cpu, triton-gpu or cuda; repeatable (default: torch and "
                             "ours by Triton; a compiled one is compiled anew for every shape)")


def run(args) -> int:
    from rich.console import Console
    every = {s.case: s for along in shapes(args.size).values() for s in along}
    names = args.variant
    if not names:
        names = [n for n in DEFAULT if n in ("torch", f"triton-{'gpu' if args.device == 'cuda' else 'cpu'}")]
        if args.show_inductor:
            names = None
    code, rows = common.measure((study(s, args.device, args.seed, names) for s in every.values()), args, partial(draw, args.size, args.clock))
    if rows:
        print()
        Console(width=160).print(table(laws(args.size, rows, args.clock)))
        print(f"exponent b of {common.basis(args)} = a * axis ** b, by least squares on logarithms, ± its standard error; "
              "flops alone give 1, 1, 1 and 2")
    return code
