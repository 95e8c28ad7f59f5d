"""Memory that a kernel of Inductor's needs beside its tensors, as a scan over a long dimension does, in a model that is packaged.

AOTInductor runs what it generated once, in Python, with functions that allocate on each kind of GPU; a CPU's is missing. And the C++ that it writes then, for a GPU clears
such memory by a function of torch's, for a CPU by a method that a tensor has in Python alone.
"""

from __future__ import annotations

import functools

from ... import of_torch

_ALLOCATES = "empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu\n"


def mend(module):
    """Mend torch._inductor.codegen.wrapper or cpp_wrapper_cpu, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    of, cpp = getattr(module, "PythonWrapperCodegen", None), vars(module).get("CppWrapperCpu")
    if not of_torch.checked():
        return
    if cpp is not None:
        if of_torch.takes(getattr(cpp, "make_zero_buffer", None), "self", "name") and "make_zero_buffer" not in vars(cpp):
            cpp.make_zero_buffer = cleared
    elif of_torch.takes(write := getattr(of, "write_kernel_autotune_defs_header", None), "self"):
        of.write_kernel_autotune_defs_header = with_memory(write)


def cleared(self, name: str) -> str:
    """`make_zero_buffer`, as torch has it for a GPU."""
    return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_zero_({name}.get()));"


def with_memory(write):
    """`write_kernel_autotune_defs_header`, which names a CPU's function as well."""
    @functools.wraps(write)
    def written(self):
        write(self)
        self.kernel_autotune_defs.splice(_ALLOCATES)

    return written
