"""Whole models compiled by Inductor, by its C++ and by its Triton kernels for the CPU, against eager: BERT, GPT-2, Llama, ViT, an MLP, DLRM.

`inference` is the model's output without gradients, `training` that and the gradients of all parameters; both are checked against the same model in
float64, and may be four times as far off as eager torch, whose products add up in blocks of terms. The first four are of the `transformers` package, with random weights: nothing is downloaded.
`first` is the first step, compiled with one process; what Inductor and Triton keep on disk shortens it.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from functools import partial
from typing import Callable, NamedTuple

import torch
from torch import nn

from ...backends.base import Error, Unavailable, suggest
from ...ops.records import DTYPES, TOLERANCE
from .. import check
from ..study import Study
from . import common
from .variants import Variants, of_size

#: error that is never allowed, however far off eager is; in bf16 a relu's argument near 0 falls on either side (the MLP's gradients: up to 0.05)
FARTHEST = 0.3
#: models and inputs that are drawn at most, until eager is within a quarter of that: of 26 seeds of a small DLRM's training in bf16 three had gradients off by 0.25 to 0.41, the others by 0.003 to 0.03
DRAWN = 20
DTYPE_NAMES = ("fp32", "bf16")
#: seconds of a round, at least: one step of a small model is shorter than what disturbs it
SECONDS = 0.1


class Size(NamedTuple):
    """Of the transformers: width, layers, heads, words known, and words in each of two sequences; ViT's images in pixels. Of DLRM: rows of each of 26 tables,
    their width, rows of a batch; the MLP's hidden width."""

    width: int
    layers: int
    heads: int
    words: int
    length: int
    pixels: int
    table: int
    columns: int
    batch: int
    hidden: int


SIZES = {"small": Size(64, 1, 4, 320, 19, 32, 50, 16, 24, 40), "main": Size(768, 2, 12, 8192, 128, 224, 1000, 64, 256, 1024)}


