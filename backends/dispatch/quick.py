"""Launching a kernel on CPU tensors again, for a few microseconds.

`JITFunction.run` binds, specialises and hashes its arguments on every call. Here the compiled kernel that it found is
remembered under what decided it: dtypes, alignment, integers and constexprs.
"""

from __future__ import annotations

import sys

import torch
from triton.runtime.jit import JITFunction

from . import drivers, replay
from .. import active, checking
from ..context import call
from ..cpu.plugin import relaunch
from ..cpu.run.grid import none, sizes

_LIMIT = 4096  # remembered launches of one kernel: shapes may come without end
_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _key(args, consts):
    """What decides which compiled kernel serves a call; None where that is not clear."""
    out = []
    for a in args:
        t = type(a)
        if t in _TENSORS:
            out.append((a.dtype, a.data_ptr() & 15 == 0))
        elif t is int:
            out.append(a)
        elif t is float:
            out.append(t)
        else:
            return None
    return (*out, *consts.items())


def launch(kernel, grid: tuple, args: tuple, consts: dict):
    """`kernel[grid](*args, **consts)` for CPU tensors; constexprs go by keyword and come last in the signature."""
    memo = kernel.__dict__.setdefault("_triport_launches", {})
    key = _key(args, consts)
    found = memo.get(key) if key is not None else None
    if found is None or kernel.pre_run_hooks or replay.hooked() or active.foreign:
        with drivers.serving("cpu"):
            compiled = kernel[grid](*args, **consts)
        unchecked = None if checking.on else getattr(getattr(compiled, "run", None), "unchecked", None)
        if unchecked is not None:  # it was compiled while launches were checked: what was launched now is its version without checks
            compiled = unchecked()
        ours = hasattr(getattr(compiled, "run", None), "slots")  # not what another package's driver made
        if key is not None and compiled is not None and not kernel.used_global_vals and ours:
            if len(memo) >= _LIMIT:
                memo.clear()
            memo[key] = (compiled.run, compiled.function)
            call.note_launch(compiled.run, compiled.function, grid, args)
        else:
            call.note_odd()
        return
    run, function = found
    try:
        x = grid[0]
    except (TypeError, IndexError, KeyError):
        raise none(kernel.__name__, grid) from None
    if len(grid) > 3:
        sizes(kernel.__name__, grid)
    call.note_launch(run, function, grid, args)
    run(x, grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1, 0, function, None, None, None, None,
        *args)


def kernels_of(op) -> list[JITFunction]:
    """The Triton kernels that the file of an op (an `ops.Op`) defines or imports."""
    return [v for v in vars(sys.modules[op.call.__module__]).values() if isinstance(v, JITFunction)]


def forget(kernel):
    """Drop what is remembered of a kernel."""
    kernel.__dict__.pop("_triport_launches", None)
    relaunch.forget(kernel)
