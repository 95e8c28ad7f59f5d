"""Linking for another machine: shared libraries and programs from object files, by whichever linker is at hand.

The Triton wheel has lld inside, for AMD's GPUs; it links any ELF. It is not documented, so it is one of several:
an lld of the system, GNU ld for the target, or Zig's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import memo
from ..base import Error, Unavailable
from ..cpu.llvm import compile as llvm, ir, targets
from .library import base_row

#: ISA -> the program that loads dynamic executables there (glibc's)
LOADERS = {"riscv64": "/lib/ld-linux-riscv64-lp64d.so.1", "aarch64": "/lib/ld-linux-aarch64.so.1", "x86_64": "/lib64/ld-linux-x86-64.so.2"}
_EMULATION = {"riscv64": "elf64lriscv", "aarch64": "aarch64linux", "x86_64": "elf_x86_64"}
SECONDS = 120

# In a process of its own: it ends that process where it meets what it does not expect, and its paths are relative. Python starts there without
# `site`, and the library is loaded without Triton around it: that is a third of the time.
_WHEEL = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("libtriton", sys.argv[1])
libtriton = importlib.util.module_from_spec(found)
found.loader.exec_module(libtriton)
for k in range(2, len(sys.argv), 2):
    libtriton.amd.link_hsaco(sys.argv[k], sys.argv[k + 1])
"""


@dataclass(frozen=True)
class Job:
    """One thing to link: files of a folder, named relative to it; with an `entry` (a symbol) a program."""

    inputs: tuple[str, ...]
    output: str
    entry: str = ""


@dataclass(frozen=True)
class Linker:
    """name: for people; command: of a process that links."""

    name: str
    command: tuple[str, ...]

    def run(self, arch: str, jobs: list[Job], folder: Path):
        """Link files of `folder`, one job after the other: in one process where the linker takes several."""
        if self.name == "triton":  # takes one input, which may be a script for the linker
            scripts = []
            for k, job in enumerate(jobs):
                (folder / f"{k}.ld").write_text((f"ENTRY({job.entry})\n" if job.entry else "") + f"INPUT({' '.join(job.inputs)})\n")
                scripts += [f"{k}.ld", job.output]
            self._start(scripts, jobs, folder)
            return
        zig = self.name == "zig"
        for job in jobs:
            machine = ["-nostdlib", "-Wl,--no-as-needed", "-target", f"{arch}-linux-gnu"] if zig else ["-m", _EMULATION[arch]]
            entry = [f"-Wl,-e,{job.entry}"] if zig else ["-e", job.entry]
            # a shared library without a name of its own is asked for as it is given here: with its folder, or not found
            inputs = [f"./{x}" if x.startswith("lib") else x for x in job.inputs]
            self._start(["-shared", *machine, *(entry if job.entry else []), "-o", job.output, *inputs], [job], folder)

    def _start(self, arguments: list[str], jobs: list[Job], folder: Path):
        command = [*self.command, *arguments]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Error(f"linker {self.name} did not end within {SECONDS} seconds") from None
        if done.returncode or not all((folder / job.output).is_file() for job in jobs):
            raise Error(f"linker {self.name} failed ({' '.join(self.command)}): {(done.stderr or done.stdout).strip()[-2000:] or f'exit {done.returncode}'}")


@functools.lru_cache(maxsize=None)
def linkers(arch: str) -> tuple[Linker, ...]:
    """Those at hand for an ISA (riscv64, aarch64 or x86_64), the first choice first."""
    found = []
    if (library := _wheels_library()) is not None:
        found.append(Linker("triton", (sys.executable, "-I", "-S", "-c", _WHEEL, library)))
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


def _wheels_library() -> str | None:
    """The file of the Triton wheel that has a linker."""
    try:
        from triton._C import libtriton
        return libtriton.__file__ if hasattr(libtriton.amd, "link_hsaco") else None
    except (ImportError, AttributeError):
        return None


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


#: what a bundle asks for when it is loaded
LIBRARIES = ("libc.so.6", "libm.so.6")


def link(wanted: list[tuple[list[bytes], str]], row: targets.Target, libraries: tuple[str, ...] = LIBRARIES, by: str | None = None) -> list[bytes]:
    """What is linked from object files, each with its entry: "" for a shared library, a symbol for a program. All ask for `libraries` when they are
    loaded. by: a linker's name. Raises `Unavailable`, `Error`."""
    arch = row.triple.partition("-")[0]
    one = linker(arch, by)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        names: dict[bytes, str] = {}
        for data in (data for objects, _ in wanted for data in objects):
            if data not in names:
                names[data] = f"{len(names)}.o"
                (folder / names[data]).write_bytes(data)
        made = [Job((*(names[data] for data in objects), *libraries), f"out{k}", entry) for k, (objects, entry) in enumerate(wanted)]
        absent = [x for x in libraries if not _keep_stub(folder / x, _stub_name(arch, one, x))]
        if absent:
            (folder / "empty.o").write_bytes(_empty(arch))
        one.run(arch, [*(Job(("empty.o",), x) for x in absent), *made], folder)
        for x in absent:
            memo.write(_stub_name(arch, one, x), (folder / x).read_bytes())
        return [_without_folders((folder / job.output).read_bytes(), libraries) for job in made]


def _stub_name(arch: str, one: Linker, library: str) -> str:
    """Under which an empty library is kept: what is loaded in its place is the machine's own."""
    return f"stub-{arch}-{one.name}-{library}-{hashlib.sha256(_empty(arch)).hexdigest()[:16]}.kept"


def _keep_stub(path: Path, name: str) -> bool:
    """Write the empty library that is kept as `name` to `path`; False where there is none."""
    kept = memo.read(name)
    if kept is not None:
        path.write_bytes(kept)
    return kept is not None


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
