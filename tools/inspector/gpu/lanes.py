"""One warp walked through its machine code: which addresses its threads access.

Each instruction is taken once, in text order, whatever branches say: loops are walked once, both arms of a condition.
"""

from __future__ import annotations

import contextlib

import numpy as np

from ..schema import Function
from . import amdgcn, ptx, sass
from .arch import Arch
from .memory import Request, Shared
from .warp import Warp


def walk(function: Function, isa: str, arch: Arch, names: dict[int, str]) -> dict[int, Request | Shared]:
    """{id of an instruction: its request, or its access to shared memory} of a function, as far as addresses can be followed."""
    step = {"ptx": ptx.step, "sass": sass.step, "amdgcn": amdgcn.step}[isa]

    def run(ones=frozenset()):
        warp = Warp(arch, names, ones, called=function.called)
        if isa == "amdgcn":
            amdgcn.start(warp, function)
        with np.errstate(all="ignore"):
            for i in function.instructions:
                with contextlib.suppress(IndexError, ValueError, OverflowError):  # text by hand: what has no operands where they belong moves nothing
                    step(warp, i)
        return warp.found
    found = run()
    bad = {k: q for k, q in found.items() if isinstance(q, Request) and q.known and not q.uniform and not q.data and q.efficiency < 0.95}
    for name in sorted(frozenset().union(*(q.args for q in bad.values()))):
        other = run(frozenset({name}))
        for k, q in bad.items():
            if name in q.args and not q.apart and isinstance(other.get(k), Request) and other[k].known and other[k].efficiency >= 0.95:
                q.apart = name
    return found
