"""Structured control flow: branches, and loops whose blocks and phis are made in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from .builder import Memory
from .module import Block
from .values import Val, const


class Flow(Memory):
    """Branches and loops. What a `with` statement holds is the body."""

    def br(self, block: Block, tail: str = ""):
        self.emit(f"br label %{block.label}{tail}")
        self.block.ended = True

    def cond_br(self, c: Val, then: Block, other: Block):
        self.emit(f"br i1 {c.s}, label %{then.label}, label %{other.label}")
        self.block.ended = True

    @contextlib.contextmanager
    def loop(self, lo: Val, hi: Val, step: int = 1, hint: str = "loop", *, flags: str = "nsw", name: str = "", latch: Block | None = None,
             tail: Callable[[], str] = str):
        """`for i in range(lo, hi, step)`, signed: gives i. hint: what the loop's first block is called; name: i is called NAME.id; latch: a block that ends a turn, which the body branches to; tail:
        what stands behind the branch back, asked for when the body is written."""
        pre, head, body, done = self.block, *(self.fn.new_block(h) for h in (hint, "body", "done"))
        self.br(head)
        self.enter(head)
        i = self.phi(lo.ty, f"{name}.id" if name else "")
        following = Val(i.ty, f"%{name}.next" if name else f"%n{i.s[2:]}")
        i.comes(lo, pre)
        self.cond_br(self.icmp("slt", i, hi), body, done)
        self.enter(body)
        yield i
        if latch:
            self.fn.blocks.append(latch)
            self.enter(latch)
        self.emit(f"{following.s} = add {flags} {i.ty} {i.s}, {step}")
        i.comes(following, self.block)
        self.br(head, tail())
        self.enter(done)

    @contextlib.contextmanager
    def repeat(self, *starts: Val):
        """A loop that is left at its end: gives a `Repeat`, whose `values` are `starts` in the first turn and what `until` says in the next."""
        pre, again, done = self.block, self.fn.new_block("again"), self.fn.new_block("over")
        self.br(again)
        self.enter(again)
        turn = Repeat(self, again, done, [self.phi(s.ty) for s in starts])
        for value, start in zip(turn.values, starts):
            value.comes(start, pre)
        yield turn
        self.enter(done)


class Repeat:
    """One turn of `Flow.repeat`."""

    def __init__(self, b: Flow, again: Block, done: Block, values):
        self.b, self.again, self.done, self.values = b, again, done, values

    def until(self, condition: Val, *following: Val):
        """The turn's end, which every body has: leave where `condition` holds, else go on with `following` as values."""
        self.b.cond_br(condition, self.done, self.again)
        for value, v in zip(self.values, following, strict=True):
            value.comes(v, self.b.block)


class Builder(Flow):
    """Everything that writes LLVM IR writes it with this."""
