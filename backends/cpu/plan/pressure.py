"""How wide a loop's chunk is, and how many chunks go side by side: by the registers that its values take, and by how long the target waits for them.

A target whose instructions work on groups of registers (RVV's LMUL) issues fewer of them for the same elements, and waits for each result behind fewer
of its own kind. An in-order core needs that, or another chunk to work on meanwhile. Both take registers, and what is spilled costs more than either gains.
"""

from __future__ import annotations

from typing import NamedTuple

from ..llvm import ir
from ..llvm.elements import REGISTER
from ..llvm.targets import Target
from ..ttir.ops import Kind, row
from ..ttir.types import Value
from .facts import poly_const
from .order import lane_bits
from .space import Space


class Needs(NamedTuple):
    """Registers that a loop takes where its chunks are one register wide. alive: of one chunk, at most at once; along: of one chunk, all along (what it
    adds up in); fixed: of all chunks together (constants); heavy: is an operation a polynomial?"""

    alive: int
    along: int
    fixed: int
    heavy: bool

    def registers(self, width: int, chunks: int) -> int:
        return width * (self.fixed + chunks * (self.alive + self.along))


#: operations that are instructions or polynomials on vectors of any length, and sound like those that are calls for each lane
_ON_VECTORS = {*(f"math.{name}" for name in "exp exp2 log log2 tanh erf sqrt rsqrt absf absi floor ceil fma".split()), "tt.clampf", "tt.precise_sqrt",
               "tt.precise_divf", "tt.fp_to_fp", "tt.bitcast"}
#: (registers that a polynomial takes beside its argument and its result, those that its coefficients take all along)
_POLYNOMIALS = {"math.exp": (2, 4), "math.exp2": (2, 4)}
_POLYNOMIAL = (3, 9)
#: registers that rounding to a narrow format takes, where integer arithmetic does it
_ROUNDED = 2


def width(target: Target, needs: Needs) -> int:
    """Registers in a chunk: as many as there is room for, up to what one instruction works on. Polynomials are long chains: two chunks of half as many do
    better than one, but one register is worked on in less time than the next instruction takes to come."""
    sizes = [1 << n for n in reversed(range(target.group.bit_length()))]
    fitting = [(n, c) for n in sizes for c in ((2, 1) if needs.heavy else (1,)) if needs.registers(n, c) <= _room(target)]
    return min(fitting, key=lambda x: (x[0] == 1, -x[0] * x[1], x[0]), default=(1, 1))[0]


