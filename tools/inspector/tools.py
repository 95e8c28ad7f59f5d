"""The outside programs: nvdisasm and cuobjdump from the triton wheel, an objdump for objects. A missing one is named with its package."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...backends.base import Error
from . import relocations
from .isa import ISAS


def run(command: list[str], what: str) -> str:
    """What a tool prints. Raises `Error` with its complaint."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise Error(f"{what} failed: {(done.stderr or done.stdout).strip()[:2000]}")
    return done.stdout


@contextlib.contextmanager
def file_of(data: bytes, suffix: str):
    """The path of a temporary file that holds `data`."""
    with tempfile.NamedTemporaryFile(suffix=suffix) as f:
        f.write(data)
        f.flush()
        yield f.name


def _nvidia(name: str) -> str:
    """A program of the CUDA toolkit: the triton wheel's, else one on PATH."""
    import triton
    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    found = str(own) if own.is_file() else shutil.which(name)
    if not found:
        raise Error(f"{name} was not found: it comes with the triton wheel (pip install triton) and with the CUDA toolkit")
    return found


def sass(cubin: bytes) -> str:
    """SASS of a cubin, with source lines."""
    with file_of(cubin, ".cubin") as path:
        return run([_nvidia("nvdisasm"), "-c", "-gi", path], "nvdisasm")


def cubin_usage(cubin: bytes, function: str | None = None) -> dict[str, int]:
    """Registers, stack (spills) and static shared memory of a cubin's kernel, by cuobjdump."""
    with file_of(cubin, ".cubin") as path:
        text = run([_nvidia("cuobjdump"), "-res-usage", path], "cuobjdump")
    for name, usage in re.findall(r"Function ([^\s:]+):\s*\n\s*(.*)", text):
        if function in (None, name):
            numbers = dict(re.findall(r"(\w+(?:\[\d\])?):(\d+)", usage))
            return {label: int(numbers[key]) for key, label in (("REG", "registers"), ("STACK", "stack, bytes"), ("LOCAL", "local memory, bytes"),
                                                                ("SHARED", "static shared memory, bytes")) if key in numbers}
    return {}


def elf_isa(data: bytes, path) -> str:
    """The ISA of an ELF file by its header. Raises `Error` for others."""
    machine = int.from_bytes(data[18:20], "big" if data[5:6] == b"\2" else "little")
    found = next((i.name for i in ISAS.values() if i.machine == machine), None)
    if found is None:
        raise Error(f"{path} is an ELF file for {_OTHERS.get(machine, f'machine {machine}')}; instructions are known of "
                    f"{', '.join(i.name for i in ISAS.values() if i.machine)}")
    return found


#: ELF's e_machine of what is not classified
_OTHERS = {2: "SPARC", 3: "32-bit x86", 8: "MIPS", 20: "PowerPC", 21: "PowerPC", 22: "s390x", 40: "32-bit Arm", 43: "SPARC", 247: "BPF", 258: "LoongArch"}


def objdump(isa: str) -> str:
    """A disassembler for an ISA: llvm-objdump of any version, or the machine's own objdump for its own code."""
    for version in ("", *(f"-{v}" for v in range(30, 13, -1))):
        if shutil.which(f"llvm-objdump{version}") and (version != "" or _reads(f"llvm-objdump{version}", isa)):
            return f"llvm-objdump{version}"
    import platform
    native = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}.get(platform.machine())
    if isa == native and shutil.which("objdump"):
        return "objdump"
    raise Error(f"no disassembler for {isa} was found: install llvm (apt-get install llvm, or any llvm-NN)"
                + (" or binutils" if isa == native else ""))


def _reads(program: str, isa: str) -> bool:
    """Is the plain `llvm-objdump` new enough? Versions before 16 do not know the vector extensions as they were ratified."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    hit = re.search(r"version (\d+)", text)
    newer = any(shutil.which(f"llvm-objdump-{v}") for v in range(30, 15, -1))
    return bool(hit) and (int(hit[1]) >= 16 or isa == "x86-64" or not newer)


def disassemble(path: Path | str, isa: str) -> str:
    """Disassembly of an object or library with source lines where it has them. What an object leaves to the linker is shown as its relocations say."""
    return disassemble_bytes(Path(path).read_bytes(), isa, path)


def disassemble_bytes(data: bytes, isa: str, name, symbols: tuple[str, ...] = ()) -> str:
    """The same for an object's bytes. name: what to call it; symbols: only these functions, all where it is empty."""
    linked = relocations.resolved(data)
    if linked == data and Path(name).is_file():
        return _disassembly(str(name), isa, data, str(name), symbols)
    with file_of(linked, ".o") as copy:
        return _disassembly(copy, isa, linked, str(name), symbols).replace(copy, str(name))


def _disassembly(path: str, isa: str, data: bytes, name: str, symbols: tuple[str, ...]) -> str:
    program = objdump(isa)
    command = [program, "-d", "-l", *(["-r"] if relocations.relocatable(data) else []), "--no-show-raw-insn", path]
    if symbols and isa != "amdgcn":
        command.insert(1, f"--disassemble-symbols={','.join(symbols)}" if program.startswith("llvm") else f"--disassemble={symbols[0]}")
    if program.startswith("llvm"):
        extra = {"riscv64": "+m,+a,+f,+d,+c,+v,+zfh,+zvfh,+zba,+zbb,+zbs,+zicond", "aarch64": "+all"}.get(isa)
        command[1:1] = [f"--mattr={extra}"] if extra else []
        if isa == "amdgcn":
            command[1:1] = [f"--mcpu={_gfx(data)}"]
    return run(command, f"{program} of {os.path.basename(name)}")


#: EF_AMDGPU_MACH of the ELF flags -> name (LLVM's AMDGPUUsage)
_MACH = {0x30: "gfx908", 0x3f: "gfx90a", 0x4c: "gfx942", 0x4f: "gfx950", 0x41: "gfx1100", 0x46: "gfx1101", 0x4a: "gfx1151", 0x48: "gfx1200",
         0x4e: "gfx1201"}


def _gfx(data: bytes) -> str:
    return _MACH.get(int.from_bytes(data[48:52], "little") & 0xff, "gfx90a")
