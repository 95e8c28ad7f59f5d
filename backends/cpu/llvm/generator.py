"""LLVM's code generator, as it is: what it breaks over ends the process. For code of our own; kernels go through `compile.py`, behind a guard."""

from __future__ import annotations

import functools
import threading

from ... import forks
from . import targets
from .binding import llvm
from .targets import Target

lock = threading.RLock()
forks.hold(lock, forks.COMPILER)


@functools.lru_cache(maxsize=None)
def initialised() -> bool:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return True


#: levels of LLVM's passes and of its code generator: the next is for what LLVM broke over at the one before
LEVELS = (3, 1, 0)


@functools.lru_cache(maxsize=None)
def target_machine(target: Target, level: int = LEVELS[0]):
    """LLVM's code generator for a row."""
    initialised()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc=target.model[0], codemodel=target.model[1], abiname=target.abi)


def in_registers(text: str) -> str:
    """LLVM IR text whose variables are in memory, with them in registers: all that code of our own needs that is written with a view to what it becomes."""
    with lock:
        initialised()
        module = llvm.parse_assembly(text)
        builder = llvm.create_pass_builder(target_machine(targets.native()), llvm.create_pipeline_tuning_options())
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)
        close(passes)
        return str(module)


def optimised(text: str) -> str:
    """LLVM IR text of our own as LLVM's passes leave it."""
    with lock:
        initialised()
        module = llvm.parse_assembly(text)
        builder = llvm.create_pass_builder(target_machine(targets.native()), llvm.create_pipeline_tuning_options(speed_level=2))
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        close(passes)
        return str(module)


def close(passes):
    """Free a pass manager: some 140 KiB. llvmlite (0.46 to 0.50) never does, for its method that would comes behind one of ObjectRef that does nothing."""
    ffi, newpassmanagers = llvm.ffi, llvm.newpassmanagers
    if type(passes)._dispose is ffi.ObjectRef._dispose:
        newpassmanagers.NewPassManager._dispose(passes)
    passes.close()


def emit_object(text: str, target: Target) -> bytes:
    """The object of LLVM IR text."""
    with lock:
        return target_machine(target).emit_object(llvm.parse_assembly(text))
