"""What a model of torch's AOTInductor loads of each Triton kernel for the CPU, without a C compiler: two shared libraries.

torch's generated C++ (`torch/csrc/inductor/aoti_runtime/cpu_triton_runtime_wrappers.h`) opens both, takes from the kernel's the symbol by the kernel's
name, from the launcher's `run_from_nativert(grid x, y, z, num_cpu_threads, args, symbol)`, and calls that for every launch. What the symbol is, is between
the two: here a function that packs a launch's arguments and says what went wrong. So the launcher is one file for all kernels of all models, and its
threads and scratch are theirs together. Neither has anything of Python's; both ask for libc and libm alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from .. import memo
from ..base import CompileError, Unsupported, sources_digest, version
from ..cpu.llvm import compile as llvm, host, targets
from ..cpu.llvm.ir import NULL, TRUE, Builder, Module, Val, define, i32, i64
from ..cpu.run import launch, pool
from . import features, glue, library, link, machine, messages

#: the libraries' extensions, as torch asks a compiled kernel for them (`CachingAutotuner.save_cpu_kernel`)
KERNEL, LAUNCHER = "so", "launcher.so"
#: what the launcher's function is called, and its C type in torch's header: what is made here is called that way
ENTRY, CALLED = "run_from_nativert", "void(*)(uint32_t,uint32_t,uint32_t,int,void**,void*)"
_HEADER = "include/torch/csrc/inductor/aoti_runtime/cpu_triton_runtime_wrappers.h"
_RTLD_LAZY_NOLOAD = 5


@dataclass(frozen=True)
class Version:
    """One way that a kernel was compiled."""

    symbol: str
    obj: bytes
    metadata: SimpleNamespace
    needs: tuple[str, ...]


def libraries(kernel, written_by_inductor: bool) -> dict[str, bytes]:
    """Extension -> shared library, for a `CompiledKernel` of this backend's. written_by_inductor: each pointer is to a buffer of its own; a kernel that
    the user wrote may get several into one tensor. Raises `Unsupported` for arguments that torch cannot pass and for a torch that asks for something
    else, `CompileError` where there is nothing to make them from."""
    _same_call()
    if "ttir" not in kernel.asm:
        raise CompileError(f"triton-cpu: kernel {kernel.metadata.name} is in Triton's cache without its TTIR (TRITON_STORE_BINARY_ONLY=1), and its library is "
                           "made from that; unset it and compile with TRITON_ALWAYS_COMPILE=1")
    from ..cpu.compiler import CPUBackend
    from ..cpu.plugin.launcher import signature_of

    m = kernel.metadata
    kept = ("enable_fp_fusion", "sanitize_overflow", "debugger", "asserts")
    options = {k: getattr(m, k) for k in kept} | {"debug": m.asserts, "check": ""}
    given = signature_of(kernel.src), str(kernel.asm["ttir"]), written_by_inductor, options
    row = targets.get(CPUBackend(m.target).row_name)
    return {KERNEL: _kept("aoti-kernel", row, lambda: kernel_library(*given, m.target, row), *given),
            LAUNCHER: _kept("aoti-launcher", row, lambda: launcher_library(row))}


def _same_call():
    """Raise `Unsupported` unless this torch calls a launcher as those made here are called."""
    import torch

    header = Path(torch.__file__).parent / _HEADER
    try:
        text = "".join(header.read_text().split())
    except OSError:
        text = ""
    if f"usingCpuTritonLauncherFn={CALLED};" not in text or f'"{ENTRY}"' not in text:
        raise Unsupported(f"triton-cpu: torch {torch.__version__} calls a kernel's launcher in a way that this triport does not know ({header.name}; "
                          f"it knows {ENTRY}: {CALLED}); package the model with torch 2.13, or let Inductor write "
                          "C++: torch._inductor.config.cpu_backend = \"cpp\"")


def _kept(name: str, row: targets.Target, make, *given) -> bytes:
    """`make()`, from disk where these sources made it of the same before."""
    key = json.dumps([repr(given), repr(row), host.versions(), version(), sources_digest(Path(__file__).parents[1])])
    file = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kept"
    made = memo.read(file)
    if made is None:
        made = make()
        memo.write(file, made)
    return made


def _arguments(name: str, signature: list[tuple[str, object]], taken: list[str]) -> list[tuple[int, str]]:
    """(position among all arguments, type) of those that a launch packs; taken: as the kernel's code has them. Raises `Unsupported`."""
    for label, ty in signature:
        if ty != "constexpr" and not (isinstance(ty, str) and (ty[0] == "*" or ty in launch.PACK)):
            raise Unsupported(f"triton-cpu: kernel {name}: argument {label!r} has type {ty}, which AOTInductor's launch on a CPU cannot pass; it passes "
                              f"tensors and numbers ({', '.join(launch.PACK)})")
    found = [(n, ty) for n, (_, ty) in enumerate(signature) if ty != "constexpr"]
    launch.flatten(name, signature, taken)
    return found


