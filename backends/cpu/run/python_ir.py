"""CPython, called from LLVM IR: what native code that is a Python function is written with (native.py).

It uses Python's documented C interface only (https://docs.python.org/3/c-api/call.html), so it knows nothing of how a tensor lies in memory. It reads tables
of 8-byte words; the layouts stand beside what writes them.
"""

from __future__ import annotations

from typing import Callable

from ..llvm.ir import NULL, Builder, Val, i64

#: what the code calls of CPython: result and parameters
PYTHON = {"PyTuple_GetItem": ("ptr", "ptr", "i64"), "PyTuple_Size": ("i64", "ptr"), "PyObject_Type": ("ptr", "ptr"),
          "PyFloat_AsDouble": ("double", "ptr"), "PyErr_Clear": ("void",), "PyErr_Occurred": ("ptr",), "PyList_Size": ("i64", "ptr"),
          "PyLong_AsSize_t": ("i64", "ptr"), "PyLong_AsLongLong": ("i64", "ptr"),
          "PyLong_FromLongLong": ("ptr", "i64"), "PyObject_Vectorcall": ("ptr", "ptr", "ptr", "i64", "ptr"),
          "PyObject_VectorcallMethod": ("ptr", "ptr", "ptr", "i64", "ptr"), "PyObject_CallNoArgs": ("ptr", "ptr"),
          "PyObject_GetAttr": ("ptr", "ptr", "ptr"), "PyTuple_New": ("ptr", "i64"), "PyTuple_SetItem": ("i32", "ptr", "i64", "ptr"),
          "PyDict_GetItemWithError": ("ptr", "ptr", "ptr"), "PyDict_Size": ("i64", "ptr"), "PyEval_SaveThread": ("ptr",), "PyEval_RestoreThread": ("void", "ptr"), "Py_IncRef": ("void", "ptr"), "Py_DecRef": ("void", "ptr")}


def python(b: Builder, name: str, *args: Val) -> Val:
    return b.call(name, PYTHON[name][0], list(args))


def called(b: Builder, function: Val, args: Val, count: Val | int) -> Val:
    """function(*args), a new reference; null with an exception set."""
    return python(b, "PyObject_Vectorcall", function, args, i64(count) if isinstance(count, int) else count, NULL)


def method(b: Builder, name: Val, of: Val, room: Val) -> Val:
    """of.name(), a new reference; null with an exception set. room: memory for a pointer."""
    b.store(of, room)
    return python(b, "PyObject_VectorcallMethod", name, room, i64(1), NULL)


def number(b: Builder, it: Val) -> Val:
    """An int's value; the reference goes."""
    value = python(b, "PyLong_AsSize_t", it)
    dropped(b, it)
    return value


def dropped(b: Builder, thing: Val):
    python(b, "Py_DecRef", thing)


def kind_of(b: Builder, it: Val) -> Val:
    """An object's type, of which the address is all that is looked at."""
    found = python(b, "PyObject_Type", it)
    dropped(b, found)
    return found


def at(b: Builder, table: Val, k: Val | int) -> Val:
    return b.gep("i64", table, i64(k) if isinstance(k, int) else k)


def word(b: Builder, table: Val, k: Val | int) -> Val:
    return b.load("i64", at(b, table, k))


def thing(b: Builder, table: Val, k: Val | int) -> Val:
    """The object whose address a table has."""
    return b.load("ptr", at(b, table, k))


def none(b: Builder, it: Val):
    """Return None."""
    python(b, "Py_IncRef", it)
    b.ret(it)


def missing(b: Builder, it: Val) -> Val:
    return b.icmp("eq", it, NULL)


def fail_without(b: Builder, it: Val):
    """Return what says that an exception is set, where there is no `it`."""
    with b.when(missing(b, it)):
        b.ret(NULL)


def own_table(b: Builder) -> Val:
    """The table of the method that is called: its `self` begins with the address."""
    return b.cast("inttoptr", python(b, "PyLong_AsSize_t", python(b, "PyTuple_GetItem", b.fn.args[0], i64(0))), "ptr")


def launched(b: Builder, row: Val, addresses: Val, packed: Val) -> tuple[Val, Val]:
    """(status, where the next row is) of a launch. A row is: whether to give up the GIL; entry point; number of words; for each whether it is a pointer,
    and its value or the pointer's number."""
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


class Fact:
    """Kinds of facts: a list is empty; a dictionary lacks a key, or has an object there; `of()` and an attribute are a very object."""

    LISTED, LACKED, KEPT, RETURNED, ATTRIBUTE = range(5)
    WORDS = 4  # kind, object, key, what is expected


def holds(b: Builder, fact: Val, otherwise: Callable[[], object]):
    """`otherwise()`, which returns, unless a fact holds."""
    kind, (of, key, expected) = word(b, fact, 0), (thing(b, fact, k) for k in range(1, Fact.WORDS))

    def is_kind(k: int) -> Val:
        return b.icmp("eq", kind, k)

    def found(value: Val, expected: Val):
        with b.when(b.icmp("ne", value, expected)):
            otherwise()

    with b.either(is_kind(Fact.LISTED)) as (listed, other):
        with listed, b.when(b.icmp("ne", python(b, "PyList_Size", of), 0)):
            otherwise()
        with other, b.either(is_kind(Fact.LACKED)) as (lacked, other):
            with lacked, b.when(b.icmp("ne", python(b, "PyDict_Size", of), 0)):
                found(python(b, "PyDict_GetItemWithError", of, key), NULL)
            with other, b.either(is_kind(Fact.KEPT)) as (kept, other):
                with kept:  # borrowed, and a str's hash does not fail
                    found(python(b, "PyDict_GetItemWithError", of, key), expected)
                with other:
                    got = b.variable(NULL)
                    with b.either(is_kind(Fact.RETURNED)) as (ask, get):
                        with ask:
                            got.set(python(b, "PyObject_CallNoArgs", of))
                        with get:
                            got.set(python(b, "PyObject_GetAttr", of, key))
                    fail_without(b, got.get())
                    dropped(b, got.get())  # its address is all that is looked at
                    found(got.get(), expected)
