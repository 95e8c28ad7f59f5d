"""What a kernel's machine code asks of a CPU, by the names that /proc/cpuinfo has for it, and how a CPU is asked (`machine.py`).

On RISC-V that is what the instructions in the object belong to (SpacemiT's IME by LLVM's name: Linux has none).
On x86 and Arm it is what the row lets LLVM emit.
"""

from __future__ import annotations

import re
import struct

from ..base import Error
from ..cpu.llvm import riscv_words as rv
from ..cpu.llvm.targets import Target
from ..cpu.run import elf

#: CPUID's leaves (number, subleaf) that are looked at
LEAVES = ((1, 0), (7, 0), (7, 1), (0x80000001, 0))
EAX, EBX, ECX, EDX = range(4)
#: bits of XCR0: what Linux keeps of a process (SSE and AVX; AVX-512's masks and registers; AMX's tiles)
_YMM, _ZMM, _TILES = 0x6, 0xe6, 0x60006
#: LLVM's name -> (index into LEAVES, register, bit, bits of XCR0)
X86 = {"sse3": (0, ECX, 0, 0), "ssse3": (0, ECX, 9, 0), "cx16": (0, ECX, 13, 0), "sse4.1": (0, ECX, 19, 0), "sse4.2": (0, ECX, 20, 0),
       "movbe": (0, ECX, 22, 0), "popcnt": (0, ECX, 23, 0), "fma": (0, ECX, 12, _YMM), "avx": (0, ECX, 28, _YMM), "f16c": (0, ECX, 29, _YMM),
       "bmi": (1, EBX, 3, 0), "avx2": (1, EBX, 5, _YMM), "bmi2": (1, EBX, 8, 0), "avx512f": (1, EBX, 16, _ZMM), "avx512dq": (1, EBX, 17, _ZMM),
       "avx512ifma": (1, EBX, 21, _ZMM), "avx512cd": (1, EBX, 28, _ZMM), "avx512bw": (1, EBX, 30, _ZMM), "avx512vl": (1, EBX, 31, _ZMM),
       "avx512vbmi": (1, ECX, 1, _ZMM), "avx512vbmi2": (1, ECX, 6, _ZMM), "gfni": (1, ECX, 8, 0), "avx512vnni": (1, ECX, 11, _ZMM),
       "avx512bitalg": (1, ECX, 12, _ZMM), "avx512vpopcntdq": (1, ECX, 14, _ZMM), "amx-bf16": (1, EDX, 22, _TILES),
       "avx512fp16": (1, EDX, 23, _ZMM), "amx-tile": (1, EDX, 24, _TILES), "amx-int8": (1, EDX, 25, _TILES), "avxvnni": (2, EAX, 4, _YMM),
       "avx512bf16": (2, EAX, 5, _ZMM), "amx-fp16": (2, EAX, 21, _TILES), "lzcnt": (3, ECX, 5, 0), "sahf": (3, ECX, 0, 0), "sse4a": (3, ECX, 6, 0), "xop": (3, ECX, 11, _YMM),
       "fma4": (3, ECX, 16, _YMM), "tbm": (3, ECX, 21, 0)}
