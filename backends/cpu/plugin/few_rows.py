"""Products of up to eight rows with a matrix whose columns lie along K, as the weights of `nn.Linear` do, for Inductor: a column of it is read once, where it lies, for all rows, and several side by side
(`plan/order.py`, `lines_abreast`), where a tile would turn the matrix first. What `lines_kernel` and `eight_lines_kernel` of ops/thin.py do, as a template that takes in what follows.
"""

from __future__ import annotations

import functools

_SOURCE = r"""
{{def_kernel("A", "B")}}
    M = {{size("A", -2)}}
    N = {{size("B", -1)}}
    K = {{size("A", -1)}}
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    b_ptrs = B + cols.to(tl.int64)[:, None] * {{stride("B", -1)}} + ks[None, :]
{% for r in range(ROWS) %}
    acc{{r}} = tl.zeros((BLOCK_N,), dtype=tl.float32)
{% endfor %}
    for start in range(0, K, BLOCK_K):
        inside = ks < K - start
        b = tl.load(b_ptrs, mask=(cols < N)[:, None] & inside[None, :], other=0.0).to(tl.float32)
{% for r in range(ROWS) %}
        terms{{r}} = tl.load(A + {{r}} * {{stride("A", -2)}} + start + ks, mask=inside, other=0.0).to(tl.float32)[None, :] * b
{% endfor %}
{% if ROWS == 1 %}
        acc0 += tl.sum(terms0, 1)
{% else %}
        sums = tl.reduce(({% for r in range(ROWS) %}terms{{r}}, {% endfor %}), 1, each_sum)
{% for r in range(ROWS) %}
        acc{{r}} += sums[{{r}}]
{% endfor %}
{% endif %}
        b_ptrs += BLOCK_K
    idx_m = tl.arange(0, BLOCK_M)[:, None]
    idx_n = cols[None, :]
    mask = (idx_m < M) & (idx_n < N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
{% for r in range(ROWS) %}
    acc = tl.where(idx_m == {{r}}, acc{{r}}[None, :], acc)
{% endfor %}
    {{store_output(("idx_m", "idx_n"), "acc", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
{% if ROWS > 1 %}

@triton.jit
def each_sum({% for x in "ab" %}{% for r in range(ROWS) %}{{x}}{{r}}, {% endfor %}{% endfor %}):
    return {% for r in range(ROWS) %}a{{r}} + b{{r}}, {% endfor %}

{% endif %}
"""

#: rows at most; terms at least; terms that are a tile's at most of one row, of few and of more, whose pieces are to stay in the first cache (ops/thin.py has what was measured)
ROWS, TERMS, LONGEST = 8, 256, {1: 1 << 16, 2: 2048, 4: 1024, 8: 512}


def goes(m: int, k: int, a_strides, b_strides) -> bool:
    """Do m rows of k terms go this way? By the strides of both factors, in elements."""
    return m <= ROWS and k >= TERMS and a_strides[1] == 1 and b_strides[0] == 1


def options(m: int, k: int, columns: int) -> dict[str, int]:
    """The template's, for m rows of k terms, by so many columns a program."""
    height = 1 << (m - 1).bit_length()
    return {"ROWS": m, "BLOCK_M": height, "BLOCK_N": columns, "BLOCK_K": min(LONGEST[height], 1 << (k - 1).bit_length())}


@functools.cache
def template():
    """Inductor's. Options: ROWS, the powers of two BLOCK_M (no fewer), BLOCK_N and BLOCK_K."""
    from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

    @SymbolicGridFn
    def grid(m, n, meta, *, cdiv):
        return cdiv(n, meta["BLOCK_N"]), 1, 1

    return TritonTemplate(name="triport_few_rows", grid=grid, source=_SOURCE)
