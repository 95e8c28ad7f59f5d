"""Linking for another machine: shared libraries and programs from object files, by whichever linker is at hand.

The Triton wheel has lld inside, for AMD's GPUs; it links any ELF. It is not documented, so it is one of several:
an lld of the system, GNU ld for the target, or Zig's.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..base import Error, Unavailable
from ..cpu.llvm import compile as llvm, ir, targets
from .library import base_row

#: ISA -> the program that loads dynamic executables there (glibc's)
LOADERS = {"riscv64": "/lib/ld-linux-riscv64-lp64d.so.1", "aarch64": "/lib/ld-linux-aarch64.so.1", "x86_64": "/lib64/ld-linux-x86-64.so.2"}
_EMULATION = {"riscv64": "elf64lriscv", "aarch64": "aarch64linux", "x86_64": "elf_x86_64"}
SECONDS = 120

# In a process of its own: it ends that process where it meets what it does not expect, and its paths are relative.
_WHEEL = """
import sys
from triton._C.libtriton import amd
amd.link_hsaco(sys.argv[1], sys.argv[2])
"""


@dataclass(frozen=True)
class Linker:
    """name: for people; run(inputs, output, entry, folder): link files of `folder`, named relative to it."""

    name: str
    command: tuple[str, ...]

    def run(self, arch: str, inputs: list[str], output: str, entry: str, folder: Path):
        if self.name == "triton":  # takes one input, which may be a script for the linker
            (folder / "link.ld").write_text((f"ENTRY({entry})\n" if entry else "") + f"INPUT({' '.join(inputs)})\n")
            command = [*self.command, "link.ld", output]
        else:
            command = [*self.command, "-shared", *(["-m", _EMULATION[arch]] if self.name != "zig" else ["-nostdlib", "-Wl,--no-as-needed", "-target", f"{arch}-linux-gnu"]),
                       *(["-Wl,-e," + entry] if entry and self.name == "zig" else ["-e", entry] if entry else []), "-o", output, *inputs]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Error(f"linker {self.name} did not end within {SECONDS} seconds") from None
        if done.returncode or not (folder / output).is_file():
            raise Error(f"linker {self.name} failed ({' '.join(self.command)}): {(done.stderr or done.stdout).strip()[-2000:] or f'exit {done.returncode}'}")


@functools.lru_cache(maxsize=None)
def linkers(arch: str) -> tuple[Linker, ...]:
    """Those at hand for an ISA (riscv64, aarch64 or x86_64), the first choice first."""
    found = []
    if _wheel_links():
        found.append(Linker("triton", (sys.executable, "-c", _WHEEL)))
    for version in ("", *(f"-{v}" for v in range(30, 13, -1))):
        if shutil.which(f"ld.lld{version}"):
            found.append(Linker(f"ld.lld{version}", (f"ld.lld{version}",)))
            break
    gnu = f"{arch.replace('_', '-')}-linux-gnu-ld"
    if shutil.which(gnu):
        found.append(Linker(gnu, (gnu,)))
    if importlib.util.find_spec("ziglang"):
        found.append(Linker("zig", (sys.executable, "-m", "ziglang", "cc")))
    return tuple(found)


def _wheel_links() -> bool:
    try:
        from triton._C.libtriton import amd
    except ImportError:
        return False
    return hasattr(amd, "link_hsaco")


def linker(arch: str, name: str | None = None) -> Linker:
    """The linker for an ISA; by name (as tests ask for each) or the first choice. TRIPORT_LINKER names one, too. Raises `Unavailable`."""
    name = name or os.environ.get("TRIPORT_LINKER")
    known = linkers(arch)
    for one in known:
        if name in (None, one.name):
            return one
    wanted = f"linker {name!r}" if name else "a linker"
    raise Unavailable(f"{wanted} for {arch} was not found; at hand: {', '.join(x.name for x in known) or 'none'}. The triton wheel of PyPI has one "
                      f"(pip install triton); others are apt-get install lld, apt-get install binutils-{arch.replace('_', '-')}-linux-gnu, pip install ziglang")


def link(objects: list[bytes], row: targets.Target, entry: str = "", libraries: tuple[str, ...] = ("libc.so.6", "libm.so.6"),
         by: str | None = None) -> bytes:
    """A shared library of object files that asks for `libraries` when it is loaded; with an `entry` (a symbol) a program."""
    arch = row.triple.partition("-")[0]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        names = []
        for k, data in enumerate(objects):
            (folder / f"{k}.o").write_bytes(data)
            names.append(f"{k}.o")
        one = linker(arch, by)
        for library in libraries:  # empty ones of these names: what is loaded is the machine's own
            (folder / "empty.o").write_bytes(_empty(arch))
            one.run(arch, ["empty.o"], library, "", folder)
        one.run(arch, [*names, *(f"./{x}" if one.name != "triton" else x for x in libraries)], "out", entry, folder)
        return _without_folders((folder / "out").read_bytes(), libraries)


def _without_folders(data: bytes, libraries) -> bytes:
    """GNU ld and lld write a library without a name of its own as it was given, which has the folder."""
    for library in libraries:
        data = data.replace(b"\0./" + library.encode() + b"\0", b"\0" + library.encode() + b"\0\0\0")
    return data


@functools.lru_cache(maxsize=None)
def _empty(arch: str) -> bytes:
    row = base_row(next(t for t in targets.TARGETS.values() if t.triple.startswith(arch)))
    module = ir.Module("nothing", row.triple, attributes="")
    ir.define(module, "nothing", "void", "hidden").ret()
    return llvm.emit_object(module.render(), row)
