"""What NVIDIA's tools write: PTX of compilers, SASS of nvdisasm and cuobjdump -> functions."""

from __future__ import annotations

import re
from sys import intern

from .gnu import SourceLines, cut, lines, unescaped, without_block_comments
from .schema import Function, Instruction

_PTX_LABEL = re.compile(r"\s*([$\w]+):(?!:)\s*")


def ptx(text: str) -> list[Function]:
    out: list[Function] = []
    where = SourceLines()
    depth, pending, skipping = 0, "", False
    text = without_block_comments(text)
    for hit in re.finditer(r"^\s*(\.file\b.*)$", text, re.M):
        where.read(hit[1].strip())
    for raw in lines(text):
        line = cut(raw, "//")[0].strip()
        if not line or line.startswith(".file"):
            continue
        if line.startswith(".loc"):
            where.read(line)
            continue
        if depth == 0:
            if hit := re.search(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([$\w]+)", line):
                out.append(Function(hit[2], called=hit[1] == "func"))
            skipping = line.startswith(".section") or skipping and depth == 0
        if depth == 0 or skipping:
            depth += line.count("{") - line.count("}")
            skipping = skipping and depth > 0
            if depth and "{" in line and out and not skipping:
                line = line.partition("{")[2].strip()
            else:
                continue
        while line:
            if not pending and out and (hit := _PTX_LABEL.match(line)):
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
            if statement and out and not statement.startswith("."):
                out[-1].instructions.append(_ptx_instruction(statement, where.frames()))
    return out


def _ptx_instruction(text: str, frames) -> Instruction:
    predicate = ""
    if text.startswith("@"):
        predicate, _, text = text.partition(" ")
    mnemonic, _, operands = text.strip().replace("\t", " ").partition(" ")
    return Instruction(intern(mnemonic), intern(" ".join(operands.split())), frames, predicate=predicate)


# --- SASS ------------------------------------------------------------------------------------------------------------

_SASS_LINE = re.compile(r'//## File "((?:[^"\\]|\\.)*)", line (\d+)(?: inlined at "((?:[^"\\]|\\.)*)", line (\d+))?')
_SASS_FUNCTION = re.compile(r"\s*\.section\s+\.text\.([$\w.]+)|\s*Function : (\S+)")  # nvdisasm's, cuobjdump's
_SASS_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")


def sass(text: str) -> list[Function]:
    out: list[Function] = []
    frames: list = []
    reset = True
    for line in lines(text):
        if hit := _SASS_FUNCTION.match(line):
            out.append(Function(hit[1] or hit[2]))
        elif hit := _SASS_LINE.search(line):
            if reset:
                frames, reset = [], False
            frames.append((unescaped(hit[1]), int(hit[2])))
            if hit[3]:
                frames.append((unescaped(hit[3]), int(hit[4])))
        elif out and (hit := re.match(r"\s*(\.L_x_\d+|\.L[\w$.]+):", line)):
            out[-1].labels[hit[1]] = len(out[-1].instructions)
        elif hit := _SASS_CODE.search(line):
            reset = True
            if not out:  # a part that was cut out by hand
                out.append(Function("code"))
            body = hit[2].strip()
            predicate = ""
            if body.startswith("{"):
                body = body[1:].strip()
            if body.startswith("@"):
                predicate, _, body = body.partition(" ")
            mnemonic, _, operands = body.strip().partition(" ")
            out[-1].instructions.append(Instruction(intern(mnemonic), intern(operands.strip(" }")), tuple(dict.fromkeys(frames)), int(hit[1], 16), predicate))
    for f in out:
        _by_address(f)
    return out


def _by_address(f: Function):
    """cuobjdump's jumps go to addresses: labels are put there."""
    at = {i.address: k for k, i in enumerate(f.instructions)}
    for i in f.instructions:
        if i.mnemonic.startswith(("BRA", "BSSY", "CALL", "JMP", "BRX", "PBK", "SSY")) and (hit := re.search(r"\b0x([0-9a-f]+)$", i.operands)):
            if int(hit[1], 16) in at:
                name = f".L_{hit[1]}"
                f.labels[name] = at[int(hit[1], 16)]
                i.operands = i.operands[:hit.start()] + f"`({name})"
