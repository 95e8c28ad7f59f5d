"""What compilers write for CPUs and AMD's GPUs: assembly in the syntax of the GNU assembler -> functions."""

from __future__ import annotations

import os
import re

from .schema import Function, Instruction

_LABEL = re.compile(r'^\s*("[^"]+"|[.$\w@]+):\s*')
DOT_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_CODE = re.compile(r"\.text|\.section\s+\"?\.?(text|init|fini)")


def _path(folder: str | None, name: str) -> str:
    return os.path.join(folder, name) if folder else name


class SourceLines:
    """The source position in force, from .file and .loc."""

    def __init__(self):
        self.files: dict[int, str] = {}
        self.now: tuple = ()
        self.contexts: list[tuple] = []

    def read(self, line: str) -> bool:
        """Take a directive; False when it is none of these."""
        if hit := DOT_FILE.match(line):
            self.files[int(hit[1])] = _path(hit[2], hit[3])
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
        return tuple((self.files.get(n, str(n)), line) for n, line in self.now)


def functions(text: str, isa) -> list[Function]:
    typed = set(re.findall(r'\.type\s+"?([.$\w@]+)"?\s*,\s*[@%#]?(?:function|STT_FUNC)', text))
    exported = set(re.findall(r'\.glob[a]?l\s+"?([.$\w@]+)"?', text))
    named = typed or exported
    # in plain text a label that something jumps to is no function, even after a return
    jumped = set() if named else set(re.findall(r"^\s+(?!bl\b|call|jal)[a-z]\S*\s+(?:.*[,\s])?([.$\w]+)\s*$", text, re.M))
    out: list[Function] = []
    where, executable = SourceLines(), True
    for raw in without_block_comments(text).split("\n"):
        line, comment = cut(raw, isa.comment)
        while hit := _LABEL.match(line):
            name = hit[1].strip('"')
            line = line[hit.end():]
            if not executable:
                continue
            if name.isdigit() and out:
                out[-1].labels[f"{name}@{len(out[-1].instructions)}"] = len(out[-1].instructions)
            elif (name in named) if named else not out or not name.startswith((".L", "$L", "L")) and name not in jumped and (
                    _ended(out[-1])):
                out.append(Function(name))
                out[-1].labels[name] = 0
            elif out:
                out[-1].labels[name] = len(out[-1].instructions)
        line = line.strip()
        if not line:
            continue
        if line.startswith("."):
            if line.startswith((".text", ".section", ".data", ".bss", ".rodata", ".pushsection", ".popsection")):
                executable = bool(_CODE.match(line))
            else:
                where.read(line)
            continue
        if not executable:
            continue
        if not out:
            out.append(Function("code"))
        for statement in re.split(r";\s*" if isa.comment != ";" else r"\n", line):
            if statement.strip():
                out[-1].instructions.append(instruction(statement.strip(), where.frames(), comment, isa))
    for f in out:
        _resolve_numeric(f)
    return out


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
    return Instruction(prefix + mnemonic, operands.strip(), lines, address, predicate, comment)


def _resolve_numeric(f: Function):
    """`1b` and `1f` are the nearest label 1 before and after."""
    places: dict[str, list[int]] = {}
    for name, at in f.labels.items():
        if "@" in name and name.partition("@")[0].isdigit():
            places.setdefault(name.partition("@")[0], []).append(at)
    if not places:
        return
    for k, i in enumerate(f.instructions):
        def swap(hit, k=k):
            marks = places.get(hit[1], [])
            near = [p for p in marks if p <= k][-1:] if hit[2] == "b" else [p for p in marks if p > k][:1]
            return f"{hit[1]}@{near[0]}" if near else hit[0]
        i.operands = re.sub(r"\b(\d+)([bf])\b", swap, i.operands)
