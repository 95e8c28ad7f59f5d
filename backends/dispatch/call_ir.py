"""The native code of call.py: functions for CPython, in LLVM IR. The layouts of the tables that they read stand in call.py, beside what writes them."""

from __future__ import annotations

from ..cpu.llvm.ir import FALSE, NULL, TRUE, Builder, Module, Val, define, i64
from ..cpu.llvm.targets import Target
from ..cpu.run.python_ir import Fact, at, called, dropped, fail_without, holds, kind_of, launched, method, missing, none, number, own_table, python, thing, word


class _Plan:
    """Words of a plan's table; the alignments follow."""

    TENSORS, ALLOCATIONS, RESULTS, LAUNCHES, EMPTY, FAIL, DATA_PTR, NONE, STREAM, DEVICE, ALIGNMENTS = range(11)


class _Site:
    """Words of a site's table; the known calls follow, then the facts."""

    KNOWN, NONE, TRUE, FLOAT, NESTED, FACTS, CALLS = range(7)


class _Known:
    """Words of a known call; its parameters follow."""

    OWNER, TENSORS, CHECK, ASK_THREADS, THREADS, PLAN, VALUES = range(7)


def call_ir(target: Target, pointers: int, words: int, known: int) -> str:
    """The IR for a row, with room for so many pointers and words of a plan and known calls of a site."""
    m = Module("calls", target.triple, attributes="")
    _address(m)
    _undo(m)
    _run(m, pointers, words)
    _plan(m)
    _same(m)
    _site(m, known)
    return m.render()


# --- plans -------------------------------------------------------------------------------------------------------------------


def _address(m: Module):
    """The address of a tensor's data into `to`. False with Python's exception set where it has none."""
    b = define(m, "address", "i1", "internal", plan="ptr", tensor="ptr", to="ptr")
    plan, tensor, to = b.fn.args
    found = method(b, thing(b, plan, _Plan.DATA_PTR), tensor, b.alloca("ptr"))
    with b.when(missing(b, found)):
        b.ret(FALSE)
    b.store(number(b, found), to)
    b.ret(TRUE)


def _run(m: Module, pointers: int, words: int):
    """What a plan does, for its tensors. Null with an exception set, or the result, or Python's None for another alignment."""
    b = define(m, "run", "ptr", "internal", plan="ptr", args="ptr")
    plan, args = b.fn.args
    addresses, made, packed = b.alloca(f"[{pointers} x i64]"), b.alloca(f"[{pointers} x ptr]"), b.alloca(f"[{words} x i64]")
    failure = b.alloca("[2 x ptr]")
    tensors, allocations, launches = (word(b, plan, k) for k in (_Plan.TENSORS, _Plan.ALLOCATIONS, _Plan.LAUNCHES))
    nothing = thing(b, plan, _Plan.NONE)
    with b.loop(i64(0), tensors) as t:
        place = at(b, addresses, t)
        with b.when(b.not_(b.call("address", "i1", [plan, thing(b, args, t), place]))):
            b.ret(NULL)
        with b.when(b.icmp("ne", b.and_(b.load("i64", place), 15), word(b, plan, b.add(t, _Plan.ALIGNMENTS)))):
            none(b, nothing)
    row = b.variable(at(b, at(b, plan, _Plan.ALIGNMENTS), tensors))
    with b.loop(i64(0), allocations) as a:
        _allocate(b, plan, row.get(), a, made, at(b, addresses, b.add(tensors, a)))
        row.set(at(b, row.get(), 4))
    _ask(b, plan, made, allocations, at(b, addresses, b.add(tensors, allocations)))
    with b.loop(i64(0), launches) as n:
        status, after = launched(b, row.get(), addresses, packed)
        with b.when(b.icmp("ne", status, 0)):
            _report(b, plan, n, status, failure)
            _undone(b, made, allocations)
        row.set(after)
    results = word(b, plan, _Plan.RESULTS)
    with b.when(b.icmp("ne", results, 0)):
        _several(b, made, allocations, results)
    with b.loop(i64(1), allocations) as k:  # the temporaries go, the output is the first
        dropped(b, thing(b, made, k))
    b.ret(b.load("ptr", made))


