"""The builder of LLVM IR: structured control flow, by functions that are compiled and run."""

import ctypes

import pytest
from triport.backends.base import CompileError
from triport.backends.cpu.llvm import compile as llvm, generator, ir, targets
from triport.backends.cpu.llvm.ir import i64
from triport.backends.cpu.run import launch


def run(write, *args, promote=True):
    """What the function of words that `write(b, *parameters)` writes returns."""
    row = targets.native()
    m = ir.Module("flow", row.triple, attributes="")
    b = ir.define(m, "f", "i64", **{f"a{k}": "i64" for k in range(len(args))})
    write(b, *b.fn.args)
    text = m.render()
    llvm.verify(text, row)
    address = launch.load_object(generator.emit_object(generator.in_registers(text) if promote else text, row), ["f"])["f"]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(address)(*args)


@pytest.mark.parametrize("lo,hi,step", [(0, 10, 1), (3, 17, 4), (5, 5, 1), (7, -2, 3)])
def test_a_loop_is_a_range(lo, hi, step):
    def write(b, lo, hi):
        total = b.variable(i64(0))
        with b.loop(lo, hi, step) as i:
            total.set(b.add(b.mul(total.get(), 3), i))
        b.ret(total.get())

    want = 0
    for i in range(lo, hi, step):
        want = want * 3 + i
    assert run(write, lo, hi) == want == run(write, lo, hi, promote=False)


@pytest.mark.parametrize("x", range(-2, 9))
def test_branches_that_return_and_that_go_on(x):
    def write(b, x):
        result = b.variable(i64(1))
        with b.when(b.icmp("slt", x, 0)):
            b.ret(i64(-1))
        with b.either(b.icmp("slt", x, 4)) as (small, large):
            with small:
                with b.when(b.icmp("eq", x, 2)):
                    result.set(i64(20))
            with large, b.either(b.icmp("eq", x, 5)) as (five, other):
                with five:
                    b.ret(i64(50))
                with other:
                    b.ret(x)
        b.ret(result.get())

    assert run(write, x) == (-1 if x < 0 else 20 if x == 2 else 1 if x < 4 else 50 if x == 5 else x)


@pytest.mark.parametrize("n", [0, 1, 6, 27])
def test_turns_are_left_and_begun_again(n):
    """Steps of Collatz's sequence, odd ones counted as two."""
    def write(b, n):
        x, steps = b.variable(n), b.variable(i64(0))
        with b.loop_while(lambda: b.icmp("sgt", x.get(), 1)) as turn:
            steps.set(b.add(steps.get(), 1))
            with b.when(b.icmp("eq", b.and_(x.get(), 1), 0)):
                x.set(b.lshr(x.get(), 1))
                turn.again()
            with b.forever() as once:
                x.set(b.add(b.mul(x.get(), 3), 1))
                steps.set(b.add(steps.get(), 1))
                once.leave(b.icmp("ne", x.get(), 0))
        b.ret(steps.get())

    x, want = n, 0
    while x > 1:
        x, want = (x // 2, want + 1) if x % 2 == 0 else (3 * x + 1, want + 2)
    assert run(write, n) == want


def test_values_that_turns_hand_on():
    def write(b, n):
        with b.repeat(i64(0), i64(1), n) as turn:
            x, y, left = turn.values
            turn.until(b.icmp("eq", left, 0), y, b.add(x, y), b.sub(left, 1))
        b.ret(x)

    assert [run(write, n) for n in (0, 1, 2, 10)] == [0, 1, 1, 55]


def test_variables_become_registers():
    m = ir.Module("flow", targets.native().triple, attributes="")
    b = ir.define(m, "f", "i64", n="i64")
    x = b.variable(i64(0))
    with b.loop(i64(0), b.fn.args[0]) as i:
        x.set(b.add(x.get(), i))
    b.ret(x.get())
    assert "alloca" in m.render() and "alloca" not in generator.in_registers(m.render())


def test_a_structure_and_a_string():
    def write(b, x):
        pair = ir.Struct("pair", small="i32", large="i64")
        b.fn.module.globals.append(pair.line())
        at = b.alloca(pair.ty)
        b.put(pair, at, "small", b.cast("trunc", x, "i32"))
        b.put(pair, at, "large", b.cast("zext", b.load("i8", b.fn.module.string("A\"\\\n")), "i64"))
        b.ret(b.add(b.get(pair, at, "large"), b.cast("sext", b.get(pair, at, "small"), "i64")))

    assert run(write, -7) == 65 - 7


def test_what_llvm_does_not_take_is_an_error():
    with pytest.raises(CompileError, match="does not take"):
        run(lambda b, x: b.emit("ret i32 0"), 1)


def test_a_function_is_not_called_as_another_of_its_name():
    """A kernel called fmodf, whose call of C's fmodf would be one of itself."""
    module = ir.Module("m", "x86_64-unknown-linux-gnu")
    b = ir.define(module, "fmodf", "i64", args="ptr", program="i64")
    b.call("fmodf", "i64", [ir.Val("ptr", "%args"), ir.Val("i64", "%program")])
    with pytest.raises(CompileError, match="kernel fmodf: calls C's function fmodf"):
        b.call("fmodf", "float", [ir.Val("float", "1.0"), ir.Val("float", "2.0")])


def test_a_function_is_called_as_it_was_declared():
    """LLVM takes any types, and reads the registers of others."""
    m = ir.Module("flow", targets.native().triple, attributes="")
    ir.define(m, "own", "i64", "internal", n="i64").ret(i64(1))
    b = ir.define(m, "f", "i64", n="i64")
    b.call("own", "i64", [i64(2)])
    b.call("other", "i64", [i64(2)])
    vector = b.splat(i64(3), 4)
    for name, ret, args in (("own", "i64", [vector]), ("own", "i32", [i64(2)]), ("other", "i64", [vector]), ("other", "i64", [i64(2), i64(2)])):
        with pytest.raises(TypeError, match=rf"{name} is i64 \(i64\), and called as"):
            b.call(name, ret, args)
