"""What torch.compile's Inductor makes of an op: its C++ compiled to assembly, and its Triton kernels for any target."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

from ...backends.base import CompileError, Error
from .code import Code, of_compiled
from .targets import Goal


def _compile(op, case, dtype: str, **config):
    """Run an op's plain torch through torch.compile with caches of its own."""
    import torch
    from torch._inductor import config as settings
    from torch._inductor.utils import fresh_cache

    from ...backends import get
    from ...ops import room
    from ...ops.records import DTYPES
    reason = get("torch-compile").unavailable()
    if reason:
        raise Error(reason)
    room.require(op, case, dtype, reference=False)
    args = case.make(DTYPES[dtype])
    torch._dynamo.reset()
    with fresh_cache(), settings.patch(compile_threads=1, **config):
        torch.compile(lambda *a: op.eager(*a, **case.kwargs), dynamic=False, fullgraph=True)(*args)


def cpp(op, case, dtype: str) -> list[Code]:
    """The C++ that Inductor writes on this machine, with the assembly of its kernels by the compiler and flags that it uses itself."""
    from torch._inductor import cpp_builder

    from . import targets
    found: list[Code] = []
    build = cpp_builder.CppBuilder.build

    def record(builder, *args, **kwargs):
        command = builder.get_command_line()
        sources = re.findall(r"\S+\.cpp\b", command)
        text = "\n".join(Path(s).read_text() for s in sources if Path(s).is_file())
        if re.search(r'extern "C"\s+void\s+(kernel|cpp_fused\w*)\(', text):  # not one that tries out the compiler
            found.append(_assemble(command, text, op.name))
        return build(builder, *args, **kwargs)

    with mock.patch.object(cpp_builder.CppBuilder, "build", record):
        _compile(op, case, dtype)
    if not found:
        raise Error(f"Inductor writes no C++ for {op.name} {case.name}: it calls torch's own kernels")
    native = targets.get("native")
    for code in found:
        code.vlen, code.vector_bits = native.vlen, native.vector_bits
    return found


def _assemble(command: str, source: str, name: str) -> Code:
    """Assembly of Inductor's C++: its own command line with -S and line numbers, without linking."""
    words = [w for w in shlex.split(command) if not w.startswith(("-l", "-L", "-Wl", "-shared")) and w != "-rdynamic"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.s"
        at = words.index("-o")
        words[at:at + 2] = []
        done = subprocess.run([*words, "-S", "-g1", "-o", str(out)], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"Inductor's C++ for {name} does not compile to assembly:\n{done.stderr[:2000]}")
        text = out.read_text()
    path = next((w for w in words if w.endswith(".cpp")), "kernel.cpp")
    kernels = tuple(dict.fromkeys(re.findall(r"^((?:kernel|cpp_fused)[\w.]*):", text, re.M)))
    if not kernels:
        raise Error(f"Inductor's C++ for {name} has no kernel function")
    from ...backends.host import cpu_name
    return Code(f"{name} ({kernels[0]})", "native", _isa(), text, "torch-compile", {"source": source, "asm": text}, (path,),
                {"machine": cpu_name()}, f64="double" in source, only=kernels)


def _isa() -> str:
    import platform
    return {"x86_64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}[platform.machine()]


def triton_kernels(op, case, dtype: str, goal: Goal) -> list[Code]:
    """The Triton kernels that Inductor writes (`cpu_backend="triton"`), compiled for a target that need not be here."""
    import triton
    from triton import knobs
    from triton.compiler import ASTSource

    from ...backends import active
    seen: list = []

    def listen(*, src, metadata, metadata_group, times, cache_hit):
        if isinstance(src, ASTSource):
            seen.append(src)

    before = knobs.compilation.listener
    knobs.compilation.listener = listen
    try:
        _compile(op, case, dtype, cpu_backend="triton")
    finally:
        knobs.compilation.listener = before
    if not seen:
        raise Error(f"Inductor writes no Triton kernel for {op.name} {case.name}: it calls torch's own kernels")
    out = []
    for src in {s.hash(): s for s in seen}.values():
        with active.compiling_for(goal.triton()):
            try:
                compiled = triton.compile(ASTSource(src.fn, src.signature, src.constants, src.attrs), target=goal.triton())
            except Exception as e:
                raise CompileError(f"Inductor's {src.fn.__name__} does not compile for {goal.name}: {e}") from e
        code = of_compiled(compiled, goal)
        code.backend, code.f64 = "torch-compile", any("fp64" in str(t) for t in src.signature.values())
        code.stages = {"source": src.fn.src, **{k: v for k, v in code.stages.items() if k != "source"}}
        out.append(code)
    return out
