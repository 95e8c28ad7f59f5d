"""lora_linear(x, w, a, b, s) = x w + s (x a) b: a linear layer whose weight w has an update of low rank, as LoRA's.

Two kernels: the first computes t = s (x a), rank numbers for each row. The second multiplies x w and adds t b to its accumulators before they are
stored, so nothing of the result's size is read, or written twice. The gradient of x is the same sum, of the transposes.
"""

from __future__ import annotations

import contextlib
import functools
import math

import torch
from torch.autograd import profiler

from . import autocast, batching, launches, lora_gpu, lora_plain
from .autograd import added
from .checks import FLOATS, check, check_low_rank, check_number, check_product, check_tensors
from .dispatch import PLAIN, bare, compiling, direct, replayed, watched
from .distributed import reshaped
from .layout import roomy, unexpanded
from .register import register, served
from .lora_plain import scaled_matmul_kernel, sum_of_matmuls_kernel
from .records import Case, Op, traffic
from .matmul import _matmul_body, matmul_kernel, multiply, product_backward, product_jvp
from ..backends.dispatch.replay import temporary
from ..backends.of_torch import is_wrap_triton_enabled


def reference(x, w, a, b, s=1.0):
    return x @ w + s * ((x @ a) @ b)


def _case(m, k, n, r, device="", **kwargs):
    return Case(((m, k), (k, n), (k, r), (r, n)), kwargs, device=device)


CASES = tuple(_case(512, 1024, 1024, r) for r in (8, 16, 64)) + (_case(2048, 1024, 1024, 16), _case(333, 257, 511, 5, s=0.5),
                                                                _case(4096, 4096, 4096, 16, "cuda"))


def nbytes(x, w, a, b, s=1.0):
    return traffic(x, w, a, b) + x.numel() // x.shape[-1] * w.shape[1] * x.element_size()


def flops(x, w, a, b, s=1.0):
    m = x.numel() // x.shape[-1]
    return 2 * m * (w.numel() + a.numel() + b.numel())


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as a matrix of its last dimension's rows."""
    return x if x.dim() == 2 else reshaped(x, math.prod(x.shape[:-1]), x.shape[-1])


