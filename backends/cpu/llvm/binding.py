"""llvmlite's binding of LLVM, imported when something of it is first used: boards have no llvmlite (it has no wheel for riscv64), and what compiles
nothing works there without it.
"""

from __future__ import annotations

from ...base import Unavailable


class _Binding:
    """`llvmlite.binding`. Raises `Unavailable` where it is not installed."""

    def __getattr__(self, name: str):
        try:
            import llvmlite.binding
        except ModuleNotFoundError as e:
            if (e.name or "").partition(".")[0] != "llvmlite":
                raise
            raise Unavailable("llvmlite is not installed, with which kernels are compiled: pip install llvmlite. It has no wheel for riscv64: there, compile on another "
                              "machine (triport export, bench --on ssh:user@board); bench --compare and report work without it") from None
        value = getattr(llvmlite.binding, name)
        setattr(self, name, value)
        return value


llvm = _Binding()
