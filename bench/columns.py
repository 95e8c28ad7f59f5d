"""The columns of a benchmark: an op through a backend, or one of its variants, with inputs, in a mode (forward, backward or both).

An op that changes arguments in place gets fresh ones for every call that is checked or timed; they count as results, before what it returns.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Callable

import torch

from ..backends.base import Backend, Error
from ..ops.cases import parameters_of
from ..ops.records import Case, Op, wide
from . import check, clock

#: copies of an in-place op's arguments take this many bytes at most, for one turn: they stay in a core's cache, as the arguments of other ops do
COPIES = 1 << 20


@dataclass
class Column:
    """name: of the backend, or of the op's variant (backend: None). bind: makes the callable, with the op's signature; device: of its tensors."""

    name: str
    bind: Callable[[], Callable]
    device: str
    synchronize: Callable[[], None]
    backend: Backend | None = None


def of(op: Op, backends: list[Backend], variants: list[str] | None, device: str) -> list[Column]:
    """The columns of an op in a run on `device`: those of `backends` that take it, then its variants (None: all of them)."""
    out = [Column(b.name, lambda b=b: b.bind(op), "board" if b.elsewhere else b.place(device), b.synchronize, b) for b in backends if b.takes(op)]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return out + [Column(name, lambda fn=fn: fn, device, wait) for name, fn in op.variants.items() if variants is None or name in variants]


class Inputs:
    """A case's arguments, those that gradients are asked of among them (`wanted`), and the op's ways to be called with them."""

    def __init__(self, op: Op, case: Case, args: list, mode: str = "fwd", seed: int = 0, flow: list | None = None):
        """flow: what flows back into the results, as another's `flow`; made when it is needed where that is None."""
        self.op, self.case, self.args, self.mode, self.seed, self.flow = op, case, args, mode, seed, flow
        self._changed = _mutated(op, args)
        self._kept = {k: args[k].clone() for k in self._changed}
        self.wanted = [] if mode == "fwd" else [t.requires_grad_() for t in args if t.is_floating_point()]
        if mode != "fwd" and self._changed:
            raise Error(f"{op.name} changes {', '.join(op.mutates)} in place; it runs forward only (--mode fwd)")
        if mode != "fwd" and not self.wanted:
            raise Error(f"{op.name} has no gradient in {', '.join(str(a.dtype).removeprefix('torch.') for a in args)}; --mode {mode} takes floating dtypes")

    @property
    def in_place(self) -> bool:
        """Does the op change arguments?"""
        return bool(self._changed)

    def renew(self):
        """Put back what a call changed."""
        for k, t in self._kept.items():
            self.args[k].copy_(t)

    def forward(self, fn: Callable) -> list[torch.Tensor]:
        """What one call returns."""
        return check.tensors(self.op.name, fn(*self.args, **self.case.kwargs), nothing=self.in_place)

    def first(self, fn: Callable):
        """One call, whatever is run of it, with nothing around it."""
        out = self.forward(fn)
        return out if self.mode == "fwd" else self._gradients(out)

    def result(self, fn: Callable) -> list[torch.Tensor]:
        """What one call leaves: changed arguments, then what it returned; in a backward mode its gradients (None as zeros), after the results
        where both are run."""
        self.renew()
        out = self.forward(fn)
        if self.mode == "fwd":
            changed = [self.args[k] for k in self._changed]
            held = {t.untyped_storage().data_ptr() for t in changed}
            return [t.clone() for t in changed] + [t for t in out if t.untyped_storage().data_ptr() not in held]
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(self.wanted, self._gradients(out))]
        return gradients if self.mode == "bwd" else out + gradients

    def expected(self) -> list[torch.Tensor]:
        """The same of the reference, from float64 inputs."""
        self.renew()
        other = Inputs(self.op, self.case, list(map(wide, self.args)), self.mode, self.seed)
        out = other.result(self.op.truth)
        if other.flow is not None:
            self.flow = [f.to(self.wanted[0].dtype) for f in other.flow]
        return out

    def check_unchanged(self, fresh: list):
        """Raises `Error` where a call changed an argument that the op does not say it changes; fresh: the arguments as they were."""
        for k, (x, y) in enumerate(zip(self.args, fresh)):
            if k not in self._changed and not torch.equal(x, y):
                names = list(parameters_of(self.op))
                raise Error(f"{self.op.name} changed its argument {names[k] if k < len(names) else k!r}; say so, mutates=(\"{names[k] if k < len(names) else '...'}\",), "
                            "and it gets a fresh one for each call")

    def call(self, fn: Callable) -> Callable[[], object]:
        """One call as it is timed. Backward alone keeps the graph of one forward call; what flows back is made once."""
        if self.mode == "fwd":
            return lambda: fn(*self.args, **self.case.kwargs)
        if self.mode == "bwd":
            through, flow = self._outward(self.forward(fn))
            return lambda: torch.autograd.grad(through, self.wanted, flow, retain_graph=True, allow_unused=True)
        return lambda: self.first(fn)

    def turn(self, fn: Callable, synchronize: Callable, nbytes: int | None) -> clock.Turn:
        """How the clock calls it: with other inputs from call to call where a GPU's L2 would hold one set, and with fresh ones where it changes them."""
        if self._changed:
            return self._renewed(fn, synchronize)
        if self.mode != "fwd":
            return clock.Turn(self.call(fn), synchronize)
        turns = itertools.cycle(_sets(self.args, nbytes or sum(a.nbytes for a in self.args)))
        return clock.Turn(lambda: fn(*next(turns), **self.case.kwargs), synchronize)

    def _renewed(self, fn: Callable, synchronize: Callable) -> clock.Turn:
        size = sum(t.nbytes for t in self._kept.values())
        sets = [[t.clone() if k in self._kept else t for k, t in enumerate(self.args)] for _ in range(max(1, min(100, COPIES // max(size, 1))))]
        at = itertools.count()

        def before(repeats: int):
            nonlocal at
            for mine in sets[:repeats]:
                for k, t in self._kept.items():
                    mine[k].copy_(t)
            at = itertools.count()

        return clock.Turn(lambda: fn(*sets[next(at) % len(sets)], **self.case.kwargs), synchronize, before, len(sets))

    def _gradients(self, out: list[torch.Tensor]) -> tuple:
        through, flow = self._outward(out)
        return torch.autograd.grad(through, self.wanted, flow, allow_unused=True)

    def _outward(self, out: list[torch.Tensor]) -> tuple[list, list]:
        """(results with a gradient, what flows back into them), the latter the same for the same seed, whatever computes it."""
        through = [t for t in out if t.requires_grad]
        if not through:
            raise Error(f"{self.op.name}: the result has no gradient; --mode {self.mode} takes ops that autograd follows")
        flow = self.flow
        if flow is None or [(f.shape, f.dtype, f.device) for f in flow] != [(t.shape, t.dtype, t.device) for t in through]:
            g = torch.Generator("cpu").manual_seed(self.seed + 1)
            # by way of bf16, so that a float64 reference gets the same values
            flow = self.flow = [torch.randn(t.shape, generator=g, device="cpu").bfloat16().to(t.device, t.dtype) for t in through]
        return through, flow


def _mutated(op: Op, args: list) -> list[int]:
    """The indices of the arguments that an op changes. Raises `Error` for a name that it does not have."""
    if not op.mutates:
        return []
    names = list(parameters_of(op))
    unknown = [n for n in op.mutates if n not in names[:len(args)]]
    if unknown:
        raise Error(f"{op.name}: mutates names {unknown[0]!r}, which is none of its tensors ({', '.join(names[:len(args)])})")
    return [names.index(n) for n in op.mutates]


def _sets(args: list, nbytes: int) -> list[list]:
    """The inputs, and on a GPU copies of them: as many as it takes to leave its L2 twice, 16 at most."""
    if not args or not args[0].is_cuda:
        return [args]
    l2 = torch.cuda.get_device_properties(args[0].device).L2_cache_size
    return [args, *([a.clone() for a in args] for _ in range(min(15, 2 * l2 // max(nbytes, 1))))]


@contextlib.contextmanager
def launches():
    """A list that gets an element for each launch of a Triton kernel within."""
    from triton import knobs

    seen: list = []

    def hook(metadata):
        seen.append(metadata)

    chain = knobs.runtime.launch_enter_hook
    chain.add(hook)
    try:
        yield seen
    finally:
        chain.remove(hook)
