"""What a benchmark runs: ops, columns, dtypes, cases, and how long it measures each."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..backends.base import Error, suggest
from ..ops import cases, registry
from ..ops.drawn import drawn
from ..ops.records import Case, Op
from . import clock, columns


@dataclass
class Plan:
    """What to run.

    backends: by name; variants: names of ops' variants, None for all. cases, sweeps: texts (`ops.cases`), none for each op's default cases. mode:
    fwd, bwd or fwd+bwd. rounds: of timing, None for as many as it takes to know the medians to `precision` (a share, half of the 95 % interval's width) or to
    spend `budget` seconds on a case. seconds: of a turn. cold: measure first calls. singles: so many single calls beside, the first one compiling. device:
    where the torch columns and the variants run. threads: a board's. drawn: so many cases of sizes drawn at random (`ops.drawn`) by `seed`, instead of others."""

    ops: list[Op]
    backends: list[str]
    dtypes: list[str]
    cases: list[str] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    variants: list[str] | None = None
    mode: str = "fwd"
    rounds: int | None = None
    precision: float = clock.PRECISION
    budget: float = clock.BUDGET
    seconds: float = 0.01
    cold: bool = True
    singles: int = 0
    seed: int = 0
    device: str = "cpu"
    threads: int = 0
    drawn: int = 0
    #: were the columns asked for by name? Then it is said which op has none of that name
    named: bool = False
    #: what is done once: (op, dtype, backend) whose first call in a new process was measured, and (op, dtype, column, "returns") of which it was said that it returns another dtype
    seen: set = field(default_factory=set)

    def __post_init__(self):
        """What is named twice is run once. Raises `Error` for two ops of one name: rows are told apart by it."""
        self.backends, self.dtypes, self.ops = list(dict.fromkeys(self.backends)), list(dict.fromkeys(self.dtypes)), _once(self.ops)

    def items(self) -> tuple[list[tuple[Op, str, Case]], list[str]]:
        """(op, dtype name, case) in order, and remarks: which op has none of the columns, dtypes and cases that were asked for and another one has. Raises `Error` where nothing is left to
        run, or a case is none of any op."""
        from ..backends import get

        out: list[tuple[Op, str, Case]] = []
        remarks = self._without()
        refused: dict[str, str] = {}  # case -> why the first op that saw it does not take it
        taken: set[str] = set()
        backends = [get(name) for name in self.backends]
        for op in self.ops:
            if not columns.of(op, backends, self.variants, self.device):
                continue
            chosen, why = self._cases(op)
            if why and not chosen:
                remarks.append(f"{op.name} is left out: {next(iter(why.values()))}")
            refused = why | refused
            taken |= set(self.cases) - why.keys()
            out += [(op, name, case) for name in self.dtypes if name in op.dtypes for case in chosen]
        if not (self.drawn and out) and (absent := [why for text, why in refused.items() if text not in taken]):
            raise Error(absent[0])
        if out:
            return out, remarks
        shown = sorted({d for op in self.ops for d in op.dtypes})
        if not any(d in shown for d in self.dtypes):
            raise Error(f"nothing to run: of dtypes {', '.join(self.dtypes)} the chosen ops take {', '.join(shown)}")
        raise Error(f"nothing to run: {', '.join(op.name for op in self.ops)} with none of the columns {', '.join([*self.backends, *(self.variants or [])])}")

    def _without(self) -> list[str]:
        """Which ops have no rows of a dtype or a column that others have, a sentence for each."""
        from ..backends import get

        out = []
        for name in self.dtypes:
            lacking = [op.name for op in self.ops if name not in op.dtypes]
            if lacking and len(lacking) < len(self.ops):
                out.append(f"no rows of {name} for {', '.join(lacking)}: not among the dtypes taken there")
            elif lacking:
                out.append(f"no rows of {name}: none of the ops takes it")
        if not self.named:
            return out
        columns_of = {name: [op.name for op in self.ops if not get(name).takes(op)] for name in self.backends}
        columns_of |= {name: [op.name for op in self.ops if name not in op.variants] for name in self.variants or []}
        return out + [f"no rows of {name} for {', '.join(lacking)}: {name} does not run {'them' if len(lacking) > 1 else 'it'}" for name, lacking in columns_of.items() if lacking]

    def _cases(self, op: Op) -> tuple[list[Case], dict[str, str]]:
        """The op's cases in this run, and those of the texts that are none of its -> why."""
        chosen: dict[str, Case] = {}
        why: dict[str, str] = {}
        if self.drawn:
            try:
                return drawn(op, self.drawn, self.seed, self.device), {}
            except Error as e:
                return [], {"": str(e)}
        for text in self.cases or [None]:
            try:
                found = cases.sweep(op, cases.select(op, [text] if text is not None else [], self.device), self.sweeps)
                chosen |= {c.name: c for c in found}
            except Error as e:
                why[text or ""] = str(e)
        return list(chosen.values()), why


def _once(ops: list[Op]) -> list[Op]:
    """Ops in order, each once: by what it was asked for by, for a file that is read twice makes a record each time."""
    found: dict[str, tuple[str, Op]] = {}
    for op in ops:
        own = registry.name_of(op) or f"one made in Python ({id(op):#x})"
        other, _ = found.setdefault(op.name, (own, op))
        if other != own:
            raise Error(f"two ops are called {op.name!r}: {other} and {own}; rows are told apart by op, case, dtype, mode and backend, so give one of them another name")
    return [op for _, op in found.values()]


def split(names: list[str], ops: list[Op]) -> tuple[list[str], list[str]]:
    """Names of columns as (backends, variants of `ops`). Raises `Error` for one that is neither."""
    from ..backends import BACKENDS

    variants = {v for op in ops for v in op.variants}
    names = ["triton-cpu" if name == "call" and "call" not in variants else name for name in names]  # what that column is called where it launches nothing
    for name in names:
        if name not in BACKENDS and name not in variants:
            raise Error(suggest("backend", name, [*BACKENDS, *variants]))
    return [n for n in names if n in BACKENDS], [n for n in names if n in variants]
