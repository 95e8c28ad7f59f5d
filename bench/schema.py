"""What a results file holds, and rows read as data: files come from other machines, versions and hands, so each field that is used is looked at.

docs/results.md says what every field is, docs/results.schema.json the same to programs. To add a field write it there, in both; and here where
something reads it.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

from ..backends.base import Error

#: what is written, and what is read: files of version 1 differ by lacking what came later
VERSION, READABLE = 2, (1, 2)
STATUSES = ("ok", "wrong", "failed", "skipped")
#: seconds that a time can be
SHORTEST, LONGEST = 1e-12, 1e9
#: how a float that JSON has no number for is written, as text
NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_TEXT = 200  # characters of a name that are kept


class Key(NamedTuple):
    """A row's identity in its file."""

    op: str
    case: str
    dtype: str
    mode: str
    backend: str

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What its neighbours share: all but the backend."""
        return self[:4]

    def __str__(self):
        return " ".join((*self.group[:3], *([self.mode] if self.mode != "fwd" else []), self.backend))


def clean(text: str, limit: int = _TEXT) -> str:
    """Text that any file, page and terminal can hold: no control characters, no half of a surrogate pair, not longer than `limit`."""
    text = "".join(c if c.isprintable() else " " for c in text).strip()
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit - 3] + "..."


def shown(value) -> str:
    """A value of a file in a sentence about it."""
    return clean(repr(value), 40) if isinstance(value, (str, float, bool, type(None))) else (
        str(value) if isinstance(value, int) and abs(value) < 10**12 else f"a {type(value).__name__}")


def is_number(value, low: float, high: float) -> bool:
    """A number (no bool, no NaN) within [low, high]."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _time(value) -> str | None:
    return None if is_number(value, SHORTEST, LONGEST) else f"is {shown(value)}, no number of seconds"


def _times(value) -> str | None:
    if not isinstance(value, list):
        return f"is {shown(value)}, no list of times"
    return next((f"[{n}] {wrong}" for n, t in enumerate(value) if (wrong := _time(t))), None)


def _summary(value) -> str | None:
    if not isinstance(value, dict):
        return f"is {shown(value)}, no summary of times"
    for q in ("p20", "p50", "p80"):
        if wrong := _time(value.get(q)):
            return f".{q} {wrong}" if q in value else f"lacks {q}"
    return None if value["p20"] <= value["p50"] <= value["p80"] else "has percentiles out of order"


def _first(value) -> str | None:
    if not isinstance(value, dict):
        return f"is {shown(value)}, no object"
    return next((f".{k} {wrong}" for k, t in value.items() if k in ("cold", "reload", "process", "here") and (wrong := _time(t))), None)


def _text(value) -> str | None:
    return None if isinstance(value, str) else f"is {shown(value)}, no text"


def _status(value) -> str | None:
    return None if value in STATUSES else f"is {shown(value)}, none of {', '.join(STATUSES)}"


#: fields that a comparison uses -> what is wrong with a value, or None; those that must be there
_USED: dict[str, Callable] = {"op": _text, "case": _text, "dtype": _text, "backend": _text, "mode": _text, "status": _status, "wall_s": _summary,
                              "baseline": _text, "device_s": _summary, "rounds_s": _times, "device_rounds_s": _times, "first_call_s": _first,
                              "noisy": _text, "unsteady": _text}
_NEEDED = ("op", "case", "dtype", "backend", "status")


def key(row: dict) -> Key:
    """The identity of a sound row."""
    return Key(*(clean(row.get(k, "fwd") if k == "mode" else row[k]) for k in Key._fields))


def wrong(row) -> str | None:
    """What keeps a row from being compared: "wall_s.p50 is 'x', no number of seconds"; None where nothing does."""
    if not isinstance(row, dict):
        return f"it is {shown(row)}, not an object"
    for name in _NEEDED:
        if name not in row:
            return f"{name} is missing"
    for name, check in _USED.items():
        if name in row and (said := check(row[name])):
            return f"{name}{'' if said[0] in '.[' else ' '}{said}"
    return None


def rows(data: dict, name: str) -> tuple[dict[Key, dict], list[str]]:
    """The rows of results `data` (called `name` in sentences) by identity, and remarks: which rows are there twice, of which the first counts. Raises
    `Error` for a row that cannot be what it says: a verdict on part of a damaged file would be none."""
    found: dict[Key, dict] = {}
    twice: list[Key] = []
    for n, row in enumerate(data["rows"]):
        if said := wrong(row):
            raise Error(f"{name}: its row {n + 1} cannot be read: {said}")
        if found.setdefault(key(row), row) is not row:
            twice.append(key(row))
    return found, [f"{name} has {named(twice)} more than once; the first counts"] if twice else []


def named(keys, most: int = 3) -> str:
    """So many rows, and the names of the first of them: "5 rows (softmax 8x8 fp32 torch, ...)"."""
    first = ", ".join(str(k) for k in keys[:most])
    return f"{len(keys)} row{'s' * (len(keys) != 1)} ({first}{', ...' if len(keys) > most else ''})"


def plain(value):
    """A value as JSON has it: what is not finite as text, keys as text, numbers of numpy and torch as numbers, anything else as its text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if not isinstance(value, float):
        try:
            value = value.item() if hasattr(value, "item") else str(value)
        except (ValueError, RuntimeError):  # a tensor of several
            value = str(value)
        return value if isinstance(value, (bool, int, str)) else plain(value) if isinstance(value, float) else str(value)
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def restored(row):
    """A row of a file with the floats that `plain` wrote as text; anything that is no row as it is."""
    if not isinstance(row, dict):
        return row
    metrics = row.get("metrics")
    back = {k: NOT_FINITE[v] for k, v in row.items() if k in ("error", "allowed") and isinstance(v, str) and v in NOT_FINITE}
    if isinstance(metrics, dict):
        back["metrics"] = {k: NOT_FINITE.get(v, v) if isinstance(v, str) else v for k, v in metrics.items()}
    return {**row, **back}
