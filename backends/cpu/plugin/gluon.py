"""Triton's argument binder without importing gluon, another language, of which it wants two or three classes (40 to 50 ms in each process).

`native_specialize_impl` imports the classes when it is first called and keeps them, to tell gluon's tensor descriptors from other objects. Here it
is called once, by the CPU driver, while stand-ins for those modules are to be found: their classes compare objects with the real ones, as
soon as somebody has imported gluon. Who imports gluon, then or later, gets gluon. `TRIPORT_LAZY_GLUON=0` imports it as Triton does.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import sys
import threading
import types

_PACKAGE = "triton.experimental.gluon"
#: the modules that the binder of Triton 3.6 to 3.9 asks for, and the classes it takes from them
_MODULES = tuple(f"{_PACKAGE}.{m}" for m in ("nvidia.hopper", "amd.gfx1250", "amd.cdna5"))
_CLASSES = ("TensorDescriptor", "TensorDescriptorIm2Col")
_lock = threading.Lock()


class Lazy(type):
    """Stands for a class of a module of gluon: an object is one of its instances if it is one of the real class's."""

    def __instancecheck__(cls, x) -> bool:
        if _PACKAGE not in sys.modules:
            return False  # so there is no such object
        real = getattr(importlib.import_module(cls.home), cls.__name__, None)
        return real is not None and isinstance(x, real)


class _Module(types.ModuleType):
    """Found in the place of a module of gluon while the binder looks for it."""

    def __getattr__(self, name):
        if name in _CLASSES:
            return Lazy(name, (), {"home": self.__name__})
        if name.startswith("__"):
            raise AttributeError(name)
        _take_back()
        return getattr(importlib.import_module(self.__name__), name)


class _Watch(importlib.abc.MetaPathFinder):
    """Whoever begins to import gluon itself in that moment, gets it whole."""

    def find_spec(self, name, path=None, target=None):
        if name == _PACKAGE:
            _take_back()


def _take_back():
    for name in _MODULES:
        if isinstance(sys.modules.get(name), _Module):
            del sys.modules[name]


def install():
    """Have Triton's binder do its imports now, all but gluon."""
    import triton
    if os.environ.get("TRIPORT_LAZY_GLUON", "1") == "0" or "torch" not in sys.modules:
        return
    import triton._utils
    import triton.language
    import triton.tools.tensor_descriptor  # noqa: F401  (nothing else is to be imported below)
    from triton.backends.compiler import BaseBackend
    from triton.runtime import jit

    specialize = getattr(jit, "native_specialize_impl", None)
    watch = _Watch()
    with _lock:
        if specialize is None or any(m == _PACKAGE or m.startswith(_PACKAGE + ".") for m in list(sys.modules)):
            return
        sys.meta_path.insert(0, watch)
        try:
            sys.modules.update((name, _Module(name)) for name in _MODULES)
            specialize(BaseBackend, 0, False, False, False)
        finally:
            _take_back()
            sys.meta_path.remove(watch)
