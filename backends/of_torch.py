"""All that triport's ops take of torch beside its public API: looked up here, once, and what is done where a torch has it no more.

Checked with torch 2.11 to 2.15 (`tests/matrix`). With another torch, and with one that lacks a name, ops go through torch's dispatcher on every call,
which is the public way and some 50 microseconds slower, and one warning says so; what has a public substitute of its own says so beside its name.
Modules that are only used by commands (`backends/spine/symbols.py`, `tools/inspector/inductor.py`, `testing`) import what is torch's own where they use it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import warnings
from unittest import mock

import torch

#: versions (major, minor), first and last, that were tried: ops, derivatives of every kind, replayed calls, Inductor (`tests/matrix`)
CHECKED = (2, 11), (2, 15)
#: names that were looked for in vain
missing: list[str] = []


def _find(path: str, instead):
    """What torch has under a dotted name; where there is none it is noted, and `instead` is returned."""
    parts = path.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        try:
            for name in parts[n:]:
                thing = getattr(thing, name)
            return thing
        except AttributeError:
            break
    missing.append(path)
    return instead


def _yes() -> int:
    return 1


class _Nothing:
    """A class that has no instances here."""


# --- what follows a call: where that cannot be asked, something does ---
dispatch_modes = _find("torch._C._len_torch_dispatch_stack", _yes)
function_modes = _find("torch._C._len_torch_function_stack", _yes)
functorch_level = _find("torch._C._functorch.maybe_current_level", _yes)
batched = _find("torch._C._functorch.is_legacy_batchedtensor", lambda t: True)
jit_tracing = _find("torch._C._get_tracing_state", _yes)
any_autocast = _find("torch._C._is_any_autocast_enabled", _yes)
profiler = _find("torch.autograd.profiler", None)
forward_ad = torch.autograd.forward_ad
if not hasattr(profiler, "_is_profiler_enabled"):
    missing.append("torch.autograd.profiler._is_profiler_enabled")
if not hasattr(forward_ad, "_current_level"):
    missing.append("torch.autograd.forward_ad._current_level")

# --- calls that are known again: what Dynamo's guards are made of (one call compares type, dispatch keys, dtype, sizes and strides), and Inductor's allocation ---
TensorGuards = _find("torch._C._dynamo.guards.TensorGuards", None)
empty_strided_cpu = _find("torch._C._dynamo.guards._empty_strided_cpu", lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype))

# --- a torch without GPU support has none of these: that is not noted ---
current_gpu = getattr(torch._C, "_cuda_getDevice", None)
gpu_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
empty_strided_cuda = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)

# --- Triton kernels as torch's tracers see them ---
is_wrap_triton_enabled = _find("torch._library.triton.is_wrap_triton_enabled", lambda: True)  # wrapping costs time, and is never wrong
set_wrap_triton_enabled = _find("torch._library.triton.set_wrap_triton_enabled", lambda on: contextlib.nullcontext())
#: op's full name -> its kernels, whose sources are part of torch's cache keys
kernels_of_op: dict = _find("torch._library.triton.triton_ops_to_kernels", {})
FakeTensor = _find("torch._subclasses.fake_tensor.FakeTensor", _Nothing)
FunctionalTensor = _find("torch._subclasses.functional_tensor.FunctionalTensor", _Nothing)


def no_kernel_search():
    """Within it `torch.library.triton_op` does not read the body's source for kernels, for which torch 2.13 imports all of Inductor (0.7 s). Where a
    version has no such search there is nothing to leave out."""
    module = _find("torch._library.triton", None)
    return contextlib.nullcontext() if module is None else mock.patch.object(module, "get_inner_triton_kernels", lambda fn: [], create=True)


# --- derivatives: without these ops have backward alone, by torch.library.register_autograd (`ops/register.py`) ---
_NEEDED = ("torch._functorch.utils.enable_single_level_autograd_function", "torch.autograd.function._SingleLevelFunction", "torch._VF._unpack_dual",
           "torch._C._any_requires_grad", "torch._C._AutoDispatchBelowAutograd", "torch._C._after_autograd_keyset", "torch._C._are_functorch_transforms_active")
(single_level, SingleLevelFunction, unpack_dual, any_requires_grad, BelowAutograd, after_autograd_keyset, transforms_active) = (_find(n, None) for n in _NEEDED)
forward_derivatives = not set(_NEEDED) & set(missing) and hasattr(forward_ad, "_set_fwd_grad_enabled")

# --- autocast: without these torch's own rules do not know of the ops ---
DispatchKeySet = _find("torch._C.DispatchKeySet", None)
DispatchKey = _find("torch._C.DispatchKey", None)
ExcludeDispatchKey = _find("torch._C._ExcludeDispatchKeyGuard", None)
autocasts = None not in (DispatchKeySet, DispatchKey, ExcludeDispatchKey)


def version() -> tuple[int, int]:
    """torch's, as (2, 13)."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split("+")[0].split(".")[:2])


def checked() -> bool:
    """Is this torch one of those that were checked, with every name?"""
    return CHECKED[0] <= version() <= CHECKED[1] and not missing


def takes(function, *names: str) -> bool:
    """Is there such a function, of just these parameters? What mends one of torch's asks, so that one that is written in another way is left alone."""
    return function is not None and tuple(inspect.signature(function).parameters) == names


#: may calls go round the dispatcher?
quick = checked()


@functools.lru_cache(maxsize=1)
def warn():
    """Say once what is slower with this torch, if anything is."""
    if quick:
        return
    first, last = (".".join(map(str, v)) for v in CHECKED)
    what = f"torch {torch.__version__} is not one that this triport was checked with ({first} to {last})"
    if missing:
        what = f"torch {torch.__version__} lacks {', '.join(missing)}, which triport knows from {first} to {last}"
    without = [text for there, text in ((forward_derivatives, "have backward derivatives only"), (autocasts, "are not cast by autocast")) if not there]
    warnings.warn(f"triport: {what}: its ops go through torch's dispatcher on every call, some 50 us slower{''.join(' and ' + w for w in without)}; "
                  "a newer triport may know it", RuntimeWarning, stacklevel=2)
