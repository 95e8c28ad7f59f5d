"""Where a plan's buffers are: addresses in the thread's scratch block, and constants laid down in the program."""

from __future__ import annotations

from ..llvm.elements import memory_type
from ..llvm.ir import Val, const, i64
from ..plan.records import Constant, Part, Piece
from .element import arith


def addresses(k) -> list[Val]:
    """The addresses of all of the plan's places, by number, where the kernel begins."""
    out: list[Val] = []
    for n, place in enumerate(k.plan.places):
        match place:
            case Piece(offset=offset):
                out.append(k.b.gep("i8", Val("ptr", "%scratch"), i64(offset), f"buf{n}"))
            case Part(of, offset):
                out.append(k.b.gep("i8", out[of], i64(offset), f"view{n}"))
            case Constant():
                out.append(_laid_down(k, place))
    return out


def _laid_down(k, place: Constant) -> Val:
    mem = memory_type(place.elem)
    texts = [arith.constant_value(v, place.elem) for v in place.values]
    texts = [const("i8", bool(t.const)) if place.elem == "i1" else t for t in texts]
    body = ", ".join(f"{mem} {t.s}" for t in texts)
    return k.module.variable(f"{k.name}.table{len(k.module.globals)}", f"[{len(texts)} x {mem}] [{body}]", "internal constant", ", align 64")
