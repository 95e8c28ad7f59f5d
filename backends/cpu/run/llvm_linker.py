"""Linking objects into this process by LLVM's JITLink, for what `link.py` does not take: other machines than x86-64, relocations it does not know.

JITLink puts all of an object into one piece of memory, with jumps to the functions that it calls, so its references span what they have to wherever
the system has room. It tells the unwinder of its frames. Debuggers it does not tell: we do, of the code (where constants and data came to lie nobody says).
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from . import elf, gdb

_GLOBAL = 1  # a symbol's binding


@functools.lru_cache(maxsize=1)
def _initialised() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return True


class Linked:
    """An object in this process, as `link.Linked`. It stays until `unload`, however few refer to it."""

    def __init__(self, jit, tracker, symbols: dict[str, int], entry, code: tuple[int, int]):
        self.symbols, self._held, self.entry, self.code = symbols, (tracker, jit), entry, code
        _mapped.add(self)

    def unload(self):
        """Give its memory back. Nothing may run in it, or call it afterwards; as `link`, one thread at a time (`launch.placed` has a lock)."""
        _mapped.discard(self)
        gdb.take_back(self.entry)
        for one in self._held:
            one.close()


_mapped: set[Linked] = set()


def link(obj: bytes, addresses: dict[str, int]) -> Linked:
    """Link an object for this machine. addresses: of the functions and data of others that it uses. Raises RuntimeError where LLVM cannot."""
    _initialised()
    symbols = elf.symbols(obj)
    defined = [s for s in symbols if s.name and s.section and s.info >> 4 == _GLOBAL]
    # One LLJIT for each: a library of one that stays leaves 10 KiB behind when it goes, for its name is not forgotten.
    jit = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True), use_jit_link=True)
    library = llvm.JITLibraryBuilder().add_object_img(obj)
    for name, address in addresses.items():
        library.import_symbol(name, address)
    for s in defined:
        library.export_symbol(s.name)
    tracker = library.link(jit, "kernel")
    at = {s.name: tracker[s.name] for s in defined}
    sections, placed = elf.sections(obj), _code_at(obj, defined, at)
    code = [(start, start + sections[index].size) for index, start in placed.items() if sections[index].flags & elf.EXEC]
    bounds = min((c[0] for c in code), default=0), max((c[1] for c in code), default=0)
    return Linked(jit, tracker, at, gdb.show(elf.placed(obj, placed)), bounds)


def _code_at(obj: bytes, defined: list[elf.Symbol], at: dict[str, int]) -> dict[int, int]:
    """Where an object's code came to lie, by its functions, and where its frames might: a debugger reads them in the object, and what they say counts from
    there to the code."""
    sections = elf.sections(obj)
    out = {s.section: at[s.name] - s.value for s in defined if sections[s.section].flags & elf.EXEC}
    behind = max((start + sections[index].size for index, start in out.items()), default=0)
    frames = [s.index for s in sections if s.flags & elf.ALLOC and s.name == ".eh_frame"] if out else []
    return {**out, **dict.fromkeys(frames, behind + -behind % 16)}
