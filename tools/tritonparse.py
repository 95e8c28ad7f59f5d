"""The `cpu` adapter for tritonparse (https://github.com/meta-pytorch/tritonparse), whose registry of backends is public.

    python -m triport.tools.tritonparse parse ./logs --out ./parsed

is tritonparse's own command with the adapter in place: traces of kernels that triton-cpu compiled get their TTIR, LLVM IR and assembly with source
mappings. `register()` does the same in a process of yours.
"""

from __future__ import annotations

import sys

from ..backends.base import Error
from .inspector.text import SourceLines


def source_lines(text: str, other_mappings=None, ir_type: str = "asm") -> dict[str, dict]:
    """{assembly line: {"file", "line", "column", "asm_line"}} of the lines that hold instructions, by their .loc."""
    where, out = SourceLines(), {}
    for n, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("."):
            where.read(line)
        elif line and line[0] not in "#/" and not line.endswith(":") and where.frames():
            file, at = where.frames()[0]
            out[str(n)] = {"file": file, "line": at, "column": 0, f"{ir_type}_line": n}
    return out


def register() -> None:
    """Add the adapter to tritonparse's registry; a second call changes nothing. Raises `Error` where tritonparse is not installed or another."""
    try:
        from tritonparse.backend import CompilationPipelineAdapter, IRStageDescriptor, get_backend_registry
    except ImportError as e:
        raise Error(f"tritonparse 0.6 or newer is needed: pip install tritonparse ({e})") from None

    class CpuTritonAdapter(CompilationPipelineAdapter):
        """triton-cpu: TTIR -> LLVM IR -> assembly -> object."""

        adapter_name = "cpu_triton"
        runtime_backend = "cpu"
        pytorch_module = "cpu"

        def __init__(self):
            super().__init__()
            self.register_backend_parser("asm_loc", source_lines)
            self._stages = [
                IRStageDescriptor("ttir", ".ttir", "TTIR", 10, True, True, "generic_loc", "mlir"),
                IRStageDescriptor("plan", ".plan", "Plan", 20, True, False, "none", "plaintext"),
                IRStageDescriptor("llir", ".llir", "LLIR", 30, True, True, "llvm_dbg", "llvm"),
                IRStageDescriptor("asm", ".asm", "Assembly", 40, True, True, "asm_loc", "asm"),
                IRStageDescriptor("obj", ".obj", "Object", 50, False, False, "none", "plaintext"),
                IRStageDescriptor("json", ".json", "JSON", 100, True, False, "none", "json"),
            ]

    registry = get_backend_registry()
    try:
        registry.resolve_from_backend_name("cpu")
    except ValueError:
        registry.register(CpuTritonAdapter)


if __name__ == "__main__":
    register()
    from tritonparse.cli import main
    sys.exit(main())
