"""The program of a bundle: checks and times the bundle's functions, and serves the runners of `runner.py`.

    PROGRAM CASE...    run case files: a line each, exit code 1 where one is wrong
    PROGRAM            one request on standard input, its result on standard output (`request.py`)
    PROGRAM --board    what the machine is, as far as Linux says

It needs libc and nothing else. Each tensor lies at the end of its pages, behind it one that may not be touched.
"""

from __future__ import annotations

from ..cpu.llvm import targets
from . import request
from .library import STATUS, WRONG_MACHINE, Function as Exported, base_row
from .link import LOADERS
from .native import Function, Module

#: what `--board` shows
FILES = ("/proc/cpuinfo", "/proc/meminfo", *(f"/sys/devices/system/cpu/cpu{k}/cache/index{i}/{what}" for k in range(64) for i in (2, 3)
                                             for what in ("shared_cpu_list", "size")), "/proc/device-tree/model")
_SLACK = 64  # bytes before a tensor that are watched

_START = """
@interp = constant [{length} x i8] c"{loader}\\00", section ".interp"
declare i32 @__libc_start_main(ptr, i32, ptr, ptr, ptr, ptr, ptr)
declare ptr @llvm.stacksave.p0()
declare double @llvm.sqrt.f64(double)
declare void @abort()
define internal i32 @main(i32 %argc, ptr %argv) {{
  %n = zext i32 %argc to i64
  %v = ptrtoint ptr %argv to i64
  %r = call i64 @run_main(i64 %n, i64 %v)
  %e = trunc i64 %r to i32
  ret i32 %e
}}
define internal void @begin(ptr %sp) noinline {{
  %c = load i64, ptr %sp
  %n = trunc i64 %c to i32
  %v = getelementptr i64, ptr %sp, i64 1
  %r = call i32 @__libc_start_main(ptr @main, i32 %n, ptr %v, ptr null, ptr null, ptr null, ptr %sp)
  call void @abort()
  unreachable
}}
define hidden void @_start() naked noreturn {{
  %sp = call ptr @llvm.stacksave.p0() ; Linux puts the arguments there
  call void @begin(ptr %sp)
  unreachable
}}
"""

_LIBC = {"read": "declare i64 @read(i64, i64, i64)", "write": "declare i64 @write(i64, i64, i64)", "open": "declare i32 @open(i64, i64, i64)",
         "close": "declare i32 @close(i64)", "realloc": "declare i64 @realloc(i64, i64)", "free": "declare void @free(i64)",
         "mmap": "declare i64 @mmap(i64, i64, i64, i64, i64, i64)", "mprotect": "declare i32 @mprotect(i64, i64, i64)",
         "munmap": "declare i32 @munmap(i64, i64)", "memcpy": "declare i64 @memcpy(i64, i64, i64)", "memset": "declare i64 @memset(i64, i64, i64)",
         "clock_gettime": "declare i32 @clock_gettime(i64, i64)", "getpagesize": "declare i32 @getpagesize()",
         "strcmp": "declare i32 @strcmp(i64, i64)", "fflush": "declare i32 @fflush(i64)", "getauxval": "declare i64 @getauxval(i64)",
         "strlen": "declare i64 @strlen(i64)", "triport_last_error": "declare i64 @triport_last_error()",
         "tp_vlen": "declare hidden i64 @tp_vlen()", "tp_cpus": "declare hidden i64 @tp_cpus()", "tp_machine": "declare hidden i32 @tp_machine()"}


def harness_ir(functions: list[Exported], row: targets.Target) -> tuple[str, targets.Target]:
    """(IR of the program, the row to compile it for)."""
    m = Module(row.triple)
    for name, text in _LIBC.items():
        m.declare(name, text)
    m.declare("printf", "declare i32 @printf(ptr, ...)", "i32 (ptr, ...)")
    loader = LOADERS[row.triple.partition("-")[0]]
    m.extra.append(_START.format(loader=loader, length=len(loader) + 1))
    for f in functions:
        args = ", ".join(["ptr"] * len(f.program.arguments) + ["i64"] * len(f.sizes) + ["i32"])
        m.extra.append(f"declare hidden i32 @{f.name}({args})")
    _reading(m)
    _placing(m)
    _time(m)
    _calling(m, functions)
    _measuring(m)
    _error(m)
    _serving(m)
    _telling(m, functions)
    _board(m, row)
    _main(m)
    return m.ir(), base_row(row)


