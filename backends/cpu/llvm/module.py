"""What LLVM IR text is made of: modules, functions, basic blocks."""

from __future__ import annotations

import re

from ...base import CompileError
from .values import Val


class Phi(Val):
    """A value that depends on the block from which control came. What comes from where may be said after its uses are written."""

    __slots__ = ("incoming",)

    def __init__(self, ty: str, s: str):
        super().__init__(ty, s)
        self.incoming: list[tuple[Val, Block]] = []

    def comes(self, value: Val, block: Block):
        self.incoming.append((value, block))

    def line(self) -> str:
        return f"  {self.s} = phi {self.ty} {', '.join(f'[ {v.s}, %{b.label} ]' for v, b in self.incoming)}"


class Block:
    """A basic block: a label and a list of lines (a `Phi` is one), in which nested lists are open sections. ended: it has branched or returned."""

    __slots__ = ("label", "items", "ended")

    def __init__(self, label: str):
        self.label, self.items, self.ended = label, [], False

    def lines(self):
        stack = [iter(self.items)]
        while stack:
            for item in stack[-1]:
                if type(item) is str:
                    yield item
                elif type(item) is list:
                    stack.append(iter(item))
                    break
                else:
                    yield item.line()
            else:
                stack.pop()


#: what stands before a function's type; a type, behind which attributes of an argument may stand
_LINKED, _TYPE = re.compile(r"^(?:(?:extern_weak|hidden) )+"), re.compile(r"<.*>|\[.*\]|\{.*\}|\S+")

#: of a kernel's functions: they throw nothing, and their loops over memory are no calls of libc's functions
KERNEL = 'nounwind "no-builtin-memset" "no-builtin-memcpy" "no-builtin-memmove" '


def c_string(text: str) -> str:
    """Type and value of a C string's constant."""
    data = text.encode() + b"\0"
    return f'[{len(data)} x i8] c"' + "".join(chr(c) if 32 <= c < 127 and c not in (34, 92) else f"\\{c:02X}" for c in data) + '"'


def _signature(ret: str, params: list[str]) -> str:
    """What a call's types have to be: a function's, without how it is linked and what is known of its arguments."""
    return f"{_LINKED.sub('', ret)} ({', '.join(_TYPE.match(t)[0] for t in params)})"


class Module:
    """Functions, declarations, globals and debug metadata of one compilation. attributes: what all its functions have."""

    def __init__(self, name: str, triple: str, attributes: str = KERNEL):
        self.name, self.triple, self.attributes = name, triple, attributes
        self.decls: dict[str, str] = {}
        self.globals: list[str] = []
        self.functions: list[Function] = []
        self.meta: list[str] = []
        self.flags: list[str] = []
        self.named: dict[str, list[str]] = {}
        self._strings: dict[str, Val] = {}
        self._called: dict[str, str] = {}  # types by function

    def declare(self, name: str, ret: str, params: list[str], tail: str = ""):
        """A function that is called with these types. LLVM asks nobody whether a call has its callee's, so that is done here."""
        types = _signature(ret, params)
        if name not in self._called:
            known = next((f for f in self.functions if f.name == name), None)
            if known is None:
                self.decls[name] = f"declare {ret} @{name}({', '.join(params)}){tail}"
            self._called[name] = types if known is None else _signature(known.ret, [t for t, _ in known.params])
        if self._called[name] != types:
            if any(f.name == name and not f.linkage for f in self.functions):
                raise CompileError(f"kernel {name}: calls C's function {name}, which its own name hides; give the kernel another name")
            raise TypeError(f"{name} is {self._called[name]}, and called as {types}")

    def variable(self, name: str, value: str, kind: str = "internal global", tail: str = "") -> Val:
        """A global, the same one once; value: its type and first value; tail: ", align 64" and the like. Returns its address."""
        line = f"@{name} = {kind} {value}{tail}"
        if line not in self.globals:
            self.globals.append(line)
        return Val("ptr", f"@{name}")

    def string(self, text: str) -> Val:
        """The address of a constant C string."""
        if text not in self._strings:
            self._strings[text] = self.variable(f"text.{len(self._strings)}", c_string(text), "internal constant")
        return self._strings[text]

    def assembly(self, text: str):
        """Assembly that stands outside all functions."""
        quoted = text.replace("\\", "\\5C").replace('"', "\\22")
        self.globals += [f'module asm "{line}"' for line in quoted.split("\n")]

    def add_meta(self, text: str) -> str:
        self.meta.append(text)
        return f"!{len(self.meta) - 1}"

    def render(self) -> str:
        out = [f'; ModuleID = "{self.name}"', f'target triple = "{self.triple}"', ""]
        out += self.globals
        for f in self.functions:
            out += f.render()
        defined = {f.name for f in self.functions}
        out += sorted(text for name, text in self.decls.items() if name not in defined)
        if self.attributes:
            out.append(f"attributes #0 = {{ {self.attributes} }}")
        if self.flags:
            out.append(f"!llvm.module.flags = !{{{', '.join(self.flags)}}}")
        for name, refs in self.named.items():
            out.append(f"!{name} = !{{{', '.join(refs)}}}")
        out += [f"!{k} = {text}" for k, text in enumerate(self.meta)]
        return "\n".join(out) + "\n"


class Function:
    """One function. names: what its values are called, before their number."""

    def __init__(self, module: Module, name: str, ret: str, params: list[tuple[str, str]], dbg: str | None = None,
                 linkage: str = "", attrs: str = "", names: str = "v"):
        self.module, self.name, self.ret, self.params, self.dbg = module, name, ret, params, dbg
        self.linkage, self.attrs, self.names = linkage, attrs, names
        self.soft_half = None  # converts from and to half where the target has no instruction for it
        self.blocks: list[Block] = []
        self.count = 0
        self.allocas = []
        self.types: dict[str, str] = {}  # of the values that are computed, by name
        #: values that were loaded, and vectors that were so under a mask, by name
        self.loaded: set[str] = set()
        self.partial: set[str] = set()
        module.functions.append(self)

    @property
    def args(self) -> list[Val]:
        """The parameters' values; a type's attributes ("i32 signext") are the parameter's alone."""
        return [Val(_TYPE.match(t)[0], f"%{n}") for t, n in self.params]

    def new_block(self, hint: str) -> Block:
        self.count += 1
        b = Block(f"{hint}{self.count}")
        self.blocks.append(b)
        return b

    def render(self) -> list[str]:
        params = ", ".join(f"{t} %{n}" for t, n in self.params)
        attrs = (" #0" if self.module.attributes else "") + self.attrs
        out = [f"define {self.linkage}{self.ret} @{self.name}({params}){attrs}{' !dbg ' + self.dbg if self.dbg else ''} {{"]
        for k, b in enumerate(self.blocks):
            out.append(f"{b.label}:")
            if k == 0:
                out += self.allocas
            out += b.lines()
        out.append("}")
        out.append("")
        return out
