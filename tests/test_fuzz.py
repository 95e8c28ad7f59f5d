"""The generator of random kernels: a minute of it, and its own parts: what numpy says, what occurs, that wrong lowerings are met and
made small, that a kernel which ends or stops its process does not end the run."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import triton
from conftest import SEED
from fuzz import check, evaluate, generate, program, reduce, repro, source
from fuzz.operations import Invalid
from fuzz.program import Assign, Atomic, Buffer, Call, Expr, For, Function, If, Launch, Program, Return, Scalar, Storage, Store, While
from fuzz.nodes import arith, const
from fuzz.worker import Worker
from triport.backends.cpu.emit import rules
from triport.backends.cpu.emit.root import memory
from triport.backends.cpu.plan import control, planner

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9), reason="its kernels are in the language of Triton 3.9")


@pytest.mark.first(0)
def test_a_minute_of_random_kernels(tmp_path):
    """Every kernel has numpy's results. What fails is printed, made small."""
    run = subprocess.run([sys.executable, "-m", "tests.fuzz", "--minutes", "1", "--limit", "600", "--seed", str(SEED), "--out", str(tmp_path)], cwd=ROOT,
                         capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert f"seed {SEED}\n" in run.stdout


# -- what numpy says ---------------------------------------------------------------------------------------------------


def number(value, dtype="int32", shape=()):
    return const(value, dtype, shape)


def var(name, dtype="int32", shape=()):
    return Expr("var", (), dtype, shape, name)


def pointer(name, index=None):
    return Expr("pointer", () if index is None else (index,), "pointer", index.shape if index else (), name)


R4 = Expr("range", (), "int32", (4,), 0)
IN, OUT = [3, -7, 127, -128], [50, 51, 52, 53]


def outcome(monkeypatch, body, dtype="int8", out="int8", grid=(1, 1, 1), scalars=(), values=None, functions=()):
    """What `body` leaves in the first elements of buffer o, which holds OUT; buffer x holds IN."""
    start = {"sx": IN, "so": OUT}

    def filled(dtype, size, seed, span):
        data = np.full(size, 99, program.STORED[dtype])
        first = start["sx" if seed == 0 else "so"]
        data[program.GUARD:program.GUARD + 4] = np.array(first).astype(data.dtype)
        return data

    monkeypatch.setattr(evaluate, "fill", filled)
    p = Program(0, [Storage("sx", dtype, 8, 0), Storage("so", out, 8, 1)], [Buffer("x", "sx", dtype, 0), Buffer("o", "so", out, 0)],
                list(scalars), [Launch(grid, values or {})], body, list(functions))
    got = evaluate.run(p, p.launches[0])["so"].view(program.STORED[out])
    guard = np.array(99).astype(got.dtype)
    assert (got[:program.GUARD] == guard).all() and (got[program.GUARD + 8:] == guard).all()
    return got[program.GUARD:program.GUARD + 4].tolist()


def load(mask=None, other=None, dtype="int8"):
    return Expr("load", (pointer("x", R4),) + ((mask, other) if mask else ()), dtype, (4,), "other" if mask else None)


def less(x, n):
    return Expr("lt", (x, number(n, x.dtype)), "int1", x.shape)


@pytest.mark.parametrize("make, wanted", [
    (lambda x: arith("add", x, number(1, "int8")), [4, -6, -128, -127]),
    (lambda x: arith("mul", x, number(3, "int8")), [9, -21, 125, -128]),
    (lambda x: Expr("div", (x, number(4, "int8")), "int8", (4,)), [0, -1, 31, -32]),
    (lambda x: Expr("rem", (x, number(4, "int8")), "int8", (4,)), [3, -3, 3, 0]),
    (lambda x: Expr("shr", (x, number(1, "int8")), "int8", (4,)), [1, -4, 63, -64]),
    (lambda x: Expr("shl", (x, number(1, "int8")), "int8", (4,)), [6, -14, -2, 0]),
    (lambda x: Expr("abs", (x,), "int8", (4,)), [3, 7, 127, -128]),
    (lambda x: Expr("neg", (x,), "int8", (4,)), [-3, 7, -127, -128]),
    (lambda x: Expr("cumsum", (x,), "int8", (4,), {"axis": 0, "reverse": True}), [-5, -8, -1, -128]),
    (lambda x: Expr("sort", (x,), "int8", (4,), {"descending": True}), [127, 3, -7, -128]),
    (lambda x: Expr("broadcast", (Expr("sum", (x,), "int8", (), {"axis": 0}),), "int8", (4,)), [-5] * 4),
    (lambda x: Expr("broadcast", (Expr("greatest", (x,), "int8", (), {"axis": 0}),), "int8", (4,)), [127] * 4),
    (lambda x: Expr("take", (x, Expr("xor", (R4, number(3)), "int32", (4,))), "int8", (4,), {"axis": 0}), [-128, 127, -7, 3]),
    (lambda x: Expr("where", (less(x, 0), x, number(1, "int8", (4,))), "int8", (4,)), [1, -7, 1, -128]),
])
def test_values(monkeypatch, make, wanted):
    assert outcome(monkeypatch, [Store(pointer("o", R4), make(load()))]) == wanted


@pytest.mark.parametrize("dtype, out, wanted", [("int8", "uint8", [3, 249, 127, 128]), ("int8", "uint64", [3, 2**64 - 7, 127, 2**64 - 128]),
                                                ("int8", "int1", [1, 1, 1, 1]), ("int8", "float16", [3.0, -7.0, 127.0, -128.0])])
def test_casts(monkeypatch, dtype, out, wanted):
    body = [Store(pointer("o", R4), Expr("cast", (load(),), out, (4,)))]
    assert outcome(monkeypatch, body, dtype, out) == wanted


def test_bfloat16(monkeypatch):
    body = [Store(pointer("o", R4), Expr("cast", (load(),), "bfloat16", (4,)))]
    assert outcome(monkeypatch, body, out="bfloat16") == [0x4040, 0xC0E0, 0x42FE, 0xC300]


def test_masks(monkeypatch):
    value = load(less(R4, 2), number(9, "int8"))
    above = Expr("ge", (R4, number(1)), "int1", (4,))
    assert outcome(monkeypatch, [Store(pointer("o", R4), value, above)]) == [50, -7, 9, 9]


def test_carried_values(monkeypatch):
    """x, y = y, x + y three times, from 3 and 1; and a pointer that walks."""
    loop = For("i", number(0), number(3), 1, [Assign(("x", "y"), (var("y"), arith("add", var("x"), var("y"))))])
    body = [Assign(("x", "y"), (number(3), number(1))), loop,
            Store(pointer("o"), Expr("cast", (var("x"),), "int8")), Store(pointer("o", number(1)), Expr("cast", (var("y"),), "int8"))]
    assert outcome(monkeypatch, body) == [5, 9, 52, 53]
    q = Expr("var", (), "pointer", (), "q")
    body = [Assign(("q",), (pointer("o"),)), For("i", number(3), number(0), -1, [
        Store(q, Expr("cast", (var("i"),), "int8")), Assign(("q",), (Expr("advance", (q, number(1)), "pointer"),))])]
    assert outcome(monkeypatch, body) == [3, 2, 1, 53]


@pytest.mark.parametrize("n, wanted", [(0, [50, 51, 52, 53]), (1, [7, 51, 52, 53]), (2, [8, 51, 52, 53]), (3, [50, 51, 52, 4])])
def test_branches_and_returns(monkeypatch, n, wanted):
    arg = Expr("argument", (), "int32", (), "n")
    equal = lambda k: Expr("eq", (arg, number(k)), "int1")  # noqa: E731
    put = lambda v: [Store(pointer("o"), number(v, "int8"))]  # noqa: E731
    body = [Return(equal(0)), If(equal(1), put(7), [If(equal(2), put(8), [])]), Return(less(arg, 3)),
            While("k", number(4), None, [Store(pointer("o", number(3)), Expr("cast", (arith("add", var("k"), number(1)),), "int8"))])]
    assert outcome(monkeypatch, body, scalars=[Scalar("n", "int32")], values={"n": n}) == wanted


def test_atomics_and_grids(monkeypatch):
    pid = Expr("program", (), "int32", (), 0)
    every = Expr("broadcast", (number(0),), "int32", (4,))
    body = [Atomic("add", pointer("o", every), load()), Atomic("max", pointer("o", number(1)), Expr("cast", (pid,), "int8"))]
    assert outcome(monkeypatch, body, grid=(3, 1, 1)) == [50 - 15, 51, 52, 53]
    body = [Atomic("xchg", pointer("o", R4), load(), less(R4, 2), "old", number(5, "int8")),
            Atomic("add", pointer("o", R4), var("old", "int8", (4,)))]
    assert outcome(monkeypatch, body) == [53, 44, 57, 58]


def test_calls(monkeypatch):
    f = Function("f", [("a", "int8", (4,))], [Assign(("b",), (arith("add", var("a", "int8", (4,)), number(1, "int8")),))],
                 (var("b", "int8", (4,)), var("a", "int8", (4,))))
    body = [Call(("u", "v"), "f", (load(),)), Store(pointer("o", R4), arith("sub", var("u", "int8", (4,)), var("v", "int8", (4,))))]
    assert outcome(monkeypatch, body, functions=[f]) == [1, 1, 1, 1]


STORE_X = Store(pointer("o", R4), load())


@pytest.mark.parametrize("what, body, grid", [
    ("out of bounds", [Store(pointer("o", arith("add", R4, number(5))), load())], (1, 1, 1)),
    ("stores meet", [Store(pointer("o", arith("and", R4, number(1))), load())], (1, 1, 1)),
    ("programs meet", [STORE_X], (2, 1, 1)),
    ("division", [Store(pointer("o", R4), Expr("div", (load(), number(0, "int8")), "int8", (4,)))], (1, 1, 1)),
    ("shift", [Store(pointer("o", R4), Expr("shl", (load(), number(8, "int8")), "int8", (4,)))], (1, 1, 1)),
    ("not known", [Store(pointer("o", R4), var("v", "int8", (4,)))], (1, 1, 1)),
    ("results of atomics", [Atomic("add", pointer("o", arith("and", R4, number(1))), load(), None, "old")], (1, 1, 1)),
    ("float not exact", [Assign(("f",), (arith("add", number(2048.0, "float16"), number(1.0, "float16")),))], (1, 1, 1)),
])
def test_what_has_no_meaning(monkeypatch, what, body, grid):
    with pytest.raises(Invalid, match=what):
        outcome(monkeypatch, body, grid=grid)


# -- what is generated -------------------------------------------------------------------------------------------------

#: what random kernels are to have in them
WANTED = {
    *program.INTS, *program.FLOATS, "int1", *(f"rank {n}" for n in range(4)), *(f"size {1 << n}" for n in range(8)),
    "If", "For", "While", "Return", "Call", "Barrier", "Store", "Atomic", "empty branch", "elif", "else", "if alone",
    "Store in a loop", "If in a loop", "For in a loop", "Atomic in a loop", "loop by range", "loop by static", "loop by while",
    "loop by unroll", "loop by stages", "loop that goes down", "values exchanged", "a value copied", "a pointer moves",
    "function inlined", "function called", "function with two returns", "load of all", "load other", "load where", "store masked", "store of all",
    *(f"store of {t}" for t in (*program.INTS, *program.FLOATS, "int1")), "grid of 0", "grid of 1", "grid of 2",
    "alias", "alias of another type", "alias that overlaps in part", *(f"atomic {op}" for op in ("add", "max", "min", "and", "or", "xor", "xchg")),
    "atomic add with result", "add", "sub", "mul", "div", "rem", "halve", "and", "or", "xor", "shl", "shr", "min", "max", "clamp", "neg", "invert", "abs",
    "lt", "le", "gt", "ge", "eq", "ne", "both", "either", "not", "where", "choose", "cast", "bitcast", "expand", "broadcast", "reshape", "trans", "join",
    "interleave", "half", "flip", "sort", "topk", "take", "sum", "greatest", "least", "xorsum", "argmax", "argmin", "fold", "cumsum", "cumprod", "scan",
    "recurrence", "dot", "dot of int8", "dot of float32", "histogram",
}


def test_everything_occurs():
    """In 200 programs, which all have a meaning; and about 50 statements each."""
    seen, sizes = set(), []
    for k in range(200):
        p = generate.generate(k)
        seen |= program.features(p)
        sizes.append(len(list(p.statements())))
        for launch in p.launches:
            evaluate.run(p, launch)
    assert not WANTED - seen
    assert 40 <= np.mean(sizes) <= 70


def test_a_seed_is_one_kernel():
    """Whatever the process hashes names by."""
    code = "import sys; sys.path.insert(0, 'tests')\nfrom fuzz import generate, source\nprint(source.module(generate.generate(7)))"
    texts = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": n}, capture_output=True, text=True,
                            check=True).stdout for n in "12"}
    assert texts == {source.module(generate.generate(7)) + "\n"}
    assert source.module(generate.generate(8)) not in texts


