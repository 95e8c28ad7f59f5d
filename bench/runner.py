"""A run: for each op x case x dtype check every column against the float64 reference, then time those that are right,
interleaved. Nothing is timed that was not checked in the same run."""

from __future__ import annotations

import math
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Callable

import torch

from ..backends import get as get_backend
from ..backends.base import Error
from ..ops import room
from ..ops.records import DTYPES, dtype_name
from . import check, clock, columns, first, load, memory, roofline, words
from .columns import Column, Inputs
from .plan import Plan
from .results import Results, add_rates, add_times, machine


def first_calls(backend, op, call: Callable[[], object]) -> dict[str, float]:
    """Seconds of the first call: cold (nothing compiled before, an empty cache), and reloaded: the process has its runtime, and forgot the
    op's kernels, which are on disk."""
    if not backend.compiles or not backend.forgets:
        return {}
    out = {}
    with tempfile.TemporaryDirectory(prefix="triport-cold-") as folder, backend.fresh_caches(folder):
        for key in ("cold", "reload"):
            backend.forget(op)
            out[key] = clock.once(call)[0]
        backend.forget(op)
    return out


def single_calls(column: Column, op, inputs: Inputs, n: int) -> dict[str, list[float]]:
    """Wall and CPU seconds of n single calls in order, of which the first one compiles where the column's backend does."""
    backend = column.backend
    with tempfile.TemporaryDirectory(prefix="triport-cold-") as folder:
        if backend is None or not backend.compiles:
            return _singles(column, inputs, n)
        with backend.fresh_caches(folder):
            backend.forget(op)
            out = _singles(column, inputs, n)
            backend.forget(op)
    return out


def _singles(column: Column, inputs: Inputs, n: int) -> dict[str, list[float]]:
    turn = clock.Turn(inputs.call(column.bind()), column.synchronize, lambda n: inputs.renew())
    return dict(zip(("wall", "cpu"), clock.singles(turn, n)))


def run(plan: Plan, results: Results, tick: Callable = lambda *a: None, remark: Callable[[str], None] = lambda text: None) -> int:
    """Carry out a plan. `tick(n, of, text)` is called before each case and at the end. Returns how many results were wrong."""
    items, remarks = plan.items()
    for text in remarks:
        remark(text)
    for op in {id(op): op for op, *_ in items}.values():
        if op.truth is op.call:
            remark(f"{op.name} is held against itself in float64: it has no eager, reference or baseline to be held against")
    wrong = 0
    backends = [get_backend(name) for name in plan.backends]
    for text in filter(None, (b.remark() for b in backends)):
        remark(text)
    results.meta, watch = machine(plan.device) | _left_out(plan, backends), load.Watch()
    limits = results.meta["roofline"] = _limits(plan, backends, items, results.meta)
    results.save()
    for n, (op, dtype, case) in enumerate(items):
        tick(n, len(items), f"{op.name} {case.name} {dtype}")
        rows = _case(plan, op, dtype, case, backends, remark)
        base = next((r for r in rows if "wall_s" in r and op.baseline in (r["backend"], r.get("column"))), None)
        for row in rows:
            wrong += row["status"] in ("wrong", "failed")
            if "wall_s" in row:
                add_rates(row, base, limits[row["device"]], dtype)
            results.add(row)
    tick(len(items), len(items), "")
    results.meta |= watch.fact()
    results.finish()
    return wrong


def _left_out(plan: Plan, backends: list) -> dict:
    """`left_out` of a run's facts: the backends of ops whose own kernels none of the columns runs and no backend can here -> why. Only torch is right there."""
    out = {}
    for op in plan.ops:
        if op.call is None or any(b.takes(op) for b in backends if b.name not in words.YARDSTICKS):
            continue
        why = {b.name: b.unavailable() or ("the run is on the CPU" if b.device == "cuda" and plan.device == "cpu" else "") for b in map(get_backend, op.backends)}
        if all(why.values()):
            out |= {f"{op.name} on {name}": reason for name, reason in why.items()}
    return {"left_out": out} if out else {}


