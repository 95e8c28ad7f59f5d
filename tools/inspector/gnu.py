"""What compilers write for CPUs and AMD's GPUs: assembly in the syntax of the GNU assembler -> functions."""

from __future__ import annotations

import os
import re
from sys import intern

from . import intel
from .schema import Function, Instruction

_LABEL = re.compile(r'^\s*("[^"]+"|[.$\w@]+):\s*')
DOT_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_CODE = re.compile(r"\.?(text|init|fini)(?!_array)|__TEXT,\s*__(text|stubs|static)")
#: .section and .pushsection: the name, and the flags where there are some
_SECTION = re.compile(r'\.(?:push)?section\s+("[^"]*"|__\w+\s*,\s*\w+|[^\s,]+)(?:\s*,\s*(?:\d+\s*,\s*)?"([^"]*)")?')


def unescaped(text: str) -> str:
    """What a quoted text of assembly says: what is not ASCII is written byte by byte, in octal."""
    said = re.sub(rb"\\([0-7]{3}|.)", lambda m: bytes([int(m[1], 8) & 255]) if len(m[1]) == 3 else {b"n": b"\n", b"t": b"\t"}.get(m[1], m[1]), text.encode())
    return said.decode(errors="replace")


def _path(folder: str | None, name: str) -> str:
    return unescaped(os.path.join(folder, name) if folder else name)


class SourceLines:
    """The source position in force, from .file and .loc."""

    def __init__(self):
        self.files: dict[int, str] = {}
        self.now: tuple = ()
        self.made: dict[tuple, tuple] = {}  # what `frames` gave: thousands of instructions share a position

    def read(self, line: str) -> bool:
        """Take a directive; False when it is none of these."""
        if hit := DOT_FILE.match(line):
            self.files[int(hit[1])] = _path(hit[2], hit[3])
            self.made.clear()
            return True
        if hit := _LOC.match(line):
            frames = [(int(hit[1]), int(hit[2]))]
            if inlined := _INLINED.search(line):
                frames.append((int(inlined[1]), int(inlined[2])))
            if frames[0][1]:  # line 0: the compiler's own, no line
                self.now = tuple(frames)
            return True
        return False

    def frames(self) -> tuple[tuple[str, int], ...]:
        if self.now not in self.made:
            self.made[self.now] = tuple((self.files.get(n, str(n)), line) for n, line in self.now)
        return self.made[self.now]


class _Sections:
    """Which section is written to, from the directives that say it, and whether it holds code: by its flags, of those without any by its name."""

    def __init__(self):
        self.now, self.before, self.stack = (".text", True), (".text", True), []
        self.known: dict[str, bool] = {}  # sections whose flags stood at their first directive, and do not at later ones

    def read(self, line: str) -> bool:
        """Take a directive; False when it is none of these."""
        word = line.split(maxsplit=1)[0]
        if word == ".popsection":
            self.now, self.before = self.stack.pop() if self.stack else (self.now, self.before)
        elif word == ".previous":
            self.now, self.before = self.before, self.now
        elif word in (".section", ".pushsection") and (hit := _SECTION.match(line)):
            name = hit[1].strip('"')
            if hit[2] is not None:
                self.known[name] = "x" in hit[2]
            if word == ".pushsection":
                self.stack.append((self.now, self.before))
            self.now, self.before = (name, self.known.get(name, bool(_CODE.match(name)))), self.now
        elif line.startswith((".text", ".data", ".bss", ".rodata", ".const", ".cstring", ".literal")):
            self.now, self.before = (word, word.startswith(".text")), self.now
        else:
            return False
        return True


class _Reader:
    """Assembly line by line. named: the labels that are functions, where directives say it; jumped: in plain text those that something jumps to."""

    def __init__(self, text: str, isa):
        self.isa, self.out, self.where, self.sections = isa, [], SourceLines(), _Sections()
        self.mach = bool(re.search(r"^\s*\.(section\s+__TEXT|subsections_via_symbols|build_version)", text, re.M))
        self.intel = isa.name == "x86-64" and intel.is_intel(text)
        self.comment = ";" if self.mach and isa.name == "aarch64" else isa.comment
        self.split = re.compile(r";\s*" if self.comment != ";" else r"\n")
        typed = set(re.findall(r'\.type\s+"?([.$\w@]+)"?\s*,\s*[@%#]?(?:function|STT_FUNC)', text))
        self.named = typed or set(re.findall(r'\.glob[a]?l\s+"?([.$\w@]+)"?', text))
        # in plain text a label that something jumps to is no function, even after a return
        self.jumped = set() if self.named else set(re.findall(r"^\s+(?!bl\b|call|jal)[a-z]\S*\s+(?:.*[,\s])?([.$\w]+)\s*$", text, re.M))

    def line(self, raw: str):
        if raw.startswith("#"):  # the preprocessor's, and #APP
            return
        line, comment = cut(raw, self.comment)
        while hit := _LABEL.match(line):
            if self.sections.now[1]:
                self.label(hit[1].strip('"'))
            line = line[hit.end():]
        line = line.strip()
        if line.startswith("."):
            self.directive(line)
        elif line and self.sections.now[1]:
            if not self.out:
                self.out.append(Function("code"))
            for statement in self.split.split(line) if ";" in line else (line,):
                if statement.strip():
                    self.statement(statement.strip(), comment)

    def label(self, name: str):
        out = self.out
        if name.isdigit() and out:
            out[-1].labels[f"{name}.{len(out[-1].instructions)}"] = len(out[-1].instructions)
        elif self.starts(name):
            out.append(Function(name.removeprefix("_") if self.mach else name))
            out[-1].labels[name] = 0
        elif out:
            out[-1].labels[name] = len(out[-1].instructions)

    def starts(self, name: str) -> bool:
        """Is a label a function's?"""
        if self.mach:  # without .type; the assembler's own labels begin with L, the linker's with l
            return not name.startswith(("L", "l")) and not name.isdigit()
        if self.named:
            return name in self.named
        return not self.out or not name.startswith((".L", "$L", "L")) and name not in self.jumped and _ended(self.out[-1])

    def directive(self, line: str):
        if self.sections.read(line):
            return
        if line.startswith((".intel_syntax", ".att_syntax")):
            self.intel = line.startswith(".intel")
        else:
            self.where.read(line)

    def statement(self, text: str, comment: str):
        if self.intel:
            text = intel.att(text)
        elif self.mach:
            text = apple(text)
        self.out[-1].instructions.append(instruction(text, self.where.frames(), comment, self.isa))


