"""The native code of call.py: functions for CPython, in LLVM IR.

They use Python's documented C interface only (https://docs.python.org/3/c-api/call.html), so they know nothing of how a
tensor lies in memory. They read tables of 8-byte words; the layouts stand in call.py, beside what writes them.
"""

from __future__ import annotations

from ..cpu.llvm.ir import FALSE, NULL, TRUE, Builder, Module, Val, define, i64
from ..cpu.llvm.targets import Target

#: what the code calls of CPython: result and parameters
PYTHON = {"PyTuple_GetItem": ("ptr", "ptr", "i64"), "PyObject_Type": ("ptr", "ptr"),
          "PyFloat_AsDouble": ("double", "ptr"), "PyErr_Clear": ("void",), "PyList_Size": ("i64", "ptr"), "PyLong_AsSize_t": ("i64", "ptr"),
          "PyLong_FromLongLong": ("ptr", "i64"), "PyObject_Vectorcall": ("ptr", "ptr", "ptr", "i64", "ptr"),
          "PyObject_VectorcallMethod": ("ptr", "ptr", "ptr", "i64", "ptr"), "PyObject_CallNoArgs": ("ptr", "ptr"),
          "PyObject_GetAttr": ("ptr", "ptr", "ptr"), "PyTuple_New": ("ptr", "i64"), "PyTuple_SetItem": ("i32", "ptr", "i64", "ptr"),
          "PyDict_GetItemWithError": ("ptr", "ptr", "ptr"), "PyDict_Size": ("i64", "ptr"), "PyEval_SaveThread": ("ptr",), "PyEval_RestoreThread": ("void", "ptr"), "Py_IncRef": ("void", "ptr"), "Py_DecRef": ("void", "ptr")}


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
    for name, (returns, *takes) in PYTHON.items():
        m.declare(name, returns, takes)
    _address(m)
    _undo(m)
    _run(m, pointers, words)
    _plan(m)
    _same(m)
    _site(m, known)
    return m.render()


# --- Python from here --------------------------------------------------------------------------------------------------------


def python(b: Builder, name: str, *args: Val) -> Val:
    return b.call(name, PYTHON[name][0], list(args))


def called(b: Builder, function: Val, args: Val, count: Val | int) -> Val:
    """function(*args), a new reference; null with an exception set."""
    return python(b, "PyObject_Vectorcall", function, args, i64(count) if isinstance(count, int) else count, NULL)


def dropped(b: Builder, thing: Val):
    python(b, "Py_DecRef", thing)


def at(b: Builder, table: Val, k: Val | int) -> Val:
    return b.gep("i64", table, i64(k) if isinstance(k, int) else k)


def word(b: Builder, table: Val, k: Val | int) -> Val:
    return b.load("i64", at(b, table, k))


def thing(b: Builder, table: Val, k: Val | int) -> Val:
    """The object whose address a table has."""
    return b.load("ptr", at(b, table, k))


def none(b: Builder, it: Val):
    """Return None: the call is not known."""
    python(b, "Py_IncRef", it)
    b.ret(it)


def missing(b: Builder, it: Val) -> Val:
    return b.icmp("eq", it, NULL)


def fail_without(b: Builder, it: Val):
    """Return what says that an exception is set, where there is no `it`."""
    with b.when(missing(b, it)):
        b.ret(NULL)


# --- plans -------------------------------------------------------------------------------------------------------------------


def _address(m: Module):
    """The address of a tensor's data into `to`. False with Python's exception set where it has none."""
    b = define(m, "address", "i1", "internal", plan="ptr", tensor="ptr", to="ptr")
    plan, tensor, to = b.fn.args
    slot = b.alloca("ptr")
    b.store(tensor, slot)
    number = python(b, "PyObject_VectorcallMethod", thing(b, plan, _Plan.DATA_PTR), slot, i64(1), NULL)
    with b.when(missing(b, number)):
        b.ret(FALSE)
    value = python(b, "PyLong_AsSize_t", number)
    dropped(b, number)
    b.store(value, to)
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
        status, after = _launch(b, row.get(), addresses, packed)
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
        b.store(python(b, "PyLong_AsSize_t", answer), to)
        dropped(b, answer)


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


