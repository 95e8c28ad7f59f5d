"""Replaying an op on CUDA tensors: what a recorded body launched, as a plan of native code (call.py).

The kernels are Triton's, which compiled and launched them once; from then on CUDA's driver launches them, on the current stream, with memory that torch
allocated: what captures a CUDA graph, or uses memory of its own pool, sees nothing else than with torch's ops.
"""

from __future__ import annotations

import ctypes
import functools
import struct

import torch

from . import call, cuda_ir, cuda_launch
from .cuda_launch import Address, Boxes, Described
from .. import of_torch
from ..base import Error
from ..cpu.llvm import targets
from ..cpu.run import kept, native

_empty_strided_cuda = of_torch.empty_strided_cuda  # as Inductor's code allocates: half the time of torch.empty_strided; on the current device
_stream = of_torch.gpu_stream
_MAKER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)


class _Table:
    """Descriptions of one operand by address, for the native code, and who makes one that is not there."""

    def __init__(self, maps, device: int):
        self._room = ctypes.create_string_buffer(cuda_ir.ENTRIES * cuda_ir.ENTRY + 64)
        self.address = (ctypes.addressof(self._room) + 63) & -64
        self._maps, self._device = maps, device
        self.maker = _MAKER(self._make)
        self.error: Exception | None = None

    def _make(self, entry: int, address: int) -> int:
        try:
            if (made := self._maps.known.get(address)) is None:
                cuda_launch.enter_new_thread(self._device)
                made = self._maps.of(address)
            ctypes.memmove(entry + cuda_ir.ENTRY_MAP, made, cuda_ir.MAP)
            ctypes.memmove(entry, struct.pack("=Q", address), 8)
            return 0
        except Exception as e:  # nothing can be raised through native code
            self.error = e
            return 1


@functools.lru_cache(maxsize=None)
def _start() -> int:
    """The address of the native code that launches."""
    from ..cpu.run.launch import load_object

    return load_object(kept.emitted("cuda_calls", cuda_ir.start_ir, targets.native()), ["tp_cuda_start"])["tp_cuda_start"]


def plan(launches, temps, tensors, out):
    """A function of the input tensors that allocates and launches, or None where the record does not say everything (replay.py, whose CPU plans are
    alike). launches: (kernel as Triton compiled it, or `cuda.Own`, None, grid, arguments without constexprs) of each."""
    number = call.numbered(tensors, out, temps)
    if not launches or None in launches or number is None or cuda_launch.driver() is None or _empty_strided_cuda is None:
        return None
    outs, device = call.results_of(out), tensors[0].device.index
    stream = len(tensors) + len(outs) + len(temps)  # the stream's number follows the memory's
    todo, hold, names = [], [], []
    for compiled, _, grid, args in launches:
        placed = [_place(a, number) for a in args]
        words = _words(compiled, grid, placed, device, stream, hold)
        if words is None:
            return None
        described = any(isinstance(a, Described) for a in placed)  # their tables are for one thread at a time
        todo.append(native.Launch(_start(), not described, words))
        names.append(f"{compiled.name} on {' x '.join(map(str, grid))} x {_threads(compiled)} threads")

    def fail(which, status):
        said = next((t.error for t in hold if isinstance(t, _Table) and t.error is not None), None) if status < 0 else None
        raise said or Error(f"launching {names[which]} failed: {cuda_launch.driver().name(status)}")

    empty = functools.partial(_empty_inference, device) if torch.is_inference_mode_enabled() else _empty_strided_cuda
    made = [(None, tuple(t.shape), t.stride(), t.dtype) for t in (*outs, *temps)]
    return call.plan([t.data_ptr() & 15 for t in tensors], made, todo, empty, fail, hold, stream=(_stream, device),
                     results=len(outs) if isinstance(out, tuple) else None)


def start(own, grid: tuple, args: tuple, device: int):
    """Launch one kernel of backend `cuda` on the current stream as a plan would. own: a `cuda.Own`. Raises `Error` where the driver refuses."""
    memory = [(a if isinstance(a, torch.Tensor) else a.matrix).data_ptr() for a in args if isinstance(a, (torch.Tensor, Boxes))]
    laid = _own_laid_out(own, [_place(a, {at: k for k, at in enumerate(memory)}) for a in args])
    if laid is None:
        raise Error(f"{own.name} takes other parameters than it was given: {', '.join(type(a).__name__ for a in args)}")
    parameters = bytearray(laid.template)
    for at, numbers in laid.runs:
        struct.pack_into(f"={len(numbers)}Q", parameters, at, *(memory[k] for k in numbers))
    for at, k, maps in laid.maps:
        parameters[at:at + cuda_ir.MAP] = maps.of(memory[k])
    stream = torch.cuda.current_stream(device).cuda_stream
    words = _row(own, grid, laid._replace(template=bytes(parameters), runs=[], maps=[]), device, 0, [])
    row = ctypes.create_string_buffer(b"".join(struct.pack("=Q", stream) if w == 0 else w for w in words))
    if status := _starter()(ctypes.addressof(row)):
        raise Error(cuda_launch.driver().name(status))


