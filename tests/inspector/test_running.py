"""Reports from a running program: TRIPORT_ASM, `triport asm --run`, and the last compilation in Triton's cache."""

import json
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from conftest import ROOT
from triport.tools import __main__ as command
from triport.tools.inspector import cached, recorder, running

PROGRAM = textwrap.dedent('''
    import multiprocessing, sys, torch, triton, triton.language as tl

    @triton.jit
    def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
        o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n) * factor, mask=o < n)

    @triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])
    @triton.jit
    def tuned_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n) + 1, mask=o < n)

    def launch(times, n=4099):
        x = torch.ones(n)
        y = torch.empty_like(x)
        for _ in range(times):
            scale_kernel[(triton.cdiv(n, 256),)](x, y, n, 2.0, BLOCK=256)
        assert y.sum() == 2 * n

    if __name__ == "__main__":
        launch(5)
        launch(2, 64)
        x = torch.ones(4099)
        for _ in range(3):
            tuned_kernel[lambda meta: (triton.cdiv(4099, meta["BLOCK"]),)](x, torch.empty_like(x), 4099)
        if "fork" in sys.argv:
            child = multiprocessing.get_context("fork").Process(target=launch, args=(4,))
            child.start()
            child.join()
        print("out", sys.argv[1:])
        print("err", file=sys.stderr)
        sys.exit(3)
''')


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("running")
    (folder / "train.py").write_text(PROGRAM)
    (folder / "cache").mkdir()
    return folder / "train.py"


