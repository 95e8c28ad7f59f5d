"""Triton's disk cache under this backend: what is damaged is compiled again, what cannot be written is done without."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.base import CompileError, Error
from triport.backends.cpu import cache, compiler
from triport.backends.cpu.lowered import lowered
from triport.backends.cpu.plugin import spare
from triport.backends.cpu.run import metadata as facts
from triport.backends import active
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def sums_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Its metadata say something in every field: scratch, an assertion, a pair of pointers that are to be apart."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_assert(x < 99, "a message")
    tl.store(out_ptr + N + i, tl.cumsum(x, 0))
    tl.store(out_ptr + i, x + 1)


def run():
    """A launch as a new process would make it, nothing being compiled in this one."""
    sums_kernel.device_caches.clear()
    x, out = torch.arange(64.), torch.empty(128)
    compiled = sums_kernel[(1,)](x, out, 64, debug=True)
    assert torch.equal(out, torch.cat([x + 1, x.cumsum(0)]))
    return compiled


def entry(folder) -> dict[str, Path]:
    """Extension -> file of the one entry there; "grp": the list of its files. What is kept beside entries (`memo.folder`) is none of them."""
    files = [p for p in Path(folder).rglob("*") if p.is_file() and p.parent.name != "triport"]
    return {"grp" if p.name.startswith("__grp__") else p.suffix[1:]: p for p in files}


def written(folder) -> dict[str, int]:
    return {k: p.stat().st_ino for k, p in entry(folder).items()}


def test_an_entry_serves_the_next_process(tmp_cache):
    run()
    before = written(tmp_cache)
    assert set(before) == {"grp", "json", "source", "ttir", "plan", "llir", "asm", "obj"}
    run()
    assert written(tmp_cache) == before, "an entry that is whole was compiled again"


EDITS = [{"scratch_bytes": 0}, {"scratch_bytes": 64}, {"scratch_bytes": 1 << 50}, {"scratch_bytes": None}, {"shared": 1}, {"name": "evil"},
         {"arguments": []}, {"arguments": ["ptr"] * 9}, {"disjoint": []}, {"disjoint": [["print(1)", 0, True]]}, {"disjoint": [[0, 99, True]]},
         {"work": -5}, {"work": 10**30}, {"work": "open('/dev/null')"}, {"loops": [[1, [[0, 0, 0]]]]},
         {"loops": [[1, [[99, 0, 1]]]]}, {"loops": [["open('/dev/null')", []]]}, {"loops": "x"}, {"asserts": "x"}, {"asserts": []}, {"target_row": "x"},
         {"target": {"backend": "cuda", "arch": 90, "warp_size": 32}}, {"a b": 1}, {"num_warps": 64}, {"facts": "0"}]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_edited_metadata_is_compiled_again(tmp_cache, edit):
    right = run().metadata._asdict()
    path = entry(tmp_cache)["json"]
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    assert run().metadata._asdict() == right
    assert {**json.loads(path.read_text()), **edit} != json.loads(path.read_text()), "the damaged file is there yet"


@pytest.mark.parametrize("edit", [e for e in EDITS if e.keys() & facts._FIELDS.keys()], ids=str)
def test_metadata_is_not_believed_whatever_cache_it_comes_from(edit):
    """What no cache manager of ours has looked at is refused before it is a size, an index or a name."""
    metadata = run().metadata
    assert facts.checked(metadata)["scratch_bytes"] > 0
    with pytest.raises(CompileError, match="metadata of kernel '.*' in Triton's cache is damaged"):
        facts.checked(metadata._replace(**edit))
    edited = metadata._asdict() | edit
    refused = {"scratch_bytes": (0, 64), "name": ("evil",), "arguments": ([], ["ptr"] * 9), "disjoint": ([],), "asserts": ([],), "shared": (1,)}
    if edited[k := next(iter(edit))] not in refused.get(k, ()):  # wrong in itself: no digest makes it right
        with pytest.raises(CompileError, match=f"{k!r} is"):
            facts.checked(metadata._replace(**edit, facts=facts.digest(edited)))


MOVED = """
import sys
import torch, triton, triton.language as tl
from {helper} import doubled

@triton.jit
def kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_assert(x < 99, "large")
    tl.store(x_ptr + i + (1 if sys_beyond else 0), doubled(x))

sys_beyond: tl.constexpr = tl.constexpr({beyond})
try:
    kernel[(1,)](torch.full((64,), float(sys.argv[1])), N=64, debug=True, **({{"check": sys.argv[2]}} if sys.argv[2] else {{}}))
