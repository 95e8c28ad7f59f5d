"""Blocks and loops of a function: natural ones (Aho, Sethi, Ullman: a back edge goes to a block that dominates its source), and irreducible ones, which a
goto or a compiler enters beside their head (Steensgaard: what still leads to itself without those edges; inside, what does so without the ways to its entries)."""

from __future__ import annotations

import re

from . import isa, retries
from .schema import Block, Function, Loop

#: names that compilers give to the parts of a function that hardly ever run
_COLD = re.compile(r"\.cold(\.\d+)?$")


def blocks(function: Function, classify) -> list[Block]:
    """The basic blocks in text order; `classify(instruction)` says where an instruction goes. The first is the entry."""
    code = function.instructions
    flows = [classify(i) for i in code]
    leaders = {0, *(at for at in function.labels.values() if at < len(code))}
    leaders |= {k + 1 for k, c in enumerate(flows) if (c.flow or _stops(code[k], c)) and k + 1 < len(code)}
    starts = sorted(leaders)
    names = {at: name for name, at in reversed(function.labels.items())}
    out = [Block(a, b, names.get(a, "")) for a, b in zip(starts, [*starts[1:], len(code)])]
    index = {b.first: k for k, b in enumerate(out)}
    for k, b in enumerate(out):
        last, c = code[b.last - 1], flows[b.last - 1]
        if c.flow in ("jump", "branch"):
            to = function.labels.get(c.target)
            if to in index:
                b.successors.append(index[to])
        # a predicated jump or exit (GPUs) may fall through
        if (c.flow in ("", "branch") and not _stops(last, c) or last.predicate) and k + 1 < len(out) and k + 1 not in b.successors:
            b.successors.append(k + 1)
    return out


def _stops(i, c) -> bool:
    """Is it a call that never returns, or a trap?"""
    return c.kind == "call" and isa.never_returns(c.target) or c.kind == "system" and isa.traps(i.mnemonic)


def analyse(function: Function):
    """Fill in blocks and loops of a classified function."""
    function.blocks = blocks(function, lambda i: i.what)
    before: list[list[int]] = [[] for _ in function.blocks]
    for k, b in enumerate(function.blocks):
        for s in b.successors:
            before[s].append(k)
    parent = _dominators(function.blocks, before)

    def dominates(a, b):
        while b is not None and b != a:
            up = parent.get(b)
            b = up if up != b else None
        return b == a

    bodies: dict[int, set[int]] = {}
    forward: dict[int, set[int]] = {k: set() for k in parent}
    for tail, head in ((k, s) for k, b in enumerate(function.blocks) for s in b.successors if k in parent):
        if not dominates(head, tail):
            forward[tail].add(head)
        else:
            body = bodies.setdefault(head, {head})
            work = [tail]
            while work:
                if (n := work.pop()) not in body:
                    body.add(n)
                    work += [p for p in before[n] if p in parent]
    loops = [Loop(h, frozenset(b)) for h, b in sorted(bodies.items())]
    loops = sorted((loop for loop in loops + _irreducible(forward, before, loops) if not retries.again(function, loop)), key=lambda loop: loop.header)
    for loop in loops:
        loop.depth = sum(loop.blocks <= other.blocks for other in loops)
        loop.inner = not any(other is not loop and other.blocks < loop.blocks for other in loops)
    function.loops = loops
    _failing(function, before)


def _irreducible(forward: dict[int, set[int]], before: list[list[int]], natural: list[Loop]) -> list[Loop]:
    """The loops that are entered at several places. forward: block -> where it goes, without back edges."""
    out, work = [], [forward]
    while work:
        edges = work.pop()
        for part in cycles(edges):
            body = part.union(*(loop.blocks for loop in natural if loop.header in part))
            entries = sorted(k for k in part if k == 0 or any(p in forward and p not in body for p in before[k]))
            header = next((k for k in entries if not any(loop.header == k for loop in natural)), entries[0])
            out.append(Loop(header, frozenset(body), entries=len(entries)))
            work.append({k: {s for s in edges[k] if s in part and s not in entries} for k in part})
    return out


