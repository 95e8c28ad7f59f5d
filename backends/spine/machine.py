"""What asks the CPU, in a bundle: has it the features that the bundle's kernels use?

Everything here is compiled for any CPU of the architecture. x86 is asked by CPUID, and XCR0 says what Linux keeps of registers; Arm by Linux's
AT_HWCAP words. On RISC-V Linux may know less than the CPU can do (riscv_hwprobe is of 6.4, and learnt of Zvfh in 6.8), so what it does not affirm is
tried: a child process executes one instruction, and dies or does not. What some CPUs of one machine have and others have not (SpacemiT's IME) is tried
on each that this process may run on.
"""

from __future__ import annotations

from ..cpu.llvm.ir import FALSE, NULL, TRUE, Module, Val, define, i32, i64
from ..cpu.llvm.targets import Target
from . import features

#: machine code that LLVM has no intrinsics for: name -> (ISA, parameters, bytes)
_CODE = {
    "code_cpuid": ("x86_64", {"leaf": "i32", "sub": "i32", "to": "ptr"}, "53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3"),
    "code_xcr0": ("x86_64", {}, "31c9 0f01d0 48c1e220 4809d0 c3"),
    "code_vlenb": ("riscv64", {}, "732520c2 8280"),
    **{f"code_{name}": ("riscv64", {}, code) for name, (_, code, _) in features.RISCV.items()},
}
_HWCAP, _HWCAP2 = 16, 26  # of getauxval
_HWPROBE, _IMA_EXT_0 = 258, 4
_CLONE, _WAIT4, _PRCTL, _EXIT_GROUP, _SETAFFINITY = 220, 260, 167, 94, 122
MASK_WORDS = 16  # of a set of CPUs: 1024
_SIGCHLD, _SIGILL, _WALL, _EINTR, _NOT_DUMPABLE = 17, 4, 0x40000000, 4, 4
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # x86: a process asks for AMX's registers before it uses them


def codes_ir(row: Target, needed: list[str]) -> str:
    """IR of functions that are machine code: what LLVM takes for data before a function's own code. Not to be optimised: by its IR none returns."""
    arch, m = row.triple.partition("-")[0], Module("codes", row.triple, attributes="")
    for name, (isa, parameters, text) in _CODE.items():
        if isa == arch and _wanted(name, needed):
            data = bytes.fromhex(text.replace(" ", ""))
            constant = "".join(f"\\{byte:02X}" for byte in data)
            define(m, name, "i64", "hidden", f'naked noinline prologue [{len(data)} x i8] c"{constant}"', **parameters).unreachable()
    return m.render()


def _wanted(code: str, needed: list[str]) -> bool:
    name = code.removeprefix("code_")
    return name not in features.RARE or name in needed


def machine_ir(row: Target, needed: list[str]) -> str:
    """IR of tp_vlen(), the bits of a vector register of RISC-V's (0: there is none), and tp_absent(), a word with bit k where this CPU lacks the
    k-th of `needed`. What a CPU has does not change: it is asked once."""
    arch = row.triple.partition("-")[0]
    m = Module("machine", row.triple, attributes="")
    for name, (isa, parameters, _) in _CODE.items():
        if isa == arch and _wanted(name, needed):
            m.declare(name, "hidden i64", list(parameters.values()))
    _vlen(m, arch == "riscv64")
    if arch == "riscv64":
        _try(m, "try")
        if any(features.RISCV[n][0] is None for n in needed if n in features.RISCV):
            _try(m, "try_on", on="ptr")
            _try_everywhere(m)
    absent = m.variable("absent", "i64 -1", "internal global")
    b = define(m, "tp_absent", "i64", "hidden")
    before = b.atomic_load("i64", absent)
    with b.when(b.icmp("ne", before, -1)):
        b.ret(before)
    has = {"riscv64": _riscv, "x86_64": _x86, "aarch64": _arm}[arch](b, row, needed)
    out = b.variable(i64(0))
    for k, name in enumerate(needed):
        with b.when(b.not_(has(name))):
            out.set(b.or_(out.get(), 1 << k))
    b.atomic_store(out.get(), absent)
    b.ret(out.get())
    return m.render()


def _vlen(m: Module, vectors: bool):
    b = define(m, "tp_vlen", "i64", "hidden")
    if vectors:  # Linux has a bit for each letter of the ISA
        with b.when(b.icmp("ne", b.and_(b.call("getauxval", "i64", [i64(_HWCAP)]), 1 << (ord("V") - ord("A"))), 0)):
            b.ret(b.mul(b.call("code_vlenb", "i64", []), 8))
    b.ret(i64(0))


def _syscall(b, number: int, *given: Val | int) -> Val:
    words = [x if isinstance(x, Val) else i64(x) for x in given]
    return b.call("syscall", "i64 (i64, ...)", [i64(number), *words])


