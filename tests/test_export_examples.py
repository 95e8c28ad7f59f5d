"""What examples say, which classes of sizes they make, and what users are told of functions that cannot be exported."""

import ctypes
import inspect
import platform
import random
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.base import Error, Unsupported
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, classes, ctext, example, runner, user
from triport.bench import check
from triport.ops import Case, Op, registry
from triport.tools.__main__ import main

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]
ROW = targets.get(HERE)
FILE = Path(__file__).name


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@triton.jit
def printing_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    tl.device_print("x is", x)
    tl.store(out_ptr, x)


@triton.jit
def open_kernel(x_ptr, out_ptr, n):
    offs = tl.arange(0, n)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def strange(x):
    return x.nonsense(3)


@triton.jit
def strange_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, strange(tl.load(x_ptr)))


def launched(x, block: int = 64):
    out = torch.empty_like(x)
    twice_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), BLOCK=block)
    return out


def made(function, *examples: str, cases: bool = False, **how) -> bundle.Bundle:
    calls = user.calls(function, Path(__file__), inspect.getmodule(function), list(examples) or ["x=fp32[300]"])
    return bundle.make(calls, ROW, cases=cases, **how)


def programs(function, *examples: str):
    return classes.programs(user.calls(function, Path(__file__), inspect.getmodule(function), list(examples)), ROW)[0]


def run(b: bundle.Bundle, *values) -> torch.Tensor:
    return runner.get("local").call(b, b.manifest["functions"][0]["name"], list(values))[0][0]


# --- examples ------------------------------------------------------------------------------------------------------------------


def many(x, labels, w=None, eps=1e-5, kind="mean", flag=False):
    pass


def test_what_an_example_says():
    got = example.parse(many, "x=fp32[300, 77;ld=80], labels=i64[300]<77, w=torch.bfloat16[4x5]t, eps=1, flag=True", "here")
    assert [str(a) for a in got] == ["x=fp32[300,77;ld=80]", "labels=int64[300]<77", "w=bf16[4,5]t", "eps=1", "kind='mean'", "flag=True"]
    assert [a.kind for a in got] == ["tensor", "tensor", "tensor", "int", "constant", "bool"]
    x, labels, w, *_ = (a.make(torch.Generator()) for a in got)
    assert x.stride() == (80, 1) and x.shape == (300, 77) and 0 <= labels.min() and labels.max() < 77 and w.stride() == (1, 4)
    again = example.of_values(many, {"x": x, "labels": labels, "w": w, "eps": 0.5}, "here")
    assert [str(a) for a in again] == ["x=fp32[300,77;ld=80]", "labels=int64[300]", "w=bf16[4,5]t", "eps=0.5", "kind='mean'", "flag=False"]


@pytest.mark.parametrize("text,message", [
    ("x", "'x' is no argument"), ("x=fp33[3]", "did you mean 'fp32'"), ("x=fp32[3", "neither a tensor"), ("x=fp32[a]", "they are numbers"), ("x=fp32[-3]", "they are numbers"),
    ("x=int8[3]<500", "an integer type that holds it"), ("x=fp32[3]<5", "an integer type"), ("x=fp32[3]t", "has 1 dimensions"), ("x=fp32[3,4;ld=2]", "cannot lie 2 apart"),
    ("x=fp32[3,4;st=9]", "it takes ;ld=N"), ("x=fp32[3],x=fp32[4]", "there twice"), ("y=fp32[3]", "unknown parameter 'y'"), ("x=fp32[3]", "does not say labels"),
    ("x=3, labels=4", "none of many's arguments is a tensor"), ("x=fp32[3], labels=99999999999999999999", "does not fit 64 bits"), ("", "does not say x")])
def test_examples_that_are_none(text, message):
    with pytest.raises(Error, match=message):
        example.parse(many, text, "--example of many")


# --- classes -------------------------------------------------------------------------------------------------------------------


def branching(x):
    return launched(x, 64) if x.numel() < 1000 else launched(x, 256)


def looping(x):
    block = 1
    while block < x.numel():
        block *= 2
    return launched(x, block)


def counting(x):
    return launched(x, 1 << (x.numel() - 1).bit_length())


def even(x):
    assert x.numel() % 2 == 0
    return launched(x)


def pinned(x, block):
    return launched(x, block)


