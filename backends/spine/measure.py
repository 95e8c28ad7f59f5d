"""What a bundle's program does with a request (`request.py`): place the tensors, call the function, time it; and how wrong a result is.

Each tensor lies at the end of its pages, behind it one that may not be touched.
"""

from __future__ import annotations

import functools

from ...ops.accuracy import FAR
from ...ops.records import dtype_name
from ..cpu.llvm.ir import Module, Val, const, i64
from . import request
from .expressions import Emitter
from .library import LIMIT, Function as Exported, Variant
from .words import Words

_SLACK = 64  # bytes before a tensor that are watched
_PROTECTION, _PRIVATE = 3, 0x22  # read and write; private, anonymous (mmap)
#: clocks
WALL, CPU = 1, 2
_ENTRY = 8 * request.ENTRY


def add(m: Module, functions: list[Exported], names: list[int]):
    """read_all, write_all, place, watched, now, checksum, invoke, takes, fits, measure, error_of: what each does stands below. names: what requests call the functions."""
    for write in (_read_all, _write_all, _place, _watched, _now, _checksum):
        write(m)
    _invoke(m, functions)
    _takes(m, functions, names)
    _fits(m, functions)
    _measure(m)
    _as_double(m)
    _error_of(m)


def _read_all(m: Module):
    """read_all(fd, place for the length): the address of all that it holds, 8 bytes behind which may be read; 0 where that fails."""
    b = Words(m, "read_all", "fd", "length")
    fd, length = b.fn.args
    at, have, size = b.changing(), b.changing(), b.changing()
    with b.forever() as reading:
        with b.when(b.equal(have.get(), size.get())):
            size.set(b.add(b.mul(size.get(), 2), 1 << 16))
            at.set(b.run("realloc", at.get(), b.add(size.get(), 8)))
            with b.when(b.equal(at.get(), 0)):
                b.answer(0)
        got = b.run("read", fd, b.add(at.get(), have.get()), b.sub(size.get(), have.get()))
        with b.when(b.icmp("slt", got, 0)):
            b.answer(0)
        have.set(b.add(have.get(), got))
        reading.leave(b.equal(got, 0))
    b.put(have.get(), length)
    b.answer(at.get())


def _write_all(m: Module):
    """write_all(fd, address, bytes): 0, or 1 where that fails."""
    b = Words(m, "write_all", "fd", "at", "bytes")
    fd, at, nbytes = b.fn.args
    done = b.changing()
    with b.loop_while(lambda: b.icmp("ult", done.get(), nbytes)):
        put = b.run("write", fd, b.add(at, done.get()), b.sub(nbytes, done.get()))
        with b.when(b.icmp("sle", put, 0)):
            b.answer(1)
        done.set(b.add(done.get(), put))
    b.answer(0)


def _place(m: Module):
    """place(bytes): memory that ends where a page begins that may not be touched; 0 where there is none."""
    b = Words(m, "place", "nbytes")
    nbytes, = b.fn.args
    page = b.run("getpagesize")
    some = b.add(b.add(nbytes, _SLACK - 1), page)
    whole = b.sub(some, b.urem(some, page))
    base = b.run("mmap", 0, b.add(whole, page), _PROTECTION, _PRIVATE, -1, 0)
    with b.when(b.equal(base, -1)):
        b.answer(0)
    end = b.add(base, whole)
    b.run("mprotect", end, page, 0)
    start = b.sub(end, nbytes)
    b.run("memset", base, request.SLACK, b.sub(start, base))
    b.answer(start)


def _watched(m: Module):
    """watched(tensor): 1 where what lies before it is as it was."""
    b = Words(m, "watched", "at")
    at, = b.fn.args
    with b.loop(i64(0), i64(_SLACK)) as k:
        with b.when(b.icmp("ne", b.get(b.sub(b.sub(at, 1), k), 0, "i8"), request.SLACK)):
            b.answer(0)
    b.answer(1)


