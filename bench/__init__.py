"""Measuring ops: `clock` times, `noise` says what samples are worth, `load` what others do to the machine and `pace` how fast it is, `check` compares, `roofline` finds the
machine's limits, `runner` puts a run of ops on backends together, `study` one of whatever callables there are, `results` keeps it as JSON and `report`
prints it; `scaling` fits how times grow. `models` are studies of whole examples.

For programs: `benchmark(fn, *args)` and `compare({name: fn}, *args)` of `measure` (docs/benchmarking.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .measure import Comparison, Measurement, benchmark, compare

__all__ = ["Comparison", "Measurement", "benchmark", "compare"]

if not TYPE_CHECKING:  # which would take any name for one of the module's
    def __getattr__(name: str) -> object:
        """The public functions, when they are asked for: nothing is imported before."""
        if name in __all__:
            from . import measure
            return getattr(measure, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
