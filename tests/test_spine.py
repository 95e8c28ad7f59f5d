"""Bundles, their C interface, runners and commands, on this machine's own CPU and with programs that misbehave."""

import ctypes
import json
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from hypothesis import HealthCheck, given, settings, strategies as st
from spine_boards import CASES
from triport import backends, ops
from triport.backends.base import Error, Unavailable, Unsupported
from triport.backends.cpu.llvm import compile as llvm, generator, ir, targets
from triport.backends.spine import backend as spine, bundle, expressions, glue, library, link, probe, request, runner
from triport.backends.spine.trace import trace
from triport.bench import check
from triport.ops import Case, Op, registry
from triport.ops.records import DTYPES
from triport.tools.__main__ import main

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]
STATUS = {name: value for value, name, _ in library.STATUS}


@pytest.fixture(scope="module")
def made():
    """A bundle of matmul_softmax and an op in place, for this machine."""
    wanted = [(registry.get("matmul_softmax"), CASES["matmul_softmax"][0], "fp32"), (registry.get("square"), Case(((17, 23),)), "fp32"),
              (IN_PLACE, Case(((40, 30), (40, 30), (30,))), "fp32")]
    return bundle.make(wanted, targets.get(HERE), repetitions=2)


IN_PLACE = Op("add_mul_act_", ops.add_mul_act_, lambda x, y, bias: x.add_(y), (Case(((40, 30), (40, 30), (30,))),),
              reference=lambda x, y, bias: torch.relu(x + 0.5 * y + bias))


@pytest.fixture(scope="module")
def functions(made, tmp_path_factory):
    """The bundle's library, loaded into this process."""
    folder = tmp_path_factory.mktemp("bundle")
    made.write(folder)
    return ctypes.CDLL(str(folder / made.manifest["library"]))


def call(function, *arguments, threads: int = 0) -> int:
    """Call a C function with tensors (or None) and sizes."""
    return function(*(ctypes.c_void_p(a.data_ptr() if a is not None else 0) if isinstance(a, (torch.Tensor, type(None))) else ctypes.c_int64(a)
                      for a in arguments), ctypes.c_int(threads))


# --- the C interface ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(m=st.integers(0, 90), k=st.integers(0, 60), n=st.integers(0, 90), threads=st.sampled_from([0, 1, 2, 7, 10_000]), seed=st.integers(0, 1 << 30))
def test_any_size(functions, m, k, n, threads, seed):
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=g), torch.randn(k, n, generator=g)
    out, whole = check.guarded((m, n), torch.float32)
    if m * k == 0 or k * n == 0:  # torch has null pointers for these
        a, b = (x if x.numel() else torch.zeros(1) for x in (a, b))
    assert call(functions.triport_matmul_softmax_fp32_dim_0, a, b, out, m, k, n, threads=threads) == 0
    assert check.guards_hold(whole)
    if m and n:
        want = torch.softmax(a.double() @ b.double(), 0) if k else torch.full((m, n), 1 / m, dtype=torch.float64)
        assert check.error(out, want) < 1e-5


def test_bad_arguments_have_a_status(functions):
    f, square = functions.triport_matmul_softmax_fp32_dim_0, functions.triport_square_fp32
    a, b, out = torch.randn(8, 4), torch.randn(4, 6), torch.full((8, 6), 7.0)
    for sizes in ((-1, 4, 6), (8, -4, 6), (8, 4, 1 << 31), (1 << 40, 4, 6)):
        assert call(f, a, b, out, *sizes) == STATUS["TRIPORT_BAD_SIZE"], sizes
    for sizes in ((1 << 20, 1 << 20), (1 << 30, 1 << 30), ((1 << 31) - 1,) * 2):  # more elements than a kernel counts, more bytes than 64 bits do
        assert call(square, a, out, *sizes) == STATUS["TRIPORT_BAD_SIZE"]
    for at in range(3):
        given_ = [a, b, out]
        given_[at] = None
        assert call(f, *given_, 8, 4, 6) == STATUS["TRIPORT_NULL_POINTER"]
    both = torch.randn(100)
    assert call(square, both, both[10:], 5, 6) == STATUS["TRIPORT_OVERLAP"]
    assert call(square, both[10:], both, 5, 6) == STATUS["TRIPORT_OVERLAP"]
    assert torch.equal(out, torch.full((8, 6), 7.0))
    assert call(f, both, b, both, 4, 4, 6) == STATUS["TRIPORT_OVERLAP"]  # a product reads what it has written over
    kept = both.clone()
    assert call(square, both, both, 5, 6) == 0  # the same place is fine
    assert torch.equal(both[:30], kept[:30] ** 2) and torch.equal(both[30:], kept[30:])
    assert call(square, None, None, 0, 6) == 0


