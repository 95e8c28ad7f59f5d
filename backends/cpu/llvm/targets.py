"""One row per ISA: everything that code generation asks about a machine. Passes ask a row's fields, never its name or its ISA's.

To add an ISA add a `Target`, and a `Product` for each of its instructions that multiply matrices' elements in pairs. `native()` is the only
place that looks at the machine it runs on.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from dataclasses import dataclass

from ...base import CompileError, suggest


#: of Intel's CPUs with AVX-512. A transposed copy in fp32, gathered over turned, two threads of an Emerald Rapids: tiles of 32 x 32 of 768 x 394 0.81, 3072 x 256 1.50, 1024 squared 1.39, 4096 squared 0.69,
#: 4000 x 4100 0.71; of 64 x 64 0.96, 1.69, 2.17, 0.71, 0.74. In bf16, which nothing gathers, 1.35, 1.87, 2.10, 1.12, 0.92 and 1.56, 2.90, 3.75, 1.31, 1.07
GATHERED = 32
#: of the same. A store whose line is still to come keeps those behind it waiting, and few lines come at a time. One thread of an Ice Lake, 2 to 8 MB in fp32, before over after: `fill` 1.07 to 1.5, a square 1.1 to 1.2,
#: a bias added 1.1 to 1.25, sums of two 1.03; by three terms 2000 x 3 x 2000 1.27; an Emerald Rapids 1.0 to 1.1, with eight threads 1.0 to 1.2. 512 and 1,024 bytes ahead are as good, but for results of products
WRITTEN = 256


@dataclass(frozen=True)
class Product:
    """An instruction for the innermost step of a matrix product: neighbours along K in each lane are multiplied and added up.

    name: for people; takes: TTIR's element type of both operands; packed, acc: the types that operands are packed to and that is added up in;
    intrinsic: LLVM's name; lane: LLVM's type of its operands' elements, or acc's for a lane of them; adds: it takes the accumulators too (else its result is added to
    them); tiles: None for vectors; for AMX's tile registers the multiples of M, N and K that it takes, or half of the latter as all of K; blocks: the same for SpacemiT's IME, which
    multiplies blocks in vector registers and has no intrinsic; shape: (rows, vectors) of the micro-kernel where that is not the target's; group: neighbours in a lane; unsigned:
    its left factors have no sign, so that they are packed 128 larger than they are, and what that adds is taken off again."""

    name: str
    takes: str
    packed: str
    acc: str
    intrinsic: str
    lane: str
    adds: bool = True
    tiles: tuple[int, int, int] | None = None
    shape: tuple[int, int] | None = None
    blocks: tuple[int, int, int] | None = None
    group: int = 2
    unsigned: bool = False


@dataclass(frozen=True)
class Target:
    """A CPU to compile for. The whole row is part of every cache key.

    name: what the user types; triple, cpu, features, abi: LLVM's; isa: the vector ISA's name for people; plain: the row for code that any CPU of
    the architecture runs.

    vector_bits: width of one vector register (RVV: VLEN); length: "fixed" by the ISA, or registers must have "exactly" or "at least" so many
    bits; registers: how many; reloads: whether what a loop needs all along is better read from memory or made anew than kept in a register,
    as where registers are few and instructions take an operand from memory; turns: whether blocks of a matrix are transposed by shuffles; gathers: how long a tile may be along the
    dimension that lanes go over whose elements of 4 bytes and more, side by side along another, are as well gathered (0: none is); masks: whether an
    instruction stores a vector under a mask; group: how many
    registers one instruction had best work on at once, where loops leave room for it (RVV's LMUL); divides: as how many simple
    operations a division of f32 takes, where that is so many that an estimate and its steps are faster; estimate: LLVM's intrinsic for it; divided: how many bits
    integers have of which vectors are best divided by way of floats, where no instruction divides them.

    half: whether it converts f16 by instruction (else integer arithmetic does, not a library call); fma: whether it multiplies and adds in
    one; saturates: whether vectors of floats become the nearest integers that there are by instruction (x86 knows nothing of that); scalef: whether one instruction multiplies a vector of f32 by a power of two (AVX-512's vscalefps); assists: whether a result too small for a
    normal number, zero too, takes hundreds of cycles (x86's microcode assists: 410 to 480 for a vector of exp(-inf) on an Emerald Rapids); to_bf16: LLVM's intrinsic that
    rounds a vector of f32 to bf16 ("": none).

    dot: (rows, vectors) of the matrix micro-kernel, vectors a power of 2; dot_unroll: steps along K in its loop; dot_group: registers in each of its
    vectors; strips: whether A is put into strips of its rows, in K's order, where it serves many columns; ahead: by how many rows B is fetched before it is packed; written: bytes behind a vector that is stored
    where the line is fetched for writing (0: nothing is); few_rows: of A, up to which B is read where it lies and not packed (0 where the last panel's loads have no masks, or cores are in order; Zen 5, one thread,
    us: 8x3984x446 260 -> 135, 32x578x512 100 -> 77; of 64 rows 64x512x1024 294 -> 378); widens: element types whose products are
    computed in f32 by one instruction; products: instructions for
    it, the best first; polynomials: chunks of a loop with exp and the like that go side by side without running out of registers; unroll:
    the same for other loops.

    model: LLVM's relocation and code models; adopts: whether on this
    machine the host's own features take the place of the row's (LLVM ends the process on RISC-V features that it does not know).

    admits: the file that a process writes its number to before it uses these cores' vectors, where the board's Linux has it ("": any process may);
    cores: of the board that has these CPUs (0: not known); scratch: bytes that the operands and accumulators of a thread's product should fit in (0: tiles
    say), as where cores share a small cache and no larger one is behind it.

    exchanges: bytes of neighbours that one compare-and-swap may take, where that takes hardly longer than one element's (0: one element).

    spin: LLVM's intrinsic for a waiting loop and the i32s that it takes (None: there is none); counter: LLVM's intrinsic for a counter that any
    program may read, which counts on by 2 to 4 a nanosecond, on all cores alike ("": none); futex: Linux's system call number; context: where Linux's ucontext_t has program counter,
    stack pointer and, it or the frame of a signal that it is in, the address that an instruction failed to access; and if there may be none, where it has a
    word and which number in it says so."""


    name: str
    triple: str
    cpu: str
    features: str
    isa: str
    vector_bits: int
    registers: int
    dot: tuple[int, int]
    spin: tuple[str, tuple[int, ...]] | None = None
    counter: str = ""
    futex: int = 98
    context: tuple[int, ...] = ()
    abi: str = ""
    plain: str = ""
    length: str = "fixed"
    reloads: bool = False
    turns: bool = True
    gathers: int = 0
    masks: bool = True
    group: int = 1
    divides: int = 0
    estimate: str = ""
    divided: tuple[int, ...] = ()
    scalef: bool = False
    saturates: bool = True
    assists: bool = False
    half: bool = True
    fma: bool = True
    to_bf16: str = ""
    polynomials: int = 2
    unroll: int = 1
    dot_unroll: int = 4
    dot_group: int = 1
    few_rows: int = 32
    strips: bool = False
    ahead: int = 0
    written: int = 0
    widens: tuple[str, ...] = ()
    products: tuple[Product, ...] = ()
    model: tuple[str, str] = ("pic", "default")
    adopts: bool = True
    admits: str = ""
    cores: int = 0
    scratch: int = 0
    exchanges: int = 0

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector register."""
        return max(1, self.vector_bits // max(bits, 8))

    def dot_lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector of the matrix micro-kernel."""
        return self.lanes(bits) * self.dot_group


_X86 = dict(triple="x86_64-unknown-linux-gnu", plain="x86-64-v2", spin=("llvm.x86.sse2.pause", ()), futex=202,
            counter="llvm.readcyclecounter", assists=True, exchanges=16, divided=(8, 16, 32), context=(168, 160, 216, 200, 13), saturates=False)
_AVX512 = _X86 | dict(divided=(8, 16, 32, 64), isa="AVX-512", vector_bits=512, registers=32, dot=(6, 4), scalef=True, polynomials=4, unroll=4)
_ARM = dict(triple="aarch64-unknown-linux-gnu", plain="aarch64", divided=(8, 16, 32), spin=("llvm.aarch64.hint", (1,)), context=(440, 432, 176))
_RISCV = dict(triple="riscv64-unknown-linux-gnu", plain="rv64gc", abi="lp64d", model=("pic", "medium"), turns=False,
              adopts=False, context=(176, 192, -112))
_RVV = dict(length="exactly", dot=(8, 2), dot_unroll=1, few_rows=0, isa="RVV", registers=32, **_RISCV)


def _pmaddwd(name: str) -> Product:
    """Pairs of 16-bit integers: SSE2's instruction and its wider likes."""
    return Product("pmaddwd", "i8", "i16", "i32", f"llvm.x86.{name}", "i16", adds=False)


_SSE_PAIRS, _AVX2_PAIRS, _AVX512_PAIRS = map(_pmaddwd, ("sse2.pmadd.wd", "avx2.pmadd.wd", "avx512.pmaddw.d.512"))
_AVX512_BF16 = Product("avx512", "bf16", "bf16", "f32", "llvm.x86.avx512bf16.dpbf16ps.512", "bfloat")
_AMX_BF16 = Product("amx", "bf16", "bf16", "f32", "llvm.x86.tdpbf16ps", "bfloat", tiles=(16, 16, 32), shape=(32, 2))
_AMX_FP16 = Product("amx", "f16", "f16", "f32", "llvm.x86.tdpfp16ps", "half", tiles=(16, 16, 32), shape=(32, 2))
_AMX_INT8 = Product("amx", "i8", "i8", "i32", "llvm.x86.tdpbssd", "i8", tiles=(16, 16, 64), shape=(32, 2), group=4)
_NEON_BF16 = Product("neon", "bf16", "bf16", "f32", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", "bfloat")
_IME = Product("ime", "i8", "i8", "i32", "", "i8", shape=(8, 1), blocks=(4, 4, 8), group=8)
_VNNI, _AVX512_VNNI = (Product("vnni", "i8", "i8", "i32", f"llvm.x86.avx512.vpdpbusd.{bits}", "i32", group=4, unsigned=True) for bits in (256, 512))
_CVTNEPS = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_HAS_BF16 = dict(products=(_AVX512_BF16, _AVX512_VNNI, _AVX512_PAIRS), to_bf16=_CVTNEPS)
_HAS_AMX = dict(products=(_AMX_BF16, _AMX_INT8, _AVX512_BF16, _AVX512_VNNI, _AVX512_PAIRS), to_bf16=_CVTNEPS)
_HAS_AMX_FP16 = _HAS_AMX | dict(products=(_AMX_FP16, *_HAS_AMX["products"]))
#: half of the 512 KiB that four of a K1's cores share, for one of them
_K1_SCRATCH = 512 // 2 // 4 << 10
_RVA22V = "+m,+a,+f,+d,+c,+v,+zba,+zbb,+zbs,+zfh,+zvfh"

TARGETS = {t.name: t for t in (
    Target("x86-64-v2", cpu="x86-64-v2", features="", isa="SSE4.2", vector_bits=128, registers=16, dot=(4, 2),
           masks=False, few_rows=0, half=False, fma=False, polynomials=1, reloads=True, products=(_SSE_PAIRS,), **_X86),
    Target("x86-64-v3", cpu="x86-64-v3", features="", isa="AVX2", vector_bits=256, registers=16, dot=(6, 2), polynomials=1, ahead=16,
           reloads=True, products=(_AVX2_PAIRS,), **_X86),
    Target("x86-64-v4", cpu="x86-64-v4", features="", products=(_AVX512_PAIRS,), **_AVX512),
    Target("sapphirerapids", cpu="sapphirerapids", features="", gathers=GATHERED, written=WRITTEN, **_HAS_AMX, **_AVX512),
    Target("graniterapids", cpu="graniterapids", features="", gathers=GATHERED, written=WRITTEN, **_HAS_AMX_FP16, **_AVX512),
    Target("aarch64", cpu="generic", features="+neon", isa="NEON", vector_bits=128, registers=32, dot=(6, 4), dot_unroll=1,
           masks=False, few_rows=0, **_ARM),
    Target("neoverse-v2", cpu="neoverse-v2", features="", isa="NEON", vector_bits=128, registers=32, dot=(6, 4),
           dot_unroll=1, products=(_NEON_BF16,), **_ARM),
    Target("rv64gc", cpu="generic-rv64", features="+m,+a,+f,+d,+c", isa="scalar", vector_bits=32, registers=32,
           dot=(4, 2), half=False, **_RISCV),
    # Any core with vectors: RVA22 with V need not have instructions for f16.
    Target("rv64gcv", cpu="generic-rv64", features="+m,+a,+f,+d,+c,+v,+zvl128b", vector_bits=128, half=False,
           **(_RVV | dict(length="at least"))),
    # In order, and twice as long waiting for a result as working on one register: four at once.
    Target("spacemit-x60", cpu="spacemit-x60", features="", vector_bits=256, group=4, divides=40, estimate="llvm.riscv.vfrec7",
           strips=True, widens=("f16",),
           cores=8, scratch=_K1_SCRATCH, **(_RVV | dict(dot=(8, 1), dot_group=2, dot_unroll=4))),
    # LLVM 22 has no name for the K3's cores: their features are given instead.
    Target("spacemit-k3-x100", cpu="generic-rv64", features=_RVA22V + ",+zvl256b", vector_bits=256, polynomials=1, **_RVV),
    Target("spacemit-k3-a100", cpu="generic-rv64", features=_RVA22V + ",+zvl1024b", vector_bits=1024,
           admits="/proc/set_ai_thread", **_RVV),
)}

#: the row of a K1 whose kernels run on the four cores that have IME, which nobody gets who does not ask for it
X60_IME = dataclasses.replace(TARGETS["spacemit-x60"], name="spacemit-x60:ime", products=(_IME,), cores=4)
#: what `get` knows by name
NAMES = (*TARGETS, X60_IME.name)
#: names of chips that people have -> the row of the cores on which programs start there
ALIASES = {"k1": "spacemit-x60", "m1": "spacemit-x60", "k3": "spacemit-k3-x100"}
#: names that people try -> what they mean, for the sentence about an unknown one
_MEANT = {"spacemit-k1": "spacemit-x60", "spacemit-m1": "spacemit-x60", "spacemit-k3": "spacemit-k3-x100", "x60": "spacemit-x60", "x100": "spacemit-k3-x100",
          "a100": "spacemit-k3-a100", "spacemit-x100": "spacemit-k3-x100", "spacemit-a100": "spacemit-k3-a100", "k3-x100": "spacemit-k3-x100",
          "k3-a100": "spacemit-k3-a100", "bpi-f3": "k1", "bananapi-f3": "k1", "jupiter": "k1", "muse-pi": "k1", "spacemit": "k1"}

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
    if not row.adopts:
        return dataclasses.replace(row, name="native", length="fixed" if row.length == "fixed" else "exactly")
    # The row's own CPU name is one that LLVM knows; what the host adds comes as features it reported itself.
    tiles = all(host.get(f) for f in ("amx-tile", "amx-bf16", "amx-int8")) and _tiles_granted()
    features = ",".join(f"+{f}" for f, on in sorted(host.items()) if on and (tiles or not f.startswith("amx")))
    amx = _HAS_AMX_FP16 if host.get("amx-fp16") else _HAS_AMX
    more = amx if tiles else _HAS_BF16 if host.get("avx512bf16") and row.name == "x86-64-v4" else {}
    if not more and host.get({"x86-64-v4": "avx512vnni", "x86-64-v3": "avxvnni"}.get(row.name)):
        more = dict(products=(_AVX512_VNNI if row.name == "x86-64-v4" else _VNNI, *row.products))
    # "clzero" is AMD's Zen alone, which takes small results in its stride: 59 us for exp of 64 x 4096 numbers, whether -inf, -95 or 0 (Zen 4)
    amd = bool(host.get("clzero"))
    if not amd and row.vector_bits == 512:
        more = more | dict(gathers=GATHERED, written=WRITTEN if host.get("prfchw") else 0)
    return dataclasses.replace(row, name="native", features=features, assists=row.assists and not amd, **more)


def _tiles_granted() -> bool:
    """Ask Linux for AMX's tile registers, which a process gets on demand only: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA),
    see the kernel's Documentation/arch/x86/xstate.rst. All threads have them from then on, and children too."""
    import ctypes

    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def with_vlen(name: str, vlen: int) -> Target:
    """A RISC-V row with vector registers of `vlen` bits (a power of two); `get` knows it as NAME:vlenN."""
    row = get(name)
    if any(p.blocks for p in row.products):
        raise CompileError(f"target {name!r} does not take a vector length: the instructions that it is for multiply blocks of registers of {row.vector_bits} bits")
    if row.length == "fixed" or vlen & (vlen - 1) or not 128 <= vlen <= 4096:
        raise CompileError(f"target {name!r} does not take a vector length of {vlen} bits: RISC-V rows with vectors take a power "
                           "of two from 128 to 4096")
    features = ",".join(f for f in row.features.split(",") if f and not f.startswith("+zvl"))
    return dataclasses.replace(row, name=f"{name}:vlen{vlen}", length="exactly", vector_bits=vlen, features=f"{features},+zvl{vlen}b".lstrip(","))


def get(name: str) -> Target:
    """The row called `name`, or that of a chip called so (`ALIASES`); "native" is this machine's; "rv64gcv:vlen512" a RISC-V row with other vector registers;
    "spacemit-x60:ime" the K1's with products of int8 by SpacemiT's IME."""
    if name == "native":
        return native()
    if name == X60_IME.name:
        return X60_IME
    base, sep, vlen = name.partition(":vlen")
    base = ALIASES.get(base.lower(), base)
    if sep and base in TARGETS and vlen.isdigit():
        return with_vlen(base, int(vlen))
    if sep or base not in TARGETS:
        raise CompileError(unknown(name, [*NAMES, *ALIASES, "native"]))
    return TARGETS[base]


def unknown(name: str, known) -> str:
    """The sentence for a target that is none."""
    return suggest("target", name, known, _MEANT)
