"""`triport profile`: the folder that it makes, of ops, functions and scripts; what it refuses; flame graphs; counters."""

import errno
import json
import os
import pstats
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import HANGS, ROOT
from triport.backends.base import Error
from triport.backends.cpu.run.trace import SPAN, Compilation, Launch, Trace
from triport.ops import registry
from triport.tools.__main__ import main
from triport.tools.profiling import counters, flame, ncu, session, timeline

FILES = {"index.html", "trace.json", "table.txt", "cprofile.prof", "cprofile.txt", "flame.svg", "stacks.txt"}
SCRIPT = """
import sys
import torch
from triport import ops
assert __name__ == "__main__" and sys.argv[1:] == ["--steps", "3"], sys.argv
for _ in range(int(sys.argv[2])):
    y = ops.softmax(torch.randn(300, 257))
print("done", tuple(y.shape))
"""


def events(folder):
    return json.loads((folder / "trace.json").read_text())["traceEvents"]


def named(found, name, cat=None):
    return [e for e in found if e.get("name") == name and e.get("ph") == "X" and cat in (None, e.get("cat"))]


def inside(inner, outer):
    """By its middle: the clocks of torch's events and ours agree within some microseconds."""
    return outer["ts"] <= inner["ts"] + inner["dur"] / 2 <= outer["ts"] + outer["dur"]


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    """A profile of an op beside torch."""
    folder = tmp_path_factory.mktemp("profile") / "p"
    assert main(["profile", "softmax", "--case", "128x128", "--backend", "triton-cpu", "--steps", "3", "--against", "torch", "--no-counters", "-o", str(folder)]) == 0
    return folder


def test_files_of_an_op(op):
    assert FILES <= {p.name for p in op.iterdir()} and FILES - {"index.html"} <= {p.name for p in (op / "against").iterdir()}
    assert "softmax_rows_kernel[triton-cpu]" in (op / "table.txt").read_text() and "aten::_softmax" in (op / "against/table.txt").read_text()
    pstats.Stats(str(op / "cprofile.prof"))
    page = (op / "index.html").read_text()
    for words in ("triton-cpu", "torch", "softmax_rows_kernel", "first call", "error against float64", "--no-counters", "flame.svg", "against/trace.json"):
        assert words in page, words
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)


def test_the_trace_goes_from_op_to_kernel_to_threads(op):
    found = events(op)
    steps, ops, kernels = named(found, "step"), named(found, "triport::softmax"), named(found, "softmax_rows_kernel[triton-cpu] grid(128, 1, 1)")
    launches, chunks = named(found, "softmax_rows_kernel", "launch"), named(found, "softmax_rows_kernel", "programs")
    assert len(steps) == 3 and len(launches) == len(kernels) >= 4 and len(named(found, "first call")) == 1
    for step in steps:
        assert [inside(o, step) for o in ops].count(True) == 1 and [inside(x, step) for x in launches].count(True) == 1
    for launch in launches:
        n = launch["args"]["launch"]
        mine = [c for c in chunks if c["args"]["launch"] == n]
        assert sum(c["args"]["last program"] - c["args"]["first program"] + 1 for c in mine) == 128 and all(inside(c, launch) for c in mine)
        assert [k["args"]["launch"] for k in kernels if inside(launch, k)] == [n]
    args = launches[-1]["args"]
    assert args["backend"] == "triton-cpu" and args["grid"] == [128, 1, 1] and args["tile"] and len(args["kernel hash"]) == 64
    assert args["bytes"] == 2 * 128 * 128 * 4 and args["FLOPs"] > 0 and args["% of this machine's roof"] > 0
    assert [x["args"].get("first launch", False) for x in launches].count(True) == 1
    assert {e["ph"] for e in found} >= {"X", "M", "C", "s", "f"}


def test_the_page_has_a_lane_for_each_thread(op):
    lanes = re.findall(r"<text x=\"0\" y=\"\d+\">thread (\d+)</text>", (op / "index.html").read_text())
    assert lanes == [str(k) for k in range(len(lanes))] and lanes


