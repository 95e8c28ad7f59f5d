"""`breakpoint()` in a kernel: what is compiled cannot hold it, and says how to get to a debugger."""

from __future__ import annotations

import functools

from ...base import CompileError


def saying_where(visit_Call):
    """`visit_Call`, which refuses `breakpoint()` with the way to a debugger."""
    from triton.compiler.errors import CompilationError

    class Breakpoint(CompilationError, CompileError):
        """`breakpoint()` in a kernel that is compiled: Triton's kind of error, and ours."""

        def __reduce__(self):
            return Exception, (str(self),)

    @functools.wraps(visit_Call)
    def called(self, node):
        if getattr(node.func, "id", "") == "breakpoint" and getattr(self.builder.options, "backend_name", "") == "cpu" and "breakpoint" not in {
                **self.gscope, **self.lscope}:
            line = self.begin_line + node.lineno
            name = self.file_name.rpartition("/")[2]
            raise Breakpoint(self.jit_fn.src, node, (
                f"triton-cpu: breakpoint() at {self.file_name}:{line} is in a compiled kernel, which Python's debugger cannot stop in. Run the "
                "program with TRITON_INTERPRET=1 and pdb stops there; or take it out (or behind a tl.constexpr) and let gdb stop in the compiled "
                f"kernel, with its variables: TRITON_CPU_DEBUG=1 gdb -ex 'set breakpoint pending on' -ex 'break {name}:{line}' -ex run --args python "
                "PROGRAM"))
        return visit_Call(self, node)

    return called
