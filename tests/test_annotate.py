"""Named ranges: that profilers show them, that compiled code takes them, and that code written for NVTX makes them."""

import contextlib
import json
import subprocess
import sys
import threading

import pytest
import torch
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile

from triport.backends.base import ArgumentError, Error
from triport.bench import ranges
from triport.tools import annotate

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def cpu_profile():
    return profile(activities=[ProfilerActivity.CPU])


def ours(p, *names) -> list[str]:
    return [e.key for e in p.key_averages() if e.key in names]


@pytest.fixture
def tool(monkeypatch):
    """What NVTX or ITT is told, in order."""
    told = []
    monkeypatch.setattr(ranges, "tool", lambda: (lambda n: told.append(("push", n)), lambda: told.append(("pop",)),
                                                  lambda n: told.append(("mark", n)), lambda n: told.append(("start", n)) or len(told),
                                                  lambda h: told.append(("end", h))))
    return told


@annotate
def bare(x):
    """Doc."""
    return x + 1


@annotate("given")
def named(x):
    return bare(x)


def test_tables_and_traces_have_the_names(tmp_path, seed):
    x = torch.randn(5, generator=torch.Generator().manual_seed(seed))
    again = annotate("again")
    with cpu_profile() as p:
        with annotate("outer"):
            assert torch.equal(named(x), x + 1)
            for _ in range(3):
                with again:
                    x.sum()
    table = p.key_averages().table(row_limit=-1)
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.split() and line.split()[0] in ("outer", "given", "bare", "again")}
    assert sorted(rows) == ["again", "bare", "given", "outer"] and rows["again"][-1] == "3"
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e.get("ph") == "X"]
    for inner, outer in [("given", "outer"), ("bare", "given"), ("aten::add", "bare"), ("aten::sum", "again")]:
        i = next(e for e in events if e["name"] == inner)
        assert any(o["ts"] <= i["ts"] and i["ts"] + i["dur"] <= o["ts"] + o["dur"] for o in events
                   if o["name"] == outer and o["cat"] == "user_annotation"), inner
    assert named.__name__ == "named" and bare.__doc__ == "Doc."


def test_a_recursive_function_and_one_that_raises(tool):
    @annotate
    def down(n):
        if not n:
            raise KeyError
        down(n - 1)

    with pytest.raises(KeyError), annotate("all"):
        down(1)
    assert tool == [("push", "all"), ("push", "down"), ("push", "down"), ("pop",), ("pop",), ("pop",)] and not ranges.open_ranges()


def test_nothing_of_torch_runs_where_nothing_records(monkeypatch, tool):
    monkeypatch.setattr(ranges, "record_function", None)
    with annotate("quiet"):
        pass
    assert tool == [("push", "quiet"), ("pop",)]


def test_profilers_that_make_ranges_of_events_have_it_once(tool):
    if not torch.profiler.itt.is_available():
        pytest.skip("this torch was built without ITT")
    with torch.autograd.profiler.emit_itt():
        with annotate("once"):
            pass
    assert tool == []


def test_threads_share_a_range():
    together = threading.Barrier(2, timeout=60)
    shared = annotate("shared")

    def work(k):
        with shared, annotate(f"in {k}"):
            together.wait()
            depths[k] = len(ranges.open_ranges())
            together.wait()

    depths = {}
    with cpu_profile() as p:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert depths == {0: 2, 1: 2} and not ranges.open_ranges()
    assert all(e.count <= 2 for e in p.key_averages() if e.key == "shared")


made_outside = annotate("made outside")


def ranged(x):
    with annotate("inside"):
        y = x + 1
    with made_outside:
        return bare(y * 2)


@pytest.mark.skipif(TORCH < (2, 13), reason="Dynamo of torch 2.11 takes no range that was made outside the function")
def test_compiled_code_is_one_graph(seed):
    x = torch.randn(7, generator=torch.Generator().manual_seed(seed))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(ranged, fullgraph=True, backend="eager")(x), (x + 1) * 2 + 1)
    assert torch._dynamo.explain(ranged)(x).graph_break_count == 0
    torch._dynamo.reset()


def test_compiled_code_keeps_ranges_where_torch_does(monkeypatch):
    if TORCH < (2, 13) or not hasattr(torch._dynamo.config, "capture_profiler_record_function"):
        pytest.skip("this torch leaves record_function out of graphs")
    monkeypatch.setattr(torch._dynamo.config, "capture_profiler_record_function", True)
    torch._dynamo.reset()
    f = torch.compile(ranged, fullgraph=True, backend="eager")
    f(torch.ones(3))
    with cpu_profile() as p:
        f(torch.ones(3))
    torch._dynamo.reset()
    assert sorted(ours(p, "inside", "made outside", "bare")) == ["bare", "inside", "made outside"]


@pytest.mark.parametrize("wrong", [None, 3, ["x"]])
def test_what_is_no_name(wrong):
    with pytest.raises(ArgumentError, match=f"takes a name, or a function to be named after, and got {type(wrong).__name__}"):
        annotate(wrong)


