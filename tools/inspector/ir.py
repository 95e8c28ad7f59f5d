"""Intermediate code in files, TTIR, TTGIR and LLVM IR: compiled for a target, then judged as any other kernel.

LLVM IR is translated as it stands: no passes over it, so that what is judged is what was written."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ...backends.base import CompileError, Error
from . import code as codes
from . import targets, tools
from .code import Code
from .targets import Goal

#: machine of LLVM IR -> the target where the user named none
_TARGETS = {"x86_64": "x86-64-v3", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "rv64gcv", "nvptx64": "sm_90", "amdgcn": "gfx942"}


def language(text: str) -> str | None:
    """"ttir", "ttgir" or "llir" where a text is one of these, else None."""
    head = text[:1_000_000]
    if re.search(r"^\s*tt\.func\b", head, re.M):
        return "ttgir" if "ttg.num-warps" in head or "#ttg." in head else "ttir"
    if re.search(r"^define\s[^\n]*@", head, re.M) or re.search(r"^; ModuleID|^target triple\s*=", head, re.M):
        return "llir"
    return None


def compiled(text: str, kind: str, path: Path, function: str, goal: Goal | None, vlen: int | None) -> Code:
    """The code of an IR file for a target (default: the IR's own machine, else native). Raises `Error`, `CompileError` with the line."""
    if kind == "llir":
        goal = goal or _of_triple(text, path, vlen)
        return _llvm(text, path, function, goal) if goal.backend == "cpu" else _device_llvm(text, path, function, goal)
    goal = goal or targets.get(_of_ttgir(text), vlen)
    if kind == "ttgir" and not goal.gpu:
        raise Error(f"{path} is TTGIR, whose layouts are a GPU's; --target takes sm_NN or gfxNNN for it, not {goal.name}. The kernel's TTIR goes with every target")
    names = re.findall(r"^\s*tt\.func\s+(?:public\s+)?@([\w$.]+)", text, re.M)
    if function and function not in names:
        raise Error(f"{path} has the kernels {', '.join(names)}, not {function}")
    return _triton(text, kind, path, goal)


def _of_ttgir(text: str) -> str:
    hit = re.search(r'ttg\.target\s*=\s*"(?:cuda|hip):(\w+)"', text)
    return "native" if hit is None else f"sm_{hit[1]}" if hit[1].isdigit() else hit[1]


def _machine(text: str) -> str:
    """The machine that LLVM IR is for, as triples begin; "" where it does not say."""
    hit = re.search(r'^target triple\s*=\s*"([^"-]+)', text, re.M)
    said = hit[1] if hit else ""
    if said.startswith("nvptx") or re.search(r"\bptx_kernel\b|@llvm\.nvvm\.", text):
        return "nvptx64"
    if said.startswith(("amdgcn", "amdgpu")) or re.search(r"\bamdgpu_kernel\b|@llvm\.amdgcn\.", text):
        return "amdgcn"
    return said


def _of_triple(text: str, path: Path, vlen: int | None) -> Goal:
    said = _machine(text)
    native = targets.get("native")
    if not said or native.row.triple.partition("-")[0] == said:
        return native
    if said not in _TARGETS:
        raise Error(f"{path} is LLVM IR for {said}; say what to compile it for with --target, for example --target rv64gcv")
    cpu = re.search(r'"target-cpu"="((?:sm_\d+|gfx\w+))', text)
    return targets.get(cpu[1] if cpu and cpu[1] in targets.names() else _TARGETS[said], vlen if said == "riscv64" else None)


def _triton(text: str, kind: str, path: Path, goal: Goal) -> Code:
    import triton

    from ...backends import active
    with tempfile.TemporaryDirectory() as folder, active.compiling_for(goal.triton()):
        file = Path(folder) / f"{path.stem}.{kind}"
        file.write_text(text)
        try:
            made = triton.compile(str(file), target=goal.triton())
        except Error:
            raise
        except Exception as e:
            said = str(e).strip() or type(e).__name__
            raise CompileError(f"{path} does not compile for {goal.name}: {said.replace(str(file), str(path))}") from e
    code = codes.of_compiled(made, goal)
    code.name = code.name.lstrip("@")
    code.only = (code.name,) if code.only else ()
    code.stages = {kind: text, **code.stages}
    return code


# --- LLVM IR ---------------------------------------------------------------------------------------------------------


def _portable(text: str, goal: Goal) -> str:
    """IR text without what it says of its machine: the target decides."""
    text = re.sub(r"^target (?:triple|datalayout)\s*=.*\n", "", text, flags=re.M)
    return re.sub(r'"(?:target-cpu|target-features|tune-cpu)"="[^"]*"', "", text) if goal.backend == "cpu" else text


def _llvm(text: str, path: Path, function: str, goal: Goal) -> Code:
    import llvmlite.binding as llvm

    from ...backends.cpu.llvm import compile, generator
    if (said := _machine(text)) in ("nvptx64", "amdgcn"):
        raise Error(f"{path} is LLVM IR for a GPU ({said}); --target takes {'sm_NN' if said == 'nvptx64' else 'gfxNNN'} for it, not {goal.name}")
    text_here = _portable(text, goal)
    with generator.lock:
        generator.initialised()
        try:
            llvm.parse_assembly(text_here).verify()
        except RuntimeError as e:
            raise CompileError(f"{path}: LLVM {llvm.llvm_version_info[0]} does not take this IR: {_with_line(str(e), text_here)}") from None
    asm = compile.emit_assembly(text_here, goal.row)
    return Code(path.name, goal.name, goal.isa, asm, "llvm", {"llir": text, "asm": asm}, vlen=goal.vlen, vector_bits=goal.vector_bits, function=function)


def _with_line(said: str, text: str) -> str:
    """LLVM's complaint with the line that it points at."""
    said = said.strip().replace("LLVM IR parsing error\n", "").split("\n")[0]
    hit = re.search(r":(\d+):\d+: error", said)
    return said + (f"\n  {text.splitlines()[int(hit[1]) - 1].strip()}" if hit else "")


def _device_llvm(text: str, path: Path, function: str, goal: Goal) -> Code:
    """By Triton's backends, in a process of its own: PTX and a cubin of NVIDIA's, AMDGCN of AMD's."""
    said, want = _machine(text), "nvptx64" if goal.backend == "cuda" else "amdgcn"
    if said not in ("", want):
        raise Error(f"{path} is LLVM IR for {said}; --target {goal.name} takes {want}'s")
    cpu = re.search(r'"target-cpu"="(gfx\w+)"', text)
    if cpu and cpu[1] != goal.name:
        raise Error(f"{path} is LLVM IR for {cpu[1]}, whose instructions {goal.name} has not; leave --target out")
    kernels = re.findall(r"^define\b[^\n@]*\b(?:ptx_kernel|amdgpu_kernel)\b[^\n@]*@([\w$.]+)", text, re.M)
    if len(kernels) != 1:
        raise Error(f"{path} has {len(kernels)} kernels (ptx_kernel, amdgpu_kernel){': ' + ', '.join(kernels) if kernels else ''}; Triton translates modules with one")
    with tempfile.TemporaryDirectory() as folder:
        ir = Path(folder) / "kernel.ll"
        ir.write_text(text)
        done = subprocess.run([sys.executable, "-m", f"{__package__}.translate", goal.backend, str(goal.arch), str(goal.warp), str(ir), folder],
                              capture_output=True, text=True, errors="replace")
        if done.returncode or re.search(r"^error:", done.stderr, re.M):
            why = "\n".join(line for line in done.stderr.strip().split("\n") if "Warning" not in line and "warn_once" not in line)
            raise CompileError(f"{path} does not compile for {goal.name}: {why[-2000:] or f'LLVM ended by signal {-done.returncode}'}".replace(str(ir), str(path)))
        if goal.backend == "cuda":
            ptx, cubin = Path(folder, "kernel.ptx").read_text(), Path(folder, "kernel.cubin").read_bytes()
            sass = tools.sass(cubin)
            return Code(kernels[0], goal.name, "sass", sass, "llvm", {"llir": text, "ptx": ptx, "sass": sass, "obj": cubin}, (), tools.cubin_usage(cubin), function=function)
        asm = Path(folder, "kernel.amdgcn").read_text()
        return Code(kernels[0], goal.name, "amdgcn", asm, "llvm", {"llir": text, "amdgcn": asm}, (), codes.amdgcn_usage(asm), function=function)