def _now(m: Module):
    """now(clock): nanoseconds."""
    b = Words(m, "now", "clock")
    t = b.room(2)
    b.run("clock_gettime", b.fn.args[0], t)
    b.answer(b.add(b.mul(b.get(t), 1_000_000_000), b.get(t, 8)))


def _invoke(m: Module, functions: list[Exported]):
    """invoke(number, addresses of tensors, sizes, threads): the status; -1 for a number that is none."""
    b = Words(m, "invoke", "number", "tensors", "sizes", "threads")
    number, tensors, sizes, threads = b.fn.args
    threads = b.cast("trunc", threads, "i32")
    for n, x in enumerate(functions):
        with b.when(b.equal(number, n)):
            pointers = [b.address(b.get(tensors, 8 * k), "ptr") for k in range(len(x.program.arguments))]
            numbers = [_number(b, b.get(sizes, 8 * k), p.kind) for k, p in enumerate(x.parameters)]
            status = b.call(x.name, "i32", [*pointers, *numbers, threads])
            b.answer(b.cast("sext", status, "i64"))
    b.answer(-1)


def _number(b: Words, word: Val, kind: str) -> Val:
    """A parameter of the kind out of its word."""
    return b.bitcast(word, "double") if kind == "float" else b.cast("trunc", word, "i32") if kind == "bool" else word


def _takes(m: Module, functions: list[Exported], names: list[int]):
    """takes(number, name, tensors, sizes): is that function `number`'s name, and has it so many?"""
    b = Words(m, "takes", "number", "name", "tensors", "sizes")
    number, name, tensors, sizes = b.fn.args
    for n, (x, own) in enumerate(zip(functions, names)):
        with b.when(b.equal(number, n)):
            counts = b.and_(b.equal(tensors, len(x.program.arguments)), b.equal(sizes, len(x.parameters)))
            b.answer(b.truth(b.and_(b.equal(name, own), counts)))
    b.answer(0)


def _fits(m: Module, functions: list[Exported]):
    """fits(number, tensors' entries, sizes): is each tensor of the role, the type and the bytes that function `number` takes for the sizes? Sizes that it refuses
    by itself, in words of its own, fit."""
    b = Words(m, "fits", "number", "table", "sizes")
    number, table, sizes = b.fn.args
    for n, x in enumerate(functions):
        with b.when(b.equal(number, n)):
            given = {p.name: b.get(sizes, 8 * k) for k, p in enumerate(x.parameters)}
            for p in x.parameters:
                if p.kind in ("size", "ld"):
                    with b.when(b.icmp("ugt", given[p.name], LIMIT)):
                        b.answer(1)
            for v in x.variants:
                _fits_variant(b, v, [request.ROLES[a.role] for a in x.program.arguments], given, table)
            b.answer(1)
    b.answer(0)


def _fits_variant(b: Words, v: Variant, roles: list[int], given: dict[str, Val], table: Val):
    """Answer `fits` for the sizes that a variant is for and that it does not refuse."""
    parameters = v.program.parameters
    words = {p.symbol: b.truth(b.icmp("ne", b.cast("trunc", given[p.name], "i32"), 0)) if p.kind == "bool" else b.bitcast(given[p.name], "double") if p.kind == "float"
             else given[p.name] for p in parameters}
    e = Emitter(words, b)
    holds = functools.reduce(b.and_, map(e.value, v.program.conditions), const("i1", True))
    extents = [e.value(x.nbytes) for x in v.program.arguments]
    for flag in e.overflows:
        holds = b.and_(holds, b.not_(flag))
    with b.when(holds):
        fit = const("i1", True)
        for k, (x, role, nbytes) in enumerate(zip(v.program.arguments, roles, extents)):
            entry = b.add(table, k * _ENTRY)
            for place, value in ((request.ROLE, role), (request.CODE, request.CODES[dtype_name(x.dtype)]), (request.NBYTES, nbytes)):
                fit = b.and_(fit, b.equal(b.get(entry, 8 * place), value))
        b.answer(b.truth(fit))


