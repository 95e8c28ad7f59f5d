"""tl.device_print and tl.device_assert.

Lines have the form that Triton's GPU backends print, so that tools that read one read the other. An assertion that fails ends
its program at once and makes the launch raise; the compiled function returns which assertion it was and in which program.
"""

from __future__ import annotations

import math

from ...llvm.ir import NULL, Val, const, i64
from ..element import convert

_FP8 = convert.NARROW - {"bf16"}
_FLOATS = {"f16", "f32", "f64", *convert.NARROW}


def device_print(k, step):
    """pid (x, y, z) idx (i, j) prefix: value, one line for every element."""
    op = step.op
    prefix = op.attrs.get("prefix", "")
    hexadecimal, signed = bool(op.attrs.get("hex")), list(op.attrs.get("isSigned", []))
    pids = [k.pid[a] for a in "xyz"]
    if not op.operands:
        _printf(k, "pid (%u, %u, %u)" + _escaped(prefix) + "\n", pids)
    for n, (v, plan) in enumerate(zip(op.operands, step.each)):
        shape = v.type.shape
        where = ", ".join(f"%{math.ceil(math.log10(d)) if d > 1 else 0}d".replace("%0d", "%d") for d in shape)
        form, convert_value = _format(v.type.elem, hexadecimal, n < len(signed) and bool(signed[n]))
        text = f"pid (%u, %u, %u) idx ({where}){_escaped(prefix)}" + (f"(operand {n}) " if len(op.operands) > 1 else "") + form
        if not v.type.is_tensor:
            _printf(k, text + "\n", pids + [convert_value(k.b, k.scalar(v))])
            continue
        dims = tuple(range(len(shape)))
        nest = k.nest(plan)

        def body(u):
            k.write_keeps(nest, nest.plan.keeps)
            at = [k.b.cast("trunc", nest.index_of(d), "i32") for d in dims]
            _printf(k, text + "\n", pids + at + [convert_value(k.b, nest.at(v, dims))])

        nest.run(body)
    k.b.call("fflush", "i32", [NULL])


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _format(elem: str, hexadecimal: bool, signed: bool):
    """(printf's conversion, a function that makes its argument) for an element type."""
    if elem == "ptr":
        return "%p", lambda b, v: v
    if elem in _FLOATS and not (hexadecimal and elem in _FP8):  # those print their bits, as integers do
        return "%a" if hexadecimal else "%f", lambda b, v: convert.float_to_float(b, v, elem, "f64")
    bits = 8 if elem in _FP8 else int(elem[1:])
    extend = "sext" if signed and bits > 1 and not hexadecimal else "zext"
    to = "i64" if bits > 32 else "i32"
    length = "ll" if bits > 32 else ""
    form = f"0x%0{max(1, bits // 4)}{length}x" if hexadecimal else f"%{length}{'d' if signed else 'u'}"
    return form, lambda b, v: b.cast(extend, v, to)


def _printf(k, text: str, args: list[Val]):
    k.b.call("printf", "i32 (ptr, ...)", [k.module.string(text), *args])


def device_assert(k, step):
    """Ends the program, and makes the launch raise, where a condition does not hold."""
    b, op = k.b, step.op
    cond = op.operands[0]
    if step.nest is not None:
        dims = tuple(range(len(cond.type.shape)))
        good = b.alloca("i1", "good")
        b.store(const("i1", True), good, 1)
        nest = k.nest(step.nest)
        nest.masked = nest.maskable(step.nest.keeps)

        def body(u):
            k.write_keeps(nest, step.nest.keeps)
            v = nest.at(cond, dims)
            if nest.part is not None:
                v = b.or_(b.splat(v, nest.lanes), b.not_(nest.part))
            v = b.every(v)
            b.store(b.and_(b.load("i1", good, 1), v), good, 1)

        nest.run(body)
        holds = b.load("i1", good, 1)
    else:
        holds = k.scalar(cond)
    require(k, holds, op.attrs.get("message", ""), op)


def require(k, holds: Val, message: str, op):
    """End the program, and make the launch raise with `message` and the operation's place, where `holds` (an i1) is false."""
    b = k.b
    k.asserts.append((message, str(op.loc)))
    number = len(k.asserts)

    def fail():
        b.ret(b.or_(b.and_(Val("i64", "%program.id"), i64((1 << 48) - 1)), i64(number << 48)))
        # The rest of this block is never reached; LLVM drops it.
        b.enter(k.fn.new_block("unreachable"))

    k.guarded(b.not_(holds), fail)


ROOTS = {"tt.print": device_print, "tt.assert": device_assert}