def test_a_function(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("import torch\nfrom triport import ops\ndef step():\n    return ops.gelu(torch.ones(99, 77))\n"
                    "def needs(x):\n    return x\ndef fails():\n    raise ValueError('no luck')\n")
    assert main(["profile", f"{path}:step", "--steps", "2", "--no-roof", "--no-counters", "-o", str(tmp_path / "p")]) == 0
    assert len(named(events(tmp_path / "p"), "step")) == 2 and named(events(tmp_path / "p"), "gelu_kernel", "launch")
    path.write_text(path.read_text() + "def leaves():\n    import sys\n    sys.exit(0)\n")
    for name, words in (("leaves", "raised SystemExit"), ("needs", "needs arguments (x)"), ("fails", f"raised ValueError: no luck ({path}:8)"), ("nothing", "there is no 'nothing'")):
        assert main(["profile", f"{path}:{name}", "--no-roof", "-o", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


def profile_script(tmp_path, text, *arguments):
    path = tmp_path / "train.py"
    path.write_text(text)
    command = [sys.executable, "-m", "triport.tools", "profile", "--no-roof", "-o", str(tmp_path / "p"), "--", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, cwd=tmp_path)


def test_a_script_with_arguments(tmp_path):
    done = profile_script(tmp_path, SCRIPT, "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert "done (300, 257)" in done.stdout and "index.html" in done.stdout and "USDT" not in done.stderr
    assert FILES <= {p.name for p in (tmp_path / "p").iterdir()}
    assert len(named(events(tmp_path / "p"), "softmax_rows_kernel", "launch")) == 3
    assert "train.py" in (tmp_path / "p/cprofile.txt").read_text() + (tmp_path / "p/stacks.txt").read_text()


@pytest.mark.first(1)
@pytest.mark.parametrize("end, code, words", [("sys.exit(7)", 7, ""), ("raise ValueError('no luck')", 1, "ValueError: no luck"), ("sys.exit('too bad')", 1, "too bad")])
def test_a_script_that_ends_early_keeps_what_was_seen(end, code, words, tmp_path):
    done = profile_script(tmp_path, f"import sys, torch\nfrom triport import ops\nops.square(torch.ones(9))\n{end}\n")
    assert done.returncode == code and words in done.stderr and "profiling/session" not in done.stderr, done.stderr
    assert named(events(tmp_path / "p"), "square_kernel", "launch") and f"exit code {code}" in (tmp_path / "p/index.html").read_text()


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}])
def test_a_script_whose_name_the_locale_has_no_letters_for(locale, tmp_path):
    """The page is UTF-8, with the name as it is."""
    (tmp_path / "scr_\u00fc\u2192.py").write_text("def \u00fcber():\n    return sum(range(2000000))\n\u00fcber()\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "triport.tools", "profile", "--no-roof", "-o", "p", "--", "scr_\u00fc\u2192.py"], capture_output=True, timeout=HANGS,
                          cwd=tmp_path, env={**os.environ, **locale})
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert "<title>scr_\u00fc\u2192.py: profile</title>" in (tmp_path / "p/index.html").read_text(encoding="utf-8")
    for name in ("flame.svg", "stacks.txt", "table.txt", "cprofile.txt", "trace.json"):
        (tmp_path / "p" / name).read_text(encoding="utf-8")


def test_a_script_that_goes_elsewhere_and_closes_its_output(tmp_path):
    (tmp_path / "there").mkdir()
    done = profile_script(tmp_path, "import os, sys, torch\nfrom triport import ops\nos.chdir('there')\nops.square(torch.ones(9))\nsys.stdout.close()\n")
    assert not list((tmp_path / "there").iterdir()) and named(events(tmp_path / "p"), "square_kernel", "launch"), done.stderr


def test_what_uses_torchs_profiler_itself(tmp_path):
    done = profile_script(tmp_path, "import torch\nwith torch.profiler.profile():\n    torch.ones(3) + 1\n")
    assert done.returncode == 2 and "uses torch.profiler itself" in done.stderr


def test_a_scripts_stacks_are_its_own(tmp_path):
    done = profile_script(tmp_path, "import time\ndef slow():\n    until = time.time() + 0.3\n    while time.time() < until: sum(range(999))\nslow()\n")
    assert done.returncode == 0
    tops = {line.split(";")[0].rpartition(" ")[0].split(" (")[0] for line in (tmp_path / "p/stacks.txt").read_text().splitlines() if "slow (" in line}
    assert tops == {"<module>"}


@pytest.mark.parametrize("arguments, words", [
    (["softmx"], "did you mean 'softmax'"), (["softmax", "x"], "only a script takes some"), (["--", "nope.py", "3"], "there is no such script"),
    (["--", str(ROOT / "docs"), "3"], "docs is a folder; it takes an op"), (["--", str(ROOT / "LICENSE")], "LICENSE is no Python script: its name does not end in .py; it takes"),
    (["softmax", "--backend", "spin"], "did you mean 'spine'"), (["softmax", "--backend", "spine"], "spine"), (["softmax", "--case", "rows"], "unknown case"), (["softmax", "--case", "9x9,9x9"], "2 tensors do not fit"),
    (["softmax", "--dtype", "fp8"], "unknown dtype"), (["softmax", "--steps", "-1"], "--steps -1"), (["softmax", "--seed", str(10**30)], "--seed 1000"), (["softmax", "--threads", "0"], "--threads 0"),
    (["softmax", "--variant", "x"], "--variant does not go with an op"), (["nope.py:x"], "there is no file")])
def test_refused(arguments, words, tmp_path, capsys):
    options = [] if "--" in arguments else ["-o", str(tmp_path / "p")]
    assert main(["profile", *options, *arguments]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "p").exists()


def test_an_output_that_is_a_file(tmp_path, capsys):
    (tmp_path / "p").write_text("")
    assert main(["profile", "square", "-o", str(tmp_path / "p")]) == 2
    assert "it takes a folder" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "p/trace.json").mkdir(parents=True)
    assert main(["profile", "square", "--case", "128x128", "--backend", "triton-cpu", "--no-roof", "--no-counters", "-o", str(tmp_path / "p")]) == 2
    assert "trace.json cannot be written" in capsys.readouterr().err