def start(program, *words, **env):
    """What a program prints and its exit code. It finds this checkout's package as the tests do."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("TRIPORT_ASM")}, "TRITON_CACHE_DIR": str(program.parent / "cache"), **env}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, cwd=program.parent, timeout=300)


def test_a_program_writes_its_report_and_is_otherwise_the_same(program):
    plain = start(program, "train.py", "--steps", "3", "fork")
    names = [f"report{s}" for s in (".json", ".html", ".txt")]
    done = start(program, "train.py", "--steps", "3", "fork", TRIPORT_ASM=os.pathsep.join(names))
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr) == (3, "out ['--steps', '3', 'fork']\n", "err\n")
    found = json.loads((program.parent / "report.json").read_text())
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "asm.schema.json").read_text())).validate(found)
    seconds = [d["run"]["seconds"] for d in found]
    assert seconds == sorted(seconds, reverse=True) and min(seconds) > 0 and sum(d["run"]["share"] for d in found) == pytest.approx(1)
    small, scale, tuned = sorted(found, key=lambda d: (d["kernel"], d["run"]["launches"]))  # n = 64 is divisible by 16, 4099 is not: two of a name
    run = scale["run"]
    assert (scale["kernel"], run["launches"], run["tuning"], run["tried"], run["more"]) == ("scale_kernel", 5, 0, 0, 0) and small["run"]["launches"] == 2
    assert "wall clock" in run["clock"] and scale["verdict"] == "VECTOR" and scale["target"] == "native"
    assert run["calls"] == [{"grid": [17], "arguments": "x_ptr=fp32[4099], y_ptr=fp32[4099], n=4099, factor=2, BLOCK=256", "launches": 5}]
    assert (tuned["kernel"], tuned["run"]["launches"], tuned["run"]["tried"]) == ("tuned_kernel", 3, 1) and tuned["run"]["tuning"] > 3
    text = " ".join((program.parent / "report.txt").read_text().split())
    assert "kernels by time" in text and "scale_kernel" in text and "autotuned: 1 other configuration was tried" in text
    assert "scale_kernel for native: VECTOR" in (program.parent / "report.html").read_text()
    (child,) = (p for p in program.parent.glob("report.*.json"))
    (one,) = json.loads(child.read_text())
    assert one["kernel"] == "scale_kernel" and one["run"]["launches"] == 4


def test_nothing_is_imported_where_nobody_asks(program):
    code = "import triton, sys; print([m for m in sys.modules if m.endswith(('plugin.asked', 'inspector.recorder'))], triton.compiler.CompiledKernel.launch_metadata.__module__, len(sys.meta_path))"
    plain = start(program, "-c", code)
    assert plain.stdout.startswith("[] triton.compiler.compiler ")
    asked = start(program, "-c", code, TRIPORT_ASM="x.json")
    assert "recorder" in asked.stdout and not (program.parent / "x.json").exists()
    assert asked.stdout.split()[-1] == plain.stdout.split()[-1]  # its finder is gone when it has found


def test_a_wrong_name_is_said_and_the_program_runs(program):
    done = start(program, "-c", "import triton; print('ran')", TRIPORT_ASM="report.pdf")
    assert done.returncode == 0 and done.stdout == "ran\n" and "report.pdf: it takes the name of an .html, .json or .txt file" in done.stderr
    done = start(program, "-c", "import train; train.launch(1); print('ran')", TRIPORT_ASM="no/such/folder/r.json")
    assert done.returncode == 0 and done.stdout == "ran\n" and "r.json cannot be written: No such file or directory" in done.stderr


def asm(program, monkeypatch, *words):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(program.parent / "cache"))
    return command.main(["asm", *words])


def test_run(program, monkeypatch, capfd):
    assert asm(program, monkeypatch, "--json", "--run", str(program), "fork") == 3  # the program's
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert "out ['fork']" in err and sorted(d["kernel"] for d in found) == ["scale_kernel"] * 3 + ["tuned_kernel"]
    assert sum(d["run"]["share"] for d in found) == pytest.approx(1)
    code = f"import sys; sys.path.insert(0, {str(program.parent)!r}); import train; train.launch(2)"
    assert asm(program, monkeypatch, "--require", "vector>=0.9, load_bits>=4096", "--html", str(program.parent / "run.html"), "--run", "-c", code) == 1
    lines = capfd.readouterr().out
    assert "load_bits is" in lines and "vector is" not in lines and "scale_kernel" in (program.parent / "run.html").read_text()


def test_run_of_what_launches_nothing_or_is_not_there(program, monkeypatch, capfd):
    assert asm(program, monkeypatch, "--run", "-c", "import sys; print('x'); sys.exit(5)") == 5
    out, err = capfd.readouterr()
    assert out == "x\n" and "no Triton kernel was seen to be launched" in err
    assert asm(program, monkeypatch, "--require", "vector>=0.9", "--run", "-c", "1") == 1
    for words, says in (((), "takes a program"), (("nothing.py",), "no such file or program"), (("-m",), "takes a module")):
        assert asm(program, monkeypatch, "--run", *words) == 2 and says in capfd.readouterr().err
    assert asm(program, monkeypatch, "softmax", "--run", "-c", "1") == 2 and "does not go with it" in capfd.readouterr().err
    assert asm(program, monkeypatch, "--target", "sm_90", "--run", "-c", "1") == 2 and "--target does not go with it" in capfd.readouterr().err
    assert asm(program, monkeypatch, "--run", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)") == 128 + 15


def test_ctrl_c_ends_a_program_as_it_would(program, tmp_path):
    """By SIGINT, and with its report."""
    code = "import os, signal, train; train.launch(1); print('ran', flush=True); os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)"
    done = start(program, "-c", code, TRIPORT_ASM=str(tmp_path / "r.json"))
    assert done.returncode == -2 and done.stdout == "ran\n" and done.stderr.endswith("KeyboardInterrupt\n")
    assert [d["kernel"] for d in json.loads((tmp_path / "r.json").read_text())] == ["scale_kernel"]


@pytest.mark.parametrize("end, code", [("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9)])
def test_a_program_that_leaves_no_report_is_said_to(program, monkeypatch, capfd, tmp_path, end, code):
    words = ["--run", "-c", f"import os, signal, sys; sys.path.insert(0, {str(program.parent)!r}); import train; train.launch(1); {end}"]
    assert asm(program, monkeypatch, "--html", str(tmp_path / "page.html"), *words) == code
    out, err = capfd.readouterr()
    assert "what it launched is not known" in err and "wrote" not in err and not list(tmp_path.iterdir())


def test_a_kernel_that_was_not_launched_is_not_there(program, monkeypatch, capfd):
    code = f"import sys; sys.path.insert(0, {str(program.parent)!r}); import train; train.launch(1)"
    assert asm(program, monkeypatch, "--kernel", "nothing", "--run", "-c", code) == 2
    assert "has it in its name: scale_kernel" in capfd.readouterr().err


@pytest.mark.parametrize("words, starts", [(("-m", "pkg", "-x"), [sys.executable, "-m", "pkg", "-x"]), (("sh", "x.sh"), ["sh", "x.sh"])])
def test_what_run_starts(words, starts):
    assert running.command(list(words)) == starts


def test_inductor_and_its_autotuner(program):
    """Kernels that torch.compile wrote are recorded by name, and what its autotuner measured is no launch."""
    (program.parent / "compiled.py").write_text(textwrap.dedent('''
        import torch, torch._inductor.config as config
        if __name__ == "__main__":
            config.cpu_backend, config.compile_threads, config.max_autotune_pointwise = "triton", 1, True
            f = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1))
            for _ in range(3):
                f(torch.ones(64, 333))
    '''))
    done = start(program, "compiled.py", TRIPORT_ASM="compiled.json", TORCHINDUCTOR_CACHE_DIR=str(program.parent / "inductor"))
    if "C++" in done.stderr and done.returncode:
        pytest.skip("Inductor needs a C++ compiler here: no g++")
    assert done.returncode == 0, done.stderr
    (one,) = json.loads((program.parent / "compiled.json").read_text())
    assert one["kernel"].startswith("triton_poi_fused") and one["run"]["launches"] == 3 and "in_ptr0=fp32[64x333]" in one["run"]["calls"][0]["arguments"]


# --- a GPU's clock ---------------------------------------------------------------------------------------------------------


def test_a_gpus_launches_are_timed_by_events(monkeypatch):
    """Events on the launch's own stream before and after; none within a graph that is recorded."""
    import torch
    streams, state = [], {"now": 0.0, "capturing": False}

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            streams.append(stream)
            state["now"] += 0.5
            self.at = state["now"]

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: f"stream {handle}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["capturing"])
    monkeypatch.setattr(recorder, "_kernels", {})
    compiled = SimpleNamespace(metadata=SimpleNamespace(target=SimpleNamespace(backend="cuda"), name="k"), src=SimpleNamespace(fn=None, constants={}), name="k")
    metadata = SimpleNamespace(get=lambda: {"stream": 7})
    for n in range(4):
        state["capturing"] = n == 3
        recorder._here.next = compiled, (2, 1, 1), (5,)
        recorder._enter(metadata)
        recorder._exit(metadata)
    ((_, run),) = recorder.recorded()
    assert run.launches == 4 and run.seconds == pytest.approx(1.5e-3) and run.clock == "events before and after each launch, 1 in graphs not timed"
    assert set(streams) == {"stream 7"}


