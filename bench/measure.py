"""`triport.bench.benchmark` and `triport.bench.compare`: times of any Python callables, by the clock and with the doubts of `triport bench`.

A comparison checks results before it times, and times its candidates in turns. Both print as text, in a notebook as Markdown.
"""

from __future__ import annotations

import functools
import inspect
import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, Mapping

from . import agreement, clock, noise
from ..backends.base import Error, suggest


@dataclass(frozen=True, repr=False)
class Measurement:
    """Times of one callable, in seconds.

    rounds: wall seconds a call, one number for each round of `repeats` calls that counts; cpu_rounds: the same of the process's CPU time, all threads
    together; first: the very first call (of `compare`: of the candidate there); noisy: a sentence why the figures are not to be trusted, None where they are;
    unsteady: a sentence where the machine did not keep its pace, so that another measurement may differ and only ratios hold; left_out: rounds that do not
    count for that reason."""

    label: str
    rounds: list[float]
    cpu_rounds: list[float]
    repeats: int
    first: float
    noisy: str | None = None
    unsteady: str | None = None
    left_out: int = 0

    @property
    def median(self) -> float:
        """Wall seconds of a call: the median over rounds."""
        return statistics.median(self.rounds)

    @property
    def cpu(self) -> float:
        """CPU seconds of a call, of all threads together: the mean over rounds, for Linux may count in ticks."""
        return statistics.fmean(self.cpu_rounds)

    @property
    def ci(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the median; None of fewer than six rounds, for no interval of theirs is as sure."""
        return noise.interval(self.rounds) if len(self.rounds) >= noise.FEW else None

    def __str__(self) -> str:
        sure = f"{_span(self)} with 95 % confidence, " if self.ci else ""
        text = (f"{self.label}: {_time(self.median)} ({sure}{_count(len(self.rounds), 'round')} of "
                f"{_count(self.repeats, 'call')}{f', {self.left_out} left out' if self.left_out else ''}), CPU time {_time(self.cpu)}, first call {_time(self.first)}")
        return text + (f"\n  noisy: {self.noisy}" if self.noisy else "") + (f"\n  unsteady: {self.unsteady}" if self.unsteady else "")

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return _markdown(["", *_HEAD], [_cells(self)])


@dataclass(frozen=True, repr=False)
class Comparison:
    """Times of candidates that took turns, by name: `c["name"]` is a `Measurement`.

    baseline: the one that ratios are against; errors: name -> normalised error against the reference; exact where results are no numbers; returns: name -> the dtypes of its result's tensors."""

    measurements: dict[str, Measurement]
    baseline: str
    errors: dict[str, float]
    returns: dict[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def speedup(self, name: str) -> noise.Ratio:
        """The baseline's time / a candidate's: `.median` over rounds, of the same round each, and its 95 % confidence interval `.ci`."""
        return noise.paired(self[self.baseline].rounds, self[name].rounds)

    def verdict(self, name: str) -> str:
        """"faster" or "slower" than the baseline for certain and by more than 5 %, "noisy" where that cannot be said, else "same"."""
        return self.speedup(name).verdict(bool(self[name].noisy))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for name, m in self.measurements.items():
            ratio = self.speedup(name)
            span = f" ({ratio.ci[0]:.2f} to {ratio.ci[1]:.2f})" if ratio.ci else ""
            rows.append(_cells(m) + (["baseline"] if name == self.baseline else [f"{ratio.median:.2f}x{span} {self.verdict(name)}"]))
        return ["", *_HEAD, f"against {self.baseline}"], rows

    def __str__(self) -> str:
        head, rows = self._table()
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        lines = ["  ".join(cell.rjust(w) if 0 < k < len(head) - 1 else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths))).rstrip()
                 for row in (head, *rows)]
        return "\n".join(lines + [f"  {said}" for said in self._remarks()])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return _markdown(*self._table()) + "".join(f"\n\n{said}" for said in self._remarks())

    def _remarks(self) -> list[str]:
        unsteady = dict.fromkeys(m.unsteady for m in self.measurements.values() if m.unsteady)
        base = self.returns.get(self.baseline)
        others = [f"{name} returns {', '.join(of)}, {self.baseline} {', '.join(base)}; their times are not of the same work" for name, of in self.returns.items() if base and of and of != base]
        return others + [f"noisy: {why}" for why in self._reasons()] + [f"unsteady: {why}" for why in unsteady]

    def _reasons(self) -> list[str]:
        """Why figures are noisy: what holds for all of them once, then each candidate's own."""
        whys = {name: (m.noisy or "").split("; ") for name, m in self.measurements.items()}
        shared = [why for why in next(iter(whys.values())) if why and all(why in of for of in whys.values())]
        return shared + [f"{name}: {'; '.join(own)}" for name, of in whys.items() if (own := [why for why in of if why and why not in shared])]


_HEAD = ["median", "95 % confidence", "CPU time", "first call", "rounds x calls"]