def test_the_header_is_c(made, functions, tmp_path):
    """A C program with the header and the library gets results and statuses."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    made.write(tmp_path)
    (tmp_path / "main.c").write_text(f'#include "{made.manifest["header"]}"\n' + """
        #include <stdio.h>
        int main(void) {
          float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
          int r = triport_square_fp32(x, y, 2, 3, 1);
          printf("%d %g %g %d\\n", r, y[0], y[5], triport_square_fp32(x, 0, 2, 3, 1) == TRIPORT_NULL_POINTER);
          return 0;
        }""")
    lib = tmp_path / made.manifest["library"]
    subprocess.run([compiler, "-Wall", "-Werror", *(["-x", "c"] if "++" not in compiler else []), "main.c", "-x", "none", str(lib), f"-Wl,-rpath,{tmp_path}",
                    "-o", "main"], cwd=tmp_path, check=True, capture_output=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == "0 1 36 1\n"


def test_threads_and_forks(functions):
    """Calls from threads at once; a forked child starts threads of its own."""
    import threading
    f = functions.triport_matmul_softmax_fp32_dim_0
    a, b = torch.randn(300, 40), torch.randn(40, 200)
    want, wrong = torch.softmax(a.double() @ b.double(), 0), []

    def work():
        for _ in range(10):
            out = torch.empty(300, 200)
            if call(f, a, b, out, 300, 40, 200, threads=3) or check.error(out, want) > 1e-5:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    out = torch.empty(300, 200)
    child = os.fork()
    if child == 0:
        os._exit(call(f, a, b, out, 300, 40, 200, threads=3))
    end = time.monotonic() + HANGS
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
    assert done == (child, 0)


def test_affinity_is_respected(made):
    """With 0 for the threads: those that the process may run on."""
    answer = runner.get("local").call(made, "triport_square_fp32", [torch.ones(3, 3)])[1]
    assert answer.cpus == len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    program = runner.program_of(made)
    data = request.encode(made.function("triport_square_fp32"), [("in", torch.ones(3, 3)), ("out", torch.zeros(3, 3))], [3, 3])
    done = subprocess.run(["taskset", "-c", str(one), program] if shutil.which("taskset") else [sys.executable, "-c", textwrap.dedent(f"""
        import os; os.sched_setaffinity(0, {{{one}}}); os.execv({program!r}, [{program!r}])""")], input=data, capture_output=True)
    assert request.decode(done.stdout, [36], 0).cpus == 1


def test_in_place(made):
    x, y, bias = torch.randn(9, 11), torch.randn(9, 11), torch.randn(11)
    (out,), answer = runner.get("local").call(made, "triport_add_mul_act__fp32", [x, y, bias], repetitions=5)
    assert check.error(out, IN_PLACE.expected(x, y, bias)) < 2e-6
    assert len(answer.wall) == len(answer.cpu) == 5


def test_the_program_alone(made, tmp_path):
    made.write(tmp_path)
    done = subprocess.run([tmp_path / made.name, *sorted(tmp_path.glob("cases/*matmul*"))], capture_output=True, text=True)
    assert done.returncode == 0 and ": right, error " in done.stdout and " 2 runs, " in done.stdout


def test_the_program_refuses_damaged_cases(made, tmp_path):
    """Whatever the words say of where things are and how often to run: no wild read, no run for years."""
    made.write(tmp_path)
    whole = min(tmp_path.glob("cases/*square*")).read_bytes()
    first = request.HEAD  # the first tensor's words; the second is the result
    result = first + request.ENTRY
    places = {"warmup": request.WARMUP, "repetitions": request.REPETITIONS, "tensors": request.TENSORS, "sizes": request.SIZES, "offset": first + request.OFFSET, "bytes": first + request.NBYTES,
              "want": result + request.WANT, "wanted": result + request.WANTED, "beginning": result + request.OFFSET}
    for name, place in places.items():
        for word in (1 << 31, (1 << 62) + 5, -8, -64, len(whole), len(whole) - 8):
            if name in ("want", "beginning") and word == len(whole) - 8 or name in ("warmup", "repetitions") and 0 < word <= len(whole):
                continue  # that many bytes are there, and rounds soon done
            spoilt = bytearray(whole)
            struct.pack_into("<q", spoilt, 8 * place, word)
            (tmp_path / "bad.case").write_bytes(request.sealed(bytes(spoilt)))
            done = subprocess.run([tmp_path / made.name, tmp_path / "bad.case"], capture_output=True, text=True, timeout=HANGS)
            assert done.returncode == 1 and ("is damaged" in done.stdout or "is no case" in done.stdout), (name, word, done)


def alone(made, folder, *arguments, **given):
    """What a bundle's program does."""
    return subprocess.run([folder / made.name, *arguments], capture_output=True, timeout=HANGS, **given)


def test_no_byte_that_was_changed_kills_the_program(made, tmp_path, seed):
    """Sizes, extents, roles and types are compared with each other and with the file's length before anything is read by them."""
    made.write(tmp_path)
    wholes = [p.read_bytes() for p in sorted(tmp_path.glob("cases/*"))]
    r, bad = random.Random(seed), tmp_path / "bad.case"
    for n in range(300):
        spoilt = bytearray(wholes[n % len(wholes)])
        words = request.HEAD + request.ENTRY * 3 + 4
        spoilt[at := r.randrange(8 * words if n % 4 else len(spoilt))] ^= (change := r.randrange(1, 256))
        spoilt[8 * request.REPETITIONS:8 * request.REPETITIONS + 8] = spoilt[8 * request.WARMUP:8 * request.WARMUP + 8] = struct.pack("<q", 1)  # many take time, and no more
        bad.write_bytes(request.sealed(bytes(spoilt)))  # as if somebody had meant it
        done = alone(made, tmp_path, bad)
        assert done.returncode in (0, 1) and done.stdout.count(b"\n") == 1, (n, at, change, done)


def test_what_could_not_be_written_was_not_said(made, tmp_path):
    """A script that looks at the exit code alone."""
    made.write(tmp_path)
    with open("/dev/full", "w") as full:
        assert subprocess.run([tmp_path / made.name, min(tmp_path.glob("cases/*square*"))], stdout=full, timeout=HANGS).returncode == 1


@pytest.mark.parametrize("length", [0, 1, 5, 7])
def test_no_bit_that_was_changed_is_believed(made, tmp_path, length, seed):
    """Of inputs, expected values, tolerances and counts alike: neither right nor wrong is said of such a case, by a program or over its standard input."""
    made.write(tmp_path)
    path = min(tmp_path.glob("cases/*matmul*"))
    whole, r = path.read_bytes(), random.Random(seed)
    if length:  # a last word that is not all there
        whole += bytes(length)
        whole = request.sealed(whole[:8 * request.BYTES] + struct.pack("<q", len(whole)) + whole[8 * request.BYTES + 8:])
        path.write_bytes(whole)
    assert b": right, error" in alone(made, tmp_path, path).stdout
    for n in range(60):
        spoilt = bytearray(whole)
        at = r.randrange(len(spoilt) - 8, len(spoilt)) if n % 5 == 0 else r.randrange(8 * request.HEAD, len(spoilt)) if n % 2 else 8 * request.REPETITIONS + r.randrange(8)
        spoilt[at] ^= 1 << r.randrange(8)
        path.write_bytes(spoilt)
        done = alone(made, tmp_path, path)
        assert done.returncode == 1 and done.stdout.endswith(b": is damaged: its bytes are not those that were written\n"), (n, at, done)
    done = alone(made, tmp_path, input=bytes(spoilt))
    assert done.returncode == 2 and b"its bytes are not those that were written" in done.stderr