class MLP(nn.Module):
    """Digits of 784 pixels."""

    def __init__(self, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.layers(x)


class DLRM(nn.Module):
    """Naumov et al., 2019, with a table of its own for each of 26 categories, as nn.Embedding has it. (`triport models dlrm` has them in one tensor.)"""

    def __init__(self, rows: int, columns: int, hidden: int, tables: int = 26, dense: int = 13):
        super().__init__()
        vectors = tables + 1
        self.tables = nn.ModuleList(nn.Embedding(rows, columns) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, hidden // 4), nn.ReLU(), nn.Linear(hidden // 4, columns), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(columns + vectors * (vectors - 1) // 2, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, hidden // 4), nn.ReLU(),
                                 nn.Linear(hidden // 4, 1))
        self.register_buffer("below", torch.tril_indices(vectors, vectors, -1))

    def forward(self, x, index):
        bottom = self.bottom(x)
        vectors = torch.stack([bottom, *(table(index[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.below[0], self.below[1]]
        return self.top(torch.cat([bottom, products], 1))


def _words(s: Size, g) -> tuple:
    return (torch.randint(s.words, (2, s.length), generator=g),)


def _bert(s: Size, g):
    from transformers import BertConfig, BertModel
    model = BertModel(BertConfig(hidden_size=s.width, num_hidden_layers=s.layers, num_attention_heads=s.heads, intermediate_size=4 * s.width, vocab_size=s.words,
                                 hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    return model, _words(s, g), lambda out: out.last_hidden_state


def _gpt2(s: Size, g):
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_embd=s.width, n_layer=s.layers, n_head=s.heads, vocab_size=s.words, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
                                       bos_token_id=0, eos_token_id=0))
    return model, _words(s, g), lambda out: out.logits


def _llama(s: Size, g):
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(hidden_size=s.width, num_hidden_layers=s.layers, num_attention_heads=s.heads, intermediate_size=s.width * 8 // 3, vocab_size=s.words,
                                         use_cache=False))
    return model, _words(s, g), lambda out: out.logits


def _vit(s: Size, g):
    from transformers import ViTConfig, ViTModel
    model = ViTModel(ViTConfig(hidden_size=s.width, num_hidden_layers=s.layers, num_attention_heads=s.heads, intermediate_size=4 * s.width, image_size=s.pixels,
                               hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    return model, (torch.randn(2, 3, s.pixels, s.pixels, generator=g),), lambda out: out.last_hidden_state


def _mlp(s: Size, g):
    return MLP(s.hidden), (torch.randn(s.batch, 784, generator=g),), lambda out: out


def _dlrm(s: Size, g):
    return DLRM(s.table, s.columns, s.hidden), (torch.randn(s.batch, 13, generator=g), torch.randint(s.table, (s.batch, 26), generator=g)), lambda out: out


#: name -> size and generator of inputs -> (the model, its inputs, what of its output is a tensor)
MODELS: dict[str, Callable] = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "vit": _vit, "mlp": _mlp, "dlrm": _dlrm}
PUBLISHED = ("bert", "gpt2", "llama", "vit")


def missing(name: str) -> str | None:
    """Why a model cannot be made here, if so."""
    if name in PUBLISHED and importlib.util.find_spec("transformers") is None:
        return f"{name} is of a package that is not installed: pip install transformers"
    return None


def inference(output, model, *inputs) -> list[torch.Tensor]:
    with torch.no_grad():
        return [output(model(*inputs))]


def step(output, weights, parameters, model, *inputs) -> torch.Tensor:
    """Forward and backward; the parameters' gradients are those of the output times `weights`, summed up."""
    for p in parameters:
        p.grad = None
    out = output(model(*inputs))
    (out * weights.to(out.dtype)).sum().backward()
    return out.detach()


def training(output, weights, parameters, model, *inputs) -> list[torch.Tensor]:
    """The output, and all gradients. That of a parameter that nothing came from, of BERT's pooler, is none or 0."""
    out = step(output, weights, parameters, model, *inputs)
    return [out, *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters)]


def study(name: str, what: str, dtype: str, size: str, device: str, seed: int, drawn: int = 0) -> Study:
    """A model's variants for a step, `what`: "inference" or "training". drawn: how many models and inputs of this seed were passed over, on which eager was so far off that nothing could be told."""
    from torch.utils.flop_counter import FlopCounterMode

    own = seed + 1_000_003 * drawn  # torch takes the low 32 bits
    v = Variants(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own)
        model, inputs, output = MODELS[name](of_size(SIZES, size), torch.Generator("cpu").manual_seed(own))
    model = model.to(DTYPES[dtype]).to(device).train(what == "training")
    inputs = tuple((x.to(DTYPES[dtype]) if x.is_floating_point() else x).to(device) for x in inputs)
    exact = copy.deepcopy(model).double()
    v.add("torch", model)
    v.compiled(model)
    if what == "inference":
        calls = {k: partial(inference, output, fn) for k, fn in v.calls.items()}
        turns, reference = {}, partial(inference, output, exact)
    else:
        with torch.no_grad():
            shape = output(model(*inputs)).shape
        weights = (torch.randn(shape, generator=torch.Generator("cpu").manual_seed(own)) / shape.numel()**0.5).to(device)
        mine, wide = list(model.parameters()), list(exact.parameters())
        calls = {k: partial(training, output, weights, mine, fn) for k, fn in v.calls.items()}
        turns = {k: partial(step, output, weights, mine, fn, *inputs) for k, fn in v.calls.items()}
        reference = partial(training, output, weights, wide, exact)
    measure = check.largest if what == "inference" else partial(check.of_step, single=dtype == "fp32")
    made = Study(name, f"{size} {what}", calls, inputs, reference, dtype=dtype, measure=measure, turns=turns, left_out=v.left_out)
    with FlopCounterMode(display=False) as counter:
        eager = made.call("torch")()
    made.flops = counter.get_total_flops()
    error = measure(eager, made.expected())
    if error > FARTHEST / 4 and drawn < DRAWN:
        return study(name, what, dtype, size, device, seed, drawn + 1)
    made.allowed = min(FARTHEST, max(2 * TOLERANCE[dtype], 4 * error))
    return made


def studies(size: str, device: str, seed: int, names=(), whats=(), dtypes=()):
    of_size(SIZES, size)
    for name in names or [n for n in MODELS if not missing(n)]:
        for what in whats or ("inference", "training"):
            for dtype in dtypes or DTYPE_NAMES:
                yield study(name, what, dtype, size, device, seed)


def steps(size: str, device: str, seed: int) -> dict:
    return study("mlp", "training", "fp32", size, device, seed).steps()


def add(parser):
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help=f"{', '.join(MODELS)}; repeatable (default: those that can be made here)")
    parser.add_argument("--step", action="append", default=[], metavar="NAME", help="inference or training; repeatable (default: both)")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME", help="fp32 or bf16; repeatable (default: both)")


def run(args) -> int:
    for given, known, word in ((args.model, MODELS, "model"), (args.step, ("inference", "training"), "step"), (args.dtype, DTYPE_NAMES, "dtype")):
        for name in given:
            if name not in known:
                raise Error(suggest(word, name, known))
    for name in args.model:
        if reason := missing(name):
            raise Unavailable(f"--model {name}: {reason}")
    if not args.model and any(map(missing, MODELS)):
        print(f"left out: {', '.join(n for n in MODELS if missing(n))}, of a package that is not installed: pip install transformers", file=sys.stderr)
    return common.measure(studies(args.size, args.device, args.seed, args.model, args.step, args.dtype), args, seconds=SECONDS)[0]