_V2 = ("sse3", "ssse3", "cx16", "sse4.1", "sse4.2", "popcnt", "sahf")
_V3 = (*_V2, "movbe", "fma", "avx", "f16c", "bmi", "avx2", "bmi2", "lzcnt")
_V4 = (*_V3, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
_SPR = (*_V4, "avx512ifma", "avx512vbmi", "avx512vbmi2", "gfni", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512fp16", "avxvnni", "avx512bf16")
#: AMX's, which kernels with products have and others of the same row have not: LLVM's intrinsics -> feature
_TILE_CODE = {r"llvm\.x86\.(tile|tdp)": "amx-tile", r"llvm\.x86\.tdpbf16": "amx-bf16", r"llvm\.x86\.tdpfp16": "amx-fp16", r"llvm\.x86\.tdpb[su]": "amx-int8"}

#: LLVM's name -> (Linux's name, which word: 0 for AT_HWCAP, 1 for AT_HWCAP2, bit)
ARM = {"lse": ("atomics", 0, 8), "fullfp16": ("asimdhp", 0, 10), "rdm": ("asimdrdm", 0, 12), "complxnum": ("fcma", 0, 14), "rcpc": ("lrcpc", 0, 15),
       "dotprod": ("asimddp", 0, 20), "sve": ("sve", 0, 22), "fp16fml": ("asimdfhm", 0, 23), "lse2": ("uscat", 0, 25), "rcpc-immo": ("ilrcpc", 0, 26),
       "flagm": ("flagm", 0, 27), "sve2": ("sve2", 1, 1), "fptoint": ("frint", 1, 8), "i8mm": ("i8mm", 1, 13), "bf16": ("bf16", 1, 14)}

#: what LLVM's names of CPUs stand for
CPUS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4, "sapphirerapids": _SPR, "graniterapids": _SPR,
        "generic": (), "neoverse-v2": tuple(ARM)}

_OP, _OP_IMM, _OP_32, _OP_IMM_32 = 0x33, 0x13, 0x3b, 0x1b


def _three(opcode: int, *codes: tuple[int, int]) -> list[tuple[int, int]]:
    """(mask, match) of instructions with three registers, by funct7 and funct3."""
    return [(0xfe00707f, seven << 25 | three << 12 | opcode) for seven, three in codes]


def _shift(opcode: int, *codes: tuple[int, int]) -> list[tuple[int, int]]:
    """(mask, match) of those with a shift of 6 bits, by what is above it and funct3."""
    return [(0xfc00707f, six << 26 | three << 12 | opcode) for six, three in codes]


def _two(*codes: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(mask, match) of those with two registers, by opcode, the upper 12 bits and funct3."""
    return [(0xfff0707f, twelve << 20 | three << 12 | opcode) for opcode, twelve, three in codes]


#: extension -> (bit of riscv_hwprobe's key 4, None where it has none and CPUs of one machine may differ; machine code that ends in one of its
#: instructions and `ret`; (mask, match) of its instructions)
RISCV = {
    "zba": (3, "3325a5208280", [*_three(_OP, (0x10, 2), (0x10, 4), (0x10, 6)), *_three(_OP_32, (0x04, 0), (0x10, 2), (0x10, 4), (0x10, 6)),
                                *_shift(_OP_IMM_32, (0x02, 1))]),
    "zbb": (4, "3345a50a8280", [*_three(_OP, (0x20, 7), (0x20, 6), (0x20, 4), (0x05, 4), (0x05, 5), (0x05, 6), (0x05, 7), (0x30, 1), (0x30, 5)),
                                *_three(_OP_32, (0x30, 1), (0x30, 5)), *_shift(_OP_IMM, (0x18, 5)), *_three(_OP_IMM_32, (0x30, 5)),
                                *_two(*((op, 0x600 + k, 1) for op in (_OP_IMM, _OP_IMM_32) for k in (0, 1, 2)), (_OP_IMM, 0x604, 1),
                                      (_OP_IMM, 0x605, 1), (_OP_32, 0x080, 4), (_OP_IMM, 0x287, 5), (_OP_IMM, 0x6b8, 5))]),
    "zbs": (5, "3315a5288280", [(mask, match) for seven, three in ((0x24, 1), (0x24, 5), (0x34, 1), (0x14, 1))
                                for mask, match in (*_three(_OP, (seven, three)), *_shift(_OP_IMM, (seven >> 1, three)))]),
    "zicond": (35, "3355a50e8280", _three(_OP, (0x07, 5), (0x07, 7))),
    "zfh": (27, "5375a5048280", [(0x707f, 0x1007), (0x707f, 0x1027), (0xfff0007f, 0x40200053), (0xfff0007f, 0x42200053),
                                 *((0x0600007f, 0x04000000 | opcode) for opcode in (0x43, 0x47, 0x4b, 0x4f, 0x53))]),
    "zvfh": (30, "57f080cc571484028280", []),
    "xsmtvdot": (None, rv.code([rv.vsetvli(rv.T0, rv.ZERO, 8, 1), rv.vmadot(2, 4, 5)]).hex() + "8280", [(0xfe0040ff, 0xe200002b)]),
}
#: those of them that bundles have code for only where they use them
RARE = ("xsmtvdot",)
_OP_V_FLOAT = ((0x707f, 0x1057), (0x707f, 0x5057))  # arithmetic of vectors of floats, of whatever width


def vlen(row: Target) -> str:
    """The name of what a row asks of vector registers; "" for nothing."""
    return "" if row.length == "fixed" else f"vector registers of {'at least ' * (row.length == 'at least')}{row.vector_bits} bits"


def needed(obj: bytes, llir: str, row: Target) -> tuple[str, ...]:
    """The features that the code of an object for `row` needs, beside those of any CPU of the architecture; llir: LLVM's IR that it was made from."""
    arch = row.triple.partition("-")[0]
    if arch == "riscv64":
        return (*filter(None, [vlen(row)]), *_of_instructions(obj, row.half and "x half>" in llir))
    if row.cpu not in CPUS:
        raise Error(f"target {row.name}: nothing is known of what LLVM's CPU {row.cpu!r} has (backends/spine/features.py)")
    table = X86 if arch == "x86_64" else ARM
    names = {*CPUS[row.cpu], *(f[1:] for f in row.features.split(",") if f.startswith("+"))}
    if arch == "x86_64":
        names -= {n for n in names if n.startswith("amx")}
        names |= {name for part, name in _TILE_CODE.items() if re.search(part, llir)}
    return tuple(n if arch == "x86_64" else table[n][0] for n in table if n in names)


def _of_instructions(obj: bytes, half: bool) -> list[str]:
    """half: may arithmetic of vectors of floats be of 16 bits? The instruction does not say; what came before it does."""
    words = set()
    for s in elf.sections(obj):
        if s.flags & elf.EXEC and s.kind != elf.NOBITS:
            at, end = s.offset, s.offset + s.size
            while at + 2 <= end:
                if obj[at] & 3 == 3 and at + 4 <= end:
                    words.add(struct.unpack_from("<I", obj, at)[0])
                    at += 4
                else:
                    at += 2

    def has(rows) -> bool:
        return any(word & mask == match for mask, match in rows for word in words)

    found = [name for name, (_, _, rows) in RISCV.items() if has(rows)]
    if half and has(_OP_V_FLOAT):
        found.append("zvfh")
    return found


def order(row: Target, names) -> list[str]:
    """Features in one order: the tables'."""
    arch = row.triple.partition("-")[0]
    known = [vlen(row), *RISCV] if arch == "riscv64" else list(X86) if arch == "x86_64" else [name for name, _, _ in ARM.values()]
    wanted = set(names)
    return [n for n in known if n in wanted]
