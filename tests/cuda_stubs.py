"""Stand-ins for the CUDA libraries that a torch from PyPI is linked with, so that its CPU part runs on a machine that has none of them (several GB).

`python tests/cuda_stubs.py FOLDER-OF-TORCH` writes them beside torch's own libraries: each name that torch looks for is a function that returns 35
(cudaErrorInsufficientDriver), so torch finds no GPU. For trying versions (tests/matrix) and nothing else. Needs gcc, nm and readelf; x86-64.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

#: libraries that are never the system's
_CUDA = re.compile(r"lib(cu|nv|nccl)")
#: names of theirs that have no version: cuFileOpen, ncclSend, cusparseLtInit, cuInit ...
_NAMES = re.compile(r"^(cu[A-Z]|cuda[A-Z]|cublas|cusparse|cusolver|cudnn|cufft|cupti|cuFile|nccl|nvrtc|nvshmem|nvtx|nvJitLink)")


def _said(*words) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _symbols(path: Path, kind: str) -> set[str]:
    return {line.split()[-1] for line in _said("nm", "-D", f"--{kind}-only", "--with-symbol-versions", path).splitlines()}


def missing(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Library that torch's ask for and have not -> version ("" for none) -> names."""
    own = sorted(folder.glob("*.so*"))
    out: dict[str, dict[str, set[str]]] = {}
    versions, wanted, defined = {}, set(), set()
    for path in own:
        for name in re.findall(r"NEEDED.*\[(.*)\]", _said("readelf", "-d", path)):
            if _CUDA.match(name) and not (folder / name).exists():
                out.setdefault(name, {})
        file = ""
        for line in _said("readelf", "-V", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and _CUDA.match(file):
                versions[found[1]] = file
        wanted |= _symbols(path, "undefined")
        defined |= {s.partition("@")[0] for s in _symbols(path, "defined")}
    rest = next(iter(sorted(out)), None)
    for symbol in wanted:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if version in versions:
            out.setdefault(versions[version], {}).setdefault(version, set()).add(name)
        elif not version and name not in defined and _NAMES.match(name) and rest is not None:
            out[rest].setdefault("", set()).add(name)
    return out


def write(folder: Path) -> list[str]:
    """The stand-ins in `folder`, torch's lib; their names."""
    made = missing(folder)
    with tempfile.TemporaryDirectory() as work:
        for library, by_version in made.items():
            names = sorted(set().union(*by_version.values())) if by_version else []
            lines = [".text", "said: .asciz \"a stand-in: there is no CUDA here\""]
            for n in names:
                body = "lea said(%rip), %rax" if n.endswith(("ErrorString", "ErrorName", "StatusString", "StatusName")) else "mov $35, %eax"
                lines.append(f".globl {n}\n.type {n}, @function\n{n}: {body}\nret")
            source, script = Path(work) / "stub.s", Path(work) / "stub.map"
            source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
            script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in by_version.items() if v))
            words = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library}", "-o", str(folder / library), str(source)]
            subprocess.run(words + ([f"-Wl,--version-script={script}"] if script.read_text() else []), check=True)
    return sorted(made)


if __name__ == "__main__":
    print("stand-ins:", ", ".join(write(Path(sys.argv[1]) / "lib")))
