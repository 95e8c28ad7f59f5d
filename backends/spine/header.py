"""The C header of a bundle: declarations, and in comments all that a caller has to know."""

from __future__ import annotations

import re
import textwrap

from ...ops.records import dtype_name
from ..cpu.llvm import targets
from ..cpu.run import pool
from . import features
from .ctext import c
from .library import C_TYPES, STATUS, Function, missing_name


def declaration(f: Function) -> str:
    """The C declaration of a function."""
    parts = []
    for b in f.program.arguments:
        const = "const " if b.role == "in" else ""
        parts.append(f"{const}{C_TYPES[dtype_name(b.dtype)]} *{b.name}")
    parts += [f"{p.c} {p.name}" for p in f.parameters]
    return f"int {f.name}({', '.join([*parts, 'int threads'])})"


def header(name: str, functions: list[Function], row: targets.Target) -> str:
    """The C header of a bundle."""
    guard = re.sub(r"\W", "_", name).upper() + "_H"
    out = [f"/* {name}: made by triport for target {row.name} ({features.vlen(row) or row.isa}).", "",
           "   Tensors are dense; a matrix marked `transposed` lies column by column, one with a leading dimension (`ld`) has lines so many elements apart.",
           "   Elements of 16 bits are passed as uint16_t, truth values as uint8_t (0 or 1). Sizes are counted in elements; in expressions, whole numbers are",
           "   divided as C does. Functions may be called from any thread; results are computed by `threads` threads, this one among them (0: as many",
           "   as this thread may run on; at most " + str(pool.MAX_THREADS) + "). Threads are started when first needed, inherit the caller's affinity, and stay.",
           "   No function ends the process. Where one returns another status than TRIPORT_OK, what it writes may hold anything, unless the",
           "   status is about the arguments: those are looked at before anything is written. What kernels print goes to stderr. */",
           f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    out += ["#ifndef TRIPORT_STATUS", "#define TRIPORT_STATUS", "enum triport_status {", ",\n".join(f"  {c} = {n} /* {text} */" for n, c, text in STATUS), "};",
            "/* What was wrong with the last call in this thread that returned another status than TRIPORT_OK; of an assertion: kernel, file:line,",
            "   program and message. */", "const char *triport_last_error(void);", "#endif", "",
            "/* What this CPU lacks of what the functions below need, by name; an empty string where it lacks nothing. A function that needs what is",
            "   lacking returns TRIPORT_WRONG_MACHINE and has done nothing. */", f"const char *{missing_name(name)}(void);", ""]
    for f in functions:
        out.append("/* " + "\n   ".join(_described(f)).replace("*/", "* /").replace("/*", "/ *") + " */")
        out.append(declaration(f) + ";\n")
    out += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(out)


def _described(f: Function) -> list[str]:
    p = f.program
    said = ", ".join(f"{k}={v!r}" for k, v in p.kwargs.items())
    numbers = [q.name for q in p.parameters if q.kind in ("int", "float", "bool")]
    lines = [f"{p.op}({', '.join([*(b.name for b in p.arguments if b.role != 'out'), *numbers, *([said] if said else [])])}), {p.dtype}."]
    returned = [p.buffers[k] for k in p.results]
    for b in p.arguments:
        change = "the result" if len(returned) == 1 else "a result"
        role = {"in": "", "out": " (result)", "inout": f" (changed in place: {change})" if b in returned else " (changed in place, beside the result)"
                if returned else " (changed in place)"}[b.role]
        lines.append(f"{b.name}: {dtype_name(b.dtype)}, {' x '.join(c(s, p.sizes) for s in b.shape) or 'one element'}{', transposed' if b.turned else ''}"
                     f"{'; strides ' + ', '.join(c(s, p.sizes) for s in b.strides) if b.shape else ''}{role}")
    for q in p.parameters:
        if q.kind == "ld":
            lines.append(f"{q.name}: leading dimension of {q.tensor}, elements from line to line")
        elif q.kind != "size":
            lines.append(f"{q.name}: {'a truth value, 0 or not' if q.kind == 'bool' else 'a number'}")
    lines += _conditions(f)
    lines += textwrap.wrap(f"needs: {', '.join(f.needs)}", 140, subsequent_indent="  ", break_on_hyphens=False) if f.needs else ["runs on any CPU of the architecture"]
    same = [f"{x.name} and {y.name}" for x, y, same in f.apart if same]
    lines.append(f"no byte of {' or '.join(b.name for b in p.arguments if b.role != 'in')} may be another tensor's"
                 + (f"; equal addresses are fine for {', '.join(same)}" if same else ""))
    return lines + list(f.remarks)


def _conditions(f: Function) -> list[str]:
    if len(f.variants) == 1:
        return [f"condition: {c(e, f.program.sizes)}{f' ({line})' if line else ''}; otherwise TRIPORT_BAD_SHAPE" for e, line in f.program.conditions.items()]
    common = [e for e in f.program.conditions if all(e in v.program.conditions for v in f.variants)]
    lines = [f"condition: {c(e, f.program.sizes)}{f' ({f.program.conditions[e]})' if f.program.conditions[e] else ''}; otherwise TRIPORT_BAD_SHAPE" for e in common]
    lines.append(f"made for {len(f.variants)} classes of sizes, of which a call takes the one that fits; what fits none returns TRIPORT_BAD_SHAPE:")
    return lines + [f"  {n}: {class_text(v, common)}" for n, v in enumerate(f.variants, 1)]


def class_text(v, common=()) -> str:
    """What holds for the calls that a variant is for."""
    return " && ".join(text if "||" not in text else f"({text})" for text in (c(e, v.program.sizes) for e in v.program.conditions if e not in common)) or "everything else"
