"""Launching a kernel that Triton compiled for a CUDA GPU again, through CUDA's driver, for a few microseconds.

Triton's own way binds, looks at and converts all arguments in Python at every launch, and describes tensors for the Tensor Memory Accelerator anew.
A `Launch` has the kernel's parameters laid out as the driver takes them; what is left to do is to put addresses in. Descriptions (CUtensorMap) depend on
an address, sizes, strides and a block alone, so they are kept by address.

Only what is known is launched so: Triton's versions below, kernels without scratch memory, clusters and the like, and parameters of which the driver
itself says that they lie where they are put (cuFuncGetParamInfo). For others `prepared` is None, and whoever asks launches by Triton.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from operator import itemgetter
from typing import NamedTuple

import triton

from ..base import Error

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton that describes no tensors
    TensorDescriptor = None

#: versions of Triton (major, minor) whose compiled kernels' parameters are as in `_fields`
TRITONS = ((3, 6), (3, 9))
#: descriptions kept for one operand of a launch
MAPS = 256
#: Triton's name of a type -> struct's
FORMATS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d"}
MAP = 128  # bytes of a CUtensorMap
INVALID_CONTEXT = 201


class Address(NamedTuple):
    """The argument is a pointer, to the memory of this number."""

    memory: int


class Described(NamedTuple):
    """The argument is a descriptor of a matrix in the memory of this number; strides in elements."""

    memory: int
    shape: tuple
    strides: tuple
    block: tuple


class Boxes(NamedTuple):
    """An argument of a kernel of backend `cuda`: a matrix as its `TensorMap` (ops/product_tma.cuh) has it, which the Tensor Memory Accelerator fetches in boxes.
    matrix: of numbers of 16 bits, with contiguous rows that begin at multiples of 16 bytes; box: (rows, 64)."""

    matrix: object
    box: tuple[int, int]


class Number(NamedTuple):
    """The argument is the number, of the launch's numbers, at this place."""

    place: int


