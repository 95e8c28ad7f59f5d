"""The native code that launches a kernel on a CUDA GPU: a launch's words, as a plan (call.py) fills them in, to cuLaunchKernel.

Parameters go as one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER, CUDA driver API, cuLaunchKernel), laid out as cuFuncGetParamInfo says; those of a cooperative
launch by an array of pointers into it, since such a launch with a buffer cannot be captured (CUDA_ERROR_INVALID_VALUE, CUDA 13.0). A description for the
Tensor Memory Accelerator (CUtensorMap, 128 bytes) depends on the address that it is of and on nothing else that changes: it is kept in a table by address,
and made by whoever is asked where it is not there.
"""

from __future__ import annotations

from ..cpu.llvm.ir import NULL, Builder, Module, Struct, Val, define, i32, i64
from ..cpu.llvm.targets import Target

#: words in front of the descriptions: cuLaunchKernel; cuLaunchKernelEx; cuCtxSetCurrent, the device's context; function; grid; threads; shared memory;
#: blocks of a cluster along the first dimension, or TOGETHER; stream; bytes of parameters; number of descriptions;
#: of parameters, or 0 where they go as one buffer
LAUNCH, EXTENDED, ENTER, CONTEXT, FUNCTION, GRID_X, GRID_Y, GRID_Z, THREADS, SHARED, CLUSTER, STREAM, BYTES, MAPS, PARAMETERS, HEAD = range(16)
#: parameters that an array of pointers has room for; behind the words of the parameters are their offsets, where there is such an array
MOST = 32
#: in place of a cluster's blocks: all blocks are on the GPU at once
TOGETHER = 0
#: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
COOPERATIVE, CLUSTER_DIMENSION = 2, 4
#: a description's words: its table, who makes one, the address, where it goes among the parameters
TABLE, MAKER, ADDRESS, PLACE, PER_MAP = range(5)
#: bytes of a description, and of an entry of a table: the address, then the description from ENTRY_MAP on; entries of a table
MAP, ENTRY, ENTRY_MAP, ENTRIES = 128, 192, 64, 64
INVALID_CONTEXT = 201
#: CUlaunchConfig, and CUlaunchAttribute, whose value takes 64 bytes (cuda.h)
CONFIG = Struct("cuda.config", grid_x="i32", grid_y="i32", grid_z="i32", block_x="i32", block_y="i32", block_z="i32", shared="i32", padding="i32", stream="ptr",
                attributes="ptr", count="i32", end="i32")
ATTRIBUTE = Struct("cuda.attribute", id="i32", padding="i32", x="i32", y="i32", z="i32", rest="[13 x i32]")


def start_ir(target: Target) -> str:
    """LLVM IR of `tp_cuda_start`: words -> CUDA's result, an i64; negative: a description could not be made."""
    m = Module("cuda_calls", target.triple, attributes="")
    b = define(m, "tp_cuda_start", "i64", words="ptr")
    words, = b.fn.args

    def word(k: int) -> Val:
        return b.load("i64", b.gep("i64", words, i64(k)))

    def pointer(k: int) -> Val:
        return b.load("ptr", b.gep("i64", words, i64(k)))

    count = word(MAPS)
    maps = b.gep("i64", words, i64(HEAD))
    parameters = b.gep("i64", maps, b.mul(count, i64(PER_MAP)))
    with b.loop(i64(0), count) as n:
        _describe(b, b.gep("i64", maps, b.mul(n, i64(PER_MAP))), parameters)
    size, extra = b.alloca("i64"), b.alloca("[5 x ptr]")
    b.store(word(BYTES), size)
    for k, v in enumerate((b.address(i64(1), "ptr"), parameters, b.address(i64(2), "ptr"), size, NULL)):
        b.store(v, b.gep("ptr", extra, i64(k)))

    count, pointers = word(PARAMETERS), b.alloca(f"[{MOST} x ptr]")
    offsets = b.gep("i64", parameters, b.lshr(b.add(word(BYTES), 7), 3))
    with b.loop(i64(0), count) as k:
        b.store(b.gep("i8", parameters, b.load("i64", b.gep("i64", offsets, k))), b.gep("ptr", pointers, k))
    buffered = b.icmp("eq", count, i64(0))
    pointers, extra = b.select(buffered, NULL, pointers), b.select(buffered, extra, NULL)

    numbers = [b.cast("trunc", word(k), "i32") for k in (GRID_X, GRID_Y, GRID_Z, THREADS)] + [i32(1), i32(1), b.cast("trunc", word(SHARED), "i32")]
    config, attribute = b.alloca(CONFIG.ty, align=8), b.alloca(ATTRIBUTE.ty, align=8)
    cluster = b.cast("trunc", word(CLUSTER), "i32")
    for name, v in zip(CONFIG.fields, (*numbers, i32(0), pointer(STREAM), attribute, i32(1), i32(0))):
        b.put(CONFIG, config, name, v)
    together = b.icmp("eq", cluster, i32(TOGETHER))
    kind, value = b.select(together, i32(COOPERATIVE), i32(CLUSTER_DIMENSION)), b.select(together, i32(1), cluster)
    for name, v in zip(ATTRIBUTE.fields, (kind, i32(0), value, i32(1), i32(1))):
        b.put(ATTRIBUTE, attribute, name, v)
    status = b.variable(i32(0))

    def launch():
        with b.either(b.icmp("eq", cluster, i32(1))) as (plain, special):
            with plain:
                status.set(b.call(pointer(LAUNCH), "i32", [pointer(FUNCTION), *numbers, pointer(STREAM), NULL, extra]))
            with special:
                status.set(b.call(pointer(EXTENDED), "i32", [config, pointer(FUNCTION), pointers, extra]))

    launch()
    with b.when(b.icmp("eq", status.get(), i32(INVALID_CONTEXT))):  # a thread that has not used the GPU yet: nothing was launched
        b.call(pointer(ENTER), "i32", [pointer(CONTEXT)])
        launch()
    b.ret(b.cast("sext", status.get(), "i64"))
    m.globals += [s.line() for s in (CONFIG, ATTRIBUTE)]
    return m.render()


def _describe(b: Builder, row: Val, parameters: Val):
    """A description goes among the parameters."""
    table, maker, address, place = (b.load("i64", b.gep("i64", row, i64(k))) for k in (TABLE, MAKER, ADDRESS, PLACE))
    number = b.and_(b.lshr(b.mul(b.lshr(address, 8), i64(0x9E3779B1)), 16), i64(ENTRIES - 1))
    entry = b.address(b.add(table, b.mul(number, i64(ENTRY))), "ptr")
    with b.when(b.icmp("ne", b.load("i64", entry), address)):
        made = b.call(b.address(maker, "ptr"), "i32", [entry, address])
        with b.when(b.icmp("ne", made, i32(0))):
            b.ret(i64(-1))
    with b.loop(i64(0), i64(MAP // 8)) as k:
        b.store(b.load("i64", b.gep("i64", entry, b.add(k, ENTRY_MAP // 8))), b.gep("i64", b.gep("i8", parameters, place), k))
