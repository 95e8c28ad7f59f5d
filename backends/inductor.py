"""`torch-compile`: torch.compile's Inductor, which writes C++ for a CPU and calls the machine's C++ compiler, and Triton for a GPU."""

from __future__ import annotations

import contextlib
import shutil

from .base import Backend


class TorchCompile(Backend):
    name = "torch-compile"
    device = ""
    compiles = True

    def unavailable(self) -> str | None:
        if not any(shutil.which(c) for c in ("g++", "clang++", "c++")):
            return "Inductor needs a C++ compiler and none is on PATH: install g++ (`apt-get install g++`)"
        return None

    def target(self) -> str:
        from .host import cpu_name
        return cpu_name()

    def versions(self) -> dict[str, str]:
        import torch
        return {"torch": torch.__version__}

    def takes(self, op) -> bool:
        return op.eager is not None

    def bind(self, op):
        import torch

        torch._dynamo.reset()  # a shape of its own for every case, without meeting the recompile limit
        return torch.compile(lambda *args, **kwargs: op.eager(*args, **kwargs), dynamic=False, fullgraph=True)

    @contextlib.contextmanager
    def fresh_caches(self, directory):
        from torch._inductor.utils import fresh_cache

        with fresh_cache(dir=str(directory)):
            yield

    def synchronize(self) -> None:
        import torch
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
