"""`auto`: on a GPU each call by `triton-gpu` or `cuda`, whichever was measured as the faster for the op, dtype and a shape like the call's.

The measurements, and the rule by which they decide, are in `ops/choices.py`; what nothing was measured for goes by `triton-gpu`.
"""

from __future__ import annotations

import contextlib
import inspect

from ..ops import choices, registry
from .base import Backend, Unsupported
from .dispatch import choice
from .table import get


class Auto(Backend):
    name = choice.AUTO
    device = "cuda"
    stays = True
    compiles = True
    serves = True
    forgets = True

    def unavailable(self) -> str | None:
        return get(choices.OTHERWISE).unavailable()

    def target(self) -> str:
        return get(choices.OTHERWISE).target()

    def versions(self) -> dict[str, str]:
        own = {} if self.unavailable() else {"choices": choices.summary(choices.tuning.gpu_kind())}
        return {**get(choices.OTHERWISE).versions(), **(get(choices.FASTER).versions() if choices.usable() else {}), **own}

    def remark(self) -> str:
        return "" if self.unavailable() else f"{self.name}: {choices.summary(choices.tuning.gpu_kind())}"

    def bind(self, op):
        if not self.takes(op):
            raise Unsupported(f"{op.name} has no CUDA C++ kernel: there is nothing to choose from")
        return choice.within(self)(op.call)

    def chosen(self, op, *args, **kwargs) -> str:
        op = registry.get(op) if isinstance(op, str) else op
        given = inspect.signature(op.call).bind(*args, **kwargs)
        given.apply_defaults()
        return choices.chosen(op.name, *given.arguments.values())

    @contextlib.contextmanager
    def fresh_caches(self, directory):
        with get(choices.OTHERWISE).fresh_caches(directory):  # which has one folder for all
            yield

    def forget(self, op):
        for name in (choices.OTHERWISE, choices.FASTER):
            get(name).forget(op)

    def synchronize(self) -> None:
        get(choices.OTHERWISE).synchronize()
