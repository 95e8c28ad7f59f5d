"""`triton-cpu`: the op's Triton kernels through our own compiler, on CPU tensors."""

from __future__ import annotations

import contextlib

from .. import active, platforms
from ..base import Backend, Unsupported


class TritonCPU(Backend):
    name = "triton-cpu"
    compiles = True
    serves = True
    stays = True
    forgets = True

    def unavailable(self) -> str | None:
        import triton

        from .plugin.claims import PACKAGE
        if (why := platforms.no_code()) is not None:
            return why
        known = triton.backends.backends
        if "cpu" in known and not known["cpu"].compiler.__module__.startswith(PACKAGE):
            return f"another package has Triton's entry point 'cpu', which is this one's, too ({known['cpu'].compiler.__module__}); uninstall one of them"
        if "cpu" not in known:
            return ("triton does not list the plugin: it is found through the entry point of an installed triport; run "
                    "`pip install -e .` (TRITON_BACKENDS_IN_TREE=1 hides it too)")
        from .llvm import targets
        try:
            targets.native()
        except Exception as e:
            return str(e)
        return None

    def target(self) -> str:
        from ..host import cpu_name
        from .llvm import targets
        row = targets.native()
        return f"{cpu_name()}; compiled for {row.cpu}, {row.vector_bits}-bit vectors"

    def versions(self) -> dict[str, str]:
        import triton

        from .llvm import compile as llvm
        return {"triton": triton.__version__, **llvm.versions()}

    def bind(self, op):
        if not self.takes(op):
            raise Unsupported(f"{op.name} has no Triton kernel for a CPU")
        from . import driver
        from .plugin.claims import other_claimants
        if not other_claimants():
            return op.call

        def call(*tensors, **kwargs):  # whichever driver is Triton's default here
            with active.driven_by(driver.own()):
                return op.call(*tensors, **kwargs)

        return call

    @contextlib.contextmanager
    def fresh_caches(self, directory):
        from triton import knobs

        before = knobs.cache.dir
        knobs.cache.dir = str(directory)
        try:
            yield
        finally:
            knobs.cache.dir = before

    def forget(self, op):
        """Drop an op's compiled kernels from memory, so that the next call meets the disk cache."""
        from . import driver
        from ..dispatch import quick, replay

        replay.forget()
        for kernel in quick.kernels_of(op):
            kernel.device_caches.pop(driver.current_target().backend, None)
            quick.forget(kernel)
