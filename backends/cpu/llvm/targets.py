"""One row per ISA: everything that code generation asks about a machine.

To add an ISA add a row. `native()` is the only place that looks at the machine it runs on.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from dataclasses import dataclass

from ...base import CompileError, suggest


@dataclass(frozen=True)
class Target:
    """A CPU to compile for. The whole row is part of every cache key.

    name: what the user types; triple, cpu, features, abi: LLVM's; vector_bits: width of one vector register
    (RVV: VLEN); registers: how many; dot: (rows, vectors) of the
    matrix micro-kernel, vectors a power of 2; isa: the vector ISA's name for
    people; half: whether it converts f16 by instruction (else integer arithmetic does, not a library call); fma: whether it multiplies and
    adds in one; polynomials: chunks of a loop with exp and the like that go side by side without running out of registers;
    unroll: the same for other loops; dot_unroll: steps along K in the micro-kernel's loop; bf16_dot: what multiplies pairs of bf16 and
    adds them to f32 ("avx512", "neon", "amx", "": nothing); spin: LLVM IR of the instruction for a waiting loop; counter: of one
    that any program may read, which counts on by 2 to 4 a nanosecond, on all cores alike ("": none); futex: Linux's system call number."""

    name: str
    triple: str
    cpu: str
    features: str
    isa: str
    vector_bits: int
    registers: int
    dot: tuple[int, int]
    spin: str = ""
    counter: str = ""
    futex: int = 98
    abi: str = ""
    scalef: bool = False
    half: bool = True
    fma: bool = True
    polynomials: int = 2
    unroll: int = 1
    dot_unroll: int = 4
    bf16_dot: str = ""

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector register."""
        return max(1, self.vector_bits // max(bits, 8))


_X86 = dict(triple="x86_64-unknown-linux-gnu", spin="call void @llvm.x86.sse2.pause()", futex=202, counter="call i64 @llvm.readcyclecounter()")
_ARM = dict(triple="aarch64-unknown-linux-gnu", spin="call void @llvm.aarch64.hint(i32 1)")
_RISCV = dict(triple="riscv64-unknown-linux-gnu", abi="lp64d")
_RVA22V = "+m,+a,+f,+d,+c,+v,+zba,+zbb,+zbs,+zfh,+zvfh"

TARGETS = {t.name: t for t in (
    Target("x86-64-v2", cpu="x86-64-v2", features="", isa="SSE4.2", vector_bits=128, registers=16, dot=(4, 2),
           half=False, fma=False, polynomials=1, **_X86),
    Target("x86-64-v3", cpu="x86-64-v3", features="", isa="AVX2", vector_bits=256, registers=16, dot=(6, 2), polynomials=1,
           **_X86),
    Target("x86-64-v4", cpu="x86-64-v4", features="", isa="AVX-512", vector_bits=512, registers=32, dot=(6, 4),
           scalef=True, polynomials=4, unroll=4, **_X86),
    Target("sapphirerapids", cpu="sapphirerapids", features="", isa="AVX-512", vector_bits=512, registers=32,
           dot=(6, 4), scalef=True, polynomials=4, unroll=4, bf16_dot="amx", **_X86),
    Target("aarch64", cpu="generic", features="+neon", isa="NEON", vector_bits=128, registers=32, dot=(6, 4), dot_unroll=1,
           **_ARM),
    Target("neoverse-v2", cpu="neoverse-v2", features="", isa="NEON", vector_bits=128, registers=32, dot=(6, 4),
           dot_unroll=1, bf16_dot="neon", **_ARM),
    Target("rv64gc", cpu="generic-rv64", features="+m,+a,+f,+d,+c", isa="scalar", vector_bits=32, registers=32,
           dot=(4, 2), half=False, **_RISCV),
    # Any core with vectors: RVA22 with V need not have instructions for f16.
    Target("rv64gcv", cpu="generic-rv64", features="+m,+a,+f,+d,+c,+v,+zvl128b", isa="RVV", vector_bits=128, registers=32,
           dot=(8, 2), dot_unroll=1, half=False, **_RISCV),
    Target("spacemit-x60", cpu="spacemit-x60", features="", isa="RVV", vector_bits=256, registers=32, dot=(8, 2), dot_unroll=1,
           **_RISCV),
    # LLVM 22 has no name for the K3's cores: their features are given instead.
    Target("spacemit-k3-x100", cpu="generic-rv64", features=_RVA22V + ",+zvl256b", isa="RVV", vector_bits=256,
           registers=32, dot=(8, 2), dot_unroll=1, polynomials=1, **_RISCV),
    Target("spacemit-k3-a100", cpu="generic-rv64", features=_RVA22V + ",+zvl1024b", isa="RVV", vector_bits=1024,
           registers=32, dot=(8, 2), dot_unroll=1, **_RISCV),
)}

# The host's row by what the CPU can do, widest first: (machine, required LLVM features, base row).
_NATIVE = (
    ("x86_64", ("avx512f", "avx512bw", "avx512dq", "avx512vl"), "x86-64-v4"),
    ("x86_64", ("avx2", "fma", "f16c", "bmi2"), "x86-64-v3"),
    ("x86_64", ("sse4.2",), "x86-64-v2"),
    ("aarch64", (), "aarch64"),
    ("arm64", (), "aarch64"),
    ("riscv64", ("v",), "rv64gcv"),
    ("riscv64", (), "rv64gc"),
)


def widest(machine: str, features) -> Target | None:
    """The widest row for a machine (as uname has it) whose CPU has `features`, by LLVM's names; None where there is none."""
    return next((TARGETS[base] for arch, needed, base in _NATIVE if machine.lower() == arch and all(f in features for f in needed)), None)


