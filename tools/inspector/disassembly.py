"""What disassemblers of objects write: objdump and llvm-objdump, with and without raw bytes and source lines, and gdb -> functions."""

from __future__ import annotations

import re

from ...backends.base import Error
from . import intel
from .gnu import apple, instruction, lines
from .schema import Function, Instruction

_FORMAT = re.compile(r"file format ((?:elf|ELF|mach|Mach|pe|coff|COFF)[^\n]*)")
_FUNCTION = re.compile(r"^(?:0x)?([0-9a-f]+) <(.+)>:\s*$")
_CODE = re.compile(r"^(?:=>)?\s*(?:0x)?([0-9a-f]+)(?: <\+\d+>)?:\s(.*)$")
_GDB = re.compile(r"^Dump of assembler code for function (.+):\s*$")
_AMD = re.compile(r"^\t(\S.*?)\s+// ([0-9A-Fa-f]{6,}):.*?(?:<[^>+]*(?:\+0x([0-9a-f]+))?>)?\s*$")  # LLVM's for AMDGPU: addresses behind
_LINE = re.compile(r"^(?:; )?(/?[^:\s][^:]*):(\d+)(?: \(discriminator \d+\))?\s*$")
_RELOCATION = re.compile(r"^\s+[0-9a-f]+:\s+((?:R|IMAGE|ARM64|X86_64)_\w+)\s+(\S+?)(?:[-+]0x[0-9a-f]+)?\s*$")  # by -r
_CALL = re.compile(r"callq?$|bl$|jmpq?$|b$")
_TARGET = re.compile(r"(?:0x)?([0-9a-f]+)\s+<[^>]*>")
#: bytes of an instruction as tools write them: x86 by two digits, Arm by eight, RISC-V by four or eight (older LLVMs: all by two)
_RAW = re.compile(r"((?:[0-9a-f]{2} )+(?=\s|$)|(?:[0-9a-f]{2} )*[0-9a-f]{2}(?=\s*\t|\s*$)|[0-9a-f]{8}(?=\s|$)|[0-9a-f]{4}(?: [0-9a-f]{4})*(?=\s|$)|(?:[0-9a-f]{2} )+)\s*")
_NO_CODE = ("<unknown>", "(bad)", ".word", ".short", ".byte", ".long", ".inst", ".4byte", ".2byte", ".insn")


def is_disassembly(text: str) -> bool:
    """Is a text one of objdump's? By the line with the file's format, or by its functions' headings."""
    return bool(_FORMAT.search(text[:2000])) or bool(re.search(r"^(?:0x)?[0-9a-f]{8,16} <.+>:\s*\n\s*[0-9a-f]+:\s|^Dump of assembler code for|^\t\S.*\s// [0-9A-F]{12}:", text, re.M))


def format_of(text: str) -> str:
    """The "file format" that a disassembly names; "" where it has none."""
    hit = _FORMAT.search(text[:2000])
    return hit[1].strip() if hit else ""


def functions(text: str, isa) -> list[Function]:
    """The functions of a disassembly of code of `isa`, by the addresses' order."""
    out: list[Function] = []
    raw = _has_bytes(text)
    mach = format_of(text).lower().startswith("mach")
    mark = " ;" if mach and isa.name == "aarch64" else {"x86-64": " #", "riscv64": " #", "aarch64": " //"}.get(isa.name, " //")
    from_intel = isa.name == "x86-64" and intel.is_intel(text)
    frames: tuple = ()
    made: dict[tuple, tuple] = {}
    start, called = 0, ""
    for line in lines(text):
        if hit := _FUNCTION.match(line):
            if hit[2].startswith(".L") and out:  # a label of the assembler's inside a function
                continue
            out.append(Function(hit[2].removeprefix("_") if mach else hit[2]))
            frames, start = (), int(hit[1], 16)
        elif hit := _GDB.match(line):
            out.append(Function(hit[1]))
        elif isa.name == "amdgcn" and (hit := _AMD.match(line)):
            if not out:  # a part that was cut out by hand
                out.append(Function("code"))
            i = instruction(hit[1], frames, "", isa, int(hit[2], 16))
            if i.mnemonic.startswith(("s_branch", "s_cbranch")):
                i.operands = f"{start + int(hit[3] or '0', 16):x} <{out[-1].name}>"
            out[-1].instructions.append(i)
        elif out and (hit := _RELOCATION.match(line)):
            if hit[1] in ("R_RISCV_RELAX", "R_RISCV_ALIGN"):  # leave to shorten code
                continue
            called = hit[2]
            if out[-1].instructions and _CALL.match(out[-1].instructions[-1].mnemonic):
                out[-1].instructions[-1].operands, called = called, ""
        elif out and (hit := _CODE.match(line)):
            if not (body := _body(hit[2], raw)):
                continue
            i = _instruction(body, mark, intel.att if from_intel else apple if mach else str, frames, isa, int(hit[1], 16))
            if i.mnemonic == "jalr" and called:  # RISC-V: the relocation stands at the auipc before it
                i.mnemonic, i.operands = "call", called
            called = called if i.mnemonic == "auipc" else ""
            out[-1].instructions.append(i)
        elif hit := _LINE.match(line):
            frames = made.setdefault((hit[1], hit[2]), ((hit[1], int(hit[2])),))
    if isa.name == "riscv64":
        _refuse_unlinked(out)
    for f in out:
        _resolve(f)
    return out