def _limits(plan: Plan, backends: list, items: list, meta: dict) -> dict:
    """What the devices of a run can do at most (`roofline`)."""
    places = {"board" if b.elsewhere else b.place(plan.device) for b in backends}
    if any(op.variants for op, _, _ in items):
        places.add(plan.device)
    limits = {"cpu": roofline.measure("cpu", torch.get_num_threads())} if places - {"board", "cuda"} else {}
    for b in backends:
        if b.elsewhere:
            meta |= b.facts()
            limits["board"] = {"bytes_per_s": meta["board"]["bytes_per_s"]}
    if "cuda" in places:
        limits["cuda"] = roofline.measure("cuda")
    return limits


def _case(plan: Plan, op, dtype: str, case, backends: list, remark: Callable[[str], None]) -> list[dict]:
    """A case's rows, checked and, where right, timed in turns, and checked once more: what was timed is what was right."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # shapes of its own for every case, without meeting the recompile limit
    candidates: dict[str, Candidate] = {}
    rows: dict[str, dict] = {}
    truths: dict[str, Truth] = {}
    for column in columns.of(op, backends, plan.variants, plan.device):
        if column.device == "board":
            row, candidate = _on_board(plan, op, dtype, case, column, truths), None
        else:
            row, candidate = _prepare(plan, op, dtype, case, column, truths)
        rows[row["backend"]] = row
        if candidate is not None:
            candidates[row["backend"]] = candidate
    _compare_dtypes(plan, op, dtype, case, {rows[name].get("column", name): c for name, c in candidates.items()}, remark)
    turns = {name: c.turn for name, c in candidates.items()}
    on_gpu = {name: c.call for name, c in candidates.items() if rows[name]["device"] == "cuda"}
    try:
        samples = clock.interleave(turns, plan.rounds, plan.seconds, precision=plan.precision, budget=plan.budget) if turns else {}
        devices = clock.on_gpu(on_gpu, plan.rounds, precision=plan.precision, budget=plan.budget) if on_gpu else {}
    except SystemExit as e:  # of a call that did not ask for it before
        raise Error(f"{op.name} {case.name} {dtype}: a call that was timed, of {' or '.join(candidates)}, asked the process to end (SystemExit: {e}); the run ends here") from e
    for name, candidate in candidates.items():
        if why := _still_right(candidate.error, rows[name]["allowed"]):
            rows[name] |= why
            continue
        add_times(rows[name], samples[name], devices.get(name))
        _metrics(op, dtype, case, rows[name], remark)
    return list(rows.values())


def _compare_dtypes(plan: Plan, op, dtype: str, case, candidates: dict[str, Candidate], remark: Callable[[str], None]):
    """Remarks on columns whose results have another dtype than the baseline's: their numbers are right, but it is other work that is timed, as an fp32 result of 16-bit tensors is twice the bytes."""
    base = candidates.get(op.baseline)
    for name, candidate in candidates.items() if base is not None else ():
        if candidate.returns != base.returns and (key := (op.name, dtype, name, "returns")) not in plan.seen:
            plan.seen.add(key)
            remark(f"{op.name} {case.name} {dtype}: {name} returns {', '.join(candidate.returns)}, {op.baseline} {', '.join(base.returns)}; their times are not of the same work")


@dataclass
class Candidate:
    """A right result's way there. turn: what the host's clock times; call: what the GPU's does, with one set of inputs; error: of one more call; returns: the dtypes of its results."""

    turn: clock.Turn
    call: Callable | clock.Turn
    error: Callable[[], float]
    returns: list[str]


@dataclass
class Truth:
    """A case on a device: its arguments, which no column gets itself, the reference's results, and what flows back into them (`columns.Inputs`), so
    that making it is in nobody's time."""

    args: list
    expected: list
    flow: list | None


