"""The runtime: cache, processes, threads, forks, launch hooks, scratch."""

import ctypes
import json
import os
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import numpy as np
import triton
import triton.language as tl
from conftest import HANGS
from triport import ops
from triport.backends import active, checking
from triport.backends.base import ArgumentError, Error
from triport.backends.cpu.run import elf, launch, pool

KERNEL = """
import sys, torch, triton, triton.language as tl
@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)
x = torch.arange(1000.); out = torch.empty_like(x)
add_one[(8,)](x, out, 1000, BLOCK=128)
assert torch.equal(out, x + 1)
print("right")
"""


def start(script: Path, cache, **env):
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TRITON_CACHE_DIR": str(cache), **env}, cwd=script.parent)


def finish(p):
    out, err = p.communicate(timeout=HANGS)
    assert p.returncode == 0 and "right" in out, err[-2000:]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(KERNEL)
    return path


def test_two_processes_compile_at_once(script, tmp_path):
    both = [start(script, tmp_path / "cache") for _ in range(2)]
    for p in both:
        finish(p)


DAMAGE = KERNEL + """
from pathlib import Path
from triport.backends.cpu import compiler
made, real = [], compiler.lower
compiler.lower = lambda *a: made.append(1) or real(*a)

def again():
    made.clear()
    add_one.device_caches.clear()  # as a new process: what was compiled is on disk alone
    out.zero_()
    add_one[(8,)](x, out, 1000, BLOCK=128)
    assert torch.equal(out, x + 1)
    return bool(made)

files = sorted(p for p in Path(sys.argv[1]).rglob("*") if p.is_file() and "add_one" in p.name)
assert any(p.suffix == ".obj" for p in files) and any(p.name.startswith("__grp__") for p in files) and not again()
for kind in ("empty", "half", "alter", "remove"):
    for path in files:
        text = path.suffix in (".source", ".ttir", ".plan", ".llir", ".asm")  # to look at: what runs is the object
        if text and kind in ("half", "alter"):
            continue
        data = path.read_bytes()
        if kind == "remove":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "half": data[:len(data) // 2], "alter": data[:40] + bytes([data[40] ^ 255]) + data[41:]}[kind])
        compiled = again()
        assert compiled or text or kind == "alter" and path.suffix == ".json", (kind, path.name)
        assert not again() and path.read_bytes(), (kind, path.name)
"""


def test_damaged_cache_is_compiled_again(tmp_path):
    """Every file of an entry in turn: emptied, cut in half, altered, removed. In a process of its own, which the wrong object would end."""
    script = tmp_path / "damage.py"
    script.write_text(DAMAGE)
    cache = tmp_path / "cache"
    p = subprocess.run([sys.executable, str(script), str(cache)], capture_output=True, text=True, timeout=HANGS, cwd=tmp_path,
                       env={**os.environ, "TRITON_CACHE_DIR": str(cache)})
    assert p.returncode == 0 and "right" in p.stdout, p.stderr[-2000:]


@triton.jit
def sum_rows(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=cols < n, other=0.0)
    e = tl.exp(x)
    total = tl.sum(e, axis=0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(e / total, axis=0))


def launch_many(errors):
    x = torch.randn(200, 300)
    for _ in range(30):
        out = torch.empty(200)
        sum_rows[(200,)](x, out, 300, BLOCK=512)
        if not torch.allclose(out, torch.ones(200)):
            errors.append(out)