# -- what is met -------------------------------------------------------------------------------------------------------


def wrong_subtraction(monkeypatch):
    """x - y of 16 bits is off by one where y is negative."""
    right = rules.ELEMENTWISE["arith.subi"]

    def rule(b, op, x, y):
        out = right(b, op, x, y)
        return out if op.result.type.elem != "i16" else b.add(out, b.cast("zext", b.icmp("slt", y, rules.arith.const("i16", 0)), "i16"))

    monkeypatch.setitem(rules.ELEMENTWISE, "arith.subi", rule)
    return lambda p: any(e.op == "sub" and e.dtype in ("int16", "uint16") for e in p.nodes())


def values_one_after_another(monkeypatch):
    """What a loop carries is assigned in turn, so later values are computed from earlier ones' new buffers."""

    def assign(s, pairs):  # `control.assign` but for its order, so with what that has for itself
        for _, slot, v in pairs:
            if isinstance(slot, control.Buffer) and not control._holds(s, slot, v):
                s.fill(slot, v)
        s.add(control.Assign(s.op, tuple((key, v) for key, slot, v in pairs if slot is None)))

    monkeypatch.setattr(control, "assign", assign)
    return lambda p: any(isinstance(s, For) and any(isinstance(t, Assign) and len(t.names) > 1 for t in s.body) for s in p.statements())