def _reading(m: Module):
    """read_all(fd, place for the length): the address of all that it holds, 0 where that fails."""
    f = m.function("read_all", "fd", "length")
    at, have, size = f.word(), f.word(), f.word()
    going = f.word(1)
    with f.loop(lambda: f.is_("ne", going.get(), 0)):
        with f.when(f.is_("eq", have.get(), size.get())):
            size.set(f.add(f.mul(size.get(), 2), 1 << 16))
            at.set(f.call("realloc", at.get(), size.get()))
            with f.when(f.is_("eq", at.get(), 0)):
                f.ret(0)
        got = f.call("read", "%fd", f.add(at.get(), have.get()), f.sub(size.get(), have.get()))
        with f.when(f.is_("slt", got, 0)):
            f.ret(0)
        with f.when(f.is_("eq", got, 0)):
            going.set(0)
        have.set(f.add(have.get(), got))
    f.store(have.get(), "%length")
    f.ret(at.get())
    # write_all(fd, address, bytes): 0, or 1 where that fails
    f = m.function("write_all", "fd", "at", "bytes")
    done = f.word()
    with f.loop(lambda: f.is_("ult", done.get(), "%bytes")):
        put = f.call("write", "%fd", f.add("%at", done.get()), f.sub("%bytes", done.get()))
        with f.when(f.is_("sle", put, 0)):
            f.ret(1)
        done.set(f.add(done.get(), put))
    f.ret(0)


def _pages(f: Function, nbytes: str) -> tuple[str, str]:
    """(bytes of a page, bytes of the pages for a tensor and its slack)."""
    page = f.op(f"sext i32 {f.call('getpagesize', returns='i32')} to i64")
    some = f.add(f.add(nbytes, _SLACK - 1), page)
    return page, f.sub(some, f.urem(some, page))


def _placing(m: Module):
    """place(bytes): memory that ends where a page begins that may not be touched; 0 where there is none."""
    f = m.function("place", "nbytes")
    page, whole = _pages(f, "%nbytes")
    base = f.call("mmap", 0, f.add(whole, page), 3, 0x22, -1, 0)  # read and write; private, anonymous
    with f.when(f.is_("eq", base, -1)):
        f.ret(0)
    end = f.add(base, whole)
    f.call("mprotect", end, page, 0, returns="i32")
    start = f.sub(end, "%nbytes")
    f.call("memset", base, request.SLACK, f.sub(start, base))
    f.ret(start)
    # watched(tensor, bytes): 1 where what lies before it is as it was
    f = m.function("watched", "at", "nbytes")
    with f.count_to(_SLACK) as k:
        byte = f.load(f.sub(f.sub("%at", 1), k), 0, "i8")
        with f.when(f.is_("ne", byte, request.SLACK, "i8")):
            f.ret(0)
    f.ret(1)
    f = m.function("leave", "at", "nbytes")
    page, whole = _pages(f, "%nbytes")
    f.call("munmap", f.sub(f.add("%at", "%nbytes"), whole), f.add(whole, page), returns="i32")


def _time(m: Module):
    """now(clock): nanoseconds."""
    f = m.function("now", "clock")
    t = f.room(2)
    f.call("clock_gettime", "%clock", t, returns="i32")
    f.ret(f.add(f.mul(f.load(t), 1_000_000_000), f.load(t, 8)))


def _calling(m: Module, functions: list[Exported]):
    """invoke(number, addresses of tensors, sizes, threads): the status; -1 for a number that is none."""
    f = m.function("invoke", "number", "tensors", "sizes", "threads")
    threads = f.op("trunc i64 %threads to i32")
    for n, x in enumerate(functions):
        with f.when(f.is_("eq", "%number", n)):
            args = [("ptr", f.op(f"inttoptr i64 {f.load('%tensors', 8 * k)} to ptr")) for k in range(len(x.program.arguments))]
            args += [("i64", f.load("%sizes", 8 * k)) for k in range(len(x.sizes))]
            f.ret(f.op(f"sext i32 {f.call(x.name, *args, ('i32', threads), returns='i32')} to i64"))
    f.ret(-1)
    f = m.function("takes", "number", "tensors", "sizes")
    for n, x in enumerate(functions):
        with f.when(f.is_("eq", "%number", n)):
            good = f.op(f"and i1 {f.is_('eq', '%tensors', len(x.program.arguments))}, {f.is_('eq', '%sizes', len(x.sizes))}")
            f.ret(f.op(f"zext i1 {good} to i64"))


