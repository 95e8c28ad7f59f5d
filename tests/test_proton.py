"""Proton on the CPU: what a session's file says of the launches within it."""

import importlib.util
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from triport import ops
from triport.backends import active
from triport.backends.dispatch import replay
from triport.backends.base import Error

proton = pytest.importorskip("triton.profiler", reason="this Triton was built without Proton")


def told(grid, kernel, args):
    return {"name": f"fill_{args['n']}", "flops": float(args["n"]), "bytes": 4 * args["n"], "launches": 1}


@triton.jit(launch_metadata=told)
def fill_kernel(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs, mask=offs < n)


@triton.jit(debug=True)
def checking_kernel(out_ptr, limit):
    tl.device_assert(limit > 0, "limit is not positive")
    tl.store(out_ptr, limit)


def fill(n: int = 5):
    fill_kernel[(1,)](torch.empty(n, dtype=torch.int32), n, BLOCK=8)


@pytest.fixture
def start(tmp_path):
    """`start(**options)` begins a session whose tree `start.end(session)` returns as {frame names from the root's child on: metrics}."""
    fill()

    def begin(name="profile", **options):
        return proton.start(str(tmp_path / name), **options)

    def end(session, name="profile"):
        proton.finalize(session)
        return frames(json.loads((tmp_path / f"{name}.hatchet").read_text())[0])

    begin.end = end
    yield begin
    proton.finalize()
    assert not replay.hooked()


def frames(node, path=()) -> dict[tuple, dict]:
    out = {path: node["metrics"]}
    for child in node["children"]:
        out.update(frames(child, (*path, child["frame"]["name"])))
    return out


def counts(found) -> dict[tuple, int]:
    return {path: m["count"] for path, m in found.items() if path and m.get("count")}


def test_launches_are_timed_and_counted_in_their_scopes(start):
    session = start()
    with proton.scope("outer", {"rows": 3}):
        fill()
        with proton.scope("inner"):
            for _ in range(3):
                fill()
    fill()
    found = start.end(session)
    assert counts(found) == {("fill_kernel",): 1, ("outer", "fill_kernel"): 1, ("outer", "inner", "fill_kernel"): 3}
    assert found["outer",]["rows"] == 3
    assert all(m["time (ns)"] > 0 for m in found.values() if m.get("count"))
    assert found[()].items() >= {"time (ns)": 0, "count": 0}.items(), "what the root has is summed up the tree by viewers"


def test_time_is_of_the_launch(start, monkeypatch):
    """By a clock that only the launch moves."""
    clock = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: clock[0])
    enter = lambda lazy: clock.__setitem__(0, clock[0] + 70)  # noqa: E731
    session = start()
    knobs.runtime.launch_enter_hook.add(enter)  # after Proton's: within what it times
    try:
        fill()
        clock[0] += 1000
        fill()
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    assert start.end(session)["fill_kernel",]["time (ns)"] == 140


def test_metadata_names_launches_and_measures_them(start):
    session = start(hook="triton")
    fill(5)
    fill(5)
    fill(7)
    found = start.end(session)
    assert counts(found) == {("fill_5",): 2, ("fill_7",): 1}
    assert found["fill_5",]["flops"] == 10 and found["fill_5",]["bytes"] == 40 and found["fill_7",]["bytes"] == 28
    if hasattr(proton, "data"):  # Triton 3.6 takes flops and bytes only
        assert found["fill_5",]["launches"] == 2


def test_metrics_of_tensors_are_read(start):
    if not hasattr(proton, "data"):
        pytest.skip("Triton 3.6 takes numbers only")
    session = start()
    with proton.scope("measured", {"loss": torch.tensor(2.5), "sizes": torch.tensor([3, 4])}):
        fill()
    found = start.end(session)["measured",]
    assert found["loss"] == 2.5 and found["sizes"] == [3, 4]


@pytest.mark.parametrize("hook", [None, "triton"])
def test_threads_have_scopes_and_launches_of_their_own(start, hook):
    """Each round's launches run at the same time, and the other thread's scope is measured while they do."""
    together = threading.Barrier(3, timeout=60)
    meets = lambda lazy: (together.wait(), together.wait())  # noqa: E731
    session = start(hook=hook)

    def launches(k):
        try:
            with proton.scope(f"thread {k}"):
                for _ in range(2):
                    fill(k)
        except BaseException:
            together.abort()
            raise

    threads = [threading.Thread(target=launches, args=(k,)) for k in (5, 7)]
    knobs.runtime.launch_enter_hook.add(meets)  # after Proton's: within what it times
    try:
        for t in threads:
            t.start()
        for _ in range(2):
            together.wait()
            with proton.scope("beside", {"rows": 3}):
                pass
            together.wait()
    finally:
        for t in threads:
            t.join()
        knobs.runtime.launch_enter_hook.remove(meets)
    found = start.end(session)
    names = {k: f"fill_{k}" if hook else "fill_kernel" for k in (5, 7)}
    assert counts(found) == {(f"thread {k}", name): 2 for k, name in names.items()}
    assert found["beside",] == {"rows": 6} and all("rows" not in m for path, m in found.items() if path != ("beside",))
    if hook:
        assert all(found[f"thread {k}", name]["bytes"] == 2 * 4 * k for k, name in names.items())


