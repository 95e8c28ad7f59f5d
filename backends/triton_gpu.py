"""`triton-gpu`: the same Triton kernels through stock Triton, on a CUDA (or ROCm) GPU."""

from __future__ import annotations

import contextlib

from .active import CPU
from .base import Backend, Unsupported


class TritonGPU(Backend):
    name = "triton-gpu"
    device = "cuda"
    stays = True
    compiles = True
    serves = True
    forgets = True

    def unavailable(self) -> str | None:
        import torch

        if torch.cuda.is_available():
            return None
        if torch.version.cuda is None and torch.version.hip is None:
            return (f"torch {torch.__version__} is a build without GPU support; on a machine with a GPU install the CUDA "
                    "build (`pip install torch` without the CPU pin)")
        return "torch sees no GPU; check `nvidia-smi` and the driver's version"

    def target(self) -> str:
        import torch
        if self.unavailable():
            return "no GPU"
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()}, sm_{major}{minor}"

    def versions(self) -> dict[str, str]:
        import torch
        import triton
        return {"triton": triton.__version__, "torch": torch.__version__, "CUDA": str(torch.version.cuda)}

    def bind(self, op):
        if not self.takes(op):
            raise Unsupported(f"{op.name} has no Triton kernel for a GPU")
        return op.call

    @contextlib.contextmanager
    def fresh_caches(self, directory):
        from .table import get
        with get("triton-cpu").fresh_caches(directory):  # Triton has one folder for all
            yield

    def forget(self, op):
        """Drop an op's compiled kernels from memory, so that the next call meets the disk cache."""
        from .dispatch.quick import kernels_of
        for kernel in kernels_of(op):
            for device in [d for d in kernel.device_caches if d not in CPU]:
                del kernel.device_caches[device]

    def synchronize(self) -> None:
        import torch
        torch.cuda.synchronize()
