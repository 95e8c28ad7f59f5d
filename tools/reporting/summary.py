"""A run of a results file in words: what `triport bench` says at its end, of the rows that are sound, with the file's own remarks."""

from __future__ import annotations

from ...bench.words import words as words_of
from .runs import Run


def words(run: Run) -> list[tuple[str, str]]:
    """(kind, sentence) in order; kinds: "bad" (wrong or failed), "skipped", "remark", "fact"."""
    return words_of([_measured(r) for r in run.rows], run.remarks)


def _measured(row: dict) -> dict:
    """A page's row as a benchmark's: its median time where one is looked for."""
    return row | ({"wall_s": {"p50": row["time"][1]}} if row.get("time") else {})
