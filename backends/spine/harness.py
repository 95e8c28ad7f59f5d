"""The program of a bundle: checks and times the bundle's functions, and serves the runners of `runner.py`.

    PROGRAM CASE...    run case files: a line each, exit code 1 where one is wrong or cannot be said; 2 for an option that there is not
    PROGRAM            one request on standard input, its result on standard output (`request.py`); exit code 2 where it is none
    PROGRAM --board    what the machine is, as far as Linux says
    PROGRAM --help     this

It needs libc and nothing else.
"""

from __future__ import annotations

from ..cpu.llvm import targets
from ..cpu.llvm.ir import NULL, Module, Val, c_string, const, define, i64
from . import measure, request
from .library import STATUS, WRONG_MACHINE, Function as Exported, base_row
from .link import LOADERS
from .words import Words

#: what `--board` shows
FILES = ("/proc/cpuinfo", "/proc/meminfo", *(f"/sys/devices/system/cpu/cpu{k}/cache/index{i}/{what}" for k in range(64) for i in (2, 3)
                                             for what in ("shared_cpu_list", "size")), "/proc/device-tree/model")
#: what `--help` says
USAGE = """Checks and times the functions of a bundle of triport's.

  PROGRAM CASE...    run case files, as cases/*.case: a line each, exit code 1 where one is wrong
  PROGRAM --board    what this machine is
  PROGRAM            one request on standard input, its result on standard output
"""
#: exit code where the request is none
REFUSED = 2


def harness_ir(functions: list[Exported], names: list[int], row: targets.Target) -> tuple[str, targets.Target]:
    """(IR of the program, the row to compile it for). names: what requests call the functions (`request.named`)."""
    m = Module("harness", row.triple, attributes="")
    m.declare("tp_vlen", "hidden i64", [])
    m.declare("tp_cpus", "hidden i64", [])
    m.declare("tp_absent", "hidden i64", [])
    for f in functions:
        m.declare(f.name, "hidden i32", ["ptr"] * len(f.program.arguments)
                  + [{"float": "double", "bool": "i32"}.get(p.kind, "i64") for p in f.parameters] + ["i32"])
    _start(m, LOADERS[row.triple.partition("-")[0]])
    measure.add(m, functions, names)
    _serve(m)
    _tell(m, row)
    _sort(m)
    _board(m, row)
    _main(m)
    return m.render(), base_row(row)


def _start(m: Module, loader: str):
    """What Linux and libc call."""
    m.variable("interp", c_string(loader), "constant", ', section ".interp"')
    b = define(m, "main", "i32", "internal", argc="i32", argv="ptr")
    argc, argv = b.fn.args
    b.ret(b.cast("trunc", b.call("run_main", "i64", [b.cast("zext", argc, "i64"), b.address(argv)]), "i32"))
    b = define(m, "begin", "void", "internal", "noinline", sp="ptr")
    sp, = b.fn.args
    argc = b.cast("trunc", b.load("i64", sp), "i32")
    b.call("__libc_start_main", "i32", [Val("ptr", "@main"), argc, b.gep("i64", sp, i64(1)), NULL, NULL, NULL, sp])
    b.call("abort", "void", [])
    b.unreachable()
    b = define(m, "_start", "void", "hidden", "naked noreturn")
    b.call("begin", "void", [b.call("llvm.stacksave.p0", "ptr", [])])  # the stack's end: Linux puts the arguments there
    b.unreachable()


def _workplace(b: Words) -> tuple[Val, Val, Val, Val]:
    """(head of a result, addresses of tensors, of their copies, place for times): what `measure` fills. The last is 0 where there is no memory."""
    q = request
    head, tensors, kept = b.room(q.R_HEAD), b.room(q.MOST_TENSORS), b.room(q.MOST_TENSORS)
    b.run("memset", head, 0, q.R_HEAD * 8)
    b.run("memset", kept, 0, q.MOST_TENSORS * 8)
    return head, tensors, kept, b.run("realloc", 0, 16 * q.MOST_REPETITIONS)