def test_a_wrong_result_is_not_profiled(tmp_path, capsys):
    path = tmp_path / "zeros.py"
    path.write_text("import torch\nfrom triport.ops import Case, Op\nop = Op('zeros', call=torch.zeros_like, eager=lambda x: x * 2, cases=(Case(((64, 64),)),))\n")
    assert main(["profile", f"{path}:op", "--no-roof", "-o", str(tmp_path / "p")]) == 2
    assert "is wrong" in capsys.readouterr().err


# --- flame graphs ------------------------------------------------------------------------------------------------------------------


def test_a_flame_graph_is_of_the_samples():
    stacks = Counter({("main (a.py:1)", "work (a.py:2)"): 6, ("main (a.py:1)", "k [triton-cpu]"): 3, ("other <&>\" (b.py:1)",): 1})
    root = ET.fromstring(flame.svg(stacks, "a & b"))
    boxes = {g.get("data-n"): (float(g.get("data-x")), float(g.get("data-w")), g.get("class")) for g in root.iter("{http://www.w3.org/2000/svg}g")}
    assert boxes["main (a.py:1)"][:2] == (0, 9) and boxes["work (a.py:2)"][1] == 6 and boxes['other <&>" (b.py:1)'][:2] == (9, 1)
    assert boxes["k [triton-cpu]"][2] == "k" and root.get("data-total") == "10"
    assert flame.folded(stacks).splitlines()[0] == "main (a.py:1);k [triton-cpu] 3"
    assert flame.trimmed(stacks, "main") == Counter({("work (a.py:2)",): 6, ("k [triton-cpu]",): 3, ("other <&>\" (b.py:1)",): 1})
    ET.fromstring(flame.svg(Counter(), "nothing"))
    ET.fromstring(flame.svg(Counter({tuple(f"f (x.py:{n})" for n in range(3000)): 1}), "deep"))


def test_samples_are_of_the_threads_that_work():
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait)
    waiting.start()

    def busy_here():
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            sum(range(1000))

    before = sys.getswitchinterval()
    with flame.Sampler() as sampler:
        busy_here()
    stop.set()
    waiting.join()
    assert sys.getswitchinterval() == before
    total = sum(sampler.stacks.values())
    mine = sum(n for stack, n in sampler.stacks.items() if any(name.startswith("busy_here (") for name in stack))
    assert total > 3 and mine >= 0.8 * total


# --- timelines and counters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
def test_busy_threads_are_of_launches_whose_chunks_are_all_there(kept, monkeypatch):
    t = Trace(4)
    spans = np.zeros(2, SPAN)
    monkeypatch.setattr(t, "spans", lambda: spans)
    kernel = {"name": "k", "hash": "h", "constants": {}, "scratch_bytes": 0}
    t.launches.append(Launch(kernel, (8, 1, 1), 2, 100, 1, 0, 1000))
    spans[0] = 0, 900, 0, 4, 1, 0
    spans[1] = 0, 500, 4, 8 if kept else 7, 2, 0
    (k,) = timeline.kernels(t, 0.0)
    assert (k.busy, k.imbalance) == (pytest.approx((0.7, 2 / 7)) if kept else (None, None))


