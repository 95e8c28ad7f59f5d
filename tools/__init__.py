"""The command line: `triport bench`, `triport devices`; and `annotate`, which names ranges of a program for profilers."""


def __getattr__(name):
    if name == "annotate":  # when it is asked for: it imports torch
        from ..bench.ranges import annotate
        return annotate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