def _several(b: Builder, made: Val, count: Val, results: Val):
    """Return a tuple of so many results; they are the first of what was made."""
    together = python(b, "PyTuple_New", results)
    with b.when(missing(b, together)):
        _undone(b, made, count)
    with b.loop(i64(0), results) as k:
        python(b, "PyTuple_SetItem", together, k, thing(b, made, k))  # which takes the reference
    with b.loop(results, count) as k:
        dropped(b, thing(b, made, k))
    b.ret(together)


def _ask(b: Builder, plan: Val, made: Val, count: Val, to: Val):
    """What a plan asks for at every call, as the device's current stream, goes to `to`."""
    function = thing(b, plan, _Plan.STREAM)
    with b.when(b.not_(missing(b, function))):
        answer = called(b, function, at(b, plan, _Plan.DEVICE), 1)
        with b.when(missing(b, answer)):
            _undone(b, made, count)
        b.store(number(b, answer), to)


def _undo(m: Module):
    """An exception is set: everything made goes, the last first."""
    b = define(m, "undo", "void", "internal", made="ptr", count="i64")
    made, count = b.fn.args
    left = b.variable(count)
    with b.loop_while(lambda: b.icmp("sgt", left.get(), 0)):
        left.set(b.sub(left.get(), 1))
        dropped(b, thing(b, made, left.get()))
    b.ret()


def _undone(b: Builder, made: Val, count: Val):
    b.call("undo", "void", [made, count])
    b.ret(NULL)


def _allocate(b: Builder, plan: Val, row: Val, a: Val, made: Val, address: Val):
    """A row is: function that the tensor is shown to, or null; sizes; strides; dtype."""
    new = called(b, thing(b, plan, _Plan.EMPTY), at(b, row, 1), 3)
    with b.when(missing(b, new)):
        _undone(b, made, a)
    place, count = at(b, made, a), b.add(a, 1)
    b.store(new, place)
    with b.when(b.not_(b.call("address", "i1", [plan, new, address]))):
        _undone(b, made, count)
    shown = thing(b, row, 0)
    with b.when(b.not_(missing(b, shown))):
        result = called(b, shown, place, 1)
        with b.when(missing(b, result)):
            _undone(b, made, count)
        dropped(b, result)


def _report(b: Builder, plan: Val, number: Val, status: Val, room: Val):
    """Have Python raise for a launch that did not return 0."""
    which, code = python(b, "PyLong_FromLongLong", number), python(b, "PyLong_FromLongLong", status)
    b.store(which, room)
    b.store(code, b.gep("ptr", room, i64(1)))
    called(b, thing(b, plan, _Plan.FAIL), room, 2)
    dropped(b, which)
    dropped(b, code)


def _plan(m: Module):
    """Plan.__call__: (tensors...), each of the dtype, shape and strides of those that the plan was made from."""
    b = define(m, "tp_plan", "ptr", self="ptr", args="ptr", n="i64")
    _, args, n = b.fn.args
    plan = own_table(b)
    with b.when(b.icmp("ne", n, word(b, plan, _Plan.TENSORS))):
        none(b, thing(b, plan, _Plan.NONE))
    b.ret(b.call("run", "ptr", [plan, args]))


# --- sites -------------------------------------------------------------------------------------------------------------------