except Exception as e:
    print(e)
"""
HELPER = """
import triton, triton.language as tl

@triton.jit
def {name}(x):
    tl.device_assert(x != 7, "seven")
    return 2 * x
"""


@pytest.mark.parametrize("moved", ["folder", "file"])
@pytest.mark.parametrize("value,beyond,checks,line", [(100, 0, "", ("kernels", 10)), (7, 0, "", ("helping", 6)), (1, 1, "bounds", ("kernels", 11))])
def test_messages_name_the_file_as_it_is_now(tmp_path, moved, value, beyond, checks, line):
    """A kernel that was compiled from a file that went elsewhere since: by then its text, which the cache knows it by, is the same."""
    def told(folder: Path, file: str) -> str:
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(MOVED.format(helper="helping", beyond=beyond))
        (folder / "helping.py").write_text(HELPER.format(name="doubled"))
        env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        return subprocess.run([sys.executable, folder / file, str(value), checks], env=env, capture_output=True, text=True, check=True).stdout

    first = told(tmp_path / "before", "kernels.py")
    assert f"{tmp_path}/before/{line[0]}.py:{line[1]}" in first
    kept = len(list((tmp_path / "cache").iterdir()))
    if moved == "folder":
        shutil.move(tmp_path / "before", tmp_path / "after")
        second, where = told(tmp_path / "after", "kernels.py"), f"{tmp_path}/after/{line[0]}.py:{line[1]}"
    else:
        second, where = told(tmp_path / "before", "others.py"), f"{tmp_path}/before/{line[0].replace('kernels', 'others')}.py:{line[1]}"
    assert where in second and (moved == "file" or f"{tmp_path}/before" not in second)
    assert len(list((tmp_path / "cache").iterdir())) == kept, "from the cache"


def damage(rng, path: Path, kind: str):
    """Do to a file what a bad disk, a full one, an editor or another program does."""
    data = path.read_bytes()
    if kind == "remove":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(data[:rng.randrange(len(data))])
    elif kind == "longer":
        path.write_bytes(data + rng.randbytes(rng.randrange(1, 100)))
    elif kind == "garbage":
        path.write_bytes(rng.randbytes(rng.randrange(1, 2000)))
    elif kind == "bit":
        k = rng.randrange(len(data))
        path.write_bytes(data[:k] + bytes([data[k] ^ 1 << rng.randrange(8)]) + data[k + 1:])
    elif kind == "json":
        path.write_text(rng.choice(["[]", "{}", "null", "3", '"x"', "[" * 5000, '{"child_paths": 3}', '{"child_paths": {"a": 1}}',
                                    '{"child_paths": {"sums_kernel.json": "/dev/null"}}', '{"child_paths": {}}', "{\"a\": NaN}"]))
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "full folder":
        path.unlink()
        path.mkdir()
        (path / "file").write_text("somebody's")
    elif kind == "link":
        path.unlink()
        path.symlink_to(rng.choice(["/nowhere", "/dev/null", "/etc/passwd"]))
    return data


KINDS = ["remove", "empty", "cut", "longer", "garbage", "bit", "json", "folder", "full folder", "link"]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_compiled_again(tmp_cache, seed, kind):
    """Each file of an entry in turn: no exception, the right result, and an entry that is whole."""
    rng = random.Random(seed)
    run()
    for ext in ("grp", "json", "source", "ttir", "plan", "llir", "asm", "obj"):
        path = entry(tmp_cache)[ext]
        damage(rng, path, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a folder with something in it stays where it is
            compiled = run()
        assert {"ttir", "llir", "asm", "obj"} <= set(compiled.asm), (ext, kind)
        if kind == "full folder":
            assert (path / "file").read_text() == "somebody's"
            shutil.rmtree(path)
            shutil.rmtree(spare_folder(tmp_cache), ignore_errors=True)
            run()
        assert all(p.is_file() for p in entry(tmp_cache).values()) and len(entry(tmp_cache)) == 8


def spare_folder(cache_dir) -> Path:
    """The folder that this process has beside the cache for the entry there."""
    key = next(p.name for p in Path(cache_dir).iterdir() if p.is_dir())
    return next((Path(f) / key for f in spare.folders() if (Path(f) / key).is_dir()), Path("/nowhere"))


def test_an_entry_without_digests_is_compiled_again(tmp_cache):
    """As one would be that a cache manager of Triton's own wrote."""
    run()
    path = entry(tmp_cache)["grp"]
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({"child_paths": whole["child_paths"]}))
    run()
    assert json.loads(path.read_text()) == whole


