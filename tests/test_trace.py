"""The CPU backend's trace: every program once, on the threads that ran it, in its launch's time; nothing where none is open."""

import threading
import time

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triport.backends.base import Error
from triport.backends.cpu.run import launch, trace
from triport.bench.memory import quiet


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + r, tl.load(x_ptr + r, mask=r < n) * 2, mask=r < n)


@triton.jit
def grid_kernel(out_ptr):
    at = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.atomic_add(out_ptr + at, 1)


@triton.jit
def failing_kernel(out_ptr):
    tl.device_assert(tl.program_id(0) < 1, "one program is enough")
    tl.store(out_ptr, 1)


def profiled(run, capacity=trace.CAPACITY):
    with trace.Trace(capacity) as t, quiet(), torch.profiler.profile():
        run()
    return t


def programs(t, number):
    """(first, last) of the chunks of a launch, by first."""
    spans = t.spans()
    return sorted((int(s["first"]), int(s["last"])) for s in spans[spans["launch"] == number])


def covers(chunks, count):
    ends = [0, *(last for _, last in chunks)]
    return [first for first, _ in chunks] == ends[:-1] and ends[-1] == count


@pytest.mark.parametrize("n", [1, 5, 100_003])
def test_every_program_is_in_one_chunk(n):
    x, out = torch.randn(n), torch.empty(n)
    t = profiled(lambda: [twice_kernel[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128) for _ in range(3)])
    assert torch.equal(out, 2 * x) and len(t.launches) == 3 and not t.dropped
    for k, one in enumerate(t.launches):
        assert one.name == "twice_kernel" and one.grid == (triton.cdiv(n, 128), 1, 1) and one.nbytes == 2 * 4 * n
        assert one.kernel["constants"]["BLOCK"] == 128 and len(one.kernel["hash"]) == 64
        assert covers(programs(t, k), triton.cdiv(n, 128))
    spans = t.spans()
    assert (spans["start"] <= spans["end"]).all()
    for s in spans:
        one = t.launches[s["launch"]]
        assert one.start <= s["start"] and s["end"] <= one.end
        assert one.threads > 1 or s["thread"] == one.thread == threading.get_ident()


def test_bytes_are_of_what_is_seen():
    big, out = torch.randn(100_000), torch.empty(1000)
    t = profiled(lambda: [twice_kernel[(8,)](big[:1000], out, 1000, BLOCK=128), twice_kernel[(8,)](big[:1000:2], out, 500, BLOCK=128),
                          twice_kernel[(8,)](out, out, 1000, BLOCK=128)])
    assert [x.nbytes for x in t.launches] == [8000, 4 * 999 + 4000, 4000]


def test_a_grid_of_three_axes():
    out = torch.zeros(5 * 3 * 2, dtype=torch.int32)
    t = profiled(lambda: grid_kernel[(5, 3, 2)](out))
    assert (out == 1).all() and t.launches[0].grid == (5, 3, 2) and covers(programs(t, 0), 30)


def test_a_thread_runs_one_chunk_at_a_time():
    x = torch.randn(1 << 20)
    t = profiled(lambda: twice_kernel[(1 << 12,)](x, torch.empty_like(x), 1 << 20, BLOCK=256))
    spans = t.spans()
    for thread in set(spans["thread"].tolist()):
        mine = np.sort(spans[spans["thread"] == thread], order="start")
        assert (mine["end"][:-1] <= mine["start"][1:]).all()


def test_launches_from_several_threads():
    def run():
        def work(k):
            for _ in range(20):
                twice_kernel[(8,)](x[k], outs[k], 1000, BLOCK=128)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]

    x, outs = [torch.randn(1000) for _ in range(3)], [torch.empty(1000) for _ in range(3)]
    twice_kernel[(8,)](x[0], outs[0], 1000, BLOCK=128)
    with trace.Trace() as t, quiet(), torch.profiler.profile(experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)):
        run()
    assert all(torch.equal(o, 2 * a) for a, o in zip(x, outs))
    assert all(covers(programs(t, k), 8) for k in range(len(t.launches)))


def test_what_there_is_no_room_for_is_counted():
    x = torch.randn(4096)
    t = profiled(lambda: [twice_kernel[(32,)](x, torch.empty_like(x), 4096, BLOCK=128) for _ in range(20)], capacity=7)
    assert len(t.spans()) == 7 and 20 - 7 <= t.dropped <= 20 * 32 - 7 and len(t.launches) == 20


def test_nothing_is_noted_outside():
    x = torch.randn(1000)
    t = profiled(lambda: None)
    twice_kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    with quiet(), torch.profiler.profile():
        twice_kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    assert not t.launches and not len(t.spans()) and launch.tracer is None
    with trace.Trace() as t:  # nobody profiles: launches go as ever
        twice_kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    assert not t.launches


def test_a_second_trace_is_an_error_and_the_first_goes_on():
    x = torch.randn(1000)
    with trace.Trace() as t:
        with pytest.raises(Error, match="open already"), trace.Trace():
            pass
        with quiet(), torch.profiler.profile():
            twice_kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    assert len(t.launches) == 1 and launch.tracer is None


def test_a_failing_launch_is_noted_and_raises():
    with trace.Trace() as t, quiet(), torch.profiler.profile():
        with pytest.raises(Error, match="one program is enough"):
            failing_kernel[(3,)](torch.zeros(1, dtype=torch.int32), debug=True)
    assert len(t.launches) == 1 and t.launches[0].end > t.launches[0].start and len(t.spans())


def test_compilations_by_stage(tmp_path, monkeypatch):
    from triton import knobs

    @triton.jit
    def fresh_kernel(out_ptr, N: tl.constexpr):
        tl.store(out_ptr, N)

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    seen = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **given: seen.append(given))
    out = torch.zeros(1, dtype=torch.int32)
    before = time.perf_counter_ns()
    with trace.Trace() as t:
        fresh_kernel[(1,)](out, N=7)
        fresh_kernel.device_caches.clear()
        fresh_kernel[(1,)](out, N=7)
    assert out.item() == 7 and len(seen) == 2, "whoever listened before still hears"
    made, found = t.compilations
    assert made.name == "fresh_kernel" and not made.hit and found.hit
    assert {"front end", "ttir", "llir", "asm", "obj"} <= {name for name, _ in made.stages} and all(ns >= 0 for _, ns in made.stages)
    assert before <= made.start < made.end <= found.end
