"""Debug information of a kernel that is compiled for a debugger: Python's variables, in the scopes in which they have values.

A variable is a slot on the stack: of a scalar its value, of a tensor the address of its elements, which the plan has put into memory. Each begins a
lexical block of its own (as Rust's `let` does), so a debugger shows those that have been assigned, of two of one name and different types the later
one first. Functions that Triton inlined are inlined functions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ..llvm import ir
from ..llvm.elements import bytes_of, memory_type
from ..llvm.ir import Val, const
from ..plan.records import Named
from ..ttir.names import Name, name_of
from ..ttir.types import Func, Loc, Op, walk
from .lines import Lines, file_text

_INT = re.compile(r"(u?)int(\d+)$")
_POINTER = re.compile(r"\w*pointer<(.*)>$")
_FLOATS = {"fp16": 16, "bf16": 16, "fp32": 32, "fp64": 64}


@dataclass(frozen=True, eq=False)
class Scope:
    """Where variables have values: metadata, of the call that it is inlined at, and the one around it. names: variable -> (its type, its slot)."""

    ref: str
    at: str
    file: str
    outer: Scope | None = None
    names: dict[str, tuple[str, Val]] = field(default_factory=dict)

    def find(self, name: str):
        scope = self
        while scope is not None and name not in scope.names:
            scope = scope.outer
        return scope.names[name] if scope is not None else None

    def outwards(self):
        scope = self
        while scope is not None:
            yield scope
            scope = scope.outer


class Types:
    """Debug metadata of types, by Triton's names."""

    def __init__(self, module: ir.Module):
        self._meta = module.add_meta
        self._known: dict[str, str] = {}

    def of(self, name: str, shape: tuple[int, ...] = (), bits: int = 0) -> str:
        """A type of Triton's, or a block of elements of `bits` bits."""
        whole = f"{name}[{', '.join(map(str, shape))}]" if shape else name
        if whole not in self._known:
            self._known[whole] = self._array(whole, name, shape, bits) if shape else self._element(name)
        return self._known[whole]

    def _element(self, name: str) -> str:
        if m := _POINTER.match(name):
            return self._meta(f"!DIDerivedType(tag: DW_TAG_pointer_type, baseType: {self.of(m[1])}, size: 64)")
        if name == "int1":
            return self._basic("bool", 8, "DW_ATE_boolean")
        if m := _INT.match(name):
            return self._basic(name, int(m[2]), "DW_ATE_unsigned" if m[1] else "DW_ATE_signed")
        if name in _FLOATS:  # by this name GDB knows the format
            return self._basic("__bf16" if name == "bf16" else name, _FLOATS[name], "DW_ATE_float")
        return self._basic(name, 8, "DW_ATE_unsigned")  # fp8: bits, which gdb_printers.py reads

    def _basic(self, name: str, bits: int, encoding: str) -> str:
        return self._meta(f'!DIBasicType(name: "{name}", size: {bits}, encoding: {encoding})')

    def _array(self, whole: str, name: str, shape, bits: int) -> str:
        ranges = ", ".join(self._meta(f"!DISubrange(count: {n})") for n in shape)
        bits *= math.prod(shape)
        array = self._meta(f"!DICompositeType(tag: DW_TAG_array_type, baseType: {self.of(name)}, size: {bits}, elements: !{{{ranges}}})")
        return self._meta(f'!DIDerivedType(tag: DW_TAG_typedef, name: "{whole}", baseType: {array})')

    def text(self, length: int) -> str:
        """Characters and their 0."""
        if "char" not in self._known:
            self._known["char"] = self._basic("char", 8, "DW_ATE_signed_char")
        return self._array(f"char[{length}]", "char", (length,), 8)

    def triple(self) -> str:
        """{x, y, z}"""
        number = self.of("int32")
        members = ", ".join(self._meta(f'!DIDerivedType(tag: DW_TAG_member, name: "{axis}", baseType: {number}, size: 32, offset: {32 * n})')
                            for n, axis in enumerate("xyz"))
        return self._meta(f'!DICompositeType(tag: DW_TAG_structure_type, name: "grid", size: 96, elements: !{{{members}}})')


