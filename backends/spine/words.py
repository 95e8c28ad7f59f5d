"""Functions of 64-bit words, for a program that has libc and nothing else: addresses are words, too."""

from __future__ import annotations

from ..cpu.llvm.ir import Builder, Function, Module, Val, i32, i64

#: functions whose result is a C int; that of all others is a word
_INT = {"open", "close", "mprotect", "clock_gettime", "getpagesize", "strcmp", "fflush", "isatty"}


def word(v: Val | int) -> Val:
    return i64(v) if isinstance(v, int) else v


class Words(Builder):
    """A function of words that returns a word."""

    def __init__(self, m: Module, name: str, *parameters: str):
        super().__init__(Function(m, name, "i64", [("i64", p) for p in parameters], linkage="hidden "))

    def get(self, address: Val, offset: Val | int = 0, ty: str = "i64") -> Val:
        return self.load(ty, self.address(self.add(address, offset), "ptr"), 1)

    def put(self, v: Val | int, address: Val, offset: Val | int = 0):
        self.store(word(v), self.address(self.add(address, offset), "ptr"), 1)

    def changing(self, start: Val | int = 0):
        """A variable of one word."""
        return self.variable(word(start))

    def room(self, count: int) -> Val:
        """The address of `count` words on the stack."""
        return self.address(self.alloca(f"[{count} x i64]", "room", 16))

    def text(self, value: str) -> Val:
        """The address of a constant string."""
        return self.address(self.fn.module.string(value))

    def run(self, name: str, *args: Val | int) -> Val:
        """Call a function of this module, of the library or of libc's with words."""
        given = [word(a) for a in args]
        return self.cast("sext", self.call(name, "i32", given), "i64") if name in _INT else self.call(name, "i64", given)

    def print(self, format: str, *args: Val):
        self.call("printf", "i32 (ptr, ...)", [self.fn.module.string(format), *args])

    def print_error(self, text: str):
        """Print a text to stderr."""
        self.call("dprintf", "i32 (i32, ptr, ...)", [i32(2), self.fn.module.string("%s"), self.fn.module.string(text)])

    def answer(self, v: Val | int):
        """Return a word."""
        self.ret(word(v))

    def equal(self, a: Val, b: Val | int) -> Val:
        return self.icmp("eq", a, b)

    def truth(self, c: Val) -> Val:
        """An i1 as a word."""
        return self.cast("zext", c, "i64")
