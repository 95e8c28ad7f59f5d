"""Files that are run are taken from nowhere that another user can write (docs/security.md)."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
import triton
import triton.language as tl
from triport.backends import memo, trust
from triport.backends.base import Error
from triport.backends.cpu.plugin import spare
from triport.backends.cpu.run import perf_map
from triton import knobs


@triton.jit
def add_one_kernel(x_ptr, out_ptr):
    i = tl.arange(0, 16)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 1)


def run():
    add_one_kernel.device_caches.clear()
    x, out = torch.arange(16.), torch.empty(16)
    add_one_kernel[(1,)](x, out)
    assert torch.equal(out, x + 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Triton's cache directory, in a mode of the test's; and as in a process that has not met one that is not used."""
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    if (reason := trust.refused(tmp_path)):
        pytest.skip(f"the folder of temporary files {reason}")
    spare.forget()
    made = tmp_path / "cache"
    made.mkdir()
    monkeypatch.setattr(knobs.cache, "dir", str(made))
    yield made
    spare.forget()


@pytest.mark.parametrize("mode,words", [(0o777, "everybody"), (0o1777, "everybody"), (0o775, "group")])
def test_a_cache_that_others_can_write_is_refused(folder, mode, words, monkeypatch):
    monkeypatch.setattr(trust, "_private", lambda gid: False)
    folder.chmod(mode)
    assert words in trust.refused(folder)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
        run()
    told = [str(w.message) for w in seen if "is not used" in str(w.message)]
    assert len(told) == 1 and words in told[0] and str(folder) in told[0] and "TRITON_CACHE_DIR" in told[0]
    assert not list(folder.iterdir()), "something was written there"
    memo.write("a", b"b")
    assert memo.read("a") is None and not list(folder.iterdir())


def test_a_folder_that_the_locale_has_no_name_for(tmp_path):
    """It is as one that is not used: the kernel runs, and is not kept."""
    (tmp_path / "k.py").write_text("import torch\nfrom triport import ops\nassert ops.square(torch.full((8,), 3.0)).tolist() == [9.0] * 8\n")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TRITON_CACHE_DIR": str(tmp_path / "é")}
    done = subprocess.run([sys.executable, tmp_path / "k.py"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "has a name that this process's locale cannot write; set PYTHONUTF8=1" in done.stderr, done.stderr


def test_what_another_user_left_there_is_not_run(folder):
    run()
    entry, = (p.parent for p in folder.rglob("*.obj"))
    entry.chmod(0o777)  # the entry alone: whoever can write it can put an object and its digests there
    trust._checked.cache_clear()
    before = {p: p.stat().st_atime_ns for p in entry.iterdir()}
    with pytest.warns(RuntimeWarning, match="is not used"):
        run()
    assert before.keys() == set(entry.iterdir())
    assert any(os.path.exists(os.path.join(f, entry.name)) for f in spare.folders()), "it was not compiled anew"


def test_whose_folder_it_is(folder, monkeypatch):
    assert trust.refused(folder) is None and trust.refused(folder / "none" / "yet") is None
    (folder / "open").mkdir()
    (folder / "open" / "own").mkdir(mode=0o700)
    (folder / "open").chmod(0o777)
    assert "not sticky" in trust.refused(folder / "open" / "own") and "not sticky" in trust.refused(folder / "open" / "none")
    (folder / "open").chmod(0o1777)
    trust._checked.cache_clear()
    assert trust.refused(folder / "open" / "own") is None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)
    trust._checked.cache_clear()
    if os.getuid():  # root's folders are everybody's to trust
        assert "another user" in trust.refused(folder)
    monkeypatch.setenv(trust.VARIABLE, "1")
    assert trust.refused(folder) is None
    trust._checked.cache_clear()


def test_what_is_made_others_cannot_write(folder, monkeypatch):
    """With a umask of 0 it would be refused by the next process, and a file be written by anybody."""
    monkeypatch.setattr(knobs.cache, "dir", str(folder / "new" / "cache"))
    before = os.umask(0)
    try:
        run()
        memo.write("a", b"b")
    finally:
        os.umask(before)
    made = [p for p in folder.rglob("*")]
    assert any(p.suffix == ".obj" for p in made) and not any(p.stat().st_mode & 0o22 for p in made), [(p, oct(p.stat().st_mode)) for p in made]
    assert memo.read("a") == b"b" and trust.refused(folder / "new" / "cache") is None


def test_where_links_lead(folder, tmp_path):
    """A folder of ours below one that everybody can write, by a link from one that nobody can."""
    (folder / "open").mkdir()
    (folder / "open" / "own").mkdir(mode=0o700)
    (folder / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(folder / "open" / "own")
    assert "not sticky" in trust.refused(tmp_path / "link")


def test_names_that_are_no_folders(folder, tmp_path, monkeypatch):
    """An empty TRITON_CACHE_DIR, of which nothing comes to lie in the working directory, and a relative one where the working directory has gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(knobs.cache, "dir", "")
    with pytest.warns(RuntimeWarning, match="TRITON_CACHE_DIR is empty"):
        run()
    memo.write("a", b"b")
    assert memo.read("a") is None and not list(gone.iterdir())
    gone.rmdir()
    spare.forget()
    monkeypatch.setattr(knobs.cache, "dir", "cache")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        run()
    memo.write("a", b"b")
    assert memo.read("a") is None


def test_perfs_map_is_not_written_through_a_link(tmp_path):
    path, target = f"/tmp/perf-{os.getpid()}.map", tmp_path / "victim"
    target.write_text("as it was")
    if os.path.lexists(path):
        pytest.skip("another test of this process has written perf's map")
    os.symlink(target, path)
    try:
        with pytest.raises(Error, match="cannot be written"):
            perf_map.add(_elf(), {})
    finally:
        os.unlink(path)
    assert target.read_text() == "as it was"


def _elf() -> bytes:
    from triport.backends.cpu.llvm import generator, targets
    return generator.emit_object("define void @f() { ret void }", targets.get("native"))
