"""What is remembered on disk and when it is forgotten: memos, the digest of our sources, Triton's key."""

import functools
import os
from pathlib import Path

import pytest
from triport.backends import base, memo
from triport.backends.cpu.plugin import key
from triton import knobs


@pytest.fixture
def settled(monkeypatch):
    """Files may be remembered as soon as they are written."""
    monkeypatch.setattr(memo, "SETTLED", -1e9)


@pytest.fixture
def counted(tmp_cache, tmp_path, settled):
    """(folder with two files, remember: how often has the value been found out by now?)."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.py").write_text("one")
    (folder / "b.py").write_text("two")
    found = []

    def find():
        found.append(1)
        return len(found)

    def remember():
        value = memo.remembered("test", str(folder), lambda: memo.State(memo.files_below(str(folder), (".py",))), find)
        assert value <= len(found)
        return len(found)

    assert remember() == 1 and remember() == 1, "nobody touched anything"
    return folder, remember


def later(path: Path, change):
    """Do `change()` until the file system's clock says that something happened to `path`."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        change()


def test_a_touched_file_is_seen(counted):
    folder, remember = counted
    later(folder / "a.py", lambda: os.utime(folder / "a.py"))
    assert remember() == 2 and remember() == 2


def test_a_file_of_equal_size_and_time_is_seen(counted):
    """Its inode's own time and number are looked at, too: those nobody can set."""
    folder, remember = counted
    path = folder / "b.py"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns

    def in_place():
        path.write_text("six")
        os.utime(path, ns=times)

    later(path, in_place)
    assert path.stat().st_mtime_ns == times[1] and remember() == 2
    other = folder / "c.tmp"
    other.write_text("ten")
    os.utime(other, ns=times)
    other.replace(path)
    assert path.stat().st_mtime_ns == times[1] and remember() == 3 and remember() == 3


def test_added_and_removed_files_are_seen(counted):
    folder, remember = counted
    (folder / "deep").mkdir()
    assert remember() == 1, "an empty folder holds nothing"
    (folder / "deep" / "c.py").write_text("three")
    assert remember() == 2
    (folder / "deep" / "c.py").unlink()
    assert remember() == 3
    (folder / "a.py").rename(folder / "d.py")
    assert remember() == 4 and remember() == 4


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:len(b) // 2], lambda b: b"null" + bytes(64), lambda b: bytes(len(b)),
                                    lambda b: b.replace(b", 1]", b", 7]"), lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b[:20] + bytes([b[20] ^ 4]) + b[21:]])
def test_a_damaged_memo_is_as_good_as_none(counted, damage):
    _, remember = counted
    path, = memo.folder().glob("test-*.memo")
    path.write_bytes(damage(path.read_bytes()))
    assert remember() == 2 and remember() == 2, "found out again, and kept again"


def test_a_whole_memo_of_something_else_is_as_good_as_none(counted):
    _, remember = counted
    path, = memo.folder().glob("test-*.memo")
    for n, body in enumerate((b"[]", b"7", b'{"a": 1}', b"[1, 2, 3]", b"not JSON", b"\xff\xfe", b'["0", 5]')):
        memo.write(path.name, body)
        assert remember() == n + 2


def test_without_a_writable_folder_the_value_is_found_each_time(tmp_path, monkeypatch, settled):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(knobs.cache, "dir", str(blocked / "cache"))
    found = []
    for n in range(2):
        assert memo.remembered("test", "here", lambda: memo.State([str(blocked)]), lambda: found.append(1) or 5) == 5 and len(found) == n + 1


def test_a_file_written_just_now_is_not_trusted_yet(tmp_cache, tmp_path, monkeypatch):
    """Another write within the same tick of the clock would leave its times as they are."""
    path = tmp_path / "a.py"
    path.write_text("one")
    found = []

    def remember():
        memo.remembered("test", "here", lambda: memo.State([str(path)]), lambda: found.append(1))
        return len(found)

    monkeypatch.setattr(memo, "SETTLED", 1e9)
    assert remember() == 1 and remember() == 2
    monkeypatch.setattr(memo, "SETTLED", -1e9)
    assert remember() == 3 and remember() == 3


def test_files_that_change_meanwhile_are_not_remembered(tmp_cache, tmp_path, settled):
    path = tmp_path / "a.py"
    path.write_text("one")
    found = []

    def find():
        found.append(1)
        path.write_text("longer" * len(found))

    for n in range(3):
        memo.remembered("test", "here", lambda: memo.State([str(path)]), find)
        assert len(found) == n + 1


def test_what_was_found_while_files_changed_is_not_theirs(tmp_cache):
    """Though they should become again what they were."""
    class Fake:
        newest = 0.0

        def __init__(self, digest):
            self.digest = digest

    states, found = list("ABAA"), []
    for n in range(2):
        memo.remembered("test", "here", lambda: Fake(states.pop(0)), lambda: found.append(1))
        assert len(found) == n + 1
    states = ["A"]
    memo.remembered("test", "here", lambda: Fake(states.pop(0)), lambda: found.append(1))
    assert len(found) == 2


def test_links_in_circles_end(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(OSError, match="too deep|Too many levels"):
        memo.files_below(str(tmp_path), (".py",))


def test_digest_of_sources_follows_them(tmp_cache, tmp_path, settled):
    (tmp_path / "src" / "sub").mkdir(parents=True)
    for name in ("src/a.py", "src/sub/b.py"):
        (tmp_path / name).write_text("x = 1\n")
    digest = base.sources_digest.__wrapped__  # what a new process finds
    before = digest(tmp_path / "src")
    assert digest(tmp_path / "src") == before
    path = tmp_path / "src/sub/b.py"
    later(path, lambda: path.write_text("x = 2\n"))
    after = digest(tmp_path / "src")
    assert after != before
    for kept_file in memo.folder().glob("sources-*"):
        kept_file.unlink()
    assert digest(tmp_path / "src") == after, "the same from the files themselves"


def own_triton_key():
    """Triton's own function, whether or not ours stands in its place."""
    from triton.runtime import cache
    return getattr(cache.triton_key, "triton_own", cache.triton_key)


def test_this_tritons_key_function_is_known():
    assert key.known(own_triton_key()), "if Triton's triton_key changed, see what it reads (backends/cpu/plugin/key.py)"


def test_a_function_that_does_more_is_not_known():
    @functools.lru_cache()
    def reads_the_environment():
        return os.environ["TRITON_THING"]

    @functools.lru_cache()
    def reads_another_file():
        with open("/etc/hostname", "rb") as f:
            return f.read()

    assert not key.known(reads_the_environment) and not key.known(reads_another_file) and not key.known(lambda: "") and not key.known(None)


@pytest.mark.parametrize("touched", ["compiler/code_generator.py", "backends/nvidia/driver.py", "language/core.py", "runtime/cache.py", "_C/libtriton.so"])
def test_the_key_is_found_again_when_any_file_was_touched(tmp_cache, tmp_path, settled, touched):
    root = tmp_path / "triton"
    for name in ("compiler/code_generator.py", "backends/nvidia/driver.py", "language/core.py", "runtime/cache.py", "_C/libtriton.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    found = []

    def remember():
        memo.remembered("triton-key", str(root), lambda: memo.State(key.files(str(root))), lambda: found.append(1) or "key")
        return len(found)

    assert remember() == 1 and remember() == 1
    later(root / touched, lambda: os.utime(root / touched))
    assert remember() == 2 and remember() == 2
    (root / touched).unlink()
    assert remember() == 3
