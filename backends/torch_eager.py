"""`torch`: PyTorch's own kernels, called one by one. The reference column."""

from __future__ import annotations

from .base import Backend


class TorchEager(Backend):
    name = "torch"
    device = ""

    def target(self) -> str:
        from .host import cpu_name
        return cpu_name()

    def versions(self) -> dict[str, str]:
        import torch
        return {"torch": torch.__version__}

    def takes(self, op) -> bool:
        return op.eager is not None

    def bind(self, op):
        return op.eager

    def synchronize(self) -> None:
        import torch
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
