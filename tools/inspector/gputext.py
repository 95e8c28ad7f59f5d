"""What NVIDIA's tools write: PTX of compilers, SASS of nvdisasm and cuobjdump -> functions."""

from __future__ import annotations

import re

from .gnu import DOT_FILE, SourceLines, cut, without_block_comments
from .schema import Function, Instruction

_PTX_LABEL = re.compile(r"\s*([$\w]+):(?!:)\s*")


def ptx(text: str) -> list[Function]:
    out: list[Function] = []
    where = SourceLines()
    depth, pending, skipping = 0, "", False
    text = without_block_comments(text)
    for raw in text.split("\n"):
        if hit := DOT_FILE.match(raw.strip()):
            where.read(raw.strip())
    for raw in text.split("\n"):
        line = cut(raw, "//")[0].strip()
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


def sass(text: str) -> list[Function]:
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
