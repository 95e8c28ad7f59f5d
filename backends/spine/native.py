"""A little structured assembler: functions of 64-bit words with loops and branches, as LLVM IR.

Addresses are words, too. Variables are memory, which LLVM's passes turn into registers.
"""

from __future__ import annotations

import contextlib


class Function:
    """One function under construction. Values are IR operands: names or numbers, i64 unless said otherwise."""

    def __init__(self, module: "Module", name: str, parameters: tuple[str, ...], hidden: bool = True):
        self.module, self.name = module, name
        self.parameters = [f"%{p}" for p in parameters]
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.linkage = "hidden " if hidden else ""
        self.count = 0

    def op(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def __getattr__(self, name: str):
        """add, sub, mul, udiv, urem, and_, or_, shl, lshr of two words."""
        ops = {"add", "sub", "mul", "udiv", "urem", "and_", "or_", "shl", "lshr"}
        if name not in ops:
            raise AttributeError(name)
        return lambda a, b: self.op(f"{name.rstrip('_')} i64 {a}, {b}")

    def is_(self, relation: str, a, b, ty: str = "i64") -> str:
        """An i1; relation as icmp or fcmp have it."""
        return self.op(f"{'fcmp' if ty == 'double' else 'icmp'} {relation} {ty} {a}, {b}")

    def at(self, address, offset=0) -> str:
        return self.op(f"inttoptr i64 {self.add(address, offset) if offset != 0 else address} to ptr")

    def load(self, address, offset=0, ty: str = "i64") -> str:
        return self.op(f"load {ty}, ptr {self.at(address, offset)}, align 1")

    def store(self, value, address, offset=0, ty: str = "i64"):
        self.lines.append(f"  store {ty} {value}, ptr {self.at(address, offset)}, align 1")

    def word(self, start=0) -> "Variable":
        """A variable of one word."""
        return Variable(self, "i64", start)

    def double(self, start="0.0") -> "Variable":
        return Variable(self, "double", start)

    def room(self, count: int) -> str:
        """The address of `count` words on the stack."""
        self.count += 1
        self.allocas.append(f"  %r{self.count} = alloca [{count} x i64], align 16")
        return self.op(f"ptrtoint ptr %r{self.count} to i64")

    def call(self, name: str, *args, returns: str = "i64") -> str:
        """Call a function of this module, or one of libc's (see `Module.declare`). A pair (type, value) is passed as that type."""
        text = ", ".join(f"{a[0]} {a[1]}" if isinstance(a, tuple) else f"i64 {a}" for a in args)
        signature = self.module.signature(name)
        if returns == "void":
            self.lines.append(f"  call {signature or 'void'} @{name}({text})")
            return ""
        return self.op(f"call {signature or returns} @{name}({text})")

    def text(self, value: str) -> str:
        """The address of a constant string."""
        return self.op(f"ptrtoint ptr {self.module.string(value)} to i64")

    def print(self, format: str, *args):
        self.call("printf", ("ptr", self.module.string(format)), *args)

    def ret(self, value):
        self.lines.append(f"  ret i64 {value}")
        self.label()

    def label(self) -> str:
        self.count += 1
        name = f"l{self.count}"
        self.lines.append(f"{name}:")
        return name

    @contextlib.contextmanager
    def when(self, condition: str):
        self.count += 1
        n = self.count
        self.lines += [f"  br i1 {condition}, label %then{n}, label %end{n}", f"then{n}:"]
        yield
        self.lines += [f"  br label %end{n}", f"end{n}:"]

    @contextlib.contextmanager
    def loop(self, condition):
        """While `condition()` gives a true i1."""
        self.count += 1
        n = self.count
        self.lines += [f"  br label %while{n}", f"while{n}:"]
        c = condition()
        self.lines += [f"  br i1 {c}, label %body{n}, label %done{n}", f"body{n}:"]
        yield
        self.lines += [f"  br label %while{n}", f"done{n}:"]

    @contextlib.contextmanager
    def count_to(self, end):
        """A loop over 0 .. end - 1; gives the index."""
        k = self.word()
        with self.loop(lambda: self.is_("ult", k.get(), end)):
            index = k.get()
            yield index
            k.set(self.add(index, 1))

    def ir(self) -> str:
        parameters = ", ".join(f"i64 {p}" for p in self.parameters)
        return "\n".join([f"define {self.linkage}i64 @{self.name}({parameters}) {{", "entry:", *self.allocas, *self.lines, "  ret i64 0", "}"])


class Variable:
    def __init__(self, f: Function, ty: str, start):
        f.count += 1
        self.f, self.ty, self.name = f, ty, f"%x{f.count}"
        f.allocas.append(f"  {self.name} = alloca {ty}")
        self.set(start)

    def get(self) -> str:
        return self.f.op(f"load {self.ty}, ptr {self.name}")

    def set(self, value):
        self.f.lines.append(f"  store {self.ty} {value}, ptr {self.name}")


class Module:
    def __init__(self, triple: str):
        self.triple = triple
        self.functions: list[Function] = []
        self.declared: dict[str, str] = {}
        self.variadic: dict[str, str] = {}
        self.strings: dict[str, str] = {}
        self.extra: list[str] = []

    def declare(self, name: str, text: str, variadic: str = ""):
        """An outside function: its whole declaration; variadic: its type, which calls repeat."""
        self.declared[name] = text
        if variadic:
            self.variadic[name] = variadic

    def signature(self, name: str) -> str:
        return self.variadic.get(name, "")

    def string(self, value: str) -> str:
        return self.strings.setdefault(value, f"@s{len(self.strings)}")

    def function(self, name: str, *parameters: str, hidden: bool = True) -> Function:
        f = Function(self, name, parameters, hidden)
        self.functions.append(f)
        return f

    def ir(self) -> str:
        out = [f'target triple = "{self.triple}"', *self.declared.values(), *self.extra]
        for value, name in self.strings.items():
            data = value.encode() + b"\0"
            text = "".join(chr(c) if 32 <= c < 127 and c not in (34, 92) else f"\\{c:02X}" for c in data)
            out.append(f'{name} = internal constant [{len(data)} x i8] c"{text}"')
        return "\n".join([*out, *(f.ir() for f in self.functions), ""])
