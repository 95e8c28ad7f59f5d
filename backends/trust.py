"""Whether a folder's files may be run: machine code is taken from disk only where nobody but this user (and root) can have written it.

Triton's cache directory holds objects that are linked into the process, so `cpu/cache.py` and `memo.py` ask here (docs/security.md).
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

#: a folder that others can write is used all the same where this is 1: a cache that a team shares
VARIABLE = "TRIPORT_TRUST_CACHE"


def trusting() -> bool:
    """Is whatever cache there is used?"""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def refused(folder: str | Path) -> str | None:
    """Why files below `folder` are not to be trusted, in words that follow its name; None where they are, and where it does not exist and whoever makes
    it is this user. Not asked on systems without Unix's owners."""
    try:
        os.fsencode(folder)
    except UnicodeEncodeError:
        return "has a name that this process's locale cannot write; set PYTHONUTF8=1 or a UTF-8 locale"
    if not hasattr(os, "geteuid") or trusting():
        return None
    try:
        path = os.path.abspath(folder)
    except OSError:  # of a relative name, where the working directory is gone: nothing can be read or written there
        return None
    return _checked(path) if os.path.isdir(path) else _reason(path)


def make(folder: str | Path):
    """As os.makedirs, but nobody else can write what it makes, whatever the umask: the next process would refuse it. Raises OSError."""
    if trusting():
        os.makedirs(folder, exist_ok=True)
        return
    path, missing = os.path.abspath(folder), []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def opener(path: str, flags: int) -> int:
    """`open`'s, of a file that nobody else can write."""
    return os.open(path, flags, 0o666 if trusting() else 0o644)


@functools.lru_cache(maxsize=256)
def _checked(path: str) -> str | None:
    return _reason(path)


def _reason(path: str) -> str | None:
    try:
        found = os.stat(path)
        if found.st_uid not in (os.geteuid(), 0):
            return f"belongs to another user (uid {found.st_uid})"
        if found.st_mode & stat.S_IWOTH:
            return f"can be written by everybody (mode {stat.S_IMODE(found.st_mode):o}); chmod go-w it, once nothing in it is another user's"
        if found.st_mode & stat.S_IWGRP and not _private(found.st_gid):
            return f"can be written by its group (gid {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o}); chmod g-w it, once nothing in it is another user's"
    except OSError:  # it is to be made
        pass
    for way in dict.fromkeys((path, os.path.realpath(path))):  # who can put another link in a link's place, or another folder where it leads
        if (reason := _above(way)):
            return reason
    return None


def _above(path: str) -> str | None:
    above = os.path.dirname(path)
    while above:  # who can rename a folder on the way can put another in its place
        try:
            mode = os.stat(above).st_mode
        except OSError:
            mode = 0
        if stat.S_ISDIR(mode) and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"is below {above}, which can be written by everybody (mode {stat.S_IMODE(mode):o}, not sticky)"
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)
    return None


def _private(gid: int) -> bool:
    """Is it a group of this user alone, as many systems make one for each?"""
    import grp
    import pwd
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a container's user without a name
        return gid == os.getegid()
    return gid == me.pw_gid and not set(group.gr_mem) - {me.pw_name} and (group.gr_name == me.pw_name or gid == 0)