def stores_behind_the_block(monkeypatch):
    """A masked store of few lanes writes an element more."""
    right = memory.store_lanes

    def store_lanes(nest, ptr, dims, v, mask):
        right(nest, ptr, dims, v, mask)
        if mask.lanes > 1 and nest.lanes < 8:
            where = memory.access.address(nest, ptr, dims)
            if isinstance(where, memory.Unit):
                out = memory.to_memory(nest.b, v, ptr.type.pointee.elem)
                last = out if out.lanes == 1 else nest.b.value(out.elem, f"extractelement {out.ty} {out.s}, i32 0")
                nest.b.store(last, nest.b.gep(out.elem, where.pointer, memory.const("i64", nest.lanes)), 1)

    monkeypatch.setattr(memory, "store_lanes", store_lanes)
    return lambda p: max(max(e.shape, default=1) for e in p.nodes()) <= 16


def empty_branches_refused(monkeypatch):
    """A branch of nothing is an error of the compiler."""
    right = control.if_op

    def if_op(s, op):
        if any(len(r.block.ops) < 2 for r in op.regions):
            raise IndexError("list index out of range")
        return right(s, op)

    monkeypatch.setitem(planner.RULES, "scf.if", if_op)
    return lambda p: "empty branch" in program.features(p)


@pytest.mark.first(1)
@pytest.mark.parametrize("put_back", [wrong_subtraction, values_one_after_another, stores_behind_the_block, empty_branches_refused])
def test_a_wrong_lowering_is_met_and_made_small(monkeypatch, tmp_path, tmp_cache, put_back):
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "cpu")
    likely = put_back(monkeypatch)
    programs = (p for p in map(generate.generate, itertools.count(100)) if likely(p))
    p, failure = next((p, f) for p in itertools.islice(programs, 60) if (f := check.check(p, tmp_path)))
    small, how = reduce.reduce(p, failure, lambda c: check.check(c, tmp_path), tries=250)
    lines = source.kernel(small)
    print("\n".join(lines))
    assert len(lines) < 20 and len(lines) < len(source.kernel(p))
    assert how.same(failure)
    script = tmp_path / "repro.py"
    script.write_text(repro.script(small, how))
    monkeypatch.undo()  # rules that are right; in a process of its own anyway
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                         env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_DEFAULT_BACKEND": "cpu"})
    assert run.returncode == 0 and "as wanted" in run.stdout, run.stdout + run.stderr


