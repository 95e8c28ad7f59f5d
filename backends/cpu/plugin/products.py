"""Matrix products of Inductor on the CPU: kernels with the tiles of `ops.matmul`, which take in what follows a product, where torch's own are slower.

Inductor leaves `aten.mm`, `addmm` and `bmm` to the libraries that torch calls, and with `max_autotune` times templates beside them whose tiles are made for
GPUs. With `cpu_backend = "triton"` they are lowered here, to a template with this package's loop over K, masks and tiles; what is computed element by
element from a product becomes part of its kernel. With `max_autotune` a few tiles are timed beside torch's product, without it `ours` decides.
`max_autotune_gemm_backends` without "TRITON" leaves all to torch.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
import warnings
from pathlib import Path

from . import few_rows
from ... import of_torch

#: Inductor's modules that register the lowerings -> what of them becomes ours, and what has factors that may be 0
MODULES = {"torch._inductor.kernel.mm": (("mm", "addmm"), ("addmm",)), "torch._inductor.kernel.bmm": (("bmm",), ("baddbmm",))}
DECOMPOSITIONS = "torch._inductor.decomposition"
#: rows and columns from which on a product is ours: with fewer a tile is mostly empty (fp32, 4096 x 4096, two Zen 3 cores: of MKL's speed 0.4 with one row, 0.8
#: with two, 1.5 with four); rows by lines (`few_rows`), and those that torch has no instructions for, are in any case
NARROW = 4
#: multiplications of a batch from which on ours is as fast where torch has instructions, too: four of 32 x 16 by 16 x 32 take ours 9.5 us and MKL 7.2, eight of
#: 64 x 32 by 32 x 64 40 and 48
FEWEST = 1 << 18
#: tiles that `max_autotune` times
TIMED = 4

# what tile_of_program and product_tile of ops/product.py do
_SOURCE = r"""
{{def_kernel("A", "B")}}
    M = {{size("A", -2)}}
    N = {{size("B", -1)}}
    K = {{size("A", -1)}}
    stride_am = {{stride("A", -2)}}
    stride_ak = {{stride("A", -1)}}
    stride_bk = {{stride("B", -2)}}
    stride_bn = {{stride("B", -1)}}
    pid = tl.program_id(0)
{% if ONE_HIGH %}
    rows = tl.arange(0, BLOCK_M)
    cols = pid * BLOCK_N + tl.arange(0, BLOCK_N)
{% else %}
    in_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    group = pid // in_group
    height = min(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    rows = (group * GROUP_M + (pid % in_group) % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (pid % in_group) // height * BLOCK_N + tl.arange(0, BLOCK_N)
{% endif %}
    ks = tl.arange(0, BLOCK_K)
{% if BATCHED %}
    idx_q = tl.program_id(1)
    A += idx_q.to(tl.int64) * {{stride("A", 0)}}
    B += idx_q.to(tl.int64) * {{stride("B", 0)}}
{% endif %}
    a_ptrs = A + rows.to(tl.int64)[:, None] * stride_am + ks[None, :].to(tl.int64) * stride_ak
    b_ptrs = B + ks[:, None].to(tl.int64) * stride_bk + cols.to(tl.int64)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = K - start
        a = tl.load(a_ptrs, mask={% if not EVEN_M %}(rows[:, None] < M) & {% endif %}(ks[None, :] < inside), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < inside){% if not EVEN_N %} & (cols[None, :] < N){% endif %}, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)
        a_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_ak
        b_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_bk
    idx_m = rows[:, None]
    idx_n = cols[None, :]
    mask = {% if EVEN_M and EVEN_N %}tl.full((1, 1), True, tl.int1){% elif EVEN_M %}idx_n < N{% elif EVEN_N %}idx_m < M{% else %}(idx_m < M) & (idx_n < N){% endif %}

    {{store_output(("idx_q", "idx_m", "idx_n") if BATCHED else ("idx_m", "idx_n"), "acc", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
"""


def mend(module):
    """Lower the products of one of `MODULES`, which has run; a torch that was not tried, or lacks what is used here, is left alone."""
    if not of_torch.checked():
        return
    try:
        if module.__name__ == DECOMPOSITIONS:
            _change(module.decompositions, "addmm", undivided)
            return
        lowerings = sys.modules["torch._inductor.lowering"].lowerings
        ours, scaled = MODULES[module.__name__]
        of = {name: _lowering(name, module) for name in ours}
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return
    for name in scaled:
        _change(lowerings, name, without_nothing)
    for name, lowering in of.items():
        _change(lowerings, name, lowering)


def _change(table: dict, name: str, how):
    """Put how(function) in the place of what a table has for an operator and its usual overload."""
    import torch
    op = getattr(torch.ops.aten, name)
    for overload in (op, op.default):
        if overload in table:
            table[overload] = how(table[overload])


def without_nothing(original):
    """torch's lowering of addmm or baddbmm, where a factor is 0 by what eager calls: NaN and infinities of what it is for do not count there, and the template that is timed beside it multiplies them."""
    @functools.wraps(original)
    def lowered(*args, **kwargs):
        if not _scales_away(kwargs) or not serves(*args):
            return original(*args, **kwargs)
        from torch._inductor import config
        with config.patch(max_autotune=False, max_autotune_gemm=False):
            return original(*args, **kwargs)

    return lowered


def undivided(decomposition):
    """torch's decomposition of addmm, which writes one of a single row as sums, to which it adds 0 times the bias, too; here that one is left whole."""
    @functools.wraps(decomposition)
    def written(bias, *args, **kwargs):
        if _scales_away(kwargs) and bias.device.type == "cpu" and sys.modules["torch._inductor.config"].cpu_backend == "triton":
            return NotImplemented
        return decomposition(bias, *args, **kwargs)

    return written


def _scales_away(factors: dict) -> bool:
    """Is the bias or the product of no account?"""
    return any(factors.get(name, 1) == 0 for name in ("beta", "alpha"))


def _lowering(name: str, module):
    """torch's lowering of aten.mm, addmm or bmm -> ours, which falls back on it."""
    from torch._inductor.kernel.mm_common import addmm_epilogue, mm_args
    torchs = getattr(module, f"aten_{name}")

    def lowering(original):
        def lower(*args, **kwargs):
            how = {k: kwargs.get(k, 1) for k in ("beta", "alpha")} if name == "addmm" else {}
            if set(kwargs) - {*how, "layout"} or len(args) != (3 if name == "addmm" else 2) or _scales_away(how) or not asked(name, *args):
                return None
            return chosen_of(*args, layout=kwargs.get("layout"), **how)

        def chosen_of(*args, layout, **how):
            """The product's node, or None where it is torch's."""
            *bias, a, b = args
            m, n, k, layout, a, b, *wide = mm_args(a, b, *bias, layout=layout)
            if not timed() and _turned(a):
                if name != "bmm" and copied(layout.dtype, int(m), int(k), int(n)):
                    a = sys.modules["torch._inductor.ir"].ExternKernel.require_contiguous(a)
                elif multiplies(layout.dtype) and not _turned_as_well(layout.dtype):
                    return None
            more = {"prefix_args": 1, "epilogue_fn": addmm_epilogue(layout.dtype, **how), "epilogue_fn_hash": f"addmm {layout.dtype} {how}"} if bias else {}
            choices = [torchs.bind((*bias, a, b), layout, tuple(how), **how)] if timed() and listed("ATEN") else []
            more |= {"input_nodes": (*wide, a, b), "layout": layout, "num_stages": 1, "num_warps": 1}
            lines = name != "bmm" and _by_lines(a, b)
            if lines:
                few_rows.template().maybe_append_choice(choices, **few_rows.options(int(m), int(k), _thin().lines_each(int(n))), **more)
            for bm, bn, bk, group in tiles(a.get_dtype(), _count(a), int(m), int(n), int(k), a.get_stride()[-1] == 1) if timed() or not lines else ():
                _template(name == "bmm").maybe_append_choice(choices, BLOCK_M=bm, BLOCK_N=bn, BLOCK_K=bk, GROUP_M=group, ONE_HIGH=int(m) <= bm, EVEN_M=int(m) % bm == 0, EVEN_N=int(n) % bn == 0,
                                                             BATCHED=name == "bmm", **more)
            return selected(name, choices, [*wide, a, b], layout) if choices else None

        return ours_or_torchs("matrix products", lower, original)

    return lowering


def ours_or_torchs(what: str, lower, original):
    """A lowering: lower(*args, **kwargs), or `original`'s answer where that gives None, or this torch does not take what it makes."""
    @functools.wraps(original)
    def lowered(*args, **kwargs):
        try:
            found = lower(*args, **kwargs)
        except (AssertionError, AttributeError, ImportError, KeyError, NotImplementedError, TypeError, ValueError) as e:
            refused(what, f"{type(e).__name__}: {e}")
            found = None
        return original(*args, **kwargs) if found is None else found

    return lowered


def selected(name: str, choices: list, inputs: list, layout):
    """The node of the choice that Inductor makes."""
    chosen = sys.modules["torch._inductor.select_algorithm"].autotune_select_algorithm(name, choices, inputs, layout)
    return chosen[0] if isinstance(chosen, tuple) else chosen  # torch 2.13 says more than 2.11


@functools.cache
def refused(what: str, why: str):
    """Say once that this torch does not take `what` of ours."""
    import torch
    warnings.warn(f"triport: torch {torch.__version__}'s Inductor does not take {what} of triport ({why}), torch's own does it. "
                  'torch._inductor.config.max_autotune_gemm_backends = "ATEN" asks for that without this warning', RuntimeWarning, stacklevel=2)


@functools.cache
def _template(batched: bool):
    """Inductor's template, of two matrices or of two batches of them."""
    from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

    @SymbolicGridFn
    def grid(*sizes, cdiv):
        *batch, m, n, meta = sizes
        return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]), *(batch or (1,)), 1

    return TritonTemplate(name="triport_bmm" if batched else "triport_mm", grid=grid, source=_SOURCE)


def asked(name: str, *args) -> bool:
    """Is mm, addmm or bmm of these, of the bias, if there is one, and two matrices or batches of them, lowered here? Sizes are known, dtypes one that `tl.dot` widens."""
    import torch
    if not serves(*args):
        return False
    dtypes = {x.get_dtype() for x in args}
    sizes = [number(s) for x in args[-2:] for s in x.get_size()]
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.bfloat16, torch.float16} or None in sizes or 0 in sizes:
        return False
    *batch, m, k, n = (*map(int, args[-2].get_size()), int(args[-1].get_size()[-1]))
    if n < NARROW or math.prod(batch) * m * n >= 1 << 31:  # the template's indices have 32 bits
        return False
    wide = m >= NARROW or not multiplies(*dtypes)
    if wide and (timed() or ours(name, *dtypes, math.prod(batch) * m * n * k)):
        return True
    if not _by_lines(*args[-2:]):
        return False
    return timed() or ours(name, *dtypes, m * n * k) or m >= NARROW and maker() == "GenuineIntel"  # with one thread as well


def _by_lines(a, b) -> bool:
    """Is a product one of few rows that goes by the right factor's lines?"""
    dtype, size = a.get_dtype(), a.get_size()
    if len(size) != 2 or dtype.itemsize == 2 and multiplies(dtype):
        return False
    try:
        strides = a.get_stride(), b.get_stride()
    except NotImplementedError:  # of what is not in memory yet, where nobody has asked how it is to lie
        return False
    return few_rows.goes(int(size[0]), int(size[1]), *strides)


def serves(*operands) -> bool:
    """Are these on the CPU, Inductor's kernels for it Triton's, and kernels of Triton allowed for products?"""
    config = sys.modules["torch._inductor.config"]
    return getattr(config, "cpu_backend", "") == "triton" and listed("TRITON") and all(x.get_device().type == "cpu" for x in operands)


def number(size) -> int | None:
    """A size that is known when a model is compiled."""
    return int(size) if isinstance(size, int) or getattr(size, "is_Integer", False) else None


def listed(backend: str, of: str = "max_autotune_gemm_backends") -> bool:
    """Does the user let a backend multiply? torch's lists are for `max_autotune`."""
    return backend in [x.strip().upper() for x in getattr(sys.modules["torch._inductor.config"], of).split(",")]


def timed() -> bool:
    """Does Inductor time what it chooses among?"""
    config = sys.modules["torch._inductor.config"]
    return config.max_autotune or config.max_autotune_gemm


def ours(name: str, dtype, multiplications: int) -> bool:
    """Is our mm, addmm or bmm the faster one, where nothing is timed? As measured on x86 (docs/performance/models.md): where torch has no instructions for a 16-bit
    dtype its product takes 3 to 50 times as long. Else batches are ours in fp32, and in bf16 on Intel's, but for those of next to nothing (docs/performance/models.md); two matrices on AMD's CPUs, and on
    Intel's with more than one thread (ours 1.0 to 1.9 on sixteen, whole models on two 1.03 to 1.34 of what they are with torch's, 0.6 to 1.0 on one). Other CPUs were not measured."""
    import torch
    vendor = maker()
    if vendor not in ("AuthenticAMD", "GenuineIntel"):
        return False
    if not multiplies(dtype):
        return True
    if name == "bmm":
        return (dtype.itemsize == 4 or vendor == "GenuineIntel" and dtype is torch.bfloat16) and multiplications >= FEWEST
    return vendor == "AuthenticAMD" or _tiles().workers() > 1


def _turned_as_well(dtype) -> bool:
    """Are our products of a dtype that torch has instructions for the faster ones also with a left factor that is transposed? MKL's on AMD's CPUs take 0.93 to 1.5 of our time in fp32; in 16 bits oneDNN
    takes 0.65 to 1.24 of it."""
    return dtype.itemsize == 4 and maker() == "AuthenticAMD"


@functools.cache
def multiplies(dtype) -> bool:
    """Has torch's library for products instructions of this CPU for a dtype? For 16 bits it is oneDNN, which takes bf16 on any AVX-512, but widens it there where it has no instruction
    for it (two Ice Lake cores: 60 GFLOP/s, and 230 in fp32)."""
    import torch
    if dtype == torch.float32:
        return True
    if dtype == torch.bfloat16 and maker() and not _straight().by_pairs():
        return False
    asks = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    return torch.backends.mkldnn.is_available() and bool(getattr(torch.ops.mkldnn, asks, lambda: True)())


@functools.cache
def maker() -> str:
    """Who made an x86 CPU, as Linux says it; nothing for others."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def vector_bits() -> int:
    """Of this machine's registers."""
    from ..llvm.targets import native
    return native().vector_bits


def by_tiles(dtype) -> bool:
    """Has this machine AMX's tiles for a dtype?"""
    return _tiles().by_tiles(dtype)


def _count(a) -> int:
    """The matrices of a batch, or of none."""
    return math.prod(map(int, a.get_size()[:-2]))


def _turned(a) -> bool:
    """Is a matrix the transpose of what lies in memory? As the left factor it is turned anew for each column of tiles, or copied first, by whatever kernel reads it anyway."""
    *_, down, across = a.get_stride()
    return across != 1 and down == 1


def copied(dtype, m: int, k: int, n: int) -> bool:
    """Is a transposed left factor, m x k, of a product with n columns copied first, by whatever kernel reads it anyway? On an Intel, where torch has instructions, torch's product of it as it
    lies is as fast (training of six models in bf16 0.94 to 1.04 of what it was)."""
    return (maker() == "AuthenticAMD" or not multiplies(dtype)) and _straight().pays(dtype, m, k, n)


def _tiles():
    """What chooses the op's tiles, by table and machine."""
    return importlib.import_module("....ops.tiles", __package__)


def _thin():
    """The op's products of few lines."""
    return importlib.import_module("....ops.thin", __package__)


def _straight():
    """What tells whether a transposed factor is copied."""
    return importlib.import_module("....ops.straight", __package__)


def tiles(dtype, count: int, m: int, n: int, k: int, straight: bool) -> list[tuple[int, int, int, int]]:
    """(BM, BN, BK, GROUP) for so many products of m x k by k x n: what `ops.matmul` takes, and where tiles are timed some more. straight: the left factor's lines are read along K."""
    of_op, found = _tiles(), []
    speeds = of_op.freely(dtype, m, n, k, of_op.workers(), count, straight)
    m, n = of_op.held(dtype, m, n)
    while len(found) < (TIMED if timed() else 1) and speeds:
        tile = of_op.chosen_tile(True, of_op.workers(), m, n, k, speeds, count)
        found.append((tile["BM"], tile["BN"], tile["BK"], tile["GROUP"]))
        speeds = tuple(t for t in speeds if of_op.clipped(t, m, n, k) != found[-1][:3])
    return found