def test_entries_of_other_backends_are_let_alone(tmp_cache):
    manager = cache.CheckedCacheManager("ABC")
    metadata = manager.put(json.dumps({"target": {"backend": "cuda", "arch": 90, "warp_size": 32}}), "k.json", binary=False)
    binary = manager.put(b"\x7fELF", "k.cubin")
    manager.put_group("k.json", {"k.json": metadata, "k.cubin": binary})
    assert "digests" not in json.loads((tmp_cache / "ABC" / "__grp__k.json").read_text())
    Path(binary).write_bytes(b"edited, as people do")
    assert manager.get_group("k.json") == {"k.json": metadata, "k.cubin": binary}


# --- without a cache -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_spare():
    """As in a process that has met no cache that cannot be written."""
    spare.forget()
    yield
    spare.forget()


def one_warning(fn):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out = fn()
    told = [w for w in seen if "cannot be written" in str(w.message)]
    assert len(told) == 1 and told[0].category is RuntimeWarning, [str(w.message) for w in seen]
    return out, str(told[0].message)


@pytest.mark.parametrize("where", ["below a file", "below a device", "in /proc", "too long"])
def test_impossible_folders(tmp_path, monkeypatch, nothing_spare, where):
    from triton import knobs
    (tmp_path / "file").write_text("")
    path = {"below a file": tmp_path / "file" / "x", "below a device": "/dev/null/x", "in /proc": "/proc/nope",
            "too long": tmp_path / ("x" * 300)}[where]
    monkeypatch.setattr(knobs.cache, "dir", str(path))
    _, text = one_warning(lambda: [run() for _ in range(3)])
    assert str(path) in text and "TRITON_CACHE_DIR" in text
    folder, = spare.folders()
    assert len(entry(folder)) == 8
    before = written(folder)
    run()
    assert written(folder) == before, "the process compiled again what it has"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("files", [0, 1, 3, 6])
def test_a_disk_that_is_full_before_an_entry_is_written(tmp_cache, monkeypatch, nothing_spare, error, files):
    """After 0, 1, 3, 6 of its 7 files; what is written half is not there."""
    write, left = cache.write, [files]

    def failing(folder, filename, data):
        if not str(folder).startswith(str(tmp_cache)):
            return write(folder, filename, data)
        if left[0] <= 0:
            raise OSError(error, os.strerror(error), filename)
        left[0] -= 1
        return write(folder, filename, data)

    monkeypatch.setattr(cache, "write", failing)
    one_warning(run)
    assert len(entry(tmp_cache)) == files
    run()
    left[0] = 1000  # there is room again
    spare.forget()
    run()
    assert len(entry(tmp_cache)) == 8


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    class Full(OSError):
        pass

    def no_room(*args):
        raise Full(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(Full):
        cache.write(str(tmp_path / "key"), "k.obj", b"x" * 100)
    assert list((tmp_path / "key").iterdir()) == []


def test_no_place_at_all(tmp_cache, monkeypatch, nothing_spare):
    def no_room(folder, filename, data):
        raise OSError(errno.ENOSPC, "No space left on device", filename)

    monkeypatch.setattr(cache, "write", no_room)
    with pytest.raises(Error, match="cannot be kept anywhere: neither in Triton's cache nor in .*No space left"):
        one_warning(run)


def test_a_folder_that_the_user_names_is_not_replaced(tmp_cache, tmp_path, monkeypatch):
    """TRITON_KERNEL_DUMP=1: who asks for files to look at is told where they cannot be."""
    from triton import knobs
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(knobs.cache, "dump_dir", str(tmp_path / "file"))
    with pytest.raises(OSError):
        cache.CheckedCacheManager("ABC", dump=True)


PROGRAM = """
import warnings, torch, triton, triton.language as tl, tempfile, os, sys, glob
@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)
@triton.jit
def add_two(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 2, mask=offs < n)
x, out = torch.arange(1000.), torch.empty(1000)
compiled = add_one[(8,)](x, out, 1000, BLOCK=128)
assert torch.equal(out, x + 1)
add_two[(8,)](x, out, 1000, BLOCK=128)
assert torch.equal(out, x + 2)
print("right", sorted(compiled.asm))
"""


def program(tmp_path, **env):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    p = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, cwd=tmp_path)
    assert p.returncode == 0 and "right" in p.stdout, p.stderr[-2000:]
    return p