def test_functions_that_stop_and_go_on():
    async def later():
        pass

    def some():
        yield

    for f, kind in [(later, "coroutine"), (some, "generator")]:
        with pytest.raises(ArgumentError, match=f"is a {kind} function, whose range would end before its body begins"):
            annotate(f)
        with pytest.raises(ArgumentError, match=kind):
            annotate("x")(f)


def lecture(x, push=nvtx.range_push, pop=nvtx.range_pop, within=nvtx.range):
    """As one writes it for Nsight: by module, by names imported from it, as context and as decorator."""
    torch.cuda.nvtx.range_push("forward")
    with within("layer {}", 3):
        assert push("product") == 2
        x = x @ x
        assert pop() == 2
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.mark("here")
    handle = nvtx.range_start("across")
    nvtx.range_end(handle)
    return nvtx.range("called")(lambda: x)()


NAMES = ("forward", "layer 3", "product", "here", "across", "called")


@pytest.mark.parametrize("how", ["context", "decorator"])
def test_nvtx_code_makes_ranges(how, seed):
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    before = nvtx._nvtx
    with cpu_profile() as p:
        if how == "context":
            with annotate.as_nvtx():
                out = lecture(x)
        else:
            out = annotate.as_nvtx()(lecture)(x)
    assert torch.equal(out, x @ x) and sorted(ours(p, *NAMES)) == sorted(NAMES)
    assert nvtx._nvtx is before


def test_nvtx_and_annotate_are_one_stack(tool):
    with annotate.as_nvtx(), annotate("outer"):
        assert nvtx.range_push("inner") == 1
        assert nvtx.range_pop() == 1
        assert nvtx.range_end(nvtx.range_start("free")) is None
        nvtx.mark("point")
    assert tool == [("push", "outer"), ("push", "inner"), ("pop",), ("start", "free"), ("end", 4), ("mark", "point"), ("pop",)]


def test_contexts_nest_and_threads_share_them():
    before = nvtx._nvtx
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with annotate.as_nvtx():
            entered.set()
            leave.wait(60)

    with annotate.as_nvtx():
        with annotate.as_nvtx():
            nvtx.range_push("a")
            nvtx.range_pop()
        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait(60)
        assert nvtx.range_push("b") == 0 and nvtx.range_pop() == 0
    assert nvtx.range_push("c") == 0 and nvtx.range_pop() == 0  # the other thread is within it still
    leave.set()
    thread.join()
    assert nvtx._nvtx is before


@pytest.mark.skipif(TORCH < (2, 13), reason="torch 2.11's profiler drops an event that ends in another thread")
def test_a_range_ends_in_another_thread():
    with cpu_profile() as p, annotate.as_nvtx():
        handle = nvtx.range_start("handed over")
        thread = threading.Thread(target=nvtx.range_end, args=(handle,))
        thread.start()
        thread.join()
    assert ours(p, "handed over") == ["handed over"]


def test_pop_and_end_without_a_range():
    with annotate.as_nvtx():
        with pytest.raises(Error, match="range_pop: no range is open in this thread; each range_push is closed by one range_pop"):
            nvtx.range_pop()
        handle = nvtx.range_start("once")
        nvtx.range_end(handle)
        with pytest.raises(Error, match=f"range_end: {handle} is no range that has begun and not ended"):
            nvtx.range_end(handle)
        with pytest.raises(ArgumentError, match="range_push: takes a string, and got int"):
            nvtx.range_push(3)


def test_pushes_that_are_not_popped():
    with annotate("around"):
        with pytest.raises(Error, match="pushed and not popped in this thread: 'a', 'b'; call range_pop once"), annotate.as_nvtx():
            nvtx.range_push("a")
            nvtx.range_push("b")
        assert [name for name, *_ in ranges.open_ranges()] == ["around"]
    with pytest.raises(KeyError), annotate.as_nvtx():
        nvtx.range_push("a")
        raise KeyError
    assert not ranges.open_ranges()


def test_pops_do_not_reach_ranges_from_before():
    with annotate("around"), annotate.as_nvtx():
        with pytest.raises(Error, match="range_pop: the innermost open range of this thread, 'around', is of `annotate`"):
            nvtx.range_pop()
        with pytest.raises(Error, match="pushed and not popped in this thread: 'left'"), annotate("within"):
            nvtx.range_push("left")
        assert [name for name, *_ in ranges.open_ranges()] == ["around"]


def test_for_good():
    program = ("from triport.tools import annotate\nannotate.as_nvtx().install()\nimport torch\nfrom torch.cuda.nvtx import range_push, range_pop\n"
               "with annotate.as_nvtx():\n    pass\nprint(range_push('a'), range_pop())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "0 0", done.stderr


def test_the_package_imports_without_torch():
    program = "import sys, triport.tools\nprint('torch' in sys.modules)\ntry:\n    triport.tools.other\nexcept AttributeError as e:\n    print(e)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "module 'triport.tools' has no attribute 'other'"], done.stderr


def test_without_it_nvtx_is_as_it_was():
    if hasattr(torch._C, "_nvtx"):
        pytest.skip("this torch has NVTX")
    with contextlib.suppress(Error), annotate.as_nvtx():
        nvtx.range_pop()
    with pytest.raises(RuntimeError, match="NVTX functions not installed"):
        nvtx.range_push("a")
