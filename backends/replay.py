"""Replaying an op on CPU tensors: after its body ran once for some shapes, what it launched is enough.

The first call of an op's body for given dtypes, shapes, strides and alignments is recorded: which kernels it launched, on
which grids, with which scalars, and which of its tensors were inputs, the output or declared temporaries. Where that is all
there was, later calls allocate and launch, and skip checks, tile choice and binding: 5 microseconds of Python instead of 12,
which count double while a kernel's data has the caches.
"""

from __future__ import annotations

import contextlib
import struct
import threading

import torch
from triton import knobs

from .cpu import runtime

_LIMIT = 1024
_plans: dict = {}
recording = threading.local()  # .launches, .temps: what the body that runs now does; absent when nothing records


def hooked() -> bool:
    """Has somebody hooked launches? (Triton keeps a chain of hooks, which may be empty.)"""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter)) or bool(getattr(leave, "calls", leave))


def note_launch(run, function, grid, args):
    """A launch happened (called by `quick.launch`)."""
    launches = getattr(recording, "launches", None)
    if launches is not None:
        launches.append((run, function, grid, args))


def note_odd():
    """Something happened that cannot be replayed."""
    if getattr(recording, "launches", None) is not None:
        recording.launches.append(None)


def temporary(t: torch.Tensor) -> torch.Tensor:
    """Declare `t` a temporary that kernels write before they read it."""
    temps = getattr(recording, "temps", None)
    if temps is not None:
        temps.append(t)
    return t


_threads = torch.get_num_threads


def key_of(body, tensors: tuple, params: tuple):
    """What a plan is remembered under."""
    return (body, params, _threads(), *[(t.dtype, t.shape, t.stride(), t.data_ptr() & 15) for t in tensors])


def find(key):
    """The plan remembered under a key, if it may be used."""
    plan = _plans.get(key)
    return None if plan is None or hooked() else plan


try:  # what Dynamo's guards are made of: one call compares type, dispatch keys (modes, autograd, views), dtype, sizes and strides
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None
#: calls of one op and parameters that are told apart by guards; where there are more, shapes come without end
_GUARDED = 4


def guarded(name: str, params) -> list:
    """The guarded plans of an op for its parameters: (guard of the tensors, number of threads, plan). They go when plans go."""
    return _plans.get((name, params), ())


def add_guarded(name: str, params, tensors: tuple, plan):
    """From now on `guarded` finds `plan` for tensors like these."""
    if TensorGuards is None or any(t.requires_grad for t in tensors):  # recorded under no_grad it would hold without it, too
        return
    check = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    if check(*tensors):
        _plans[name, params] = [(check, _threads(), plan), *_plans.get((name, params), ())][:_GUARDED]


def record(key, body, tensors: tuple, params: tuple, advise):
    """`body(*tensors, *params)`, to be replayed from now on. Plain CPU tensors only. `advise(out)` prepares a large output's memory."""
    recording.launches, recording.temps = [], []
    try:
        out = body(*tensors, *params)
        launches, temps = recording.launches, recording.temps
    finally:
        recording.launches = recording.temps = None
    plan = _compile(launches, temps, tensors, out, advise)
    if plan is not None:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        _plans[key] = plan
    return out


def forget():
    """Drop all plans."""
    _plans.clear()


@contextlib.contextmanager
def plans(own: dict):
    """Within it plans are found in and added to `own`. For one thread that searches: others would see them, too."""
    global _plans
    before, _plans = _plans, own
    try:
        yield
    finally:
        _plans = before


def _compile(launches, temps, tensors, out, advise):
    """A function of the input tensors that allocates and launches, or None where the record does not say everything. Called with
    tensors of another alignment it does nothing and returns None."""
    pointers = [t.data_ptr() for t in tensors]
    if (not launches or None in launches or not isinstance(out, torch.Tensor) or len(set(pointers)) != len(pointers)
            or out.data_ptr() in pointers or not out.numel()):
        return None
    names = {out.data_ptr(): "out"}
    names |= {t.data_ptr(): f"m{k}" for k, t in enumerate(temps)}
    names |= {p: f"t{k}" for k, p in enumerate(pointers)}
    pool = runtime.pool()
    env = {"pool": pool, "call": pool.call, "held": pool.call_held, "threads": _threads, "empty": torch.empty_strided,
           "like": torch.empty_like, "fail": runtime.failed}
    lines = [f"def plan({', '.join(f't{k}' for k in range(len(tensors)))}):"]
    for k, p in enumerate(pointers):
        lines += [f"    p{k} = t{k}.data_ptr()", f"    if p{k} & 15 != {p & 15}:", "        return None"]

    def allocate(name, t):
        for n, x in enumerate(tensors):
            if (x.dtype, x.shape, x.stride()) == (t.dtype, t.shape, t.stride()):
                lines.append(f"    {name} = like(t{n})")
                return
        env[f"{name}_a"] = (t.shape, t.stride())
        env[f"{name}_d"] = t.dtype
        lines.append(f"    {name} = empty(*{name}_a, dtype={name}_d)")

    allocate("out", out)
    if out.nbytes >= advise.from_bytes:
        env["advise"] = advise
        lines.append("    advise(out)")
    for k, t in enumerate(temps):
        allocate(f"m{k}", t)
    for k, (run_fn, function, grid, args) in enumerate(launches):
        if run_fn.slots is None:
            return None
        values = []
        for n, ty in run_fn.slots:
            a = args[n]
            if isinstance(a, torch.Tensor):
                name = names.get(a.data_ptr())
                if name is None:
                    return None
                values.append(f"p{name[1:]}" if name[0] == "t" else f"{name}.data_ptr()")
            else:
                env[f"v{k}_{n}"] = runtime.bf16_bits(a) if ty == "bf16" else a
                values.append(f"v{k}_{n}")
        env[f"pack{k}"] = struct.Struct("<8Q" + run_fn.format).pack
        gx, gy, gz = (*grid, 1, 1)[:3]
        call, team = ("call", "threads()") if runtime.team_of(gx * gy * gz, run_fn.few, _threads()) > 1 else ("held", "1")
        env[f"asserts{k}"] = run_fn.asserts
        lines.append(f"    status = {call}(pack{k}({function.address}, {gx}, {gy}, {gz}, {run_fn.scratch}, {team}, "
                     f"*pool.openmp, {', '.join(values)}))")
        lines.append(f"    if status:\n        fail({function.name!r}, status, {run_fn.scratch}, asserts{k}, {gx}, {gy})")
    lines.append("    return out")
    exec(compile("\n".join(lines), "<plan>", "exec"), env)
    return env["plan"]
