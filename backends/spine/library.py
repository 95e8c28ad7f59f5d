"""A bundle's C functions: the programs of `trace.py` around compiled kernels.

Everything but the kernels is compiled for the plainest CPU of the ISA: it runs, and says what is missing, where the kernels
would not.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass

from ..base import Unsupported
from ..cpu.llvm import compile as llvm, targets
from . import blame, features
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
class Variant:
    """What a function does for some of the sizes: those that its program's conditions hold for."""

    program: Program
    kernels: list[Compiled]

    @property
    def written(self) -> set[int]:
        """Numbers of the buffers that kernels write."""
        return {launch.args[kernel.order[k]].buffer for launch, kernel in zip(self.program.launches, self.kernels) for k in kernel.effects.writes}

    def may_coincide(self, read: int, written: int) -> bool:
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


@dataclass
class Function:
    """One C function of a bundle. variants: for a call's sizes the first whose conditions hold is what it does; remarks: for its header."""

    name: str
    variants: list[Variant]
    call: object = None  # what it was made of: `trace.Call`
    remarks: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.variants[0].program

    @property
    def kernels(self) -> list[Compiled]:
        return self.variants[0].kernels

    @property
    def parameters(self) -> list:
        return self.program.parameters

    @property
    def needs(self) -> tuple[str, ...]:
        """The features of a CPU that its kernels' code uses."""
        return tuple(dict.fromkeys(n for v in self.variants for k in v.kernels for n in k.needs))

    def settle(self):
        """Give each argument its role by what the kernels do: one that is written is no mere input. Raises `Unsupported` where none writes a
        result, or nothing at all."""
        said = f"{self.program.op} cannot be exported{blame.returns_at(self.call) if self.call else ''}: none of its kernels ({', '.join(dict.fromkeys(x.kernel.__name__ for x in self.program.launches))}) writes "
        changed = {b.name for v in self.variants for k, b in enumerate(v.program.buffers) if k in v.written and b.role != "temporary"}
        for v in self.variants:
            for k, b in enumerate(v.program.buffers):
                if b.role == "in" and b.name in changed:
                    b.role = "inout"
                if b.role == "out" and k not in v.written:
                    raise Unsupported(said + ("the tensor that it returns" if len(v.program.results) == 1 else f"its result {b.name}"))
        if all(b.role == "in" for b in self.program.arguments):
            raise Unsupported(said + "a tensor that it returns or is given")

    @functools.cached_property
    def apart(self) -> list[tuple[Buffer, Buffer, bool]]:
        """Pairs of arguments that must not overlap, the written one first: each that is written, and any other. True where equal addresses
        are fine all the same."""
        buffers = self.program.buffers
        given = [k for k, b in enumerate(buffers) if b.role != "temporary"]
        writes = {k for k in given if buffers[k].role != "in"}
        return [(buffers[w], buffers[x], x not in writes and buffers[w].ld is buffers[x].ld is None and all(v.may_coincide(x, w) for v in self.variants))
                for w in given if w in writes for x in given if x != w and not (x in writes and x < w)]


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
    llir = to_stderr(llvm.renamed(made.llir, made.metadata.name, name))
    obj = llvm.emit_object(llir, row)
    return Compiled(name, obj, made.metadata, order, llir, Effects(made.ttir), features.needed(obj, llir, row))


def to_stderr(llir: str) -> str:
    """What a kernel prints (tl.device_print) goes to stderr: a program's stdout is its own."""
    llir = re.sub(r"call ([^@\n]*?)i32 \(ptr, \.\.\.\) @printf\(", r"call \1i32 (i32, ptr, ...) @dprintf(i32 2, ", llir)
    return re.sub(r"^declare [^\n]*@printf\([^\n]*", "declare i32 @dprintf(i32, ptr, ...)", llir, flags=re.M)


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
