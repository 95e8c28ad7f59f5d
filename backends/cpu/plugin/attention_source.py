"""Attention as Inductor's templates have it: Triton's source of softmax(scale q k^T + bias) v and of its gradients.

Forward goes through the keys a block at a time with a running maximum and sum of each row (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018; Dao et al., "FlashAttention", 2022) and leaves each row's logarithm of its sum of exponentials, by which backward computes the probabilities
anew: once by rows for q's gradient, once by columns for those of k and v. Exponentials are of base 2: scores are multiplied by log2(e) with their scale, but with
a bias once the maximum is off, for the least finite number, which masks are made of, times that is infinite. Rows that see nothing are zeros. Options: BLOCK_M, BLOCK_N, BLOCK_D (powers of two),
SCALE, CAUSAL, SUMMED (whether forward leaves the sums), BIASED, and the bias's strides BIAS_B, BIAS_H, BIAS_M, BIAS_N in elements, 0 where it is the same along a dimension.
"""

from __future__ import annotations

_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453

_UNITS = f"""{{% set in_2 = "" if BIASED else " * {_LOG2E}" %}}{{% set to_2 = " * {_LOG2E}" if BIASED else "" %}}{{% set from_2 = "" if BIASED else " * {_LN2}" %}}"""

_SIZES = """
    H = {{size("Q", 1)}}
    M = {{size("Q", 2)}}
    N = {{size("K", 2)}}
    D = {{size("Q", 3)}}
    block = tl.program_id(0)
    idx_b = tl.program_id(1) // H
    idx_h = tl.program_id(1) % H
    b = idx_b.to(tl.int64)
    h = idx_h.to(tl.int64)
    ds = tl.arange(0, BLOCK_D)
"""


def _head(name: str) -> str:
    """A tensor's address for this program's head."""
    return f'    {name} += b * {{{{stride("{name}", 0)}}}} + h * {{{{stride("{name}", 1)}}}}\n'


def _tile(var: str, name: str, at: str, limit: str, turned: bool = False, indent: int = 4) -> str:
    """Load rows `at` of a tensor, one column each where it is turned."""
    rows, cols = (f"{at}[None, :]", "ds[:, None]") if turned else (f"{at}[:, None]", "ds[None, :]")
    return (f'{" " * indent}{var} = tl.load({name} + {rows}.to(tl.int64) * {{{{stride("{name}", 2)}}}} + {cols}.to(tl.int64) * {{{{stride("{name}", 3)}}}}, '
            f'mask=({rows} < {limit}) & ({cols} < D), other=0.0)\n')


def _scores(left: str, right: str, rows: str, cols: str, exponential: str) -> str:
    """Scores as `s`, whether they count as `inside`, and what follows."""
    return f"""
        s = tl.dot({left}, {right}, input_precision="ieee", out_dtype=tl.float32) * (SCALE{{{{in_2}}}})
        inside = ({rows} < M) & ({cols} < N)
{{% if BIASED %}}
        s += tl.load(BIAS + b * BIAS_B + h * BIAS_H + {rows}.to(tl.int64) * BIAS_M + {cols}.to(tl.int64) * BIAS_N, mask=inside, other=0.0).to(tl.float32)
{{% endif %}}
{{% if CAUSAL %}}
        inside = inside & ({cols} <= {rows})
{{% endif %}}
{exponential}"""


def _kernel(*names: str, sums: bool = False) -> str:
    """The kernel's head, of tensors of these names. sums: with rows' sums where SUMMED."""
    last = ' + ("LSE",) * SUMMED' if sums else ""
    return f"{_UNITS}{{{{def_kernel(*({names!r}{last} + ('BIAS',) * BIASED))}}}}" + _SIZES + "".join(map(_head, names))


#: for each block of keys that this program's rows see; what it computes is added up in `acc`
_KEYS = """
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
{% if CAUSAL %}
    end = min(N, (block + 1) * BLOCK_M)
{% else %}
    end = N
{% endif %}
    for start in range(0, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
"""


def _kept(at: str, limit: str, more: str = "") -> str:
    """The end of a kernel: `acc` becomes its rows `at` of the result. more: what it stores besides, at idx_m and idx_d where `mask`."""
    return f"""
    idx_m = {at}[:, None]
    idx_d = ds[None, :]
    mask = (idx_m < {limit}) & (idx_d < D)
{more}    {{{{store_output(("idx_b", "idx_h", "idx_m", "idx_d"), "acc", "mask", val_shape=("BLOCK_{limit}", "BLOCK_D"))}}}}
"""


