"""Where a plan's buffers are: addresses in the thread's scratch block, and constants laid down in the program."""

from __future__ import annotations

from ..llvm.elements import memory_type
from ..llvm.ir import Val, const
from ..plan.records import Constant, Part, Piece
from .element import arith


def addresses(k) -> list[Val]:
    """The addresses of all of the plan's places, by number, where the kernel begins."""
    out: list[Val] = []
    for n, place in enumerate(k.plan.places):
        match place:
            case Piece(offset):
                out.append(_named(k, f"%buf{n}", f"getelementptr i8, ptr %scratch, i64 {offset}"))
            case Part(of, offset):
                out.append(_named(k, f"%view{n}", f"getelementptr i8, ptr {out[of].s}, i64 {offset}"))
            case Constant():
                out.append(_laid_down(k, place))
    return out


def _named(k, name: str, text: str) -> Val:
    k.b.section.append(f"  {name} = {text}")
    return Val("ptr", name)


def _laid_down(k, place: Constant) -> Val:
    mem = memory_type(place.elem)
    texts = [arith.constant_value(v, place.elem) for v in place.values]
    texts = [const("i8", bool(t.const)) if place.elem == "i1" else t for t in texts]
    name = f"@{k.name}.table{len(k.module.globals)}"
    body = ", ".join(f"{mem} {t.s}" for t in texts)
    k.module.globals.append(f"{name} = internal constant [{len(texts)} x {mem}] [{body}], align 64")
    return Val("ptr", name)