def test_launches_from_several_threads():
    launch_many([])
    errors = []
    threads = [threading.Thread(target=launch_many, args=(errors,)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_follows_torchs_thread_count(count):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        errors = []
        launch_many(errors)
        assert not errors
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("when", ["before torch", "after torch"])
def test_threads_of_torch_where_a_process_has_another_openmp(tmp_path, when):
    """scikit-learn brings an OpenMP runtime of its own, whose path comes before torch's: a kernel runs on torch's threads all the same."""
    path = tmp_path / "two.py"
    path.write_text(textwrap.dedent("""
        import ctypes, importlib.util, pathlib, sys
        when, folder = sys.argv[1], pathlib.Path(sys.argv[2])
        home = pathlib.Path(importlib.util.find_spec("torch").origin).with_name("lib")
        theirs = next(iter(sorted(home.glob("libgomp*"))), None)
        if theirs is None:
            print("this torch brings no libgomp")
            sys.exit()
        def another():
            copy = folder / "libgomp-another.so.1"
            copy.write_bytes(theirs.read_bytes().replace(b"libgomp.so.1\\0", b"libgomp.so.9\\0"))  # another library's name: libtorch does not take it for its own
            return ctypes.CDLL(str(copy)), copy
        if when == "before torch":
            lib, copy = another()
        import torch
        if when == "after torch":
            lib, copy = another()
        sys.path.insert(0, %r)
        import conftest
        from triport.backends.cpu.run import launch
        address = lambda lib, name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
        assert address(lib, "GOMP_parallel") != address(ctypes.CDLL(str(theirs)), "GOMP_parallel")
        assert launch.pool().openmp == tuple(address(ctypes.CDLL(str(theirs)), n) for n in ("GOMP_parallel", "omp_get_thread_num"))
    """) % str(Path(__file__).parent))
    here = {k: v for k, v in os.environ.items() if k not in ("TRIPORT_THREADS", "TRITON_CPU_THREADS", "LD_PRELOAD")}
    done = subprocess.run([sys.executable, str(path), when, str(tmp_path)], capture_output=True, text=True, env=here)
    if "brings no libgomp" in done.stdout:
        pytest.skip("this torch brings no libgomp of its own")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["TRIPORT_THREADS", "TRITON_CPU_THREADS"])
def test_own_threads(tmp_path, name):
    """Without OpenMP, by either name of the variable: the pool of our own, from several Python threads and after idling."""
    path = tmp_path / "own.py"
    path.write_text(textwrap.dedent("""
        import os, sys, threading, time, torch
        sys.path.insert(0, %r)
        import conftest, test_runtime as t
        from triport.backends.cpu.run import launch
        assert launch.pool().openmp == (0, 0)
        torch.set_num_threads(4)
        errors = []
        for _ in range(3):
            threads = [threading.Thread(target=t.launch_many, args=(errors,)) for _ in range(3)]
            [x.start() for x in threads]; [x.join() for x in threads]
            time.sleep(0.05)
        assert not errors
        me, left = threading.get_native_id(), time.monotonic() + 300  # they fall asleep, sooner or later
        def awake():
            for task in os.listdir("/proc/self/task"):
                if int(task) != me and open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()[0] == "R":
                    yield task
        assert len(os.listdir("/proc/self/task")) > 3
        while list(awake()):
            assert time.monotonic() < left, "a worker that has nothing to do still spins"
            time.sleep(0.01)
        print("right")
    """) % str(Path(__file__).parent))
    finish(start(path, tmp_path / "cache", **{name: "own"}))


def test_fork():
    """A forked child launches on threads of its own."""
    errors = []
    launch_many(errors)
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(2)
            launch_many(errors)
            os._exit(1 if errors else 0)
        except BaseException:
            os._exit(2)
    for _ in range(10 * HANGS):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_nothing_is_made_for_hooks_that_nobody_has():
    knobs, made = triton.knobs.runtime, sum_rows.warmup(torch.randn(4, 64), torch.empty(4), 64, BLOCK=64, grid=(1,))
    assert made.launch_metadata((1,), 0) is None
    for chain in (knobs.launch_enter_hook, knobs.launch_exit_hook):
        hook = lambda metadata: None  # noqa: E731
        chain.add(hook)
        try:
            assert made.launch_metadata((1,), 0).get()["name"] == made.name
        finally:
            chain.remove(hook)


class Counted:
    """A launch hook that has `calls`, as Triton's chain of hooks has, and begins with none."""

    def __init__(self):
        self.calls = []

    def __call__(self, lazy):
        self.calls.append(lazy.get()["name"])


def test_a_hook_of_the_users_may_have_calls(monkeypatch):
    x, hook = torch.randn(2, 8), Counted()
    ops.softmax(x)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
    ops.softmax(x)
    sum_rows[4,](torch.randn(4, 64), torch.empty(4), 64, BLOCK=64)
    assert hook.calls == ["softmax_rows_kernel", "sum_rows"]


def test_a_hook_that_comes_while_a_launch_begins_is_not_called_without_its_kernel(monkeypatch):
    runtime, seen = triton.knobs.runtime, []
    made = sum_rows.warmup(torch.randn(4, 64), torch.empty(4), 64, BLOCK=64, grid=(1,))
    before = type(made).launch_metadata

    def slowly(*args):
        found = before(*args)
        runtime.launch_enter_hook.add(seen.append)  # another thread's
        return found

    monkeypatch.setattr(type(made), "launch_metadata", slowly)
    try:
        for _ in range(2):
            sum_rows[4,](torch.randn(4, 64), torch.empty(4), 64, BLOCK=64)
    finally:
        runtime.launch_enter_hook.remove(seen.append)
    assert [lazy.get()["name"] for lazy in seen] == ["sum_rows"]


def test_launch_hooks_are_called():
    seen = []
    enter = lambda lazy: seen.append(("enter", lazy.get()["name"]))  # noqa: E731
    leave = lambda lazy: seen.append(("exit", lazy.get()["name"]))  # noqa: E731
    x = torch.randn(2, 8)
    ops.softmax(x)
    triton.knobs.runtime.launch_enter_hook.add(enter)
    triton.knobs.runtime.launch_exit_hook.add(leave)
    try:
        ops.softmax(x)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(enter)
        triton.knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == [("enter", "softmax_rows_kernel"), ("exit", "softmax_rows_kernel")]


def test_stages_and_metadata():
    x = torch.randn(4, 64)
    k = sum_rows.warmup(x, torch.empty(4), 64, BLOCK=64, grid=(1,))
    assert {"ttir", "llir", "asm", "obj"} <= set(k.asm)
    assert "sum_rows" in k.asm["asm"] and ".loc" in k.asm["asm"] and k.asm["obj"][:4] == b"\x7fELF"
    assert k.metadata.scratch_bytes > 0 and k.metadata.name == "sum_rows"


def test_plugin_is_active_here_and_keyed_by_its_own_device():
    driver = triton.runtime.driver.active
    assert driver.get_current_device() == "cpu" and driver.get_current_target().backend == "cpu"
    assert active.is_current("cpu") and not active.is_current("cuda")


def test_do_bench_works():
    x = torch.randn(64)
    ms = triton.testing.do_bench(lambda: ops.square(x), warmup=1, rep=5)
    assert 0 < ms < float("inf")


def test_autotune_works():
    @triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])
    @triton.jit
    def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)

    x, out = torch.randn(1000), torch.empty(1000)
    tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
    assert torch.equal(out, x * 2)


