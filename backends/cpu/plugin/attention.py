"""Attention of Inductor on the CPU: kernels of ours where torch's own takes two to five times as long.

Inductor leaves `aten._scaled_dot_product_flash_attention_for_cpu` and its backward to torch. With `cpu_backend = "triton"` they are lowered here, to the
templates of attention_source.py; products.py says for whom, and so does what follows.
"""

from __future__ import annotations

import functools
import math
import sys

from ... import of_torch
from . import products

#: the largest head: a tile of its accumulators stays in the caches
WIDEST = 256
#: rows and columns of a tile, fastest of thirteen over 128, 197 and 1024 of them (Zen 5; docs/performance/models.md)
ROWS, COLUMNS, CAUSAL_COLUMNS = 64, 128, 64
#: how much more than what is asked tiles may do in fp32, by AVX2 and on Intel's CPUs: 1.48 for 197 rows and columns
MOST_WORK = 1.3


def mend(module):
    """Lower attention. module: one of Inductor's that is imported behind its lowerings; a torch that was not tried, or lacks what is used here, is left alone."""
    if not of_torch.checked():
        return
    import torch
    try:
        lowerings = sys.modules["torch._inductor.lowering"].lowerings
        ops = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
               torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward}
        of = {op: products.ours_or_torchs("attention", lower, lowerings[op]) for op, lower in ops.items()}
    except (AttributeError, ImportError, KeyError):
        return
    lowerings.update(of)


def ours(dtype, causal: bool, backward: bool, work: float) -> bool:
    """Is it ours? As measured (docs/performance/models.md): on AMD's CPUs with AVX-512 it takes 0.38 to 0.74 of torch's time in fp32, in 16 bits down to a fifth; by AVX2 fp32 0.58 to 1.1 forward
    and 0.86 to 1.35 backward, the most where tiles do `work` times what is asked of them. On an Intel with AMX fp32 takes 0.57 to 0.93, and 1.15 to 1.41 with such tiles; bf16 backward
    0.17 to 0.58, forward 0.8 to 1.2: torch's. 16 bits are ours on any Intel where torch has no instructions for them."""
    import torch
    if products.maker() == "GenuineIntel":
        if dtype == torch.float32:
            return products.vector_bits() >= 512 and work < MOST_WORK
        return not products.multiplies(dtype) or backward and dtype == torch.bfloat16 and products.by_tiles(dtype)
    return products.maker() == "AuthenticAMD" and (dtype.itemsize == 2 or products.vector_bits() >= 512 or work < MOST_WORK and (causal or not backward))


def asked(query, key, value, dropout_p, causal, bias, scale, backward: bool) -> bool:
    """Is attention of these, batch x heads x rows x columns, lowered here? All sizes are known, and numbers of elements have 32 bits."""
    import torch
    operands = [query, key, value, *([] if bias is None else [bias])]
    if dropout_p or not (scale is None or isinstance(scale, (int, float)) and math.isfinite(scale)) or not products.serves(*operands):
        return False
    sizes = [[products.number(s) for s in x.get_size()] for x in operands]
    if any(None in s or 0 in s or math.prod(s) >= 1 << 31 for s in sizes) or any(len(s) != 4 for s in sizes[:3]) or len(sizes[-1]) not in (2, 4):
        return False
    (b, h, m, d), (*_, n, _) = sizes[:2]
    dtype = query.get_dtype()
    return (sizes[1] == sizes[2] == [b, h, n, d] and d <= WIDEST and m >= products.NARROW and n >= products.NARROW
            and dtype in (torch.float32, torch.bfloat16, torch.float16) and {key.get_dtype(), value.get_dtype()} == {dtype}
            and (bias is None or bias.get_dtype() in (dtype, torch.float32) and all(s in (1, t) for s, t in zip(sizes[3][::-1], (n, m, h, b))))
            and ours(dtype, causal, backward, _padded(m, ROWS) * _padded(n, _columns(causal)) / (m * n)))


def _columns(causal: bool) -> int:
    return CAUSAL_COLUMNS if causal else COLUMNS


