"""Assembly text -> functions: what compilers write (.s, PTX), and what disassemblers write (objdump, nvdisasm)."""

from __future__ import annotations

import os
import re

from .schema import Function, Instruction

_LABEL = re.compile(r'^\s*("[^"]+"|[.$\w@]+):\s*')
_PTX_LABEL = re.compile(r"\s*([$\w]+):(?!:)\s*")
_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_CODE = re.compile(r"\.text|\.section\s+\"?\.?(text|init|fini)")


def functions(text: str, isa) -> list[Function]:
    """The functions of assembly text in the syntax of `isa` (a row of isa.ISAS); those without instructions are left out."""
    if isa.syntax == "ptx":
        found = _ptx(text)
    elif isa.syntax == "sass":
        found = _sass(text)
    elif re.search(r"file format (elf|ELF|mach|pe)", text):
        found = _objdump(text)
    else:
        found = _gnu(text, isa)
    for f in found:
        _drop_unused(f)
    return [f for f in found if f.instructions]


def _drop_unused(f: Function):
    """Keep only labels that something refers to; others (.Ltmp, .Lfunc_begin) would cut blocks in two."""
    used = set(re.findall(r"[.$\w@]+", " ".join(i.operands for i in f.instructions)))
    f.labels = {k: v for k, v in f.labels.items() if k in used}


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
        if hit := _FILE.match(line):
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


def _gnu(text: str, isa) -> list[Function]:
    typed = set(re.findall(r'\.type\s+"?([.$\w@]+)"?\s*,\s*[@%#]?(?:function|STT_FUNC)', text))
    exported = set(re.findall(r'\.glob[a]?l\s+"?([.$\w@]+)"?', text))
    named = typed or exported
    # in plain text a label that something jumps to is no function, even after a return
    jumped = set() if named else set(re.findall(r"^\s+(?!bl\b|call|jal)[a-z]\S*\s+(?:.*[,\s])?([.$\w]+)\s*$", text, re.M))
    out: list[Function] = []
    where, executable = SourceLines(), True
    for raw in _without_block_comments(text).split("\n"):
        line, comment = _cut(raw, isa.comment)
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


def _without_block_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S) if "/*" in text else text


def _cut(line: str, mark: str) -> tuple[str, str]:
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


# --- PTX -------------------------------------------------------------------------------------------------------------