def _measuring(m: Module):
    """measure(request, bytes, result's head, tensors, their copies, times): run what the request asks. Returns 0, or what is wrong with it."""
    f = m.function("measure", "q", "length", "head", "tensors", "kept", "times")
    q = request
    with f.when(f.is_("ult", "%length", q.HEAD * 8)):
        f.ret(q.SHORT)
    with f.when(f.is_("ne", f.load("%q", 0), q.MAGIC)):
        f.ret(q.NOT_A_REQUEST)
    with f.when(f.is_("ne", f.load("%q", 8 * q.BYTES), "%length")):
        f.ret(q.SHORT)
    count, sizes = f.load("%q", 8 * q.TENSORS), f.load("%q", 8 * q.SIZES)
    number, threads, reps = f.load("%q", 8 * q.FUNCTION), f.load("%q", 8 * q.THREADS), f.load("%q", 8 * q.REPETITIONS)
    for value, most in ((count, q.MOST_TENSORS), (sizes, q.MOST_SIZES), (reps, q.MOST_REPETITIONS)):
        with f.when(f.is_("ugt", value, most)):
            f.ret(q.NOT_A_REQUEST)
    with f.when(f.is_("eq", f.call("takes", number, count, sizes), 0)):
        f.ret(q.NOT_A_REQUEST)
    table = f.add("%q", q.HEAD * 8)
    dims = f.add(table, f.mul(count, 24))
    with f.count_to(count) as k:
        entry = f.add(table, f.mul(k, 24))
        nbytes, offset = f.load(entry, 8), f.load(entry, 16)
        end = f.add(nbytes, offset)
        beyond = f.op(f"or i1 {f.is_('ugt', end, '%length')}, {f.is_('ugt', nbytes, '%length')}")
        with f.when(beyond):
            f.ret(q.SHORT)
        at = f.call("place", nbytes)
        with f.when(f.is_("eq", at, 0)):
            f.ret(q.NO_MEMORY)
        f.call("memcpy", at, f.add("%q", offset), nbytes)
        f.store(at, f.add("%tensors", f.mul(k, 8)))
    f.store(f.call("tp_vlen"), "%head", 8 * q.R_VLEN)
    f.store(f.call("tp_cpus"), "%head", 8 * q.R_CPUS)
    start = f.call("now", 1)
    status = f.call("invoke", number, "%tensors", dims, threads)
    f.store(f.sub(f.call("now", 1), start), "%head", 8 * q.R_FIRST)
    f.store(status, "%head", 8 * q.R_STATUS)
    with f.when(f.is_("ne", status, 0)):
        f.store(f.call("strlen", f.call("triport_last_error")), "%head", 8 * q.R_SAID)
    whole = f.word(1)
    with f.count_to(count) as k:  # what the first call wrote is the result; it is kept while later ones are timed
        entry = f.add(table, f.mul(k, 24))
        nbytes = f.load(entry, 8)
        at = f.load(f.add("%tensors", f.mul(k, 8)))
        whole.set(f.and_(whole.get(), f.call("watched", at, nbytes)))
        with f.when(f.is_("ne", f.load(entry), 0)):
            copy = f.call("realloc", 0, f.add(nbytes, 1))
            with f.when(f.is_("eq", copy, 0)):
                f.ret(q.NO_MEMORY)
            f.call("memcpy", copy, at, nbytes)
            f.store(copy, f.add("%kept", f.mul(k, 8)))
    f.store(whole.get(), "%head", 8 * q.R_WHOLE)
    with f.when(f.is_("ne", status, 0)):
        f.store(0, "%head", 8 * q.R_REPETITIONS)
        f.ret(0)
    warm = f.load("%q", 8 * q.WARMUP)
    all_ = f.add(warm, reps)
    with f.count_to(all_) as n:
        with f.count_to(count) as k:  # in place: from the same start each time
            entry = f.add(table, f.mul(k, 24))
            with f.when(f.is_("eq", f.load(entry), 2)):
                f.call("memcpy", f.load(f.add("%tensors", f.mul(k, 8))), f.add("%q", f.load(entry, 16)), f.load(entry, 8))
        cpu = f.call("now", 2)
        wall = f.call("now", 1)
        f.call("invoke", number, "%tensors", dims, threads)
        wall = f.sub(f.call("now", 1), wall)
        cpu = f.sub(f.call("now", 2), cpu)
        with f.when(f.is_("uge", n, warm)):
            place = f.add("%times", f.mul(f.sub(n, warm), 8))
            f.store(wall, place)
            f.store(cpu, f.add(place, f.mul(reps, 8)))
    f.store(reps, "%head", 8 * q.R_REPETITIONS)
    f.ret(0)


