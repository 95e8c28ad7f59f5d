"""Trust in Triton's disk cache: an entry is used only if it is whole and says what was written.

An object file carries a digest behind its last section (ELF readers ignore what follows). The cache manager looks at
every file of an entry before Triton does; what is missing, cut short or altered is compiled again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from ..base import CompileError

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
    """Triton's file cache, with entries of this backend verified before they are used."""

    def get_group(self, filename):
        try:
            group = super().get_group(filename)
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            return None
        if not group or not isinstance(group, dict):
            return group
        return group if _whole(group, filename) else None


def _whole(group: dict, filename: str) -> bool:
    try:
        metadata = json.loads(Path(group[filename]).read_text())
        if metadata["target"]["backend"] != "cpu" or "target_row" not in metadata:
            return True  # another backend's entry: not ours to judge
        objects = [p for name, p in group.items() if name.endswith(".obj")]
        texts = [p for name, p in group.items() if not name.endswith(".obj")]
        return bool(objects) and all(intact(Path(p).read_bytes()) for p in objects) and all(
            Path(p).stat().st_size > 0 for p in texts)
    except (ValueError, KeyError, TypeError, OSError):
        return False


def install():
    """Use the checked manager, unless the user chose one."""
    if knobs.cache.manager_class is None or knobs.cache.manager_class is FileCacheManager:
        knobs.cache.manager_class = CheckedCacheManager
