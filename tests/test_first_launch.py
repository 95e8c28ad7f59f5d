"""The first launch of a process: what a warm one does not load, gluon, debuggers, and the command that measures it."""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from triport.backends import base, of_triton
from triport.backends.cpu.plugin import gluon
from triport.bench import first

x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="what is tested is made for x86-64 alone")

KERNEL = """
import sys, torch, triton, triton.language as tl

@triton.jit
def first_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x * 3, mask=offs < n)

opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
x = torch.randn(777)
out = torch.empty(777)
first_kernel[(1,)](x, out, 777, BLOCK=1024)
assert torch.equal(out, x * 3)
"""


def process(tmp_path, code: str, **env) -> str:
    """What a new process prints that runs `code`, with a Triton cache below tmp_path."""
    path = tmp_path / "script.py"
    path.write_text(code)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- what is on disk -----------------------------------------------------------------------------------------------------------

def test_everything_that_triton_reads_is_watched(tmp_path):
    """Whatever files its own function opens are among those whose state the memo hangs on."""
    code = """
        import json, os, sys
        import triton
        from triton.runtime import cache
        from triport.backends.cpu.plugin import key
        opened = set()
        sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
        cache.triton_key.__wrapped__()
        root = os.path.dirname(triton.__file__)
        watched = {os.path.realpath(f) for f in key.files(root)}
        read = {os.path.realpath(f) for f in opened if f.endswith((".py", ".so"))}
        assert len(read) > 20 and any("libtriton" in f for f in read), read
        print(json.dumps(sorted(f for f in read - watched if f.startswith(os.path.realpath(root) + os.sep))))
    """
    assert json.loads(process(tmp_path, textwrap.dedent(code))) == []


@pytest.mark.first(0)
def test_a_warm_process_loads_and_hashes_nothing_that_it_can_do_without(tmp_path):
    """Once on disk, a kernel needs neither LLVM nor gluon nor a digest of libtriton.so; with the switches off each of them is back."""
    code = KERNEL + textwrap.dedent("""
        import json
        print(json.dumps({"modules": [m for m in ("llvmlite", "triton.experimental.gluon", "triport.backends.cpu.llvm.compile", "triport.backends.cpu.emit.kernel")
                                      if m in sys.modules],
                          "hashed": any("libtriton" in f for f in opened)}))
    """)
    cold = json.loads(process(tmp_path, code))
    assert cold["hashed"] and "llvmlite" in cold["modules"]
    process(tmp_path, code)  # where something was touched a moment ago, it may be remembered only now
    lean = {"modules": [], "hashed": False} if os.uname().machine == "x86_64" else None
    warm = json.loads(process(tmp_path, code))
    assert warm == (lean or {**warm, "hashed": False})
    switched = json.loads(process(tmp_path, code, TRIPORT_KEY_MEMO="0", TRIPORT_LAZY_GLUON="0"))
    assert switched["hashed"] and "triton.experimental.gluon" in switched["modules"]


@pytest.mark.first(0)
def test_the_key_is_tritons_own(tmp_path):
    """In a process that finds it out, in one that remembers it, and after libtriton's memo was made for other files."""
    code = KERNEL + textwrap.dedent("""
        from triton.runtime import autotuner, cache
        assert hasattr(cache.triton_key, "triton_own"), "ours is in its place"
        opened.clear()
        assert cache.triton_key() == autotuner.triton_key()
        assert not any("libtriton" in f for f in opened)
        print(cache.triton_key() == cache.triton_key.triton_own(), cache.triton_key())
    """)
    said = {process(tmp_path, code) for _ in range(3)}
    assert len(said) == 1 and said.pop().startswith("True ")
    path, = (tmp_path / "cache" / "triport").glob("triton-key-*.memo")
    digest, value = json.loads(path.read_bytes()[:-64])
    with_others = json.dumps([digest[::-1], "wrong"]).encode()
    path.write_bytes(with_others + hashlib.sha256(with_others).hexdigest().encode())
    assert process(tmp_path, code).startswith("True ")


# --- gluon -------------------------------------------------------------------------------------------------------------------

def test_gluon_imported_afterwards_is_gluon(tmp_path):
    """Its tensor descriptors are told from other objects as they are where Triton imports gluon first."""
    code = KERNEL + textwrap.dedent("""
        print("triton.experimental.gluon" in sys.modules, file=sys.stderr)
        import importlib
        from triton.backends.compiler import BaseBackend
        from triton.runtime.jit import native_specialize_impl as specialize
        from triton.experimental.gluon.nvidia import hopper
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.tools.tensor_descriptor import TensorDescriptor
        x = torch.zeros(64, 64)
        layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
        objects = [hopper.TensorDescriptor.from_tensor(x, [32, 32], layout), TensorDescriptor.from_tensor(x, [32, 32]), torch.nn.Parameter(x), x, 5, None]
        for name in ("amd.cdna5", "amd.gfx1250"):
            try:
                amd = importlib.import_module("triton.experimental.gluon." + name)
            except ImportError:
                continue
            from triton.experimental.gluon.language import PaddedSharedLayout
            padded = PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0])
            objects.append(amd.TensorDescriptor.from_tensor(x, [32, 32], padded))
        assert all(m.__file__ for n, m in sys.modules.items() if n.startswith("triton.experimental.gluon."))
        for o in objects:
            print(specialize(BaseBackend, o, False, True, True))
        class Other: pass
        try:
            specialize(BaseBackend, Other(), False, True, True)
        except TypeError as e:
            print(e)
    """)
    lazy, eager = process(tmp_path, code), process(tmp_path, code, TRIPORT_LAZY_GLUON="0")
    assert lazy == eager and lazy.count("tensordesc") >= 2 and "NVMMASharedLayout" in lazy and "failed to specialize" in lazy


