"""Which tensors are a GPU's that is not there: their storages are marked, and every operation hands the mark on.

All tensors live in CPU memory. A mark is an attribute of the storage, which views, `detach()`, `.data` and autograd's own tensors share, and
which goes with it. `Following` sees each operation below autograd, those of backward passes included, and does three things: an operation that is told to
use the GPU uses the CPU, its results are marked, and so are results of operations on marked tensors.
"""

from __future__ import annotations

import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
_MARK = "_triport_gpu"


class Memory:
    """Bytes of marked storages, in the blocks of 512 in which CUDA's caching allocator gives memory out: those that live now, and the most there were."""

    live = peak = 0
    lock = threading.Lock()

    @classmethod
    def add(cls, nbytes: int):
        with cls.lock:
            cls.live += nbytes
            cls.peak = max(cls.peak, cls.live)


class Mark:
    """What a marked storage holds; its memory is the GPU's until it goes."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int):
        self.nbytes = -(-nbytes // 512) * 512
        Memory.add(self.nbytes)

    def __del__(self):
        Memory.live -= self.nbytes  # no lock: this may run wherever memory is freed, also within `add`


def holder(t):
    """What carries a tensor's mark: its storage, or itself where it has none (sparse tensors)."""
    try:
        return t.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return t


def marked(t) -> bool:
    """Is a tensor the GPU's?"""
    return hasattr(holder(t), _MARK)


def mark(t):
    """Make a tensor, and whatever shares its storage, the GPU's."""
    on = holder(t)
    if not hasattr(on, _MARK) and on.device.type != "meta":  # a fake tensor says which device it stands for, its storage is meta's and so are others on it
        setattr(on, _MARK, Mark(0 if on is t else on.nbytes()))


def location(storage) -> str | None:
    """What `torch.save` writes of where a storage is, of a marked one."""
    return "cuda:0" if hasattr(getattr(storage, "_untyped_storage", storage), _MARK) else None


def restored(storage, where: str):
    """`storage`, as `torch.load` puts it where it was, if that is the GPU."""
    if where.partition(":")[0] != "cuda":
        return None
    on = getattr(storage, "_untyped_storage", storage)
    if not hasattr(on, _MARK):
        setattr(on, _MARK, Mark(on.nbytes()))
    return storage


def is_gpu(device) -> bool:
    return isinstance(device, torch.device) and device.type == "cuda"


def tensors(values):
    """The tensors in arguments or results of an operation."""
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from tensors(v)


#: operations -> what was registered by Python code for CUDA, or for all devices (`torch.library`)
implementations: dict = {}


_COPY, _LIKE, _HISTC = torch.ops.aten._to_copy.default, torch.ops.aten.new_empty_strided.default, torch.ops.aten.histc.default
#: `on`: a tensor is being moved from one device to the other, in this thread
moving = threading.local()


def _histc(x, bins=100, *limits):
    return torch.histc(x.double(), bins, *limits).to(x.dtype)


def _on_a_gpu_alone(func, args):
    """What computes an operation of a dtype that torch has it of on a GPU, and not here."""
    return _histc if func is _HISTC and not args[0].is_floating_point() else None


class Following(TorchDispatchMode):
    """See the module."""

    #: `torch.library.wrap_triton` launches by such a one
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or ())
        given = [*tensors(args), *tensors(kwargs.values())]
        told, asked = kwargs.get("device"), kwargs
        if told is not None and not is_gpu(told) and not getattr(moving, "on", False) and (func is _COPY or func is _LIKE and {"dtype", "layout"} <= kwargs.keys()):
            told = None  # torch's own derivatives of a cast, and what takes gradients up, name the device that they find
        if told is not None:
            gpu = is_gpu(told)
            if gpu:
                kwargs = {**kwargs, "device": CPU}
        else:
            gpu = any(map(marked, given))
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        own = (implementations.get(func.name()) or _on_a_gpu_alone(func, args)) if gpu else None
        if own is not None:
            with self:
                out = own(*args, **asked)
        else:
            out = func(*args, **kwargs)
        if gpu:
            others = [holder(t) for t in given if not marked(t)]  # written in place, they stay the CPU's
            for t in tensors(out if isinstance(out, (list, tuple)) else (out,)):
                if not any(holder(t) is other for other in others):
                    mark(t)
        return out