def test_a_branch_has_both_classes():
    b = made(branching)
    assert b.manifest["functions"][0]["classes"] == ["x_size0 < 1000", "x_size0 >= 1000"]
    for n in (1, 999, 1000, 1001):
        x = torch.randn(n)
        assert torch.equal(run(b, x), 2 * x)


@pytest.mark.parametrize("function", [looping, counting])
def test_powers_of_two_however_they_are_found(function):
    found = {ctext.c(e) for p in programs(function, "x=fp32[300]") for e in p.conditions}
    assert {"x_size0 > 128", "x_size0 <= 256", "x_size0 > 256", "x_size0 <= 512", "x_size0 > 512"} <= found, found


def alone(x):
    return launched(x, 16) if x.shape[0] == 1 else launched(x)


def test_a_size_of_1_has_its_class():
    """torch takes it that no size is 1, and would never ask."""
    assert made(alone).manifest["functions"][0]["classes"] == ["x_size0 != 1", "x_size0 == 1"]


@triton.jit
def exact_kernel(out_ptr, n, factor: tl.float64, seed: tl.int64, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(out_ptr + offs, mask=offs < n) * factor + (seed >> 40).to(tl.float64), mask=offs < n)


def exact(x, factor, seed):
    out = torch.full_like(x, 0.1)
    exact_kernel[(triton.cdiv(x.numel(), 64),)](out, x.numel(), factor, seed, BLOCK=64)
    return out


def test_numbers_of_64_bits():
    """Where a kernel says so; fills of fp64 always."""
    got = run(made(exact, "x=fp64[30], factor=0.5, seed=7"), torch.zeros(5, dtype=torch.float64), 0.3, 3 << 40)
    assert torch.equal(got, torch.full((5,), 0.1 * 0.3 + 3, dtype=torch.float64))


def test_what_a_function_asserts_is_a_condition():
    b = made(even)
    f = b.manifest["functions"][0]
    assert f["conditions"] == ["x_size0 % 2 == 0"] and not f["classes"]
    line = inspect.getsourcelines(even)[1] + 1
    assert f"condition: x_size0 % 2 == 0 ({FILE}:{line}); otherwise TRIPORT_BAD_SHAPE" in b.files["even.h"].decode()
    with pytest.raises(Error, match="TRIPORT_BAD_SHAPE.*x_size0 % 2 == 0"):
        run(b, torch.ones(3))


def test_a_number_that_a_kernel_is_compiled_for():
    """It is fixed, to the examples' values."""
    b = made(pinned, "x=fp32[300], block=64", "x=fp32[300], block=128")
    f = b.manifest["functions"][0]
    assert f["classes"] == ["block == 64", "block == 128"] and "int64_t block" in f["declaration"]
    x = torch.randn(333)
    assert torch.equal(run(b, x, 128), 2 * x) and torch.equal(run(b, x, 64), 2 * x)
    with pytest.raises(Error, match="TRIPORT_BAD_SHAPE.*none of its 2 classes"):
        run(b, x, 32)


def test_classes_that_are_asked_for():
    def tutorial(x):
        return launched(x, triton.next_power_of_2(x.numel()))

    found = {c for c in made(tutorial, "x=fp32[100]", within=(64, 256)).manifest["functions"][0]["classes"]}
    assert found == {f"x_size0 > {p // 2} && x_size0 <= {p}" for p in (64, 128, 256)}


