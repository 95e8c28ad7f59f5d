"""DLRM (Naumov et al., 2019): a model of clicks, trained on synthetic data, by eager torch, torch.compile and with our fused ops.

An MLP takes the 13 numbers to a vector, tables take each of 26 categories to another, the vectors' products with one another go through a second MLP,
and what comes out is how likely a click is. A step is forward, backward and the update, by plain SGD.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ... import ops
from ...backends.base import Error
from ...ops.records import TOLERANCE
from ..study import Study
from . import common
from .clicks import DENSE, SPARSE, Clicks
from .variants import Variants, annotate, of_size


@dataclass(frozen=True)
class Config:
    """bottom, top: widths of the MLPs' layers; the tables' vectors are as wide as the bottom's last. rows: of each table."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: int
    batch: int
    steps: int
    rate: float

    @property
    def dim(self) -> int:
        return self.bottom[-1]

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of all layers, the bottom's first."""
        pairs = (SPARSE + 1) * SPARSE // 2
        return [*zip((DENSE, *self.bottom), self.bottom), *zip((self.dim + pairs, *self.top), self.top)]

    @property
    def flops(self) -> int:
        """Of a step's products: one forward and two backward for each layer (one for the first) and for the vectors'."""
        products = sum(a * b for a, b in self.layers) * 3 - DENSE * self.bottom[0]
        return 2 * self.batch * (products + 3 * (SPARSE + 1)**2 * self.dim)


#: main: the widths of the public talk's model. Its tables are hashed to 10,000 rows, 66.6 MB in all: gradients are dense, so a step touches all of a
#: table's bytes several times, and with full-size tables would measure that alone. small: of 25 seeds the loss comes down to at most 0.85 of the constant's, after
#: half the steps to 0.985
SIZES = {"small": Config((64, 16), (64, 1), rows=1000, batch=128, steps=240, rate=0.3),
         "main": Config((512, 256, 64), (512, 512, 256, 1), rows=10_000, batch=512, steps=60, rate=0.1)}


def torch_layer(h, w, b):
    return F.relu(torch.addmm(b, h, w))


def our_layer(h, w, b):
    return ops.add_relu(ops.matmul(h, w), b)


def logits(config: Config, layer, dense, index, table, *weights, seen=None) -> torch.Tensor:
    """index: rows of the one tensor that holds all tables, batch x 26. seen: is told what goes into each relu."""
    pairs = [(weights[k], weights[k + 1]) for k in range(0, len(weights), 2)]
    h = dense
    for w, b in pairs[:len(config.bottom)]:
        if seen:
            seen(h @ w + b)
        h = layer(h, w, b)
    vectors = torch.cat([h.unsqueeze(1), F.embedding(index, table)], 1)
    products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
    h = torch.cat([h, products.index_select(1, below(SPARSE + 1, dense.device))], 1)
    for w, b in pairs[len(config.bottom):-1]:
        if seen:
            seen(h @ w + b)
        h = layer(h, w, b)
    w, b = pairs[-1]
    return (h @ w + b).squeeze(1)


_below: dict = {}


def below(n: int, device) -> torch.Tensor:
    """Where in a flat n x n matrix the elements below the diagonal are."""
    key = n, torch.device(device).type
    if key not in _below:
        rows, cols = torch.tril_indices(n, n, -1)
        _below[key] = (rows * n + cols).to(device)
    return _below[key]


def loss(config: Config, layer, label, *args) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits(config, layer, *args), label)


def parameters(config: Config, device: str, seed: int) -> list[torch.Tensor]:
    """All tables as one tensor, then each layer's weight (inputs x outputs) and bias."""
    g = torch.Generator("cpu").manual_seed(seed)
    out = [torch.randn(SPARSE * config.rows, config.dim, generator=g) * config.dim**-0.5]
    for a, b in config.layers:
        out += [torch.randn(a, b, generator=g) * (2 / a)**0.5, torch.zeros(b)]
    return [t.to(device).requires_grad_() for t in out]


def batch(config: Config, clicks: Clicks, device: str) -> tuple[torch.Tensor, ...]:
    """(label, dense, index) as `loss` takes them."""
    dense, index, label = clicks.batch(config.batch)
    return label.to(device), dense.to(device), (index + torch.arange(SPARSE) * config.rows).to(device)


def gradients(loss, *inputs) -> tuple[torch.Tensor, ...]:
    """(loss, gradients of the parameters); inputs: label, dense, index, then the parameters."""
    with annotate("forward"):
        value = loss(*inputs)
    with annotate("backward"):
        return (value.detach(), *torch.autograd.grad(value, inputs[3:]))


class Trainer:
    """A variant with parameters of its own. Called, it does one step, on the same batch each time unless it is given another."""

    def __init__(self, loss, params, rate: float, data):
        self.loss, self.rate, self.data = loss, rate, data
        self.params = [p.detach().clone().requires_grad_() for p in params]

    def __call__(self, data=None) -> torch.Tensor:
        value, *grads = gradients(self.loss, *(data or self.data), *self.params)
        with torch.no_grad(), annotate("update"):
            torch._foreach_add_(self.params, grads, alpha=-self.rate)
        return value


