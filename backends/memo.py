"""What is dear to find out and follows from files: kept on disk, and good for as long as nobody touched the files.

Each memo is a file in the folder `triport` of Triton's cache directory: the digest of what its value follows from, the value, and a digest of
both. One that is cut short, altered or of another state is as good as none. Where nothing can be written, or others can write, the value is found out
each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Callable

from . import trust

#: seconds that a file must have been left alone: a write within one tick of the file system's clock leaves times and size as they were
SETTLED = 2.0
#: of memos' values; another where what a memo of the same name holds has changed
FORM = 1


def folder() -> Path:
    """Where memos lie."""
    from triton import knobs
    return Path(knobs.cache.dir) / "triport"


def _refused(at: Path) -> bool:
    """Is it not to be used? An empty TRITON_CACHE_DIR is no folder: the working directory is anybody's."""
    return at.parent == Path() or bool(trust.refused(at.parent) or trust.refused(at))


def read(name: str) -> bytes | None:
    """The file `name` of the folder, as `write` was given it; None where there is none that is whole."""
    at = folder()
    try:
        data = (at / name).read_bytes()
    except (OSError, UnicodeError):  # UnicodeError: a locale in which the folder has no name
        return None
    if _refused(at):
        return None
    body, digest = data[:-64], data[-64:]
    return body if digest == hashlib.sha256(body).hexdigest().encode() else None


def write(name: str, body: bytes):
    """Keep `body` as the file `name` of the folder, whole or not at all; without a writable folder nothing happens."""
    at = folder()
    if _refused(at):
        return
    tmp = at / f"{name}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        trust.make(at)
        with open(tmp, "wb", opener=trust.opener) as f:
            f.write(body + hashlib.sha256(body).hexdigest().encode())
        os.replace(tmp, at / name)
    except OSError:
        with contextlib.suppress(OSError):
            tmp.unlink()


def files_below(top: str, suffixes: tuple[str, ...], depth: int = 16) -> list[str]:
    """The files under folder `top` whose names end so, links followed, sorted; without what Python keeps in __pycache__. Raises `OSError` where
    there is no such folder, or links go round in circles."""
    if depth == 0:
        raise OSError(f"{top} is too deep: links that go round in circles?")
    out = []
    with os.scandir(top) as entries:
        for e in entries:
            if e.name.endswith(suffixes):
                out.append(e.path)
            elif e.name != "__pycache__" and e.is_dir():
                out += files_below(e.path, suffixes, depth - 1)
    return sorted(out)


class State:
    """Files as they are now. digest: of path, size, times of the last write and the last change of the inode (which nobody can set), and inode of each."""

    def __init__(self, files: list[str], also: object = None):
        self.newest, lines = 0.0, [repr((FORM, also))]
        for path in files:
            s = os.stat(path)
            self.newest = max(self.newest, s.st_mtime, s.st_ctime)
            lines.append(f"{path}\0{s.st_size}\0{s.st_mtime_ns}\0{s.st_ctime_ns}\0{s.st_ino}")
        self.digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()


def remembered(name: str, place: str, state: Callable[[], State], find: Callable[[], object]):
    """`find()`, or what it returned when `state()` was the same. The value is plain JSON.

    name: the memo's; place: what tells its files from those of another installation that shares the cache directory."""
    try:
        before = state()
    except OSError:
        return find()
    file = f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}.memo"
    kept = read(file)
    if kept is not None:
        try:
            digest, value = json.loads(kept)
            if digest == before.digest:
                return value
        except (ValueError, TypeError):
            pass
    value = find()
    with contextlib.suppress(OSError):
        if state().digest == before.digest and before.newest < time.time() - SETTLED:
            write(file, json.dumps([before.digest, value]).encode())
    return value