def _inputs(plan: Plan, op, dtype: str, case, device: str, truths: dict[str, Truth]) -> Inputs:
    """Arguments for one column; the first one on a device has the reference's results computed."""
    room.require(op, case, dtype, device)
    if device not in truths:
        args = case.make(DTYPES[dtype], device, plan.seed)
        own = Inputs(op, case, [t.clone() for t in args], plan.mode, plan.seed)
        try:
            expected = own.expected()
        except (Exception, SystemExit) as e:
            raise Error(f"the reference raised {words.raised(e)}") from e
        truths[device] = Truth(args, expected, own.flow)
    return Inputs(op, case, [t.clone() for t in truths[device].args], plan.mode, plan.seed, truths[device].flow)


def _row(plan: Plan, op, dtype: str, case, column: Column, args: list | None) -> dict:
    """What is known of a row before it is run."""
    forward = plan.mode == "fwd" and args is not None
    row = {"op": op.name, "case": case.name, "dtype": dtype, "backend": column.name, "device": column.device, "baseline": op.baseline, "first_call_s": {},
           "bytes": _number(op, case, "nbytes", args) if op.nbytes and forward else None, "flops": _number(op, case, "flops", args) if op.flops and forward else None}
    return row | ({"mode": plan.mode} if plan.mode != "fwd" else {})


def _number(op, case, what: str, args: list) -> int:
    """What an op says of a call's bytes or FLOPs."""
    said = getattr(op, what)(*args, **case.kwargs)
    try:
        if (number := int(said)) >= 0:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise Error(f"{op.name}: {what} gave {said!r:.80}; it takes a number, 0 or more")


def allowed(op, dtype: str, mode: str) -> float:
    """The normalised error that counts as right. Gradients go through twice as many operations and longer sums than the results."""
    return op.allowed(DTYPES[dtype]) * (1 if mode == "fwd" else 4)


def _still_right(error: Callable[[], float], most: float) -> dict | None:
    """What a row is to say where a call after the timed ones is not right any more."""
    try:
        e = error()
    except (Exception, SystemExit) as problem:
        return _failed(problem)
    return None if e <= most else {"status": "wrong", "error": e, "reason": "the first calls were right, and one after those that were timed is not"}


def _prepare(plan: Plan, op, dtype: str, case, column: Column, truths: dict[str, Truth]) -> tuple[dict, Candidate | None]:
    """Check one column's result: its row, and where it is right what is timed. truths: by device, filled as columns ask."""
    row = _row(plan, op, dtype, case, column, None)
    try:
        inputs = _inputs(plan, op, dtype, case, column.device, truths)
        truth = truths[column.device]
        row = _row(plan, op, dtype, case, column, inputs.args)
        if plan.cold and plan.mode == "fwd" and column.backend is not None:
            row["first_call_s"] = first_calls(column.backend, op, lambda: column.bind()(*inputs.args, **case.kwargs))
        singles = {"calls_s": single_calls(column, op, inputs, plan.singles)} if plan.singles else {}
        fn = column.bind()
        with columns.launches() as launched:
            inputs.renew()
            row["first_call_s"].setdefault("here", clock.once(lambda: inputs.first(fn), column.synchronize)[0])
        if column.backend is not None and column.name in ("triton-cpu", "triton-gpu") and not launched and case.elements:
            name = "call" if column.device == plan.device else f"call-{column.device}"
            row |= {"backend": name, "column": column.name, "first_call_s": {"here": row["first_call_s"]["here"]}}  # nothing of Triton's ran, or was compiled
        if column.backend is not None and (by := column.backend.chosen(op, *inputs.args, **case.kwargs)) != column.backend.name:
            row["by"] = by
        got = inputs.result(fn)
        column.synchronize()
        inputs.check_unchanged(truth.args)
        row |= check.judged(got, truth.expected, allowed(op, dtype, plan.mode))
        returns = [dtype_name(t.dtype) for t in got]
        del got
        if row["status"] != "ok":
            return row, None
        row |= singles
        inputs.renew()
        if plan.mode == "fwd" and column.backend is not None:
            _new_process(plan, op, dtype, case, column.backend, row)
        call = inputs.call(fn)
        row["peak_bytes"] = memory.peak(call, column.device)
        inputs.renew()
        turn = inputs.turn(fn, column.synchronize, row["bytes"])

        def once_more() -> float:
            e = check.largest(inputs.result(fn), truth.expected)
            inputs.check_unchanged(truth.args)
            return e

        return row, Candidate(turn, turn if inputs.in_place else call, once_more, returns)
    except (Exception, SystemExit) as e:
        return row | _failed(e), None


