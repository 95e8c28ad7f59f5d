"""A GPU that is not there: everything that `--triton-cpu` replaces, for as long as a run lasts."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref

import torch
import torch._dynamo  # noqa: F401  (tables of torch's functions, which it makes when it is imported; the first operation under a mode imports it)
from torch.library import Library
from torch.utils import cpp_extension

from . import cuda, tensors
from .gpus import GPU
from .marks import GPU as DEVICE
from .marks import Following, implementations, location, restored
from .patches import Patches


@contextlib.contextmanager
def pretending(gpu: GPU):
    """Within it torch has one GPU, `gpu`, whose tensors are the CPU's and whose Triton kernels our compiler runs."""
    patches = Patches()
    following = Following()
    try:
        tensors.install(patches)
        cuda.install(patches, gpu)
        _extensions(patches)
        _registered(patches)
        patches.put(torch.serialization, "_package_registry", [(0, location, restored), *torch.serialization._package_registry])
        _threads(patches)
        _driver(patches, gpu)
        with following, torch.compiler.set_stance("force_eager"):  # what would be compiled is followed operation by operation, with fullgraph=True as well
            yield
    finally:
        patches.undo()
        implementations.clear()


def _extensions(patches: Patches):
    build = cuda.unmeant("torch.utils.cpp_extension", "CUDA C++ runs on a GPU alone")
    load, inline = cpp_extension.load, cpp_extension.load_inline

    def loaded(name, sources, *args, **kwargs):
        files = [sources] if isinstance(sources, str) else sources
        return build() if any(str(f).endswith((".cu", ".cuh")) for f in files) or kwargs.get("with_cuda") else load(name, sources, *args, **kwargs)

    def inlined(name, cpp_sources, cuda_sources=None, *args, **kwargs):
        return build() if cuda_sources or kwargs.get("with_cuda") else inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    patches.put(cpp_extension, "load", loaded)
    patches.put(cpp_extension, "load_inline", inlined)


#: the keys of torch's dispatcher under which what Python code registers serves a GPU's tensors, the first before the other: `custom_op` and `triton_op` without device_types take the other
_KEYS = "CUDA", "CompositeExplicitAutograd"


def _registered(patches: Patches):
    """What Python code registers for CUDA, or for all devices (`torch.library`), serves the GPU's tensors, and is followed itself."""
    impl, destroy = Library.impl, Library._destroy
    registered: dict[str, list] = {}  # operation -> (its library's token, key, function), of each key the last one serves
    libraries = weakref.WeakKeyDictionary()  # library -> (its token, what ends it)

    def serve(name: str):
        each = sorted(registered[name], key=lambda entry: _KEYS.index(entry[1]), reverse=True)
        if each:
            implementations[name] = each[-1][2]
        else:
            implementations.pop(name, None)

    def seen(self, op_name, fn, dispatch_key="", **kwargs):
        if dispatch_key in _KEYS and callable(fn):
            name = op_name if isinstance(op_name, str) else op_name.name()
            name = name if "::" in name else f"{self.ns}::{name}"
            if self not in libraries:
                token = object()
                libraries[self] = token, weakref.finalize(self, gone, token)
            registered.setdefault(name, []).append((libraries[self][0], dispatch_key, fn))
            serve(name)
        return impl(self, op_name, fn, dispatch_key, **kwargs)

    def gone(token: object):
        """What a library registered goes with it."""
        for name, each in registered.items():
            left = [entry for entry in each if entry[0] is not token]
            if len(left) < len(each):
                each[:] = left
                serve(name)

    def destroyed(self):
        if self in libraries:
            libraries.pop(self)[1]()
        return destroy(self)

    patches.put(Library, "impl", seen)
    patches.put(Library, "_destroy", destroyed)


def _threads(patches: Patches):
    """Modes of torch are a thread's own: each new one follows tensors, too."""
    inner = threading.Thread._bootstrap_inner

    def begun(self):
        with Following():
            inner(self)

    patches.put(threading.Thread, "_bootstrap_inner", begun)


def _driver(patches: Patches, gpu: GPU):
    """Triton's active driver is ours, which tells the stated GPU's sizes."""
    import triton

    from ..backends.cpu import driver as ours
    config = triton.runtime.driver
    mine = ours.own()
    if config._active is None and type(mine).is_active():  # as it would be anyway: kernels that live as long as the process ask the active driver to unload them, when none can be made any more
        config.set_active(mine)
    patches.put(config, "_active", mine)
    told = mine.utils.get_device_properties
    patches.put(mine, "get_active_torch_device", lambda: DEVICE)

    def sizes(device):
        """The GPU's, but for Triton itself, which holds a kernel's scratch memory against them before it is loaded."""
        if sys._getframe(1).f_globals.get("__name__") == "triton.compiler.compiler":
            return told(device)
        return {**told(device), "max_shared_mem": gpu.shared, "multiprocessor_count": gpu.multiprocessors, "warpSize": 32}

    patches.put(mine.utils, "get_device_properties", sizes)
