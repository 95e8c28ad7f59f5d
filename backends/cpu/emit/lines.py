"""Debug information: which line of the user's Python each instruction comes from."""

from __future__ import annotations

import re

from ..llvm import ir
from ..ttir.types import Loc, Op

_SCOPE = re.compile(r"(scope: )(!\d+)")


class Lines:
    """The debug metadata of one function, called `name`, of a kernel that begins at `loc`. scopes: where Python's variables have values
    (`variables.Variables`)."""

    UNIT = "isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly"
    scopes = None

    def __init__(self, module: ir.Module, name: str, loc: Loc):
        self._module, self._start = module, loc
        f = module.add_meta(file_text(loc.file))
        self._unit = unit = module.add_meta(f'distinct !DICompileUnit(language: DW_LANG_C, file: {f}, producer: "triport", {self.UNIT})')
        ty = module.add_meta("!DISubroutineType(types: !{})")
        self._text = (f'distinct !DISubprogram(name: "{name}", file: {f}, line: {loc.line}, type: {ty}, '
                      f"scopeLine: {loc.line}, spFlags: DISPFlagDefinition, unit: {unit})")
        self.subprogram = module.add_meta(self._text)
        module.named["llvm.dbg.cu"] = [unit]
        module.flags = [module.add_meta('!{i32 2, !"Dwarf Version", i32 4}'),
                        module.add_meta('!{i32 2, !"Debug Info Version", i32 3}')]
        self._scopes = {loc.file: self.subprogram}
        self._known: dict[Loc, str] = {}

    def of(self, op: Op | None) -> str:
        """What stands behind an instruction of `op`; of the kernel where it is None."""
        loc = op.loc if op is not None and op.loc.line else self._start
        loc = Loc(loc.file, loc.line)  # whoever called it
        if loc not in self._known:
            if loc.file not in self._scopes:
                f = self._module.add_meta(file_text(loc.file))
                self._scopes[loc.file] = self._module.add_meta(f"!DILexicalBlockFile(scope: {self.subprogram}, file: {f}, discriminator: 0)")
            ref = self._module.add_meta(f"!DILocation(line: {loc.line}, column: 0, scope: {self._scopes[loc.file]})")
            self._known[loc] = f", !dbg {ref}"
        return self._known[loc]

    def elsewhere(self) -> Elsewhere:
        """The same of another function, to which some of this one's instructions are moved."""
        return Elsewhere(self._module, self._text, self.subprogram)

    def program(self, k):
        """Where a program begins."""

    def leave(self, block: ir.Block):
        """Where control goes on at a block."""

    def arrive(self, block: ir.Block):
        """Where a block begins."""


class Elsewhere:
    """The debug metadata of a function that is `subprogram` itself to debuggers. text: what describes that."""

    def __init__(self, module: ir.Module, text: str, subprogram: str):
        self._module, self.subprogram = module, module.add_meta(text)
        self._known = {subprogram: self.subprogram}

    def of(self, ref: str) -> str:
        """A place or a scope of the first function, in this one."""
        if ref not in self._known:
            self._known[ref] = self._module.add_meta(_SCOPE.sub(lambda m: m[1] + self.of(m[2]), self._module.meta[int(ref[1:])]))
        return self._known[ref]


def file_text(path: str) -> str:
    directory, _, name = path.rpartition("/")
    quote = lambda s: s.replace("\\", "\\5C").replace('"', "\\22")  # noqa: E731
    return f'!DIFile(filename: "{quote(name or "unknown")}", directory: "{quote(directory)}")'