def _failed(e: Exception | SystemExit) -> dict:
    """What a row says whose call raised, or asked the process to end: that is the call's failure, not the end of the run."""
    return {"status": "failed", "reason": words.raised(e), "trace": traceback.format_exc(limit=-3)}


def _metrics(op, dtype: str, case, row: dict, remark: Callable[[str], None]):
    """The op's own figures; one that fails is left out, with a remark."""
    if not op.metrics:
        return
    seconds = row.get("device_s", row["wall_s"])["p50"]
    args = case.blank(DTYPES[dtype], "meta")
    row["metrics"] = {}
    for name, fn in op.metrics.items():
        try:
            value = float(fn(seconds, *args, **case.kwargs))
        except (Exception, SystemExit) as e:  # whatever a user's function does: the other figures stand without it
            remark(f"{op.name} {case.name} {dtype} {row['backend']}: metric {name!r} raised {type(e).__name__}: {e}")
            continue
        if math.isfinite(value):
            row["metrics"][name] = value


def _new_process(plan, op, dtype, case, backend, row):
    """Add the first call in a new process to a row, the kernels being on disk by now: of an op, dtype and backend at the first case, for a process
    takes seconds to start."""
    if not plan.cold or not row["first_call_s"].get("reload"):
        return
    key = (op.name, dtype, backend.name)
    if key in plan.seen:
        return
    plan.seen.add(key)
    try:
        said = first.of_op(op, case.name, dtype, backend.name, row["device"], plan.seed, torch.get_num_threads())
        if said is not None and said["compiled"]:  # what a run before it left unfinished, or what files touched just now keep from being remembered
            said = first.of_op(op, case.name, dtype, backend.name, row["device"], plan.seed, torch.get_num_threads())
        if said is not None and said["compiled"]:
            raise Error("it compiled its kernels again, as if nothing were on disk; is Triton's cache directory writable?")
        if said is not None:
            row["first_call_s"]["process"], row["first_call_cpu_s"] = said["wall"], {"process": said["cpu"]}
    except Error as e:
        row["new_process"] = str(e)


def _on_board(plan: Plan, op, dtype: str, case, column: Column, truths: dict[str, Truth]) -> dict:
    """Check and time a backend whose machine is another one: its program times itself, nothing is interleaved with it."""
    row = _row(plan, op, dtype, case, column, None)
    try:
        if plan.mode != "fwd":
            raise Error("a board runs ops forward only")
        inputs = _inputs(plan, op, dtype, case, "cpu", truths)
        row = _row(plan, op, dtype, case, column, inputs.args)
        start = time.perf_counter()
        got, answer = column.backend.measure(op, inputs.args, case.kwargs, plan.rounds or 10, plan.threads)
        e = check.largest([got], truths["cpu"].expected)
        row |= {"status": "ok" if e <= op.allowed(DTYPES[dtype]) else "wrong", "error": e, "allowed": op.allowed(DTYPES[dtype]),
                "first_call_s": {"here": answer.first}, "round_trip_s": time.perf_counter() - start}
        if row["status"] == "ok":
            add_times(row, clock.Samples(answer.wall, answer.cpu), None)
    except (Exception, SystemExit) as e:
        row |= _failed(e)
    return row