def _refuse_unlinked(found: list[Function]):
    """A RISC-V object for a linker that relaxes has jumps to themselves, whose targets only its relocations know; their symbols have no names in text."""
    for f in found:
        for i in f.instructions:
            if re.match(r"(c\.)?b(eq|ne|lt|ge|gt|le)u?z?$", i.mnemonic) and (hit := _TARGET.search(i.operands)) and int(hit[1], 16) == i.address:
                raise Error(f"the disassembly of {f.name} has branches to themselves ({i.address:x}: {i.text}): the linker was to fill them in. "
                            "Give the object file itself, or the linked program's disassembly, or compile with -mno-relax")


def _has_bytes(text: str) -> bool:
    """Do lines of code begin with their bytes? `fadd` and `dec` look like such, but not all lines do."""
    found = [m[1] for m in re.finditer(r"^(?:=>)?\s*(?:0x)?[0-9a-f]+(?: <\+\d+>)?:\s+([^\sA-Z]+)", text[:200_000], re.M)]  # no relocations
    fitting = sum(bool(re.fullmatch(r"[0-9a-f]{2}|[0-9a-f]{4}|[0-9a-f]{8}", t)) for t in found)
    return bool(found) and fitting >= 0.95 * len(found)


def _body(rest: str, raw: bool) -> str:
    """A line's instruction, without its bytes; "" for a line that only has the rest of its predecessor's."""
    rest = rest.lstrip()
    if raw:
        head, tab, behind = rest.partition("\t")
        if tab and re.fullmatch(r"[0-9a-f ]+", head):
            return behind.strip().replace("\t", " ")
        hit = _RAW.match(rest)
        rest = rest[hit.end():] if hit else rest
    return rest.strip().replace("\t", " ")


def _instruction(body: str, mark: str, usual, frames, isa, address: int) -> Instruction:
    body, _, comment = body.partition(mark)
    body = body.strip()
    if not body or body.startswith(_NO_CODE):
        return Instruction(body.split(" ")[0] or "?", "", frames, address)
    return instruction(usual(body), frames, comment.strip(), isa, address)


def _resolve(f: Function):
    """Jumps to addresses within the function go to labels; others to the symbol that the disassembler names."""
    at = {i.address: k for k, i in enumerate(f.instructions)}
    for k, i in enumerate(f.instructions):
        if "<" in i.operands and (hit := _TARGET.search(i.operands)):
            if re.match(r"(callq?|bl)$", i.mnemonic) and at.get(int(hit[1], 16)) in (k, k + 1):
                i.operands = "unlinked"  # the linker was to say whom; only relocations (objdump -dr) have the name
            elif int(hit[1], 16) in at:
                name = f".L{hit[1]}"
                f.labels[name] = at[int(hit[1], 16)]
                i.operands = i.operands[:hit.start()] + name + i.operands[hit.end():]
            else:
                symbol = re.search(r"<([^>+]+)", hit[0])
                i.operands = i.operands[:hit.start()] + (symbol[1] if symbol else hit[1])