def _ptx(text: str) -> list[Function]:
    out: list[Function] = []
    where = SourceLines()
    depth, pending, skipping = 0, "", False
    text = _without_block_comments(text)
    for raw in text.split("\n"):
        if hit := _FILE.match(raw.strip()):
            where.read(raw.strip())
    for raw in text.split("\n"):
        line = _cut(raw, "//")[0].strip()
        if not line or line.startswith(".file"):
            continue
        if line.startswith(".loc"):
            where.read(line)
            continue
        if depth == 0:
            if hit := re.search(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([$\w]+)", line):
                out.append(Function(hit[1]))
            skipping = line.startswith(".section") or skipping and depth == 0
        if depth == 0 or skipping:
            depth += line.count("{") - line.count("}")
            skipping = skipping and depth > 0
            if depth and "{" in line and out and not skipping:
                line = line.partition("{")[2].strip()
            else:
                continue
        while line:
            if not pending and (hit := _PTX_LABEL.match(line)):
                out[-1].labels[hit[1]] = len(out[-1].instructions)
                line = line[hit.end():]
                continue
            if not pending and line[0] in "{}":  # scopes
                depth += 1 if line[0] == "{" else -1
                line = line[1:].strip()
                continue
            head, end, line = line.partition(";")
            pending += (" " if pending else "") + head.strip()
            line = line.strip()
            if not end:
                continue
            statement, pending = pending.strip(), ""
            if statement and not statement.startswith("."):
                out[-1].instructions.append(_ptx_instruction(statement, where.frames()))
    return out


def _ptx_instruction(text: str, lines) -> Instruction:
    predicate = ""
    if text.startswith("@"):
        predicate, _, text = text.partition(" ")
    mnemonic, _, operands = text.strip().replace("\t", " ").partition(" ")
    return Instruction(mnemonic, " ".join(operands.split()), lines, predicate=predicate)


# --- SASS ------------------------------------------------------------------------------------------------------------

_SASS_LINE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_SASS_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")


def _sass(text: str) -> list[Function]:
    out: list[Function] = []
    frames: list = []
    reset = True
    for line in text.split("\n"):
        if hit := re.match(r"\s*\.section\s+\.text\.([$\w.]+)", line):
            out.append(Function(hit[1]))
        elif hit := _SASS_LINE.search(line):
            if reset:
                frames, reset = [], False
            frames.append((hit[1], int(hit[2])))
            if hit[3]:
                frames.append((hit[3], int(hit[4])))
        elif out and (hit := re.match(r"\s*(\.L_x_\d+|\.L[\w$.]+):", line)):
            out[-1].labels[hit[1]] = len(out[-1].instructions)
        elif out and (hit := _SASS_CODE.search(line)):
            reset = True
            body = hit[2].strip()
            predicate = ""
            if body.startswith("{"):
                body = body[1:].strip()
            if body.startswith("@"):
                predicate, _, body = body.partition(" ")
            mnemonic, _, operands = body.strip().partition(" ")
            out[-1].instructions.append(Instruction(mnemonic, operands.strip(" }"), tuple(dict.fromkeys(frames)),
                                                    int(hit[1], 16), predicate))
    return out


# --- objdump ---------------------------------------------------------------------------------------------------------

_OBJ_FUNCTION = re.compile(r"^([0-9a-f]+) <([^>]+)>:")
_OBJ_CODE = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
_OBJ_AMD = re.compile(r"^\t(\S.*?)\s+// ([0-9A-Fa-f]{6,}): .*?(?:<[^>+]*(?:\+0x([0-9a-f]+))?>)?$")  # LLVM's for AMDGPU: addresses behind
_OBJ_LINE = re.compile(r"^(?:; )?(/?[^:\s][^:]*):(\d+)(?: \(discriminator \d+\))?\s*$")
_TARGET = re.compile(r"(?:0x)?([0-9a-f]+)\s+<[^>]*>")


def _objdump(text: str) -> list[Function]:
    """`objdump -d --no-show-raw-insn [-l]`, LLVM's or GNU's."""
    from .isa import ISAS
    out: list[Function] = []
    x86 = ISAS["x86-64" if re.search(r"x86.64", text[:400]) else "riscv64"]
    amd = "amdgpu" in text[:400]
    frames: tuple = ()
    start = 0
    for line in text.split("\n"):
        if hit := _OBJ_FUNCTION.match(line):
            out.append(Function(hit[2]))
            frames, start = (), int(hit[1], 16)
        elif amd and out and (hit := _OBJ_AMD.match(line)):
            i = instruction(hit[1], frames, "", ISAS["amdgcn"], int(hit[2], 16))
            if i.mnemonic.startswith(("s_branch", "s_cbranch")):
                i.operands = f"{start + int(hit[3] or '0', 16):x} <{out[-1].name}>"
            out[-1].instructions.append(i)
        elif out and (hit := _OBJ_CODE.match(line)):
            body, _, comment = hit[2].replace("\t", " ").strip().partition(" #" if x86.name == "x86-64" else " // ")
            if not body or body.startswith(("<unknown>", "(bad)", ".word", ".short", ".byte", ".long")):
                out[-1].instructions.append(Instruction(body.split(" ")[0] or "?", "", frames, int(hit[1], 16)))
                continue
            out[-1].instructions.append(instruction(body, frames, comment.strip(), x86, int(hit[1], 16)))
        elif hit := _OBJ_LINE.match(line):
            frames = ((hit[1], int(hit[2])),)
    for f in out:
        at = {i.address: k for k, i in enumerate(f.instructions)}
        for i in f.instructions:
            if hit := _TARGET.search(i.operands):
                if int(hit[1], 16) in at:
                    name = f".L{hit[1]}"
                    f.labels[name] = at[int(hit[1], 16)]
                    i.operands = i.operands[:hit.start()] + name + i.operands[hit.end():]
                else:
                    symbol = re.search(r"<([^>+]+)", hit[0])
                    i.operands = i.operands[:hit.start()] + (symbol[1] if symbol else hit[1])
    return out
