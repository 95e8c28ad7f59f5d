"""A place for compiled kernels where Triton's cache cannot be written: a temporary folder, for as long as the process lives."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import warnings

from ...base import Error

_lock = threading.Lock()
_folders: dict[tuple[int, str], str] = {}  # (process, where) -> folder
_warned = False


def instead_of(cache: str, error: OSError | str):
    """Say once that the cache cannot be written, or, in words that follow its name, why it is not used."""
    global _warned
    with _lock:
        first, _warned = not _warned, True
    if first:
        what = f"cannot be written ({error})" if isinstance(error, OSError) else f"is not used, because it {error}"
        warnings.warn(f"triton-cpu: Triton's cache {cache} {what}: kernels run, but every process compiles them "
                      "anew; set TRITON_CACHE_DIR to a folder of your own with room", RuntimeWarning, stacklevel=2)


def _roots() -> list[str]:
    try:
        first = [tempfile.gettempdir()]
    except OSError:  # none that can be written
        first = []
    return [*first, "/dev/shm"]  # noqa: S108  (a folder of mkdtemp, which is this user's alone, is made in it)


def folder() -> str:
    """A folder of this process. Raises `Error` where there can be none."""
    return put("", lambda folder: folder).rstrip("/")


def put(key: str, write) -> str:
    """`write(folder)` into a folder of this process for the entry `key`, on whatever disk takes it; the path it returns. Raises
    `Error` where none does."""
    tried = []
    for root in dict.fromkeys(_roots()):
        try:
            with _lock:
                if (os.getpid(), root) not in _folders:
                    _folders[os.getpid(), root] = tempfile.mkdtemp(prefix="triton-cpu-", dir=root)
                    if len(_folders) == 1:
                        atexit.register(forget)
            return write(os.path.join(_folders[os.getpid(), root], key))
        except OSError as e:
            tried.append(f"{root} ({e})")
    raise Error(f"triton-cpu: a compiled kernel cannot be kept anywhere: neither in Triton's cache nor in {', '.join(tried)}; set "
                "TRITON_CACHE_DIR to a folder with room")


def find(key: str, filename: str) -> str | None:
    """The path of a file of an entry that is here."""
    paths = (os.path.join(folder, key, filename) for folder in folders())
    return next((path for path in paths if os.path.exists(path)), None)


def folders() -> list[str]:
    """Those of this process."""
    return [folder for (process, _), folder in list(_folders.items()) if process == os.getpid()]


def forget():
    """Remove this process's folders; it is then as one that has met no cache that cannot be written."""
    global _warned
    with _lock:
        for folder in folders():
            shutil.rmtree(folder, ignore_errors=True)
        _folders.clear()
        _warned = False
