"""What an op launches on a GPU for calls of one kind, worked out once: a `Plan`; and `Calls`, which know a kind of call by its tensors.

A plan is drawn from sizes, strides, alignment and dtype (`Drawing`): tensors to return, one block of scratch memory, and launches whose arguments are
numbers of memory. Done, it allocates, puts addresses in and launches: the first time by Triton, which compiles, from then on by the driver
(backends/dispatch/cuda_launch.py), unless somebody watches Triton's launches.
"""

from __future__ import annotations

from typing import Callable

import torch
from triton.runtime.jit import JITFunction

from ..backends import of_torch
from ..backends.dispatch import choice, cuda_launch, drivers, replay
from ..backends.dispatch.cuda_launch import Address, Described, Number
from ..backends.of_torch import forward_ad, profiler
from .dispatch import launch

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton that describes no tensors
    TensorDescriptor = None

_empty_strided_cuda = of_torch.empty_strided_cuda  # as Inductor's code allocates: half the time of torch.empty_strided; on the current device

ALIGNED = 256  # bytes at whose multiples pieces of scratch memory begin
_run = JITFunction.run


class Drawing:
    """A plan's parts. Memory has numbers: the call's tensors, then what is returned (`made`), then scratch memory, of which it is to need little if it is `lean`."""

    def __init__(self, tensors: int, lean: bool = False):
        self.tensors, self.lean, self.out, self.scratch, self.steps = tensors, lean, [], [], []

    def made(self, shape: tuple, dtype: torch.dtype) -> int:
        """A contiguous tensor that is returned; all before scratch memory."""
        strides, n = [], 1
        for size in reversed(shape):
            strides.append(n)
            n *= max(size, 1)
        self.out.append((tuple(shape), tuple(reversed(strides)), dtype))
        return self.tensors + len(self.out) - 1

    def piece(self, count: int, dtype: torch.dtype) -> int:
        """`count` elements of scratch memory."""
        self.scratch.append((count, dtype))
        return self.tensors + len(self.out) + len(self.scratch) - 1

    def launch(self, kernel, grid: int, args: tuple, consts: dict, warps: int, stages: int):
        """args: numbers, and `Address`, `Described`, `Number` of cuda_launch.py; consts: the kernel's constexprs, by name."""
        self.steps.append((kernel, grid, args, consts, warps, stages))

    def plan(self, device: int) -> Plan:
        return Plan(self, device)