def _error(m: Module):
    """as_double(address, dtype code) and error_of(result, its dtype code, expected fp64 values, their number): the bits of ||got - want|| / ||want||
    over finite elements, infinite where NaN or infinities differ (as `ops/accuracy.py`)."""
    f = m.function("as_double", "at", "code")

    def answer(x: str):
        f.ret(f.op(f"bitcast double {x} to i64"))

    def when(code: int):
        return f.when(f.is_("eq", "%code", code))

    with when(request.CODES["fp32"]):
        answer(f.op(f"fpext float {f.load('%at', 0, 'float')} to double"))
    with when(request.CODES["fp64"]):
        f.ret(f.load("%at"))
    with when(request.CODES["bf16"]):
        bits = f.op(f"shl i32 {f.op('zext i16 ' + f.load('%at', 0, 'i16') + ' to i32')}, 16")
        answer(f.op(f"fpext float {f.op(f'bitcast i32 {bits} to float')} to double"))
    with when(request.CODES["fp16"]):  # the exponent's bias is 15 instead of 1023; 31 is infinity or NaN
        h = f.op(f"zext i16 {f.load('%at', 0, 'i16')} to i64")
        body = f.shl(f.and_(h, 0x7fff), 42)
        small = f.op(f"fmul double {f.op(f'bitcast i64 {body} to double')}, 0x7EF0000000000000")  # 2^1008
        bits = f.op(f"bitcast double {small} to i64")
        special = f.is_("uge", f.and_(h, 0x7fff), 0x7c00)
        bits = f.op(f"select i1 {special}, i64 {f.or_(body, 0x7ff << 52)}, i64 {bits}")
        f.ret(f.or_(bits, f.shl(f.lshr(h, 15), 63)))
    for name, ty in (("int32", "i32"), ("int64", "i64"), ("int16", "i16"), ("int8", "i8")):
        with when(request.CODES[name]):
            answer(f.op(f"sitofp {ty} {f.load('%at', 0, ty)} to double"))
    f = m.function("error_of", "got", "code", "want", "count")
    infinite = str(0x7ff << 52)
    diff, size, step = f.double(), f.double(), f.word(request.WIDTHS["fp32"])
    for name, code in request.CODES.items():
        with f.when(f.is_("eq", "%code", code)):
            step.set(request.WIDTHS[name])
    with f.count_to("%count") as k:
        gb = f.call("as_double", f.add("%got", f.mul(k, step.get())), "%code")
        wb = f.load(f.add("%want", f.mul(k, 8)))
        g, w = f.op(f"bitcast i64 {gb} to double"), f.op(f"bitcast i64 {wb} to double")
        finite = []
        for bits in (gb, wb):
            finite.append(f.is_("ult", f.and_(bits, (1 << 63) - 1), infinite))
        both = f.op(f"and i1 {finite[0]}, {finite[1]}")
        with f.when(f.op(f"xor i1 {both}, true")):
            nan_g, nan_w = f.is_("uno", g, g, "double"), f.is_("uno", w, w, "double")
            alike = f.op(f"or i1 {f.op(f'and i1 {nan_g}, {nan_w}')}, {f.is_('oeq', g, w, 'double')}")
            with f.when(f.op(f"xor i1 {alike}, true")):
                f.ret(infinite)
        with f.when(both):
            d = f.op(f"fsub double {g}, {w}")
            diff.set(f.op(f"fadd double {diff.get()}, {f.op(f'fmul double {d}, {d}')}"))
            size.set(f.op(f"fadd double {size.get()}, {f.op(f'fmul double {w}, {w}')}"))
    with f.when(f.is_("oeq", diff.get(), "0.0", "double")):
        f.ret(0)
    ratio = f.op(f"fdiv double {diff.get()}, {size.get()}")
    f.ret(f.op(f"bitcast double {f.op(f'call double @llvm.sqrt.f64(double {ratio})')} to i64"))