@pytest.mark.parametrize("switches", [{"TRIPORT_PERF_MAP": "1"}, {"TRITON_CPU_PERF_MAP": "1"}, {"TRIPORT_PERF_MAP": "1", "TRITON_CPU_PERF_MAP": "1"}])
def test_perf_map_names_the_code(tmp_path, switches):
    """`perf` finds the kernel's name under its address, once, with the size of its code, whichever name the switch has; both together are one."""
    path = tmp_path / "perf.py"
    path.write_text(KERNEL + """
import os
line, = [x.split() for x in open(f"/tmp/perf-{os.getpid()}.map") if "add_one" in x]
os.unlink(f"/tmp/perf-{os.getpid()}.map")
assert int(line[0], 16) > 4096 and line[2] == "triton-cpu::add_one", line
from triport.backends.cpu.run import elf
obj, = [k.asm["obj"] for cache in add_one.device_caches.values() for k in cache[0].values()]
assert int(line[1], 16) == next(s.size for s in elf.symbols(obj) if s.name == "add_one")
""")
    finish(start(path, tmp_path / "cache", **switches))


@pytest.mark.parametrize("programs", [1, 40])
def test_scratch_that_cannot_be_had(programs, monkeypatch):
    """A launch says so, on one thread and on several, and the next one that needs less runs."""
    x, out = torch.randn(40, 300), torch.empty(40)
    k = sum_rows[(40,)](x, out, 300, BLOCK=512)
    with monkeypatch.context() as m:
        m.setitem(k.run.__globals__, "scratch", 1 << 60)
        with pytest.raises(Error, match=f"kernel sum_rows: no memory for {1 << 60} bytes of scratch per thread; use smaller blocks"):
            sum_rows[(programs,)](x, out, 300, BLOCK=512)
    out.zero_()
    sum_rows[(40,)](x, out, 300, BLOCK=512)
    assert torch.allclose(out, torch.ones(40))


