"""Arithmetic that Inductor's Triton kernels do wrong, or a CPU's would: as eager does it.

- floordiv: torch 2.13 makes both numbers positive first, for a GPU's sake, which the least integer cannot be: -2147483648 // -3 was a negative number. Here none changes its sign.
- floordiv and relu of int8, uint8 and int16 came out in 32 bits, and what was computed of them did not wrap: relu(x) * 100.
- Sizes divided (`x[int(x.shape[0] / 3 * 0.87)]` with dynamic shapes) are fp64 in Python and in Inductor's C++; in Triton `/` of two integers is fp32.
- signbit: of -0.0 in fp64 and, where kernels do not compute in fp32, in 16 bits, torch's text asks whether it is less than 0.
"""

from __future__ import annotations

import functools

from ... import of_torch

#: of which there are as many below 0 as from 0 on
_SIGNED = {"torch.int8", "torch.int16", "torch.int32", "torch.int64"}
_SMALL = {"torch.int8", "torch.uint8", "torch.int16"}


def mend(module):
    """Mend torch._inductor.codegen.triton, which has run; a torch that was not tried, or has it written in another way, is left alone."""
    of = getattr(module, "TritonOverrides", None)
    if not of_torch.checked():
        return
    if of_torch.takes(divides := getattr(of, "floordiv", None), "a", "b"):
        of.floordiv = staticmethod(as_wide_as(in_range(divides)))
    if of_torch.takes(clamps := getattr(of, "relu", None), "x"):
        of.relu = staticmethod(as_wide_as(clamps))
    printer = getattr(module, "TritonPrinter", None)
    if of_torch.takes(prints := getattr(printer, "_print_IntTrueDiv", None), "self", "expr"):
        printer._print_IntTrueDiv = in_fp64(prints)
    if of_torch.takes(asks := getattr(of, "signbit", None), "x"):
        of.signbit = staticmethod(of_zero(asks))


def _for_cpu() -> bool:
    from torch._inductor.virtualized import V
    return V.graph.get_current_device_or_throw().type == "cpu"


def as_wide_as(operation):
    """`operation`, whose result has the dtype that its operands have together, where that is a small integer's."""
    @functools.wraps(operation)
    def narrow(*operands):
        made = operation(*operands)
        given = [dtype for x in operands if (dtype := getattr(x, "dtype", None)) is not None]
        if not given or not {str(dtype) for dtype in given} <= _SMALL or not _for_cpu():
            return made
        import torch
        from torch._inductor.virtualized import _ops as ops
        dtype = functools.reduce(torch.promote_types, given)
        if isinstance(made, str):  # what is written into the kernel, as torch 2.11 has it
            return f"({made}).to(tl.{str(dtype).removeprefix('torch.')})"
        return ops.to_dtype(made, dtype)

    return narrow


def in_range(floordiv):
    """`floordiv`, of any two integers but for 0 as a divisor, which gives 0."""
    @functools.wraps(floordiv)
    def quotient(a, b):
        if not {str(getattr(x, "dtype", None)) for x in (a, b)} <= _SIGNED or not _for_cpu():
            return floordiv(a, b)
        import torch
        from torch._inductor.virtualized import _ops as ops
        zero, one = ops.constant(0, torch.int32), ops.constant(1, torch.int32)
        by_zero = ops.eq(b, zero)
        b = ops.where(by_zero, one, b)
        b_negative = ops.lt(b, zero)
        down = ops.where(b_negative, ops.lt(zero, a), ops.lt(a, zero))  # is the quotient below 0? Then it is that of the number next to a on 0's side, less 1
        a = ops.where(down, ops.add(a, ops.where(b_negative, ops.constant(-1, torch.int32), one)), a)
        found = ops.truncdiv(a, b)
        return ops.where(by_zero, zero, ops.where(down, ops.sub(found, one), found))

    return quotient


def in_fp64(prints):
    """`TritonPrinter._print_IntTrueDiv`, by fp64."""
    @functools.wraps(prints)
    def printed(self, expr):
        from torch._inductor.virtualized import V
        if getattr(getattr(V.graph, "current_device", None), "type", None) != "cpu":
            return prints(self, expr)
        dividend, divisor = (f"tl.full([], {x}, tl.float64)" if x.is_number else f"({self._print(x)}).to(tl.float64)" for x in expr.args)
        return f"({dividend} / {divisor})"

    return printed


def of_zero(signbit):
    """`signbit`, of zeros of every dtype."""
    @functools.wraps(signbit)
    def negative(x):
        if not _for_cpu():
            return signbit(x)
        bit = "(libdevice.signbit({}) != 0)"
        return (f"{bit.format(x)} if ({x}).dtype is tl.float32 or ({x}).dtype is tl.float64 else "
                f"({bit.format(f'({x}).to(tl.float32)')} if ({x}).dtype.is_floating() else {x} < 0)")

    return negative
