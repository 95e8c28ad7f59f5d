"""Who else compiles Triton for target "cpu": where another package does, this one yields."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget

#: the package whose compiler and driver Triton finds
PACKAGE = __name__.rpartition(".plugin.")[0]


def other_claimants() -> list[str]:
    """Installed packages, other than this one, that compile for target "cpu" (spine-triton, triton-cpu, ...)."""
    from triton.backends import backends

    return [name for name, b in backends.items()
            if not b.compiler.__module__.startswith(PACKAGE) and _claims_cpu(b.compiler)]


def _claims_cpu(compiler) -> bool:
    try:
        return bool(compiler.supports_target(GPUTarget("cpu", "", 0)))
    except Exception:
        return False
