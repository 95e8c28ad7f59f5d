"""`triton.language.extra.cpu`: what kernels written for other CPU builds of Triton import, from a wheel that lacks it.

Such builds have a `libdevice` there; here it has the names of CUDA's, all of which lower/libdevice.py computes. Nothing is
written into Triton's package: a finder behind all others makes the modules when they are asked for, so a build that brings
its own is not hidden.
"""

from __future__ import annotations

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


def install():
    """Make the modules importable."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
