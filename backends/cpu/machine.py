"""llvmlite: LLVM IR text -> optimised IR, assembly, object code.

LLVM aborts the process on a CPU name or feature that it does not know, so only the rows of targets.py get here.
"""

from __future__ import annotations

import functools
import re
import threading

import llvmlite.binding as llvm

from ..base import CompileError
from . import masked
from .host import versions  # noqa: F401  (machine.versions: what decides what LLVM makes)
from .targets import Target

_lock = threading.RLock()


@functools.lru_cache(maxsize=None)
def _initialised() -> bool:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return True


@functools.lru_cache(maxsize=None)
def target_machine(target: Target):
    """LLVM's code generator for a row."""
    _initialised()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic",
        codemodel="medium" if target.abi else "default", abiname=target.abi)


def verify(text: str, target: Target):
    """Raise `CompileError` unless LLVM accepts the IR."""
    with _lock:
        _parsed(text, target)


def optimise(text: str, target: Target) -> str:
    """Run LLVM's passes over IR text and return the optimised text."""
    with _lock:
        return masked.as_plain_stores(str(_optimised(text, target)))


def _parsed(text: str, target: Target):
    _initialised()
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


def _optimised(text: str, target: Target):
    tm = target_machine(target)
    module = _parsed(text, target)
    module.data_layout = str(tm.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    # The code is vectorised already; what is left for LLVM is cleaning, hoisting and unrolling.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(tm, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    _close(passes)
    return module


def _close(passes):
    """Free a pass manager: some 140 KiB. llvmlite (0.46 to 0.50) never does, for its method that would comes behind one of ObjectRef that does nothing."""
    from llvmlite.binding import ffi, newpassmanagers
    if type(passes)._dispose is ffi.ObjectRef._dispose:
        newpassmanagers.NewPassManager._dispose(passes)
    passes.close()


def compile_ir(text: str, target: Target) -> tuple[str, str, bytes]:
    """(optimised IR, assembly, object) of LLVM IR text."""
    with _lock:
        llir, tm = optimise(text, target), target_machine(target)
        module = llvm.parse_assembly(llir)
        return llir, tm.emit_assembly(module), tm.emit_object(module)


def emit_assembly(text: str, target: Target) -> str:
    with _lock:
        return target_machine(target).emit_assembly(llvm.parse_assembly(text))


def assemble(text: str, target: Target) -> bytes | None:
    """The object of assembly text, in a fiftieth of the time that code generation would take again; None where LLVM's assembler
    for the target is not to be had here (llvmlite has the host's only)."""
    if target.triple.partition("-")[0] != llvm.get_default_triple().partition("-")[0]:
        return None
    with _lock:
        _initialised()
        llvm.initialize_native_asmparser()
        quoted = text.replace("\\", "\\5C").replace('"', "\\22").split("\n")
        lines = [f'target triple = "{target.triple}"', *(f'module asm "{line}"' for line in quoted)]
        return target_machine(target).emit_object(llvm.parse_assembly("\n".join(lines)))


def emit_object(text: str, target: Target, far: bool = False) -> bytes:
    """The object of LLVM IR text, not optimised as IR. far: it reaches its data wherever they come to lie (RISC-V's reaches 2 GiB)."""
    with _lock:
        tm = target_machine(target)
        if far and not target.abi:
            tm = llvm.Target.from_triple(target.triple).create_target_machine(cpu=target.cpu, features=target.features, opt=3, reloc="static",
                                                                              codemodel="large")
        return tm.emit_object(llvm.parse_assembly(text))
