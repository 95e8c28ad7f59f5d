"""Templates of Inductor's that are C++, within a graph whose kernels are Triton's.

For what Inductor has no template of Triton's on a CPU (flex_attention, products of frozen weights, with `max_autotune` some batched products) it makes one of C++, and asks whoever
writes the device's kernels for its code. With `cpu_backend = "triton"` that is the Triton back end, which knows no such template: it failed of an argument. Here the C++ back end writes
these; nothing is fused with them, for what follows is Triton's.
"""

from __future__ import annotations

import functools

from ... import of_torch


def mend(module):
    """Mend torch._inductor.codegen.triton or .cpp_template, which has run; a torch that was not tried, or lacks what is used here, is left alone."""
    if not of_torch.checked():
        return
    of = getattr(module, "TritonScheduling", None)
    if all(hasattr(of, name) for name in ("codegen_template", "can_fuse_vertical", "can_fuse_horizontal")):
        of.codegen_template = written(of.codegen_template)
        for name in ("can_fuse_vertical", "can_fuse_horizontal"):
            setattr(of, name, apart(getattr(of, name)))
    if hasattr(template := getattr(module, "CppTemplate", None), "generate"):
        template.generate = as_cpp(template.generate)


def as_cpp(function):
    """A function within which the C++ back end writes what is for a CPU: types are worked out by back end."""
    @functools.wraps(function)
    def found(*args, **kwargs):
        from torch._inductor import config
        with config.patch(cpu_backend="cpp"):
            return function(*args, **kwargs)

    return found


def is_cpp(node) -> bool:
    """Is a node of the scheduler's a template of C++, or does it have one?"""
    from torch._inductor.ir import CppTemplateBuffer
    return any(isinstance(n.node, CppTemplateBuffer) for n in node.get_nodes())


def written(codegen):
    """`codegen_template`, by the C++ back end where the template is its own."""
    @functools.wraps(codegen)
    def found(self, template_node, epilogue_nodes, prologue_nodes, **options):
        if not is_cpp(template_node):  # and with nothing to fuse nobody asks for its text alone, or for other sizes
            return codegen(self, template_node, epilogue_nodes, prologue_nodes, **options)
        from torch._inductor.codegen.cpp import CppScheduling
        device, (sizes, _) = template_node.group
        template_node.group = device, (sizes, ())  # as the C++ back end groups a template's sizes
        writer = CppScheduling(self.scheduler)
        as_cpp(writer.codegen_template)(template_node, epilogue_nodes, prologue_nodes)
        writer.flush()

    return found


def apart(can_fuse):
    """Is a pair to be fused? Not with a template of C++."""
    @functools.wraps(can_fuse)
    def found(self, node1, node2):
        return not is_cpp(node1) and not is_cpp(node2) and can_fuse(self, node1, node2)

    return found
