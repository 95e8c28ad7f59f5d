"""How often each block of a kernel runs: its LLVM IR walked with the integers of a launch, its data taken to be finite numbers.

A loop of one block is walked for a few turns; where its integers grow evenly, the rest is computed, and checked where it ends.
"""

from __future__ import annotations

from collections import Counter

from . import integers
from .code import Code
from .integers import ARGUMENTS, SCRATCH, TENSORS, Unknown
from .launches import Launch

#: blocks of one walk, loops of one block counting a few, at most
MOST = 400_000


def words(launch: Launch, code: Code) -> list[int | None]:
    """The arguments of a launch's compiled kernel, in order: tensors' addresses far from one another, integers, None for what is neither."""
    import torch

    from ...backends.cpu.ttir import reader
    values = launch.values()
    at: dict[int, int] = {}
    out: list[int | None] = []
    for argument in reader.parse(code.stages["ttir"]).kernel.args:
        value = values.get(argument.name)
        if isinstance(value, torch.Tensor):
            value = at.setdefault(id(value), TENSORS + (len(at) << 36))
        out.append(value & (1 << 64) - 1 if isinstance(value, int) else None)
    return out


class Walk:
    """A kernel's blocks. text: its optimised LLVM IR; words: its arguments. Raises `Unknown`."""

    def __init__(self, text: str, name: str, words: list[int | None]):
        self.blocks, self.first = integers.read(text, name, words)
        self._turned: dict[tuple, tuple[int, dict]] = {}

    def counts(self, program: int, grid: tuple[int, int, int]) -> Counter:
        """Label of a block -> how often it runs, in one program of a grid. Raises `Unknown`."""
        values = {"%args": ARGUMENTS, "%scratch": SCRATCH, "%begin": program, "%end": program + 1, "%gx": grid[0], "%gy": grid[1], "%gz": grid[2]}
        runs: Counter = Counter()
        label, before, left, stays = self.first, "", MOST, 0
        while label is not None:
            block = self.blocks[label]
            left -= 1
            if not left:
                raise Unknown(f"more than {MOST} blocks run in a program")
            values.update({n: came[before](values) for n, came in block.phis.items()})
            after = _ran(block, values)
            runs[label] += 1
            stays = stays + 1 if after == label else 0
            if stays & -stays == stays and stays and block.compared:  # what did not grow evenly before is tried ever more rarely
                key = label, *(values.get(n) for n in block.reads)
                if key not in self._turned:
                    self._turned[key] = self._evenly(label, block, values)
                turns, changed = self._turned[key]
                if turns:
                    runs[label] += turns
                    values.update(changed)
                    after = block.goes(values)
            before, label = label, after
        return runs

    @staticmethod
    def _evenly(label: str, block, values: dict) -> tuple[int, dict]:
        """(more turns of a block that has just run and goes to itself, its values after the last of them); 0 turns where that cannot be told at once."""
        x, y = block.compared
        states = [{n: values[n] for n in block.phis}]
        sides = [(x(values), y(values))]
        trial = dict(values)
        for _ in range(2):
            trial.update({n: came[label](trial) for n, came in block.phis.items()})
            if _ran(block, trial) != label:
                return 0, {}
            states.append({n: trial[n] for n in block.phis})
            sides.append((x(trial), y(trial)))
        steps = {n: None if states[0][n] is None or states[1][n] is None else states[1][n] - states[0][n] for n in states[0]}
        if any((s is None) != (states[2][n] is None) or s is not None and states[2][n] - states[1][n] != s for n, s in steps.items()):
            return 0, {}
        apart = [None if None in pair else pair[0] - pair[1] for pair in sides]
        if None in apart or not (step := apart[1] - apart[0]) or apart[2] - apart[1] != step:
            return 0, {}

        def at(turn: int):
            now = dict(values)
            now.update({n: None if s is None else states[0][n] + s * turn for n, s in steps.items()})
            return now, _ran(block, now)

        for turn in sorted({max(3, -apart[0] // step + k) for k in (-1, 0, 1, 2)}):
            now, goes = at(turn)
            if goes != label and at(turn - 1)[1] == label:
                return turn, {n: now[n] for n in (*block.phis, *(n for n, _ in block.steps))}
        return 0, {}


def _ran(block, values: dict) -> str | None:
    """The next block's label; the values are those behind the block."""
    for name, value in block.steps:
        values[name] = value(values)
    return block.goes(values)