def _serving(m: Module):
    """serve(): one request from standard input. Returns the exit code."""
    q = request
    f = m.function("serve")
    length = f.room(1)
    data = f.call("read_all", 0, length)
    head, tensors, kept = f.room(q.R_HEAD), f.room(q.MOST_TENSORS), f.room(q.MOST_TENSORS)
    f.call("memset", head, 0, q.R_HEAD * 8)
    f.call("memset", kept, 0, q.MOST_TENSORS * 8)
    times = f.call("realloc", 0, 16 * q.MOST_REPETITIONS)
    bad = f.word(q.SHORT)
    ready = f.op(f"and i1 {f.is_('ne', data, 0)}, {f.is_('ne', times, 0)}")
    with f.when(ready):
        bad.set(f.call("measure", data, f.load(length), head, tensors, kept, times))
    f.store(q.MAGIC, head)
    f.store(bad.get(), head, 8 * q.R_BAD)
    wrong = f.word(f.call("write_all", 1, head, q.R_HEAD * 8))
    with f.when(f.is_("eq", bad.get(), 0)):
        wrong.set(f.or_(wrong.get(), f.call("write_all", 1, f.call("triport_last_error"), f.load(head, 8 * q.R_SAID))))
        reps = f.load(head, 8 * q.R_REPETITIONS)
        asked = f.load(data, 8 * q.REPETITIONS)
        wrong.set(f.or_(wrong.get(), f.call("write_all", 1, times, f.mul(reps, 8))))
        wrong.set(f.or_(wrong.get(), f.call("write_all", 1, f.add(times, f.mul(asked, 8)), f.mul(reps, 8))))
        with f.count_to(f.load(data, 8 * q.TENSORS)) as k:
            copy = f.load(f.add(kept, f.mul(k, 8)))
            with f.when(f.is_("ne", copy, 0)):
                nbytes = f.load(f.add(f.add(data, q.HEAD * 8), f.mul(k, 24)), 8)
                wrong.set(f.or_(wrong.get(), f.call("write_all", 1, copy, nbytes)))
    f.ret(wrong.get())