def functions(text: str, isa) -> list[Function]:
    """The functions of assembly text, those without instructions included."""
    reader = _Reader(text, isa)
    for raw in lines(without_block_comments(text)):
        reader.line(raw)
    for f in reader.out:
        _resolve_numeric(f)
    return reader.out


def lines(text: str):
    """The lines of a text, one by one: a list of all would take more memory than the text."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


_ARRANGED = re.compile(r"([a-z][a-z0-9]*)\.(\d*[bhsdq])\s+(.*)")


def apple(text: str) -> str:
    """Apple's spelling in the usual one: `fmla.4s v0, v1, v2[0]` as `fmla v0.4s, v1.4s, v2.s[0]`, and functions without their underscore."""
    if hit := _ARRANGED.match(text.replace("\t", " ")):
        operands = re.sub(r"\bv(\d+)\b(\[\d+\])?(?!\.)", lambda v: f"v{v[1]}.{hit[2].lstrip('0123456789')}{v[2]}" if v[2] else f"v{v[1]}.{hit[2]}", hit[3])
        # a list's index stands behind its brace: { v0 }[1]
        operands = re.sub(r"\.\d+([bhsdq])(\s*\}\[)", r".\1\2", operands)
        return f"{hit[1]} {operands}"
    if re.match(r"(callq?|jmpq?|bl?)\s", text):
        return re.sub(r"(?<![\w.$@])_(?=\w)", "", text)
    return text


def _ended(f: Function) -> bool:
    """Does the function end with a return, so that a plain label after it starts another?"""
    return not f.instructions or bool(re.match(r"(ret|jr|jmp|b$|s_endpgm|tail|mret|j$)", f.instructions[-1].mnemonic))


def without_block_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S) if "/*" in text else text


def cut(line: str, mark: str) -> tuple[str, str]:
    """(code, comment) of a line; marks inside quotes are text."""
    at = line.find(mark)
    if at < 0:
        return line, ""
    if '"' in line[:at]:
        inside = False
        for k, c in enumerate(line):
            inside ^= c == '"'
            if not inside and line.startswith(mark, k):
                return line[:k], line[k + len(mark):].strip()
        return line, ""
    return line[:at], line[at + len(mark):].strip()


_PREFIX = re.compile(r"(lock|rep|repe|repz|repne|repnz|notrack|bnd|xacquire|xrelease|data16|cs|ds|es|fs|gs|ss|addr32|rex64|\{evex\}|\{vex\}|\{vex3\}|"
                     r"\{nf\}|\{dfv=[^}]*\})\s+(?=[a-z{])")


def instruction(text: str, lines, comment: str, isa, address=None) -> Instruction:
    predicate, prefix = "", ""
    while isa.name == "x86-64" and (hit := _PREFIX.match(text)):
        prefix += hit[1] + " " if hit[1] in ("lock",) or hit[1].startswith("rep") else ""
        text = text[hit.end():]
    mnemonic, _, operands = text.replace("\t", " ").partition(" ")
    if prefix.startswith("rep") and not re.match(r"(movs|stos|lods|cmps|scas|ins|outs)[bwlq]$", mnemonic):
        prefix = ""  # without meaning there
    # a few thousand texts make up millions of lines: each is kept once
    return Instruction(intern(prefix + mnemonic), intern(operands.strip()), lines, address, predicate, intern(comment))


def _resolve_numeric(f: Function):
    """`1b` and `1f` are the nearest label 1 before and after, which is called `1.13` after its place: what follows an @ is no part of a target."""
    places: dict[str, list[int]] = {}
    for name, at in f.labels.items():
        if hit := re.fullmatch(r"(\d+)\.\d+", name):
            places.setdefault(hit[1], []).append(at)
    if not places:
        return
    for k, i in enumerate(f.instructions):
        def swap(hit, k=k):
            marks = places.get(hit[1], [])
            near = [p for p in marks if p <= k][-1:] if hit[2] == "b" else [p for p in marks if p > k][:1]
            return f"{hit[1]}.{near[0]}" if near else hit[0]
        i.operands = re.sub(r"\b(\d+)([bf])\b", swap, i.operands)
