"""Blocks and natural loops of a function (Aho, Sethi, Ullman: a back edge goes to a block that dominates its source)."""

from __future__ import annotations

from .schema import Block, Function, Loop


def blocks(function: Function, classify) -> list[Block]:
    """The basic blocks in text order; `classify(instruction)` says where an instruction goes. The first is the entry."""
    code = function.instructions
    flows = [classify(i) for i in code]
    leaders = {0, *(at for at in function.labels.values() if at < len(code))}
    leaders |= {k + 1 for k, c in enumerate(flows) if c.flow and k + 1 < len(code)}
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
        if (c.flow in ("", "branch") or last.predicate) and k + 1 < len(out) and k + 1 not in b.successors:
            b.successors.append(k + 1)
    return out


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
    for tail, head in ((k, s) for k, b in enumerate(function.blocks) for s in b.successors):
        if tail in parent and dominates(head, tail):
            body = bodies.setdefault(head, {head})
            work = [tail]
            while work:
                if (n := work.pop()) not in body:
                    body.add(n)
                    work += [p for p in before[n] if p in parent]
    loops = [Loop(h, frozenset(b)) for h, b in sorted(bodies.items())]
    for loop in loops:
        loop.depth = sum(loop.blocks <= other.blocks for other in loops)
        loop.inner = not any(other is not loop and other.blocks < loop.blocks for other in loops)
    function.loops = loops


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
