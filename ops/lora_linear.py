"""lora_linear(x, w, a, b, s) = x w + s (x a) b: a linear layer whose weight w has an update of low rank, as LoRA's.

Two kernels: the first computes t = s (x a), rank numbers for each row. The second multiplies x w and adds t b to its accumulators before they are
stored, so nothing of the result's size is read, or written twice. The gradient of x is the same sum, of the transposes.
"""

from __future__ import annotations

import contextlib
import math

import torch
import triton
import triton.language as tl
from torch._library.triton import is_wrap_triton_enabled
from torch.autograd import profiler

from . import autocast, lora_gpu
from .autograd import added
from .checks import FLOATS, check, check_low_rank, check_number, check_product, check_tensors
from .dispatch import bare, direct, launch, replayed, watched, wrap_triton
from .layout import roomy, unexpanded
from .register import register, served
from .sizes import cdiv, known, next_power_of_2, planned
from .records import Case, Op, traffic
from .matmul import SMALLEST, _matmul_body, matmul_kernel, product_backward, product_jvp, tile_for
from .product import add_product, product_tile, tile_of_program
from ..backends.dispatch.replay import temporary


def reference(x, w, a, b, s=1.0):
    return x @ w + s * ((x @ a) @ b)


@triton.jit
def scaled_matmul_kernel(x_ptr, a_ptr, t_ptr, m, r, k, scale: tl.float64, stride_xm, stride_xk, stride_ak, stride_ar, BM: tl.constexpr,
                         BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """t = scale * x @ a."""
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_r = tile_of_program(tl.program_id(0), m, r, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    ranks = tile_r * BN + tl.arange(0, BN)
    acc = product_tile(x_ptr, a_ptr, m, r, k, stride_xm, stride_xk, stride_ak, stride_ar, rows, ranks, BK, ACC)
    out = t_ptr + rows.to(tl.int64)[:, None] * r + ranks[None, :]
    tl.store(out, (acc * tl.cast(scale, ACC)).to(t_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (ranks < r)[None, :])


@triton.jit
def sum_of_matmuls_kernel(x_ptr, w_ptr, t_ptr, b_ptr, out_ptr, m, n, k, r, stride_xm, stride_xk, stride_wk, stride_wn, stride_tm, stride_tr,
                          stride_br, stride_bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, ONCE: tl.constexpr,
                          GROUP: tl.constexpr):
    """out = x @ w + t @ b. ONCE: BR holds all of r, so there is no loop, which would copy the accumulators to its own."""
    ACC: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    acc = product_tile(x_ptr, w_ptr, m, n, k, stride_xm, stride_xk, stride_wk, stride_wn, rows, cols, BK, ACC)
    if ONCE:
        ranks = tl.arange(0, BR)
        t_ptrs = t_ptr + rows.to(tl.int64)[:, None] * stride_tm + ranks[None, :] * stride_tr
        b_ptrs = b_ptr + ranks[:, None] * stride_br + cols.to(tl.int64)[None, :] * stride_bn
        t = tl.load(t_ptrs, mask=(rows[:, None] < m) & (ranks[None, :] < r), other=0.0)
        b = tl.load(b_ptrs, mask=(ranks[:, None] < r) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(t, b, acc, input_precision="ieee", out_dtype=ACC)
    else:
        acc = add_product(acc, t_ptr, b_ptr, m, n, r, stride_tm, stride_tr, stride_br, stride_bn, rows, cols, BR)
    out = out_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def _case(m, k, n, r, device="", **kwargs):
    return Case(((m, k), (k, n), (k, r), (r, n)), kwargs, device=device)


CASES = tuple(_case(512, 1024, 1024, r) for r in (8, 16, 64)) + (_case(2048, 1024, 1024, 16), _case(333, 257, 511, 5, s=0.5),
                                                                _case(4096, 4096, 4096, 16, "cuda"))


def nbytes(x, w, a, b, s=1.0):
    return traffic(x, w, a, b) + x.numel() // x.shape[-1] * w.shape[1] * x.element_size()


def flops(x, w, a, b, s=1.0):
    m = x.numel() // x.shape[-1]
    return 2 * m * (w.numel() + a.numel() + b.numel())


def _launch_scaled(x: torch.Tensor, a: torch.Tensor, s: float) -> torch.Tensor:
    """s * x @ a, of matrices none of whose sizes is 0."""
    (m, k), r = x.shape, a.shape[1]
    t = torch.empty((m, r), dtype=x.dtype, device=x.device)
    tile = tile_for(x, a)
    if x.device.type != "cuda":  # whole vectors for pairs of bf16, which have no others, and panels that every target packs by vectors
        tile = {**tile, "BN": max(16 if x.element_size() == 2 else 32, tile["BN"])}
    launch(wrap_triton(scaled_matmul_kernel), (cdiv(m, tile["BM"]) * cdiv(r, tile["BN"]),), x, a, t, m, r, k, s,
           x.stride(0), x.stride(1), a.stride(0), a.stride(1), **tile)
    return t


def _launch_sum(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    """out = x @ w + t @ b, of matrices none of whose sizes is 0."""
    (m, k), (r, n) = x.shape, b.shape
    tile, plan = tile_for(x, w), planned(r)
    low = SMALLEST["cuda" if x.device.type == "cuda" else "cpu"]
    ranks = tile["BK"] if plan is None else min(tile["BK"], max(low, next_power_of_2(*plan)))
    launch(wrap_triton(sum_of_matmuls_kernel), (cdiv(m, tile["BM"]) * cdiv(n, tile["BN"]),), x, w, t, b, out, m, n, k, r,
           x.stride(0), x.stride(1), w.stride(0), w.stride(1), t.stride(0), t.stride(1), b.stride(0), b.stride(1), BR=ranks,
           ONCE=known(r) and r <= ranks, **tile)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as a matrix of its last dimension's rows."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _lora_linear_body(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    check("lora_linear", FLOATS, x=x, w=w, a=a, b=b)
    check_low_rank("lora_linear", x, w, a, b)
    shape = (*x.shape[:-1], w.shape[1])
    rows = _rows(x)
    if a.shape[1] == 0:
        return _matmul_body(rows, w).view(shape)
    if not is_wrap_triton_enabled() and lora_gpu.takes(rows, w, a, b):  # nobody traces
        return lora_gpu.product(rows, w, a, b, s)[0].view(shape)
    out = roomy(torch.empty(shape, dtype=x.dtype, device=x.device))
    if rows.shape[1] == 0:
        return out.zero_()
    if not (rows.shape[0] == 0 or w.shape[1] == 0):
        _launch_sum(rows, w, temporary(_launch_scaled(rows, a, s)), b, out)
    return out


_lora_linear = register("lora_linear", _lora_linear_body, scaled_matmul_kernel, sum_of_matmuls_kernel, matmul_kernel, *lora_gpu.KERNELS, by=True)


# --- derivatives: both kernels as ops of their own, so that what backward computes of low rank serves twice -----------------


def _scaled_matmul_body(a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    """s * a @ b."""
    check("scaled_matmul", FLOATS, a=a, b=b)
    check_product("scaled_matmul", a, b)
    if a.shape[0] == 0 or a.shape[1] == 0 or b.shape[1] == 0:
        return torch.zeros((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    return _launch_scaled(a, b, s)


def _sum_of_matmuls_body(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x @ w + t @ b."""
    if t.shape[1] == 0:
        return _matmul_body(x, w)
    if x.shape[1] == 0:
        return _matmul_body(t, b)
    out = roomy(torch.empty((x.shape[0], w.shape[1]), dtype=x.dtype, device=x.device))
    if not (x.shape[0] == 0 or w.shape[1] == 0):
        _launch_sum(x, w, t, b, out)
    return out


_scaled = register("scaled_matmul", _scaled_matmul_body, scaled_matmul_kernel)
_sum = register("sum_of_matmuls", _sum_of_matmuls_body, sum_of_matmuls_kernel, matmul_kernel)


# As the dispatcher calls them, but without it where nothing watches, as in a backward whose gradients need none themselves: it costs 20
# microseconds a call, and ten times that where a product has just had the caches.


@replayed(2)
def _matmul(a, b):
    return torch.ops.triport.matmul(a, b) if watched(a, b) else direct(_matmul_body, (a, b))


@replayed(2)
def _scaled_matmul(a, b, s):
    return torch.ops.triport.scaled_matmul(a, b, s) if watched(a, b) else direct(_scaled_matmul_body, (a, b), s)


@replayed(4)
def _sum_of_matmuls(x, w, t, b):
    return torch.ops.triport.sum_of_matmuls(x, w, t, b) if watched(x, w, t, b) else direct(_sum_of_matmuls_body, (x, w, t, b))


def _backward(kept, params, grad, needed):
    (x, w, a, b), s = kept, params[0]
    if not torch.is_grad_enabled() and bare(*kept, grad) and lora_gpu.takes(x, w, a, b):
        return _gradients_on_gpu(x, w, a, b, None, s, grad, needed)
    rows, grads = _rows(x), _rows(unexpanded(grad))
    u = _scaled_matmul(grads, b.T, s) if needed[0] or needed[2] else None
    return (_sum_of_matmuls(grads, w.T, u, a.T).view(x.shape) if needed[0] else None,
            _matmul(rows.T, grads) if needed[1] else None,
            _matmul(u.T, rows).T if needed[2] else None,  # so that x is read as it lies
            _matmul(_scaled_matmul(rows, a, s).T, grads) if needed[3] else None)


def _gradients_on_gpu(x, w, a, b, t, s, grad, needed):
    """As `_backward`, by kernels of lora_gpu.py. t: s x a, where forward kept it."""
    rows, grads = _rows(x), _rows(unexpanded(grad))
    gx = u = done = ga = gb = None
    with lora_gpu.on(x):
        if needed[0]:
            counters = lora_gpu.gradient_tiles(a.shape[0], b.shape[1], x.dtype == torch.float32) if needed[2] or needed[3] else 0
            gx, u, done = lora_gpu.product(grads, w.T, b.T, a.T, s, keep=needed[2], done=counters)
        elif needed[2]:
            u = _scaled_matmul(grads, b.T, s)
        if needed[3] and t is None:
            t = _scaled_matmul(rows, a, s)
        if needed[2] or needed[3]:
            ga, gb = lora_gpu.low_rank_gradients(rows, u, grads, t if needed[3] else None, done)
        return None if gx is None else gx.view(x.shape), _matmul(rows.T, grads) if needed[1] else None, ga, gb


def _forward(ctx, x, w, a, b, s):
    rows = _rows(x)
    with lora_gpu.on(x):
        out, t, _ = lora_gpu.product(rows, w, a, b, s, keep=ctx is not None and ctx.needs_input_grad[3])
    if ctx is not None:
        ctx.save_for_backward(x, w, a, b, t)
        ctx.s = s
        ctx.set_materialize_grads(False)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], w.shape[1])


def _backward_of_gpu(ctx, grad):
    if grad is None:
        return (None,) * 5
    *kept, t = ctx.saved_tensors
    needed = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled() or not bare(*kept, grad):  # gradients of gradients: t is no constant
        return *_backward(kept, (ctx.s,), grad, needed), None
    return *_gradients_on_gpu(*kept, t, ctx.s, grad, needed), None


#: calls on a GPU that nothing but autograd follows, without the dispatcher; called in autograd's graph as the registered op is
_OnGPU = type("triport_lora_linear_", (torch.autograd.Function,), {"forward": staticmethod(_forward), "backward": staticmethod(_backward_of_gpu)})


def _on_gpu(x, w, a, b, s):
    followed = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad or a.requires_grad or b.requires_grad)
    with profiler.record_function("triport::lora_linear") if profiler._is_profiler_enabled else contextlib.nullcontext():
        return _OnGPU.apply(x, w, a, b, s) if followed else _forward(None, x, w, a, b, s)


def _total(*pairs) -> torch.Tensor | None:
    """The sum of the products of at most two pairs, without those that lack a factor."""
    factors = [t for p, q in pairs if p is not None and q is not None for t in (p, q)]
    return (_sum_of_matmuls if len(factors) == 4 else _matmul)(*factors) if factors else None


def _jvp(inputs, out, tangents):
    (x, w, a, b, s, *_), (dx, dw, da, db) = inputs, tangents
    x, dx = _rows(x), None if dx is None else _rows(dx)
    u = added(None if dx is None else _scaled_matmul(dx, a, s), None if da is None else _scaled_matmul(x, da, s))
    t = None if db is None else _scaled_matmul(x, a, s)
    return added(_total((dx, w), (u, b)), _total((x, dw), (t, db))).view(out.shape)


def _scaled_backward(kept, params, grad, needed):
    (a, b), s = kept, params[0]
    return _scaled_matmul(grad, b.T, s) if needed[0] else None, _scaled_matmul(a.T, grad, s) if needed[1] else None


def _scaled_jvp(inputs, out, tangents):
    (a, b, s), (da, db) = inputs, tangents
    return added(None if da is None else _scaled_matmul(da, b, s), None if db is None else _scaled_matmul(a, db, s))


_lora_linear.derive(keep=lambda inputs, out: inputs[:4], backward=_backward, jvp=_jvp)
_lora_linear.autocast(autocast.lower)
_scaled.derive(keep=lambda inputs, out: inputs[:2], backward=_scaled_backward, jvp=_scaled_jvp)
_sum.derive(keep=lambda inputs, out: inputs[:4],
            backward=lambda kept, params, grad, needed: (*product_backward(*kept[:2], grad, needed[:2]),
                                                         *product_backward(*kept[2:], grad, needed[2:])),
            jvp=lambda inputs, out, tangents: added(product_jvp(inputs[:2], out, tangents[:2]), product_jvp(inputs[2:], out, tangents[2:])))


@replayed(4)
def lora_linear(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, s: float = 1.0) -> torch.Tensor:
    """x @ w + s * (x @ a) @ b. x: (..., K); w: K x N; a: K x R; b: R x N, any strides, all fp32, fp16, bf16 or fp64; s: a number. x @ a is
    scaled in fp32 (fp64 for fp64) and rounded to the dtype once. Returns (..., N), contiguous, of that dtype. Gradients are computed of what
    requires them alone: of a frozen w none.

    Raises `ArgumentError` for shapes that do not fit, other dtypes, an s that is no number, and mixed devices."""
    check_number("lora_linear", "s", s)
    if watched(x, w, a, b):
        check_tensors("lora_linear", x=x, w=w, a=a, b=b)
        if x.is_cuda and bare(x, w, a, b) and lora_gpu.accepts(x, w, a, b):
            return _on_gpu(x, w, a, b, float(s))
        return served("lora_linear", x, w, a, b, s)
    return direct(_lora_linear_body, (x, w, a, b), float(s))


OP = Op("lora_linear", lora_linear, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), dims="MxK,KxN,KxR,RxN")
