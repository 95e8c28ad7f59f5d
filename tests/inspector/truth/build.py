"""Makes compiled.tar.xz: the functions of functions.c.txt by gcc and clang for three machines with sixteen sets of flags, as assembly and as objects, each
with and without -g; and truth.json, which says of each whether the compiler remarked that it vectorised a loop.

    python tests/inspector/truth/build.py        # needs gcc, aarch64-linux-gnu-gcc, clang-19 and the C libraries' headers for cross compilers
"""

import io
import json
import lzma
import os
import re
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
_REMARK = ["-Rpass=loop-vectorize|slp-vectorizer"]
_RISCV = ["clang-19", "--target=riscv64-linux-gnu", "--sysroot=/usr/riscv64-linux-gnu", "-O3", "-ffast-math", *_REMARK]
_ARM = ["clang-19", "--target=aarch64-linux-gnu", "--sysroot=/usr/aarch64-linux-gnu", "-O3", "-ffast-math", *_REMARK]
_NOTE = ["-fopt-info-vec-optimized"]
SETS = {
    "gcc_O3_v2": ["gcc", "-O3", "-ffast-math", *_NOTE],
    "gcc_O3_v3": ["gcc", "-O3", "-ffast-math", "-march=x86-64-v3", *_NOTE],
    "gcc_O3_v4_512": ["gcc", "-O3", "-ffast-math", "-march=x86-64-v4", "-mprefer-vector-width=512", *_NOTE],
    "gcc_O1": ["gcc", "-O1", *_NOTE],
    "gcc_O3_v3_strict": ["gcc", "-O3", "-march=x86-64-v3", *_NOTE],
    "gcc_O2novec_unroll": ["gcc", "-O2", "-fno-tree-vectorize", "-funroll-loops", "-march=x86-64-v3", *_NOTE],
    "clang_v3": ["clang-19", "-O3", "-ffast-math", "-march=x86-64-v3", *_REMARK],
    "clang_v4": ["clang-19", "-O3", "-ffast-math", "-march=x86-64-v4", "-mprefer-vector-width=512", *_REMARK],
    "clang_novec": ["clang-19", "-O3", "-fno-vectorize", "-fno-slp-vectorize", "-march=x86-64-v3", *_REMARK],
    "clang_rv64gcv": [*_RISCV, "-march=rv64gcv"],
    "clang_rv64gcv_evl": [*_RISCV, "-march=rv64gcv", "-mllvm", "-force-tail-folding-style=data-with-evl", "-mllvm",
                          "-prefer-predicate-over-epilogue=predicate-dont-vectorize"],
    "clang_rv64gc": [*_RISCV, "-march=rv64gc"],
    "clang_neon": _ARM,
    "clang_sve": [*_ARM, "-march=armv9-a+sve2"],
    "gcc_sve": ["aarch64-linux-gnu-gcc", "-O3", "-ffast-math", "-march=armv8.5-a+sve2", *_NOTE],
    "gcc_neon_novec": ["aarch64-linux-gnu-gcc", "-O2", "-fno-tree-vectorize", *_NOTE],
}


def functions() -> dict[str, str]:
    """Name -> C of every function."""
    parts = re.split(r"^// (\w+)\n", (HERE / "functions.c.txt").read_text(), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def without_tables(text: str) -> str:
    """Assembly without the sections of debug information, whose contents nothing reads; .loc and .file stay."""
    out, skipping = [], False
    for line in text.split("\n"):
        word = line.strip()
        if word.startswith((".section", ".text", ".data", ".bss")):
            skipping = bool(re.search(r"debug|\.comment|note|addrsig", word))
        if not (skipping and not word.startswith((".file", ".loc"))) and not word.startswith((".cfi_", ".ident", ".addrsig")):
            out.append(line)
    return "\n".join(out)


def main():
    os.environ["LC_ALL"] = "C"
    with tempfile.TemporaryDirectory() as folder:
        truth: dict[str, bool] = {}

        def build(name: str, flags: str, debug: bool):
            out = f"{name}.{flags}{'_g' if debug else ''}"
            for kind, suffix in (("-S", "s"), ("-c", "o")):
                done = subprocess.run([*SETS[flags], *(["-g", f"-ffile-prefix-map={folder}=."] if debug else []), kind, f"{name}.c", "-o", f"{out}.{suffix}"],
                                      cwd=folder, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{out}: {done.stderr}")
                truth[f"{name}.{flags}"] = "vectorized" in done.stderr.lower()
            path = Path(folder, f"{out}.s")
            path.write_text(without_tables(path.read_text()))

        for name, source in functions().items():
            Path(folder, f"{name}.c").write_text(source)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda row: build(*row), [(n, s, g) for n in functions() for s in SETS for g in (False, True)]))
        files = sorted((p for p in Path(folder).iterdir() if p.suffix in (".s", ".o")), key=lambda p: (p.suffix, p.name.split(".")[1], p.name))
        with tarfile.open(HERE / "compiled.tar.xz", "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
            for name, data in [("truth.json", json.dumps(truth, indent=0, sort_keys=True).encode()), *((p.name, p.read_bytes()) for p in files)]:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    print(f"{len(files)} files, {(HERE / 'compiled.tar.xz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