class Plan:
    """A call's allocations and launches. device: the GPU's number, -1 for the CPU; otherwise: draws a plan that needs less, for where this one's scratch memory has
    no room."""

    otherwise: Callable[[], Plan] | None = None

    def __init__(self, drawn: Drawing, device: int):
        self.device, self.made, self.steps = device, drawn.out, drawn.steps
        self.pieces, self.bytes = [], 0
        for count, dtype in drawn.scratch:
            self.pieces.append((self.bytes, count * dtype.itemsize, dtype))
            self.bytes += -(-count * dtype.itemsize // ALIGNED) * ALIGNED
        self._begins = [begin for begin, _, _ in self.pieces]
        self._compiled: list | None = None
        self._launches: list | None = None

    def __call__(self, tensors, addresses: list[int], *numbers: float) -> list[torch.Tensor]:
        """What is returned. tensors: the call's; addresses: theirs. The plan's device is the current one."""
        empty = self._empty
        try:
            block = empty((self.bytes,), (1,), torch.uint8) if self.bytes else None
        except torch.OutOfMemoryError:
            if self.otherwise is None:
                raise
            return self.otherwise()(tensors, addresses, *numbers)
        out = [empty(shape, strides, dtype) for shape, strides, dtype in self.made]
        launches = self._launches
        if launches is not None and self._kept() and not replay.hooked():
            memory = [*addresses, *[t.data_ptr() for t in out]]
            if block is not None:
                base = block.data_ptr()
                memory += [base + begin for begin in self._begins]
            stream = of_torch.gpu_stream(self.device)
            for start in launches:
                start(memory, numbers, stream)
            return out
        self._by_triton([*tensors, *out, *[block[begin:begin + size].view(dtype) for begin, size, dtype in self.pieces]], numbers)
        return out

    def _empty(self, shape, strides, dtype) -> torch.Tensor:
        if self.device >= 0 and _empty_strided_cuda is not None and not torch.is_inference_mode_enabled():
            return _empty_strided_cuda(shape, strides, dtype)
        return torch.empty_strided(shape, strides, dtype=dtype, device=self.device if self.device >= 0 else "cpu")

    def _kept(self) -> bool:
        """Would Triton launch what it launched before? Not where somebody looks at launches, or had kernels forgotten."""
        if JITFunction.run is not _run:
            return False
        for kernel, *_ in self.steps:
            if self.device not in kernel.device_caches or kernel.pre_run_hooks:
                return False
        return True

    def _by_triton(self, memory: list[torch.Tensor], numbers: tuple):
        if self.device < 0:
            for kernel, grid, args, consts, warps, stages in self.steps:
                launch(kernel, (grid,), *_given(args, memory, numbers), **consts, num_warps=warps, num_stages=stages)
            return
        cuda_launch.enter_new_thread(self.device)
        if self._compiled is not None and self._kept():  # hooks, or what the driver is not asked for
            stream = of_torch.gpu_stream(self.device)
            for compiled, (kernel, grid, args, consts, *_) in zip(self._compiled, self.steps):
                compiled[grid, 1, 1](*_given(args, memory, numbers), *[consts[name] for name in kernel.arg_names[len(args):]], stream=stream)
            return
        self._launches = self._compiled = None
        with drivers.serving("cuda"):
            compiled = [kernel[(grid,)](*_given(args, memory, numbers), **consts, num_warps=warps, num_stages=stages)
                        for kernel, grid, args, consts, warps, stages in self.steps]
        if None not in compiled and self._kept():
            self._compiled = compiled
            launches = [cuda_launch.prepared(c, args, grid, self.device) for c, (_, grid, args, *_) in zip(compiled, self.steps)]
            self._launches = None if None in launches else launches


def _given(args: tuple, memory: list[torch.Tensor], numbers: tuple) -> list:
    """A launch's arguments as Triton takes them."""
    def given(arg):
        if isinstance(arg, Address):
            return memory[arg.memory]
        if isinstance(arg, Number):
            return numbers[arg.place]
        if isinstance(arg, Described):
            return TensorDescriptor(memory[arg.memory], list(arg.shape), list(arg.strides), list(arg.block))
        return arg

    return [given(a) for a in args]


class Calls:
    """Values for kinds of call, known by dtypes, devices, sizes, strides, what autograd and torch's modes see of the tensors, and that all memory
    begins at multiples of 16 bytes. keys: so many of them are known, the oldest goes first; alike: kinds under one key."""

    def __init__(self, keys: int = 256, alike: int = 8):
        self.known: dict = {}
        self._keys, self._alike = keys, alike

    def find(self, key, tensors: tuple):
        """(value, addresses of the tensors) of a call like one before; else None. Where `unseen` it says nothing."""
        known = self.known.get(key, ())
        if known and any(getattr(t, "is_nested", True) for t in tensors):  # of which torch's guards end the process
            return None
        for check, value in known:
            if check(*tensors):
                addresses = [t.data_ptr() for t in tensors]
                return None if unaligned(addresses) else (value, addresses)
        return None

    def learn(self, key, tensors: tuple, value):
        """From now on calls like this one are known; no tensor may be there twice."""
        guards = replay.TensorGuards
        if guards is None or unaligned([t.data_ptr() for t in tensors]) or self.find(key, tensors) is not None:
            return
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not check(*tensors):
            return
        before = self.known.get(key, ())
        while key not in self.known and len(self.known) >= self._keys:
            self.known.pop(next(iter(self.known)), None)
        self.known[key] = ((check, value), *before[:self._alike - 1])


def unaligned(addresses: list[int]) -> bool:
    bits = 0
    for a in addresses:
        bits |= a
    return bits & 15 != 0


_function_modes = of_torch.function_modes


def unseen() -> bool:
    """Does something follow calls that tensors do not show: the profiler, a function mode, forward derivatives, a chosen backend?"""
    return not of_torch.quick or bool(profiler._is_profiler_enabled or _function_modes() or forward_ad._current_level >= 0 or choice.elsewhere("cuda"))