def _lora_linear_body(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    check("lora_linear", FLOATS, x=x, w=w, a=a, b=b)
    check_low_rank("lora_linear", x, w, a, b)
    shape = (*x.shape[:-1], w.shape[1])
    rows = _rows(x)
    adapted = a.shape[1] != 0
    if adapted and not is_wrap_triton_enabled() and lora_gpu.takes(rows, w, a, b):  # nobody traces
        with lora_gpu.on(x):
            return _forward(None, None, None, x, w, a, b, s)
    out = roomy(torch.empty(shape, dtype=x.dtype, device=x.device))
    if rows.shape[1] == 0:
        return out.zero_()
    if rows.shape[0] == 0 or w.shape[1] == 0:
        return out
    if adapted:
        lora_plain.summed(rows, w, temporary(lora_plain.scaled(rows, a, s)), b, out)
    else:
        multiply(rows, w, out.view(rows.shape[0], w.shape[1]))
    return out


_lora_linear = register("lora_linear", _lora_linear_body, scaled_matmul_kernel, sum_of_matmuls_kernel, matmul_kernel, *lora_gpu.KERNELS, by=True)


# --- derivatives: both kernels as ops of their own, so that what backward computes of low rank serves twice -----------------


def _scaled_matmul_body(a: torch.Tensor, b: torch.Tensor, s: float) -> torch.Tensor:
    """s * a @ b."""
    check("scaled_matmul", FLOATS, a=a, b=b)
    check_product("scaled_matmul", a, b)
    if a.shape[0] == 0 or a.shape[1] == 0 or b.shape[1] == 0:
        return torch.zeros((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    return lora_plain.scaled(a, b, s)


def _sum_of_matmuls_body(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x @ w + t @ b."""
    if t.shape[1] == 0:
        return _matmul_body(x, w)
    if x.shape[1] == 0:
        return _matmul_body(t, b)
    out = roomy(torch.empty((x.shape[0], w.shape[1]), dtype=x.dtype, device=x.device))
    if not (x.shape[0] == 0 or w.shape[1] == 0):
        lora_plain.summed(x, w, t, b, out)
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
    return (reshaped(_sum_of_matmuls(grads, w.T, u, a.T), *x.shape) if needed[0] else None,
            _matmul(rows.T, grads) if needed[1] else None,
            _matmul(u.T, rows).T if needed[2] else None,  # so that x is read as it lies
            _matmul(_scaled_matmul(rows, a, s).T, grads) if needed[3] else None)


# --- on GPUs, without the dispatcher -----------------------------------------------------------------------------------------


class _Kind:
    """Calls like one before: whether autograd follows them, plans by whether x a is kept for the gradient of b, and backward's."""

    def __init__(self, *tensors):
        self.follows = any(t.requires_grad for t in tensors)
        self.plans, self.backward = {}, launches.Calls(16)


_calls = launches.Calls()


def _known(x, w, a, b, s):
    """The result of a call like one before that nothing but autograd follows, else None."""
    if type(x) not in PLAIN or type(s) is not float or x.is_nested or launches.unseen():
        return None
    found = _calls.find(x.shape, (x, w, a, b))
    if found is None:
        return None
    kind, addresses = found
    if kind.follows and torch.is_grad_enabled():
        return _apply(kind, addresses, x, w, a, b, s)
    return _forward(None, kind, addresses, x, w, a, b, s)


def _on_gpu(x, w, a, b, s):
    """A call that `lora_gpu.accepts`."""
    run = _apply if torch.is_grad_enabled() and any(t.requires_grad for t in (x, w, a, b)) else functools.partial(_forward, None)
    with profiler.record_function("triport::lora_linear") if profiler._is_profiler_enabled else contextlib.nullcontext():
        out = run(None, None, x, w, a, b, s)
    if _rows(x).data_ptr() == x.data_ptr() and all(lora_gpu.lined(t) is t for t in (w, b)):
        _calls.learn(x.shape, (x, w, a, b), _Kind(x, w, a, b))
    return out


def _forward(ctx, kind, addresses, x, w, a, b, s):
    keep = ctx is not None and ctx.needs_input_grad[5]
    with lora_gpu.on(x):
        plan = None if kind is None else kind.plans.get(keep)
        if plan is None:
            rows, v, low = _rows(x), lora_gpu.lined(w), lora_gpu.lined(b)
            plan, addresses = lora_gpu.product(rows, v, a, low, keep, (*x.shape[:-1], w.shape[1])), [t.data_ptr() for t in (rows, v, a, low)]
            if kind is not None:
                kind.plans[keep] = plan
            made = plan((rows, v, a, low), addresses, s)
        else:
            made = plan((x, w, a, b), addresses, s)
    if ctx is not None:
        ctx.save_for_backward(x, w, a, b, *made[1:])
        ctx.call = kind, s
        ctx.set_materialize_grads(False)
    return made[0]


def _backward_of_gpu(ctx, grad):
    if grad is None:
        return (None,) * 7
    kept, needed, (kind, s) = ctx.saved_tensors, ctx.needs_input_grad[2:6], ctx.call
    if not torch.is_grad_enabled():
        if kind is not None and not launches.unseen():
            found = kind.backward.find(needed, (*kept, grad))
            if found is not None:
                (plan, order), addresses = found
                with lora_gpu.on(grad):
                    made = plan((*kept, grad), addresses, s)
                return None, None, *[None if place is None else made[place] for place in order], None
        if bare(*kept, grad) and lora_gpu.takes(*kept[:4]):
            return None, None, *_gradients_on_gpu(*kept, *[None] * (5 - len(kept)), s, grad, needed, kind), None
    return None, None, *_backward(kept[:4], (s,), grad, needed), None  # gradients of gradients: t is no constant


def _gradients_on_gpu(x, w, a, b, t, s, grad, needed, kind=None):
    """As `_backward`, by kernels of lora_gpu.py. t: s x a, where forward kept it; kind: learns such calls."""
    rows, grads, u, zeros = _by_rows(_rows(x)), _by_rows(_rows(unexpanded(grad))), None, None
    thin, given = needed[2] or needed[3], t
    with lora_gpu.on(x):
        if needed[2] and not needed[0]:
            u = _scaled_matmul(grads, b.T, s)
        if needed[3] and t is None:
            t = _scaled_matmul(rows, a, s)
        if thin and not needed[0]:
            zeros = torch.zeros(lora_gpu.gradient_tiles(a.shape[0], b.shape[1], x.dtype is torch.float32), dtype=torch.int32, device=x.device)
        places = iter(range(3))
        order = [next(places) if asked and k != 1 else None for k, asked in enumerate(needed)]
        v, low = lora_gpu.lined(w), lora_gpu.lined(b)
        tensors = [rows, v, a, low, t, grads, u, zeros]
        made = ()
        if thin or needed[0]:
            plan, tensors = lora_gpu.gradients(*tensors, needed, tuple(x.shape)), [p for p in tensors if p is not None]
            made = plan(tensors, [p.data_ptr() for p in tensors], s)
            same = (rows, x), (grads, grad), (v, w), (low, b)
            if kind is not None and not (needed[1] or zeros is not None) and given is t and all(p.data_ptr() == q.data_ptr() for p, q in same):
                kind.backward.learn(needed, (x, w, a, b, *([] if t is None else [t]), grad), (plan, order))
        out = [None if place is None else made[place] for place in order]
        if needed[1]:
            out[1] = _matmul(rows.T, grads)
        return out


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """A matrix whose rows are contiguous, of 16 bits `lora_gpu.fetched`; a copy where it is not so."""
    if x.stride(1) == 1 and (x.dtype is torch.float32 or lora_gpu.fetched(x)):
        return x
    return x.clone(memory_format=torch.contiguous_format)


#: calls on a GPU that nothing but autograd follows; called in autograd's graph as the registered op is
_OnGPU = type("triport_lora_linear_", (torch.autograd.Function,), {"forward": staticmethod(_forward), "backward": staticmethod(_backward_of_gpu)})
_apply = super(torch.autograd.Function, _OnGPU).apply  # Function's own asks for functorch's levels, of which there are none here


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
_lora_linear.batch(batching.low_rank)
_scaled.batch(batching.scaled_product)
_sum.batch(batching.sum_of_products)
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
    if not compiling():
        out = _known(x, w, a, b, s)
        if out is not None:
            return out
    s = check_number("lora_linear", "s", s)
    follows = watched(x, w, a, b)
    if follows:
        check_tensors("lora_linear", x=x, w=w, a=a, b=b)
        if not isinstance(x, torch.Tensor):
            return served("lora_linear", x, w, a, b, s)
    if x.is_cuda and bare(x, w, a, b) and lora_gpu.accepts(x, w, a, b):
        return _on_gpu(x, w, a, b, float(s))
    return served("lora_linear", x, w, a, b, s) if follows else direct(_lora_linear_body, (x, w, a, b), float(s))


OP = Op("lora_linear", lora_linear, reference, CASES, reference, nbytes, flops, ("fp32", "fp16", "bf16", "fp64"), dims="MxK,KxN,KxR,RxN")
