"""What the environment asks of a program that launches kernels: TRIPORT_ASM=FILE, a report on every kernel (tools/inspector/recorder.py).

Triton imports this plugin in every program that imports Triton, also where a GPU's kernels run, so nothing else has to import triport. This module
is imported where the variable is set, and otherwise nothing of it is.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

VARIABLE = "TRIPORT_ASM"
_MODULE = "triton.compiler.compiler"


def _start(compiler):
    from ....tools.inspector import recorder
    recorder.start(os.environ[VARIABLE], compiler)


class _Finder:
    """Finds the module that has Triton's compiled kernels, which Triton imports after its backends, and starts the recorder when it has run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                _start(module)

            spec.loader.exec_module = exec_module
        return spec


def install():
    """Record this program's launches from the first one on."""
    loaded = sys.modules.get(_MODULE)
    if hasattr(loaded, "CompiledKernel"):
        _start(loaded)
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
