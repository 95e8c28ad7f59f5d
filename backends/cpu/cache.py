"""Trust in Triton's disk cache: an entry is used only if it is whole and says what was written.

The file that lists an entry's files (Triton's `__grp__` file) carries a digest of each: metadata, texts and object. The cache
manager compares before Triton reads them; what is missing, cut short or altered is compiled again. An object carries one of
its own behind its last section (ELF readers ignore what follows), which is looked at when it is loaded.

Where the cache cannot be written (a full disk, a read-only folder, a path that can be none), or others can write it, a folder of the
process's own takes its place until the process ends.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import locale
import os
import threading
import uuid
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from .. import trust
from ..active import CPU
from ..base import CompileError
from .plugin import spare

_MARK = b"triport.sha256:"
_LENGTH = len(_MARK) + 64


def seal(obj: bytes) -> bytes:
    """`obj` with its digest appended."""
    return obj + _MARK + hashlib.sha256(obj).hexdigest().encode()


def intact(sealed: bytes) -> bool:
    body, tail = sealed[:-_LENGTH], sealed[-_LENGTH:]
    return tail.startswith(_MARK) and hashlib.sha256(body).hexdigest().encode() == tail[len(_MARK):]


def checked(sealed: bytes, name: str) -> bytes:
    """The object of a sealed file. Raises `CompileError` where it is not what was written."""
    if not intact(sealed):
        raise CompileError(f"triton-cpu: the object of kernel {name} is damaged (its digest does not match); delete it "
                           "from Triton's cache directory and launch again")
    return sealed[:-_LENGTH]


class CheckedCacheManager(FileCacheManager):
    """Triton's file cache, with entries of this backend verified before they are used, and a place for what it cannot hold."""

    def __init__(self, key, override=False, dump=False):
        self._named = override or dump  # a folder that the user named, to look at files or to edit them
        self._digests: dict[str, str] = {}
        if not self._named and (why := trust.refused(knobs.cache.dir) or trust.refused(os.path.join(knobs.cache.dir, key))):
            self._at(spare.folder(), key)
            spare.instead_of(knobs.cache.dir, why)
            return
        try:
            if knobs.cache.dir and not self._named:
                trust.make(os.path.join(knobs.cache.dir, key))
            super().__init__(key, override=override, dump=dump)
        except (OSError, RuntimeError) as e:  # Triton's, where TRITON_CACHE_DIR is empty, is a RuntimeError
            if self._named:
                raise
            self._at(knobs.cache.dir or spare.folder(), key)
            spare.instead_of(knobs.cache.dir or "''", e if isinstance(e, OSError) else "is no folder (TRITON_CACHE_DIR is empty)")

    def _at(self, folder: str, key: str):
        self.key, self.cache_dir = key, os.path.join(folder, key)
        self.lock_path = os.path.join(self.cache_dir, "lock")

    def _make_path(self, filename):
        """Where a file is: what the cache could not hold is in a folder of the process's own."""
        return (None if self._named else spare.find(self.key, filename)) or super()._make_path(filename)

    def put(self, data, filename, binary=True):
        if self._named:
            return super().put(data, filename, binary)
        if not isinstance(data, bytes):
            data = str(data).encode(locale.getpreferredencoding(False), "backslashreplace")  # as Triton reads it
        self._digests[filename] = hashlib.sha256(data).hexdigest()
        try:
            return write(self.cache_dir, filename, data)
        except OSError as e:
            spare.instead_of(knobs.cache.dir, e)
            return spare.put(self.key, lambda folder: write(folder, filename, data))

    def put_group(self, filename, group):
        for ext, data in _kept(self.key).items():
            name = f"{filename.removesuffix('.json')}.{ext}"
            group[name] = self.put(data, name)  # Triton makes its kernel of this very dict
        contents = {"child_paths": group}
        if any(name.endswith(".obj") for name in group):
            contents["digests"] = {name: self._digests.get(name) or _digest(path) for name, path in group.items()}
        return self.put(json.dumps(contents), f"__grp__{filename}", binary=False)

    def get_group(self, filename):
        try:
            group = super().get_group(filename)
            if not group:
                return None
            digests = json.loads(Path(self._make_path(f"__grp__{filename}")).read_text()).get("digests")
            return group if _whole(group, digests, filename) else None
        except Exception:  # whatever a damaged file makes of a reader: it is compiled again
            return None


def write(folder: str, filename: str, data: bytes) -> str:
    """Write a file whole or not at all, and return its path. Raises OSError."""
    trust.make(folder)
    path, temp = os.path.join(folder, filename), os.path.join(folder, f"tmp.pid_{os.getpid()}_{uuid.uuid4()}")
    try:
        with open(temp, "wb", opener=trust.opener) as f:
            f.write(data)
        try:
            os.replace(temp, path)
        except IsADirectoryError:
            os.rmdir(path)  # an empty folder in a file's place is nobody's
            os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    return path


def _digest(path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _whole(group: dict, digests, filename: str) -> bool:
    """Is every file of an entry what was written?"""
    if digests is None:
        metadata = json.loads(Path(group[filename]).read_text())
        return metadata["target"]["backend"] not in CPU or "target_row" not in metadata  # another backend's: not ours to judge
    return digests.keys() == group.keys() and all(_digest(p) == digests[name] for name, p in group.items())


_made = threading.local()  # .key, .files (extension -> data): what Triton leaves out of the entry that this thread compiles


def keep(metadata: dict, ext: str, data):
    """A stage's result, which is to be in the entry even where TRITON_STORE_BINARY_ONLY is set: Triton takes only a GPU's for
    binaries. Returns `data`. Raises `CompileError` where a cache manager of the user's stands in the way."""
    if not knobs.compilation.store_binary_only:
        return data
    if not issubclass(knobs.cache.manager_class or FileCacheManager, CheckedCacheManager):
        raise CompileError(f"triton-cpu: TRITON_STORE_BINARY_ONLY=1 leaves kernel {metadata.get('name')} without machine code under the "
                           f"cache manager {knobs.cache.manager_class.__name__}; unset it, or the manager (TRITON_CACHE_MANAGER)")
    key = base64.b32encode(bytes.fromhex(metadata["hash"])).decode().rstrip("=")  # as Triton names the entry's folder
    if getattr(_made, "key", None) != key:
        _made.key, _made.files = key, {}
    _made.files[ext] = data
    return data


def _kept(key: str) -> dict:
    """What was to be kept of the entry `key`."""
    if getattr(_made, "key", None) != key:
        return {}
    _made.key = None
    return _made.files


def install():
    """Use the checked manager, unless the user chose one."""
    if knobs.cache.manager_class is None or knobs.cache.manager_class is FileCacheManager:
        knobs.cache.manager_class = CheckedCacheManager