def _try(m: Module, name: str, **on: str):
    """name(code): does this CPU execute it? A child with memory of its own does, and says so in a page that it shares, or dies: without a trace, and
    without a signal to its parent where Linux allows that. on: a parameter more, the set of CPUs that the child keeps to."""
    b = define(m, name, "i1", "internal", "noinline", code="ptr", **on)
    code, *cpus = b.fn.args
    page = b.call("mmap", "ptr", [NULL, i64(4096), i32(3), i32(0x21), i32(-1), i64(0)])  # read and write; shared, anonymous
    with b.when(b.icmp("eq", b.address(page), -1)):
        b.ret(FALSE)
    child = b.variable(_syscall(b, _CLONE, 0, 0, 0, 0, 0))
    with b.when(b.icmp("slt", child.get(), 0)):  # QEMU's has to signal
        child.set(_syscall(b, _CLONE, _SIGCHLD, 0, 0, 0, 0))
    with b.when(b.icmp("eq", child.get(), 0)):
        _syscall(b, _PRCTL, _NOT_DUMPABLE, 0, 0, 0, 0)
        b.call("signal", "ptr", [i32(_SIGILL), NULL])
        for mask in cpus:
            with b.when(b.icmp("ne", _syscall(b, _SETAFFINITY, 0, 8 * MASK_WORDS, mask), 0)):
                _syscall(b, _EXIT_GROUP, 0)
        b.call(code, "i64", [])
        b.store(i64(1), page, volatile=True)
        _syscall(b, _EXIT_GROUP, 0)
        b.unreachable()
    with b.when(b.icmp("sgt", child.get(), 0)):
        with b.forever() as waiting:
            ended = _syscall(b, _WAIT4, child.get(), NULL, _WALL, NULL)
            waiting.leave(b.icmp("sge", ended, 0))
            waiting.leave(b.icmp("ne", b.load("i32", b.call("__errno_location", "ptr", [])), _EINTR))
    said = b.load("i64", page, volatile=True)
    b.call("munmap", "i32", [page, i64(4096)])
    b.ret(b.icmp("ne", said, 0))


def _try_everywhere(m: Module):
    """try_everywhere(code): do all CPUs execute it that this process may run on?"""
    b = define(m, "try_everywhere", "i1", "internal", "noinline", code="ptr")
    code, = b.fn.args
    mine, one = (b.alloca(f"[{MASK_WORDS} x i64]", name, 8) for name in ("mine", "one"))
    for mask in (mine, one):
        with b.loop(i64(0), i64(MASK_WORDS)) as k:
            b.store(i64(0), b.gep("i64", mask, k))
    with b.when(b.icmp("ne", b.call("sched_getaffinity", "i32", [i32(0), i64(8 * MASK_WORDS), mine]), 0)):
        b.ret(FALSE)
    with b.loop(i64(0), i64(64 * MASK_WORDS)) as cpu:
        word, bit = b.lshr(cpu, 6), b.shl(i64(1), b.and_(cpu, 63))
        with b.when(b.icmp("ne", b.and_(b.load("i64", b.gep("i64", mine, word)), bit), 0)):
            b.store(bit, b.gep("i64", one, word))
            with b.when(b.not_(b.call("try_on", "i1", [code, one]))):
                b.ret(FALSE)
            b.store(i64(0), b.gep("i64", one, word))
    b.ret(TRUE)


def _riscv(b, row: Target, needed: list[str]):
    pair = b.alloca("[2 x i64]", "pair", 8)
    b.store(i64(_IMA_EXT_0), pair)
    value = b.gep("i64", pair, i64(1))
    b.store(i64(0), value)
    asked = _syscall(b, _HWPROBE, pair, 1, 0, NULL, 0)
    known = b.and_(b.icmp("eq", asked, 0), b.icmp("eq", b.load("i64", pair), _IMA_EXT_0))  # a kernel that knows no such key writes -1
    bits = b.select(known, b.load("i64", value), i64(0))

    def has(name: str) -> Val:
        if name == features.vlen(row):
            return b.icmp("uge" if row.length == "at least" else "eq", b.call("tp_vlen", "i64", []), row.vector_bits)
        if features.RISCV[name][0] is None:
            return b.call("try_everywhere", "i1", [Val("ptr", f"@code_{name}")])
        said = b.icmp("ne", b.and_(bits, 1 << features.RISCV[name][0]), 0)
        out = b.variable(said)
        with b.when(b.not_(said)):
            out.set(b.call("try", "i1", [Val("ptr", f"@code_{name}")]))
        return out.get()

    return has


def _x86(b, row: Target, needed: list[str]):
    leaves = b.alloca(f"[{4 * (len(features.LEAVES) + 1)} x i32]", "leaves", 16)

    def ask(leaf: int, sub: int, to: int) -> Val:
        at = b.gep("i32", leaves, i64(4 * to))
        b.call("code_cpuid", "i64", [i32(leaf), i32(sub), at])
        return b.load("i32", at)

    last = len(features.LEAVES)
    for k in range(4 * last):
        b.store(i32(0), b.gep("i32", leaves, i64(k)))
    for k, (leaf, sub) in enumerate(features.LEAVES):
        most = ask(leaf & 0x80000000, 0, last)
        with b.when(b.icmp("uge", most, leaf if leaf < 1 << 31 else leaf - (1 << 32))):
            ask(leaf, sub, k)
    words = {(k, r): b.load("i32", b.gep("i32", leaves, i64(4 * k + r))) for k in range(last) for r in range(4)}
    kept = b.variable(i64(0))
    with b.when(b.icmp("ne", b.and_(words[0, features.ECX], 1 << 27), 0)):  # OSXSAVE
        kept.set(b.call("code_xcr0", "i64", []))
    if any(n.startswith("amx") for n in needed):
        refused = b.icmp("ne", _syscall(b, _ARCH_PRCTL, _REQUEST, _TILE_DATA), 0)
        kept.set(b.select(refused, b.and_(kept.get(), 0xffff), kept.get()))
    xcr0 = kept.get()

    def has(name: str) -> Val:
        leaf, register, bit, state = features.X86[name]
        there = b.icmp("ne", b.and_(b.lshr(words[leaf, register], bit), 1), 0)
        return b.and_(there, b.icmp("eq", b.and_(xcr0, state), state)) if state else there

    return has


def _arm(b, row: Target, needed: list[str]):
    words = [b.call("getauxval", "i64", [i64(which)]) for which in (_HWCAP, _HWCAP2)]
    where = {name: (word, bit) for name, word, bit in features.ARM.values()}

    def has(name: str) -> Val:
        word, bit = where[name]
        return b.icmp("ne", b.and_(words[word], 1 << bit), 0)

    return has
