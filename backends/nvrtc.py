"""CUDA C++ to machine code by NVRTC, which needs no GPU; what was made is kept on disk by source, headers, architecture, options and version."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from triton.runtime.cache import get_cache_manager

from .base import CompileError, Unavailable

#: headers that every .cu file may include, beside its own folder's
HEADERS = Path(__file__).parent.parent / "ops"
FLAGS = ("-std=c++20", "-default-device", "-lineinfo")
INSTALL = 'pip install "triport[gpu]"'


@dataclass(frozen=True)
class Built:
    """A kernel's machine code, and the mangled name under which it has the kernel. ptx: empty where it came from disk."""

    cubin: bytes
    name: str
    ptx: str = ""


def _library():
    """NVRTC's own interface. Raises `Unavailable` where it is not installed."""
    try:
        from cuda.bindings import nvrtc
        nvrtc.nvrtcVersion()  # the library itself is found on the first call
    except Exception as e:
        raise Unavailable(f"CUDA C++ needs NVRTC, which is not installed: {INSTALL} ({type(e).__name__}: {e})") from None
    return nvrtc


def missing() -> str | None:
    """None where NVRTC is installed, else what to do about it."""
    try:
        _library()
    except Unavailable as e:
        return str(e)
    return None


@functools.lru_cache(maxsize=1)
def version() -> str:
    _, major, minor = _library().nvrtcVersion()
    return f"{major}.{minor}"


def options(folder: Path, arch: str) -> list[str]:
    """NVRTC's command line: `arch` as sm_90a; headers are found beside the source, and ours."""
    return [f"--gpu-architecture={arch}", *FLAGS, f"-I{folder}", f"-I{HEADERS}"]


def compile(path: Path, kernel: str, arch: str) -> Built:
    """`kernel`, a `__global__` function of a .cu file or an instance of a template ("gelu<float>"), for `arch`.

    Raises `CompileError` with the compiler's log, which has file:line, and `Unavailable` where there is no NVRTC."""
    nvrtc = _library()
    text = path.read_text()

    def done(result):
        code, *values = result
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(code.name)
        return values[0] if len(values) == 1 else values

    def read(size, get) -> bytes:
        data = b" " * done(size(program))
        done(get(program, data))
        return data

    program = done(nvrtc.nvrtcCreateProgram(text.encode(), str(path).encode(), 0, [], []))
    try:
        done(nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        flags = [o.encode() for o in options(path.parent, arch)]
        done(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
        mangled = done(nvrtc.nvrtcGetLoweredName(program, kernel.encode())).decode()
        return Built(read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), mangled,
                     read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode())
    except CompileError as e:
        log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode(errors="replace").strip()
        if re.search(rf'(identifier|template) "{re.escape(kernel.partition("<")[0])}" is (undefined|not)', log):
            log = f"there is no function {kernel.partition('<')[0]} in it\n{log}"
        raise CompileError(f"{path}: NVRTC {version()} could not compile {kernel} for {arch} ({e}):\n{log}") from None
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# --- on disk -------------------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def sources(path: Path, seen: dict[Path, bytes] | None = None) -> dict[Path, bytes]:
    """A file and the headers beside it that it includes, however deep: path -> text."""
    seen = {} if seen is None else seen
    if not path.is_file():
        path = HEADERS / path.name
    if path not in seen and path.is_file():
        seen[path] = path.read_bytes()
        for name in _INCLUDE.findall(seen[path].decode(errors="replace")):
            sources(path.parent / name, seen)
    return seen


def key(path: Path, kernel: str, arch: str) -> str:
    """What a kernel is kept under: everything that decides its code."""
    h = hashlib.sha256()
    for part in (version(), kernel, *FLAGS, arch):
        h.update(part.encode() + b"\0")
    for text in sources(path).values():
        h.update(hashlib.sha256(text).digest())
    return h.hexdigest()


def built(path: Path, kernel: str, arch: str) -> Built:
    """As `compile`, from Triton's cache folder where it is there, whole and undamaged."""
    cache = get_cache_manager(key(path, kernel, arch))
    kept = cache.get_file("kernel.cubin")
    if kept is not None:
        found = _unpacked(Path(kept).read_bytes())
        if found is not None:
            return found
    made = compile(path, kernel, arch)
    body = made.name.encode() + b"\n" + made.cubin
    cache.put(hashlib.sha256(body).digest() + body, "kernel.cubin", binary=True)
    return made


def _unpacked(data: bytes) -> Built | None:
    """What `built` put into a file; None where the file is not that."""
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    name, _, cubin = body.partition(b"\n")
    return Built(cubin, name.decode())
