"""What an expression's operation is called in Triton, and what it computes: OPERATIONS[op] = (text, value).

text(e, *texts of the arguments) and value(e, *arrays), for an Expr e. To add an operation, add a row and let `values` make it."""

from __future__ import annotations

import numpy as np

from .program import EXACT, FLOATS, NUMPY


class Invalid(Exception):
    """The program's meaning is not defined, or not exact: no test."""


def tl(dtype: str) -> str:
    return f"tl.{dtype}"


def require(condition, what: str):
    if not condition:
        raise Invalid(what)


# -- values -----------------------------------------------------------------------------------------------------------


def exact(dtype, magnitude):
    if dtype in FLOATS:
        require(np.all(magnitude <= EXACT[dtype]), f"{dtype} not exact")


def div(e, x, y):
    require(np.all(y != 0), "division by zero")
    if np.iinfo(x.dtype).min < 0:
        require(not np.any((y == -1) & (x == np.iinfo(x.dtype).min)), "quotient overflows")
        return (x - np.fmod(x, y)) // y  # C's, not Python's
    return x // y


def rem(e, x, y):
    div(e, x, y)
    return np.fmod(x, y)


def shift(fn):

    def value(e, x, y):
        require(np.all((y >= 0) & (y < x.dtype.itemsize * 8)), "shift by the width or more")
        return fn(x, y)

    return value


def cast(e, x):
    source = e.args[0].dtype
    if e.dtype == "int1":
        return x != 0
    if source in FLOATS and e.dtype not in FLOATS:
        info = np.iinfo(e.dtype)
        x = np.asarray(x, np.float64)
        require(np.all((x >= float(info.min)) & (x <= float(info.max)) & (np.abs(x) < 2.0**53)), "float beyond the integer's range")
        return x.astype(np.int64).astype(e.dtype) if e.dtype != "uint64" else x.astype(np.uint64)
    if e.dtype in FLOATS and source not in FLOATS and source != "int1":
        require(np.all((x <= EXACT[e.dtype]) & (x >= -EXACT[e.dtype] if np.iinfo(x.dtype).min < 0 else True)), "integer not exact")
    return x.astype(NUMPY[e.dtype])


def bitcast(e, x):
    require(e.args[0].dtype != "bfloat16" and e.dtype != "bfloat16", "numpy has no bfloat16")
    return np.ascontiguousarray(x + x.dtype.type(0)).view(NUMPY[e.dtype]).reshape(x.shape)


COMBINE = {
    "add": ("a + b", np.add), "mul": ("a * b", np.multiply), "xor": ("a ^ b", np.bitwise_xor), "or": ("a | b", np.bitwise_or),
    "and": ("a & b", np.bitwise_and), "min": ("tl.minimum(a, b)", np.minimum), "max": ("tl.maximum(a, b)", np.maximum),
}


def fold(e, x, name):
    """A reduction over e.attr's axis (None: all)."""
    axis = e.attr["axis"]
    if name == "add" and e.dtype in FLOATS:
        exact(e.dtype, np.abs(x).astype(np.float64).sum(axis))
    fn = COMBINE[name][1]
    if axis is None:
        x, axis = x.reshape(-1), 0
    return fn.reduce(x, axis=axis, dtype=None if x.dtype == bool else x.dtype)


def prefix(e, x, name):
    axis, reverse = e.attr["axis"], e.attr["reverse"]
    if name == "add" and e.dtype in FLOATS:
        exact(e.dtype, np.abs(x).astype(np.float64).sum(axis))
    x = np.flip(x, axis) if reverse else x
    y = COMBINE[name][1].accumulate(x, axis=axis, dtype=None if x.dtype == bool else x.dtype)
    return np.flip(y, axis) if reverse else y


def recurrence(e, a, b):
    """b_i + a_i * (the one before), by an associative scan of pairs."""
    axis = e.attr["axis"]
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0).copy()
    for i in range(1, len(b)):
        b[i] = b[i] + a[i] * b[i - 1]
    return np.moveaxis(b, 0, axis)


def arg(e, x, fn):
    return fn(x, axis=e.attr["axis"]).astype(np.int32)