def _telling(m: Module, functions: list[Exported]):
    """tell(path): run a case file and print what came of it; 0 where it is right."""
    q = request
    f = m.function("tell", "path")
    fd = f.op(f"sext i32 {f.call('open', '%path', 0, 0, returns='i32')} to i64")
    with f.when(f.is_("slt", fd, 0)):
        f.print("%s: cannot be opened\n", "%path")
        f.ret(1)
    length = f.room(1)
    data = f.call("read_all", fd, length)
    f.call("close", fd, returns="i32")
    head, tensors, kept = f.room(q.R_HEAD), f.room(q.MOST_TENSORS), f.room(q.MOST_TENSORS)
    f.call("memset", head, 0, q.R_HEAD * 8)
    f.call("memset", kept, 0, q.MOST_TENSORS * 8)
    times = f.call("realloc", 0, 16 * q.MOST_REPETITIONS)
    with f.when(f.op(f"or i1 {f.is_('eq', data, 0)}, {f.is_('eq', times, 0)}")):
        f.print("%s: cannot be read\n", "%path")
        f.ret(1)
    bad = f.call("measure", data, f.load(length), head, tensors, kept, times)
    for value, text in q.BAD.items():
        with f.when(f.is_("eq", bad, value)):
            f.print(f"%s: {text}\n", "%path")
            f.ret(1)
    status = f.load(head, 8 * q.R_STATUS)
    for value, name, _ in STATUS[1:]:
        with f.when(f.is_("eq", status, value)):
            f.print(f"%s: {name}: %s", "%path", f.call("triport_last_error"))
            if value == WRONG_MACHINE:
                f.print(" (vector registers here: %ld bits)", f.load(head, 8 * q.R_VLEN))
            f.print("\n")
            f.ret(1)
    with f.when(f.is_("eq", f.load(head, 8 * q.R_WHOLE), 0)):
        f.print("%s: WRONG: memory before a tensor was written\n", "%path")
        f.ret(1)
    reps = f.load(head, 8 * q.R_REPETITIONS)
    _sort(f, times, reps)
    number = f.load(data, 8 * q.RESULT)
    got = f.load(f.add(kept, f.mul(number, 8)))
    error = f.call("error_of", got, f.load(data, 8 * q.CODE), f.add(data, f.load(data, 8 * q.WANT)), f.load(data, 8 * q.WANTED))
    e, allowed = f.op(f"bitcast i64 {error} to double"), f.load(data, 8 * q.ALLOWED, "double")
    right = f.is_("ole", e, allowed, "double")
    verdict = f.op(f"select i1 {right}, i64 {f.text('right')}, i64 {f.text('WRONG')}")
    f.print("%s: %s, error %.2g of %.2g allowed", "%path", verdict, ("double", e), ("double", allowed))
    with f.when(f.is_("ugt", reps, 0)):
        def us(n: str) -> tuple[str, str]:
            ns = f.load(f.add(times, f.mul(n, 8)))
            return "double", f.op(f"fdiv double {f.op(f'uitofp i64 {ns} to double')}, 1000.0")
        asked = f.load(data, 8 * q.THREADS)
        team = f.op(f"select i1 {f.is_('eq', asked, 0)}, i64 {f.load(head, 8 * q.R_CPUS)}, i64 {asked}")
        f.print(", median %.1f us (%.1f to %.1f, %ld runs, %ld threads)", us(f.udiv(reps, 2)), us("0"), us(f.sub(reps, 1)), reps, team)
    f.print("\n")
    f.ret(f.op(f"select i1 {right}, i64 0, i64 1"))


def _sort(f: Function, at: str, count: str):
    """Ascending, by insertion: some hundred words."""
    with f.count_to(count) as n:
        k = f.word(n)

        def unsorted():
            some = f.is_("ugt", k.get(), 0)
            here = f.add(at, f.mul(k.get(), 8))
            before = f.op(f"select i1 {some}, i64 {f.sub(here, 8)}, i64 {here}")
            return f.is_("ugt", f.load(before), f.load(here))

        with f.loop(unsorted):
            here = f.add(at, f.mul(k.get(), 8))
            a, b = f.load(here), f.load(here, -8)
            f.store(b, here)
            f.store(a, here, -8)
            k.set(f.sub(k.get(), 1))


def _board(m: Module, row: targets.Target):
    """board(): print what this machine is, for `board.Board`."""
    f = m.function("board")
    f.print(f"target {row.name}\nvlen %ld\ncpus %ld\nhwcap %lx\nfits %ld\n", f.call("tp_vlen"), f.call("tp_cpus"), f.call("getauxval", 16),
            f.op(f"zext i1 {f.is_('eq', f.call('tp_machine', returns='i32'), 0, 'i32')} to i64"))
    f.call("fflush", 0, returns="i32")
    length = f.room(1)
    for path in FILES:
        fd = f.op(f"sext i32 {f.call('open', f.text(path), 0, 0, returns='i32')} to i64")
        with f.when(f.is_("sge", fd, 0)):
            data = f.call("read_all", fd, length)
            f.print(f"file {path} %ld\n", f.load(length))
            f.call("fflush", 0, returns="i32")
            f.call("write_all", 1, data, f.load(length))
            f.call("close", fd, returns="i32")
    f.ret(0)


def _main(m: Module):
    f = m.function("run_main", "argc", "argv")
    with f.when(f.is_("ule", "%argc", 1)):
        f.ret(f.call("serve"))
    first = f.load("%argv", 8)
    with f.when(f.is_("eq", f.call("strcmp", first, f.text("--board"), returns="i32"), 0, "i32")):
        f.ret(f.call("board"))
    wrong, k = f.word(), f.word(1)
    with f.loop(lambda: f.is_("ult", k.get(), "%argc")):
        wrong.set(f.or_(wrong.get(), f.call("tell", f.load(f.add("%argv", f.mul(k.get(), 8))))))
        f.call("fflush", 0, returns="i32")
        k.set(f.add(k.get(), 1))
    f.ret(wrong.get())