def test_compilations_are_drawn_by_stage():
    t = Trace(1)
    t.compilations.append(Compilation("k", time.perf_counter_ns(), [("ttir", 3_000_000), ("llir", 5_000_000)], False))
    found = timeline.events(t, 0)
    whole, ttir, llir = (named(found, n, "compile")[0] for n in ("compile k", "ttir", "llir"))
    assert whole["dur"] == 8000 and ttir["dur"] == 3000 and llir["ts"] == pytest.approx(ttir["ts"] + 3000, abs=1)
    assert abs(whole["ts"] + whole["dur"] - time.time() * 1e6) < 60e6


def test_a_trace_that_is_too_large_stays_apart(tmp_path, monkeypatch):
    part = tmp_path / "part.json"
    part.write_text(json.dumps({"traceEvents": [{"name": "x", "ph": "X", "ts": 1, "dur": 1}]}))
    monkeypatch.setattr(timeline, "LARGEST", 10)
    remark = timeline.join([part], Trace(1), tmp_path / "trace.json")
    assert "trace.torch.json.gz" in remark and (tmp_path / "trace.torch.json.gz").stat().st_size
    assert not named(events(tmp_path), "x")


@pytest.mark.parametrize("code, words", [(errno.EACCES, "may not read them"), (errno.EPERM, "may not read them"), (errno.ENOENT, "shows none")])
def test_why_there_are_no_counters(code, words, monkeypatch):
    class Library:
        def syscall(self, *args):
            counters.ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(counters.ctypes, "CDLL", lambda *a, **k: Library())
    with pytest.raises(counters.Denied, match=words), counters.Counters():
        pass


def test_a_thread_that_has_ended_takes_no_counters_along(monkeypatch):
    """What perf_event_open says of each thread of /proc/self/task: the first has gone, the others have counters."""
    opened = []

    class Library:
        def syscall(self, number, attr, thread, *rest):
            if thread == 1:
                counters.ctypes.set_errno(errno.ESRCH)
                return -1
            opened.append((thread, os.open(os.devnull, os.O_RDONLY)))
            return opened[-1][1]

    monkeypatch.setattr(counters.ctypes, "CDLL", lambda *a, **k: Library())
    monkeypatch.setattr(counters.os, "listdir", lambda path: ["1", "2", "3"])
    with counters.Counters():
        assert sorted(thread for thread, _ in opened) == [2] * len(counters.EVENTS) + [3] * len(counters.EVENTS)
    for _, descriptor in opened:
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_counters_are_by_kernel(monkeypatch):
    """Counters that count launches: what is read before and after each is the kernel's."""
    class Fake:
        reads = 0

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def read(self):
            Fake.reads += 1
            return {"cycles": 100.0 * Fake.reads, "instructions": 250.0 * Fake.reads, "cache misses": 7.0 * Fake.reads}

    from triport import ops

    monkeypatch.setattr(counters, "Counters", Fake)
    x = torch.randn(64, 64)
    found = counters.by_kernel(lambda: (ops.square(x), ops.gelu(x)), 4)
    assert set(found) == {"square_kernel", "gelu_kernel"}
    for at in found.values():
        assert at["launches"] == 4 and at["cycles"] == 400 and at["IPC"] == 2.5 and at["seconds"] > 0


def test_instructions_by_valgrind(monkeypatch):
    from triport.backends.cpu.llvm import targets
    if counters.shutil.which("valgrind") is None or targets.native().triple.split("-")[0] != "x86_64":
        pytest.skip("needs valgrind on x86-64")
    monkeypatch.setattr(counters, "_PATIENCE", HANGS)
    op = registry.get("square")
    try:
        counters.by_valgrind(op, op.cases[0], "fp32")
    except counters.Denied as e:
        pytest.skip(f"valgrind is here and does not run: {e}")
    small, large = (counters.by_valgrind(op, next(c for c in op.cases if c.name == name), "fp32")["instructions"] for name in ("128x128", "256x256"))
    assert small > 128 * 128 / 8 and 2 < large / small < 6


