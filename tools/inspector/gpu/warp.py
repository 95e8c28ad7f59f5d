"""The registers of one warp's threads, and what its instructions access. lanes.py walks it through machine code; ptx.py, sass.py and amdgcn.py are
its steps.

A register holds a number for each thread. What is not known (loaded values, what an instruction does that nobody modelled) makes what is computed
from it unknown; an address of that kind is a gather where it comes from memory, and is said to be unknown otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..schema import Instruction
from .arch import Arch
from .memory import Request, Shared, cycles, request
from .values import Value, argument, scattered, uniform


@dataclass
class Warp:
    """Registers by name, and what was accessed. names: of arguments, by their place (PTX: number, else byte offset); called: is it in no kernel, so that
    each thread may have its own arguments?"""

    arch: Arch
    names: dict[int, str] = field(default_factory=dict)
    ones: frozenset = frozenset()
    registers: dict[str, Value | None] = field(default_factory=dict)
    found: dict[int, Request | Shared] = field(default_factory=dict)
    called: bool = False

    @property
    def lane(self) -> np.ndarray:
        return np.arange(self.arch.warp, dtype=np.int64)

    def argument(self, place: int, pointer: bool) -> Value:
        """The value of a kernel's argument: a number of its own, large and aligned."""
        name = self.names.get(place, f"argument {place}")
        value = 1 if name in self.ones else (place + 1 << 24) if pointer else argument(place % 64)
        return Value(np.int64(value), frozenset() if pointer else frozenset({name}))

    def access(self, i: Instruction, address: Value | None, active: np.ndarray | None, line: str):
        """Record an access of an instruction. Returns what it loads."""
        c = i.what
        bits = c.loads or c.stores
        kind = "atomic" if c.kind == "atomic" else "store" if c.stores else "load"
        if address is None or bits < 8 or bits > 256:
            if c.space != "shared":
                self.found[id(i)] = Request(kind, bits, self.arch.warp, known=False, line=line)
            return None
        x = np.broadcast_to(address.x, self.arch.warp).astype(np.int64)
        if c.space == "shared" and address.data:  # which banks data chooses, nobody knows
            return None
        if c.space == "shared":
            rows = i.mnemonic.startswith(("ldmatrix", "stmatrix", "LDSM", "STSM"))  # a thread's address is that of a row of 16 bytes
            self.found[id(i)] = Shared(*(cycles(x[:bits // 4], None, 16, self.arch.banks) if rows else cycles(x, active, bits // 8, self.arch.banks,
                not self.arch.amd or bits <= 32)),
                                         line)
            return None
        one = request(kind, x, active, bits // 8, self.arch.sector, line=line, args=address.args, data=address.data)
        if one.stride and 0 < abs(one.stride) * 8 < bits:  # threads that want each other's bytes: the address was not what it seemed
            one = Request(kind, bits, self.arch.warp, known=False, line=line)
        elif one.uniform:
            one.tile = (1, 1)
        self.found[id(i)] = one
        if not c.loads:
            return None
        return uniform() if one.uniform else scattered((self.arch.warp,))


def follow(value: int, bits: int, signed: bool):
    """A number cut to a width."""
    x = np.asarray(value) & ((1 << bits) - 1) if bits < 64 else np.asarray(value)
    return np.where(x >> (bits - 1) & 1, x - (1 << bits), x) if signed and bits < 64 else x


def logic(a, b, c, table: int):
    """NVIDIA's LOP3: the bit of `table` that three bits choose."""
    out = np.zeros(np.broadcast(a, b, c).shape, np.int64)
    for k in range(8):
        if table >> k & 1:
            out = out | (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return out


def combine(f, *values: Value | None) -> Value | None:
    """f of numbers; unknown where one is."""
    if any(v is None for v in values):
        return None
    return Value(np.asarray(f(*(v.x for v in values))), frozenset().union(*(v.args for v in values)), any(v.data for v in values))
