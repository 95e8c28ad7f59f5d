"""What a product ends in: a store that takes its accumulators out of registers, instead of a pass over the memory that they were put into.

That is so in the last trip of the product's loop, where all that the store's mask lets through is computed; elsewhere accumulators go through memory, and the store is
carried out behind the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ttir.ops import Kind, row
from ..ttir.types import Op, Value, walk
from .facts import poly_const
from .memory_order import Meets, argument, meets
from .records import Assign, For, NestPlan, Rest, Root, Scalar, Walk
from .space import Space

#: operations for an element, up to which it is computed while the accumulators are in registers: a bias, a factor, a comparison and a conversion; what takes many registers itself, as
#: exp does, is left to a pass of its own
MOST = 10


@dataclass(frozen=True)
class Ending:
    """op, a store, by `nest`, whose rows are outside and whose chunks are the micro-kernel's vectors; `value`: what it finds in registers. last: the number of the loop, in the last
    trip of which it is carried out (None: the product is in none); reads: something is loaded for what is stored, so that nothing may be stored twice."""

    op: Op
    nest: NestPlan
    value: Value
    last: int | None
    reads: bool


def handed_over(s, root: Root) -> Root:
    """A store right behind a product, or a product's loop, becomes that product's ending. What is returned is what is left of it."""
    at, scalars = len(s.steps), []
    while at and isinstance(s.steps[at - 1], Scalar) and _pure(s.steps[at - 1].op):
        at -= 1
        scalars.insert(0, s.steps[at])
    if not at or not s.target.masks or s.checks is not None or s.variables is not None or root.nest.keeps:
        return root
    holder = s.steps[at - 1]
    product = _last_product(holder)
    if product is None or any(v.op is holder.op for step in scalars for v in step.op.operands):
        return root
    value = next((v for v, buf in root.nest.reads.items() if buf.piece == product.destination.piece and v.op is holder.op), None)
    planned = _planned(s, root, product, value) if value is not None else None
    if planned is None or not _apart(s, root.op, product, holder):
        return root
    reads = any(v.op is not None and v.op.name == "tt.load" for v, _ in Space(s.known, planned.shape).explore([(root.op.operands[1], (0, 1))]))
    ended = replace(product, ending=Ending(root.op, planned, value, holder.number if isinstance(holder, For) else None, reads))
    if isinstance(holder, For):
        holder = replace(holder, body=tuple(ended if step is product else step for step in holder.body))
    else:
        holder = ended
    s.steps[at - 1:] = [*scalars, holder]
    return Rest(root.op, root.nest, root.out, product.op)


def _pure(op: Op) -> bool:
    return row(op).kind is Kind.ELEMENTWISE and not op.regions


def _last_product(step):
    """The product that `step` is, or that is all that its loop does."""
    if not isinstance(step, For):
        return step if _ends(step) and not step.in_place else None
    products = [x for x in step.body if not isinstance(x, (Assign, Scalar))]
    return products[0] if len(products) == 1 and _ends(products[0]) and products[0].in_place else None


def _ends(step) -> bool:
    """Is it a product whose accumulators are in vectors or tiles, and what is stored?"""
    if getattr(step, "destination", None) is None or step.final is not None:
        return False
    return step.count == 1 and not step.kind.blocks and step.n % step.width == 0


def _planned(s, root: Root, product, value: Value) -> NestPlan | None:
    """How the store walks the product's blocks; None where it is to stay a pass of its own."""
    op = root.op
    ptr, stored, *mask = op.operands
    ident = (0, 1)
    if len(ptr.type.shape) != 2 or ptr.type.shape != value.type.shape or s.facts.consumers(value) != {op} or not root.nest.merged and root.nest.vdim != 1 or s.facts.cost(stored) > MOST:
        return None
    if poly_const(Space(s.known, ptr.type.shape).affine(ptr, ident).coef.get(1, {})) != 1:  # a vector would be scattered
        return None
    before, sinks = len(s.steps), [(v, ident) for v in (ptr, stored, *mask)]
    nest = s.nest(Walk(ptr.type.shape, sinks, vdim=1, lanes=product.lanes))
    if len(s.steps) != before or nest.inductions or nest.shape != ptr.type.shape:
        return None
    if any(dims != ident for v, dims in Space(s.known, nest.shape).explore(sinks) if v is value):
        return None
    return nest if all((poly_const(c) or -1) >= 0 for atom in nest.atoms for c in atom.coef.values()) else None


def _apart(s, op: Op, product, holder) -> bool:
    """Does nothing that the product reads lie where the store writes? Where that depends on arguments they are taken to be disjoint."""
    target = argument(s, op.operands[0])
    answers = [meets(s, load, target) for load in dict.fromkeys(_loads(s, product, holder))]
    if any(a.meets is Meets.YES for a in answers):
        return False
    for a in answers:
        if a.pair is not None:
            s.rely_on(a.pair, a.fine)
    return True


def _loads(s, product, holder) -> Iterator[Op]:
    """The loads that a product may read while it multiplies."""
    if isinstance(holder, For):
        yield from (o for r in holder.op.regions for o in walk(r) if o.name == "tt.load")
    stack, seen = [v for o in s.sequence.products.get(product.op, [product.op]) for v in o.operands], set()
    while stack:
        v = stack.pop()
        if v in seen or v.op is None or v in s.buffers or not s.lazy(v.op):
            continue
        seen.add(v)
        if v.op.name == "tt.load":
            yield v.op
        stack += v.op.operands
