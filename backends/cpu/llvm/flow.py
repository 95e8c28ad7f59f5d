"""Structured control flow: branches, and loops whose blocks and phis are made in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from .builder import Scalars
from .module import Block, Function, Module
from .values import Val


class Flow(Scalars):
    """Branches and loops. What a `with` statement holds is the body."""

    def br(self, block: Block, tail: str = ""):
        self.emit(f"br label %{block.label}{tail}")
        self.block.ended = True

    def cond_br(self, c: Val, then: Block, other: Block, tail: str = ""):
        self.emit(f"br i1 {c.s}, label %{then.label}, label %{other.label}{tail}")
        self.block.ended = True

    def go(self, where: Block, c: Val | None = None):
        """Go to a block, where the i1 `c` holds if one is given, and else on."""
        if c is None:
            self.br(where)
            return
        on = self.fn.new_block("on")
        self.cond_br(c, where, on)
        self.enter(on)

    @contextlib.contextmanager
    def loop(self, lo: Val, hi: Val, step: int = 1, hint: str = "loop", *, flags: str = "nsw", name: str = "", latch: Block | None = None,
             tail: Callable[[], str] = str):
        """`for i in range(lo, hi, step)`, signed: gives i. hint: what the loop's first block is called; name: i is called NAME.id; latch: a
        block that ends a turn, which the body branches to; tail: what stands behind the branch back, asked for when the body is written."""
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


    def ret(self, v: Val | None = None):
        """Return from the function; what stands behind it in this place is never reached."""
        self.emit(f"ret {v.ty} {v.s}" if v else "ret void")
        self.block.ended = True

    def unreachable(self):
        self.emit("unreachable")
        self.block.ended = True

    @contextlib.contextmanager
    def when(self, c: Val):
        """What is done where the i1 `c` holds."""
        then, after = self.fn.new_block("then"), self.fn.new_block("after")
        self.cond_br(c, then, after)
        self.enter(then)
        yield
        if not self.block.ended:
            self.br(after)
        self.place(after)

    @contextlib.contextmanager
    def either(self, c: Val):
        """`with b.either(c) as (yes, no):`, and in it `with yes:` and `with no:`."""
        sides = [self.fn.new_block(h) for h in ("yes", "no")]
        after, joined = self.fn.new_block("after"), []

        @contextlib.contextmanager
        def side(block: Block):
            self.place(block)
            yield
            if not self.block.ended:
                self.br(after)
                joined.append(block)

        self.cond_br(c, *sides)
        yield [side(block) for block in sides]
        self.place(after)
        if not joined:
            self.unreachable()

    @contextlib.contextmanager
    def forever(self):
        """A loop that goes on until something in it leaves: gives a `Turn`."""
        head, done = self.fn.new_block("forever"), self.fn.new_block("done")
        self.br(head)
        self.enter(head)
        turn = Turn(self, head, done)
        yield turn
        if not self.block.ended:
            self.br(head)
        self.place(done)
        if not turn.left:
            self.unreachable()

    @contextlib.contextmanager
    def loop_while(self, condition: Callable[[], Val]):
        """As long as `condition()`, which is written at the start of every turn, holds. Gives a `Turn`."""
        with self.forever() as turn:
            turn.leave(self.not_(condition()))
            yield turn

    def variable(self, start: Val) -> Variable:
        """Something that changes: memory of the function, which LLVM's passes turn into registers."""
        return Variable(self, start)


class Variable:
    """See `Flow.variable`."""

    def __init__(self, b: Flow, start: Val):
        self.b, self.ty, self.at = b, start.ty, b.alloca(start.ty, "var")
        self.set(start)

    def get(self) -> Val:
        return self.b.load(self.ty, self.at)

    def set(self, v: Val):
        self.b.store(v, self.at)


class Turn:
    """One turn of a loop: `leave` and `again` end it, everywhere or where an i1 holds."""

    def __init__(self, b: Flow, head: Block, done: Block):
        self.b, self._head, self._done, self.left = b, head, done, False

    def leave(self, condition: Val | None = None):
        self.left = True
        self.b.go(self._done, condition)

    def again(self, condition: Val | None = None):
        self.b.go(self._head, condition)


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


def define(module: Module, name: str, ret: str, linkage: str = "", attributes: str = "", **parameters: str) -> Builder:
    """A new function of a module, to be written; parameters: their types by name."""
    return Builder(Function(module, name, ret, [(ty, p) for p, ty in parameters.items()], linkage=linkage and linkage + " ",
                            attrs=attributes and " " + attributes))
