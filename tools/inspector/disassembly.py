"""What disassemblers of objects write, LLVM's and GNU's objdump -> functions."""

from __future__ import annotations

import re

from .gnu import instruction
from .schema import Function, Instruction

_OBJ_FUNCTION = re.compile(r"^([0-9a-f]+) <([^>]+)>:")
_OBJ_CODE = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
_OBJ_AMD = re.compile(r"^\t(\S.*?)\s+// ([0-9A-Fa-f]{6,}): .*?(?:<[^>+]*(?:\+0x([0-9a-f]+))?>)?$")  # LLVM's for AMDGPU: addresses behind
_OBJ_LINE = re.compile(r"^(?:; )?(/?[^:\s][^:]*):(\d+)(?: \(discriminator \d+\))?\s*$")
_OBJ_RELOCATION = re.compile(r"^\s+[0-9a-f]+:\s+(R_\w+|IMAGE_\w+|ARM64_\w+|X86_64_\w+)\s+([^\s+]+?)(?:[-+]0x[0-9a-f]+)?\s*$")  # by -r
_TARGET = re.compile(r"(?:0x)?([0-9a-f]+)\s+<[^>]*>")
_CALL = re.compile(r"callq?$|bl$|jmpq?$|b$")


def functions(text: str) -> list[Function]:
    """`objdump -d --no-show-raw-insn [-l] [-r]`, LLVM's or GNU's."""
    from .isa import ISAS
    out: list[Function] = []
    x86 = ISAS["x86-64" if re.search(r"x86.64", text[:400]) else "riscv64"]
    amd = "amdgpu" in text[:400]
    frames: tuple = ()
    start, called = 0, ""
    for line in text.split("\n"):
        if hit := _OBJ_FUNCTION.match(line):
            if hit[2].startswith(".L") and out:  # a label of the assembler's inside a function
                continue
            out.append(Function(hit[2]))
            frames, start = (), int(hit[1], 16)
        elif amd and out and (hit := _OBJ_AMD.match(line)):
            i = instruction(hit[1], frames, "", ISAS["amdgcn"], int(hit[2], 16))
            if i.mnemonic.startswith(("s_branch", "s_cbranch")):
                i.operands = f"{start + int(hit[3] or '0', 16):x} <{out[-1].name}>"
            out[-1].instructions.append(i)
        elif out and (hit := _OBJ_RELOCATION.match(line)):
            called = called if hit[2].startswith("*") else hit[2]
            if out[-1].instructions and _CALL.match(out[-1].instructions[-1].mnemonic):
                out[-1].instructions[-1].operands, called = called, ""
        elif out and (hit := _OBJ_CODE.match(line)):
            body, _, comment = hit[2].replace("\t", " ").strip().partition(" #" if x86.name == "x86-64" else " // ")
            if not body or body.startswith(("<unknown>", "(bad)", ".word", ".short", ".byte", ".long")):
                out[-1].instructions.append(Instruction(body.split(" ")[0] or "?", "", frames, int(hit[1], 16)))
                continue
            i = instruction(body, frames, comment.strip(), x86, int(hit[1], 16))
            if i.mnemonic == "jalr" and called:  # RISC-V: the relocation stands at the auipc before it
                i.mnemonic, i.operands = "call", called
            called = "" if i.mnemonic != "auipc" else called
            out[-1].instructions.append(i)
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