def kernel_library(signature, ttir: str, written_by_inductor: bool, options: dict, target, row: targets.Target) -> bytes:
    """The shared library of one kernel: its code, and a function by its name, which the launcher calls."""
    versions = [_version(ttir, {**options, "assume_disjoint": written_by_inductor}, target, row, "tp_kernel")]
    if versions[0].metadata.most:  # beyond such sizes its numbers might wrap
        versions.append(_version(ttir, {**options, "assume_disjoint": False}, target, row, "tp_kernel_of_any_size"))
    name = versions[0].metadata.name
    arguments = _arguments(name, signature, versions[0].metadata.arguments)
    plain = library.base_row(row)
    needed = features.order(row, (n for v in versions for n in v.needs))
    made = [kernel_ir(name, arguments, versions, needed, row), machine.machine_ir(row, needed)]
    objects = [*(llvm.emit_object(llvm.optimise(text, plain), plain) for text in made), llvm.emit_object(machine.codes_ir(plain, needed), plain)]
    return link.link([([*objects, *(v.obj for v in versions)], "")], row)[0]


def _version(ttir: str, options: dict, target, row: targets.Target, symbol: str) -> Version:
    from ..cpu import compiler

    metadata: dict = {}
    llir = compiler.make_llir(ttir, metadata, compiler.CPUBackend(target).parse_options(options))
    llir = library.to_stderr(llvm.renamed(llir, metadata["name"], symbol))
    obj = llvm.emit_object(llir, row)
    return Version(symbol, obj, SimpleNamespace(**metadata), features.needed(obj, llir, row))