def _serve(m: Module):
    """serve(): one request from standard input. Returns the exit code: `REFUSED` for what is no request, which stderr gets in words, too."""
    b, q = Words(m, "serve"), request
    length = b.room(1)
    data = b.run("read_all", 0, length)
    head, tensors, kept, times = _workplace(b)
    bad = b.changing(q.SHORT)
    with b.when(b.and_(b.icmp("ne", data, 0), b.icmp("ne", times, 0))):
        bad.set(b.run("measure", data, b.get(length), head, tensors, kept, times))
    b.put(q.MAGIC, head)
    b.put(bad.get(), head, 8 * q.R_BAD)
    wrong = b.changing()

    def write(at: Val, nbytes: Val | int):
        wrong.set(b.or_(wrong.get(), b.run("write_all", 1, at, nbytes)))

    write(head, q.R_HEAD * 8)
    with b.when(b.equal(bad.get(), 0)):
        write(b.run("triport_last_error"), b.get(head, 8 * q.R_SAID))
        reps, asked = b.get(head, 8 * q.R_REPETITIONS), b.get(data, 8 * q.REPETITIONS)
        write(times, b.mul(reps, 8))
        write(b.add(times, b.mul(asked, 8)), b.mul(reps, 8))
        with b.loop(i64(0), b.get(data, 8 * q.TENSORS)) as k:
            copy = b.get(b.add(kept, b.mul(k, 8)))
            with b.when(b.icmp("ne", copy, 0)):
                write(copy, b.get(b.add(b.add(data, q.HEAD * 8), b.mul(k, 8 * q.ENTRY)), 8 * q.NBYTES))
    for value, text in q.BAD.items():
        with b.when(b.equal(bad.get(), value)):
            b.print_error(f"the request {text}\n")
            b.answer(REFUSED)
    b.answer(wrong.get())


def _tell(m: Module, row: targets.Target):
    """tell(path): run a case file and print what came of it; 0 where it is right."""
    b, q = Words(m, "tell", "path"), request
    path, = b.fn.args
    fd = b.run("open", path, 0, 0)
    with b.when(b.icmp("slt", fd, 0)):
        b.print("%s: cannot be opened\n", path)
        b.answer(1)
    length = b.room(1)
    data = b.run("read_all", fd, length)
    b.run("close", fd)
    head, tensors, kept, times = _workplace(b)
    with b.when(b.or_(b.equal(data, 0), b.equal(times, 0))):
        b.print("%s: cannot be read, or is too large for the memory that there is\n", path)
        b.answer(1)
    bad = b.run("measure", data, b.get(length), head, tensors, kept, times)
    _tell_failure(b, path, head, bad, row.length != "fixed")
    reps = b.get(head, 8 * q.R_REPETITIONS)
    b.run("sort", times, reps)
    worst, of, wrong = b.variable(const("double", 0.0)), b.variable(const("double", 0.0)), b.changing()
    with b.loop(i64(0), b.get(data, 8 * q.TENSORS)) as k:  # the result that is nearest to being wrong, or is
        entry = b.add(b.add(data, q.HEAD * 8), b.mul(k, 8 * q.ENTRY))
        with b.when(b.icmp("ne", b.get(entry, 8 * q.WANT), 0)):
            got = b.get(b.add(kept, b.mul(k, 8)))
            e = b.bitcast(b.run("error_of", got, b.get(entry, 8 * q.CODE), b.add(data, b.get(entry, 8 * q.WANT)), b.get(entry, 8 * q.WANTED)), "double")
            allowed = b.get(entry, 8 * q.ALLOWED, "double")
            this_wrong = b.not_(b.fcmp("ole", e, allowed))
            more = b.or_(b.fcmp("ogt", b.fbin("fmul", e, of.get(), ""), b.fbin("fmul", worst.get(), allowed, "")), b.fcmp("oeq", of.get(), const("double", 0.0)))
            with b.when(b.or_(this_wrong, b.and_(more, b.equal(wrong.get(), 0)))):
                worst.set(e)
                of.set(allowed)
            wrong.set(b.or_(wrong.get(), b.truth(this_wrong)))
    right = b.equal(wrong.get(), 0)
    against = b.select(b.equal(b.get(data, 8 * q.ITS_OWN), 0), b.text(""), b.text(q.BY_ITS_OWN))
    b.print("%s: %s%s, error %.2g of %.2g allowed", path, b.select(right, b.text("right"), b.text("WRONG")), against, worst.get(), of.get())
    with b.when(b.icmp("ugt", reps, 0)):
        _tell_times(b, data, head, times, reps)
    b.print("\n")
    b.answer(wrong.get())


