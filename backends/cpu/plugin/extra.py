"""What an import of Triton's modules finds on the CPU beyond what its wheel has. Nothing is written into Triton's package, and nothing is
loaded until it is asked for: finders see to it.

- `triton.language.extra.cpu`: what kernels written for other CPU builds of Triton import. Such builds have a `libdevice` there; here it
  has the names of CUDA's, all of which emit/element/libdevice.py computes. The finder is behind all others, so a build that brings its own is not hidden.
- `triton.profiler`: Triton's own, which proton.py makes take launches on the CPU once it is imported.
- Inductor's products and attention: torch's own, which products.py and attention.py take over for the CPU once they are imported; convolutions with a bias, for convolution.py; what it fuses, how it launches,
  how it packages, allocates and what it keeps, to which concat.py, apart.py, scatter.py, extremes.py, workspace.py, roomy.py and graphs.py add; templates that are C++, for cpp.py, what its kernels
  assert, for bounds.py, what they are passed, for scalars.py, and the text
  around them, for inductor.py.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys

_PACKAGE = "triton.language.extra.cpu"
_LIBDEVICE = f"{_PACKAGE}.libdevice"


class _Finder:
    """Finds, and loads, the two modules (importlib's `MetaPathFinder` and `Loader`)."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in (_PACKAGE, _LIBDEVICE):
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=name == _PACKAGE)

    @staticmethod
    def create_module(spec):
        return None  # an ordinary one

    @staticmethod
    def exec_module(module):
        if module.__name__ == _PACKAGE:
            from importlib import import_module
            module.libdevice = import_module(_LIBDEVICE)
            module.__all__ = ["libdevice"]
        else:
            from triton.language.extra.cuda import libdevice
            module.__all__ = [n for n in vars(libdevice) if not n.startswith("_") and n != "core"]
            module.__dict__.update((n, getattr(libdevice, n)) for n in module.__all__)


#: module -> which of this package's mend it when it has run
_MENDED = {**dict.fromkeys(("triton.profiler.metric", "triton.profiler.profile", "triton.profiler.scope", "triton.profiler.hooks.launch"), ("proton",)),
           **dict.fromkeys(("torch._inductor.kernel.mm", "torch._inductor.kernel.bmm", "torch._inductor.decomposition"), ("products",)),
           "torch._inductor.kernel.flex.flex_attention": ("attention",), "torch._inductor.kernel.conv": ("convolution",), "torch._inductor.scheduler": ("concat",),
           "torch._inductor.codegen.wrapper": ("workspace", "roomy"), "torch._inductor.codegen.cpp_wrapper_cpu": ("workspace",),
           "torch._inductor.codegen.triton": ("cpp", "bounds", "arithmetic"), "torch._inductor.codegen.cpp_template": ("cpp",), "torch._inductor.lowering": ("scatter", "extremes"), "torch._inductor.codecache": ("graphs",), "torch._inductor.graph": ("scalars",),
           "torch._inductor.codegen.cpu_device_op_overrides": ("inductor",),
           "torch._inductor.runtime.triton_heuristics": ("apart", "scatter", "blocks", "direct")}


def _mend(module):
    for mending in _MENDED[module.__name__]:
        importlib.import_module(f".{mending}", __package__).mend(module)


class _Mended:
    """Finds the modules that are mended when they have run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _MENDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                _mend(module)

            spec.loader.exec_module = exec_module
        return spec


def install():
    """Make the modules importable, and have the others mended, those of Inductor that are there already at once."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
        sys.meta_path.insert(0, _Mended)
        for name in [n for n in _MENDED if n.startswith("torch.") and n in sys.modules]:
            module = sys.modules[name]
            if not getattr(module.__spec__, "_initializing", False):  # else it is mended when it has run
                _mend(module)
