"""`triton-gpu`: the same Triton kernels through stock Triton, on a CUDA (or ROCm) GPU."""

from __future__ import annotations

from .base import Backend


class TritonGPU(Backend):
    name = "triton-gpu"
    device = "cuda"
    compiles = True

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
        return op.call

    def synchronize(self) -> None:
        import torch
        torch.cuda.synchronize()