def dot(e, x, y, *acc):
    wide = np.float64 if e.dtype in FLOATS else np.int64
    total = np.abs(x.astype(wide)) @ np.abs(y.astype(wide))
    out = x.astype(wide) @ y.astype(wide)
    if acc:
        total, out = total + np.abs(acc[0].astype(wide)), out + acc[0].astype(wide)
    exact(e.dtype, total)
    return out.astype(NUMPY[e.dtype])


def take(e, x, index):
    axis = e.attr["axis"]
    require(np.all((index >= 0) & (index < x.shape[axis])), "gather beyond the block")
    return np.take_along_axis(x, index.astype(np.int64), axis)


def histogram(e, x):
    require(np.all((x >= 0) & (x < e.shape[0])), "histogram beyond its bins")
    return np.bincount(x.reshape(-1), minlength=e.shape[0]).astype(np.int32)


def topk(e, x):
    y = np.sort(x, axis=-1)
    return np.flip(y, -1)[..., :e.shape[-1]] if e.attr["descending"] else y[..., :e.shape[-1]]


# -- text -------------------------------------------------------------------------------------------------------------


def shape_text(shape):
    return "[" + ", ".join(map(str, shape)) + "]"


def const_text(e):
    if e.attr["literal"]:
        return repr(e.attr["value"])
    return f"tl.full({shape_text(e.shape)}, {e.attr['value']!r}, {tl(e.dtype)})"


def const(e):
    return np.full(e.shape, e.attr["value"], NUMPY[e.dtype])


def cast_text(e, x):
    return f"{x}.to({tl(e.dtype)})" if x[0] not in "-~" and not x[0].isdigit() else f"({x}).to({tl(e.dtype)})"


def folded(name):
    """Sums and maxima of narrow types are computed wider; the result is what was asked for."""
    return lambda e, x: f"tl.{name}({x}, {e.attr['axis']}).to({tl(e.dtype)})"


def infix(sign):
    return lambda e, x, y: f"({x} {sign} {y})"


def function(name):
    return lambda e, *args: f"{name}({', '.join(args)})"


def index_text(e, x):
    return x + "[" + ", ".join("None" if k in e.attr["axes"] else ":" for k in range(len(e.shape))) + "]"


def compare(sign, fn):
    return infix(sign), lambda e, x, y: fn(x, y)