def test_a_process_without_a_cache_warns_once_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    p = program(tmp_path, TRITON_CACHE_DIR=str(tmp_path / "file" / "x"), TMPDIR=str(tmp_path / "temporary"))
    assert p.stderr.count("cannot be written") == 1, p.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_full_disk(tmp_path):
    """A file system of 16 KiB: no entry fits."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here (that takes root and CAP_SYS_ADMIN)")
    try:
        p = program(tmp_path, TRITON_CACHE_DIR=str(disk))
        assert p.stderr.count("cannot be written") == 1 and "No space left" in p.stderr, p.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- TRITON_STORE_BINARY_ONLY --------------------------------------------------------------------------------------------------


def test_binaries_only(tmp_path):
    """What is kept of a kernel is its machine code and its metadata (and its source, where Triton does so), and serves the next process."""
    kept = []
    for _ in range(2):
        p = program(tmp_path, TRITON_CACHE_DIR=str(tmp_path / "cache"), TRITON_STORE_BINARY_ONLY="1")
        assert "'obj'" in p.stdout and not any(stage in p.stdout for stage in ("ttir", "llir", "asm"))
        kept.append({q.name: q.stat().st_ino for q in (tmp_path / "cache").rglob("*add_one*")})
        assert kept[-1].keys() - {"add_one.source"} == {"__grp__add_one.json", "add_one.json", "add_one.obj"}
    assert kept[0] == kept[1], "what is there was compiled again"


def test_binaries_only_under_a_cache_manager_of_the_users(tmp_cache, monkeypatch):
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    class Mine(FileCacheManager):
        pass

    monkeypatch.setattr(knobs.cache, "manager_class", Mine)
    monkeypatch.setattr(knobs.compilation, "store_binary_only", True)
    with pytest.raises(CompileError, match="TRITON_STORE_BINARY_ONLY=1 leaves kernel .* under the cache manager Mine"):
        run()
    monkeypatch.setattr(knobs.compilation, "store_binary_only", False)
    assert set(run().asm) >= {"ttir", "obj"}


def test_binaries_of_one_kernel_do_not_come_to_another(tmp_cache, monkeypatch):
    """A compilation that fails behind its object leaves nothing for the next one in its thread."""
    from triton import knobs
    monkeypatch.setattr(knobs.compilation, "store_binary_only", True)
    cache.keep({"hash": "00" * 32, "name": "k"}, "obj", b"of a kernel that was not finished")
    assert not run().asm.keys() & {"ttir", "llir", "asm"}
    manager = cache.CheckedCacheManager("ABC")
    group = {"k.json": manager.put("{}", "k.json", binary=False)}
    cache.keep({"hash": "00" * 32, "name": "k"}, "obj", b"of a kernel that was not finished")
    manager.put_group("k.json", group)
    assert list(group) == ["k.json"]


# --- without machine code ----------------------------------------------------------------------------------------------------

def test_what_is_lowered_alone_leaves_one_file(tmp_cache, monkeypatch):
    """A kernel for a library has neither assembly nor object, in Triton's cache nor anywhere; it is made once, and again for other options, or where
    what was kept is damaged."""
    made, real = [], compiler.lower
    monkeypatch.setattr(compiler, "lower", lambda *a: made.append(1) or real(*a))
    source = ASTSource(fn=sums_kernel, signature={"x_ptr": "*fp32", "out_ptr": "*fp32", "N": "constexpr"}, constexprs={"N": 64})
    target = GPUTarget("cpu", "rv64gcv", 0)

    def files():
        return [p.name for p in tmp_cache.rglob("*") if p.is_file() and p.suffix != ".memo" and not p.name.startswith("guard-")]

    with active.compiling_for(target):
        first, again = (lowered(source, target, {"assume_disjoint": True}) for _ in range(2))
        assert first == again and len(made) == 1 and len(files()) == 1
        whole = triton.compile(source, target=target, options={"assume_disjoint": True})
        assert (first.ttir, first.llir) == (whole.asm["ttir"], whole.asm["llir"])
        assert all(v == getattr(whole.metadata, k) for k, v in vars(first.metadata).items()) and {"scratch_bytes", "facts"} <= vars(first.metadata).keys()
        path = next(p for p in tmp_cache.rglob("lowered-*"))
        path.write_bytes(path.read_bytes()[:-1])
        made.clear()
        assert lowered(source, target, {"assume_disjoint": True}) == first and len(made) == 1
        assert lowered(source, target, {"assume_disjoint": False}) != first and len(made) == 2