@functools.lru_cache(maxsize=None)
def _starter():
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_start())


def _empty_inference(device: int, sizes, strides, dtype):
    """A new tensor that inference_mode marks as its own."""
    return torch.empty_strided(sizes, strides, dtype=dtype, device=torch.device("cuda", device))


def _place(arg, number: dict):
    """An argument as a launch's words have it; None where it is memory that the plan does not know."""
    if isinstance(arg, torch.Tensor):
        return Address(number[arg.data_ptr()]) if arg.data_ptr() in number else None
    if cuda_launch.is_description(arg):
        at = number.get(arg.base.data_ptr())
        return None if at is None else Described(at, tuple(arg.shape), tuple(arg.strides), tuple(arg.block_shape))
    if isinstance(arg, Boxes):
        at = number.get(arg.matrix.data_ptr())
        return None if at is None else Described(at, tuple(arg.matrix.shape), tuple(arg.matrix.stride()), arg.box)
    return arg


def _is_own(compiled) -> bool:
    """Is it a kernel of backend `cuda`, not one that Triton compiled?"""
    return type(compiled).__name__ == "Own"


def _threads(compiled) -> int:
    return compiled.threads if _is_own(compiled) else compiled.metadata.num_warps * 32


def _own_laid_out(compiled, args: list) -> cuda_launch.Laid | None:
    """Addresses, descriptions, integers and floating-point numbers, as wide as the kernel has them."""
    places = [cuda_launch.driver().kernel_parameter(int(compiled.kernel.handle), k) for k in range(len(args) + 1)]
    if places.pop() is not None or None in places:
        return None
    template, runs, maps = bytearray(max((at + size for at, size in places), default=0)), [], []
    for (at, size), a in zip(places, args):
        form = {(float, 4): "=f", (float, 8): "=d", (int, 4): "=i", (int, 8): "=q"}.get((type(a), size))
        if isinstance(a, Address) and size == 8:
            runs.append((at, [a.memory]))
        elif isinstance(a, Described) and size == cuda_launch.MAP:
            maps.append((at, a.memory, cuda_launch.boxes(a)))
        elif form is not None:
            struct.pack_into(form, template, at, a)
        else:
            return None
    return cuda_launch.Laid(bytes(template), [at for at, _ in places], runs, [], maps)


def _words(compiled, grid: tuple, args: list, device: int, stream: int, hold: list) -> list | None:
    """A launch's words, by `cuda_ir`; a word is bytes or the number of a pointer. hold: takes what has to live as long."""
    if any(a is None for a in args):
        return None
    laid = _own_laid_out(compiled, args) if _is_own(compiled) else cuda_launch.laid_out(compiled, tuple(args))
    return None if laid is None or laid.numbers else _row(compiled, grid, laid, device, stream, hold)


def _row(compiled, grid: tuple, laid: cuda_launch.Laid, device: int, stream: int, hold: list) -> list | None:
    """`_words` of a launch whose parameters are laid out."""
    own = _is_own(compiled)
    function, shared = (int(compiled.kernel.handle), compiled.shared) if own else (compiled.function, compiled.metadata.shared)
    driver, (x, y, z) = cuda_launch.driver(), (*grid, 1, 1)[:3]
    size = -(-len(laid.template) // 8) * 8
    together = own and compiled.together
    if together and len(laid.offsets) > cuda_ir.MOST:
        return None
    cluster = cuda_ir.TOGETHER if together else compiled.cluster if own else 1
    head = [*native.packed("11Q", driver.launch_address, driver.extended_address, driver.use_address, driver.context(device), function, x, y, z,
                         _threads(compiled), shared, cluster), stream,
            *native.packed("3Q", len(laid.template), len(laid.maps), len(laid.offsets) if together else 0)]
    for at, memory, maps in laid.maps:
        table = _Table(maps, device)
        hold.append(table)
        head += [*native.packed("2Q", table.address, ctypes.cast(table.maker, ctypes.c_void_p).value), memory, *native.packed("Q", at)]
    body: list = [laid.template.ljust(size, b"\0")[k:k + 8] for k in range(0, size, 8)]
    for at, memories in laid.runs:
        for k, memory in enumerate(memories):
            if (at + 8 * k) % 8:
                return None
            body[at // 8 + k] = memory
    hold.append(compiled)
    return head + body + (native.packed(f"{len(laid.offsets)}Q", *laid.offsets) if together else [])