@pytest.mark.parametrize("hook", [None, "triton"])
def test_a_launch_that_fails_is_counted_and_closed(start, hook):
    out = torch.zeros(1, dtype=torch.int32)
    checking_kernel[(1,)](out, 1)
    session = start(hook=hook)
    with proton.scope("fails"), pytest.raises(Error, match="limit is not positive"):
        checking_kernel[(1,)](out, -1)
    checking_kernel[(1,)](out, 3)
    found = start.end(session)
    assert out.item() == 3 and counts(found) == {("fails", "checking_kernel"): 1, ("checking_kernel",): 1}


def test_ops_that_are_replayed_are_counted(start, seed):
    """Calls that are recognised launch without Triton, but for as long as a session is active."""
    x = torch.randn(3, 37, generator=torch.Generator().manual_seed(seed))
    expected = torch.softmax(x.double(), -1)
    for _ in range(4):
        ops.softmax(x)
    session = start()
    for _ in range(3):
        torch.testing.assert_close(ops.softmax(x).double(), expected)
    proton.deactivate(session)
    assert not replay.hooked(), "ops are replayed while no session is active"
    ops.softmax(x)
    fill()
    proton.activate(session)
    ops.softmax(x)
    assert counts(start.end(session)) == {("softmax_rows_kernel",): 4}


def test_sessions_side_by_side(start):
    first = start("first")
    fill()
    second = start("second", hook="triton")
    fill()
    proton.deactivate(first)
    fill()
    assert sum(counts(start.end(second, "second")).values()) == 2
    fill()
    proton.activate(first)
    fill()
    assert sum(counts(start.end(first, "first")).values()) == 3


def test_finalize_twice_and_again(start):
    session = start()
    fill()
    assert counts(start.end(session)) == {("fill_kernel",): 1}
    proton.finalize()
    fill()
    again = start("again")
    fill()
    fill()
    assert counts(start.end(again, "again")) == {("fill_kernel",): 2}


def test_nothing_is_left_installed(start):
    hooks = [knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, knobs.runtime.kernel_load_end_hook]
    before = [list(h.calls) for h in hooks]
    session = start(hook="triton")
    assert hooks[0].calls != before[0]
    start.end(session)
    assert [list(h.calls) for h in hooks] == before and not proton.profile.__globals__["HookManager"].active_hooks


def test_other_formats(start, tmp_path):
    session = start()
    fill()
    if hasattr(proton, "data"):
        assert counts(frames(proton.data.get(session)[0])) == {("fill_kernel",): 1}
        proton.finalize(session, "hatchet_msgpack")
        assert b"fill_kernel" in (tmp_path / "profile.hatchet_msgpack").read_bytes()
    session = start("stack", context="python")
    fill()
    path, = counts(start.end(session, "stack"))
    assert path[-1] == "fill_kernel" and any(p.endswith("@test_other_formats") for p in path)


@pytest.mark.parametrize("options, words", [
    (dict(backend="cupti"), "backend 'cupti' records launches on a GPU, and Triton's active driver is the CPU's; leave `backend` out"),
    (dict(backend="instrumentation"), "backend 'instrumentation' records inside kernels for a GPU"),
    (dict(mode="pcsampling"), "mode 'pcsampling' is of a GPU's profiler; a session on the CPU takes none"),
    (dict(data="trace"), "data='trace' needs launches timed by a GPU's profiler; a session on the CPU takes data='tree'")])
def test_what_is_not_there_is_an_error(start, options, words):
    with pytest.raises(Error) as e:
        start(**options)
    assert words in str(e.value)


def test_drivers_of_others_are_left_to_proton(start):
    """As beside a GPU: nothing of ours decides, and the CPU's backend is refused."""
    class Driver:
        def get_current_target(self):
            return triton.backends.compiler.GPUTarget("elsewhere", "none", 32)

    with active.driven_by(Driver()):
        with pytest.raises(Exception, match="elsewhere|No backend is available") as e:
            start()
        assert not isinstance(e.value, Error)
        with pytest.raises(Error, match="backend 'cpu' records launches on the CPU, and Triton's active driver is another"):
            start(backend="cpu")


def test_proton_is_not_loaded_before_it_is_imported():
    program = ("import sys, torch\nfrom triport import ops\nops.softmax(torch.randn(3, 4))\n"
               "print([m for m in sys.modules if m.endswith(('cpu.proton', 'triton.profiler'))])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr


PAGE = Path(__file__).resolve().parent.parent / "docs" / "profiling.md"


@pytest.mark.parametrize("number", range(3))
def test_examples_of_the_page_run(number, tmp_path):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(examples) == 3
    done = subprocess.run([sys.executable, "-c", examples[number]], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if number == 2:
        found = frames(json.loads((tmp_path / "softmax.hatchet").read_text())[0])
        assert counts(found) == {("attention", "softmax_rows_kernel"): 10}


SCRIPT = """
import torch
from triport import ops
x = torch.randn(3, 4)
for _ in range(3):
    ops.softmax(x)
"""


def test_command_and_viewer(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "triton.profiler.proton", "-n", str(tmp_path / "run"), str(tmp_path / "script.py")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    path = tmp_path / "run.hatchet"
    assert counts(frames(json.loads(path.read_text())[0])) == {("softmax_rows_kernel",): 3}
    for module, package in [("hatchet", "llnl-hatchet"), ("pandas", "pandas")]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the file is right; proton-viewer was not run on it: {package} is not installed")
    done = subprocess.run([sys.executable, "-m", "triton.profiler.viewer", "-m", "time/s,count,avg_time/us", str(path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    root, kernel = [line for line in done.stdout.splitlines() if "ROOT" in line or "softmax_rows_kernel" in line]
    assert root.split()[1] == "3.000" and kernel.split()[-3:-1][0] == "3.000" and "nan" not in root
