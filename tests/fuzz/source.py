"""A program as Python source: the text of a @triton.jit kernel and of the functions that it calls."""

from __future__ import annotations

from .operations import COMBINE, OPERATIONS
from .program import Assign, Atomic, Barrier, Call, Expr, For, If, Nothing, Program, Return, Store, While

HEADER = "import triton\nimport triton.language as tl\n"


def text(e: Expr) -> str:
    args = [text(a) for a in e.args]
    if e.op in ("var", "argument"):
        return e.attr
    if e.op == "program":
        return f"tl.program_id({e.attr})"
    if e.op == "programs":
        return f"tl.num_programs({e.attr})"
    if e.op in ("pointer", "advance"):
        base = e.attr if e.op == "pointer" else args.pop(0)
        return f"({base} + {args[0]})" if args else base
    if e.op == "load":
        if len(args) == 1:
            return f"tl.load({args[0]})"
        if e.attr == "other":
            return f"tl.load({args[0]}, mask={args[1]}, other={args[2]})"
        return f"tl.where({args[1]}, tl.load({args[0]}, mask={args[1]}), {args[2]})"
    return OPERATIONS[e.op][0](e, *args)


def lines(body: list, indent: str) -> list[str]:
    out = []
    for s in body:
        for line in _statement(s):
            out.append(indent + line)
    return out or [indent + "pass"]


def _masked(mask) -> str:
    return "" if mask is None else f", mask={text(mask)}"


def _statement(s) -> list[str]:
    if isinstance(s, Assign):
        return [f"{', '.join(s.names)} = {', '.join(map(text, s.values))}"]
    if isinstance(s, Store):
        return [f"tl.store({text(s.pointer)}, {text(s.value)}{_masked(s.mask)})"]
    if isinstance(s, Atomic):
        call = f"tl.atomic_{s.op}({text(s.pointer)}, {text(s.value)}{_masked(s.mask)}, sem='relaxed')"
        if s.result is None:
            return [call]
        return [f"{s.result} = {call if s.mask is None else f'tl.where({text(s.mask)}, {call}, {text(s.other)})'}"]
    if isinstance(s, If):
        out = [f"if {text(s.condition)}:", *lines(s.then, "    ")]
        if len(s.other) == 1 and isinstance(s.other[0], If):
            inner = _statement(s.other[0])
            return [*out, "el" + inner[0], *inner[1:]]
        return [*out, "else:", *lines(s.other, "    ")] if s.other else out
    if isinstance(s, For):
        step = f", {s.step}" if s.step != 1 else ""
        kind = {"range": "range", "static": "tl.static_range"}.get(s.form, "tl.range")
        option = {"unroll": ", loop_unroll_factor=2", "stages": ", num_stages=2"}.get(s.form, "")
        return [f"for {s.name} in {kind}({text(s.start)}, {text(s.stop)}{step}{option}):", *lines(s.body, "    ")]
    if isinstance(s, While):
        more = "" if s.condition is None else f" and {text(s.condition)}"
        return [f"{s.name} = tl.full([], 0, tl.int32)", f"while {'(' if more else ''}{s.name} < {text(s.stop)}{')' if more else ''}{more}:",
                *(lines(s.body, "    ") if s.body else []), f"    {s.name} += 1"]
    if isinstance(s, Return):
        return [f"if {text(s.condition)}:", "    return"]
    if isinstance(s, Barrier):
        return ["tl.debug_barrier()"]
    if isinstance(s, Nothing):
        return ["pass"]
    assert isinstance(s, Call), s
    return [f"{', '.join(s.names)} = {s.function}({', '.join(map(text, s.values))})"]


def combines(program: Program) -> list[str]:
    """The functions that its reductions and scans are given."""
    used = {e.attr["fn"] for e in program.nodes() if e.op in ("fold", "scan")}
    out = []
    for name in sorted(used):
        out += ["@triton.jit", f"def combine_{name}(a, b):", f"    return {COMBINE[name][0]}", "", ""]
    if any(e.op == "recurrence" for e in program.nodes()):
        out += ["@triton.jit", "def combine_affine(a1, b1, a2, b2):", "    return a1 * a2, b1 * a2 + b2", "", ""]
    return out


def functions(program: Program) -> list[str]:
    out = []
    for f in program.functions:
        out += ["@triton.jit" if f.inline else "@triton.jit(noinline=True)", f"def {f.name}({', '.join(p[0] for p in f.parameters)}):"]
        if f.early:
            out += [f"    if {text(f.early[0])}:", f"        return {', '.join(map(text, f.early[1]))}"]
        out += [*(lines(f.body, "    ") if f.body else []), f"    return {', '.join(map(text, f.results))}", "", ""]
    return out


def kernel(program: Program) -> list[str]:
    """The lines of the kernel alone."""
    fixed = [s.name for s in program.scalars if not s.specialize]
    args = ", ".join([b.name for b in program.buffers] + [s.name for s in program.scalars])
    return [f"@triton.jit(do_not_specialize={fixed!r})" if fixed else "@triton.jit", f"def kernel({args}):", *lines(program.body, "    ")]


def module(program: Program) -> str:
    """The source of a module with the kernel."""
    return "\n".join([HEADER, "", *combines(program), *functions(program), *kernel(program)]) + "\n"
