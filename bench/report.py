"""Results for people, in one place: `screen` is the terminal's table, `formats` Markdown, GitHub's summary and spine-triton's lines, `words` the
sentences, `fields` what a table can show, `units` figures as text."""

from __future__ import annotations

from .formats import github, markdown, spine
from .screen import console, show, table
from .units import ratio, time_text
from .words import measured, words

__all__ = ["console", "github", "markdown", "measured", "ratio", "show", "spine", "table", "time_text", "words"]