def chunks(target: Target, needs: Needs, registers: int) -> int:
    """How many chunks of so many `registers` go side by side. One group of registers is enough to be busy with, unless each of its results is waited for by
    the next; what is added up in is waited for in each turn."""
    n = 4 if needs.along and not needs.heavy else 2 if needs.heavy else max(1, target.group // registers)
    while n > 1 and needs.registers(registers, n) > _room(target):
        n //= 2
    return n


def _room(target: Target) -> int:
    """Registers for values: masks have one of their own."""
    return target.registers - 1


def needs(target: Target, space: Space, visited, vdim: int, sinks, along: int = 0, inner: int | None = None) -> Needs | None:
    """What a loop along `vdim` takes that computes `sinks`, and so `visited`; `inner`: the dimension of a loop within it. None where a chunk had better be one register: where groups are nothing to
    the target, or lanes are loaded or stored one by one, computed so, or wider than they are counted."""
    if target.group == 1 or not space.shape:
        return None
    vectors = _vectors(space, visited, vdim, sinks)
    if vectors is None:
        return None
    if inner is not None and inner != vdim:  # what does not depend on it is computed outside, and stays
        within = {key: made for key, made in vectors.items() if inner in key[1]}
        along += len({key for made in within.values() for key in made} - within.keys())
        vectors = {key: [x for x in made if x in within] for key, made in within.items()}
    return _counted(target, vectors, along)


def _vectors(space: Space, visited, vdim: int, sinks) -> dict | None:
    """{what of `visited` is computed as vectors along `vdim`: what of these it is made of}, operands first."""
    lanes = max(lane_bits(visited), 32)
    bounds = {(a.value, a.dims) for a in space.atoms(visited, lambda check, shape: True)}
    wanted, made = list(sinks), {}
    while wanted:
        v, dims = wanted.pop()
        if (v, dims) in made or (v, dims) in bounds or not v.type.is_tensor:
            continue
        if v.type.elem == "ptr":
            form = space.affine(v, dims)
            if form.opaque or poly_const(form.coef.get(vdim, {})) not in (0, 1):
                return None
            continue
        if vdim in dims and not _fits(space, v, dims, vdim, lanes):
            return None
        made[v, dims] = space.known.children(v, dims)
        wanted += made[v, dims]
    return {key: [x for o in made[key] for x in _sources(made, o, vdim)] for key in visited if key in made and _takes(key, vdim)}


def _takes(key, vdim: int) -> bool:
    """Is a value a vector of its own: neither equal in all lanes nor another one under other indices?"""
    v, dims = key
    return vdim in dims and (v.op is None or v.op.name not in ("arith.constant", "tt.splat") and row(v.op).renames is None)


def _sources(made, key, vdim: int) -> list:
    """The vectors that a value is, seen through renamings."""
    if key not in made:
        return []
    return [key] if _takes(key, vdim) else [x for o in made[key] for x in _sources(made, o, vdim)] if key[0].op is not None and row(
        key[0].op).renames is not None else []


def _fits(space: Space, v: Value, dims, vdim: int, lanes: int) -> bool:
    """Is a value one that comes as a vector of any length?"""
    if v.type.elem == "index" or ir.bits_of(REGISTER[v.type.elem]) > lanes:
        return False
    buf = space.known.buffers.get(v)
    if buf is not None:
        return buf.panel is None and all(buf.strides[axis] in (0, 1) for axis, d in enumerate(dims) if d == vdim)
    op = v.op
    if op is None or op.name in ("tt.load", "arith.constant"):
        return True
    if op.name.startswith("math.") or op.name.startswith("tt.") and row(op).kind is Kind.ELEMENTWISE:
        return op.name in _ON_VECTORS and not (row(op).heavy and v.type.elem == "f64")
    return op.name not in ("tt.join", "tt.reduce", "arith.remf") and (v.type.elem[0] in "fb" or "div" not in op.name and "rem" not in op.name)


def _counted(target: Target, vectors: dict, along: int) -> Needs:
    readers = dict.fromkeys(vectors, 0)
    for made in vectors.values():
        for key in made:
            readers[key] += 1
    alive = most = 0
    addends, coefficients = set(), 0
    for (v, dims), made in vectors.items():
        computed = v.op is not None and bool(made)
        most = max(most, alive + 1 + (_beside(v, target) if computed else 0))
        alive += 1
        for key in made:
            readers[key] -= 1
            alive -= readers[key] == 0
        if computed:
            coefficients = max(coefficients, _polynomial(v.op)[1])
            addends |= _addends(v)
    if coefficients and len(addends) > 2:  # a polynomial of the kernel's own, carried out beside the other one
        most += _POLYNOMIALS["math.exp"][0]
    return Needs(most, along, len(addends) + coefficients, coefficients > 0)


def _polynomial(op) -> tuple[int, int]:
    return _POLYNOMIALS.get(op.name, _POLYNOMIAL) if row(op).heavy else (0, 0)


def _addends(v: Value) -> set:
    """Constants that are added to a product, by one instruction that takes them as vectors."""
    if v.op.name not in ("arith.addf", "arith.subf") or not any(o.op is not None and o.op.name == "arith.mulf" for o in v.op.operands):
        return set()
    return {str(o.op.attrs["value"]) for o in v.op.operands if o.op is not None and o.op.name == "arith.constant"}


def _beside(v: Value, target: Target) -> int:
    """Registers that an operation takes beside its operands and its result."""
    if row(v.op).heavy:
        return _polynomial(v.op)[0]
    return _ROUNDED if v.type.elem == "bf16" or v.type.elem.startswith("fp8") or v.type.elem == "f16" and not target.half else 0