def half(x, table):
    assert x.numel() % 2 == 0 and table.shape[0] == x.numel() // 2
    return launched(x, triton.next_power_of_2(x.numel() // 2))


def half_of_a_table(x, table):
    n = table.shape[0]
    assert x.numel() // 2 == n and x.numel() % 2 == 0
    return launched(x, triton.next_power_of_2(n))


def double_of_a_table(x, table):
    assert x.shape[0] == 2 * table.shape[0]
    return launched(x, triton.next_power_of_2(table.shape[0]))


@pytest.mark.parametrize("function", [half, half_of_a_table, double_of_a_table])
def test_sizes_that_are_tied_to_others_have_classes(function):
    """Where one size changes, so do those that the function asserts to fit."""
    calls = user.calls(function, Path(__file__), inspect.getmodule(function), ["x=fp32[64], table=fp32[32]"])
    found, _ = classes.programs(calls, ROW, (16, 64))
    for n in (9, 16, 17, 32, 33, 64):
        fits = [p for p in found if classes._holds(p, {q.name: 2 * n if q.name == "x_size0" else n for q in p.parameters})]
        assert len(fits) == 1 and fits[0].launches[0].consts["BLOCK"] == triton.next_power_of_2(n), (n, [p.conditions for p in found])


def test_expressions_in_c():
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod
    a, b = sympy.symbols("a b", integer=True)
    for e, text in ((sympy.Eq(Mod(a, 2), 0), "a % 2 == 0"), (FloorDiv(a + 63, 64) * b, "(a + 63)/64*b"), (sympy.Max(a, b), "(a > b ? a : b)"), (a - b, "a - b"),
                    (sympy.And(a > 1, b < 2), "a > 1 && b < 2"), (sympy.Not(sympy.Eq(a, b)), "a != b"), (a**2, "a*a"), (10 * Mod(a, 7), "10*(a % 7)"), (FloorDiv(a, 3) ** 2, "(a/3)*(a/3)")):
        assert sorted(ctext.c(e, {a, b})) == sorted(text), ctext.c(e, {a, b})
    assert ctext.value("(a + 63)/64*b", {"a": 65, "b": 3}) == 6 and ctext.value("-7/2 + -7 % 2 + (1 < 2 ? 10 : 1/1)", {}) == -3 - 1 + 10
    for text in ("__import__('os')", "a +", "(a", "a b", "1.5", "a/0", "a ? 1", "", "2a", "a.b", "(" * 3000 + "a" + ")" * 3000, "1 << 100"):
        with pytest.raises(ValueError):
            ctext.value(text, {"a": 1, "b": 2})


def expressions(rng, depth: int):
    """A whole-number expression in sizes a, b and a number k, at random: what functions compute sizes by."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod
    a, b, k = sympy.symbols("a b k", integer=True)
    if not depth or rng.random() < 0.15:
        return rng.choice([a, b, k, *map(sympy.Integer, (1, 2, 3, 7, 16, -1, -16))])
    x, y, by = expressions(rng, depth - 1), expressions(rng, depth - 1), sympy.Integer(rng.choice((2, 3, 7, 16, -3)))
    return rng.choice([lambda: x + y, lambda: x - y, lambda: x * y, lambda: FloorDiv(x, by), lambda: PythonMod(x, by), lambda: Max(x, y), lambda: Min(x, y), lambda: -x, lambda: x**2,
                       lambda: sympy.Abs(x), lambda: FloorDiv(x, k), lambda: -FloorDiv(-x, by) * by,
                       lambda: x * PythonMod(a + b, abs(by)), lambda: FloorDiv(a + 1, abs(by)) * y * FloorDiv(b, 3), lambda: FloorDiv(a, 3)**2, lambda: PythonMod(b * b, 7)**2 - x])()


def test_sizes_in_c_are_python_s(tmp_path, seed):
    """What headers say of sizes, computed by a C compiler and by `ctext.value`, is what Python computes: divisions round down, whatever is negative."""
    import sympy
    rng = random.Random(seed)
    names = sympy.symbols("a b k", integer=True)
    places = [(0, 1, 1), (5, 3, -2), (6, 130, 7), (100, 0, -7), (17, 16, 2)]
    wanted, lines = [], []
    while len(wanted) < 1000:
        e = expressions(rng, rng.randint(1, 4))
        at = dict(zip(names, rng.choice(places)))
        try:
            value = e.xreplace({s: sympy.Integer(v) for s, v in at.items()})
        except (ZeroDivisionError, ValueError, TypeError, AssertionError):
            continue  # a divisor is 0: the function says so
        if not value.is_Integer or abs(value) >= 1 << 40:
            continue
        text = ctext.c(e, set(names[:2]))
        try:
            got = ctext.value(text, {s.name: v for s, v in at.items()})
        except ValueError:  # of the side that is not chosen
            continue
        assert got == value, (text, at, e)
        wanted.append(int(value))
        lines.append("{ long a = %d, b = %d, k = %d; (void)a; (void)b; (void)k; printf(\"%%ld\\n\", (long)(%s)); }" % (*at.values(), text))
    if shutil.which("g++") is None:
        pytest.skip("no g++, which computes what headers say")
    (tmp_path / "sizes.cpp").write_text("#include <stdio.h>\nint main() {\n" + "\n".join(lines) + "\n}\n")
    subprocess.run(["g++", "-w", "-O0", "-o", tmp_path / "sizes", tmp_path / "sizes.cpp"], check=True)
    assert list(map(int, subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout.split())) == wanted


@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, scale: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs) * scale)
    else:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * scale, mask=offs < n)


def scaled(x, out, scale):
    n = x.shape[0]
    scaled_kernel[(triton.cdiv(n, 64),)](x, out, n, scale, EVEN=n % 64 == 0, BLOCK=64)
    return out


def whole_blocks(x):
    return scaled(x, torch.empty_like(x), 2)


def of_kind(x, kind: int):
    if kind == 0:
        return scaled(x, torch.empty_like(x), 2)
    if kind == 7:
        return scaled(x, torch.empty_like(x), 3)
    return scaled(x, torch.empty_like(x), 4)


def a_number(x, kind: int):
    return scaled(x, torch.empty_like(x), int(kind) + 1)


def a_quotient(x, kind: int):
    n = x.shape[0]
    out = torch.empty(n // (kind + 1))
    scaled_kernel[(triton.cdiv(out.shape[0], 64),)](x, out, out.shape[0], 2, EVEN=False, BLOCK=64)
    return out


def at_most_fifty(x):
    n = x.shape[0]
    return scaled(x[:min(n, 50)], torch.empty(min(n, 50)), 2)


def classes_of(function, example: str):
    return classes.programs(user.calls(function, Path(__file__), inspect.getmodule(function), [example]), ROW)


@pytest.mark.parametrize("n", [64, 100])
def test_what_leaves_nothing_over_in_the_example_has_another_class(n):
    found, _ = classes_of(whole_blocks, f"x=fp32[{n}]")
    for size in (1, 63, 64, 65, 128):
        fits = [p for p in found if classes._holds(p, {"x_size0": max(2, size)})]
        assert len(fits) == 1 and fits[0].launches[0].consts["EVEN"] == (size % 64 == 0), (size, [p.conditions for p in found])


@pytest.mark.parametrize("kind", [0, 7, 3])
def test_each_kind_that_is_asked_for_has_a_class(kind):
    found, _ = classes_of(of_kind, f"x=fp32[100], kind={kind}")
    for k, scale in ((0, 2), (7, 3), (3, 4), (-1, 4), (8, 4)):
        fits = [p for p in found if classes._holds(p, {"x_size0": 100, "kind": k})]
        assert len(fits) == 1 and fits[0].launches[0].consts["scale"] == scale, (k, [p.conditions for p in found])


def test_a_number_that_is_asked_for_has_the_example_s_class_alone():
    found, _ = classes_of(a_number, "x=fp32[100], kind=3")
    assert all(p.hints["kind"] == 3 for p in found)


def test_a_divisor_that_may_be_0():
    found, _ = classes_of(a_quotient, "x=fp32[100], kind=3")
    assert all(classes._holds(p, {"x_size0": 100, "kind": 3}) for p in found)


def test_results_of_another_shape_are_another_function():
    found, remarks = classes_of(at_most_fifty, "x=fp32[100]")
    assert found and all(not classes._holds(p, {"x_size0": 20}) for p in found)
    assert any("x_size0" in r and "--example" in r for r in remarks), remarks


def test_a_file_imports_its_neighbour(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "neighbour_of_it.py").write_text("WORD = 'found'\n")
    (tmp_path / "importing_it.py").write_text("from neighbour_of_it import WORD\ndef told(): return WORD\n")
    assert registry.load(tmp_path / "importing_it.py", "told")() == "found"


# --- errors --------------------------------------------------------------------------------------------------------------------


def gpu(x):
    if not x.is_cuda:
        raise AssertionError("only GPUs")


def plus(x):
    return launched(x + 1)


def looks(x):
    return launched(x) if x.max().item() > 0 else x


def no_constexpr(x):
    out = torch.empty_like(x)
    open_kernel[(1,)](x, out, x.numel())
    return out


def not_a_power(x):
    return launched(x, x.numel())


def deep(x):
    strange_kernel[(1,)](x, x)


def no_attribute(x):
    return launched(x, x.shape[0].nothing)


def argument_missing(x):
    twice_kernel[(1,)](x, x, BLOCK=64)


def argument_unknown(x):
    twice_kernel[(1,)](x, x, 3, BLOCK=64, BLCK=3)


def a_list(x):
    twice_kernel[(1,)]([x], x, 3, BLOCK=64)


def a_part(x):
    return launched(x)[1:]


def a_word(x):
    launched(x)
    return "done"


TABLE = torch.arange(10.0)


def of_the_file(x):
    twice_kernel[(1,)](TABLE, x, 10, BLOCK=16)


def of_numbers(x):
    twice_kernel[(1,)](torch.tensor([1.0, 2.0]), x, 2, BLOCK=16)


def seed_within(x):
    torch.randint(0, 10, (1,))
    return launched(x)


@pytest.mark.parametrize("function,line,message", [
    (gpu, 2, "its assertion does not hold for the example (only GPUs)"), (plus, 1, "aten::add.Tensor, and a bundle has kernels alone: compute that in a kernel"),
    (looks, 1, "aten::max"), (no_constexpr, None, "make it a parameter `NAME: tl.constexpr` of the kernel"), (not_a_power, None, "pass triton.next_power_of_2(n)"),
    (deep, None, "has no attribute 'nonsense'"), (no_attribute, 1, "int(...) or float(...) of one fixes it"), (argument_missing, 1, "launched without its argument 'n'"),
    (argument_unknown, 1, "has no argument 'BLCK'"), (a_list, 1, "takes list for 'x_ptr'"), (a_part, 1, "return the whole tensor"), (a_word, 2, "it returns str"),
    (of_the_file, 1, "neither an argument of the function nor allocated by it"), (of_numbers, 1, "take it as an argument of the function"),
    (seed_within, 1, "take the seed as an argument")])
def test_what_users_are_told(function, line, message):
    """The line of theirs, and what to write instead."""
    with pytest.raises(Unsupported) as e:
        made(function)
    lines = {no_constexpr: (open_kernel, "tl.arange(0, n)"), not_a_power: (twice_kernel, "tl.arange"), deep: (strange, "nonsense")}
    if line is None:
        kernel, code = lines[function]
        source, first = inspect.getsourcelines(kernel.fn)
        at = first + next(k for k, text in enumerate(source) if code in text)
    else:
        at = inspect.getsourcelines(function)[1] + line
    assert f"{function.__name__} cannot be exported, {FILE}:{at}" in str(e.value) and message in str(e.value), str(e.value)


# --- the command ---------------------------------------------------------------------------------------------------------------

TEXT = '''
import torch, triton, triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)

def double(x):
    """example: x=fp32[300]"""
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out

def double_reference(x):
    return 2 * x

def half(x):
    return double(x)
'''


def test_the_command(tmp_path, capsys):
    file, out = tmp_path / "mine.py", tmp_path / "b"
    file.write_text(TEXT)
    arguments = ["export", f"{file}:double", "--target", HERE, "-o", str(out), "--reps", "1"]
    assert main(arguments) == 0
    assert "int triport_double_fp32(const float *x, float *out, int64_t x_size0, int threads);" in capsys.readouterr().out
    assert main(["bench", "--on", "local", "--bundle", str(out)]) == 0 and ": right" in capsys.readouterr().out
    assert bundle.load(out).manifest["cases"][0]["expected"] == "float64"
    own = " by what the function gave on another machine, not by float64"
    for call, its_own in (("half(x=fp32[40])", True), ("double(x=fp32[40])", False)):
        assert main(["export", f"{file}:{call.partition('(')[0]}", "--example", call.partition("(")[2][:-1], "--target", HERE, "-o", str(other := tmp_path / f"its own {its_own}"), "--reps", "1"]) == 0
        assert f"on the machine: 'its own {its_own}'/" in capsys.readouterr().err  # a shell takes it
        assert main(["bench", "--on", "local", "--bundle", str(other)]) == 0 and (f": right{own}, error" in capsys.readouterr().out) == its_own
        alone = subprocess.run([other / bundle.load(other).name, *other.glob("cases/*")], capture_output=True, text=True)
        assert alone.returncode == 0 and (f": right{own}, error" in alone.stdout) == its_own
    assert main([*arguments, "--example", "x=fp16[20,30]"]) == 0 and "triport_double_fp16(const uint16_t *x" in capsys.readouterr().out
    for more, message in ((["--case", "300"], "--case goes with ops"), (["--dtype", "fp64"], "--dtype goes with ops"), (["--example", "half(x=fp32[3])"], "unknown function 'half'"),
                          (["--classes", "3..5"], "it takes powers of two")):
        assert main([*arguments, *more]) == 2 and message in capsys.readouterr().err
    for name, message in (("half", "an example call is missing: --example 'x=fp32[300,77]'"), ("kernel", "is a kernel"), ("nothing", "there is no 'nothing' in it; it has kernel, double"),
                          ("tl", "is module")):
        assert main(["export", f"{file}:{name}", "--target", HERE, "-o", str(out)]) == 2 and message in capsys.readouterr().err
    assert main(["export", "square", "--target", HERE, "-o", str(out), "--example", "x=fp32[3]"]) == 2 and "an op takes --case" in capsys.readouterr().err


def test_ops_of_any_case(tmp_path, capsys):
    """Sizes, layouts and types that no case of an op's has; leading dimensions; names that say which is which."""
    out = tmp_path / "b"
    assert main(["export", "softmax", "--target", HERE, "--ld", "--dtype", "fp64", "--case", "30x77", "--case", "3x40x5", "--case", "40x30t", "-o", str(out), "--reps", "1"]) == 0
    said = capsys.readouterr().out
    for name in ("triport_softmax_fp64_2d(const double *x, double *out, int64_t x_size0, int64_t x_size1, int64_t x_ld,", "triport_softmax_fp64_3d(", "triport_softmax_fp64_x_t("):
        assert name in said
    assert main(["bench", "--on", "local", "--bundle", str(out)]) == 0 and capsys.readouterr().out.count(": right") == 3
    b = bundle.load(out)
    for name, x in (("triport_softmax_fp64_2d", torch.randn(9, 13, dtype=torch.float64)[:, :7]), ("triport_softmax_fp64_2d", torch.randn(9, 13, dtype=torch.float64)),
                    ("triport_softmax_fp64_x_t", torch.randn(13, 9, dtype=torch.float64)[:, :7].T)):
        (y,), _ = runner.get("local").call(b, name, [x])
        assert check.error(y, torch.softmax(x, -1)) < 1e-14


def test_a_leading_dimension_that_is_too_small(tmp_path):
    b = bundle.make([(registry.get("matmul"), Case(((8, 9), (9, 7))), "fp32")], ROW, cases=False, leading=True)
    b.write(tmp_path)
    f = getattr(ctypes.CDLL(str(tmp_path / b.manifest["library"])), "triport_matmul_fp32")
    x, out = torch.zeros(100), torch.zeros(100)
    for ld, status in ((9, 0), (8, 3), (-1, 2)):
        assert f(*[ctypes.c_void_p(t.data_ptr()) for t in (x, x, out)], *map(ctypes.c_int64, (8, 9, ld, 7, 7)), 1) == status


def test_names_that_are_none():
    """An op's name is a part of files' and functions' names."""
    mine = Op("x'; touch pwned; echo '/..", launched, lambda x: 2 * x, (Case(((50,),)),))
    b = bundle.make([(mine, mine.cases[0], "fp32")], ROW, cases=False)
    assert b.name == "x_touch_pwned_echo_" and b.manifest["functions"][0]["name"] == "triport_x_touch_pwned_echo__fp32"


def test_what_kernels_print_goes_to_stderr(capfd):
    def prints(x):
        out = torch.empty_like(x)
        printing_kernel[(1,)](x, out)
        return out

    b = made(prints, "x=fp32[1]")
    assert run(b, torch.tensor([1.5])).item() == 1.5
    assert "pid (0, 0, 0) idx () x is: 1.5" in capfd.readouterr().err and "goes to stderr" in b.files["prints.h"].decode()


def test_the_function_of_the_page_is_exported_as_pasted(tmp_path, monkeypatch, seed):
    page = (Path(__file__).parent.parent / "docs" / "export.md").read_text()
    source, command, header = (text for _, text in re.findall(r"```(\w*)\n(.*?)```", page, re.S)[:3])
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(source)
    assert main([*shlex.split(command)[1:], "--target", HERE]) == 0
    assert " ".join(header.split()) in " ".join(Path("bundle/layer_norm.h").read_text().split())
    mine = runpy.run_path("my.py")["layer_norm"]
    g = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(*size, generator=g) for size in ((30, 77), (77,), (77,)))
    y, mean, rstd = mine(x, w, b)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (77,), w, b))
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(rstd, (x.var(1, correction=0) + 1e-5).rsqrt())
