"""What triport changes in Triton, and which Tritons that was checked with: 3.6 to 3.9 (`tests/matrix`).

A CPU kernel needs none of the changes to be compiled and launched; they mend gaps and save time (`cpu/plugin/mends.py`, `key.py`, `gluon.py`,
`names.py`). Each is made through `change`: with a Triton that is not among the checked, or that has other insides than the change expects, it is left
out, and one warning names all that are.
"""

from __future__ import annotations

import sys
import warnings
from typing import Callable

#: versions (major, minor), first and last, that were tried (`tests/matrix`)
CHECKED = (3, 6), (3, 9)
#: changes that were left out
left_out: list[str] = []


def version() -> tuple[int, int]:
    """Triton's, as (3, 9)."""
    import triton
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in triton.__version__.split("+")[0].split(".")[:2])


def checked() -> bool:
    """Is this Triton one of those that were checked?"""
    return CHECKED[0] <= version() <= CHECKED[1]


def change(what: str, install: Callable[[], object]):
    """Make a change, by `install()`, where this Triton was checked and lets it be made. what: it is without it, in a few words."""
    if (why := _without(install)) is not None:
        left_out.append(what + why)


def _without(install: Callable[[], object]) -> str | None:
    """Makes a change; else why it cannot be made, in brackets where there is more to say than that this Triton was not checked."""
    if not checked():
        return ""
    try:
        install()
    except (AttributeError, ImportError, KeyError, StopIteration, TypeError) as e:
        return f" ({type(e).__name__}: {e})"
    return None


def change_later(install: Callable[[], object]):
    """A change that somebody stood in the way of when it was to be made, as `change`; if it is among those left out, that was said."""
    _without(install)


def heard(hook) -> bool:
    """Does a launch hook call anybody? Triton's own chain of hooks may be empty; whatever else a user puts there is one, also where it has `calls`."""
    return hook is not None and (not chained(hook) or bool(hook.calls))


def chained(hook) -> bool:
    """Is a launch hook Triton's own chain of them?"""
    return type(hook) is sys.modules["triton.knobs"].HookChain


_warned: set[str] = set()


def warn():
    """Say once what was left out, if anything was."""
    import triton
    new = [what for what in left_out if what not in _warned]
    if not new:
        return
    _warned.update(new)
    first, last = (".".join(map(str, v)) for v in CHECKED)
    known = "lacks what" if checked() else "is not one that"
    warnings.warn(f"triton-cpu: Triton {triton.__version__} {known} this triport was checked with ({first} to {last}): {'; '.join(new)}; a newer triport may know it",
                  RuntimeWarning, stacklevel=2)


def innermost(e):
    """Of a CompilationError of Triton's front end, the one in the function that it is about: each that called it raises one of its own."""
    from triton.compiler.errors import CompilationError
    while isinstance(e.__cause__, CompilationError):
        e = e.__cause__
    return e


def refused(e) -> str:
    """What a CompilationError of Triton's front end says is wrong, without the place and the source that stand before it."""
    inner, text = innermost(e), str(e).strip()
    cause = inner.__cause__ or inner.__context__
    return (inner.error_message or (f"{type(cause).__name__}: {cause}" if cause else text.splitlines()[-1] if text else type(inner).__name__)).strip()