def test_files_of_other_processes_and_ranks(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "_owner", os.getpid())
    monkeypatch.delenv("RANK", raising=False)
    assert recorder._own(tmp_path / "r.html").name == "r.html"
    monkeypatch.setenv("RANK", "2")
    assert recorder._own(tmp_path / "r.html").name == "r.rank2.html"
    monkeypatch.setenv("RANK", "0")
    assert recorder._own(tmp_path / "r.html").name == "r.html"
    monkeypatch.setattr(recorder, "_owner", 1)
    assert recorder._own(tmp_path / "r.html").name == f"r.{os.getpid()}.html"


# --- the cache -------------------------------------------------------------------------------------------------------------


def test_types_from_the_cache(program, monkeypatch, capsys):
    """The last compilation says the types; the script is not run; another target is compiled for from its TTIR."""
    from triton import knobs
    start(program, "train.py")
    monkeypatch.setattr(knobs.cache, "dir", str(program.parent / "cache"))
    assert command.main(["asm", f"{program}:tuned_kernel"]) == 0
    out = " ".join(capsys.readouterr().out.split())  # however wide the terminal is
    assert "tuned_kernel" in out and "the last of 2 in Triton's cache: x_ptr=fp32[16], y_ptr=fp32[16], n=i32" in out and "changed since" not in out
    for target in ("spacemit-x60", "sm_90"):
        assert command.main(["asm", f"{program}:scale_kernel", "--target", target, "--json"]) == 0
        (d,) = json.loads(capsys.readouterr().out)
        assert d["target"] == target and d["kernel"] == "scale_kernel" and "source" in d["stages"]
    later = program.stat().st_mtime + 1e6
    os.utime(program, (later, later))
    assert command.main(["asm", f"{program}:scale_kernel"]) == 0 and "the file has changed since" in " ".join(capsys.readouterr().out.split())
    assert cached.last(program, "no_such_kernel", None) is None and cached.last(program.with_name("other.py"), "scale_kernel", None) is None


def test_without_a_launch_the_types_are_asked_for(tmp_path, monkeypatch, capsys):
    from triton import knobs
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "empty"))
    (tmp_path / "never.py").write_text(PROGRAM)
    assert command.main(["asm", f"{tmp_path / 'never.py'}:scale_kernel"]) == 2
    err = capsys.readouterr().err
    assert "scale_kernel needs x_ptr" in err and "run its program once" in err


def test_arguments_of_ttir():
    ttir = ("tt.func public @k(%x_ptr: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc(\"x\"(#loc)), %y: !tt.ptr<bf16>, %n: i32 {tt.divisibility = 16 : i32}, "
            "%m: i64, %eps: f32, %d: !tt.ptr<f64>) attributes {noinline = false} {")
    assert cached.arguments(ttir) == [("x_ptr", "*fp32", True), ("y", "*bf16", False), ("n", "i32", True), ("m", "i64", False), ("eps", "fp32", False), ("d", "*fp64", False)]


