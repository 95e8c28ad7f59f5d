"""tl.device_assert in a bundle: a status, and what was asserted where; never a result as if it had held."""

import ctypes
import inspect
import platform
import subprocess
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from spine_boards import on
from triport import backends
from triport.backends.base import Error
from triport.backends.cpu.llvm import targets
from triport.backends.spine import backend as spine, bundle, library, runner
from triport.ops import Case, Op
from triton import knobs

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]


def small_body(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.device_assert(x < 2.0, "100% too large")
    tl.device_assert(x > -2.0)
    tl.store(out_ptr + offs, x + 1, mask=offs < n)


small_kernel, plain_kernel = triton.jit(debug=True)(small_body), triton.jit(small_body)
LINE = inspect.getsourcelines(small_body)[1] + 3
WHERE = f"kernel small_body: device-side assert triggered at test_bundle_assertions.py:{LINE} in program (1, 0, 0): 100% too large"


def op_of(kernel, **options) -> Op:
    def call(x):
        t, out = torch.empty_like(x), torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, t, x.numel(), BLOCK=64, **options)  # by way of a temporary, which is freed all the same
        plain_kernel[(triton.cdiv(x.numel(), 64),)](t, out, x.numel(), BLOCK=64)
        return out

    return Op("small", call, lambda x: x + 2, (Case(((100,),)),))


def bundled(op: Op, target: str = HERE, **kwargs) -> bundle.Bundle:
    return bundle.make([(op, op.cases[0], "fp32")], targets.get(target), **{"cases": False, **kwargs})


GOOD, LARGE = torch.zeros(100), torch.zeros(100).index_fill(0, torch.tensor([70]), 3.0)


@pytest.fixture(scope="module")
def made():
    return bundled(op_of(small_kernel), cases=True, repetitions=1)


@pytest.mark.parametrize("board,target", [("local", HERE), *(pytest.param(b.values[0], t, marks=b.marks) for b, t in (
    (on("qemu:riscv64?vlen=256"), "spacemit-x60"), (on("qemu:aarch64"), "aarch64")))])
def test_a_failed_assertion_is_a_status(board, target, made):
    here = made if board == "local" else bundled(op_of(small_kernel), target)
    f = here.manifest["functions"][0]
    own = [a for a in f["kernels"][0]["assertions"] if "overflow detected" not in a["message"]]  # `debug` asserts that integers fit, too
    assert own == [{"at": f"test_bundle_assertions.py:{LINE}", "message": "100% too large"},
                   {"at": f"test_bundle_assertions.py:{LINE + 1}", "message": ""}]
    assert f["kernels"][1]["assertions"] == []
    (out,), _ = runner.get(board).call(here, f["name"], [GOOD])
    assert torch.equal(out, GOOD + 2)
    with pytest.raises(Error) as e:
        runner.get(board).call(here, f["name"], [LARGE], threads=2)
    assert str(e.value) == f"triport_small_fp32 on {board} returned TRIPORT_ASSERTION (7): triport_small_fp32: {WHERE}"
    with pytest.raises(Error, match=rf"test_bundle_assertions.py:{LINE + 1} in program \(0, 0, 0\): $"):
        runner.get(board).call(here, f["name"], [GOOD - 3])


@pytest.mark.parametrize("how", ["launch", "environment", "not at all"])
def test_who_asks_for_assertions(how, monkeypatch):
    """As a launch has it: the kernel, the launch or TRITON_DEBUG=1; without, tl.device_assert is nothing, here and there."""
    monkeypatch.setattr(knobs.runtime, "debug", how == "environment")
    mine = op_of(plain_kernel, **({"debug": True} if how == "launch" else {}))
    with spine.on("local"):
        call = backends.get("spine").bind(mine)
        assert torch.equal(call(GOOD), GOOD + 2)
        if how == "not at all":
            assert torch.equal(call(LARGE), LARGE + 2)
        else:
            with pytest.raises(Error, match="TRIPORT_ASSERTION.*100% too large"):
                call(LARGE)
        monkeypatch.setattr(knobs.runtime, "debug", True)  # what is kept from before does not serve
        with pytest.raises(Error, match="TRIPORT_ASSERTION.*100% too large"):
            call(LARGE)


def test_each_thread_has_its_own_last_error(made, tmp_path):
    made.write(tmp_path)
    lib = ctypes.CDLL(str(tmp_path / made.manifest["library"]))
    last = lib.triport_last_error
    last.restype = ctypes.c_char_p

    def call(x, n=100):
        out = torch.empty(100)
        return lib.triport_small_fp32(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(n), ctypes.c_int(2))

    assert last() == b"" and call(LARGE) == library.ASSERTION and last().decode() == f"triport_small_fp32: {WHERE}"
    assert call(GOOD) == 0 and last().decode() == f"triport_small_fp32: {WHERE}"  # of the last call that failed
    seen = []

    def other():
        seen.extend([last(), call(GOOD, -1), last(), call(GOOD, 1 << 31), last()])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [b"", *[library.BAD_SIZE, b"triport_small_fp32: x_size0 is negative or above 2147483647"] * 2]
    assert last().decode() == f"triport_small_fp32: {WHERE}"


def test_two_bundles_in_one_program(made, tmp_path):
    """Whichever function of that name the linker takes, it reads what either bundle wrote."""
    other = bundled(Op("other", op_of(small_kernel).call, lambda x: x + 2, (Case(((100,),)),)))
    for b in (made, other):
        b.write(tmp_path / b.name)
    script = "import ctypes, sys\nlibs = [ctypes.CDLL(p, ctypes.RTLD_GLOBAL) for p in sys.argv[1:]]\n" + """
for lib, name in zip(libs, ("triport_small_fp32", "triport_other_fp32")):
    assert getattr(lib, name)(None, None, ctypes.c_int64(5), 1) == 4
    for x in (*libs, ctypes.CDLL(None)):
        x.triport_last_error.restype = ctypes.c_char_p
        assert x.triport_last_error() == name.encode() + b": x is null", (name, x.triport_last_error())
"""
    subprocess.run([sys.executable, "-c", script, *(str(tmp_path / b.name / b.manifest["library"]) for b in (made, other))], check=True)


def test_the_program_says_what_was_asserted(tmp_path):
    """For a case whose inputs do not hold it."""
    mine = op_of(small_kernel)
    large = Op("small", mine.call, lambda x: x + 2, (Case(((100,),), scale=100.0),))
    made = bundled(large, cases=True)
    made.write(tmp_path)
    case = next((tmp_path / "cases").iterdir())
    done = subprocess.run([tmp_path / made.name, case], capture_output=True, text=True)
    assert done.returncode == 1 and f"{case}: TRIPORT_ASSERTION: triport_small_fp32: kernel small_body: device-side assert triggered at" in done.stdout
    with pytest.raises(Error, match=f"returned TRIPORT_ASSERTION.*test_bundle_assertions.py:{LINE}"):
        runner.get("local").case(made, made.manifest["cases"][0]["file"])


def test_the_header_says_how_to_ask(made):
    text = made.files[made.manifest["header"]].decode()
    assert "TRIPORT_ASSERTION = 7" in text and "const char *triport_last_error(void);" in text
