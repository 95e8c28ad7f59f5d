"""LLVM IR of a GPU's kernel -> PTX and a cubin, or AMDGCN, by Triton's own LLVM: run as a process, since LLVM ends it on IR that it cannot take.

`python -m triport.tools.inspector.translate BACKEND ARCH WARP IR FOLDER` writes kernel.ptx and kernel.cubin, or kernel.amdgcn."""

from __future__ import annotations

import sys
from pathlib import Path


def main(backend: str, arch: str, warp: str, ir: str, folder: str):
    from triton._C.libtriton import llvm
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    cuda = backend == "cuda"
    compiler = backends["nvidia" if cuda else "amd"].compiler(GPUTarget(backend, int(arch) if cuda else arch, int(warp)))
    options = compiler.parse_options({})
    metadata = {"num_warps": options.num_warps, "name": Path(ir).stem}
    llvm.init_targets()
    text = Path(ir).read_text()
    if not cuda:
        Path(folder, "kernel.amdgcn").write_text(compiler.make_amdgcn(text, metadata, options))
        return
    ptx = compiler.make_ptx(text, metadata, options, int(arch))
    Path(folder, "kernel.ptx").write_text(ptx)
    Path(folder, "kernel.cubin").write_bytes(compiler.make_cubin(ptx, metadata, options, int(arch)))


if __name__ == "__main__":
    main(*sys.argv[1:])