def test_who_imports_gluon_in_that_moment_gets_it(tmp_path):
    """Through the package, or by the very module: nobody keeps a stand-in."""
    code = """
        import importlib, sys, torch, triton
        from triton.runtime import jit
        from triport.backends.cpu.plugin import gluon
        def meanwhile(*args):
            hopper = sys.modules["triton.experimental.gluon.nvidia.hopper"]
            assert isinstance(hopper.TensorDescriptor, gluon.Lazy) and not isinstance(5, hopper.TensorDescriptor)
            if sys.argv[1:] == ["package"]:
                import triton.experimental.gluon
                assert triton.experimental.gluon.nvidia.hopper.__file__
            else:
                assert hopper.NVMMASharedLayout
        jit.native_specialize_impl = meanwhile
        gluon.install()
        real = importlib.import_module("triton.experimental.gluon.nvidia.hopper")
        assert real.__file__ and not isinstance(real.TensorDescriptor, gluon.Lazy)
        assert triton.experimental.gluon.nvidia.hopper is real
        assert not any(isinstance(f, gluon._Watch) for f in sys.meta_path)
        print("right")
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    for how in ("package", "module"):
        done = subprocess.run([sys.executable, path, how], capture_output=True, text=True)
        assert done.stdout == "right\n", done.stderr


def test_where_gluon_is_there_already_nothing_stands_in(tmp_path):
    code = "import triton.experimental.gluon.nvidia.hopper as real\n" + KERNEL + textwrap.dedent("""
        assert sys.modules["triton.experimental.gluon.nvidia.hopper"] is real
        print("right")
    """)
    assert process(tmp_path, code) == "right"


def test_stand_ins_are_for_versions_that_are_known(monkeypatch):
    import torch  # noqa: F401  (before it is there nothing stands in: the binder would import it)
    import triton
    from triton.runtime import jit
    called = []
    monkeypatch.setattr(jit, "native_specialize_impl", lambda *a: called.append(a))
    monkeypatch.setattr(triton, "__version__", "4.0.0")
    monkeypatch.setattr(of_triton, "left_out", [])
    for name in [m for m in sys.modules if m.startswith("triton.experimental.gluon")]:
        monkeypatch.delitem(sys.modules, name)
    of_triton.change("imports take longer", gluon.install)
    assert not called and of_triton.left_out == ["imports take longer"]
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    of_triton.change("imports take longer", gluon.install)
    assert len(called) == 1 and len(of_triton.left_out) == 1


# --- debuggers ---------------------------------------------------------------------------------------------------------------

@pytest.mark.first(0)
@x86
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_gdb_stops_on_a_python_line_of_a_kernel(tmp_path):
    """In a process whose kernel comes from disk, so without LLVM."""
    code = KERNEL + 'assert "llvmlite" not in sys.modules or sys.argv[1:]\n'
    path = tmp_path / "stops.py"
    path.write_text(code)
    line = next(n for n, text in enumerate(code.split("\n"), 1) if "tl.store" in text)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, path, "cold"], env=env, check=True)
    done = subprocess.run(["gdb", "-q", "-nx", "-batch", "-ex", "set breakpoint pending on", "-ex", f"break stops.py:{line}", "-ex", "run", "-ex", "backtrace 2",
                           "-ex", "delete", "-ex", "continue", "--args", sys.executable, path], env=env, capture_output=True, text=True)
    if "Breakpoint 1" not in done.stdout and "ptrace" in done.stderr + done.stdout:
        pytest.skip("this system does not let gdb run a process")
    assert f"first_kernel () at {path}:{line}" in done.stdout or f"first_kernel () at stops.py:{line}" in done.stdout, done.stdout + done.stderr
    assert "in work ()" in done.stdout and "exited normally" in done.stdout, done.stdout + done.stderr


# --- what a new process takes ------------------------------------------------------------------------------------------------

def test_first_prints_where_the_time_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert first.main(["--runs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "medians of 1 new processes"
    times = {line[:42].strip(): float(line[42:].split()[0]) for line in lines[1:]}
    assert list(times) == ["first launch", *first.PARTS, "second launch"]
    assert abs(times["first launch"] - sum(times[p] for p in first.PARTS)) < 0.1 * len(times), "the parts add up"
    assert times["linking"] > 0 and times["launcher"] > 0


def test_a_new_process_says_whether_it_compiled(tmp_path, monkeypatch):
    from triport.ops import registry
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    op = registry.get("square")
    ask = functools.partial(first.of_op, op, op.cases[0].name, "fp32", "triton-cpu", "cpu", 0, 1)
    assert ask()["compiled"] and not ask()["compiled"]


def test_a_new_process_that_fails_says_why(monkeypatch):
    with pytest.raises(base.Error, match="exit code 1: .*no_such_backend"):
        first.new_process(op={"op": "square", "case": "128x128", "dtype": "fp32", "backend": "no_such_backend", "device": "cpu", "seed": 0})
    monkeypatch.setattr(first, "LIMIT", 0.01)
    with pytest.raises(base.Error, match="within 0.01 s"):
        first.new_process()


def test_ops_that_only_this_process_knows_have_no_new_one():
    from triport.ops import Case, Op
    assert first.of_op(Op("mine", lambda x: x, lambda x: x, (Case(((4,),)),)), "4", "fp32", "triton-cpu", "cpu", 0) is None