def cycles(after: dict[int, set[int]]) -> list[set[int]]:
    """The sets of more than one block, or whatever is numbered, that all lead to each other."""
    into: dict[int, list[int]] = {k: [] for k in after}
    for k, edges in after.items():
        for s in edges:
            into[s].append(k)
    left, out = set(after), []
    waiting = {k: len(p) for k, p in into.items()}
    work = [k for k, n in waiting.items() if not n]
    while work:  # what can be put in order is in no cycle: nearly always all of it
        left.discard(k := work.pop())
        for s in after[k]:
            waiting[s] -= 1
            if not waiting[s]:
                work.append(s)
    while left:
        k = min(left)
        part = _leading([k], after) & _leading([k], into)
        if len(part) > 1:
            out.append(part)
        left -= part
    return out


def _failing(function: Function, before: list[list[int]]):
    """Mark the blocks from which every way ends in a failure. Loops that the entry leads to are none of them, but in a part that the compiler moved away,
    whose loops are then none: a program's main loop may have no other end than an abort."""
    found, cold = function.blocks, _COLD.search(function.name)
    looping = set() if cold else set().union(*(loop.blocks for loop in function.loops))
    failed = _leading([k for k, b in enumerate(found) if _fails(function.instructions[b.last - 1])], before)
    going_on = _leading([k for k, b in enumerate(found) if _goes_on(function, k)], before)
    for k in failed - going_on - looping:
        found[k].fails = True
    function.loops = [loop for loop in function.loops if not all(found[k].fails for k in loop.blocks)]


def _leading(to: list[int], before) -> set[int]:
    """The blocks that lead to some, with these."""
    out: set[int] = set()
    while to:
        if (k := to.pop()) not in out:
            out.add(k)
            to += before[k]
    return out


def _fails(i) -> bool:
    c = i.what
    calls = c.kind == "call" or c.kind == "branch" and c.flow != "branch"  # a jump to another function is a call, too
    return not i.predicate and (calls and isa.fails(c.target) or c.kind == "system" and isa.traps(i.mnemonic))


def _goes_on(function: Function, k: int) -> bool:
    """Does a block end in a return, an orderly exit, or a jump to elsewhere?"""
    last = function.instructions[function.blocks[k].last - 1]
    elsewhere = last.what.flow in ("jump", "branch") and last.what.target not in function.labels
    return not _fails(last) and (elsewhere or not function.blocks[k].successors)


def _dominators(found: list[Block], before: list[list[int]]) -> dict[int, int]:
    """Block -> the nearest one that every way to it goes through; 0, the entry, is its own; without those that cannot be reached (Cooper, Harvey, Kennedy:
    in postorder from the end, two candidates meet where their chains do). Written out: a graph library takes longer to import than most files to judge."""
    order: list[int] = []
    seen, work = {0}, [(0, iter(found[0].successors))]
    while work:
        node, rest = work[-1]
        step = next((s for s in rest if s not in seen), None)
        if step is None:
            order.append(node)
            work.pop()
        else:
            seen.add(step)
            work.append((step, iter(found[step].successors)))
    number = {n: k for k, n in enumerate(order)}
    parent = {0: 0}
    changed = True
    while changed:
        changed = False
        for n in reversed(order[:-1]):
            new = None
            for p in before[n]:
                if p in parent:
                    while new is not None and new != p:
                        if number[p] < number[new]:
                            p = parent[p]
                        else:
                            new = parent[new]
                    new = p
            if parent.get(n) != new:
                parent[n], changed = new, True
    return parent


def instructions(function: Function, loop: Loop) -> list:
    """A loop's instructions in text order."""
    return [i for k in sorted(loop.blocks) for i in function.instructions[function.blocks[k].first:function.blocks[k].last]]