def _padded(size: int, most: int) -> int:
    """Rows or columns that tiles have together."""
    tile = block(size, most)
    return -(-size // tile) * tile


def _forward(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """(the result, logarithms of the rows' sums), or None."""
    import torch
    if not asked(query, key, value, dropout_p, is_causal, attn_mask, scale, backward=False):
        return None
    q, k, v, *bias = _realized(query, key, value, attn_mask)
    out, lse = _promised()
    sums = [_empty(lse, torch.float32)] if _read(1) else []
    found = _chosen("attention", [q, k, v, *sums, *bias], _layout(out, q.get_dtype()), sums, _options(q, k, bias, is_causal, scale) | {"SUMMED": bool(sums)})
    return found, sums[0] if sums else None


def _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    """The gradients of query, key and value, or None."""
    import torch
    from torch._inductor.lowering import lowerings, to_dtype
    if not asked(query, key, value, dropout_p, is_causal, attn_mask, scale, backward=True) or grad_out.get_dtype() != query.get_dtype() or logsumexp.get_dtype() != torch.float32:
        return None
    aten = torch.ops.aten
    along = lowerings[aten.sum.dim_IntList](lowerings[aten.mul.Tensor](to_dtype(grad_out, torch.float32), to_dtype(out, torch.float32)), [-1])
    q, k, v, g, lse, delta, *bias = _realized(query, key, value, grad_out, logsumexp, along, attn_mask)
    of_q, of_k, of_v = _promised()
    options, dtype = _options(q, k, bias, is_causal, scale), q.get_dtype()
    grad_q = _chosen("attention_grad_q", [q, k, v, g, lse, delta, *bias], _layout(of_q, dtype), [], options)
    grad_v = _empty(of_v, dtype)
    grad_k = _chosen("attention_grad_kv", [q, k, v, g, lse, delta, grad_v, *bias], _layout(of_k, dtype), [grad_v], options)
    return grad_q, grad_k, grad_v


def _realized(*values) -> list:
    """Buffers, or views of them; those that are None left out."""
    from torch._inductor.select_algorithm import realize_inputs
    return [realize_inputs(x) for x in values if x is not None]


def _promised():
    """What torch says that this op returns: tensors of sizes and strides."""
    from torch._inductor.virtualized import V
    return V.graph.current_node.meta["val"]


def _read(n: int) -> bool:
    """Does anything read the op's n-th result?"""
    from torch._inductor.virtualized import V
    return any(len(u.args) < 2 or u.args[1] == n for u in V.graph.current_node.users)


def _layout(like, dtype):
    from torch._inductor.ir import FixedLayout
    return FixedLayout(like.device, dtype, [int(s) for s in like.shape], [int(s) for s in like.stride()])


def _empty(like, dtype):
    from torch._inductor.lowering import empty_strided
    return empty_strided([int(s) for s in like.shape], [int(s) for s in like.stride()], dtype=dtype, device=like.device)


def _options(q, k, bias, causal: bool, scale) -> dict:
    """The template's options for queries and keys."""
    m, n, d = (int(s) for s in (q.get_size()[2], k.get_size()[2], q.get_size()[3]))
    options = dict(BLOCK_M=block(m, ROWS), BLOCK_N=block(n, _columns(causal)), BLOCK_D=_power_of_2(d), CAUSAL=bool(causal),
                   SCALE=1 / math.sqrt(d) if scale is None else float(scale), BIASED=bool(bias))
    for x in bias:
        strides = [0 if int(s) == 1 else int(t) for s, t in zip(x.get_size(), x.get_stride())]
        options |= dict(zip(("BIAS_N", "BIAS_M", "BIAS_H", "BIAS_B"), [*strides[::-1], 0, 0]))
    return options


def block(size: int, most: int) -> int:
    """Rows or columns of a tile: half of the most where whole tiles would be a tenth more of them."""
    tile, half = min(most, _power_of_2(size)), max(1, min(most, _power_of_2(size)) // 2)
    return half if -(-size // tile) * tile > 1.1 * (-(-size // half) * half) else tile


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _chosen(name: str, inputs: list, layout, written: list, options: dict):
    """A template's node. written: those of `inputs` that it writes."""
    choices = []
    why = _template(name).maybe_append_choice(choices, input_nodes=inputs, layout=layout, mutated_inputs=written or None, num_stages=1, num_warps=1, **options)
    if not choices:
        raise ValueError(str(why))
    return products.selected(f"triport_{name}", choices, inputs, layout)


@functools.cache
def _template(name: str):
    from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

    from . import attention_source as sources
    source, along = {"attention": (sources.FORWARD, "BLOCK_M"), "attention_grad_q": (sources.GRADIENT_Q, "BLOCK_M"),
                     "attention_grad_kv": (sources.GRADIENTS_KV, "BLOCK_N")}[name]

    @SymbolicGridFn
    def grid(b, h, m, d, meta, *, cdiv):
        return cdiv(m, meta[along]), b * h, 1

    return TritonTemplate(name=f"triport_{name}", grid=grid, source=source)
