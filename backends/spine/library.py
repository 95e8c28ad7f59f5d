"""A bundle's C functions: the programs of `trace.py` around compiled kernels, and the header that says how to call them.

Everything but the kernels is compiled for the plainest CPU of the ISA: it runs, and says what is missing, where the kernels
would not.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import textwrap
from dataclasses import dataclass

import sympy

from ...ops.records import dtype_name
from ..base import Unsupported
from ..cpu.llvm import compile as llvm, targets
from ..cpu.run import pool
from . import features
from .effects import Effects
from .trace import At, Buffer, Program

#: what a function of a bundle returns: (value, C name, for people)
STATUS = ((0, "TRIPORT_OK", "the result is computed"),
          (1, "TRIPORT_NO_MEMORY", "no memory for temporaries or a thread's scratch"),
          (2, "TRIPORT_BAD_SIZE", "a size is negative, or a kernel would count beyond 2^31 - 1"),
          (3, "TRIPORT_BAD_SHAPE", "the sizes do not fit each other; see the function's conditions"),
          (4, "TRIPORT_NULL_POINTER", "a tensor's pointer is null"),
          (5, "TRIPORT_OVERLAP", "two tensors overlap that must not"),
          (6, "TRIPORT_WRONG_MACHINE", "this CPU lacks what the code uses: instructions, or vector registers of a length"),
          (7, "TRIPORT_ASSERTION", "an assertion of a kernel (tl.device_assert) did not hold; see triport_last_error"))
NO_MEMORY, BAD_SIZE, BAD_SHAPE, NULL_POINTER, OVERLAP, WRONG_MACHINE, ASSERTION = range(1, 8)

#: ISA -> the row that everything but kernels is compiled for
BASE = {row.triple.partition("-")[0]: row.plain for row in targets.TARGETS.values()}
C_TYPES = {"fp32": "float", "fp64": "double", "fp16": "uint16_t", "bf16": "uint16_t", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
           "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t"}
LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code for a bundle."""

    name: str
    obj: bytes
    metadata: object
    order: tuple[str, ...]  # its runtime arguments
    llir: str
    effects: Effects
    needs: tuple[str, ...]  # features of a CPU (`features.py`)


@dataclass
class Function:
    """One C function of a bundle."""

    name: str
    program: Program
    kernels: list[Compiled]

    @property
    def sizes(self) -> dict[sympy.Symbol, str]:
        """Each open size's parameter, after the first tensor that has it: a_size0."""
        out: dict = {}
        for b in self.program.arguments:
            for d, s in enumerate(b.shape):
                if isinstance(s, sympy.Symbol):
                    out.setdefault(s, f"{b.name}_size{d}")
        return out

    def text(self, e: sympy.Expr) -> str:
        """An expression with the parameters' names."""
        return str(e.subs({s: sympy.Symbol(n, integer=True) for s, n in self.sizes.items()}))

    def settle(self):
        """Give each argument its role by what the kernels do: one that is written is no mere input. Raises `Unsupported` where none writes the
        result."""
        writes = self.written
        for k, b in enumerate(self.program.buffers):
            if b.role == "in" and k in writes:
                b.role = "inout"
            if b.role == "out" and k not in writes:
                raise Unsupported(f"{self.program.op} cannot be exported: none of its kernels ({', '.join(x.kernel.__name__ for x in self.program.launches)}) "
                                  "writes the tensor that it returns")

    @property
    def needs(self) -> tuple[str, ...]:
        """The features of a CPU that its kernels' code uses."""
        return tuple(dict.fromkeys(n for k in self.kernels for n in k.needs))

    @property
    def written(self) -> set[int]:
        """Numbers of the buffers that kernels write."""
        return {launch.args[kernel.order[k]].buffer for launch, kernel in zip(self.program.launches, self.kernels) for k in kernel.effects.writes}

    @functools.cached_property
    def apart(self) -> list[tuple[Buffer, Buffer, bool]]:
        """Pairs of arguments that must not overlap, the written one first: each that is written, and any other. True where equal addresses
        are fine all the same."""
        buffers, writes = self.program.buffers, self.written
        given = [k for k, b in enumerate(buffers) if b.role != "temporary"]
        return [(buffers[w], buffers[x], x not in writes and self._may_coincide(x, w))
                for w in given if w in writes for x in given if x != w and not (x in writes and x < w)]

    def _may_coincide(self, read: int, written: int) -> bool:
        """Are results right where two tensors, of which one is only read, have one address?"""
        over = False  # has a launch written already?
        for launch, kernel in zip(self.program.launches, self.kernels):
            places = {b: [k for k, name in enumerate(kernel.order) if isinstance(at := launch.args[name], At) and at.buffer == b] for b in (read, written)}
            readers = [k for k in places[read] if k in kernel.effects.reads]
            writers = [k for k in places[written] if k in kernel.effects.writes]
            if readers and over:
                return False
            over = over or bool(writers)
            axes = frozenset(axis for axis, count in zip("xyz", launch.grid) if count != 1)
            for i in readers:
                for j in writers:
                    taken = [same for *pair, same in kernel.metadata.disjoint if set(pair) == {i, j}]  # by the compiler, to be disjoint
                    if (launch.args[kernel.order[i]].offset != launch.args[kernel.order[j]].offset or not all(taken)
                            or not kernel.effects.may_coincide(i, j, axes)):
                        return False
        return True


def base_row(row: targets.Target) -> targets.Target:
    """The row for code that says what a CPU lacks: any CPU of the architecture runs it."""
    plain = targets.get(row.plain)
    return dataclasses.replace(plain, cpu="x86-64") if plain.cpu == "x86-64-v2" else plain


