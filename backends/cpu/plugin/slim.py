"""What Triton keeps of a compiled kernel, in a third of the memory.

Triton keeps every kernel's texts, of which hardly anybody reads one; makes a class for each kernel's metadata; and holds every JITFunction for good, by its
name, so that a module that is loaded anew under another name, or a kernel that a function makes, never goes.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections import namedtuple

from ...active import CPU


def install(compiler, jit):
    """Mend Triton's modules `compiler.compiler` and `runtime.jit`."""
    made = compiler.CompiledKernel.__init__

    @functools.wraps(made)
    def slimmed(self, *args, **kwargs):
        made(self, *args, **kwargs)
        if self.metadata.target.backend in CPU:
            slim(self, compiler.AsmDict)

    compiler.CompiledKernel.__init__ = slimmed
    registry = getattr(jit, "_triton_jit_function_registry", None)
    if type(registry) is dict:  # looked in where a kernel is preloaded, for constants that are kernels
        jit._triton_jit_function_registry = weakref.WeakValueDictionary(registry)


def slim(kernel, texts: type):
    """Let a kernel keep what it has in less memory; texts: the class of its texts."""
    shared = _class(kernel.metadata._fields)(*map(_same, kernel.metadata))
    if kernel.packed_metadata is kernel.metadata:
        kernel.packed_metadata = shared
    kernel.metadata = shared
    kernel.asm = _packed(texts)(kernel.asm)


@functools.lru_cache(maxsize=64)
def _class(fields: tuple):
    """The class of metadata with these fields."""
    return namedtuple("KernelMetadata", fields)


_strings: dict[str, str] = {}  # no more than there are texts of targets, options and environments


def _same(value):
    """The string that another kernel has already, if it has."""
    return _strings.setdefault(value, value) if type(value) is str and (value in _strings or len(_strings) < 256) else value


class _Packed(bytes):
    """A text, compressed."""


@functools.lru_cache(maxsize=4)
def _packed(base: type):
    """`base`, Triton's dictionary of texts, with values that are compressed in memory."""

    class Texts(base):
        def __init__(self, texts):
            super().__init__()
            for key in texts:
                self[key] = texts[key]

        def __setitem__(self, key, value):
            super().__setitem__(key, _Packed(zlib.compress(value.encode("utf-8", "surrogatepass"), 1)) if type(value) is str else value)

        def __getitem__(self, key):
            value = super().__getitem__(key)  # asks `__missing__`
            return zlib.decompress(value).decode("utf-8", "surrogatepass") if type(value) is _Packed else value

        def __iter__(self):  # said here, so that dict(texts) asks for each value
            return super().__iter__()

        def get(self, key, default=None):
            return self[key] if key in self else default

        def items(self):
            return {key: self[key] for key in self}.items()

        def values(self):
            return {key: self[key] for key in self}.values()

        def pop(self, key, *default):
            found = self[key] if key in self or not default else default[0]
            super().pop(key, None)
            return found

        def popitem(self):
            if not self:
                raise KeyError("there are no texts")
            key = next(reversed(self))
            return key, self.pop(key)

        def setdefault(self, key, default=None):
            if key not in self:
                self[key] = default
            return self[key]

        def __eq__(self, other):
            return self.copy() == other

        def __ne__(self, other):
            return self.copy() != other

        def __repr__(self):
            return repr(self.copy())

        def copy(self):
            return {key: self[key] for key in self}

        def __reduce__(self):  # to another process, as Inductor's workers send kernels
            return base, (self.copy(),)

    return Texts