def kernel_ir(name: str, arguments: list[tuple[int, str]], versions: list[Version], needed: list[str], row: targets.Target) -> str:
    """IR of the function `name`: a launch, of which the caller has the grid, torch's array of arguments, how many threads there are, and the functions that
    share programs out. It returns null, or the text of what went wrong, which is the thread's until its next."""
    m, known = Module("glue", row.triple, attributes=""), versions[0].metadata
    for v in versions:
        m.declare(v.symbol, "hidden i64", ["ptr", "ptr", "i64", "i64", "i32", "i32", "i32"])
    m.declare("tp_absent", "hidden i64", [])
    glue.team(m)
    messages.add(m, needed, library.missing_name(name))
    b = define(m, name, "ptr", call="ptr", args="ptr", gx="i64", gy="i64", gz="i64", threads="i64", parallel="ptr", number="ptr")
    call, args, *grid, threads, parallel, number = b.fn.args
    lacking = b.call("tp_absent", "i64", [])
    with b.when(b.icmp("ne", lacking, 0)):
        b.call("say_lacking", "void", [m.string(f"kernel {name}: this CPU lacks "), lacking])
        b.ret(messages.TEXT)
    words = {n: _word(b, ty, b.load("ptr", b.gep("ptr", args, i64(n)))) for n, ty in arguments}
    function, scratch = b.address(Val("ptr", f"@{versions[0].symbol}")), i64(known.scratch_bytes)
    for other in versions[1:]:
        beyond = _beyond(b, known.most, grid, [words[n] for n, _ in arguments], [ty for _, ty in arguments])
        function = b.select(beyond, b.address(Val("ptr", f"@{other.symbol}")), function)
        scratch = b.select(beyond, i64(other.metadata.scratch_bytes), scratch)
    team = b.call("tp_team", "i64", [b.mul(b.mul(grid[0], grid[1]), grid[2]), glue.work(b, known, list(words.values())), threads])
    header = [function, *grid, scratch, b.or_(b.shl(threads, 32), team), b.address(parallel), b.address(number)]
    packed = b.alloca(f"[{len(header) + len(words)} x i64]", "words", 16)
    for k, word in enumerate([*header, *words.values()]):
        b.store(word, b.gep("i64", packed, i64(k)))
    status = b.call(call, "i64", [packed])
    with b.when(b.icmp("eq", status, 0)):
        b.ret(NULL)
    if known.asserts:
        with b.when(b.icmp("ne", status, pool.NO_MEMORY)):
            table = messages.pairs(m, [(f"kernel {name}: device-side assert triggered at {where}", message) for message, where in known.asserts])
            b.call("say_asserted", "void", [table, status, *grid[:2]])
            b.ret(messages.TEXT)
    b.call("say", "void", [m.string(f"kernel {name}: no memory for {known.scratch_bytes} bytes of scratch per thread")])
    b.ret(messages.TEXT)
    return m.render()


def _word(b: Builder, ty: str, given: Val) -> Val:
    """An argument as 8 bytes. torch's array has a tensor's address itself, and of a number where it lies: in a float, a double, or an int64_t."""
    if ty[0] == "*":
        return b.address(given)
    if ty in ("fp32", "f32"):
        return b.cast("zext", b.load("i32", given), "i64")
    return b.load("i64", given)  # the kernel reads the low part: all targets are little-endian


def _beyond(b: Builder, most, grid: list[Val], words: list[Val], types: list[str]) -> Val:
    """Is a size beyond what the first version takes for granted?"""
    found = b.not_(TRUE)
    for kind, place, limit in most:
        value = grid[place] if kind == "grid" else words[place]
        if kind == "argument" and types[place] in ("i32", "u32"):
            value = b.cast("sext" if types[place] == "i32" else "zext", b.cast("trunc", value, "i32"), "i64")
        found = b.or_(found, b.icmp("sgt", value, limit))
    return found


def launcher_library(row: targets.Target) -> bytes:
    """The launcher's shared library, the same for all kernels of an ISA."""
    plain = library.base_row(row)
    made = [launcher_ir(plain), glue.threads_ir(plain)]
    return link.link([([llvm.emit_object(llvm.optimise(text, plain), plain) for text in made], "")], plain)[0]


def launcher_ir(row: targets.Target) -> str:
    """IR of `run_from_nativert`. The threads are those of torch's operators: OpenMP's that libtorch has, as many as at::get_num_threads() says; the library's
    own where there is no OpenMP. torch 2.13 writes num_cpu_threads = 1 into every launch, which nobody chose: more than one are the most that there may be."""
    m = Module("launcher", row.triple, attributes="")
    m.declare("tp_call", "hidden i64", ["ptr"])
    glue.cpus(m)
    at = {n: m.variable(f"found.{n}", "ptr null") for n in ("parallel", "number", "counted", "check")}
    asked, gone = m.variable("found", "i32 0"), m.variable("gone", "i32 0")  # gone: OpenMP's threads are, in a forked child, and it does not know
    _find(m, at, asked, gone)
    _fail(m, at["check"])
    glue.at_fork(m, "forked")
    b = define(m, "forked", "void", "internal")
    b.store(i32(1), gone)
    b.store(NULL, at["parallel"])
    b.ret()
    _run(m, at, asked)
    b = define(m, ENTRY, "void", gx="i32", gy="i32", gz="i32", most="i32", args="ptr", kernel="ptr")
    text = b.call("run", "ptr", b.fn.args)
    with b.when(b.icmp("ne", text, NULL)):
        b.call("fail", "void", [text])
        b.ret()
    b.ret()
    return m.render()