def missing_name(name: str) -> str:
    """The C function that says what a CPU lacks of what bundle `name` needs."""
    return "triport_missing_" + re.sub(r"\W", "_", name)


def compile_kernel(launch, row: targets.Target, name: str) -> Compiled:
    """A launch's kernel for a row, as the symbol `name`. Pointers may lie anywhere, sizes be anything."""
    order = tuple(p.name for p in launch.kernel.params if p.name in launch.types)
    made = _lowered(launch, row, True)
    if any(a.buffer == b.buffer and not (same and a.offset == b.offset and launch.types[order[i]] == launch.types[order[j]])
           for i, j, same in made.metadata.disjoint for a, b in [(launch.args[order[i]], launch.args[order[j]])]):
        made = _lowered(launch, row, False)  # two of its pointers are into one tensor
    llir = llvm.renamed(made.llir, made.metadata.name, name)
    obj = llvm.emit_object(llir, row)
    return Compiled(name, obj, made.metadata, order, llir, Effects(made.ttir), features.needed(obj, llir, row))


def assertions(kernel: Compiled) -> list[tuple[str, str]]:
    """(message, file:line without folders) of the assertions that a kernel has, as numbered from 1 on."""
    return [(message, where.rpartition("/")[2]) for message, where in kernel.metadata.asserts]


def _lowered(launch, row: targets.Target, assume_disjoint: bool):
    """A launch's kernel, up to LLVM IR."""
    from triton.compiler import ASTSource

    from ..cpu.lowered import lowered
    from ..cpu.plugin import claims
    from .. import active
    kernel = launch.kernel
    signature = {p.name: launch.types.get(p.name, "constexpr") for p in kernel.params}
    target = claims.target(row.name)
    with active.compiling_for(target):
        source = ASTSource(fn=kernel, signature=signature, constexprs=dict(launch.consts))
        return lowered(source, target, {**launch.options, "assume_disjoint": assume_disjoint})


# --- the functions -----------------------------------------------------------------------------------------------------------


def declaration(f: Function) -> str:
    """The C declaration of a function."""
    parts = []
    for b in f.program.arguments:
        const = "const " if b.role == "in" else ""
        parts.append(f"{const}{C_TYPES[dtype_name(b.dtype)]} *{b.name}")
    parts += [f"int64_t {n}" for n in f.sizes.values()]
    return f"int {f.name}({', '.join([*parts, 'int threads'])})"


# --- the header --------------------------------------------------------------------------------------------------------------


def header(name: str, functions: list[Function], row: targets.Target) -> str:
    """The C header of a bundle."""
    guard = re.sub(r"\W", "_", name).upper() + "_H"
    out = [f"/* {name}: made by triport for target {row.name} ({features.vlen(row) or row.isa}).", "",
           "   Tensors are dense; a matrix marked `transposed` lies column by column. Elements of 16 bits are passed as uint16_t. Sizes are",
           "   counted in elements. Functions may be called from any thread; results are computed by `threads` threads, this one among them (0: as many",
           "   as this thread may run on; at most " + str(pool.MAX_THREADS) + "). Threads are started when first needed, inherit the caller's affinity, and stay.",
           "   No function ends the process. Where one returns another status than TRIPORT_OK, what it writes may hold anything, unless the",
           "   status is about the arguments: those are looked at before anything is written. */",
           f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    out += ["#ifndef TRIPORT_STATUS", "#define TRIPORT_STATUS", "enum triport_status {", ",\n".join(f"  {c} = {n} /* {text} */" for n, c, text in STATUS), "};",
            "/* What was wrong with the last call in this thread that returned another status than TRIPORT_OK; of an assertion: kernel, file:line,",
            "   program and message. */", "const char *triport_last_error(void);", "#endif", "",
            "/* What this CPU lacks of what the functions below need, by name; an empty string where it lacks nothing. A function that needs what is",
            "   lacking returns TRIPORT_WRONG_MACHINE and has done nothing. */", f"const char *{missing_name(name)}(void);", ""]
    for f in functions:
        out.append("/* " + "\n   ".join(_described(f)).replace("*/", "* /") + " */")
        out.append(declaration(f) + ";\n")
    out += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(out)


def _described(f: Function) -> list[str]:
    p = f.program
    said = ", ".join(f"{k}={v!r}" for k, v in p.kwargs.items())
    lines = [f"{p.op}({', '.join([*(b.name for b in p.arguments if b.role != 'out'), *([said] if said else [])])}), {p.dtype}."]
    for b in p.arguments:
        role = {"in": "", "out": " (result)", "inout": " (changed in place: the result)" if b is p.buffers[p.result] else " (changed in place, beside the result)"}[b.role]
        lines.append(f"{b.name}: {dtype_name(b.dtype)}, {' x '.join(map(f.text, b.shape)) or 'one element'}{', transposed' if b.turned else ''}"
                     f"{'; strides ' + ', '.join(map(f.text, b.strides)) if b.shape else ''}{role}")
    for c in p.conditions:
        lines.append(f"condition: {f.text(c)}")
    lines += textwrap.wrap(f"needs: {', '.join(f.needs)}", 140, subsequent_indent="  ", break_on_hyphens=False) if f.needs else ["runs on any CPU of the architecture"]
    same = [f"{x.name} and {y.name}" for x, y, same in f.apart if same]
    lines.append(f"no byte of {' or '.join(b.name for b in p.arguments if b.role != 'in')} may be another tensor's"
                 + (f"; equal addresses are fine for {', '.join(same)}" if same else ""))
    return lines