def test_a_tensor_of_another_length_than_its_sizes_say(made, tmp_path):
    made.write(tmp_path)
    whole = min(tmp_path.glob("cases/*square*")).read_bytes()
    for place, words in ((request.HEAD + request.NBYTES, (4, 17 * 23 * 4 - 4)), (request.HEAD + request.ROLE, (1, 2)), (request.HEAD + request.CODE, (1,)),
                         (request.HEAD + request.ENTRY + request.ROLE, (0, 2)), (request.HEAD + 2 * request.ENTRY, (0, 16, 18, 1 << 20))):
        for word in words:
            spoilt = bytearray(whole)
            struct.pack_into("<q", spoilt, 8 * place, word)
            (tmp_path / "bad.case").write_bytes(request.sealed(bytes(spoilt)))
            done = alone(made, tmp_path, tmp_path / "bad.case")
            assert done.returncode == 1 and b"is damaged: its sizes, its tensors and its length do not fit each other" in done.stdout, (place, word, done)


def test_a_case_of_another_length(made, tmp_path):
    made.write(tmp_path)
    path = min(tmp_path.glob("cases/*square*"))
    whole = path.read_bytes()
    for data, said in ((whole + b"!", b"has bytes behind its end"), (whole[:-1], b"is truncated"), (whole[:9], b"is truncated")):
        path.write_bytes(data)
        done = alone(made, tmp_path, path)
        assert done.returncode == 1 and said in done.stdout, done


def test_another_functions_case_is_none(made, tmp_path):
    """Though it has the number, the tensors and the sizes of one of the program's."""
    other = bundle.make([(registry.get("gelu"), Case(((17, 23),)), "fp32"), (registry.get("gelu"), Case(((17, 23, 2),)), "fp32")], targets.get(HERE), repetitions=2)
    own = bundle.make([(registry.get("square"), Case(((17, 23),)), "fp32"), (registry.get("square"), Case(((17, 23, 2),)), "fp32")], targets.get(HERE), repetitions=2)
    other.write(tmp_path / "other")
    own.write(tmp_path / "own")
    done = alone(own, tmp_path / "own", *sorted((tmp_path / "other").glob("cases/*")))
    assert done.returncode == 1 and done.stdout.count(b"is no case of this program") == 2, done
    assert alone(own, tmp_path / "own", *sorted((tmp_path / "own").glob("cases/*"))).returncode == 0


def test_what_a_function_is_called_is_its_interface(made):
    f = made.manifest["functions"][0]
    changed = [{**f, "name": "other"}, {**f, "parameters": {"dim": 7}}, {**f, "arguments": f["arguments"][1:]}]
    assert len({request.named(x) for x in [f, *changed]}) == 4
    assert request.named({**f, "kernels": [], "classes": ["any"]}) == request.named(json.loads(json.dumps(f)))


def test_the_program_says_how_it_is_used(made, tmp_path):
    made.write(tmp_path)
    for option in ("--help", "-h"):
        done = alone(made, tmp_path, option)
        assert done.returncode == 0 and b"PROGRAM CASE...    run case files" in done.stdout and not done.stderr
    done = alone(made, tmp_path, "--bogus")
    assert done.returncode == 2 and b"PROGRAM CASE...    run case files" in done.stderr and not done.stdout


@pytest.mark.parametrize("data,said", [(b"", "is truncated"), (b"garbage\n" * 40, "is no case of this program")])
def test_what_is_no_request_ends_in_an_exit_code(made, tmp_path, data, said):
    made.write(tmp_path)
    done = alone(made, tmp_path, input=data)
    assert done.returncode == 2 and done.stderr.decode() == f"the request {said}\n"
    with pytest.raises(Error, match=said):
        request.decode(done.stdout, [], 0)


def test_shapes_and_strides_are_said():
    wanted = [(registry.get("matmul"), Case(((20, 31), (31, 40)), transposed=(1,)), "fp32"), (registry.get("softmax"), Case(((3, 4, 5),)), "fp16")]
    made = bundle.make(wanted, targets.get(HERE), cases=False)
    text = made.files[made.manifest["header"]].decode()
    for line in ("a: fp32, a_size0 x a_size1; strides a_size1, 1", "b: fp32, a_size1 x b_size1, transposed; strides 1, a_size1",
                 "x: fp16, x_size0 x x_size1 x x_size2; strides x_size1*x_size2, x_size2, 1"):
        assert line in text, text
    assert made.manifest["functions"][0]["arguments"][1]["strides"] == ["1", "a_size1"]


@triton.jit
def careless_kernel(x_ptr, out_ptr, n, FIRST: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + FIRST
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=(offs >= 0) & (offs < n)) * 2.0, mask=offs < n + LAST)


@pytest.mark.parametrize("first,last,message", [(0, 0, ""), (0, 1, "died of signal SIGSEGV"), (-1, 0, "memory before a tensor was written")])
def test_kernels_that_leave_their_tensor(first, last, message):
    """One element behind the end, one before the start."""
    def call(x):
        out = torch.empty_like(x)
        careless_kernel[(triton.cdiv(x.numel() + 2, 64),)](x, out, x.numel(), FIRST=first, LAST=last, BLOCK=64)
        return out

    mine = Op("careless", call, lambda x: x * 2, (Case(((50,),)),))
    b = bundle.make([(mine, mine.cases[0], "fp32")], targets.get(HERE), cases=False)
    x = torch.randn(50)
    if message:
        with pytest.raises(Error, match=message):
            runner.get("local").call(b, "triport_careless_fp32", [x])
    else:
        assert torch.equal(runner.get("local").call(b, "triport_careless_fp32", [x])[0][0], x * 2)


# --- tracing -----------------------------------------------------------------------------------------------------------------