@pytest.mark.skipif(triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="Triton 3.6's interpreter does not work with numpy 2.4")
def test_interpreter_runs_the_ops(tmp_path):
    """TRITON_INTERPRET=1: kernels run as Python, and what cannot work says so."""
    path = tmp_path / "interpret.py"
    path.write_text(textwrap.dedent("""
        import torch
        from triport import ops
        from triport.bench import check
        from triport.ops import registry
        for name in registry.NAMES:
            op = registry.get(name)
            args = [torch.randn(s)[..., :5].contiguous() if len(s) == 1 else torch.randn(5, 5) for s in op.cases[0].shapes]
            right, e = check.verdict(op, op.call(*args, **op.cases[0].kwargs), args, op.cases[0].kwargs)
            assert right, (name, e)
        try:
            torch.compile(ops.square, fullgraph=True, backend="aot_eager")(torch.ones(4))
        except Exception as e:
            assert "TRITON_INTERPRET=1 runs triport's ops on real tensors only" in str(e), e
        else:
            raise AssertionError("traced")
        print("right")
    """))
    finish(start(path, tmp_path / "cache", TRITON_INTERPRET="1"))


def test_importing_triton_does_not_import_the_compiler():
    code = ("import triton, sys; print([m for m in sys.modules if m.startswith('triport') or m == 'llvmlite'])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(eval(out))
    assert "llvmlite" not in loaded and not any("codegen" in m or "ops" in m for m in loaded)


def test_importing_the_ops_imports_little():
    """Beside torch and triton only what calls and launches need: no compiler, nothing of torch's that it would import late (Inductor: 0.7 s), no
    command's tables, pages or graphs."""
    code = ("import sys, torch, triton, torch.library; before = set(sys.modules); import triport.ops; "
            "print(*sorted(set(sys.modules) - before))")
    new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    others = {m.partition(".")[0] for m in new} - set(sys.stdlib_module_names)
    assert "triport.ops.softmax" in new and others <= {"triport", "llvmlite", "triton"}, others
    ours = {m for m in new if m.startswith("triport.")}
    assert not {m for m in ours if m.startswith(("triport.bench", "triport.tools", "triport.backends.spine", "triport.backends.cpu.emit"))}
    assert not ours & {f"triport.backends.cpu.{m}" for m in ("emit.kernel", "emit.nest", "ttir.reader", "compiler", "plan.facts")}
    assert len([m for m in new if m.startswith("triton.")]) <= 5 and len(new) <= 110, new


def test_json_of_metadata_is_plain():
    k = sum_rows.warmup(torch.randn(4, 64), torch.empty(4), 64, BLOCK=64, grid=(1,))
    assert json.dumps(k.metadata._asdict(), default=vars)


def test_a_function_that_the_machine_lacks_is_an_error_not_a_crash():
    from triport.backends.base import CompileError
    from triport.backends.cpu.llvm import compile as llvm, targets
    target = targets.native()
    text = (f'target triple = "{target.triple}"\ndeclare float @no_such_function(float)\ndeclare float @expf(float)\n'
            "define float @f(float %x) {\n%y = call float @no_such_function(float %x)\n%z = call float @expf(float %y)\n"
            "ret float %z\n}\n")
    obj = llvm.emit_object(text, target)
    assert sorted(elf.undefined_symbols(obj)) == ["expf", "no_such_function"]
    with pytest.raises(CompileError, match="calls no_such_function, which"):
        launch.load_object(obj, ["f"])


@triton.jit
def heavy_or_light_kernel(x_ptr, out_ptr, n, trips, HEAVY: tl.constexpr, LOOP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if HEAVY:
        x = tl.exp(tl.sin(x))
    for _ in range(LOOP if LOOP else trips):
        x = x * 0.5
    tl.store(out_ptr + offs, x, mask=offs < n)


def test_launches_too_small_to_share_stay_on_the_calling_thread():
    """How many programs are few follows from what each does; where nobody can know, all threads share."""
    x, out = torch.randn(10_000), torch.empty(10_000)

    def work(trips=3, **consts):
        known = heavy_or_light_kernel.warmup(x, out, 10_000, 3, grid=(1,), **consts).metadata
        return eval(launch.worked(known._asdict(), ["0", "0", "10_000", str(trips)]))

    light = work(HEAVY=False, LOOP=1, BLOCK=128)
    assert 0 < light < work(HEAVY=True, LOOP=1, BLOCK=128)
    assert light < work(HEAVY=False, LOOP=1, BLOCK=1024)
    assert work(HEAVY=False, LOOP=0, BLOCK=128) == work(HEAVY=False, LOOP=3, BLOCK=128), "the number of trips is an argument"
    assert work(9, HEAVY=False, LOOP=0, BLOCK=128) == work(HEAVY=False, LOOP=9, BLOCK=128)
    assert work(-9, HEAVY=False, LOOP=0, BLOCK=128) > 0
    for threads in (1, 2, 16):
        assert launch.team_of(10**7, 100, threads) == (threads << 32 | threads if threads > 1 else 1)
        assert launch.team_of(1, 100, threads) == 1 and launch.team_of(5, 0, threads) == threads << 32 | threads
    assert launch.team_of(120, 100, 2) & ~pool.SHORT == 2 << 32 | 2
    assert launch.team_of(240, 100, 2) & pool.SHORT and not launch.team_of(2400, 100, 2) & pool.SHORT, "a part of some microseconds is taken at once"
    assert launch.team_of(120, 100, 16) == 1, "sixteen threads take longer to meet than two"
    assert 2 < launch.team_of(240, 100, 16) & 0xffffffff < 16, "and come only where there is something to do"


@triton.jit
def many_times_half(v):
    for _ in range(2000):
        v = v * 0.5
    return v


@triton.jit
def looping_kernel(x_ptr, out_ptr, n, KIND: tl.constexpr):
    offs = tl.arange(0, 1024)
    for i in range(-n if KIND == "from below zero" else tl.program_id(0) if KIND == "from a program's" else 0, 0 if KIND == "from below zero" else n,
                   tl.num_programs(0) if KIND == "from a program's" else 1):
        v = tl.load(x_ptr + offs)
        if KIND == "atomic":
            tl.atomic_add(out_ptr + v.to(tl.int32), v)
        elif KIND == "histogram":
            tl.store(out_ptr + tl.arange(0, 16), tl.histogram(v.to(tl.int32), 16).to(tl.float32))
        elif KIND == "calls of a loop":
            tl.store(out_ptr + offs, tl.map_elementwise(many_times_half, v))
        else:
            tl.store(out_ptr + offs, v)


@triton.jit
def scalars_kernel(out_ptr, n):
    p = 0.5
    for _ in range(n):
        p = tl.exp(tl.sin(p)) / (p + 1.5)
    tl.store(out_ptr, p)


def test_work_that_shows_in_no_store_counts():
    """Atomics, histograms, scalar functions; nobody says how much there is where a region has loops of its own or a loop begins nobody knows where."""
    x, out = torch.zeros(1024), torch.empty(1024)
    per_trip = {}
    for kind in ("stored", "from a program's", "atomic", "histogram", "calls of a loop", "from below zero"):
        known = looping_kernel.warmup(x, out, 7, KIND=kind, grid=(1,)).metadata
        per_trip[kind] = sum(n for n, _ in known.loops) if known.work else None
    assert per_trip["calls of a loop"] is per_trip["from below zero"] is None
    assert per_trip["stored"] == per_trip["from a program's"], "as many trips as there may be"
    assert per_trip["atomic"] > 10 * per_trip["stored"] and per_trip["histogram"] > 2 * per_trip["stored"]
    (count, _), = scalars_kernel.warmup(out, 7, grid=(1,)).metadata.loops
    assert count > 10


def test_in_a_crowded_address_space(tmp_path):
    """Where the only free memory is single pages more than 2 GiB apart and what lies below them, code and constants still reach each other."""
    script = tmp_path / "crowded.py"
    script.write_text(textwrap.dedent("""
        import ctypes, torch
        from triport import ops
        x = torch.randn(300, 200)
        ops.square(x), ops.softmax(x)  # what is loaded once is
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        reserve = lambda size: libc.mmap(None, size, 0, 0x4022, -1, 0)  # PROT_NONE; MAP_NORESERVE | MAP_PRIVATE | MAP_ANONYMOUS
        blocks = [reserve(3 << 30) for _ in range(12)]
        for _ in range(60000):  # other gaps are taken
            if reserve(4096) < min(blocks):
                break
        for b in blocks:
            libc.munmap(b + (1 << 20), 4096)
        assert torch.allclose(ops.gelu(x), torch.nn.functional.gelu(x, approximate="tanh"), atol=1e-6)
        assert torch.allclose(ops.matmul_softmax(x, x.T, 0), torch.softmax(x @ x.T, 0), atol=1e-6)
        print("right")
    """))
    p = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANGS,
                       env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")})
    assert p.returncode == 0 and "right" in p.stdout, p.stderr[-2000:]


@triton.jit
def copy_of_64(x_ptr, out_ptr, n):
    offs = tl.arange(0, 64)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def test_a_program_counts_as_work_however_little_it_does():
    """Its beginning and end are most of a short row's time: many are shared out, few are not."""
    x = torch.zeros(64)
    work = copy_of_64.warmup(x, x, 64, grid=(1,)).metadata.work
    assert launch.team_of(800, work, 16) & 0xFFFF > 1 and launch.team_of(100, work, 16) == 1


def test_too_few_arguments_of_a_compiled_kernel():
    x, out = torch.ones(50), torch.zeros(50)
    compiled = copy_of_64.warmup(x, out, 50, grid=(1,))
    names = ", ".join(copy_of_64.arg_names)
    for given in ((x, out), (x,), ()):
        with pytest.raises(ArgumentError, match=rf"kernel copy_of_64 takes {len(copy_of_64.arg_names)} arguments, constexprs among them \({names}\); {len(given)} were given"):
            compiled[(1, 1, 1)](*given)
    compiled[(1, 1, 1)](x, out, 50)
    assert torch.equal(x, out)


def test_a_tensor_without_memory_is_an_error_not_a_crash():
    """A fake one, a nested one, one whose memory was given back, as of FSDP's parameters; an empty tensor has none either, and is fine."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        fake = torch.empty(50)
    nested = torch.nested.nested_tensor([torch.ones(20), torch.ones(30)], layout=torch.jagged)
    freed = torch.ones(50)
    freed.untyped_storage().resize_(0)
    out = torch.empty(50)
    for given in (fake, nested, freed):
        with pytest.raises(ArgumentError, match=f"argument 'x_ptr' is a {type(given).__name__}.*without memory of its own"):
            copy_of_64[(1,)](given, out, 50)
    copy_of_64[(1,)](torch.empty(0), torch.empty(0), 0)


@pytest.mark.parametrize("team", [4, 1], ids=["all come", "one comes"])
@pytest.mark.parametrize("mine", [True, False], ids=["threads of our own", "OpenMP"])
def test_a_short_part_is_taken_at_once(team, mine):
    """By the thread that owns it, or by the calling thread where that one does not come; a longer part piece by piece. Each program runs once."""
    runtime = launch.pool()
    if not mine and not runtime.openmp[0]:
        pytest.skip("torch has no OpenMP here")
    chunks = []

    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int32] * 3)
    def programs(args, scratch, begin, end, *grid):
        chunks.append((begin, end))
        return 0

    def launched(word: int) -> list[tuple[int, int]]:
        chunks.clear()
        packed = struct.pack("<8Q", ctypes.cast(programs, ctypes.c_void_p).value, 66, 1, 1, 0, word | team << 32, *(0, 0) if mine else runtime.openmp)
        assert runtime.call(packed) == 0
        got = sorted(chunks)
        assert [p for begin, end in got for p in range(begin, end)] == list(range(66))
        return got

    assert launched(4 | pool.SHORT) == [(0, 17), (17, 34), (34, 50), (50, 66)]
    assert max(end - begin for begin, end in launched(4)) == 2


@triton.jit
def numbers_kernel(out_ptr, real, half: tl.bfloat16, small: tl.int8, plain: tl.uint32):
    tl.store(out_ptr, real)
    tl.store(out_ptr + 1, half.to(tl.float32))
    tl.store(out_ptr + 2, small.to(tl.float32))
    tl.store(out_ptr + 3, plain.to(tl.float32))


def test_numbers_that_their_types_do_not_hold():
    """Floats become infinities, as a cast in C makes them; an integer is an error that names the argument, before anything has run."""
    out = torch.zeros(4)
    for real, half in ((-1e300, 1e39), (1e39, -1e300), (3e38, 1.0)):
        for _ in range(2):
            numbers_kernel[(1,)](out, real, half, -128, 2**32 - 1)
            assert out.tolist() == torch.tensor([real, half, -128, 2**32 - 1], dtype=torch.float64).float().tolist()
    out.zero_()
    for small, plain, said in ((300, 1, "'small' is 300; it takes an integer from -128 to 127"), (1, -1, "'plain' is -1; it takes an integer from 0 to 4294967295"),
                               (1, 2**40, "'plain' is 1099511627776"), (1.5, 1, "'small' is 1.5")):
        with pytest.raises(ArgumentError, match=f"kernel numbers_kernel: argument {said}"):
            numbers_kernel[(1,)](out, 1.0, 1.0, small, plain)
    with pytest.raises(ArgumentError, match="kernel numbers_kernel: argument 'small' is tensor"):
        numbers_kernel[(1,)](out, 1.0, 1.0, torch.zeros(3), 1)
    assert not out.any()


@triton.jit
def pair_kernel(out_ptr, pair):
    tl.store(out_ptr, pair[0])
    tl.store(out_ptr + 1, pair[1])


def test_numbers_in_tuples_and_of_checked_launches():
    out = torch.zeros(4)
    pair_kernel[(1,)](out, (1e300, 2.0))
    assert out[:2].tolist() == [float("inf"), 2.0]
    with checking.checks():
        numbers_kernel[(1,)](out, -1e300, 1e39, 5, 7)
        assert out.tolist() == [-float("inf"), float("inf"), 5, 7]
        with pytest.raises(ArgumentError, match="'small' is 300"):
            numbers_kernel[(1,)](out, 1.0, 1.0, 300, 7)
