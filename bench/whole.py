"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, Iterator

from ..backends.base import Error


@contextlib.contextmanager
def file(path: Path, mode: str = "w") -> Iterator[IO]:
    """A file to write to, "w" or "wb", which is made beside `path` and renamed at the end: a reader never meets half of one, whenever the writer is killed or the disk full, and
    what was there before stays until then. What is no regular file (a pipe, /dev/stderr), or stands in a folder that takes no other, is written to. Text that has no bytes is
    written as "?". Raises `Error` where it cannot be written."""
    said = {} if "b" in mode else {"encoding": "utf-8", "errors": "replace"}
    try:
        there = path.is_file()
        if path.exists() and not (there and os.access(path.resolve().parent, os.W_OK)):
            with path.open(mode, **said) as f:
                yield f
            return
        path = path.resolve()  # through a link to the file that it names
        rights = stat.S_IMODE(path.stat().st_mode) if there else 0o644
        fd, made = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(fd, mode, **said) as f:
                yield f
            os.chmod(made, rights)
            os.replace(made, path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise Error(f"{path} cannot be written: {e.strerror or e}") from None


def write(path: Path, content: str | bytes):
    """The whole of a file. Raises `Error` where it cannot be written."""
    with file(path, "w" if isinstance(content, str) else "wb") as f:
        f.write(content)
