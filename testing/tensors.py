"""What tensors do and say that the GPU's are told by: `.to`, `.cuda()`, `.device`, `.is_cuda`, and functions that torch refuses a GPU before it
dispatches them. `marks.py` says how a tensor is known for the GPU's.
"""

from __future__ import annotations

import sys

import torch

from .marks import CPU, GPU, is_gpu, mark, marked, moving
from .patches import Patches

_Base = torch._C.TensorBase
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _by_torch(original):
    """A method of torch's own, that no mode for functions (`torch.set_default_device`) sends back to what stands in its place here."""
    def called(self, *args, **kwargs):
        if type(self) not in _PLAIN:
            return original(self, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            return original(self, *args, **kwargs)

    return called


_to, _numpy, _array, _type = map(_by_torch, (_Base.to, _Base.numpy, torch.Tensor.__array__, _Base.type))
_PYTORCH = {"device": _Base.device, "is_cuda": _Base.is_cuda, "is_cpu": _Base.is_cpu}
#: code that has to know where a tensor really is: ours, and what torch compiles by
_INSIDE = ("triport.backends", "triport.ops", "torch._dynamo", "torch._inductor", "torch._subclasses", "torch._functorch")


def device_of(value) -> torch.device:
    """A device as torch takes it: a text, a number (the GPU's), a device, one that is entered (`torch.cuda.device_of(x)`). Raises as a machine with one GPU does."""
    if isinstance(value, torch.cuda.device):
        value = value.idx
    device = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    if device.type == "cuda" and device.index not in (None, 0):
        raise torch.AcceleratorError(f"CUDA error: invalid device ordinal (device {device.index} of 1)")
    return device


class _Move(torch.autograd.Function):
    """A copy of a tensor on the other device; its gradient goes back to where the tensor was."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, gpu, dtype, memory_format):
        before, moving.on = getattr(moving, "on", False), True
        try:
            return torch.ops.aten._to_copy.default(x, device=GPU if gpu else CPU, dtype=dtype, memory_format=memory_format)
        finally:
            moving.on = before

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.gpu, ctx.dtype, ctx.wanted = marked(x), x.dtype, inputs[1:]

    @staticmethod
    def backward(ctx, grad):
        if marked(grad) != ctx.gpu:
            grad = _Move.apply(grad, ctx.gpu, ctx.dtype, None)
        return grad.to(ctx.dtype), None, None, None

    @staticmethod
    def jvp(ctx, x, *rest):
        return _Move.forward(x, *ctx.wanted)


def moved(x, gpu: bool, dtype=None, memory_format=None):
    """A copy of x on the GPU, or on the CPU."""
    if x.requires_grad and torch.is_grad_enabled():
        return _Move.apply(x, gpu, dtype, memory_format)
    return _Move.forward(x, gpu, dtype, memory_format)


def to(self, *args, **kwargs):
    rest = list(args)
    target = kwargs.get("other") if "other" in kwargs else rest[0] if rest and isinstance(rest[0], torch.Tensor) else None
    if target is not None:
        kwargs = {k: v for k, v in kwargs.items() if k != "other"} | {"device": GPU if marked(target) else _PYTORCH["device"].__get__(target)}
        kwargs |= {"dtype": target.dtype} | dict(zip(("non_blocking", "copy"), rest[1:]))
    elif rest and not isinstance(rest[0], torch.dtype):
        kwargs = kwargs | dict(zip(("device", "dtype", "non_blocking", "copy"), rest))
    elif rest:
        kwargs = kwargs | dict(zip(("dtype", "non_blocking", "copy"), rest))
    if kwargs.get("device") is None:
        kwargs.pop("device", None)
        return _to(self, **kwargs) if kwargs else self
    device = device_of(kwargs.pop("device"))
    if device.type not in ("cuda", "cpu") or self.is_meta:
        return _to(self, device=CPU if device.type == "cuda" else device, **kwargs)
    if (device.type == "cuda") == marked(self):
        return _to(self, device=CPU, **kwargs)
    return moved(self, device.type == "cuda", kwargs.get("dtype"), kwargs.get("memory_format"))


def _module_to(original):
    def moved_to(self, *args, **kwargs):
        if args and type(args[0]) is int:
            args = (device_of(args[0]), *args[1:])
        return original(self, *args, **kwargs)

    return moved_to


def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
    return to(self, device=GPU if device is None else device_of(device), memory_format=memory_format)


def cpu(self, memory_format=torch.preserve_format):
    return to(self, device=CPU, memory_format=memory_format)


def tensor_type(self, dtype=None, *args, **kwargs):
    if dtype is None:
        name = _type(self)
        return name.replace("torch.", "torch.cuda.", 1) if marked(self) else name
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        return _type(cuda(self), dtype.replace("torch.cuda.", "torch."), *args, **kwargs)
    return _type(self, dtype, *args, **kwargs)


def _asked_inside() -> bool:
    """Does code ask that has to know where the tensor is? A launch's own code is named <launch KERNEL>."""
    frame = sys._getframe(2)
    return frame.f_globals.get("__name__", "").startswith(_INSIDE) or frame.f_code.co_filename.startswith("<launch ")


def _device_now(self):
    if marked(self):
        return CPU if _asked_inside() else GPU
    return _PYTORCH["device"].__get__(self)


def _is_cuda(self):
    return not _asked_inside() if marked(self) else _PYTORCH["is_cuda"].__get__(self)


def _is_cpu(self):
    return _asked_inside() if marked(self) else _PYTORCH["is_cpu"].__get__(self)


def _get_device(self):
    return 0 if marked(self) else _Base.get_device(self)


def _only_on_cpu(original):
    def asked(self, *args, **kwargs):
        if marked(self) and not kwargs.get("force"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        return original(self, *args, **kwargs)

    return asked


def _deepcopy(original):
    def copied(self, memo):
        out = original(self, memo)
        if marked(self):
            mark(out)
            if out.grad is not None and self.grad is not None and marked(self.grad):
                mark(out.grad)
        return out

    return copied


def _made(original, shares: bool):
    """A function that makes a tensor on `device=`; shares: it may give the memory that it is given."""
    def make(*args, **kwargs):
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = device = device_of(device)
        kwargs.pop("pin_memory", None)
        if not is_gpu(device):
            return original(*args, **kwargs)
        grad = kwargs.pop("requires_grad", False)
        out = original(*args, **{**kwargs, "device": CPU})
        if shares and not marked(out):
            out = moved(out, True)
        mark(out)
        return out.requires_grad_() if grad else out

    return make


#: functions that torch asks for a device before it dispatches them
_MAKERS = ("tensor", "as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor",
           "sparse_bsc_tensor", "sparse_compressed_tensor")
_SHARING = ("as_tensor", "asarray")


class _GeneratorType(type(torch._C.Generator)):
    def __instancecheck__(cls, value):
        return isinstance(value, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_GeneratorType):
    """torch.Generator that takes the GPU for a device; its numbers are the CPU's."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made._said = device_of(device)
        return made

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):
        return GPU if is_gpu(self._said) else self._said


def install(patches: Patches):
    """Tensors of the GPU can be made, moved and asked."""
    from torch.utils import _device
    _device._device_constructors()  # by functions as they are now; it is remembered
    original = {}
    for name in _MAKERS:
        original[getattr(torch, name)] = _made(getattr(torch, name), name in _SHARING)
        patches.put(torch, name, original[getattr(torch, name)])
    by_context = _device.DeviceContext.__torch_function__

    def within_device(self, func, types, args=(), kwargs=None):
        if func in original:
            kwargs = dict(kwargs or ())
            return original[func](*args, **{**kwargs, "device": self.device if kwargs.get("device") is None else kwargs["device"]})
        return by_context(self, func, types, args, kwargs)

    patches.put(_device.DeviceContext, "__torch_function__", within_device)
    patches.put(torch, "Generator", Generator)
    patches.put(torch.nn.Module, "to", _module_to(torch.nn.Module.to))
    deepcopy = torch.Tensor.__deepcopy__
    for name, value in {
            "to": to, "cuda": cuda, "cpu": cpu, "type": tensor_type, "get_device": _get_device, "new_tensor": _new_tensor,
            "device": property(_device_now), "is_cuda": property(_is_cuda), "is_cpu": property(_is_cpu),
            "numpy": _only_on_cpu(_numpy), "__array__": _only_on_cpu(_array), "__deepcopy__": _deepcopy(deepcopy),
            "pin_memory": lambda self, device=None: self, "record_stream": lambda self, stream: None}.items():
        patches.put(torch.Tensor, name, value)


def _new_tensor(self, data, *, device=None, **kwargs):
    return torch.tensor(data, device=(GPU if marked(self) else CPU) if device is None else device, **{"dtype": self.dtype, **kwargs})
