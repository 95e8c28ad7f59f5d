"""llvmlite: LLVM IR text -> optimised IR, assembly, object code.

LLVM aborts the process on a CPU name or feature that it does not know, so only the rows of targets.py get here; and on IR that its own passes or
its code generator trip over, so these are called behind a guard, and called again at a lower level where they did.
"""

from __future__ import annotations

import ctypes
import functools
import re
import warnings

from ...base import CompileError
from . import guard, ir, masked
from .binding import llvm
from .generator import LEVELS, close, initialised, lock, target_machine
from .host import versions  # noqa: F401  (compile.versions: what decides what LLVM makes)
from .targets import Target

def by_levels(what: str, target: Target, attempt):
    """`attempt(level)` at the first level that LLVM survives. Raises `CompileError` where it survives none."""
    return _by_levels(LEVELS, what, target, attempt)


def plainly(what: str, target: Target, attempt):
    """As `by_levels`, at the lowest one."""
    return _by_levels(LEVELS[-1:], what, target, attempt)


def _by_levels(levels, what: str, target: Target, attempt):
    for level in levels:
        try:
            return attempt(level)
        except guard.Crashed as e:
            crash = e
            warnings.warn(f"triton-cpu: LLVM {versions()['LLVM']} crashed ({e}) while it {what} at level {level} for target {target.name}; it tries again at a "
                          "lower one, and this kernel will be slower", RuntimeWarning, stacklevel=2)
    raise CompileError(f"triton-cpu: LLVM {versions()['LLVM']} crashed ({crash}) while it {what} for target {target.name}, at every level. This is a bug of "
                       "LLVM's that the kernel brings out; write what it computes in another way, or compile it for another target")


def guarded(function, *given) -> int:
    """What one of llvmlite's C functions returns, called with pointers and numbers. Raises `guard.Crashed`."""
    words = [x if isinstance(x, int) else ctypes.cast(getattr(x, "_ptr", x), ctypes.c_void_p).value or 0 for x in given]
    with function._lock:
        return guard.call(ctypes.cast(function._cfn, ctypes.c_void_p).value, *words)


def _emit(text: str, target: Target, machine, use_object: bool, plain: bool = False) -> bytes:
    """What `machine(level)` makes of IR text: assembly, or an object."""
    ffi = llvm.ffi

    def attempt(level: int) -> bytes:
        module, generator = llvm.parse_assembly(text), machine(level)
        with ffi.OutputString() as error:
            try:
                block = guarded(ffi.lib.LLVMPY_TargetMachineEmitToMemory, generator, module, int(use_object), ctypes.pointer(error._ptr))
            except guard.Crashed:
                module.detach()  # nobody may touch what LLVM left as it was
                generator.detach()
                target_machine.cache_clear()
                raise
            if not block:
                raise RuntimeError(str(error))
        memory = ctypes.cast(block, ffi.LLVMMemoryBufferRef)
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)

    return (plainly if plain else by_levels)("generated code", target, attempt)


def verify(text: str, target: Target):
    """Raise `CompileError` unless LLVM accepts the IR."""
    with lock:
        _parsed(text, target)


def optimise(text: str, target: Target, plain: bool = False) -> str:
    """Run LLVM's passes over IR text and return the optimised text; plain: those that leave code as it was written, for debuggers."""
    with lock:
        return masked.as_plain_stores(str(_optimised(text, target, plain)))


def _parsed(text: str, target: Target):
    initialised()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as e:
        line = re.search(r":(\d+):\d+: error", str(e))
        context = ""
        if line:
            lines = text.split("\n")
            n = int(line[1])
            context = "\n" + "\n".join(lines[max(0, n - 2):n + 1])
        raise CompileError(f"triton-cpu made LLVM IR that LLVM does not take (target {target.name}); this is a bug in "
                           f"triport: {e}{context}") from None
    return module


def _optimised(text: str, target: Target, plain: bool):
    ffi = llvm.ffi

    def attempt(level: int):
        tm = target_machine(target)
        module = _parsed(text, target)
        module.data_layout = str(tm.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        # The code is vectorised already; what is left for LLVM is cleaning, hoisting and unrolling.
        options.loop_vectorization = False
        options.slp_vectorization = False
        options.loop_interleaving = False
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(tm, options)
        passes = builder.getModulePassManager()
        try:
            guarded(ffi.lib.LLVMPY_RunNewModulePassManager, passes, module, builder)
        except guard.Crashed:
            for lost in (module, passes, builder):
                lost.detach()
            raise
        close(passes)
        return module

    return (plainly if plain else by_levels)("optimised", target, attempt)


def renamed(text: str, old: str, new: str) -> str:
    """IR text whose function `old` is called `new`, so that one library can hold many, and is seen within that library only."""
    with lock:
        initialised()
        module = llvm.parse_assembly(text)
        for one in (*module.functions, *module.global_variables):
            if one.name == old or one.name.startswith(old + "."):  # what the kernel's globals are called
                one.name = new + one.name[len(old):]
        module.get_function(new).visibility = "hidden"
        return str(module)


def compile_ir(text: str, target: Target) -> tuple[str, str, bytes]:
    """(optimised IR, assembly, object) of LLVM IR text."""
    llir = optimise(text, target)
    return llir, emit_assembly(llir, target), emit_object(llir, target)


def emit_assembly(text: str, target: Target, plain: bool = False, named: bool = False) -> str:
    """Assembly of LLVM IR text; named: with a remark behind each label that says which block of the IR it begins."""
    def machine(level: int):
        generator = target_machine(target, level)
        generator.set_asm_verbosity(named)
        return generator

    with lock:
        return _emit(text, target, machine, False, plain).decode()


def assemble(text: str, target: Target) -> bytes | None:
    """The object of assembly text, in a fiftieth of the time that code generation would take again; None where LLVM's assembler
    for the target is not to be had here (llvmlite has the host's only)."""
    if target.triple.partition("-")[0] != llvm.get_default_triple().partition("-")[0]:
        return None
    with lock:
        initialised()
        llvm.initialize_native_asmparser()
        module = ir.Module("assembly", target.triple, attributes="")
        module.assembly(text)
        return target_machine(target).emit_object(llvm.parse_assembly(module.render()))


def emit_object(text: str, target: Target, plain: bool = False) -> bytes:
    """The object of LLVM IR text, not optimised as IR."""
    with lock:
        return _emit(text, target, functools.partial(target_machine, target), True, plain)