def _measure(m: Module):
    """measure(request, bytes, result's head, tensors, their copies, times): run what the request asks. Returns 0, or what is wrong with it."""
    b, q = Words(m, "measure", "q", "length", "head", "tensors", "kept", "times"), request
    asked, length, head, tensors, kept, times = b.fn.args
    _check(b, asked, length)
    count, number, threads, reps, warm = (b.get(asked, 8 * k) for k in (q.TENSORS, q.FUNCTION, q.THREADS, q.REPETITIONS, q.WARMUP))
    table = b.add(asked, q.HEAD * 8)
    sizes = b.add(table, b.mul(count, _ENTRY))
    with b.when(b.equal(b.run("fits", number, table, sizes), 0)):
        b.answer(q.DAMAGED)
    _load(b, asked, length, table, count, tensors)
    b.put(b.run("tp_vlen"), head, 8 * q.R_VLEN)
    b.put(b.run("tp_cpus"), head, 8 * q.R_CPUS)
    start = b.run("now", WALL)
    status = b.run("invoke", number, tensors, sizes, threads)
    b.put(b.sub(b.run("now", WALL), start), head, 8 * q.R_FIRST)
    b.put(status, head, 8 * q.R_STATUS)
    with b.when(b.icmp("ne", status, 0)):
        b.put(b.run("strlen", b.run("triport_last_error")), head, 8 * q.R_SAID)
    _keep(b, head, table, count, tensors, kept)
    with b.when(b.icmp("ne", status, 0)):
        b.put(0, head, 8 * q.R_REPETITIONS)
        b.answer(0)
    with b.loop(i64(0), b.add(warm, reps)) as n:
        _restore(b, asked, table, count, tensors)
        cpu = b.run("now", CPU)
        wall = b.run("now", WALL)
        b.run("invoke", number, tensors, sizes, threads)
        wall = b.sub(b.run("now", WALL), wall)
        cpu = b.sub(b.run("now", CPU), cpu)
        with b.when(b.icmp("uge", n, warm)):
            place = b.add(times, b.mul(b.sub(n, warm), 8))
            b.put(wall, place)
            b.put(cpu, b.add(place, b.mul(reps, 8)))
    b.put(reps, head, 8 * q.R_REPETITIONS)
    b.answer(0)


def _check(b: Words, asked: Val, length: Val):
    """Refuse what is no request, or another program's."""
    q = request
    with b.when(b.icmp("ult", length, q.HEAD * 8)):
        b.answer(q.SHORT)
    with b.when(b.icmp("ne", b.get(asked), q.MAGIC)):
        b.answer(q.NOT_A_REQUEST)
    for relation, said in (("ugt", q.SHORT), ("ult", q.LONG)):
        with b.when(b.icmp(relation, b.get(asked, 8 * q.BYTES), length)):
            b.answer(said)
    with b.when(b.icmp("ne", b.run("checksum", asked, length), b.get(asked, 8 * q.CHECKSUM))):
        b.answer(q.CHANGED)
    for k, most in ((q.TENSORS, q.MOST_TENSORS), (q.SIZES, q.MOST_SIZES), (q.REPETITIONS, q.MOST_REPETITIONS), (q.WARMUP, q.MOST_REPETITIONS)):
        with b.when(b.icmp("ugt", b.get(asked, 8 * k), most)):
            b.answer(q.NOT_A_REQUEST)
    with b.when(b.icmp("ugt", b.add(b.add(b.mul(b.get(asked, 8 * q.TENSORS), _ENTRY), b.mul(b.get(asked, 8 * q.SIZES), 8)), 8 * q.HEAD), length)):
        b.answer(q.DAMAGED)
    with b.when(b.equal(b.run("takes", *(b.get(asked, 8 * k) for k in (q.FUNCTION, q.NAMED, q.TENSORS, q.SIZES))), 0)):
        b.answer(q.NOT_A_REQUEST)