class Variables(Lines):
    """`Lines`, with variables. scopes: of each function that is being carried out, by the calls that led to it."""

    UNIT = "isOptimized: false, runtimeVersion: 0, emissionKind: FullDebug"

    def __init__(self, module: ir.Module, name: str, func: Func, lazy):
        super().__init__(module, name, func.loc)
        self._lazy, self._types = lazy, Types(module)
        self._functions: dict[tuple, Name] = {}
        for op in walk(func.body):
            if (named := name_of(op)) is not None:
                self._functions.setdefault(named.callers, named)
        self._subprograms: dict[tuple[str, str], str] = {}
        self._reached: dict[ir.Block, dict] = {}
        self._now = ""
        self._everywhere: list[tuple[str, Val, str]] = []  # variables of the kernel that functions which it calls have, too: name, slot, type
        self._b = None
        self._begun: Val | None = None  # what the begin of a statement writes to
        self.scopes = {(): Scope(self.subprogram, "", func.loc.file)}

    # -- where instructions come from
    def of(self, op: Op | None) -> str:
        """As `Lines.of`. What is computed for an operation is part of it: one steps from statement to statement."""
        if op is None or not self._lazy(op):
            loc = op.loc if op is not None and op.loc.line else self._start
            self._now = f", !dbg {self._location(loc.line, loc.file, self._scope(loc))}"
        return self._now

    def _location(self, line: int, file: str, scope: Scope) -> str:
        ref = scope.ref
        if file != scope.file:
            ref = self._module.add_meta(f"!DILexicalBlockFile(scope: {ref}, file: {self._module.add_meta(file_text(file))}, discriminator: 0)")
        return self._module.add_meta(f"!DILocation(line: {line}, column: 0, scope: {ref}{f', inlinedAt: {scope.at}' if scope.at else ''})")

    def _scope(self, loc: Loc) -> Scope:
        """The scope of a function's code, where control stands."""
        found = self.scopes.get(loc.callers)
        if found is None:
            caller = loc.callers[0]
            outer = self._scope(Loc(caller.file, caller.line, loc.callers[1:]))
            at = self._module.add_meta(f"distinct !DILocation(line: {caller.line}, column: 0, scope: {outer.ref}"
                                       f"{f', inlinedAt: {outer.at}' if outer.at else ''})")
            found = Scope(self._subprogram(loc), at, loc.file)
            self.scopes = {**self.scopes, loc.callers: found}
            for name, slot, ty in self._everywhere:
                self._show(name, slot, ty, found, loc.line)
        return found

    def _subprogram(self, loc: Loc) -> str:
        named = self._functions.get(loc.callers)
        key = (named.function if named is not None else "inlined", loc.file)
        if key not in self._subprograms:
            meta = self._module.add_meta
            f, ty = meta(file_text(loc.file)), meta("!DISubroutineType(types: !{})")
            self._subprograms[key] = meta(f'distinct !DISubprogram(name: "{key[0]}", file: {f}, scope: {f}, line: {loc.line}, type: {ty}, '
                                          f"scopeLine: {loc.line}, spFlags: DISPFlagDefinition, unit: {self._unit})")
        return self._subprograms[key]

    # -- control flow between blocks
    def leave(self, block: ir.Block):
        """Control goes on at a block: what has a value on all ways to it has one there."""
        known = self._reached.get(block)
        self._reached[block] = self.scopes if known is None else {c: _common(s, known[c]) for c, s in self.scopes.items() if c in known}

    def arrive(self, block: ir.Block):
        self.scopes = self._reached.get(block, self.scopes)

    # -- variables
    def program(self, k):
        """What every kernel has, and what it calls: the program's number, and how many there are."""
        self._b = k.b
        for name, numbers in (("program_id", k.pid), ("num_programs", k.grid)):
            slot = self._declare(k, self.scopes[()], name, self._types.triple(), "[3 x i32]", self._start.line)
            for n, axis in enumerate("xyz"):
                k.b.store(numbers[axis], k.b.gep("i32", slot, ir.i64(n)), 4)
            self._everywhere.append((name, slot, self._types.triple()))

    def assign(self, k, step: Named):
        """A variable has a value from here on; without a name: a statement begins, and there is an instruction to stop at."""
        scope = self._scope(step.op.loc)
        if not step.name.name:
            self._begun = self._begun or k.b.alloca("i8", "statement")
            k.b.store(const("i8", 0), self._begun, volatile=True)
            return
        value, ty, memory, indirect = self._value(k, step)
        known = scope.find(step.name.name)
        if known is not None and known[0] == ty:
            k.b.store(value, known[1], 8)
            return
        f = self._module.add_meta(file_text(scope.file))
        block = self._module.add_meta(f"distinct !DILexicalBlock(scope: {scope.ref}, file: {f}, line: {step.op.loc.line})")
        inner = Scope(block, scope.at, scope.file, scope)
        slot = self._declare(k, inner, step.name.name, ty, memory, step.op.loc.line, indirect)
        k.b.store(value, slot, 8)
        self.scopes = {**self.scopes, step.op.loc.callers: inner}

    def _value(self, k, step: Named) -> tuple[Val, str, str, bool]:
        """(what its slot holds, the variable's type, the slot's, is that the address of the variable?)"""
        name = step.name
        if step.buffer is not None:
            return k.pointer(step.buffer), self._types.of(name.type, step.value.type.shape, 8 * bytes_of(step.value.type.elem)), "ptr", True
        if step.value is not None:
            v = k.scalar(step.value)
            return (k.b.cast("zext", v, "i8") if v.ty == "i1" else v), self._types.of(name.type), memory_type(step.value.type.elem), False
        match name.value:
            case bool():
                return const("i8", name.value), self._types.of("int1"), "i8", False
            case int():
                return const("i64", name.value), self._types.of("int64"), "i64", False
            case float():
                return const("double", name.value), self._types.of("fp64"), "double", False
        ty, _, text = ir.c_string(str(name.value)).partition("] ")
        return Val(f"{ty}]", text), self._types.text(len(str(name.value).encode()) + 1), f"{ty}]", False

    def _declare(self, k, scope: Scope, name: str, ty: str, memory: str, line: int, indirect: bool = False) -> Val:
        """The slot of a new variable of `scope`."""
        slot = k.b.alloca(memory, "variable", 16)
        self._show(name, slot, ty, scope, line, indirect)
        scope.names[name] = ty, slot
        return slot

    def _show(self, name: str, slot: Val, ty: str, scope: Scope, line: int, indirect: bool = False):
        f = self._module.add_meta(file_text(scope.file))
        quoted = name.replace("\\", "\\5C").replace('"', "\\22")
        variable = self._module.add_meta(f'!DILocalVariable(name: "{quoted}", scope: {scope.ref}, file: {f}, line: {line}, type: {ty})')
        self._b.shown(slot, variable, self._location(line, scope.file, scope), indirect)


def _common(one: Scope, other: Scope) -> Scope:
    """The innermost scope that both are in."""
    around = set(other.outwards())
    return next(s for s in one.outwards() if s in around)


def named(k, step: Named):
    k.lines.assign(k, step)


STEPS = {Named: named}