@triton.jit
def rows_kernel(x_ptr, out_ptr, m, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        here = start + cols < n
        tl.store(out_ptr + row * stride + start + cols, tl.load(x_ptr + row * stride + start + cols, mask=here) + 1.0, mask=here)


def test_what_cannot_be_exported():
    def op(call, *shapes):
        return Op("mine", call, lambda *a: a[0], tuple(Case(s) for s in shapes))

    def copies(x):
        out = torch.empty_like(x)
        rows_kernel[(x.shape[0],)](x + 1, out, x.shape[0], x.shape[1], x.stride(0), BLOCK=64)
        return out

    row = targets.get(HERE)
    for call_, text in ((copies, r"it calls torch's aten::add"), (lambda x: x, "launches no Triton kernel"), (lambda x: None, "launches no Triton kernel")):
        mine = op(call_, ((5, 7),))
        with pytest.raises(Unsupported, match=text):
            trace(mine, mine.cases[0], "fp32", row)

    def two(x):
        out = torch.empty_like(x)
        rows_kernel[(x.shape[0],)](x, out, x.shape[0], x.shape[1], x.stride(0), BLOCK=64)
        return out, 3

    mine = op(two, ((5, 7),))
    with pytest.raises(Unsupported, match="returns int as out1"):
        trace(mine, mine.cases[0], "fp32", row)


def test_conditions_and_parts_of_tensors():
    """An op that asks something of its sizes refuses others; it may work on parts, in any number of launches."""
    def halves(x):
        out = torch.empty_like(x)
        half = x.shape[0] // 2
        if x.shape[1] % 4 != 0:
            raise ValueError("no")
        rows_kernel[(half,)](x, out, half, x.shape[1], x.stride(0), BLOCK=64)
        rows_kernel[(x.shape[0] - half,)](x[half:], out[half:], x.shape[0] - half, x.shape[1], x.stride(0), BLOCK=64)
        return out

    mine = Op("halves", halves, lambda x: x + 1, (Case(((6, 8),)),))
    b = bundle.make([(mine, mine.cases[0], "fp32")], targets.get(HERE))
    assert b.manifest["functions"][0]["conditions"]
    for shape in ((9, 100), (2, 4), (31, 64)):
        x = torch.randn(shape)
        (y,), _ = runner.get("local").call(b, "triport_halves_fp32", [x])
        assert torch.equal(y, x + 1)
    with pytest.raises(Error, match="TRIPORT_BAD_SHAPE"):
        runner.get("local").call(b, "triport_halves_fp32", [torch.randn(6, 7)])


@triton.jit
def reversed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + n - 1 - offs, mask=offs < n), mask=offs < n)


