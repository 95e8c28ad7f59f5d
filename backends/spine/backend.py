"""`spine`: ops on CPU tensors, computed on a board: exported, sent there with their inputs, and what comes back.

The board is the one that `--on`, `on` or TRIPORT_SPINE names. Where spine-triton (or another package for target "cpu") is
installed, as on a board with SpacemiT's Triton, and no other board is named, that package compiles and runs them here.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import os

import torch

from ... import ops
from ...ops.records import Case, dtype_name
from ...ops.register import BODIES
from ..host import board_text
from ..dispatch import foreign
from ..base import ArgumentError, Backend, Error, Unavailable, Unsupported
from ..cpu.llvm import targets
from . import bundle, probe, runner

_on: contextvars.ContextVar[str | None] = contextvars.ContextVar("triport_spine", default=None)
_row: contextvars.ContextVar = contextvars.ContextVar("triport_spine_row", default=None)


@contextlib.contextmanager
def on(text: str, target: str | None = None):
    """Within it the backend's board is `text`, as `--on` takes it, and code is made for `target` (default: what suits the board)."""
    tokens = _on.set(text), _row.set(targets.get(target) if target else None)
    try:
        yield runner.get(text)
    finally:
        _on.reset(tokens[0])
        _row.reset(tokens[1])


def board_runner() -> runner.Runner:
    """The chosen runner. Raises `Unavailable` where none is."""
    found = runner.chosen(_on.get())
    if found is None:
        raise Unavailable("no board is chosen: --on ssh:user@board or --on 'qemu:riscv64?vlen=256' in a command, or TRIPORT_SPINE in the environment")
    return found


def installed() -> foreign.Foreign | None:
    """The package that is installed for target "cpu", beside ours, where no board is named."""
    return None if _on.get() or os.environ.get("TRIPORT_SPINE") else foreign.found()


@functools.lru_cache(maxsize=None)
def _op(name: str):
    """A built-in op by its function's name, those that change their argument included."""
    return ops.Op(name, getattr(ops, name), getattr(ops, name), ())


def _refuse_shared(op: str, f: dict, tensors: dict[str, torch.Tensor]):
    """Raise `ArgumentError` where an argument that function `f` changes shares memory with another, or with itself: the board has copies, which
    would not see one another's changes. Judged by the bytes from a tensor's first element to its last."""
    def bytes_of(t: torch.Tensor) -> tuple[int, int]:
        last = sum((n - 1) * step for n, step in zip(t.shape, t.stride()))
        return t.data_ptr(), t.data_ptr() + ((last + 1) * t.element_size() if t.numel() else 0)

    for name in (a["name"] for a in f["arguments"] if a["role"] == "inout"):
        if any(n > 1 and step == 0 for n, step in zip(tensors[name].shape, tensors[name].stride())):
            raise ArgumentError(f"{op} on spine: {name} is changed in place, and several of its elements are one place in memory; clone it first")
    for pair in f["overlap"]:
        if pair["written"] in tensors and pair["other"] in tensors:
            x, y = tensors[pair["written"]], tensors[pair["other"]]
            (first, end), (start, last) = bytes_of(x), bytes_of(y)
            alike = first == start and x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype
            if max(first, start) < min(end, last) and not (alike and pair["equal_addresses"]):
                raise ArgumentError(f"{op} on spine: {pair['written']}, which is changed in place, shares memory with {pair['other']}; clone one of them first")


class Spine(Backend):
    name = "spine"
    device = "cpu"
    compiles = True
    serves = True

    def unavailable(self) -> str | None:
        try:
            if (other := installed()) is not None:
                foreign.target_of(other)
            else:
                board_runner().board
        except Error as e:
            return str(e)
        return None

    def target(self) -> str:
        if (other := installed()) is not None:
            return foreign.target_of(other)
        return board_text(self._board())

    def versions(self) -> dict[str, str]:
        import triton

        from ..cpu.llvm import compile as llvm
        return {"triton": triton.__version__, **llvm.versions()}

    def takes(self, op) -> bool:
        return op.call is not None and "triton-cpu" in op.backends

    def bind(self, op):
        if not self.takes(op):
            raise Unsupported(f"{op.name} has no Triton kernel for a CPU")

        def call(*tensors, **kwargs):
            if (other := installed()) is not None:
                with foreign.active(other):
                    return op.call(*tensors, **kwargs)
            return self.run(op, tensors, kwargs)[0]

        return call

    def run(self, op, tensors, kwargs: dict, threads: int = 0, warmup: int = 0, repetitions: int = 0):
        """(result, the program's answer) of an op on the board."""
        turned = tuple(k for k, t in enumerate(tensors) if t.dim() == 2 and not t.is_contiguous() and t.T.is_contiguous())
        given = [t if k in turned else t.contiguous() for k, t in enumerate(tensors)]
        types = tuple("" if t.dtype == given[0].dtype else dtype_name(t.dtype) for t in given)
        case = Case(tuple(tuple(t.shape) for t in given), kwargs, turned, types=types if any(types) else ())
        r = board_runner()
        row = _row.get() or r.board.row()
        if threads or not row.cores:  # by which tiles are chosen
            row = dataclasses.replace(row, cores=threads or r.board.cores)
        made = bundle.for_call(op, case, dtype_name(given[0].dtype), row)
        f = made.manifest["functions"][0]
        names = [a["name"] for a in f["arguments"] if a["role"] != "out"]
        _refuse_shared(op.name, f, dict(zip(names, tensors)))
        outputs, answer = r.call(made, f["name"], given, threads, warmup, repetitions)
        results = dict(zip((a["name"] for a in f["arguments"] if a["role"] != "in"), outputs))
        for name, t in zip(names, tensors):  # changed in place, there and here
            if name in results:
                results[name] = t.copy_(results[name])
        out = [results[n] if n in results else tensors[names.index(n)] for n in f["results"]]
        return (out[0] if len(out) == 1 else tuple(out) if out else None), answer

    @property
    def elsewhere(self) -> bool:
        """Does another machine compute, and time itself?"""
        return installed() is None

    def measure(self, op, tensors, kwargs: dict, rounds: int, threads: int = 0):
        """(result, the board's times) of `rounds` timed calls there, one after the other."""
        return self.run(op, tensors, kwargs, threads, warmup=2, repetitions=rounds)

    def remark(self) -> str:
        other = installed()
        return foreign.remark_of(other) if other is not None else ""

    def facts(self) -> dict:
        """What a results file says of the board."""
        return {"board": {**self._board(), "bytes_per_s": probe.bandwidth(board_runner())}}

    def _board(self) -> dict:
        board = board_runner().board
        return {**dataclasses.asdict(board), "target": (_row.get() or board.row()).name}

    def implementation(self, name: str, registered):
        op = _op(name)
        names = list(inspect.signature(op.call).parameters)

        def body(*args):
            if (other := installed()) is not None:
                with foreign.active(other):
                    return BODIES[name](*args)
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            out = self.run(op, tensors, dict(zip(names[len(tensors):], args[len(tensors):])))[0]
            return None if any(out is t for t in tensors) else out  # an op of torch's returns nothing that it was given

        return body