def test_the_script_of_a_failure(tmp_path):
    """It ends with 1 where results differ, and says where."""
    p = Program(3, [Storage("s0", "int16", 8, 1)], [Buffer("p0", "s0", "int16", 0)], [], [Launch((1, 1, 1), {})],
                [Store(pointer("p0", R4), number(77, "int16", (4,)))])
    text = repro.script(p, check.Failure("values", "as a test"))
    script = tmp_path / "wrong.py"
    script.write_text(text.replace("tl.full([4], 77,", "tl.full([4], 78,"))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                         env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_BACKEND": "cpu"})
    assert run.returncode == 1 and "differs at [0, 1, 2, 3] wanted [77, 77, 77, 77] got [78, 78, 78, 78]" in run.stdout, run.stdout + run.stderr


# -- processes ---------------------------------------------------------------------------------------------------------


class Ends:
    """A job that ends the process it comes to."""

    def __reduce__(self):
        return os._exit, (7,)


class Hangs:

    def __reduce__(self):
        return time.sleep, (1000,)


def test_a_process_that_ends_or_hangs():
    """It is a failure, and the next kernel has a new process."""
    worker = Worker()
    try:
        answer, failure = worker.ask(Ends())
        assert (answer, failure.kind) == ("failed", "crash") and "7" in failure.detail
        assert worker.ask(3)[0] in ("passed", "failed")
        worker.limit = 1
        answer, failure = worker.ask(Hangs())
        assert (answer, failure.kind) == ("failed", "hang")
        worker.limit = 120
        assert worker.ask(3)[0] in ("passed", "failed")
    finally:
        worker.stop()