def _launch(b: Builder, row: Val, addresses: Val, packed: Val) -> tuple[Val, Val]:
    """(status, where the next row is). A row is: whether to give up the GIL; entry point; number of words; for each whether it is a pointer, and its
    value or the pointer's number."""
    shared, entry, count = word(b, row, 0), thing(b, row, 1), word(b, row, 2)
    slots = at(b, row, 3)
    with b.loop(i64(0), count) as s:
        source = at(b, slots, b.mul(s, 2))
        value = b.variable(word(b, source, 1))
        with b.when(b.icmp("ne", word(b, source, 0), 0)):
            value.set(word(b, addresses, value.get()))
        b.store(value.get(), at(b, packed, s))
    status = b.variable(i64(0))
    with b.either(b.icmp("ne", shared, 0)) as (released, held):
        with released:
            state = python(b, "PyEval_SaveThread")
            status.set(b.call(entry, "i64", [packed]))
            python(b, "PyEval_RestoreThread", state)
        with held:  # over sooner than another thread would have woken
            status.set(b.call(entry, "i64", [packed]))
    return status.get(), at(b, slots, b.mul(count, 2))


def _report(b: Builder, plan: Val, number: Val, status: Val, room: Val):
    """Have Python raise for a launch that did not return 0."""
    which, code = python(b, "PyLong_FromLongLong", number), python(b, "PyLong_FromLongLong", status)
    b.store(which, room)
    b.store(code, b.gep("ptr", room, i64(1)))
    called(b, thing(b, plan, _Plan.FAIL), room, 2)
    dropped(b, which)
    dropped(b, code)


def _own_table(b: Builder) -> Val:
    """The table of the method that is called: its `self` begins with the address."""
    return b.cast("inttoptr", python(b, "PyLong_AsSize_t", python(b, "PyTuple_GetItem", b.fn.args[0], i64(0))), "ptr")


def _plan(m: Module):
    """Plan.__call__: (tensors...), each of the dtype, shape and strides of those that the plan was made from."""
    b = define(m, "tp_plan", "ptr", self="ptr", args="ptr", n="i64")
    _, args, n = b.fn.args
    plan = _own_table(b)
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
        types = []
        for o in (v, w):
            types.append(python(b, "PyObject_Type", o))
            dropped(b, types[-1])
        with b.when(b.not_(b.and_(*(b.icmp("eq", ty, floats) for ty in types)))):
            b.ret(FALSE)
        bits = [python(b, "PyFloat_AsDouble", o) for o in (v, w)]
        with b.when(b.icmp("ne", *(b.bitcast(d, "i64") for d in bits))):
            b.ret(FALSE)
    b.ret(TRUE)


def _site(m: Module, known: int):
    """Site.__call__: an op's arguments."""
    b = define(m, "tp_site", "ptr", self="ptr", args="ptr", n="i64")
    _, args, n = b.fn.args
    site = _own_table(b)
    conditions = word(b, site, _Site.FACTS)
    nothing, true, floats = (thing(b, site, k) for k in (_Site.NONE, _Site.TRUE, _Site.FLOAT))
    calls = at(b, site, _Site.CALLS)
    _none_known(b, site, nothing)
    fact = b.variable(at(b, calls, known))
    with b.loop(i64(0), conditions):
        _holds(b, fact.get(), nothing)
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


class Fact:
    """Kinds of facts: a list is empty; a dictionary lacks a key, or has an object there; `of()` and an attribute are a very object."""

    LISTED, LACKED, KEPT, RETURNED, ATTRIBUTE = range(5)
    WORDS = 4  # kind, object, key, what is expected


def _holds(b: Builder, fact: Val, nothing: Val):
    """Return None unless a fact holds, as must be for any call: nobody watches."""
    kind, (of, key, expected) = word(b, fact, 0), (thing(b, fact, k) for k in range(1, Fact.WORDS))

    def is_kind(k: int) -> Val:
        return b.icmp("eq", kind, k)

    with b.either(is_kind(Fact.LISTED)) as (listed, other):
        with listed, b.when(b.icmp("ne", python(b, "PyList_Size", of), 0)):
            none(b, nothing)
        with other, b.either(is_kind(Fact.LACKED)) as (lacked, other):
            with lacked, b.when(b.icmp("ne", python(b, "PyDict_Size", of), 0)):
                _found(b, python(b, "PyDict_GetItemWithError", of, key), NULL, nothing)
            with other, b.either(is_kind(Fact.KEPT)) as (kept, other):
                with kept:  # borrowed, and a str's hash does not fail
                    _found(b, python(b, "PyDict_GetItemWithError", of, key), expected, nothing)
                with other:
                    found = b.variable(NULL)
                    with b.either(is_kind(Fact.RETURNED)) as (ask, get):
                        with ask:
                            found.set(python(b, "PyObject_CallNoArgs", of))
                        with get:
                            found.set(python(b, "PyObject_GetAttr", of, key))
                    fail_without(b, found.get())
                    dropped(b, found.get())  # its address is all that is looked at
                    _found(b, found.get(), expected, nothing)


def _found(b: Builder, value: Val, expected: Val, nothing: Val):
    """Return None unless an object is the expected."""
    with b.when(b.icmp("ne", value, expected)):
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