def _checksum(m: Module):
    """checksum(request, its bytes): what `request.sealed` puts there. Behind the bytes are 8 that may be read."""
    b = Words(m, "checksum", "at", "length")
    at, length = b.fn.args
    total, rest = b.changing(), b.and_(length, 7)
    whole = b.lshr(length, 3)
    with b.loop(i64(0), whole) as n:
        with b.when(b.icmp("ne", n, request.CHECKSUM)):
            total.set(b.add(total.get(), b.mul(b.get(at, b.mul(n, 8)), b.add(b.mul(n, 2), 1))))
    last = b.and_(b.get(at, b.mul(whole, 8)), b.sub(b.shl(i64(1), b.mul(rest, 8)), 1))
    b.answer(b.add(total.get(), b.mul(last, b.add(b.mul(whole, 2), 1))))


def _load(b: Words, asked: Val, length: Val, table: Val, count: Val, tensors: Val):
    """Place the tensors."""
    with b.loop(i64(0), count) as k:
        entry = b.add(table, b.mul(k, _ENTRY))
        role, nbytes, offset, code, want, wanted = (b.get(entry, 8 * k) for k in (request.ROLE, request.NBYTES, request.OFFSET, request.CODE, request.WANT, request.WANTED))
        other = b.or_(b.equal(role, request.ROLES["in"]), b.icmp("ne", b.mul(wanted, _width(b, code)), nbytes))  # no result, or one of another length
        for wrong in (_beyond(b, offset, nbytes, length), b.icmp("ugt", wanted, length), _beyond(b, want, b.mul(wanted, 8), length),
                      b.and_(b.icmp("ne", want, 0), other)):
            with b.when(wrong):
                b.answer(request.DAMAGED)
        at = b.run("place", nbytes)
        with b.when(b.equal(at, 0)):
            b.answer(request.NO_MEMORY)
        b.run("memcpy", at, b.add(asked, offset), nbytes)
        b.put(at, b.add(tensors, b.mul(k, 8)))


def _beyond(b: Words, offset: Val, nbytes: Val, length: Val) -> Val:
    """Do so many bytes from an offset on leave a file of that length?"""
    return b.or_(b.icmp("ugt", b.add(nbytes, offset), length), b.or_(b.icmp("ugt", nbytes, length), b.icmp("ugt", offset, length)))


def _width(b: Words, code: Val) -> Val:
    """Bytes of an element of the dtype with that code; a result whose code is none is compared as fp32."""
    width = i64(request.WIDTHS["fp32"])
    for name, number in request.CODES.items():
        width = b.select(b.equal(code, number), i64(request.WIDTHS[name]), width)
    return width


def _keep(b: Words, head: Val, table: Val, count: Val, tensors: Val, kept: Val):
    """What the first call wrote is the result; it is kept while later ones are timed."""
    whole = b.changing(1)
    with b.loop(i64(0), count) as k:
        entry = b.add(table, b.mul(k, _ENTRY))
        nbytes, at = b.get(entry, 8), b.get(b.add(tensors, b.mul(k, 8)))
        whole.set(b.and_(whole.get(), b.run("watched", at)))
        with b.when(b.icmp("ne", b.get(entry), request.ROLES["in"])):
            copy = b.run("realloc", 0, b.add(nbytes, 1))
            with b.when(b.equal(copy, 0)):
                b.answer(request.NO_MEMORY)
            b.run("memcpy", copy, at, nbytes)
            b.put(copy, b.add(kept, b.mul(k, 8)))
    b.put(whole.get(), head, 8 * request.R_WHOLE)


def _restore(b: Words, asked: Val, table: Val, count: Val, tensors: Val):
    """In place: from the same start each time."""
    with b.loop(i64(0), count) as k:
        entry = b.add(table, b.mul(k, _ENTRY))
        with b.when(b.equal(b.get(entry), request.ROLES["inout"])):
            b.run("memcpy", b.get(b.add(tensors, b.mul(k, 8))), b.add(asked, b.get(entry, 16)), b.get(entry, 8))


