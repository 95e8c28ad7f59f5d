"""Outlining: blocks of a function become functions of their own, called where they were."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from typing import Callable

from . import ir

_NAME, _MADE = re.compile(r"%([\w.]+)"), re.compile(r"^  %([\w.]+) = ", re.M)
_LABEL, _DBG = re.compile(r"label %([\w.]+)"), re.compile(r"!dbg (!\d+)")
#: in the function's first block: addresses that each part computes anew, so that LLVM sees there, too, what they are addresses of
_ADDRESS = re.compile(r"  %([\w.]+) = getelementptr i8, ptr %([\w.]+), i64 \d+$")


@dataclass
class Part:
    """Blocks from `start` up to `end`, exclusive, that become the function `name`. dbg: its debug information; moved: (a reference to debug information of the function
    where they were) -> of this one; call: what stands behind the call of it."""

    name: str
    start: ir.Block
    end: ir.Block
    dbg: str
    moved: Callable[[str], str]
    call: str


@dataclass
class _Piece:
    """A part's blocks, the names that they use and those of the values that they compute. returns: one of them returns from the function."""

    part: Part
    blocks: list[ir.Block]
    used: dict[str, None]
    made: set[str]
    returns: bool


def outline(fn: ir.Function, parts: list[Part]):
    """Make functions of the parts, but for those that control leaves for another block than that at their end. Where it returns from one it returns from `fn`: an integer that is not 0,
    an assertion that failed."""
    types = {**fn.types, **{n: t.partition(" ")[0] for t, n in fn.params}, **{_NAME.search(line)[1]: "ptr" for line in fn.allocas}}  # labels and types of structures have none
    pieces = []
    for part in parts:
        blocks = fn.blocks[fn.blocks.index(part.start):fn.blocks.index(part.end)]
        text = "\n".join(line for b in blocks for line in b.lines())
        if {part.end.label, *(b.label for b in blocks)}.issuperset(_LABEL.findall(text)):
            pieces.append(_Piece(part, blocks, {n: None for n in _NAME.findall(text) if n in types}, set(_MADE.findall(text)), "  ret " in text))
    moved = {id(b) for piece in pieces for b in piece.blocks}
    users = collections.Counter(n for _, n in fn.params)
    users.update({n for b in fn.blocks if id(b) not in moved for line in b.lines() for n in _NAME.findall(line)})
    for piece in pieces:
        users.update(piece.used.keys())
    for piece in pieces:
        _move(fn, piece, {n for n in piece.used if users[n] > 1}, types)


def _move(fn: ir.Function, piece: _Piece, shared: set[str], types: dict[str, str]):
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
    kept = [n for n in piece.used if n in piece.made and n in shared]
    params = [(types[n], n) for n in sorted(given)] + [("ptr", f"{n}.kept") for n in kept]
    ty = fn.ret if piece.returns else "void"
    first, last = ir.Block("entry"), ir.Block(part.end.label)
    first.items = [*own, *(line for name, (line, _) in entry.items() if name in again), f"  br label %{part.start.label}"]
    last.items = [*(f"  store {types[n]} %{n}, ptr %{n}.kept" for n in kept), f"  ret {ty} 0" if piece.returns else "  ret void"]
    blocks = [first, *piece.blocks, last]
    for b in piece.blocks:
        b.items = [_DBG.sub(lambda m: "!dbg " + part.moved(m[1]), line) for line in b.lines()]
    ir.Function(fn.module, part.name, ty, params, part.dbg, "internal ", " noinline").blocks = blocks
    fn.allocas = [line for line in fn.allocas if line not in own] + [f"  %{n}.kept = alloca {types[n]}" for n in kept]
    at = fn.blocks.index(part.start)
    fn.blocks[at:at + len(piece.blocks)] = _calls(part, ty, params, [f"  %{n} = load {types[n]}, ptr %{n}.kept" for n in kept])


def _calls(part: Part, ty: str, params: list[tuple[str, str]], loads: list[str]) -> list[ir.Block]:
    """The blocks that stand where a part was. loads: what follows the call."""
    call, onwards = ir.Block(part.start.label), [*loads, f"  br label %{part.end.label}"]
    what = f"call {ty} @{part.name}({', '.join(f'{t} %{n}' for t, n in params)}){part.call}"
    if ty == "void":
        call.items = [f"  {what}", *onwards]
        return [call]
    ended, on = ir.Block(f"{part.start.label}.ended"), ir.Block(f"{part.start.label}.on")
    code = f"%{part.start.label}.code"
    call.items = [f"  {code} = {what}", f"  {code}.any = icmp ne {ty} {code}, 0", f"  br i1 {code}.any, label %{ended.label}, label %{on.label}"]
    ended.items, on.items = [f"  ret {ty} {code}"], onwards
    return [call, ended, on]
