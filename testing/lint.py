"""What no GPU would take of a kernel that the CPU ran: options, sizes, and shared memory.

Triton's own NVIDIA backend says what its options are and which products and element types it takes; it is there without a GPU. What Triton refuses on every
backend (blocks of more than 2**20 elements, sizes that are no power of two) never gets as far as a launch.
"""

from __future__ import annotations

import functools

from ..backends.cpu.ttir import reader
from ..backends.cpu.ttir.types import expand_calls, walk
from .gpus import GPU

#: what an operand of a product may have been through since it was loaded and be the same bytes
_SAME = ("tt.trans", "tt.reshape", "tt.bitcast")
_LOADS = ("tt.load", "tt.descriptor_load")
#: threads of a block at most, on every GPU since 2010 (CUDA C++ Programming Guide)
_THREADS = 1024


def findings(launch, gpu: GPU) -> list[str]:
    """What `gpu` would not take of a launch (`launches.Launch`), a line each."""
    if launch.compiled is None:
        return []
    options = tuple(sorted((k, v) for k, v in launch.options.items() if isinstance(v, (int, float, str, bool, tuple))))
    return list(_findings(launch.kernel, launch.compiled.asm["ttir"], options, gpu))


@functools.lru_cache(maxsize=4096)
def _findings(kernel: str, ttir: str, given: tuple, gpu: GPU) -> tuple[str, ...]:
    options = dict(given)
    return tuple(f"{kernel}: {text}" for text in (*_options(options, gpu), *_code(ttir, options, gpu)))


@functools.lru_cache(maxsize=8)
def _backend(gpu: GPU):
    """Triton's compiler for the GPU, and its options' defaults there."""
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    made = backends["nvidia"].compiler(GPUTarget("cuda", gpu.arch, 32))
    return made, made.parse_options({})


def _options(given: dict, gpu: GPU):
    _, known = _backend(gpu)
    for name in sorted(given.keys() - vars(known).keys()):
        yield f"{name}= is no option of Triton's for it"
    warps = given.get("num_warps", known.num_warps)
    if warps < 1 or warps & warps - 1:
        yield f"num_warps={warps} is no power of two"
    elif warps * 32 > _THREADS:
        yield f"num_warps={warps} is {warps * 32} threads, and a block has {_THREADS} at most"
    if given.get("num_ctas", 1) > 1 and gpu.capability < (9, 0):
        yield f"num_ctas={given['num_ctas']} needs compute capability 9.0, and it has {'.'.join(map(str, gpu.capability))}"


def _code(ttir: str, given: dict, gpu: GPU):
    import triton.language as tl
    backend, known = _backend(gpu)
    operations = list(walk(_whole(ttir).kernel.body))
    least = backend.get_codegen_implementation(known)["min_dot_size"]
    fp8 = {v.type.elem for op in operations for v in (*op.operands, *op.results) if v.type.elem.startswith("fp8")}
    for elem in sorted(fp8 - set(known.supported_fp8_dtypes)):
        yield f"{elem} is an element type that it does not have (it has {', '.join(known.supported_fp8_dtypes)})"
    small = {}
    for op in operations:
        if op.name == "tt.dot":
            a, b = (tl.block_type(_dtype(v.type.elem), [*v.type.shape]) for v in op.operands[:2])
            try:
                depth, needs = a.shape[-1], least(a, b)[2]
            except AssertionError as e:  # what it says of types that do not go together
                small[f"tl.dot at {op.loc}: {e}"] = None
                continue
            if depth < needs:
                small[f"tl.dot at {op.loc} has K = {depth}, and it takes {needs} at least for {op.operands[0].type.elem}"] = None
    yield from small
    stages = given.get("num_stages", known.num_stages)
    size = shared_bytes(ttir, stages, gpu)
    if size > gpu.shared:
        yield (f"its products' operands take {size / 1024:.0f} KiB of shared memory at num_stages={stages}, and a block has {gpu.shared >> 10} KiB; "
               "use smaller blocks or fewer stages")


def _dtype(elem: str):
    import triton.language as tl
    names = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "fp8e4b8": "float8e4b8",
             "fp8e5b16": "float8e5b16", "fp8e4b15": "float8e4b15", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
    return getattr(tl, names[elem])


def shared_bytes(ttir: str, stages: int, gpu: GPU) -> int:
    """An estimate of the shared memory of a block: what tl.dot's operands take that are loaded as they are. Those loaded within the loop that multiplies them
    are there as often as its pipeline is deep, which is num_stages from compute capability 9.0 on and num_stages - 1 before it; those loaded outside of it
    once. Operands that are computed stay in registers and count nothing. For matrix products and attention at two stages and more it is what
    Triton's compiler needs for sm_80, sm_86, sm_90 and sm_100, but for 16 bytes and where the store of the result needs more."""
    depth = max(stages if gpu.capability >= (9, 0) else stages - 1, 1)
    sizes = {}
    for op in walk(_whole(ttir).kernel.body):
        if op.name == "tt.dot":
            for v in op.operands[:2]:
                source = _loaded(v)
                if source is not None:
                    again = _loop(source.op) is not None and _loop(source.op) is _loop(op)
                    sizes[source] = v.type.numel * _dtype(v.type.elem).primitive_bitwidth // 8 * (depth if again else 1)
    return sum(sizes.values())


def _whole(ttir: str):
    """A module whose operations know their blocks, and these their regions."""
    module = reader.parse(ttir)
    expand_calls(module)
    return module


def _loaded(value):
    """The loaded tensor that an operand of a product is, or None where it is computed."""
    while value.op is not None and value.op.name in _SAME:
        value = value.op.operands[0]
    return value if value.op is not None and value.op.name in _LOADS else None


def _loop(op):
    """The innermost loop that an operation is in."""
    while op is not None and op.block is not None:
        op = op.block.region.op if op.block.region is not None else None
        if op is not None and op.name in ("scf.for", "scf.while"):
            return op
    return None
