"""Files that are there whole or not at all."""

import errno
import os
import stat

import pytest
from triport.backends.base import Error
from triport.bench import whole


@pytest.mark.parametrize("content", ["text \u00fc\n", b"\0bytes"])
def test_what_is_written_is_the_file(tmp_path, content):
    file = tmp_path / "out"
    whole.write(file, content)
    assert file.read_bytes() == (content if isinstance(content, bytes) else content.encode()) and stat.S_IMODE(file.stat().st_mode) == 0o644
    file.chmod(0o600)
    (tmp_path / "link").symlink_to(file)
    whole.write(tmp_path / "link", content * 2)
    assert file.stat().st_size == 2 * len(content if isinstance(content, bytes) else content.encode()) and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tmp_path / "link").is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("before", ["a good page", None])
@pytest.mark.parametrize("how,raised", [(OSError(errno.ENOSPC, "No space left on device"), Error), (KeyboardInterrupt(), KeyboardInterrupt)], ids=["full", "ended"])
def test_what_ends_on_the_way_leaves_what_was(tmp_path, before, how, raised):
    file = tmp_path / "page.html"
    if before:
        file.write_text(before)
    with pytest.raises(raised), whole.file(file) as f:
        f.write("half of ")
        f.flush()
        raise how
    assert [p.read_text() for p in tmp_path.iterdir()] == [before] * bool(before)


def test_what_is_no_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    whole.write(pipe, "through")
    assert os.read(reader, 99) == b"through" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    with pytest.raises(Error, match="cannot be written: No space left"):
        whole.write(type(pipe)("/dev/full"), "x")
    with pytest.raises(Error, match="cannot be written: No such file"):
        whole.write(tmp_path / "none" / "x", "x")


def test_a_file_that_may_be_written_in_a_folder_that_takes_no_other(tmp_path, monkeypatch):
    file = tmp_path / "out"
    file.write_text("before")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != os.fspath(tmp_path) and access(path, mode))
    whole.write(file, "now")
    assert file.read_text() == "now"
