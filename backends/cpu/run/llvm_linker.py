"""Linking objects into this process by LLVM, for what `link.py` does not take: other machines than x86-64, relocations it does not know."""

from __future__ import annotations

import functools
from typing import Callable

import llvmlite.binding as llvm

from . import elf

_engines: set = set()  # code stays mapped as long as its engine is held


@functools.lru_cache(maxsize=1)
def _initialised() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return True


def link(obj: bytes, addresses: dict[str, int], symbols: list[str]) -> tuple[dict[str, int], Callable[[], None]]:
    """(the addresses of an object's `symbols`, 0 for those that it lacks; a function that unmaps them). addresses: of the functions it calls;
    LLVM would end the process for want of one."""
    _initialised()
    for name, address in addresses.items():
        llvm.add_symbol(name, address)
    tm = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), tm)
    engine.add_object_file(llvm.ObjectFileRef.from_data(elf.in_one_section(obj, addresses)))
    engine.finalize_object()
    out = {s: engine.get_function_address(s) for s in symbols}
    _engines.add(engine)

    def unload():
        _engines.discard(engine)
        engine.close()

    return out, unload