class Driver:
    """What of libcuda is needed here. Raises `OSError` or `AttributeError` where it, or a part, is missing."""

    def __init__(self):
        lib = ctypes.CDLL("libcuda.so.1")
        self.launch, self._info, self._encode = lib.cuLaunchKernel, lib.cuFuncGetParamInfo, lib.cuTensorMapEncodeTiled
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self.launch.argtypes = (pointer, *[number] * 7, *[pointer] * 3)
        self._info_of_kernel = lib.cuKernelGetParamInfo
        for info in (self._info, self._info_of_kernel):
            info.argtypes = (pointer, ctypes.c_size_t, pointer, pointer)
        self._encode.argtypes = (pointer, number, number, *[pointer] * 5, *[number] * 4)
        self._name, self._retain, self._use, self._current = lib.cuGetErrorName, lib.cuDevicePrimaryCtxRetain, lib.cuCtxSetCurrent, lib.cuCtxGetCurrent
        self._use.argtypes = (pointer,)
        self.launch_address, self.extended_address, self.use_address = (ctypes.cast(f, pointer).value for f in (self.launch, lib.cuLaunchKernelEx, self._use))

    def parameter(self, function: int, index: int) -> tuple[int, int] | None:
        """(offset, bytes) of a kernel's parameter; None where it has no such (an error that compute-sanitizer reports, and that does no harm)."""
        return self._parameter(self._info, function, index)

    def kernel_parameter(self, kernel: int, index: int) -> tuple[int, int] | None:
        """As `parameter`, of a CUkernel, which belongs to no context."""
        return self._parameter(self._info_of_kernel, kernel, index)

    @staticmethod
    def _parameter(info, function: int, index: int) -> tuple[int, int] | None:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        return None if info(function, index, ctypes.byref(offset), ctypes.byref(size)) else (offset.value, size.value)

    def encode(self, into: int, kind: int, rank: int, address: int, sizes, strides, box, steps, swizzle: int) -> int:
        """A CUtensorMap at `into`: not interleaved, fetched by 128 bytes into the L2, zeros outside, as Triton makes them. Returns CUDA's result."""
        return self._encode(into, kind, rank, address, sizes, strides, box, steps, 0, swizzle, 2, 0)

    def enter(self, device: int):
        """Make the device's context this thread's, as CUDA's runtime does at a thread's first call."""
        if context := self.context(device):
            self._use(context)

    def entered(self) -> bool:
        """Has this thread a context?"""
        context = ctypes.c_void_p()
        return self._current(ctypes.byref(context)) == 0 and bool(context.value)

    def context(self, device: int) -> int:
        """The device's primary context, which CUDA's runtime uses; 0 where it has none."""
        context = ctypes.c_void_p()
        return context.value or 0 if self._retain(ctypes.byref(context), device) == 0 else 0

    def name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._name(code, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({code})"


@functools.lru_cache(maxsize=None)
def driver() -> Driver | None:
    try:
        return Driver()
    except (OSError, AttributeError):  # no GPU; a driver of before CUDA 12.4
        return None


def enter_new_thread(device: int):
    """Give a thread that has not used the GPU yet the device's context. Triton does when it launches, which is after it described matrices, which takes
    one."""
    if (found := driver()) is not None and not found.entered():
        found.enter(device)


class _Maps:
    """Descriptions of one operand, by address. `into`: 64-byte aligned room for one."""

    def __init__(self, operand: Described, facts: dict, kind: int):
        rank, size = len(operand.shape), facts["elem_size"]
        self.facts = (kind, rank, (ctypes.c_uint64 * rank)(*operand.shape[::-1]),
                      (ctypes.c_uint64 * rank)(*[s * size for s in operand.strides[-2::-1]]), (ctypes.c_uint32 * rank)(*facts["block_size"][::-1]),
                      (ctypes.c_uint32 * rank)(*[1] * rank), facts["swizzle"])
        self.known: dict[int, bytes] = {}

    def of(self, address: int) -> bytes:
        kind, rank, *rest = self.facts
        room = ctypes.create_string_buffer(MAP + 64)
        at = (ctypes.addressof(room) + 63) & -64
        code = driver().encode(at, kind, rank, address, *rest)
        if code:
            raise Error(f"describing a matrix at {address:#x} for the Tensor Memory Accelerator failed: {driver().name(code)}")
        if len(self.known) >= MAPS:
            self.known.clear()
        made = self.known[address] = ctypes.string_at(at, MAP)
        return made


#: CU_TENSOR_MAP_DATA_TYPE_FLOAT16, for any numbers of 16 bits: they are not looked at; CU_TENSOR_MAP_SWIZZLE_128B
_SIXTEEN_BITS, _SWIZZLE_128 = 6, 3


def boxes(operand: Described) -> _Maps:
    """Descriptions of `Boxes`."""
    return _Maps(operand, {"elem_size": 2, "block_size": operand.block, "swizzle": _SWIZZLE_128}, _SIXTEEN_BITS)


class _Block:
    """A kernel's parameters: `view` of their bytes, `pointers` to each, as the driver takes them."""

    def __init__(self, template: bytes, offsets: list[int]):
        self._room = ctypes.create_string_buffer(len(template) + 64)
        begin = (ctypes.addressof(self._room) + 63) & -64
        skip = begin - ctypes.addressof(self._room)
        self.view = memoryview(self._room).cast("B")[skip:skip + len(template)]
        self.view[:] = template
        self._pointers = (ctypes.c_void_p * len(offsets))(*[begin + o for o in offsets])
        self.pointers = ctypes.addressof(self._pointers)


class Launch:
    """A kernel on a grid, with its arguments except for addresses and numbers. Threads may call it at once: each call has a block of its own."""

    def __init__(self, compiled, grid: int, device: int, template: bytes, offsets: list[int], pointers, numbers, maps):
        m = compiled.metadata
        self.compiled, self.device = compiled, device  # kept: it holds the code
        self._grid, self._threads, self._shared, self._function = grid, m.num_warps * 32, m.shared, compiled.function
        self._template, self._offsets, self._blocks = template, offsets, []
        self._pointers = [(struct.Struct(f"={len(which)}Q").pack_into, at, itemgetter(*which) if len(which) > 1 else lambda a, k=which[0]: (a[k],))
                          for at, which in pointers]
        self._numbers = [(struct.Struct(form).pack_into, at, place) for at, form, place in numbers]
        self._maps = maps
        self._start = driver().launch

    def __call__(self, addresses: list[int], numbers: tuple, stream: int):
        """addresses: of all memory, by number. stream: its handle. Raises `Error` where the driver refuses."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = _Block(self._template, self._offsets)
        view = block.view
        for pack, at, which in self._pointers:
            pack(view, at, *which(addresses))
        for pack, at, place in self._numbers:
            pack(view, at, numbers[place])
        for at, memory, maps in self._maps:
            address = addresses[memory]
            view[at:at + MAP] = maps.known.get(address) or maps.of(address)
        code = self._start(self._function, self._grid, 1, 1, self._threads, 1, 1, self._shared, stream, block.pointers, None)
        if code == INVALID_CONTEXT:  # a thread that has not used the GPU yet: nothing was launched
            driver().enter(self.device)
            code = self._start(self._function, self._grid, 1, 1, self._threads, 1, 1, self._shared, stream, block.pointers, None)
        self._blocks.append(block)
        if code:
            raise Error(f"launching {self.compiled.name} on {self._grid} x {self._threads} threads failed: {driver().name(code)}")


def prepared(compiled, args: tuple, grid: int, device: int) -> Launch | None:
    """`compiled`, which Triton has launched with such arguments, to be launched so again. args: the kernel's up to its constexprs: numbers, and
    `Address`, `Described` and `Number` for what differs from launch to launch. None where it is not known how."""
    laid = laid_out(compiled, args)
    return None if laid is None else Launch(compiled, grid, device, laid.template, laid.offsets, laid.runs, laid.numbers, laid.maps)


class Laid(NamedTuple):
    """A kernel's parameters. template: their bytes, with 0 for what differs from launch to launch; offsets: of each; runs: (offset, numbers of memory
    whose addresses stand there one behind the other); numbers: (offset, struct's format, place); maps: (offset, number of memory, descriptions)."""

    template: bytes
    offsets: list[int]
    runs: list
    numbers: list
    maps: list


def laid_out(compiled, args: tuple) -> Laid | None:
    """Where the parameters of a kernel lie that Triton has launched with such arguments (as `prepared` has them). None where that is not known."""
    found = driver()
    if found is None or not _usual(compiled):
        return None
    fields = _fields(compiled, args)
    if fields is None:
        return None
    places = [found.parameter(compiled.function, k) for k in range(len(fields) + 1)]
    if places.pop() is not None or any(p is None or p[1] != (MAP if form == "map" else struct.calcsize(form)) for p, (form, _) in zip(places, fields)):
        return None
    offsets = [at for at, _ in places]
    template = bytearray(max((at + size for at, size in places), default=0))
    runs, numbers, maps = [], [], []
    for at, (form, value) in zip(offsets, fields):
        if isinstance(value, Address):
            if runs and at == runs[-1][0] + 8 * len(runs[-1][1]):
                runs[-1][1].append(value.memory)
            else:
                runs.append((at, [value.memory]))
        elif isinstance(value, Number):
            numbers.append((at, "=" + form, value.place))
        elif form == "map":
            maps.append((at, value[0].memory, _Maps(*value)))
        else:
            struct.pack_into("=" + form, template, at, value)
    return Laid(bytes(template), offsets, runs, numbers, maps)


def is_description(arg) -> bool:
    """Is it one of Triton's descriptors of a matrix, which a Tensor Memory Accelerator fetches?"""
    return TensorDescriptor is not None and type(arg) is TensorDescriptor


def _usual(compiled) -> bool:
    """Is it of a known Triton, and launched as a grid of blocks, without anything beside it?"""
    m = getattr(compiled, "metadata", None)
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    launcher = getattr(compiled, "run", None)
    return (m is not None and TRITONS[0] <= version <= TRITONS[1] and type(launcher).__name__ == "CudaLauncher" and type(compiled.function) is int
            and m.target.backend == "cuda" and m.target.warp_size == 32 and m.num_ctas == 1
            and not any(getattr(m, name, 0) for name in ("launch_pdl", "launch_cooperative_grid", "global_scratch_size", "profile_scratch_size"))
            and not getattr(launcher, "gsan_enabled", False))


def _fields(compiled, args: tuple) -> list[tuple] | None:
    """(struct's format, or "map", value) of each of the kernel's parameters: as its arguments, a descriptor followed by sizes and strides, and two
    pointers to scratch memory, of which there is none. None where there is something else."""
    types = list(compiled.src.signature.values())
    facts = list(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    out = []
    for ty, arg in zip(types, args):
        if ty == "constexpr":  # it was 1
            continue
        if not isinstance(ty, str):
            return None
        if isinstance(arg, Described):
            kind = _kind(facts[0]) if facts and ty.startswith("tensordesc") else None
            if kind is None:
                return None
            out += [("map", (arg, facts.pop(0), kind)), *[("i", n) for n in arg.shape], *[("q", n) for n in arg.strides]]
        elif isinstance(arg, Address):
            if not ty.startswith("*"):
                return None
            out.append(("Q", arg))
        elif ty in FORMATS:
            out.append((FORMATS[ty], arg))
        else:
            return None
    if facts or any(ty != "constexpr" for ty in types[len(args):]):
        return None
    return out + [("Q", 0), ("Q", 0)]


def _kind(facts: dict) -> int | None:
    """The driver's number of an operand's element type, by what Triton says of its description."""
    try:
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST as kinds
    except ImportError:
        return None
    return None if facts["fp4_padded"] or facts.get("is_im2col") else kinds.get(facts["elem_type"])
