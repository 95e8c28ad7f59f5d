"""What a bundle says of a call that went wrong: `triport_last_error`, and which assertion of a kernel did not hold.

The text belongs to the thread that called. Its memory is a symbol that all bundles of a process share, as they share the function's
name: whichever bundle's function the caller gets, it reads what any of them wrote.
"""

from __future__ import annotations

#: bytes of a text, with the zero at its end
LENGTH = 1024
_NUMBER = 48  # a kernel returns its assertion's number above this bit, the program below it (`emit/root/debug.py`)

#: what every library has
IR = f"""
@triport_last_error_text = thread_local global [{LENGTH} x i8] zeroinitializer, align 16
@triport.plain = internal constant [3 x i8] c"%s\\00"
@triport.asserted = internal constant [37 x i8] c"%s in program (%lld, %lld, %lld): %s\\00"
declare i32 @snprintf(ptr, i64, ptr, ...)
define ptr @triport_last_error() {{
  ret ptr @triport_last_error_text
}}
define internal void @say(ptr %text) {{
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @triport_last_error_text, i64 {LENGTH}, ptr @triport.plain, ptr %text)
  ret void
}}
define internal void @say_asserted(ptr %texts, i64 %status, i64 %gx, i64 %gy) {{
  %number = lshr i64 %status, {_NUMBER}
  %k = sub i64 %number, 1
  %p1 = getelementptr [2 x ptr], ptr %texts, i64 %k, i64 0
  %where = load ptr, ptr %p1
  %p2 = getelementptr [2 x ptr], ptr %texts, i64 %k, i64 1
  %message = load ptr, ptr %p2
  %program = and i64 %status, {(1 << _NUMBER) - 1}
  %x = urem i64 %program, %gx
  %yz = udiv i64 %program, %gx
  %y = urem i64 %yz, %gy
  %z = udiv i64 %yz, %gy
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @triport_last_error_text, i64 {LENGTH}, ptr @triport.asserted, ptr %where, i64 %x, i64 %y, i64 %z, ptr %message)
  ret void
}}
"""


class Texts:
    """Constant strings of a module, and tables of them."""

    def __init__(self):
        self._names: dict[str, str] = {}
        self._tables: list[str] = []

    def name(self, text: str) -> str:
        return self._names.setdefault(text, f"@text.{len(self._names)}")

    def pairs(self, texts: list[tuple[str, str]]) -> str:
        """The name of a table of pairs of strings."""
        name = f"@texts.{len(self._tables)}"
        rows = ", ".join(f"[2 x ptr] [ptr {self.name(a)}, ptr {self.name(b)}]" for a, b in texts)
        self._tables.append(f"{name} = internal constant [{len(texts)} x [2 x ptr]] [{rows}]")
        return name

    def ir(self) -> str:
        return "\n".join([*(f"{name} = internal constant {_constant(text)}" for text, name in self._names.items()), *self._tables])


def _constant(text: str) -> str:
    """A C string as LLVM writes one."""
    data = text.encode() + b"\0"
    return f'[{len(data)} x i8] c"' + "".join(chr(c) if 32 <= c < 127 and c not in (34, 92) else f"\\{c:02X}" for c in data) + '"'
