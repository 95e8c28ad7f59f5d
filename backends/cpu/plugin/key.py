"""Triton's part of every cache key, `triton_key()`, without reading 500 MB in each process.

It digests Triton's compiler, backends, language and libtriton.so: half a second. While the CPU driver is there, a function stands in its place that
remembers the result on disk for as long as every file that Triton's own could read, and each that it does not, is untouched (`backends/memo.py`).
`TRIPORT_KEY_MEMO=0` leaves Triton's own; so does a Triton whose function names anything that those of 3.6 to 3.9 do not.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import types

from ... import memo

#: every name and text of Triton's function, 3.6 to 3.9: what only uses these reads no other files, and nothing but files
_NAMES = {"__file__", "__version__", "EXT_SUFFIX", "abspath", "append", "dirname", "find_spec", "get_config_var", "hashlib", "hexdigest", "join", "module_finder", "name",
          "open", "origin", "os", "path", "pkgutil", "read", "sha256", "split", "sysconfig", "update", "walk_packages"}
_TEXTS = {"", "-", ".", "EXT_SUFFIX", "_C", "backends", "compiler", "language", "libtriton.", "_C/libtriton.so", "prefix", "rb", "triton.backends.", "triton.compiler.",
          "triton.language."}


def known(function) -> bool:
    """Is `function` a `triton_key` of which all is known that it reads?"""
    code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
    if code is None or code.co_freevars or any(isinstance(c, types.CodeType) for c in code.co_consts):
        return False
    texts = {t for c in code.co_consts for t in (c if isinstance(c, tuple) else (c,)) if isinstance(t, str)}
    return set(code.co_names) <= _NAMES and texts <= _TEXTS


def files(root: str) -> list[str]:
    """All that `triton_key` may read of a Triton in folder `root`: what can be imported from three of its packages, the cache module, the library."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    out = [os.path.join(root, "runtime", "cache.py")]
    for part in ("compiler", "backends", "language"):
        out += memo.files_below(os.path.join(root, part), suffixes)
    return out + memo.files_below(os.path.join(root, "_C"), (".so", ".pyd", ".dylib"))


def _elsewhere(root: str) -> bool:
    """Do loaded packages of the three have modules outside their folders? Those would be read, too."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("triton.compiler", "triton.backends", "triton.language")):
            for path in getattr(module, "__path__", None) or ():
                if not os.path.abspath(path).startswith(os.path.join(root, *name.split(".")[1:2])):
                    return True
    return False


def install():
    """Put the remembering function in the place of Triton's, where that is one that is known."""
    import triton
    from triton.runtime import autotuner, cache

    own = cache.triton_key
    if os.environ.get("TRIPORT_KEY_MEMO", "1") == "0" or not known(own):
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(cache.__file__)))

    @functools.lru_cache()
    def triton_key():
        if _elsewhere(root):
            return own()
        return memo.remembered("triton-key", root, lambda: memo.State(files(root), (triton.__version__, sys.version, *known_names)), own)

    known_names = sorted(own.__wrapped__.__code__.co_names)
    triton_key.triton_own = own
    cache.triton_key = triton_key
    if getattr(autotuner, "triton_key", None) is own:
        autotuner.triton_key = triton_key
