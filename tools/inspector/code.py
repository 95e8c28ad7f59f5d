"""Machine code of kernels: every stage on the way, the assembly at the end, and what is known about it."""

from __future__ import annotations

import dataclasses
import functools
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...backends.base import CompileError, Error, suggest
from . import tools
from .launches import Launch
from .targets import Goal

if TYPE_CHECKING:
    from ...backends.dispatch import foreign

#: stages as `--stage` takes them, in the order of compilation
STAGES = ("source", "ttir", "plan", "ttgir", "llir", "ptx", "sass", "amdgcn", "asm", "obj")
_BINARY = {"obj": "obj", "cubin": "obj", "hsaco": "obj"}


@dataclass
class Code:
    """One kernel's code for one target. isa: row of isa.ISAS of `text`, the assembly that is judged. stages: name -> text or bytes. sources: the
    kernel's own files. facts: registers, shared memory, ... f64: do its arguments ask for fp64? unaligned: arguments whose alignment is not
    known. values: of integer arguments, where they are known. arguments: a GPU kernel's, place
    (PTX: number, else offset in bytes) -> name. only: the kernel's own functions, all where it is empty; of a file, as the user has it, function: the
    one to judge, matching: those whose name has this text."""

    name: str
    target: str
    isa: str
    text: str
    backend: str = "triton-cpu"
    stages: dict[str, str | bytes] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    f64: bool = False
    unaligned: tuple[str, ...] = ()
    values: dict[str, int] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    vlen: int = 128
    vector_bits: int = 128
    remark: str = ""
    only: tuple[str, ...] = ()
    function: str = ""
    matching: str = ""

    @property
    def typed(self) -> bool:
        """Are the types of its arguments known? Of files of assembly, objects and LLVM IR they are not."""
        return self.backend not in ("file", "llvm")

    def stage(self, name: str) -> str | bytes:
        """A stage by name. Raises `Error` with the names there are."""
        if name not in self.stages:
            raise Error(f"{self.name} for {self.target}: {suggest('stage', name, self.stages)}")
        return self.stages[name]


@functools.lru_cache(maxsize=8)
def functions(ttir: str) -> list:
    """The functions of a TTIR module (backends.cpu.ttir.types.Func); none of a text that cannot be read."""
    from ...backends.cpu.ttir import reader
    try:
        return list(reader.parse(ttir).funcs.values())
    except Error:
        return []


def of_launch(launch: Launch, goal: Goal) -> Code:
    """Compile a launch for a target. Raises `CompileError` with the kernel's line."""
    from triton import knobs
    from triton.runtime import driver

    from ...backends import active

    if goal.foreign is not None:
        return _of_another(launch, goal)
    with active.compiling_for(goal.triton()):
        try:
            compiled = launch.compile()
            if _file(launch.kernel) not in str(compiled.asm.get("ttir", "")):  # kept from a file of the same text elsewhere: its lines are not here
                with knobs.compilation.scope():
                    knobs.compilation.always_compile = True
                    launch.kernel.device_caches.pop(driver.active.get_current_device(), None)
                    compiled = launch.compile()
        except Error:
            raise
        except Exception as e:
            raise CompileError(f"{launch.name} does not compile for {goal.name}:\n{_readable(e, launch.kernel)}") from e
    code = of_compiled(compiled, goal)
    code.f64, code.unaligned, code.remark = launch.has_f64(), tuple(launch.unaligned()), launch.config
    code.values = launch.integers()
    return code


def _of_another(launch: Launch, goal: Goal) -> Code:
    """By another package, which compiles it anew: what it dumps is this kernel's, and not one's of the same name."""
    from triton.runtime import driver

    from ...backends.dispatch import foreign

    with foreign.active(goal.foreign), foreign.dumping(goal.foreign) as dumps:
        launch.kernel.device_caches.pop(driver.active.get_current_device(), None)
        try:
            compiled = launch.compile()
        except Error:
            raise
        except Exception as e:
            raise CompileError(f"{launch.name} does not compile by {goal.name}:\n{_readable(e, launch.kernel)}") from e
        code = of_compiled(compiled, goal, dumps)
        launch.kernel.device_caches.pop(driver.active.get_current_device(), None)  # dumping may change its code
    code.f64, code.unaligned, code.remark = launch.has_f64(), tuple(launch.unaligned()), launch.config
    return code


def _readable(e: Exception, kernel) -> str:
    """An exception of Triton's front end with file:line, or as it is."""
    text = str(e).strip() or type(e).__name__
    # the compiler's own words, which Triton's exception only points at: "Shape element 0 must be a power of 2"
    cause = e.__cause__ or e.__context__
    while cause is not None:
        said = str(cause).strip()
        if said and said not in text and not isinstance(cause, (KeyError, AttributeError, StopIteration)):
            text += f"\n{type(cause).__name__}: {said}"
        cause = cause.__cause__ or cause.__context__
    line = getattr(getattr(e, "node", None), "lineno", None)
    if line is not None:
        # Triton counts from the def, Python from the first decorator
        before = next((k for k, text_line in enumerate(getattr(kernel, "raw_src", [])) if text_line.lstrip().startswith("def ")), 0)
        text = f"{_file(kernel)}:{getattr(kernel, 'starting_line_number', 1) + before + line - 1}: {text}"
    return text


def _file(kernel) -> str:
    import inspect
    try:
        return inspect.getsourcefile(kernel.fn) or "?"
    except TypeError:
        return "?"