def _same(m: Module):
    """Are n objects those of another table, or floats of the same bits?"""
    b = define(m, "same", "i1", "internal", x="ptr", y="ptr", n="i64", float="ptr")
    x, y, n, floats = b.fn.args
    k = b.variable(i64(0))
    with b.loop_while(lambda: b.icmp("slt", k.get(), n)) as turn:
        v, w = thing(b, x, k.get()), thing(b, y, k.get())
        k.set(b.add(k.get(), 1))
        turn.again(b.icmp("eq", v, w))
        with b.when(b.not_(b.and_(*(b.icmp("eq", kind_of(b, o), floats) for o in (v, w))))):
            b.ret(FALSE)
        bits = [python(b, "PyFloat_AsDouble", o) for o in (v, w)]
        with b.when(b.icmp("ne", *(b.bitcast(d, "i64") for d in bits))):
            b.ret(FALSE)
    b.ret(TRUE)


def _site(m: Module, known: int):
    """Site.__call__: an op's arguments."""
    b = define(m, "tp_site", "ptr", self="ptr", args="ptr", n="i64")
    _, args, n = b.fn.args
    site = own_table(b)
    conditions = word(b, site, _Site.FACTS)
    nothing, true, floats = (thing(b, site, k) for k in (_Site.NONE, _Site.TRUE, _Site.FLOAT))
    calls = at(b, site, _Site.CALLS)
    _none_known(b, site, nothing)
    fact = b.variable(at(b, calls, known))
    with b.loop(i64(0), conditions):
        holds(b, fact.get(), lambda: none(b, nothing))
        fact.set(at(b, fact.get(), Fact.WORDS))
    _none_known(b, site, nothing)  # any more: what was asked may have let another thread run
    _dense(b, args, word(b, thing(b, calls, 0), _Known.TENSORS), thing(b, site, _Site.NESTED), true, nothing)
    k = b.variable(i64(0))
    with b.loop_while(lambda: b.icmp("slt", k.get(), word(b, site, _Site.KNOWN))) as turn:
        known_call = thing(b, calls, k.get())
        k.set(b.add(k.get(), 1))
        _means(b, turn, known_call, args, n, true, floats)
        owner, plan = thing(b, known_call, _Known.OWNER), thing(b, known_call, _Known.PLAN)
        python(b, "Py_IncRef", owner)  # while the GIL is given up another thread may put another call in this one's place
        out = b.call("run", "ptr", [plan, args])
        dropped(b, owner)
        b.ret(out)
    none(b, nothing)


def _none_known(b: Builder, site: Val, nothing: Val):
    """Return None where no call is known."""
    with b.when(b.icmp("eq", word(b, site, _Site.KNOWN), 0)):
        none(b, nothing)


def _dense(b: Builder, args: Val, tensors: Val, attribute: Val, true: Val, nothing: Val):
    """Return None where a tensor is nested: torch's guards ask it for its strides, and the exception that it throws ends the process (torch 2.13)."""
    with b.loop(i64(0), tensors) as k:
        found = python(b, "PyObject_GetAttr", thing(b, args, k), attribute)
        with b.when(b.icmp("eq", found, NULL)):
            python(b, "PyErr_Clear")  # no tensor, or one that tells nothing: the op says what is wrong
            none(b, nothing)
        dropped(b, found)
        with b.when(b.icmp("eq", found, true)):
            none(b, nothing)


def _means(b: Builder, turn, call: Val, args: Val, n: Val, true: Val, floats: Val):
    """Go on with the next known call unless this one is meant."""
    tensors = word(b, call, _Known.TENSORS)
    given, values = b.gep("ptr", args, tensors), at(b, call, _Known.VALUES)
    turn.again(b.not_(b.call("same", "i1", [given, values, b.sub(n, tensors), floats])))
    verdict = called(b, thing(b, call, _Known.CHECK), args, tensors)  # facts of the tensors: TensorGuards knows
    fail_without(b, verdict)
    dropped(b, verdict)
    turn.again(b.icmp("ne", verdict, true))
    threads = python(b, "PyObject_CallNoArgs", thing(b, call, _Known.ASK_THREADS))
    fail_without(b, threads)
    dropped(b, threads)
    turn.again(b.icmp("ne", threads, thing(b, call, _Known.THREADS)))
