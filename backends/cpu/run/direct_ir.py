"""The native code of direct.py: a kernel launched again, in LLVM IR. The layout of the table that it reads stands here, beside what reads it."""

from __future__ import annotations

from ..llvm.ir import FALSE, NULL, Module, Val, define, i64
from ..llvm.targets import Target
from .python_ir import Fact, at, called, dropped, fail_without, holds, kind_of, launched, method, missing, none, number, own_table, python, thing, word


class Head:
    """Words that a table begins with; the arguments follow, then the facts, the pairs and the launch (`python_ir.launched`)."""

    (OTHERWISE, ARGUMENTS, KEYWORD, TENSOR, PARAMETER, INT, FLOAT, IS_CPU, DATA_PTR, STORAGE, NBYTES, TRUE, NONE, ASK_THREADS, THREADS, FAIL,
     FACTS, PAIRS, WORDS) = range(19)


class Argument:
    """Kinds of arguments: a tensor, an int of this value, a float of these bits, this very object; and an argument's words."""

    TENSOR, INT, FLOAT, SAME = range(4)
    KIND, VALUE, WORDS = range(3)


class Pair:
    """Words of two tensors, by the numbers of their arguments, that are to share no memory. same: but may have one address."""

    FIRST, SECOND, SAME, WORDS = range(4)


def direct_ir(target: Target, pointers: int, words: int) -> str:
    """The IR for a row, with room for the addresses of so many arguments and so many words of a launch."""
    m = Module("direct", target.triple, attributes="")
    _meets(m)
    _apart(m)
    _direct(m, pointers, words)
    return m.render()


def _meets(m: Module):
    """Is an argument what the table says? A tensor's address goes to `to`."""
    b = define(m, "meets", "i1", "internal", table="ptr", argument="ptr", given="ptr", to="ptr")
    table, argument, given, to = b.fn.args
    kind, value, type_ = word(b, argument, Argument.KIND), word(b, argument, Argument.VALUE), kind_of(b, given)
    room = b.alloca("ptr")

    def no_unless(good: Val):
        with b.when(b.not_(good)):
            b.ret(FALSE)

    def cleared(it: Val):
        """`it`, there; else False, without the exception."""
        with b.when(missing(b, it)):
            python(b, "PyErr_Clear")
            b.ret(FALSE)
        return it

    with b.when(b.icmp("eq", kind, Argument.TENSOR)):
        no_unless(b.or_(b.icmp("eq", type_, thing(b, table, Head.TENSOR)), b.icmp("eq", type_, thing(b, table, Head.PARAMETER))))
        here = cleared(python(b, "PyObject_GetAttr", given, thing(b, table, Head.IS_CPU)))
        dropped(b, here)
        no_unless(b.icmp("eq", here, thing(b, table, Head.TRUE)))
        address = number(b, cleared(method(b, thing(b, table, Head.DATA_PTR), given, room)))
        b.store(address, to)
        b.ret(b.icmp("ne", address, 0))
    with b.when(b.icmp("eq", kind, Argument.INT)):
        no_unless(b.icmp("eq", type_, thing(b, table, Head.INT)))
        found = python(b, "PyLong_AsLongLong", given)
        with b.when(b.icmp("eq", found, -1)), b.when(b.not_(missing(b, python(b, "PyErr_Occurred")))):
            python(b, "PyErr_Clear")
            b.ret(FALSE)
        b.ret(b.icmp("eq", found, value))
    with b.when(b.icmp("eq", kind, Argument.FLOAT)):
        no_unless(b.icmp("eq", type_, thing(b, table, Head.FLOAT)))
        b.ret(b.icmp("eq", b.bitcast(python(b, "PyFloat_AsDouble", given), "i64"), value))
    b.ret(b.icmp("eq", given, thing(b, argument, Argument.VALUE)))


def _apart(m: Module):
    """Do two tensors share no memory, as far as the first one's storage says?"""
    b = define(m, "apart", "i1", "internal", table="ptr", pair="ptr", args="ptr", addresses="ptr")
    table, pair, args, addresses = b.fn.args
    first, second = (word(b, pair, k) for k in (Pair.FIRST, Pair.SECOND))
    p, q = (word(b, addresses, k) for k in (first, second))
    with b.when(b.icmp("eq", p, q)):
        b.ret(b.icmp("ne", word(b, pair, Pair.SAME), 0))
    before = b.icmp("ult", p, q)
    room = b.alloca("ptr")
    storage = method(b, thing(b, table, Head.STORAGE), thing(b, args, b.select(before, first, second)), room)
    with b.when(missing(b, storage)):
        python(b, "PyErr_Clear")
        b.ret(FALSE)
    size = method(b, thing(b, table, Head.NBYTES), storage, room)
    dropped(b, storage)
    with b.when(missing(b, size)):
        python(b, "PyErr_Clear")
        b.ret(FALSE)
    b.ret(b.icmp("uge", b.select(before, b.sub(q, p), b.sub(p, q)), number(b, size)))


def _direct(m: Module, pointers: int, words: int):
    """(arguments..., stream=...): launched as the table says, or `otherwise(...)` where something is not as it says."""
    b = define(m, "tp_direct", "ptr", self="ptr", args="ptr", n="i64", keywords="ptr")
    _, args, n, keywords = b.fn.args
    table = own_table(b)
    addresses, packed, room = b.alloca(f"[{pointers} x i64]"), b.alloca(f"[{words} x i64]"), b.alloca("ptr")

    def otherwise():
        b.ret(python(b, "PyObject_Vectorcall", thing(b, table, Head.OTHERWISE), args, n, keywords))

    def otherwise_unless(good: Val):
        with b.when(b.not_(good)):
            otherwise()

    otherwise_unless(b.icmp("eq", n, word(b, table, Head.ARGUMENTS)))
    otherwise_unless(b.not_(missing(b, keywords)))
    otherwise_unless(b.icmp("eq", python(b, "PyTuple_Size", keywords), 1))
    otherwise_unless(b.icmp("eq", python(b, "PyTuple_GetItem", keywords, i64(0)), thing(b, table, Head.KEYWORD)))
    row = b.variable(at(b, table, Head.WORDS))
    with b.loop(i64(0), n) as k:
        otherwise_unless(b.call("meets", "i1", [table, row.get(), thing(b, args, k), at(b, addresses, k)]))
        row.set(at(b, row.get(), Argument.WORDS))
    with b.loop(i64(0), word(b, table, Head.FACTS)):
        holds(b, row.get(), otherwise)
        row.set(at(b, row.get(), Fact.WORDS))
    threads = python(b, "PyObject_CallNoArgs", thing(b, table, Head.ASK_THREADS))
    fail_without(b, threads)
    dropped(b, threads)
    otherwise_unless(b.icmp("eq", threads, thing(b, table, Head.THREADS)))
    with b.loop(i64(0), word(b, table, Head.PAIRS)):
        otherwise_unless(b.call("apart", "i1", [table, row.get(), args, addresses]))
        row.set(at(b, row.get(), Pair.WORDS))
    status, _ = launched(b, row.get(), addresses, packed)
    with b.when(b.icmp("ne", status, 0)):
        code = python(b, "PyLong_FromLongLong", status)
        b.store(code, room)
        dropped(b, called(b, thing(b, table, Head.FAIL), room, 1))
        dropped(b, code)
        b.ret(NULL)
    none(b, thing(b, table, Head.NONE))
