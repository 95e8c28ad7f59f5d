"""The command line: `triport bench`, `triport devices`; and `annotate`, which names ranges of a program for profilers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bench.ranges import Annotate

    annotate: Annotate

if not TYPE_CHECKING:  # which would take any name for one of the module's
    def __getattr__(name: str) -> object:
        if name == "annotate":  # when it is asked for: it imports torch
            from ..bench.ranges import annotate
            return annotate
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