def test_two_pointers_into_one_tensor():
    """The kernel may not take them to be disjoint, as it does where they are two tensors."""
    def in_place(x):
        reversed_kernel[(1,)](x, x, x.numel(), BLOCK=1024)
        return x

    def shifted(x):
        rows_kernel[(x.shape[0] // x.shape[1],)](x[1:], x, 1, x.shape[1], x.shape[1], BLOCK=64)
        return x

    mine = Op("reversed", in_place, lambda x: x.flip(0), (Case(((50,),)),))
    b = bundle.make([(mine, mine.cases[0], "fp32")], targets.get(HERE), cases=False)
    for n in (1, 2, 50, 777):
        x = torch.randn(n)
        (y,), _ = runner.get("local").call(b, "triport_reversed_fp32", [x])
        assert torch.equal(y, x.flip(0)), n
    mine = Op("shifted", shifted, lambda x: x, (Case(((6, 3),)),))
    b = bundle.make([(mine, mine.cases[0], "fp32")], targets.get(HERE), cases=False)
    x = torch.randn(7, 3)
    (y,), _ = runner.get("local").call(b, "triport_shifted_fp32", [x])
    want = x.clone()
    for row in range(2):
        want[row] = want[row + 1] + 1
    assert torch.equal(y, want)
    with pytest.raises(Error, match="TRIPORT_BAD_SIZE"):  # a division by 0
        runner.get("local").call(b, "triport_shifted_fp32", [torch.zeros(7, 0)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_expressions(data):
    """Against sympy: sums, products, divisions that round down, remainders, extremes."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod

    x, y = sympy.Symbol("x", integer=True), sympy.Symbol("y", integer=True)
    leaves = st.one_of(st.just(x), st.just(y), st.integers(-9, 9).map(sympy.Integer))

    def build(inner):
        pair = st.tuples(inner, inner)
        return st.one_of(pair.map(lambda p: p[0] + p[1]), pair.map(lambda p: p[0] * p[1]), pair.map(lambda p: Max(*p)), pair.map(lambda p: Min(*p)),
                         st.tuples(inner, st.sampled_from([-7, -2, 3, 64])).map(lambda p: FloorDiv(p[0], sympy.Integer(p[1]))),
                         st.tuples(inner, st.sampled_from([2, 5, 16])).map(lambda p: PythonMod(p[0], sympy.Integer(p[1]))))

    e = data.draw(st.recursive(leaves, build, max_leaves=6))
    values = {x: data.draw(st.integers(-1000, 1000)), y: data.draw(st.integers(-1000, 1000))}
    row = targets.native()
    m = ir.Module("sizes", row.triple)
    b = ir.define(m, "f", "i64", x="i64", y="i64")
    b.ret(expressions.Emitter(dict(zip((x, y), b.fn.args)), b).value(sympy.sympify(e)))
    from triport.backends.cpu.run import launch
    address = launch.load_object(llvm.emit_object(m.render(), row), ["f"])["f"]
    got = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)(values[x], values[y])
    assert got == int(sympy.sympify(e).subs(values)), (e, values)


def test_a_bundle_takes_the_threads_that_a_launch_takes():
    """Its C functions decide by the same costs, where sharing just pays as well."""
    from triport.backends.cpu.run import launch, pool

    row = targets.native()
    m = ir.Module("team", row.triple)
    glue.team(m)
    address = launch.load_object(llvm.emit_object(generator.in_registers(m.render()), row), ["tp_team"])["tp_team"]
    team = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(address)
    rng = random.Random(7)
    for threads in (1, 2, 3, 7, 16, 64, 256):
        pays = round(threads * launch.OPERATIONS * (launch.meeting(threads)) / max(threads - 1, 1))
        for total in (1, pays - 1, pays, pays + 1, 2 * pays, 50 * pays, *(rng.randrange(1, 1 << 30) for _ in range(20))):
            for programs, work in ((1, total), (total, 1), (total, 0)):
                assert team(programs, work, threads) == launch.team_of(programs, work, threads) & (pool.SHORT | 0xFFFFFFFF), (programs, work, threads)


def test_a_bundle_counts_the_work_that_a_launch_counts():
    """What loops that end at arguments do, also of negative ends; a bundle says at most so much that no product with it is too large."""
    from triport.backends.cpu.run import launch

    known = SimpleNamespace(work=40, loops=[(3, [(0, 63, 64)]), (7, [(1, -5, 1), (0, 0, 128)]), (1 << 40, [(1, 0, 9)])], arguments=["i32", "i64"])
    row = targets.native()
    m = ir.Module("work", row.triple)
    b = ir.define(m, "f", "i64", x="i64", y="i64")
    b.ret(glue.work(b, known, list(b.fn.args)))
    m_of = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    counted = m_of(launch.load_object(llvm.emit_object(generator.in_registers(m.render()), row), ["f"])["f"])
    text = launch.worked(vars(known), ["x", "y"])
    for x, y in ((0, 0), (1000, 6), (-7, 6), (2**31 - 1, 5), (640, -2**60), (640, 8), (2**31 - 1, 2**62)):
        want = eval(text, {"x": x, "y": y})  # noqa: S307  (what a launch evaluates)
        assert counted(x & 0xFFFFFFFF, y) == min(want, glue.MOST_WORK), (x, y)  # of a word only the low half is an i32


# --- bundles on disk ---------------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(made, tmp_path):
    made.write(tmp_path)
    again = bundle.load(tmp_path)
    assert again.digest == made.digest and again.files == made.files
    assert os.access(tmp_path / made.name, os.X_OK)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_was_changed_is_refused(made, tmp_path, data):
    """Any byte of any file, or its end."""
    folder = tmp_path / "b"
    made.write(folder)
    name = data.draw(st.sampled_from(sorted(made.files)))
    content = bytearray(made.files[name])
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    (folder / name).write_bytes(content)
    with pytest.raises(Error, match="changed or cut short"):
        bundle.load(folder)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_manifests_that_are_none(made, tmp_path, data):
    folder = tmp_path / "m"
    made.write(folder)
    good = json.loads((folder / "manifest.json").read_text())
    path = data.draw(st.sampled_from(["schema", "files", "functions", "cases", "program", "library", "header", "target"]))
    bad = [None, 7, "x", "../x", {}, [1], {"../../etc/passwd": "0" * 64}, {"ops": "zz"}, [{"name": 3}], *([] if path == "cases" else [[]])]
    good[path] = data.draw(st.sampled_from(bad))
    (folder / "manifest.json").write_text(json.dumps(good))
    with pytest.raises(Error):
        bundle.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"schema": 99}'])
def test_manifests_that_are_no_json_of_ours(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(Error, match="no manifest of a bundle"):
        bundle.load(tmp_path)


def test_no_bundle(tmp_path):
    with pytest.raises(Error, match="cannot be read"):
        bundle.load(tmp_path / "nowhere")


# --- runners -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,message", [
    ("qemu:sparc", "unknown emulated machine 'sparc'"), ("qemu:riscv64?vlen=100", "it takes 128, 256, 512 or 1024"), ("qemu:riscv64?vln=256", "did you mean 'vlen'"),
    ("qemu:aarch64?vlen=128", "RISC-V's vector registers"), ("qemu:riscv64?zvfh=no", "it takes true or false"), ("ssh:", "is no host"), ("ssh:-oProxyCommand=evil", "is no host"), ("ssh:a b", "is no host"),
    ("ssh:x;reboot", "is no host"), ("qem:riscv64", "did you mean 'qemu'"), ("", "unknown runner")])
def test_runners_that_are_none(text, message):
    with pytest.raises(Error, match=message):
        runner.get(text)


@pytest.fixture
def fake_program(made, monkeypatch):
    """A runner whose program is a script."""
    def make(script: str):
        class Fake(runner.Runner):
            name = "fake"

            def arch(self):
                return platform.machine()

            def command(self, bundle_, arguments):
                return [sys.executable, "-c", script]

        return Fake()

    return make


HEAD = f"import sys, struct; data = sys.stdin.buffer.read(); M = {request.MAGIC}\n"


@pytest.mark.parametrize("script,message", [
    ("import os; os.kill(os.getpid(), 11)", "died of signal SIGSEGV"), ("import sys; print('out of paper', file=sys.stderr); sys.exit(3)", "ended with exit code 3: out of paper"),
    ("pass", "answered 0 bytes"), ("print('hello ' * 99)", "does not begin as an answer"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 0, 0, 1, 1, 5, 0, 0) + bytes(35))", "has 107 bytes"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 0, 0, 1, 1, 5, 10**15, 0) + bytes(36))", "times"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 0, 0, 1, 0, 5, 0, 0) + bytes(36))", "memory before a tensor was written"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 2, 0, 0, 1, 1, 5, 0, 0))", "is truncated"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 0, 0, 1, 1, -5, 0, 0) + bytes(36))", "below zero"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 1, 0, 1, 1, 5, 0, 0) + bytes(36))", "TRIPORT_NO_MEMORY"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 1, 0, 1, 1, 5, 0, 5) + b'alas!' + bytes(36))", r"TRIPORT_NO_MEMORY \(1\): alas!"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 0, 0, 1, 1, 5, 0, 5) + b'alas!' + bytes(36))", "has 113 bytes"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 1, 0, 1, 1, 5, 0, -1) + bytes(36))", "has 108 bytes"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 1, 0, 1, 1, 5, 0, 10**15) + bytes(36))", "has 108 bytes"),
    (HEAD + "sys.stdout.buffer.write(struct.pack('<9q', M, 0, 77, 0, 1, 1, 5, 0, 0) + bytes(36))", "an unknown status")])
def test_programs_that_misbehave(made, fake_program, script, message):
    with pytest.raises(Error, match=message):
        fake_program(script).call(made, "triport_square_fp32", [torch.ones(3, 3)])


def test_a_program_that_hangs_is_ended(made, fake_program, tmp_path):
    """With all that it started."""
    mark = tmp_path / "pid"
    script = f"import subprocess, time; p = subprocess.Popen(['sleep', '100000']); open({str(mark)!r}, 'w').write(f'{{p.pid}}.'); time.sleep(100000)"
    limit = 1
    while not mark.exists() or not mark.read_text().endswith("."):  # until it has come to hang
        with pytest.raises(Error, match=f"did not end within {limit} seconds"):
            fake_program(script).call(made, "triport_square_fp32", [torch.ones(3, 3)], limit=limit)
        limit *= 4
    def runs() -> bool:
        try:
            return Path("/proc", mark.read_text()[:-1], "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    end = time.monotonic() + HANGS
    while runs() and time.monotonic() < end:
        time.sleep(0.01)
    assert not runs()


def test_tensors_that_a_function_does_not_take(made):
    local = runner.get("local")
    for tensors, message in (([torch.ones(3)], "of 1 dimensions"), ([torch.ones(3, 3).double()], "is fp64"), ([], "takes 1 tensors")):
        with pytest.raises(Error, match=message):
            local.call(made, "triport_square_fp32", tensors)
    with pytest.raises(Error, match="a_size1 is 4 already"):
        local.call(made, "triport_matmul_softmax_fp32_dim_0", [torch.ones(3, 4), torch.ones(5, 6)])
    with pytest.raises(Error, match="has no function 'nothing'"):
        local.call(made, "nothing", [])


@pytest.mark.parametrize("said,message", [("QEMU emulator version 7.2.11", "lacks instructions"), ("", "silent about its version")])
def test_an_old_emulator(monkeypatch, tmp_path, said, message):
    program = tmp_path / "qemu-riscv64"
    program.write_text(f"#!/bin/sh\necho '{said}'\n" if said else "#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("TRIPORT_QEMU", str(tmp_path))
    runner.emulator.cache_clear()
    try:
        with pytest.raises(Unavailable, match=message):
            runner.emulator("riscv64")
        monkeypatch.setenv("TRIPORT_QEMU", "/nowhere")
        runner.emulator.cache_clear()
        with pytest.raises(Unavailable, match="was not found; it comes with qemu-user 10"):
            runner.emulator("riscv64")
    finally:
        runner.emulator.cache_clear()


def test_no_linker(monkeypatch):
    monkeypatch.setattr(link, "linkers", lambda arch: ())
    with pytest.raises(Unavailable, match="pip install triton.*apt-get install lld"):
        link.linker("riscv64")
    with pytest.raises(Unavailable, match="linker 'gold'"):
        link.linker("riscv64", "gold")


def test_a_bundle_takes_two_linker_processes_at_most(monkeypatch, tmp_cache):
    """One of the Triton wheel's; of any other linker one for the library and one for the program, once the empty C libraries are kept."""
    started = []
    real = subprocess.run
    monkeypatch.setattr(link.subprocess, "run", lambda command, **given_: started.append(command) or real(command, **given_))
    op = registry.get("square")

    def count(by: str) -> int:
        started.clear()
        bundle.make([(op, op.cases[0], "fp32")], targets.get(HERE), cases=False, by=by)
        return len(started)

    assert link.linkers(platform.machine()), "no linker here"
    for one in link.linkers(platform.machine()):
        first, second = count(one.name), count(one.name)
        assert (first, second) == ((1, 1) if one.name == "triton" else (4, 2)), one.name


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An `ssh` that runs the command here, with a home of its own; `log` has every argument vector."""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "ssh").write_text(textwrap.dedent(f"""\
        #!{sys.executable}
        import json, os, sys
        with open({str(log)!r}, "a") as f:
            f.write(json.dumps(sys.argv[1:]) + "\\n")
        at = sys.argv.index("--")
        if sys.argv[at + 1] == "gone":
            sys.exit("ssh: connect to host gone: No route to host")
        os.environ["HOME"] = {str(home)!r}
        os.execvp("sh", ["sh", "-c", sys.argv[at + 2]])
        """))
    (bin_ / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    runner.get.cache_clear()
    yield home, log
    runner.get.cache_clear()


def test_a_board_over_ssh(made, fake_ssh):
    """A bundle goes there once, is believed when it is whole, and is sent again where it is not."""
    home, log = fake_ssh
    board = runner.get("ssh:me@board")
    x = torch.randn(5, 6)
    for _ in range(2):
        (y,), _ = board.call(made, "triport_square_fp32", [x], repetitions=2)
        assert torch.equal(y, x * x)
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum("tar -xf" in c[-1] for c in commands) == 1
    assert all(c[-3:-1] == ["--", "me@board"] and "BatchMode=yes" in c for c in commands)
    (there,) = (home / ".cache" / "triport" / made.digest).iterdir()
    there.write_bytes(there.read_bytes()[:1000])
    runner.get.cache_clear()
    (y,), _ = runner.get("ssh:me@board").call(made, "triport_square_fp32", [x])
    assert torch.equal(y, x * x)
    described = runner.get("ssh:me@board").board
    assert described.arch == platform.machine() and described.cores == len(os.sched_getaffinity(0)) and described.memory > 1 << 20
    with pytest.raises(Error, match="No route to host"):
        runner.get("ssh:gone").call(made, "triport_square_fp32", [x])


# --- the backend and the commands --------------------------------------------------------------------------------------------


def test_the_backend(monkeypatch):
    def nobody():
        if platform.machine() != "riscv64":
            assert "no board is chosen" in backends.get("spine").unavailable()
            with pytest.raises(Unavailable, match="no board is chosen"):
                with backends.use("spine"):
                    pass

    monkeypatch.delenv("TRIPORT_SPINE", raising=False)
    nobody()
    with spine.on("local"):
        assert backends.get("spine").unavailable() is None
        with backends.use("spine"):
            x, y = torch.randn(7, 9), torch.randn(9, 5)
            for got, want in ((ops.square(x), x * x), (ops.softmax(x, 0), torch.softmax(x, 0)), (ops.matmul(x, y), x @ y), (ops.matmul(x, y.T.contiguous().T), x @ y),
                              (ops.matmul_softmax(x, y, -1), torch.softmax(x @ y, -1)), (ops.gelu(x[:, ::2]), torch.nn.functional.gelu(x[:, ::2], approximate="tanh"))):
                torch.testing.assert_close(got, want)
            z = x.clone()
            assert ops.add_mul_act_(z, torch.ones(7, 9), torch.zeros(9)) is z
            torch.testing.assert_close(z, ops.add_mul_act(x, torch.ones(7, 9), torch.zeros(9)))
            x.requires_grad_()
            ops.square(x).sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach())
    nobody()  # that a board was there once is no board
    monkeypatch.setenv("TRIPORT_SPINE", "local")
    assert backends.get("spine").unavailable() is None and "local" in backends.get("spine").target()


def test_export_command(tmp_path, capsys):
    out = tmp_path / "bundle"
    assert main(["export", "softmax", "square", "--target", HERE, "--case", "256x256", "--dtype", "fp32", "--dtype", "int32", "-o", str(out), "--reps", "1"]) == 0
    text = capsys.readouterr().out
    assert "int triport_softmax_fp32(" in text and "int triport_square_int32(" in text and "triport_softmax_int32" not in text
    assert main(["export", "gelu", "--target", HERE, "-o", str(out), "--reps", "1"]) == 0  # over a bundle
    assert bundle.load(out).name == "gelu"
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == sorted([*bundle.load(out).files, "manifest.json"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    for arguments, message in ((["export", "softmax", "--target", "k9", "-o", str(out)], "unknown target"), (["export", "softmx", "--target", HERE, "-o", str(out)], "softmax"),
                               (["export", "softmax", "--target", HERE, "-o", str(tmp_path / "other")], "something else"),
                               (["export", "softmax", "--target", HERE, "--case", "77x", "-o", str(out)], "case '77x'"),
                               (["export", "softmax", "--target", HERE, "--dtype", "int32", "-o", str(out)], "takes fp32"),
                               (["export", "softmax", "--target", HERE, "--name", "../x", "-o", str(out)], "--name"),
                               (["export", "softmax", "--target", HERE, "--reps", "-1", "-o", str(out)], "--reps")):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_targets_of_a_board(tmp_path, capsys):
    """`--on` instead of `--target`."""
    assert main(["export", "square", "--on", "local", "-o", str(tmp_path / "b"), "--reps", "0"]) == 0
    assert bundle.load(tmp_path / "b").manifest["target"]["name"] == runner.get("local").board.row().name
    capsys.readouterr()
    assert main(["asm", "square", "--on", "local", "--case", "128x128"]) == 0
    assert runner.get("local").board.row().name in capsys.readouterr().out
    assert main(["export", "square", "-o", str(tmp_path / "c")]) == 2
    assert "--target NAME or --on RUNNER" in capsys.readouterr().err


def test_a_users_op(tmp_path):
    root = Path(__file__).parent.parent
    assert main(["export", f"{root}/docs/my_op.py:my_op", "--target", HERE, "--case", "1823x781", "-o", str(tmp_path / "b"), "--reps", "0"]) == 0
    b = bundle.load(tmp_path / "b")
    x = torch.randn(11, 13)
    (y,), _ = runner.get("local").call(b, "triport_double_fp32", [x])
    assert torch.equal(y, 2 * x)


def test_bench_and_devices_on_a_board(tmp_path, capsys):
    path = tmp_path / "r.json"
    assert main(["bench", "--on", "local", "--op", "softmax", "--op", "square", "--case", "128x128", "--reps", "3", "--json", str(path), "--target", HERE]) == 0
    data = json.loads(path.read_text())
    assert data["machine"]["board"]["runner"] == "local" and data["machine"]["board"]["target"] == HERE and data["machine"]["board"]["bytes_per_s"] > 0
    assert [(r["op"], r["backend"], r["status"], len(r["rounds_s"])) for r in data["rows"]] == [("softmax", "spine", "ok", 3), ("square", "spine", "ok", 3)]
    assert main(["bench", "--compare", str(path), str(path)]) == 0
    capsys.readouterr()
    assert main(["bench", "--target", HERE, "--op", "square"]) == 2
    assert "--target goes with --on" in capsys.readouterr().err
    assert main(["devices", "--on", "local", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["arch"] == platform.machine() and said["status"] == "ok" and said["cores"] >= 1 and said["bytes_per_s"] > 0
    assert main(["devices", "--on", "local"]) == 0
    assert "GB/s" in capsys.readouterr().out
    assert main(["devices", "--on", "ssh:-x"]) == 2


@pytest.mark.parametrize("argv,message", [
    (["bench", "--op", "softmax", "--case", "77x"], "case '77x'"), (["bench", "--op", "softmax", "--case", "64x64", "--sweep", "Q=1,2"], "Q"), (["bench", "--op", "softmax", "--dtype", "int32"], "nothing to run"),
    (["export", "softmax", "-o", "DIR", "--case", "77x"], "case '77x'"), (["export", "softmax", "-o", "DIR", "--dtype", "int32"], "takes fp32"),
    (["export", "softmax", "-o", "DIR", "--classes", "3"], "--classes 3"),
    (["asm", "softmax", "--case", "77x"], "case '77x'"), (["asm", "softmax", "--dtype", "int32"], "takes fp32"), (["asm", f"{Path(__file__).parent.parent}/docs/my_op.py:my_op", "--case", "77q"], "case '77q'"),
    (["tune", "--op", "square", "--case", "77x"], "case '77x'"), (["tune", "--op", "matmul", "--case", "64x64"], "do not go with matmul"),
    (["tune", "--op", "gelu", "--dtype", "int32"], "takes fp32")])
def test_what_is_wrong_is_said_before_the_board_is_asked(argv, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(runner.Runner, "execute", lambda *a, **k: pytest.fail("the board was asked"))
    monkeypatch.setattr(runner.process, "run", lambda *a, **k: pytest.fail("the board was asked"))
    runner.get.cache_clear()
    assert main([*(str(tmp_path / "b") if x == "DIR" else x for x in argv), "--on", "ssh:nobody"]) == 2
    assert message in capsys.readouterr().err


def test_a_bundle_for_another_machine_is_refused(tmp_path, monkeypatch, capsys):
    """By its name, before anything is run."""
    monkeypatch.setattr(runner.process, "run", lambda *a, **k: pytest.fail("it was started"))
    other = "spacemit-x60" if platform.machine() != "riscv64" else "x86-64-v3"
    made = bundle.make([(registry.get("square"), Case(((17, 23),)), "fp32")], targets.get(other), repetitions=1)
    made.write(tmp_path / "b")
    assert main(["bench", "--on", "local", "--bundle", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert f"is code for {other} (" in said and f"local is a machine of {platform.machine()}" in said and "triport export ... --on local" in said


def test_an_exported_bundle_on_a_board(made, tmp_path, capsys, monkeypatch):
    """From its folder; refused where a file is not what the manifest says; a case that fails costs its line alone."""
    monkeypatch.delenv("TRIPORT_SPINE", raising=False)
    made.write(tmp_path / "b")
    assert main(["bench", "--on", "local", "--bundle", str(tmp_path / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(made.manifest["cases"]) and all(": right, error " in x and ", median " in x for x in lines), lines
    plain = runner.Local.command
    calls = []
    monkeypatch.setattr(runner.Local, "command", lambda self, b, a: calls.append(1) or (["false"] if len(calls) == 1 else plain(self, b, a)))
    assert main(["bench", "--on", "local", "--bundle", str(tmp_path / "b")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "failed: " in lines[0] and all(": right" in x for x in lines[1:])
    if platform.machine() != "riscv64":
        assert main(["bench", "--bundle", str(tmp_path / "b")]) == 2
        assert "say --on" in capsys.readouterr().err
    with open(tmp_path / "b" / made.manifest["program"], "r+b") as f:
        f.truncate(5000)
    assert main(["bench", "--on", "local", "--bundle", str(tmp_path / "b")]) == 2
    assert "changed or cut short" in capsys.readouterr().err


def test_calls_of_one_kind_are_compiled_once(monkeypatch):
    made_ = []
    plain = bundle.make

    def make(wanted, *a, **k):
        if wanted[0][0].name == "square":  # the board itself may be measured first, with a copy
            made_.append(wanted[0][1].shapes)
        return plain(wanted, *a, **k)

    monkeypatch.setattr(bundle, "make", make)
    with bundle.fresh(), spine.on("local"), backends.use("spine"):
        for n in (33, 40, 64, 65):
            x = torch.randn(n, 9)
            assert torch.equal(ops.square(x), x * x)
    assert made_ == [((33, 9),), ((65, 9),)]


def test_a_failing_board_loses_no_row(tmp_path, monkeypatch):
    """A program that dies costs its row alone."""
    calls = []
    plain = runner.Local.command

    def command(self, b, arguments):
        calls.append(b.name)
        return ["false"] if b.name == "softmax" else plain(self, b, arguments)

    monkeypatch.setattr(runner.Local, "command", command)
    path = tmp_path / "r.json"
    assert main(["bench", "--on", "local", "--op", "square", "--op", "softmax", "--op", "gelu", "--case", "128x128", "--reps", "2", "--json", str(path)]) == 1
    rows = json.loads(path.read_text())["rows"]
    assert [r["status"] for r in rows] == ["ok", "failed", "ok"] and "exit code 1" in rows[1]["reason"]


def test_boards_in_words():
    """A K1 and a K3's two kinds of cores, from what Linux says there, and nonsense."""
    def described(uarch: str, vlen: int, cpus: int = 8) -> bytes:
        info = f"processor\t: 0\nisa\t\t: rv64imafdcv_zicbom\nuarch\t\t: {uarch}\n".encode()
        out = f"target rv64gcv\nvlen {vlen}\ncpus {cpus}\nhwcap 20112d\nfits 1\n".encode() + b"file /proc/cpuinfo %d\n" % len(info) + info
        for k in range(cpus):
            text = b"0-3\n" if k < 4 else b"4-7\n"
            out += b"file /sys/devices/system/cpu/cpu%d/cache/index2/shared_cpu_list %d\n" % (k, len(text)) + text
        return out + b"file /proc/meminfo 27\nMemTotal:       3948548 kB\n"

    k1 = probe.read("ssh:k1", "riscv64", described("spacemit,x60", 256))
    assert (k1.cpu, k1.vlen, k1.cores, k1.clusters, k1.memory) == ("spacemit,x60", 256, 8, ["0-3", "4-7"], 3948548 * 1024)
    assert k1.row().name == "spacemit-x60"
    for uarch, vlen, row in (("spacemit,x100", 256, "spacemit-k3-x100"), ("spacemit,a100", 1024, "spacemit-k3-a100"), ("sifive,x280", 512, "rv64gcv:vlen512"),
                             ("thead,c908", 128, "rv64gcv"), ("sifive,u74", 0, "rv64gc")):
        assert probe.read("b", "riscv64", described(uarch, vlen)).row().name == row
    for junk in (b"", b"hello\n", b"vlen x\ncpus 1\n", b"vlen 256\n", b"\xff\xfe\n", b"file /x 99999\nabc"):
        with pytest.raises(Error, match="did not describe itself"):
            probe.read("b", "riscv64", junk)


def test_dtypes_that_requests_know():
    for name in registry.NAMES:
        assert set(registry.get(name).dtypes) <= set(request.CODES)
    assert all(DTYPES[d].itemsize == request.WIDTHS[d] for d in request.CODES if d in DTYPES)