def of_compiled(compiled, goal: Goal | None = None, dumps: Path | None = None) -> Code:
    """From an already compiled kernel: what `kernel[grid](...)`, `kernel.warmup` and `triton.compile` return. dumps: where another package has written what
    it made of this very kernel."""
    from ...backends.dispatch import foreign

    from . import targets
    asm = dict(compiled.asm)
    meta = compiled.metadata
    if goal is None:
        t = meta.target
        backend, arch = (t["backend"], t["arch"]) if isinstance(t, dict) else (t.backend, t.arch)
        goal = targets.get(f"sm_{arch}" if backend == "cuda" else str(arch) or "native")
    kernel = getattr(compiled.src, "fn", None)
    stages: dict[str, str | bytes] = {}
    if kernel is not None:
        stages["source"] = _source(kernel)
    for name, value in asm.items():
        if name != "source" and (not isinstance(value, bytes) or name in _BINARY):
            stages[_BINARY.get(name, name)] = value
    facts: dict[str, object] = {}
    shared = getattr(meta, "shared", None)
    if goal.gpu and shared is not None:
        facts["shared memory, bytes"] = shared
        facts["warps"] = getattr(meta, "num_warps", 0)
    if "cubin" in asm:
        stages["sass"] = text = tools.sass(asm["cubin"])
        facts |= tools.cubin_usage(asm["cubin"])
    elif "amdgcn" in asm:
        text = asm["amdgcn"]
        facts |= amdgcn_usage(text)
    elif "asm" in asm:
        text = asm["asm"]
        facts["scratch, bytes"] = getattr(meta, "scratch_bytes", 0)
        if "obj" in stages:
            from ...backends.cpu import cache
            if hasattr(meta, "target_row"):
                stages["obj"] = cache.checked(stages["obj"], name_of(compiled))
    elif goal.backend == "cpu" and (other := goal.foreign or foreign.found()) is not None:
        text, data = foreign_assembly(compiled, other, dumps)
        stages["asm"] = text
        if data:
            stages["obj"] = data
            goal = dataclasses.replace(goal, isa=tools.elf_isa(data, name_of(compiled)))
        facts["compiler"] = other.name
    else:
        raise Error(f"the kernel object {compiled!r} holds no assembly; it has {', '.join(asm)}")
    order = {n: k for k, n in enumerate(STAGES)}
    stages = dict(sorted(stages.items(), key=lambda kv: order.get(kv[0], 99)))
    files = (_file(kernel),) if kernel is not None else ()
    name = name_of(compiled)
    by = facts.get("compiler") or {"cpu": "triton-cpu"}.get(goal.backend, "triton-gpu")
    return Code(name, goal.name, goal.isa, text, str(by), stages, files, facts, vlen=goal.vlen,
                vector_bits=goal.vector_bits, only=(name,) if goal.backend == "cpu" else ())


def foreign_assembly(compiled, one: foreign.Foreign, dumps: Path | None = None) -> tuple[str, bytes]:
    """(assembly text, machine code or nothing) of a kernel that another package compiled: what it keeps, what it has just dumped, else its object
    disassembled. A dump of before is not looked at: it may be of another kernel of that name, or of other types. Raises `Error`."""
    asm = dict(compiled.asm)
    if isinstance(asm.get("asm"), str) and asm["asm"].strip():
        return asm["asm"], b""
    name = getattr(compiled.metadata, "name", "")
    data = asm.get(one.binary)
    if isinstance(data, str):
        data = data.encode("latin-1")
    if not isinstance(data, (bytes, bytearray)) or bytes(data[:4]) != b"\x7fELF":
        raise Error(f"{one.name}'s kernel {name} holds no machine code; it has {', '.join(asm)}")
    if dumps is not None and (path := dumps / f"{name}.s").is_file():
        return path.read_text(), bytes(data)
    with tempfile.NamedTemporaryFile(suffix=f".{one.binary}") as f:
        f.write(data)
        f.flush()
        return tools.disassemble(f.name, tools.elf_isa(bytes(data), f.name)), bytes(data)


def name_of(compiled) -> str:
    return getattr(compiled.metadata, "name", None) or getattr(getattr(compiled.src, "fn", None), "__name__", "kernel")


def _source(kernel) -> str:
    """The kernel's Python file, whole: lines in the debug information count from its top."""
    try:
        return Path(_file(kernel)).read_text()
    except OSError:
        return getattr(kernel, "src", "")


def amdgcn_usage(text: str) -> dict[str, int]:
    """Registers, spills and memory from the metadata at the end of AMDGCN assembly."""
    names = {"vgpr_count": "vector registers", "sgpr_count": "scalar registers", "agpr_count": "accumulator registers",
             "vgpr_spill_count": "vector registers spilled", "sgpr_spill_count": "scalar registers spilled",
             "private_segment_fixed_size": "stack, bytes", "group_segment_fixed_size": "static shared memory, bytes"}
    return {label: int(hit[1]) for key, label in names.items() if (hit := re.search(rf"\.{key}:\s+(\d+)", text))}


# --- CUDA C++ --------------------------------------------------------------------------------------------------------


def of_cuda(path: Path, kernel: str, goal: Goal) -> Code:
    """A `__global__` function of a .cu file, compiled by NVRTC, which needs no GPU. Raises `CompileError` with the compiler's log."""
    if goal.backend != "cuda":
        raise Error(f"{path} is CUDA C++: --target takes sm_NN for it, not {goal.name}")
    from ...backends import nvrtc
    path = path.resolve()
    built = nvrtc.compile(path, kernel, goal.name)
    sass = tools.sass(built.cubin)
    stages = {"source": path.read_text(), "ptx": built.ptx, "sass": sass, "obj": built.cubin}
    return Code(kernel, goal.name, "sass", sass, "cuda", stages, tuple(map(str, nvrtc.sources(path))), tools.cubin_usage(built.cubin, built.name),
                only=(built.name,), f64="double" in (stages["source"] if "<" not in kernel else kernel))
