"""`annotate`: one name for a stretch of a program in whatever profiler looks at it.

NVTX on a CUDA build of torch that sees a GPU (Nsight Systems, ncu), ITT elsewhere (VTune), and an event of torch.profiler on both. Import it as
`from triport.tools import annotate`; this module is called otherwise so that the name is the function's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from typing import TYPE_CHECKING, Callable, ParamSpec, Protocol, TypeVar, overload

import torch
from torch.autograd import profiler
from torch.compiler import is_dynamo_compiling
from torch.cuda import nvtx
from torch.profiler import record_function

from ..backends.base import ArgumentError, Error

_thread = threading.local()  # .stack: [(name, pop or None, record or None, by range_push?)] of the ranges that are open in this thread


class _NoTool:
    """A build of torch without NVTX and ITT."""

    @staticmethod
    def rangePush(name):
        return 0

    @staticmethod
    def rangePop():
        return 0

    mark = rangePush


@functools.lru_cache(maxsize=1)
def tool():
    """(push, pop, mark, start, end) of NVTX or ITT; ITT has no start and end."""
    lib = getattr(torch._C, "_nvtx", None)
    if lib is not None and torch.cuda.device_count():  # asks NVML where it can: CUDA is not initialised, and forks stay possible
        return lib.rangePushA, lib.rangePop, lib.markA, lib.rangeStartA, lib.rangeEnd
    itt = getattr(torch._C, "_itt", None) or _NoTool
    return itt.rangePush, itt.rangePop, itt.mark, None, None


def open_ranges() -> list:
    """This thread's, the innermost last: (name, ...)."""
    try:
        return _thread.stack
    except AttributeError:
        _thread.stack = []
        return _thread.stack


def _record(name: str):
    """An event of torch.profiler that has begun; None where no profiler runs. record_function alone takes microseconds to find that out."""
    if not profiler._is_profiler_enabled:
        return None
    record = record_function(name)
    record.__enter__()
    return record


def _open(name: str, pushed: bool = False) -> int:
    """Begin a range in this thread; how many were open before."""
    stack = open_ranges()
    push, pop = tool()[:2]
    record = None
    if profiler._is_profiler_enabled:
        record = _record(name)
        if torch._C._autograd._profiler_type().name in ("NVTX", "ITT"):  # emit_nvtx, emit_itt: all events are ranges, this one is already
            pop = None
    if pop is not None:
        push(name)
    stack.append((name, pop, record, pushed))
    return len(stack) - 1


def _close() -> int:
    """End the innermost range of this thread; how many are open still."""
    stack = open_ranges()
    _, pop, record, _ = stack.pop()
    if pop is not None:
        pop()
    if record is not None:
        record.__exit__(None, None, None)
    return len(stack)


def _pushed(stack: list, depth: int = 0) -> list[str]:
    """Close what range_push left open above `depth`, down to a range that a `with` ends; the names."""
    left = []
    while len(stack) > depth and stack[-1][3]:
        left.append(stack[-1][0])
        _close()
    return left[::-1]


def _unpopped(left: list[str]) -> Error:
    return Error(f"torch.cuda.nvtx: pushed and not popped in this thread: {', '.join(map(repr, left))}; call range_pop once for each range_push, "
                 "also where an exception leaves, or write `with torch.cuda.nvtx.range(name):`")


class _Range(record_function):
    """`with` makes it a range, as often as one likes and in any thread; as a decorator it makes one of each call. To Dynamo it is its base class,
    whose `__init__` is left out: it costs more than all the rest."""

    def __init__(self, name: str):
        self.name, self.args = name, None

    def __enter__(self):
        _open(self.name)
        return self

    def __exit__(self, kind, error, where):
        stack = open_ranges()
        left = _pushed(stack) if stack[-1][3] else ()
        _close()
        if left and kind is None:
            raise _unpopped(left)

    def __call__(self, function):
        return _decorated(function, self.name)


def _decorated(function, name: str):
    for kind, asks in [("a coroutine", inspect.iscoroutinefunction), ("a generator", inspect.isgeneratorfunction),
                       ("an asynchronous generator", inspect.isasyncgenfunction)]:
        if asks(function):
            raise ArgumentError(f"annotate: {function.__qualname__} is {kind} function, whose range would end before its body begins; write `with "
                                "annotate(name):` inside it, around what does not await or yield")

    @functools.wraps(function)
    def ranged(*args, **kwargs):
        with annotate(name):
            return function(*args, **kwargs)

    return ranged


