"""Who else compiles Triton for target "cpu": where another package does, "cpu" is its, and targets of ours have a name of their own."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget

from ...active import OWN

#: the package whose compiler and driver Triton finds
PACKAGE = __name__.rpartition(".plugin.")[0]


def other_claimants() -> list[str]:
    """Installed packages, other than this one, that compile for target "cpu" (spine-triton, triton-cpu, ...)."""
    from triton.backends import backends

    return [name for name, b in backends.items()
            if not b.compiler.__module__.startswith(PACKAGE) and _claims_cpu(b.compiler)]


def target(arch: str, warp_size: int = 0) -> GPUTarget:
    """A target that this package compiles for, whoever else is there."""
    return GPUTarget(OWN if other_claimants() else "cpu", arch, warp_size)


def _claims_cpu(compiler) -> bool:
    try:
        return bool(compiler.supports_target(GPUTarget("cpu", "", 0)))
    except Exception:
        return False