def _as_double(m: Module):
    """as_double(address, dtype code): the bits of the element's value."""
    b = Words(m, "as_double", "at", "code")
    at, code = b.fn.args
    for name in request.CODES:
        with b.when(b.equal(code, request.CODES[name])):
            if name in ("uint8", "bool"):
                b.answer(b.bitcast(b.cast("uitofp", b.get(at, 0, "i8"), "double"), "i64"))
            elif name == "fp16":
                b.answer(_half(b, b.cast("zext", b.get(at, 0, "i16"), "i64")))
            elif name == "fp64":
                b.answer(b.get(at))
            elif name == "fp32":
                b.answer(b.bitcast(b.cast("fpext", b.get(at, 0, "float"), "double"), "i64"))
            elif name == "bf16":
                bits = b.shl(b.cast("zext", b.get(at, 0, "i16"), "i32"), 16)
                b.answer(b.bitcast(b.cast("fpext", b.bitcast(bits, "float"), "double"), "i64"))
            else:
                b.answer(b.bitcast(b.cast("sitofp", b.get(at, 0, f"i{8 * request.WIDTHS[name]}"), "double"), "i64"))
    b.answer(0)


def _half(b: Words, h: Val) -> Val:
    """Bits of a double from those of a half: the exponent's bias is 15 instead of 1023; 31 is infinity or NaN."""
    magnitude = b.and_(h, 0x7fff)
    body = b.shl(magnitude, 42)
    small = b.bitcast(b.fbin("fmul", b.bitcast(body, "double"), const("double", 2.0**1008), ""), "i64")
    bits = b.select(b.icmp("uge", magnitude, 0x7c00), b.or_(body, 0x7ff << 52), small)
    return b.or_(bits, b.shl(b.lshr(h, 15), 63))


def _error_of(m: Module):
    """error_of(result, its dtype code, expected fp64 values, their number): the bits of the error of `ops/accuracy.py`, over finite elements, infinite
    where NaN or infinities differ."""
    b = Words(m, "error_of", "got", "code", "want", "count")
    got, code, want, count = b.fn.args
    infinite, nought = 0x7ff << 52, const("double", 0.0)
    diff, size, finite_ones, farthest, step = b.variable(nought), b.variable(nought), b.variable(i64(0)), b.variable(nought), _width(b, code)

    def element(k):
        """(of the k-th element: got, expected, and whether both are finite)."""
        gb, wb = b.run("as_double", b.add(got, b.mul(k, step)), code), b.get(b.add(want, b.mul(k, 8)))
        return b.bitcast(gb, "double"), b.bitcast(wb, "double"), b.and_(*(b.icmp("ult", b.and_(bits, (1 << 63) - 1), infinite) for bits in (gb, wb)))

    def squares(g, w):
        d = b.fbin("fsub", g, w, "")
        return b.fbin("fmul", d, d, ""), b.fbin("fmul", w, w, "")

    with b.loop(i64(0), count) as k:
        g, w, both = element(k)
        with b.either(both) as (finite, special):
            with special:
                alike = b.or_(b.and_(b.fcmp("uno", g, g), b.fcmp("uno", w, w)), b.fcmp("oeq", g, w))
                with b.when(b.not_(alike)):
                    b.answer(infinite)
            with finite:
                off, expected = squares(g, w)
                diff.set(b.fbin("fadd", diff.get(), off, ""))
                size.set(b.fbin("fadd", size.get(), expected, ""))
                finite_ones.set(b.add(finite_ones.get(), 1))
    with b.when(b.fcmp("oeq", diff.get(), nought)):
        b.answer(0)
    mean = b.fbin("fdiv", size.get(), b.cast("uitofp", finite_ones.get(), "double"), "")
    with b.loop(i64(0), count) as k:
        g, w, both = element(k)
        with b.when(both):
            off, expected = squares(g, w)
            share = b.fbin("fdiv", off, b.select(b.fcmp("ogt", expected, mean), expected, mean), "")
            farthest.set(b.select(b.fcmp("ogt", share, farthest.get()), share, farthest.get()))
    of_all, of_one = b.fbin("fdiv", diff.get(), size.get(), ""), b.fbin("fdiv", farthest.get(), const("double", float(FAR**2)), "")
    b.answer(b.bitcast(b.intrinsic("sqrt", b.select(b.fcmp("ogt", of_one, of_all), of_one, of_all)), "i64"))