def _time(seconds: float) -> str:
    """Seconds at a glance, three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            break
    else:
        unit, size = "ns", 1e-9
    return f"{seconds / size:.{max(0, 2 - int(math.log10(max(seconds / size, 1))))}f} {unit}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def _span(m: Measurement) -> str:
    return " to ".join(map(_time, m.ci)) if m.ci else ""


def _cells(m: Measurement) -> list[str]:
    return [m.label, _time(m.median), _span(m), _time(m.cpu), _time(m.first), f"{len(m.rounds)} x {m.repeats}"]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def benchmark(fn: Callable[..., Any], *args: Any, precision: float = clock.PRECISION, budget: float = clock.BUDGET, rounds: int | None = None,
              synchronize: Callable[[], object] | None = None, label: str | None = None, **kwargs: Any) -> Measurement:
    """Times of `fn(*args, **kwargs)`.

    Rounds of about 10 ms of calls go on until the 95 % confidence interval of the median is within +-`precision` of it (0.02: 2 %), or `budget` seconds
    are up; `rounds` is a fixed number of them instead. synchronize: waits for what a call began; by default torch.cuda.synchronize where an argument or
    the result is on a GPU. label: what it is called when printed. Raises what `fn` raises, and `Error` for options out of range."""
    _options(precision, budget, rounds)
    _callable("benchmark", fn)
    name = _name(fn) if label is None else label
    _, first, wait = _first_call(fn, args, kwargs, synchronize)
    return _timed({name: fn}, args, kwargs, {name: first}, {name: wait}, rounds, precision, budget)[name]


def compare(candidates: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]], *args: Any, baseline: str | None = None,
            reference: Callable[..., Any] | None = None, allowed: float | None = None, precision: float = clock.PRECISION, budget: float = clock.BUDGET, rounds: int | None = None,
            synchronize: Callable[[], object] | None = None, **kwargs: Any) -> Comparison:
    """Times of candidates {name: function}, or functions that go by their own names, each called with the same arguments, in turns.

    First their results are held against those of `reference`, which is called with floating-point tensors in float64, complex ones in complex128 (default: the first candidate's):
    tensors, numbers, and tuples, lists and dicts of them, whatever else is equal. allowed: the normalised error (of the norm of all elements, or of a single one, `ops.accuracy`) that counts as
    right (default: 2e-6 for float32, 1e-3 for float16, 8e-3 for bfloat16, 1e-14 for float64, for complex numbers their parts', 0 for integers). baseline: the candidate that speed-ups are
    against (default: the first). The other options are `benchmark`'s. Raises `Error`, before anything is timed, where a result is wrong or a candidate
    changes its arguments."""
    _options(precision, budget, rounds)
    named = _named(candidates)
    if allowed is not None and not (isinstance(allowed, (int, float)) and allowed >= 0):
        raise Error(f"compare: allowed is {allowed!r}; it takes a normalised error, as 1e-6")
    if baseline is not None and baseline not in named:
        raise Error(suggest("baseline", baseline, named))
    first: dict[str, float] = {}
    waits: dict[str, Callable[[], object]] = {}
    returns: dict[str, list[str]] = {}

    def call(name: str) -> object:
        made, seconds, waits[name] = _first_call(named[name], args, kwargs, synchronize)
        first.setdefault(name, seconds)
        returns[name] = agreement.dtypes(made)
        return made

    want = None if reference is None else reference(*agreement.wide(args), **agreement.wide(kwargs))
    errors = agreement.checked(named, call, (args, kwargs), want, None if reference is None else "the reference", allowed)
    return Comparison(_timed(named, args, kwargs, first, waits, rounds, precision, budget), baseline or next(iter(named)), errors, returns)


def _options(precision: float, budget: float, rounds: int | None) -> None:
    if not isinstance(precision, (int, float)) or not precision > 0:
        raise Error(f"precision {precision!r}: it takes a share of the median above 0, such as 0.02")
    if not isinstance(budget, (int, float)) or not budget > 0:
        raise Error(f"budget {budget!r}: it takes seconds above 0")
    if rounds is not None and (not isinstance(rounds, int) or rounds < 1):
        raise Error(f"rounds {rounds}: it takes a number from 1 up, or None for as many as the precision takes")


def _name(fn: object) -> str:
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


def _named(candidates: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    if isinstance(candidates, Mapping):
        named = {str(name): fn for name, fn in candidates.items()}
    else:
        named = {}
        for fn in [candidates] if callable(candidates) else candidates:
            name, n = _name(fn), 2
            while name in named:
                name, n = f"{_name(fn)} {n}", n + 1
            named[name] = fn
    if not named:
        raise Error("compare: there are no candidates; give a dict of functions by name, or a list of functions")
    for name, fn in named.items():
        _callable(f"compare: candidate {name}", fn)
    return named


def _callable(what: str, fn: object) -> None:
    """Raises `Error` for what is no function, and for one whose call only makes a coroutine."""
    if not callable(fn):
        raise Error(f"{what} is {type(fn).__name__}, not a function")
    if inspect.iscoroutinefunction(fn):
        raise Error(f"{what} is an async function: a call only makes a coroutine; give one that runs it, as by asyncio.run")


def _first_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                synchronize: Callable[[], object] | None) -> tuple[object, float, Callable[[], object]]:
    """(result, seconds, what waits for this candidate's work) of a candidate's first call."""
    made: list[object] = []
    wait = synchronize or _wait_for((args, kwargs))
    took, _ = clock.once(lambda: made.append(fn(*args, **kwargs)), wait)
    return made[0], took, synchronize or _wait_for((args, kwargs, made))


def _timed(named: dict[str, Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any], first: dict[str, float],
           waits: dict[str, Callable[[], object]], rounds: int | None, precision: float, budget: float) -> dict[str, Measurement]:
    turns: dict[str, Any] = {name: clock.Turn(functools.partial(fn, *args, **kwargs), waits[name]) for name, fn in named.items()}
    samples = clock.interleave(turns, rounds, precision=precision, budget=budget)
    return {name: Measurement(name, s.wall, s.cpu, s.repeats, first[name], noise.why(s.wall, s.busy), s.unsteady, s.left_out) for name, s in samples.items()}


def _wait_for(values: object) -> Callable[[], object]:
    """What waits for work on these tensors' device."""
    wait: Callable[[], object] = sys.modules["torch"].cuda.synchronize if any(t.is_cuda for t in agreement.tensors(values)) else clock.nothing
    return wait
