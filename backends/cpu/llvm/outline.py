"""Outlining: blocks of a function become functions of their own, called where they were."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass

from . import ir

_NAME, _MADE = re.compile(r"%([\w.]+)"), re.compile(r"^  %([\w.]+) = ", re.M)
_LABEL = re.compile(r"label %([\w.]+)")
#: in the function's first block: addresses that each part computes anew, so that LLVM sees there, too, what they are addresses of
_ADDRESS = re.compile(r"  %([\w.]+) = getelementptr i8, ptr %([\w.]+), i64 \d+$")


@dataclass
class Part:
    """Blocks from `start` up to `end`, exclusive, that become the function `name`. dbg: its debug information; call: what stands behind the call of it."""

    name: str
    start: ir.Block
    end: ir.Block
    dbg: str
    call: str


@dataclass
class _Piece:
    """A part's blocks, the names that they use and those of the values that they compute."""

    part: Part
    blocks: list[ir.Block]
    used: dict[str, None]
    made: set[str]


def outline(fn: ir.Function, parts: list[Part]) -> bool:
    """Make functions of the parts. False, and nothing done, if control leaves one otherwise than at its end (an assertion that fails, say)."""
    labels = {b.label for b in fn.blocks}
    pieces = []
    for part in parts:
        blocks = fn.blocks[fn.blocks.index(part.start):fn.blocks.index(part.end)]
        text = "\n".join(line for b in blocks for line in b.lines())
        if "  ret " in text or not {part.end.label, *(b.label for b in blocks)}.issuperset(_LABEL.findall(text)):
            return False
        pieces.append(_Piece(part, blocks, {n: None for n in _NAME.findall(text) if n not in labels}, set(_MADE.findall(text))))
    moved = {id(b) for piece in pieces for b in piece.blocks}
    users = collections.Counter(n for _, n in fn.params)
    users.update({n for b in fn.blocks if id(b) not in moved for line in b.lines() for n in _NAME.findall(line)})
    for piece in pieces:
        users.update(piece.used.keys())
    for piece in pieces:
        _move(fn, piece, {n for n in piece.used if users[n] > 1})
    return True


def _move(fn: ir.Function, piece: _Piece, shared: set[str]):
    """Move blocks into a function of their own, and call it where they were. shared: names that others use, too; values among those that it computes are
    stored for them."""
    part, slots = piece.part, {_NAME.search(line)[1]: line for line in fn.allocas}
    own = [line for name, line in slots.items() if name in piece.used and name not in shared]
    entry = {m[1]: (m[0], m[2]) for line in fn.blocks[0].lines() if (m := _ADDRESS.match(line))}
    given, again, todo = set(), set(), [n for n in piece.used if n in shared and n not in piece.made]
    while todo:
        name = todo.pop()
        (again if name in entry else given).add(name)
        todo += [entry[name][1]] if name in entry else []
    types = {**fn.types, **{n: t.partition(" ")[0] for t, n in fn.params}, **dict.fromkeys(slots, "ptr")}
    kept = [n for n in piece.used if n in piece.made and n in shared]
    params = [(types[n], n) for n in sorted(given)] + [("ptr", f"{n}.kept") for n in kept]
    first, last, call = ir.Block("entry"), ir.Block(part.end.label), ir.Block(part.start.label)
    first.items = [*own, *(line for name, (line, _) in entry.items() if name in again), f"  br label %{part.start.label}"]
    last.items = [*(f"  store {types[n]} %{n}, ptr %{n}.kept" for n in kept), "  ret void"]
    ir.Function(fn.module, part.name, "void", params, part.dbg, "internal ", " noinline").blocks = [first, *piece.blocks, last]
    call.items = [f"  call void @{part.name}({', '.join(f'{ty} %{n}' for ty, n in params)}){part.call}",
                  *(f"  %{n} = load {types[n]}, ptr %{n}.kept" for n in kept), f"  br label %{part.end.label}"]
    fn.allocas = [line for line in fn.allocas if line not in own] + [f"  %{n}.kept = alloca {types[n]}" for n in kept]
    at = fn.blocks.index(part.start)
    fn.blocks[at:at + len(piece.blocks)] = [call]
