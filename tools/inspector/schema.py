"""What an instruction, a function and a loop are, the same for every ISA.

Every instruction has a kind and a unit:

- kind: what it does. Memory operands of arithmetic show in `loads` and `stores`, not in the kind.
- unit: who does it. On a CPU `vector` is a SIMD operation on more than one element. On a GPU every thread's instruction
  works on a whole warp, which is `vector`; `scalar` is the warp-uniform unit (SASS U*, AMDGCN s_*). `matrix` is a tensor
  core, MFMA, AMX or SME.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: kind -> what it holds
KINDS = {
    "load": "memory -> register", "store": "register -> memory",
    "gather": "one address per element, or a stride", "scatter": "one address per element, or a stride",
    "atomic": "read-modify-write", "arithmetic": "one operation, compares, minima and bit logic included",
    "fma": "multiply and add in one, dot products included", "convert": "between element types or widths",
    "shuffle": "elements change places", "move": "register copies, constants, selects",
    "mask": "predicates and mask registers", "call": "to another function",
    "branch": "jumps and returns", "config": "vector length, rounding, waits, hints", "sync": "barriers and fences",
    "system": "traps, interrupts, privileged", "unknown": "not in the classifier's tables",
}

UNITS = ("scalar", "vector", "matrix")


@dataclass(frozen=True)
class Class:
    """How one instruction is classified.

    element: "f32", "i8", ...; "" where it has none. bits: width of the data that one execution works on, on a GPU per
    thread; 0 where unknown. loads, stores: bits it reads from and writes to memory. space: "" or a GPU's memory space, "stack"
    for a spill slot. flow: "", "jump", "branch" (may fall through), "return". target: label or address where it goes.
    masked: only some elements, by a mask register. splat: one element from memory for all lanes. address: a
    scalar load of what is used as an address, a loop's end or an element for all lanes, and is no data of its own. gathered: integers that a loop
    gathers in a register, a hash or a sum, for nothing else in it. lane: the load or store of one element of a vector that is put together or taken apart so."""

    kind: str
    unit: str = "scalar"
    element: str = ""
    bits: int = 0
    loads: int = 0
    stores: int = 0
    space: str = ""
    flow: str = ""
    target: str = ""
    masked: bool = False
    splat: bool = False
    address: bool = False
    gathered: bool = False
    lane: bool = False

    @property
    def is_float(self) -> bool:
        return self.element[:1] == "f" or self.element == "bf16"

    @property
    def is_memory(self) -> bool:
        return bool(self.loads or self.stores) or self.kind in ("load", "store", "gather", "scatter", "atomic")

    @property
    def is_spill(self) -> bool:
        return self.space == "stack" and self.is_memory

    @property
    def is_float_work(self) -> bool:
        """Does it compute with floating-point elements?"""
        return self.is_float and self.kind in ("arithmetic", "fma", "convert")


UNKNOWN = Class("unknown")


@dataclass(slots=True)
class Instruction:
    """One line of assembly. lines: (file, line) of the source, innermost call first."""

    mnemonic: str
    operands: str
    lines: tuple[tuple[str, int], ...] = ()
    address: int | None = None
    predicate: str = ""
    comment: str = ""
    what: Class = UNKNOWN

    @property
    def text(self) -> str:
        return f"{self.predicate} {self.mnemonic} {self.operands}".strip()


@dataclass
class Block:
    """Instructions with one entry and one exit: `first` to `last` (exclusive) of the function's. fails: every way on from it ends in a failure, a throw or
    an abort: it cleans up, or says what went wrong."""

    first: int
    last: int
    label: str = ""
    successors: list[int] = field(default_factory=list)
    fails: bool = False


@dataclass
class Loop:
    """A loop: header block, all its blocks; depth 1 is outermost; `inner`: no loop inside; entries: blocks at which it is entered, more than the header where
    it is irreducible."""

    header: int
    blocks: frozenset[int]
    depth: int = 1
    inner: bool = True
    entries: int = 1


@dataclass
class Function:
    """A function's instructions, blocks and loops. labels: name -> index of the instruction it stands before; called: PTX says that it is no kernel."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    called: bool = False


@dataclass(frozen=True)
class Bound:
    """cycles: of one turn, simulated; model: LLVM's name of the CPU; elements: written by a turn (read, where none is written), None where unknown;
    bytes: read and written by a turn, spills left out; flops: of a turn, a multiply-add counts two, None where unknown; limits: what each alone would
    take, in cycles; peak: the model's FLOP a cycle, None where not known, and peak_source: what it is; peak_share: of the peak, 0 to 1; by: what
    bounds it; words: for people; cut: what was left out of the simulation."""

    cycles: float
    model: str
    elements: int | None
    bytes: int
    flops: int | None
    limits: dict[str, float]
    peak: float | None
    peak_source: str
    peak_share: float | None
    by: str
    words: tuple[str, ...]
    cut: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        number = lambda x: x if x is None or isinstance(x, int) else round(x, 4)  # noqa: E731
        per = {"cycles_per_element": number(self.cycles / self.elements) if self.elements else None,
               "flop_per_cycle": number(self.flops / self.cycles) if self.flops is not None else None,
               "bytes_per_cycle": number(self.bytes / self.cycles)}
        return {**vars(self), "cycles": number(self.cycles), "limits": {k: number(v) for k, v in self.limits.items()}, "peak": number(self.peak),
                "peak_share": number(self.peak_share), "words": list(self.words), "cut": list(self.cut), **per}