@functools.lru_cache(maxsize=None)
def native() -> Target:
    """The row of the machine this runs on: the widest table row that it supports, with the host's own features."""
    from .host import features as host_features

    machine = platform.machine()
    host = host_features()
    row = widest(machine, {f for f, on in host.items() if on})
    if row is None:
        raise CompileError(f"triton-cpu: no target row for this machine ({machine}); rows: {', '.join(TARGETS)}")
    if row.abi:  # RISC-V: the generic name with the row's features, as LLVM aborts on names it does not know
        return dataclasses.replace(row, name="native")
    # The row's own CPU name is one that LLVM knows; what the host adds comes as features it reported itself.
    tiles = bool(host.get("amx-tile") and host.get("amx-bf16")) and _tiles_granted()
    features = ",".join(f"+{f}" for f, on in sorted(host.items()) if on and (tiles or not f.startswith("amx")))
    bf16 = "amx" if tiles else "avx512" if host.get("avx512bf16") and row.vector_bits == 512 else row.bf16_dot
    return dataclasses.replace(row, name="native", features=features, bf16_dot=bf16)


def _tiles_granted() -> bool:
    """Ask Linux for AMX's tile registers, which a process gets on demand only: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA),
    see the kernel's Documentation/arch/x86/xstate.rst. All threads have them from then on, and children too."""
    import ctypes

    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def with_vlen(name: str, vlen: int) -> Target:
    """A RISC-V row with vector registers of `vlen` bits (a power of two); `get` knows it as NAME:vlenN."""
    row = get(name)
    if row.isa != "RVV" or vlen & (vlen - 1) or not 128 <= vlen <= 4096:
        raise CompileError(f"target {name!r} does not take a vector length of {vlen} bits: RISC-V rows with vectors take a power "
                           "of two from 128 to 4096")
    features = ",".join(f for f in row.features.split(",") if f and not f.startswith("+zvl"))
    return dataclasses.replace(row, name=f"{name}:vlen{vlen}", vector_bits=vlen, features=f"{features},+zvl{vlen}b".lstrip(","))


def get(name: str) -> Target:
    """The row called `name`; "native" is this machine's; "rv64gcv:vlen512" a RISC-V row with other vector registers."""
    if name == "native":
        return native()
    base, sep, vlen = name.partition(":vlen")
    if sep and base in TARGETS and vlen.isdigit():
        return with_vlen(base, int(vlen))
    if name not in TARGETS:
        raise CompileError(suggest("target", name, [*TARGETS, "native"]))
    return TARGETS[name]