NCU = """==PROF== Connected to process 1
==PROF== Profiling "k" - 0: 0%....100%
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","launch__registers_per_thread","{}","{}"
"","","","nsecond","%","register/thread","inst","inst"
"0","1","k(float *)","2,000","50.5","32","1.5","9.25"
"1","1","k(float *)","4,000","51.5","32","1.5","9.75"
"2","1","m<int>","1000","n/a","40","3","1"
""".format(*(f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio" for s in ("barrier", "long_scoreboard")))


def test_figures_of_nsight_compute():
    found = ncu.read(NCU)
    assert found["k(float *)"] == {"launches": 2, "time us": 3.0, "DRAM %": 51.0, "registers": 32.0, "longest stall": "long scoreboard, 9.5 cycles an instruction"}
    assert found["m<int>"]["time us"] == 1.0 and "DRAM %" not in found["m<int>"] and found["m<int>"]["longest stall"].startswith("barrier")
    assert ncu.read("==ERROR== nothing") == {} == ncu.read('"ID"\n') == ncu.read("")


@pytest.mark.parametrize("said, words", [("==ERROR== ERR_NVGPUCTRPERM - no permission", "may not read the GPU's counters"), ("==ERROR== no GPU", "profiled no kernel")])
def test_why_nsight_compute_says_nothing(said, words, monkeypatch):
    monkeypatch.setattr(ncu.shutil, "which", lambda name: "/usr/bin/false")
    monkeypatch.setattr(ncu.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", said))
    with pytest.raises(counters.Denied, match=words):
        ncu.by_kernel(["square"], {}, "triton-gpu")
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    with pytest.raises(counters.Denied, match="not installed"):
        ncu.by_kernel(["square"], {}, "triton-gpu")


def test_without_valgrind_it_says_so(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    with pytest.raises(counters.Denied, match="not installed"):
        counters.by_valgrind(registry.get("square"), registry.get("square").cases[0], "fp32")


def test_a_step_that_raises_leaves_nothing_open(tmp_path):
    from triport.backends.cpu.run import launch
    from triport.tools.profiling.target import Target

    def fails():
        raise Error("no")

    with pytest.raises(Error):
        session.steps(Target("t", "b", fails), tmp_path, measure=False)
    assert launch.tracer is None and not torch.autograd.profiler._is_profiler_enabled


def test_nothing_of_it_is_imported_by_the_command():
    code = "import sys\nfrom triport.tools.__main__ import main\ntry: main(['profile', '--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT.parent).returncode == 0


def test_a_variant_beside_torch(tmp_path):
    (tmp_path / "mine.py").write_text("""import torch
from triport.ops import Op
my_op = Op("both", eager=lambda x, y: (x + y, x * y), variants={"mine": lambda x, y: (y + x, y * x), "wrong": lambda x, y: (x, y)}, cases=("30x40,30x40",))
""")
    argv = ["profile", f"{tmp_path}/mine.py:my_op", "--steps", "1", "--no-counters", "--no-roof", "-o", str(tmp_path / "p")]
    assert main([*argv, "--backend", "mine", "--against", "torch", "--case", "50x60"]) == 0
    assert "both 50x60,50x60 fp32" in (tmp_path / "p" / "index.html").read_text()
    assert main([*argv, "--backend", "wrong"]) == 2


def test_a_variant_that_is_wrong_is_not_profiled(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("""from triport.ops import Op
my_op = Op("twice", eager=lambda x: x * 2, variants={"thrice": lambda x: x * 3}, cases=("30x40",))
""")
    assert main(["profile", f"{tmp_path}/mine.py:my_op", "--steps", "1", "--no-counters", "--no-roof", "-o", str(tmp_path / "p")]) == 2
    assert "twice 30x40 fp32 by thrice is wrong" in capsys.readouterr().err


def test_an_earlier_page_does_not_stay_beside_other_figures(tmp_path, monkeypatch, capsys):
    """Where a profile ends before it has a page of its own."""
    from triport.tools.profiling import session
    (tmp_path / "index.html").write_text("softmax")

    def ends(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "steps", ends)
    assert main(["profile", "gelu", "--case", "8x8", "-o", str(tmp_path)]) == 130
    assert not (tmp_path / "index.html").exists()


def test_clocks_are_compared_while_nobody_takes_the_core(monkeypatch):
    """Of readings between which others ran, the one without them counts."""
    from triport.tools.profiling import timeline
    now, late = [0], iter([5_000_000, 3, 5_000_000, 7_000_000] * 100)

    class Clocks:
        @staticmethod
        def perf_counter_ns():
            now[0] += next(late)
            return now[0]

        @staticmethod
        def time_ns():
            now[0] += next(late)
            return now[0] + 1_000_000_000

    monkeypatch.setattr(timeline, "time", Clocks)
    assert abs(timeline.between_clocks(4) - 1_000_000_000) < 5_000_001
    late = iter([10, 20, 30, 5_000_000, 6_000_000, 10] * 100)
    assert abs(timeline.between_clocks(2) - 1_000_000_000) <= 30