def _run(m: Module, at: dict[str, Val], asked: Val):
    """@run: a launch. Returns what the kernel's function does."""
    b = define(m, "run", "ptr", "internal", "noinline", gx="i32", gy="i32", gz="i32", most="i32", args="ptr", kernel="ptr")
    *sizes, most, args, kernel = b.fn.args
    grid = [b.cast("zext", g, "i64") for g in sizes]
    with b.when(b.icmp("eq", b.mul(b.mul(grid[0], grid[1]), grid[2]), 0)):
        b.ret(NULL)
    with b.when(b.icmp("eq", b.atomic_load("i32", asked, "acquire"), 0)):
        b.call("find", "void", [])
    threads, counted = b.variable(i64(0)), b.atomic_load("ptr", at["counted"])
    with b.when(b.icmp("ne", counted, NULL)):
        threads.set(b.cast("sext", b.call(counted, "i32", []), "i64"))
    with b.when(b.icmp("eq", counted, NULL)):
        threads.set(b.call("tp_cpus", "i64", []))
    said = b.select(b.icmp("sgt", most, 1), b.cast("sext", most, "i64"), i64(pool.MAX_THREADS))
    use = b.smax(b.smin(threads.get(), b.smin(said, pool.MAX_THREADS)), 1)
    b.ret(b.call(kernel, "ptr", [Val("ptr", "@tp_call"), args, *grid, use, b.atomic_load("ptr", at["parallel"]), b.atomic_load("ptr", at["number"])]))


def _find(m: Module, at: dict[str, Val], asked: Val, gone: Val):
    """@find: look for what libtorch calls or has, in the whole process, as the loader did for it (LD_PRELOAD's OpenMP comes before its own), then in it. Any thread
    may, and all find the same."""
    names = {"parallel": ("GOMP_parallel",), "number": ("omp_get_thread_num",), "counted": ("_ZN2at15get_num_threadsEv", "omp_get_max_threads"),
             "check": ("aoti_torch_check",)}
    b = define(m, "find", "void", "internal")
    torch = b.call("dlopen", "ptr", [m.string("libtorch_cpu.so"), i32(_RTLD_LAZY_NOLOAD)])
    for place, symbols in names.items():
        found = b.variable(b.address(NULL))
        for symbol in symbols:
            for among in (NULL, torch):  # null is the whole process, and there may be no libtorch
                with b.when(b.icmp("eq", found.get(), 0)):
                    found.set(b.address(b.call("dlsym", "ptr", [among, m.string(symbol)])))
        b.atomic_store(b.address(found.get(), "ptr"), at[place])
    with b.when(b.or_(b.icmp("eq", b.load("ptr", at["number"]), NULL), b.icmp("ne", b.load("i32", gone), 0))):
        b.atomic_store(NULL, at["parallel"])
    b.atomic_store(i32(1), asked, "release")
    b.ret()


def _fail(m: Module, check: Val):
    """@fail(text): a C++ exception that torch raises, as for an operator that fails; without torch, the text and the process's end. The call of what throws is
    the last thing done, from here and from the launcher, so that no frame of this library is in the unwinder's way: it is not told of them."""
    b = define(m, "fail", "void", "internal", "noinline", text="ptr")
    text, = b.fn.args
    raising = b.atomic_load("ptr", check)
    with b.when(b.icmp("eq", raising, NULL)):
        b.call("dprintf", "i32 (i32, ptr, ...)", [i32(2), m.string("%s\n"), text])
        b.call("abort", "void", [])
        b.unreachable()
    b.call(raising, "void", [i32(0), m.string(ENTRY), m.string("triton-cpu"), i32(0), text])
    b.ret()