def annotate(name):
    """A named range: `with annotate("load"): ...`, `@annotate("load")`, or bare `@annotate` for the function's own name.

    It shows in torch.profiler's tables and traces as a user annotation, in Nsight Systems as an NVTX range where torch sees a GPU, and in VTune as an
    ITT task elsewhere. Ranges nest, and each thread has its own. Where nothing records, one costs 1.5 µs; `record_function` costs 5 and more.

    Under torch.compile it is what `torch.profiler.record_function` is: inside a compiled function it breaks no graph, also with `fullgraph=True`, and
    is left out of the compiled code, of which torch warns once. `torch._dynamo.config.capture_profiler_record_function = True` keeps it where the
    backend runs the graph as it is ("eager"); Inductor (torch 2.13) leaves it out all the same. A range around the call of a compiled function is
    like any other.

    `annotate.as_nvtx` has code that uses `torch.cuda.nvtx` make these ranges.
    """
    if type(name) is str:
        if is_dynamo_compiling():
            return record_function(name)
        return _Range(name)
    if callable(name) and hasattr(name, "__name__"):
        return _decorated(name, name.__name__)
    raise ArgumentError(f"annotate: takes a name, or a function to be named after, and got {type(name).__name__}; write annotate(\"name\")")


class _Nvtx:
    """What `torch.cuda.nvtx` calls: torch._C._nvtx, with the ranges of `annotate`."""

    _handles = itertools.count(1)

    def __init__(self):
        self._started = {}  # handle -> (record, the tool's handle)

    def rangePushA(self, name: str) -> int:
        return _open(_text("range_push", name), pushed=True)

    def rangePop(self) -> int:
        stack = open_ranges()
        if not stack or not stack[-1][3]:
            open_ = f"the innermost open range of this thread, {stack[-1][0]!r}, is of `annotate`" if stack else "no range is open in this thread"
            raise Error(f"torch.cuda.nvtx.range_pop: {open_}; each range_push is closed by one range_pop, in the same thread (range_start and "
                        "range_end may be in different ones)")
        return _close()

    def rangeStartA(self, name: str) -> int:
        """A range that any thread may end, in any order."""
        name = _text("range_start", name)
        start = tool()[3]
        handle = next(self._handles)
        self._started[handle] = (_record(name), None if start is None else start(name))
        return handle

    def rangeEnd(self, handle: int):
        if handle not in self._started:
            raise Error(f"torch.cuda.nvtx.range_end: {handle!r} is no range that has begun and not ended; it takes what range_start returned, once")
        record, started = self._started.pop(handle)
        if record is not None:
            record.__exit__(None, None, None)
        if started is not None:
            tool()[4](started)

    def markA(self, name: str):
        name = _text("mark", name)
        tool()[2](name)
        record = _record(name)
        if record is not None:
            record.__exit__(None, None, None)


def _text(function: str, name) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"torch.cuda.nvtx.{function}: takes a string, and got {type(name).__name__}")
    return name


_installing = threading.Lock()
_contexts = 0  # that are open, or for good
_before = None  # what torch.cuda.nvtx called before the first


class as_nvtx(contextlib.ContextDecorator):
    """`with annotate.as_nvtx(): ...` or `@annotate.as_nvtx()`: within it `torch.cuda.nvtx`'s `range`, `range_push`, `range_pop`, `range_start`,
    `range_end` and `mark` work on every build of torch and are ranges of `annotate`, however they were imported. For the whole process, until the
    last such context ends; `annotate.as_nvtx().install()` is for good.

    Raises `Error` for a `range_pop` without a range, and at its end for ranges that this thread pushed within it and did not pop (they are closed).
    """

    def install(self) -> None:
        global _contexts, _before
        with _installing:
            if not _contexts:
                _before, nvtx._nvtx = nvtx._nvtx, _Nvtx()
            _contexts += 1

    def _recreate_cm(self):
        return as_nvtx()  # one for each call of what it decorates

    def __enter__(self) -> as_nvtx:
        self.install()
        self._open = len(open_ranges())
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        global _contexts
        with _installing:
            _contexts -= 1
            if not _contexts:
                nvtx._nvtx = _before
        left = _pushed(open_ranges(), self._open)
        if left and kind is None:
            raise _unpopped(left)


annotate.as_nvtx = as_nvtx

if TYPE_CHECKING:
    P = ParamSpec("P")
    R = TypeVar("R")

    class Range(Protocol):
        """What `annotate("name")` is to type checkers."""

        def __enter__(self) -> object: ...
        def __exit__(self, kind: object, error: object, where: object) -> None: ...
        def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    class Annotate(Protocol):
        """What `triport.tools.annotate` is to type checkers, which know no attributes of functions."""

        as_nvtx: type[as_nvtx]

        @overload
        def __call__(self, name: str) -> Range: ...
        @overload
        def __call__(self, name: Callable[P, R]) -> Callable[P, R]: ...