OPERATIONS = {
    "const": (const_text, const),
    "range": (lambda e: f"tl.arange({e.attr}, {e.attr + e.shape[0]})", lambda e: np.arange(e.attr, e.attr + e.shape[0], dtype=np.int32)),
    "add": (infix("+"), lambda e, x, y: x + y), "sub": (infix("-"), lambda e, x, y: x - y), "mul": (infix("*"), lambda e, x, y: x * y),
    "div": (infix("//"), div), "rem": (infix("%"), rem),
    "halve": (lambda e, x, y: f"({x} / {y})", lambda e, x, y: x / y),
    "and": (infix("&"), lambda e, x, y: x & y), "or": (infix("|"), lambda e, x, y: x | y), "xor": (infix("^"), lambda e, x, y: x ^ y),
    "shl": (infix("<<"), shift(np.left_shift)), "shr": (infix(">>"), shift(np.right_shift)),
    "min": (function("tl.minimum"), lambda e, x, y: np.minimum(x, y)), "max": (function("tl.maximum"), lambda e, x, y: np.maximum(x, y)),
    "clamp": (function("tl.clamp"), lambda e, x, lo, hi: np.minimum(np.maximum(x, lo), hi)),
    "lt": compare("<", np.less), "le": compare("<=", np.less_equal), "gt": compare(">", np.greater), "ge": compare(">=", np.greater_equal),
    "eq": compare("==", np.equal), "ne": compare("!=", np.not_equal),
    "both": (infix("and"), lambda e, x, y: x & y), "either": (infix("or"), lambda e, x, y: x | y),
    "not": (lambda e, x: f"(not {x})", lambda e, x: ~x),
    "neg": (lambda e, x: f"(-{x})", lambda e, x: -x), "invert": (lambda e, x: f"(~{x})", lambda e, x: ~x),
    "abs": (function("tl.abs"), lambda e, x: np.abs(x)),
    "cast": (cast_text, cast),
    "typed": (lambda e, x: f"tl.cast({x}, {tl(e.dtype)})", cast),  # of an argument, which may be a constant
    "bitcast": (lambda e, x: f"({x} + 0).to({tl(e.dtype)}, bitcast=True)", bitcast),
    "where": (function("tl.where"), lambda e, c, x, y: np.where(c, x, y)),
    "choose": (lambda e, c, x, y: f"({x} if {c} else {y})", lambda e, c, x, y: np.where(c, x, y)),
    "expand": (index_text, lambda e, x: np.expand_dims(x, e.attr["axes"])),
    "broadcast": (lambda e, x: f"tl.broadcast_to({x}, {shape_text(e.shape)})", lambda e, x: np.broadcast_to(x, e.shape)),
    "reshape": (lambda e, x: f"tl.reshape({x}, {shape_text(e.shape)})", lambda e, x: x.reshape(e.shape)),
    "trans": (lambda e, x: f"tl.trans({x}, {', '.join(map(str, e.attr))})", lambda e, x: np.transpose(x, e.attr)),
    "join": (function("tl.join"), lambda e, x, y: np.stack([x, y], -1)),
    "interleave": (function("tl.interleave"), lambda e, x, y: np.stack([x, y], -1).reshape(*x.shape[:-1], 2 * x.shape[-1])),
    "half": (lambda e, x: f"tl.split({x})[{e.attr}]", lambda e, x: x[..., e.attr]),
    "flip": (lambda e, x: f"tl.flip({x}, {e.attr})", lambda e, x: np.flip(x, e.attr)),
    "sort": (lambda e, x: f"tl.sort({x}, descending={e.attr['descending']}).to({tl(e.dtype)})", topk),
    "topk": (lambda e, x: f"tl.topk({x}, {e.shape[-1]}, descending={e.attr['descending']}).to({tl(e.dtype)})", topk),
    "take": (lambda e, x, i: f"tl.gather({x}, {i}, {e.attr['axis']})", take),
    "sum": (folded("sum"), lambda e, x: fold(e, x, "add")), "greatest": (folded("max"), lambda e, x: fold(e, x, "max")),
    "least": (folded("min"), lambda e, x: fold(e, x, "min")), "xorsum": (folded("xor_sum"), lambda e, x: fold(e, x, "xor")),
    "argmax": (lambda e, x: f"tl.argmax({x}, {e.attr['axis']})", lambda e, x: arg(e, x, np.argmax)),
    "argmin": (lambda e, x: f"tl.argmin({x}, {e.attr['axis']})", lambda e, x: arg(e, x, np.argmin)),
    "fold": (lambda e, x: f"tl.reduce({x}, {e.attr['axis']}, combine_{e.attr['fn']})", lambda e, x: fold(e, x, e.attr["fn"])),
    "cumsum": (lambda e, x: f"tl.cumsum({x}, {e.attr['axis']}, reverse={e.attr['reverse']}).to({tl(e.dtype)})",
               lambda e, x: prefix(e, x, "add")),
    "cumprod": (lambda e, x: f"tl.cumprod({x}, {e.attr['axis']}, reverse={e.attr['reverse']}).to({tl(e.dtype)})",
                lambda e, x: prefix(e, x, "mul")),
    "scan": (lambda e, x: f"tl.associative_scan({x}, {e.attr['axis']}, combine_{e.attr['fn']}, reverse={e.attr['reverse']})",
             lambda e, x: prefix(e, x, e.attr["fn"])),
    "recurrence": (lambda e, a, b: f"tl.associative_scan(({a}, {b}), {e.attr['axis']}, combine_affine)[1]", recurrence),
    "dot": (lambda e, x, y, *acc: f"tl.dot({x}, {y}{''.join(f', acc={a}' for a in acc)}, input_precision='ieee', out_dtype={tl(e.dtype)})", dot),
    "histogram": (lambda e, x: f"tl.histogram({x}, {e.shape[0]})", histogram),
}