FORWARD = (_kernel("Q", "K", "V", sums=True) + """
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
""" + _tile("q", "Q", "rows", "M") + """
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
""" + _KEYS + _tile("k", "K", "cols", "N", turned=True, indent=8)
           + _scores("q", "k", "rows[:, None]", "cols[None, :]", """        s = tl.where(inside, s, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        shift = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp2((s - shift[:, None]){{to_2}})
        kept = tl.exp2((most - shift){{to_2}})
        total = total * kept + tl.sum(p, 1)
""") + _tile("v", "V", "cols", "N", indent=8) + f"""
        acc = tl.dot(p.to(v.dtype), v, acc * kept[:, None], input_precision="ieee", out_dtype=tl.float32)
        most = now
{{% if SUMMED %}}
    LSE += b * {{{{stride("LSE", 0)}}}} + h * {{{{stride("LSE", 1)}}}} + rows * {{{{stride("LSE", 2)}}}}
    tl.store(LSE, most{{{{from_2}}}} + tl.log2(total) * {_LN2}, mask=rows < M)
{{% endif %}}
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
""" + _kept("rows", "M"))

_PROBABILITIES = """        p = tl.where(inside, tl.exp2((s - lse{at}){{to_2}}), 0.0)
"""


def _statistics(indent: int) -> str:
    """Rows' logarithms of sums, where nothing was added up such that probabilities are 0, and how much of each gradient is along its probabilities."""
    return (f'{" " * indent}lse = tl.load(LSE + rows * {{{{stride("LSE", 2)}}}}, mask=rows < M, other=0.0){{{{in_2}}}}\n'
            f'{" " * indent}lse = tl.where(lse == float("-inf"), float("inf"), lse)\n'
            f'{" " * indent}delta = tl.load(DELTA + rows * {{{{stride("DELTA", 2)}}}}, mask=rows < M, other=0.0)\n')


GRADIENT_Q = (_kernel("Q", "K", "V", "G", "LSE", "DELTA") + """
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
""" + _tile("q", "Q", "rows", "M") + _tile("g", "G", "rows", "M") + _statistics(4) + """
""" + _KEYS + _tile("kt", "K", "cols", "N", turned=True, indent=8) + _tile("vt", "V", "cols", "N", turned=True, indent=8)
              + _scores("q", "kt", "rows[:, None]", "cols[None, :]", _PROBABILITIES.replace("{at}", "[:, None]")) + """
        dp = tl.dot(g, vt, input_precision="ieee", out_dtype=tl.float32)
""" + _tile("k", "K", "cols", "N", indent=8) + """
        acc = tl.dot((p * (dp - delta[:, None])).to(k.dtype), k, acc, input_precision="ieee", out_dtype=tl.float32)
    acc *= SCALE
""" + _kept("rows", "M"))

GRADIENTS_KV = (_kernel("Q", "K", "V", "G", "LSE", "DELTA", "GV") + """
    cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
""" + _tile("k", "K", "cols", "N") + _tile("v", "V", "cols", "N") + """
    acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    gv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
{% if CAUSAL %}
    begin = block * BLOCK_N // BLOCK_M * BLOCK_M
{% else %}
    begin = 0
{% endif %}
    for start in range(begin, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
""" + _tile("qt", "Q", "rows", "M", turned=True, indent=8) + _statistics(8)
                + _scores("k", "qt", "rows[None, :]", "cols[:, None]", _PROBABILITIES.replace("{at}", "[None, :]")) + _tile("g", "G", "rows", "M", indent=8) + """
        gv = tl.dot(p.to(g.dtype), g, gv, input_precision="ieee", out_dtype=tl.float32)
""" + _tile("gt", "G", "rows", "M", turned=True, indent=8) + """
        dp = tl.dot(v, gt, input_precision="ieee", out_dtype=tl.float32)
""" + _tile("q", "Q", "rows", "M", indent=8) + """
        acc = tl.dot((p * (dp - delta[None, :])).to(q.dtype), q, acc, input_precision="ieee", out_dtype=tl.float32)
    acc *= SCALE
""" + _kept("cols", "N", """    tl.store(GV + idx_m.to(tl.int64) * {{stride("GV", 2)}} + idx_d * {{stride("GV", 3)}}, gv.to(GV.dtype.element_ty), mask=mask)
"""))
