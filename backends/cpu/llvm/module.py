"""What LLVM IR text is made of: modules, functions, basic blocks."""

from __future__ import annotations

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
                if isinstance(item, list):
                    stack.append(iter(item))
                    break
                yield item.line() if isinstance(item, Phi) else item
            else:
                stack.pop()


class Module:
    """Functions, declarations, globals and debug metadata of one compilation."""

    def __init__(self, name: str, triple: str):
        self.name, self.triple = name, triple
        self.decls: dict[str, str] = {}
        self.globals: list[str] = []
        self.functions: list[Function] = []
        self.meta: list[str] = []
        self.flags: list[str] = []
        self.attrs = ""

    def declare(self, name: str, ret: str, params: list[str], tail: str = ""):
        if name not in self.decls and not any(f.name == name for f in self.functions):
            self.decls[name] = f"declare {ret} @{name}({', '.join(params)}){tail}"

    def add_meta(self, text: str) -> str:
        self.meta.append(text)
        return f"!{len(self.meta) - 1}"

    def render(self) -> str:
        out = [f'; ModuleID = "{self.name}"', f'target triple = "{self.triple}"', ""]
        out += self.globals
        for f in self.functions:
            out += f.render()
        out += sorted(self.decls.values())
        out.append(f"attributes #0 = {{ nounwind \"no-builtin-memset\" \"no-builtin-memcpy\" \"no-builtin-memmove\" {self.attrs} }}")
        if self.flags:
            out.append(f"!llvm.module.flags = !{{{', '.join(self.flags)}}}")
        for name, refs in getattr(self, "named", {}).items():
            out.append(f"!{name} = !{{{', '.join(refs)}}}")
        out += [f"!{k} = {text}" for k, text in enumerate(self.meta)]
        return "\n".join(out) + "\n"


class Function:

    def __init__(self, module: Module, name: str, ret: str, params: list[tuple[str, str]], dbg: str | None = None,
                 linkage: str = "", attrs: str = ""):
        self.module, self.name, self.ret, self.params, self.dbg = module, name, ret, params, dbg
        self.linkage, self.attrs = linkage, attrs
        self.soft_half = None  # converts from and to half where the target has no instruction for it
        self.blocks: list[Block] = []
        self.count = 0
        self.allocas = []
        module.functions.append(self)

    def new_block(self, hint: str) -> Block:
        self.count += 1
        b = Block(f"{hint}{self.count}")
        self.blocks.append(b)
        return b

    def render(self) -> list[str]:
        params = ", ".join(f"{t} %{n}" for t, n in self.params)
        out = [f"define {self.linkage}{self.ret} @{self.name}({params}) #0{self.attrs}{' !dbg ' + self.dbg if self.dbg else ''} {{"]
        for k, b in enumerate(self.blocks):
            out.append(f"{b.label}:")
            if k == 0:
                out += self.allocas
            out += b.lines()
        out.append("}")
        out.append("")
        return out