def _tell_failure(b: Words, path: Val, head: Val, bad: Val, vectors: bool):
    """Print why there is no result, and return 1, where that is so. vectors: is the code for vector registers of a length?"""
    q = request
    for value, text in q.BAD.items():
        with b.when(b.equal(bad, value)):
            b.print(f"%s: {text}\n", path)
            b.answer(1)
    status = b.get(head, 8 * q.R_STATUS)
    for value, name, _ in STATUS[1:]:
        with b.when(b.equal(status, value)):
            b.print(f"%s: {name}: %s", path, b.run("triport_last_error"))
            if value == WRONG_MACHINE and vectors:
                b.print(" (vector registers here: %ld bits)", b.get(head, 8 * q.R_VLEN))
            b.print("\n")
            b.answer(1)
    with b.when(b.equal(b.get(head, 8 * q.R_WHOLE), 0)):
        b.print("%s: WRONG: memory before a tensor was written\n", path)
        b.answer(1)


def _tell_times(b: Words, data: Val, head: Val, times: Val, reps: Val):
    """Print the median and the extremes of sorted times."""
    def us(n: Val) -> Val:
        ns = b.get(b.add(times, b.mul(n, 8)))
        return b.fbin("fdiv", b.cast("uitofp", ns, "double"), const("double", 1000.0), "")

    asked = b.get(data, 8 * request.THREADS)
    team = b.select(b.equal(asked, 0), b.get(head, 8 * request.R_CPUS), asked)
    b.print(", median %.1f us (%.1f to %.1f, %ld runs, %ld threads)", us(b.udiv(reps, 2)), us(i64(0)), us(b.sub(reps, 1)), reps, team)


def _sort(m: Module):
    """sort(words, their number): ascending, by insertion: some hundred words."""
    b = Words(m, "sort", "at", "count")
    at, count = b.fn.args
    with b.loop(i64(0), count) as n:
        k = b.variable(n)
        with b.loop_while(lambda: b.icmp("ugt", k.get(), 0)) as turn:
            here = b.add(at, b.mul(k.get(), 8))
            this, before = b.get(here), b.get(here, -8)
            turn.leave(b.icmp("ule", before, this))
            b.put(before, here)
            b.put(this, here, -8)
            k.set(b.sub(k.get(), 1))
    b.answer(0)


def _board(m: Module, row: targets.Target):
    """board(): print what this machine is, for `board.Board`."""
    b = Words(m, "board")
    fits = b.truth(b.equal(b.run("tp_absent"), 0))
    b.print(f"target {row.name}\nvlen %ld\ncpus %ld\nhwcap %lx\nfits %ld\n", b.run("tp_vlen"), b.run("tp_cpus"), b.run("getauxval", 16), fits)
    b.run("fflush", 0)
    length = b.room(1)
    paths = b.address(m.variable("files", f"[{len(FILES)} x ptr] [{', '.join(f'ptr {m.string(path).s}' for path in FILES)}]", "internal constant"))
    with b.loop(i64(0), i64(len(FILES))) as k:
        path = b.get(b.add(paths, b.mul(k, 8)))
        fd = b.run("open", path, 0, 0)
        with b.when(b.icmp("sge", fd, 0)):
            data = b.run("read_all", fd, length)
            b.print("file %s %ld\n", path, b.get(length))
            b.run("fflush", 0)
            b.run("write_all", 1, data, b.get(length))
            b.run("close", fd)
    b.answer(0)


def _main(m: Module):
    b = Words(m, "run_main", "argc", "argv")
    argc, argv = b.fn.args
    with b.when(b.icmp("ule", argc, 1)):
        with b.when(b.icmp("ne", b.run("isatty", 0), 0)):  # nobody types a request
            b.print_error(USAGE)
            b.answer(REFUSED)
        b.answer(b.run("serve"))
    for option in ("--help", "-h"):
        with b.when(b.equal(b.run("strcmp", b.get(argv, 8), b.text(option)), 0)):
            b.print(USAGE)
            b.answer(0)
    with b.when(b.equal(b.run("strcmp", b.get(argv, 8), b.text("--board")), 0)):
        b.answer(b.run("board"))
    with b.loop(i64(1), argc) as k:
        first = b.get(b.get(b.add(argv, b.mul(k, 8))), 0, "i8")
        with b.when(b.icmp("eq", first, const("i8", ord("-")))):  # another option; a file's name can begin with ./
            b.print_error(USAGE)
            b.answer(REFUSED)
    wrong = b.changing()
    with b.loop(i64(1), argc) as k:
        wrong.set(b.or_(wrong.get(), b.run("tell", b.get(b.add(argv, b.mul(k, 8))))))
        wrong.set(b.or_(wrong.get(), b.truth(b.icmp("ne", b.run("fflush", 0), 0))))  # nobody has read what was not written
    b.answer(wrong.get())
