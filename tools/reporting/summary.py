"""A run of a results file in words: what `triport bench` says at its end, of the rows that are sound, with the file's own remarks."""

from __future__ import annotations

from ...bench.words import words as words_of
from .runs import Run


def words(run: Run) -> list[tuple[str, str]]:
    """(kind, sentence) in order; kinds: "bad" (wrong or failed), "skipped", "remark", "fact"."""
    return words_of(run.measured, run.remarks)
