"""torch.compile of HuggingFace's models by Inductor's Triton kernels for the CPU: inference and a training step, against the model in float64.

`pip install transformers`, then `python docs/users/transformer.py [PART OF A NAME ...]`. The weights are random: nothing is downloaded."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch._inductor.config as inductor
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402

MODELS = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=176, num_hidden_layers=1, num_attention_heads=4,
                                                  num_key_value_heads=2)),
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=64, n_layer=1, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "BERT": lambda: BertForMaskedLM(BertConfig(vocab_size=320, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=176,
                                               hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
}


def compiled(model):
    """A model whose graphs are compiled to Triton kernels for the CPU; the setting has to hold when it is called."""
    torch._dynamo.reset()
    return torch.compile(model)


def inference(make):
    model = make().eval()
    wanted, tokens = copy.deepcopy(model).double(), torch.randint(0, 320, (2, 19))
    with inductor.patch(cpu_backend="triton"), torch.no_grad():
        return [(compiled(model)(input_ids=tokens).logits, wanted(input_ids=tokens).logits)]


def training(make):
    """A step of SGD: the loss, the gradients, the parameters after it."""
    model = make().train()
    wanted, tokens = copy.deepcopy(model).double(), torch.randint(0, 320, (2, 19))
    losses = []
    with inductor.patch(cpu_backend="triton"):
        for m, called in ((model, compiled(model)), (wanted, wanted)):
            losses.append(called(input_ids=tokens, labels=tokens).loss)
            losses[-1].backward()
            torch.optim.SGD(m.parameters(), lr=0.1).step()
    mine, theirs = ([p for p in m.parameters() if p.grad is not None] for m in (model, wanted))
    assert len(mine) == len(theirs) > 10
    # BERT's bias of keys starts at 0 and its gradient is 0 but for rounding, which has no error of its own: all of a model is one vector
    return [tuple(losses), *(tuple(torch.cat([of(p).flatten() for p in ps]) for ps in (mine, theirs)) for of in (lambda p: p.grad, lambda p: p))]


WAYS = {f"{name}, {what.__name__}": lambda make=make, what=what: what(make) for name, make in MODELS.items() for what in (inference, training)}

if __name__ == "__main__":
    sys.exit(checked.main(WAYS))
