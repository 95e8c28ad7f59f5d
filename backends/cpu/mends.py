"""Gaps of Triton (3.6 to 3.9) and of CPython that a CPU kernel falls into, mended in place; kernels for GPUs are left as they are.

- ast: CPython up to 3.12 keeps the depth of the tree that it builds in one place for all threads; where the garbage collector
  lets another thread parse meanwhile, `ast.parse` raises SystemError (python/cpython#106905).
"""

from __future__ import annotations

import functools
import os
import threading

_parsing = threading.RLock()
_installed = False


def _fresh_lock():
    global _parsing
    _parsing = threading.RLock()  # in a forked child: whoever held it is gone


def install():
    """Mend what this process has; once."""
    global _installed
    if _installed:
        return
    _installed = True
    from triton.runtime import jit

    parser = next(c for c in reversed(jit.JITFunction.__mro__) if "parse" in vars(c))
    parser.parse = one_at_a_time(parser.parse)
    os.register_at_fork(after_in_child=_fresh_lock)


def one_at_a_time(parse):
    """`parse`, by one thread at a time, and once more where code that is not Triton's got in between."""
    @functools.wraps(parse)
    def parse_alone(self):
        for _ in range(100):
            with _parsing:
                try:
                    return parse(self)
                except SystemError as e:
                    if "recursion depth mismatch" not in str(e):
                        raise
        return parse(self)

    return parse_alone
