"""Attributes of other packages that are replaced while something is on, and put back after it."""

from __future__ import annotations

_NONE = object()


class Patches:
    """What was replaced, to be undone in the opposite order."""

    def __init__(self):
        self._before: list[tuple] = []

    def put(self, owner, name: str, value):
        """`owner.name` is `value` from now on. A class gets the attribute itself, whatever it inherits."""
        self._before.append((owner, name, vars(owner).get(name, _NONE)))
        setattr(owner, name, value)

    def undo(self):
        """Everything is as it was."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _NONE:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
