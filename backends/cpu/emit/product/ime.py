"""The innermost loop of an int8 product by SpacemiT's IME (`vmadot`), in machine code: LLVM has no intrinsic for it, and its assembler for another
machine is not at hand.

The micro-kernel is a function of its own, by the C calling convention, in which all vector registers are the callee's to use. A and B lie in blocks of
8 along K (`plan/operand.py`): [K / 8][rows of A, or columns of B][8], so 4 rows, or 4 columns, are the 32 bytes of a register.
"""

from __future__ import annotations

from ...llvm import riscv_words as rv
from ...llvm.ir import Val, define, i64
from ...llvm.riscv_words import A0, T0, T1, T2, ZERO

#: rows of A, and columns of B, that one instruction takes; neighbours along K of each
SIDE, DEPTH = 4, 8
#: accumulators are in pairs of registers from v0 on; then the offsets of their elements; A's and B's rows
_OFFSETS, _A, _B = 16, 18, 20
_C, _A_AT, _B_AT, _STEPS, _A_STEP, _B_STEP, _TABLE, _C_STEP = range(A0, A0 + 8)


def kernel(down: int, across: int, signs: str = "") -> bytes:
    """void f(int32_t *c, int8_t *a, int8_t *b, int64_t steps, int64_t a_step, int64_t b_step, int64_t *offsets, int64_t c_step): adds `steps` blocks along K
    of `down` (1 or 2) x `across` (1 to 4) tiles of 4 x 4 to c. a_step, b_step: bytes from block to block; offsets: bytes from a tile's first element to
    each pair of its elements, 8 of them; c_step: bytes from 4 rows of c to the next. signs: of `riscv_words.VMADOT`."""
    tiles = [(x, y, 2 * (x * across + y)) for x in range(down) for y in range(across)]

    def walk(access) -> list[int]:
        """`access(vd, T1, offsets)` for each tile of c, T1 its address."""
        out = [rv.addi(T0, _C, 0)]
        for x, y, vd in tiles:
            if y == 0:
                out += [rv.add(T0, T0, _C_STEP)] * (x > 0) + [rv.addi(T1, T0, 0)]
            else:
                out.append(rv.addi(T1, T1, SIDE * 4))
            out.append(access(vd, T1, _OFFSETS))
        return out

    body = []
    for first, at, count in ((_B, _B_AT, across), (_A, _A_AT, down)):
        for u in range(count):
            body += [rv.addi(T0, at, SIDE * DEPTH * u)] * (u > 0) + [rv.vle(8, first + u, T0 if u else at)]
    body += [rv.add(_A_AT, _A_AT, _A_STEP), rv.add(_B_AT, _B_AT, _B_STEP), rv.addi(_STEPS, _STEPS, -1)]
    body += [rv.vmadot(vd, _A + x, _B + y, signs) for x, y, vd in tiles]
    body.append(rv.branch("bne", _STEPS, ZERO, -4 * len(body)))
    return rv.code([
        rv.vsetivli(8, 64, 2), rv.vle(64, _OFFSETS, _TABLE), *walk(rv.vluxei64),
        rv.addi(T2, ZERO, SIDE * DEPTH), rv.vsetvli(ZERO, T2, 8, 1), rv.branch("beq", _STEPS, ZERO, 4 * (len(body) + 1)), *body,
        rv.vsetivli(8, 64, 2), *walk(rv.vsuxei64), rv.ret()])


def offsets(columns: int) -> list[int]:
    """Of each pair of elements of a tile in rows of so many columns, in bytes from the first one."""
    return [4 * (row * columns + column) for row in range(SIDE) for column in (0, 2)]


def call(k, c: Val, a: Val, b: Val, depth: Val, sizes: tuple[int, int], down: int, across: int):
    """The micro-kernel, for the tile at `c` of a product of `sizes` (rows, columns), from A's rows at `a` and B's columns at `b`."""
    rows, columns = sizes
    name = f"{k.name}.vmadot{down}x{across}"
    if not any(f.name == name for f in k.module.functions):
        data = kernel(down, across)
        text = "".join(f"\\{byte:02X}" for byte in data)
        # What is not LLVM's IR it must not look into: another function of that name may take its place, as far as it knows.
        define(k.module, name, "void", "weak hidden", f'naked noinline prologue [{len(data)} x i8] c"{text}"',
               c="ptr", a="ptr", b="ptr", steps="i64", a_step="i64", b_step="i64", offsets="ptr", c_step="i64").unreachable()
    table = k.module.variable(f"{k.name}.tile{columns}", f"[8 x i64] [{', '.join(f'i64 {x}' for x in offsets(columns))}]",
                              "internal constant", ", align 64")
    steps = k.b.lshr(k.b.add(depth, i64(DEPTH - 1)), DEPTH.bit_length() - 1)
    k.b.call(name, "void", [c, a, b, steps, i64(rows * DEPTH), i64(columns * DEPTH), table, i64(columns * SIDE * 4)])
