"""What a bundle says of a call that went wrong: `triport_last_error`, which assertion of a kernel did not hold, what a CPU lacks.

The text belongs to the thread that called. Its memory is a symbol that all bundles of a process share, as they share the function's
name: whichever bundle's function the caller gets, it reads what any of them wrote.
"""

from __future__ import annotations

from ..cpu.llvm.ir import Builder, Module, Val, define, i32, i64

#: bytes of a text, with the zero at its end
LENGTH = 1024
_NUMBER = 48  # a kernel returns its assertion's number above this bit, the program below it (`emit/root/debug.py`)
#: where the text is
TEXT = Val("ptr", "@triport_last_error_text")


def add(m: Module, needed: list[str], missing: str):
    """What every library has: triport_last_error, and the functions that write what it returns. needed: the features that `tp_absent` counts;
    missing: the function that says which of them are absent."""
    m.variable("triport_last_error_text", f"[{LENGTH} x i8] zeroinitializer", "thread_local global", ", align 16")
    b = define(m, "triport_last_error", "ptr")
    b.ret(TEXT)
    b = define(m, "say", "void", "internal", text="ptr")
    _write(b, "%s", *b.fn.args)
    b.ret()
    _asserted(m)
    _lacking(m, needed, missing)


def _lacking(m: Module, needed: list[str], missing: str):
    """say_lacking(text, features): the text and their names; and the exported function `missing`."""
    table = m.variable("features", f"[{len(needed)} x ptr] [{', '.join(f'ptr {m.string(n).s}' for n in needed)}]", "internal constant")
    b = define(m, "name_features", "void", "internal", to="ptr", features="i64")
    to, features = b.fn.args
    at, comma = b.variable(i64(0)), b.variable(m.string(""))
    with b.loop(i64(0), i64(len(needed))) as k:
        with b.when(b.icmp("ne", b.and_(b.lshr(features, k), 1), 0)):
            name = b.load("ptr", b.gep("ptr", table, k))
            wrote = b.call("snprintf", "i32 (ptr, i64, ptr, ...)", [b.gep("i8", to, at.get()), b.sub(i64(LENGTH), at.get()), m.string("%s%s"), comma.get(), name])
            at.set(b.smin(b.add(at.get(), b.cast("sext", wrote, "i64")), LENGTH - 1))
            comma.set(m.string(", "))
    b.ret()
    b = define(m, "say_lacking", "void", "internal", text="ptr", features="i64")
    text, features = b.fn.args
    names = b.alloca(f"[{LENGTH} x i8]", "names", 16)
    b.call("name_features", "void", [names, features])
    _write(b, "%s%s", text, names)
    b.ret()
    place = m.variable("missing_text", f"[{LENGTH} x i8] zeroinitializer", "internal thread_local global", ", align 16")
    b = define(m, missing, "ptr")
    b.call("name_features", "void", [place, b.call("tp_absent", "i64", [])])
    b.ret(place)


def _asserted(m: Module):
    """The assertion that a kernel's status names, out of a table (`pairs`)."""
    b = define(m, "say_asserted", "void", "internal", texts="ptr", status="i64", gx="i64", gy="i64")
    texts, status, gx, gy = b.fn.args
    pair = b.gep("[2 x ptr]", texts, b.sub(b.lshr(status, _NUMBER), 1))
    where, message = b.load("ptr", pair), b.load("ptr", b.gep("ptr", pair, i64(1)))
    program = b.and_(status, (1 << _NUMBER) - 1)
    x, yz = b.urem(program, gx), b.udiv(program, gx)
    _write(b, "%s in program (%lld, %lld, %lld): %s", where, x, b.urem(yz, gy), b.udiv(yz, gy), message)
    b.call("dprintf", "i32 (i32, ptr, ...)", [i32(2), m.string("%s\n"), TEXT])  # as a launch says it, whoever asks later
    b.ret()


def _write(b: Builder, form: str, *args: Val):
    b.call("snprintf", "i32 (ptr, i64, ptr, ...)", [TEXT, i64(LENGTH), b.fn.module.string(form), *args])


def pairs(m: Module, texts: list[tuple[str, str]]) -> Val:
    """The address of a table of pairs of strings."""
    rows = ", ".join(f"[2 x ptr] [ptr {m.string(a).s}, ptr {m.string(b).s}]" for a, b in texts)
    return m.variable(f"texts.{len(m.globals)}", f"[{len(texts)} x [2 x ptr]] [{rows}]", "internal constant")