def smooth(config: Config, clicks: Clicks, params, device: str) -> tuple[torch.Tensor, ...]:
    """A batch whose gradient rounding cannot turn: samples that take a relu's argument to within rounding of 0, where the slope jumps, are left out."""
    kept: list = []
    wide = [p.detach().double() for p in params]
    while sum(len(k[0]) for k in kept) < config.batch:
        label, dense, index = batch(config, clicks, device)
        least: list = []
        with torch.no_grad():
            logits(config, torch_layer, dense.double(), index, *wide, seen=lambda z: least.append(z.abs().amin(1)))
        far = torch.stack(least).amin(0) > 1e-5
        kept.append([t[far] for t in (label, dense, index)])
    return tuple(torch.cat(ts)[:config.batch].contiguous() for ts in zip(*kept))


def losses(config: Config, device: str) -> Variants:
    """The model's variants, as functions that give the loss."""
    v = Variants(device)
    below(SPARSE + 1, device)  # made before anything is compiled
    v.add("torch", partial(loss, config, torch_layer))
    v.compiled(lambda *args: loss(config, torch_layer, *args))
    v.ours(lambda *args: loss(config, our_layer, *args))
    return v


def study(size: str, v: Variants, seed: int, rate: float) -> Study:
    """The variants of `losses`; their gradients are checked, and what is timed of each is a training step."""
    config = of_size(SIZES, size)
    params = parameters(config, v.device, seed)
    data = smooth(config, Clicks(config.rows, seed), params, v.device)
    allowed = 2 * len(config.layers) * TOLERANCE["fp32"]  # a chain of that many layers there and back
    return Study("dlrm", f"{size},batch={config.batch}", v.each(lambda fn: partial(gradients, fn)), (*data, *params),
                 partial(gradients, partial(loss, config, torch_layer)), allowed=allowed, flops=config.flops,
                 turns=v.each(lambda fn: Trainer(fn, params, rate, data)), left_out=v.left_out)


def steps(size: str, device: str, seed: int) -> dict:
    config = of_size(SIZES, size)
    return study(size, losses(config, device), seed, config.rate).steps()


@dataclass
class Training:
    """losses: of the training batches, step by step. before, after: on samples held out. constant: what the rate of clicks alone would give there."""

    losses: list[float]
    before: float
    after: float
    constant: float

    @property
    def falls(self) -> bool:
        """Clearly: by a twentieth, and below what needs no look at a sample by a fiftieth."""
        return self.after < 0.95 * self.before and self.after < 0.98 * self.constant


def train(config: Config, fn, seed: int, device: str, steps: int, rate: float) -> Training:
    """Train a variant from the seed's parameters on the seed's batches."""
    clicks = Clicks(config.rows, seed)
    held = [batch(config, clicks, device) for _ in range(max(1, 4096 // config.batch))]
    share = torch.cat([h[0] for h in held]).mean().item()
    trainer = Trainer(fn, parameters(config, device, seed), rate, held[0])

    def judged() -> float:
        with torch.no_grad():
            return sum(loss(config, torch_layer, *h, *trainer.params).item() for h in held) / len(held)

    before = judged()
    losses = [trainer(batch(config, clicks, device)).item() for _ in range(steps)]
    return Training(losses, before, judged(), -sum(p * math.log(p) for p in (share, 1 - share) if p))


def add(parser):
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each variant (default: the size's)")
    parser.add_argument("--rate", type=float, metavar="X", help="learning rate (default: the size's)")


def run(args) -> int:
    config = of_size(SIZES, args.size)
    count = config.steps if args.steps is None else args.steps
    rate = config.rate if args.rate is None else args.rate
    if count < 1:
        raise Error(f"--steps {count}: it takes a number from 1 up")
    if not rate > 0:
        raise Error(f"--rate {rate}: it takes a number above 0")
    v = losses(config, args.device)
    one = study(args.size, v, args.seed, rate)
    runs: dict[str, Training] = {}

    def draw(rows, figure):
        left, right = figure.subplots(1, 2)
        for name, t in runs.items():
            left.plot(t.losses, label=name, alpha=0.7)
        left.set_xlabel("step")
        left.set_ylabel("loss")
        left.legend()
        of = [r for r in rows if "wall_s" in r]
        right.bar([r["backend"] for r in of], [1e3 * common.stats(r, args.clock)["p50"] for r in of])
        right.tick_params(axis="x", rotation=20)
        right.set_ylabel("ms a step")

    if not args.show_inductor:
        sizes = [p.nbytes / 1e6 for p in one.inputs[3:]]
        say = f"{sum(sizes):.1f} MB of parameters, {sizes[0]:.1f} of them {SPARSE} tables of {config.rows} rows"
        print(f"dlrm {args.size}: {say}; training {len(v.calls)} variants for {count} steps", file=sys.stderr)
        for name, fn in v.calls.items():
            runs[name] = train(config, fn, args.seed, args.device, count, rate)
    code, _ = common.measure([one], args, draw)
    for name, t in runs.items():
        word = "falls" if t.falls else "DOES NOT FALL CLEARLY"
        print(f"{name}: loss {word}: {t.before:.4f} before, {t.after:.4f} after {count} steps, on samples held out; "
              f"{t.constant:.4f} is the rate of clicks alone")
        if not t.falls:
            code = 1
    return code
