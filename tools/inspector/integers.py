"""The integers of optimised LLVM IR: what steers a function's blocks, as Python functions of the values before.

Only what branches depend on is read. A vector whose lanes are alike is one integer; other vectors, and floating-point values, are not known (None).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable

_NAME = r'%(?:[\w.$-]+|"[^"]*")'
_LINE = re.compile(rf"\s+(?:({_NAME}) = )?(?:tail |musttail |notail )?(\w+)\b ?(.*)$")
_FLAGS = re.compile(r"^(?:(?:nuw|nsw|exact|disjoint|nneg|samesign|inbounds|nusw|volatile|fast|noundef|inrange\([^)]*\)) )+")
_LABEL = re.compile(r'((?:[\w.$-]+|"[^"]*")):')
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
#: where the kernel's arguments, its tensors and its scratch stand, as far as its integers are concerned
ARGUMENTS, TENSORS, SCRATCH = 1 << 40, 1 << 44, 1 << 43


@dataclass
class Block:
    """phis: name -> label of the block before -> value; steps: (name, value) in order; goes: the terminator, which gives the next block's label from the
    values (None: it returns); compared: (left, right) where a comparison of them decides whether the block runs again; reads: names of the values that all
    this follows from."""

    phis: dict[str, dict[str, Callable]] = field(default_factory=dict)
    steps: list[tuple[str, Callable]] = field(default_factory=list)
    goes: Callable = lambda values: None
    compared: tuple[Callable, Callable] | None = None
    reads: tuple[str, ...] = ()


class Unknown(Exception):
    """Where a function goes cannot be told from its integers."""


def read(text: str, name: str, words: list[int]) -> tuple[dict[str, Block], str]:
    """(label -> block of a kernel, label of the first). text: LLVM IR as LLVM prints it; words: the kernel's arguments, in order. Raises `Unknown`."""
    body = re.search(rf"^define [^\n]*@{re.escape(name)}\([^\n]*\{{\n(.*?)^\}}", text, re.M | re.S)
    if body is None:
        raise Unknown(f"its LLVM IR has no function {name}")
    defined = re.findall(r"^define [^\n]*?@([\w.$-]+)\(", text, re.M)
    if called := sorted(set(re.findall(r"\bcall [^\n]*?@([\w.$-]+)\(", body[1])).intersection(defined)):
        raise Unknown(f"it calls {called[0]}, whose blocks are not walked")
    lines: dict[str, list[re.Match]] = {}
    label = ""
    for raw in re.sub(r"\[\n(.*?)\n\s*\]", lambda m: "[ " + " ".join(m[1].split()) + " ]", body[1], flags=re.S).split("\n"):
        if hit := _LABEL.match(raw):
            label = hit[1]
            lines[label] = []
        elif hit := _LINE.match(re.sub(r", ![\w.]+ ![\w.]+|, ![\w.]+ !DI.*", "", raw)):
            lines.setdefault(label, []).append(hit)
    made = {hit[1]: hit for block in lines.values() for hit in block if hit[1]}
    needed, open_ = set(), [n for block in lines.values() for n in re.findall(_NAME, _steering(block))]
    while open_:
        n = open_.pop()
        if n not in needed and n in made:
            needed.add(n)
            hit = made[n]
            open_ += re.findall(_NAME, re.sub(rf"\[ (.*?), {_NAME} \]", r"\1", hit[3]) if hit[2] == "phi" else hit[3])
    blocks = {}
    for label, block in lines.items():
        b = blocks[label] = Block()
        for hit in block:
            if hit[1] in needed and hit[2] == "phi":
                b.phis[hit[1]] = {came[1:]: _value(what) for what, came in re.findall(rf"\[ (.*?), ({_NAME}) \]", hit[3])}
            elif hit[1] in needed:
                b.steps.append((hit[1], _step(hit[2], hit[3], words)))
        b.goes = _terminator(block[-1])
        own = [n for n, _ in b.steps]
        b.reads = tuple(sorted({n for hit in block if hit[1] in needed for n in re.findall(_NAME, hit[3])}.difference(own) | b.phis.keys()))
        if (again := re.match(rf"i1 ({_NAME}), label %(\S+), label %(\S+)$", block[-1][3])) and label in again.groups()[1:] and again[1] in made:
            test = made[again[1]]
            if test[2] == "icmp" and test in block:
                b.compared = _comparison(test[3])[2:]
    return blocks, next(iter(lines))


def _steering(block: list) -> str:
    last = block[-1]
    return last[3] if last[2] == "switch" else last[3].partition(",")[0] if last[2] == "br" and last[3].startswith("i1") else ""


def _terminator(hit) -> Callable:
    if hit[2] == "ret":
        return lambda values: None
    if hit[2] == "br" and (two := re.match(r"i1 (\S+), label %(\S+), label %(\S+)$", hit[3])):
        which, yes, no = _value(two[1]), two[2], two[3]

        def branch(values):
            if (c := which(values)) is None:
                raise Unknown("a branch depends on data")
            return yes if c else no

        return branch
    if hit[2] == "br":
        to = hit[3].removeprefix("label %")
        return lambda values: to
    if hit[2] == "switch" and (head := re.match(r"(i\d+) (\S+), label %(\S+) \[(.*)\]", hit[3])):
        of, rest = _value(head[2]), head[3]
        mask = (1 << int(head[1][1:])) - 1
        cases = {int(n) & mask: to for n, to in re.findall(r"i\d+ (-?\d+), label %(\S+)", head[4])}

        def switch(values):
            if (v := of(values)) is None:
                raise Unknown("a switch depends on data")
            return cases.get(v, rest)

        return switch

    def refuse(values):
        raise Unknown(f"it ends in {hit[2]}")

    return refuse


def _value(text: str, bits: int = 64) -> Callable:
    """What an operand is: a name's value, or a constant's, not negative."""
    text = text.strip()
    if text[:1] == "%":
        return lambda values: values.get(text)
    if hit := re.fullmatch(r"splat \(i\d+ (-?\w+)\)", text):
        text = hit[1]
    words = {"true": 1, "false": 0, "null": 0, "zeroinitializer": 0, "poison": 0, "undef": 0}
    constant = words.get(text, int(text) & ((1 << bits) - 1) if re.fullmatch(r"-?\d+", text) else None)
    return lambda values: constant


def _split(text: str) -> list[str]:
    """A list's parts, between commas outside of brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c in "(<[{") - (c in ")>]}")
        if c == "," and not depth:
            out.append("")
        else:
            out[-1] += c
    return [part.strip() for part in out]


_TYPE = re.compile(r"(<\d+ x \w+>|\w+) ?(.*)$", re.S)


def _typed(text: str) -> tuple[str, str]:
    """(type, operand)."""
    hit = _TYPE.match(text)
    return (hit[1], re.sub(r"^(?:(?:noundef|nonnull|range\([^)]*\)|align \d+) )+", "", hit[2])) if hit else ("", text)


def _bits(type_: str) -> int:
    """Width of an integer type, of the lanes of a vector of them, or of a pointer; 0 for others."""
    hit = re.fullmatch(r"(?:<\d+ x )?(i\d+|ptr)>?", type_)
    return 0 if not hit else 64 if hit[1] == "ptr" else int(hit[1][1:])


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def _quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


_BINARY = {"add": lambda x, y, w: x + y, "sub": lambda x, y, w: x - y, "mul": lambda x, y, w: x * y, "and": lambda x, y, w: x & y, "or": lambda x, y, w: x | y,
           "xor": lambda x, y, w: x ^ y, "shl": lambda x, y, w: x << y if y < w else None, "lshr": lambda x, y, w: x >> y if y < w else None,
           "ashr": lambda x, y, w: _signed(x, w) >> y if y < w else None, "udiv": lambda x, y, w: x // y if y else None,
           "urem": lambda x, y, w: x % y if y else None, "sdiv": lambda x, y, w: _quotient(_signed(x, w), _signed(y, w)) if y else None,
           "srem": lambda x, y, w: _signed(x, w) - _quotient(_signed(x, w), _signed(y, w)) * _signed(y, w) if y else None,
           "umin": lambda x, y, w: min(x, y), "umax": lambda x, y, w: max(x, y), "smin": lambda x, y, w: min(_signed(x, w), _signed(y, w)),
           "smax": lambda x, y, w: max(_signed(x, w), _signed(y, w))}
_COMPARE = {"eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y,
           "ge": lambda x, y: x >= y}


def _comparison(rest: str) -> tuple[str, int, Callable, Callable]:
    """(predicate, bits, left, right); operands of a signed comparison are signed."""
    predicate, _, operands = _FLAGS.sub("", rest).partition(" ")
    left, right = _split(operands)
    type_, left = _typed(left)
    w = _bits(type_)
    x, y = _value(left, w or 64), _value(right, w or 64)
    if predicate[0] == "s" and w:
        plain = x, y
        x, y = (lambda values, f=f: None if (v := f(values)) is None else _signed(v, w) for f in plain)
    return predicate.lstrip("su") if predicate not in ("ne", "eq") else predicate, w, x, y


def _step(opcode: str, rest: str, words: list[int]) -> Callable:
    """What an instruction computes from the values before; None for what is no integer, or not known."""
    if opcode == "call":
        hit = re.search(r"@llvm\.(?:vector\.reduce\.)?(\w+?)\.\w+\((.*)\)", rest)
        if not hit or hit[1] not in ("umin", "umax", "smin", "smax", "and", "or"):
            return lambda values: None
        parts = [_typed(p) for p in _split(hit[2])]
        if "vector.reduce" in rest:  # lanes are alike
            return _value(parts[0][1])
        return _binary(hit[1], *parts[0], parts[1][1])
    rest = _FLAGS.sub("", rest)
    if opcode in _BINARY:
        left, right = _split(rest)
        return _binary(opcode, *_typed(left), right)
    if opcode == "icmp":
        predicate, w, x, y = _comparison(rest)
        test = _COMPARE[predicate]
        return lambda values: None if not w or (a := x(values)) is None or (b := y(values)) is None else int(test(a, b))
    if opcode == "fcmp":  # data are finite numbers
        predicate, _, operands = rest.partition(" ")
        infinite = re.search(r", (splat \(\w+ )?(0x[7F]FF0{13}|0x[7F]F80{5}|0xH[7F]C00|0xR[7F]F80)\)?$", operands)
        known = {"uno": 0, "ord": 1, **({"oeq": 0, "ueq": 0, "one": 1, "une": 1} if infinite else {})}.get(predicate)
        return lambda values: known
    if opcode in ("zext", "sext", "trunc", "ptrtoint", "inttoptr", "bitcast", "freeze"):
        before, _, after = rest.partition(" to ")
        (kind, operand), wide = _typed(before), _bits(after or _typed(before)[0])
        x, w = _value(operand, _bits(kind) or 64), _bits(kind)
        mask = (1 << wide) - 1
        if not w or not wide or opcode == "bitcast" and w != wide:
            return lambda values: None
        return lambda values: None if (v := x(values)) is None else (_signed(v, w) if opcode == "sext" else v) & mask
    if opcode == "select":
        which, yes, no = (_typed(p) for p in _split(rest))
        w = _bits(yes[0]) or 64
        c, x, y = _value(which[1], 1), _value(yes[1], w), _value(no[1], w)
        return lambda values: None if (t := c(values)) is None else x(values) if t else y(values)
    if opcode == "getelementptr":
        return _address(_split(rest))
    if opcode == "load":
        return _load(_split(rest), words)
    if opcode in ("extractelement", "insertelement"):
        vector, other = (_typed(p)[1] for p in _split(rest)[:2])
        return _value(vector if opcode == "extractelement" else other) if opcode == "extractelement" or vector in ("poison", "undef") else lambda values: None
    if opcode == "shufflevector":
        one, _, order = _split(rest)
        return _value(_typed(one)[1]) if order.endswith("zeroinitializer") else lambda values: None
    return lambda values: None


def _binary(opcode: str, type_: str, left: str, right: str) -> Callable:
    w = _bits(type_)
    if not w:
        return lambda values: None
    x, y, compute, mask = _value(left, w), _value(right, w), _BINARY[opcode], (1 << w) - 1

    def value(values):
        a, b = x(values), y(values)
        if a is None or b is None:
            known = b if a is None else a
            return known if opcode == "and" and known == 0 or opcode == "or" and known == mask else None
        return None if (v := compute(a, b, w)) is None else v & mask

    return value


def _address(parts: list[str]) -> Callable:
    size = _SIZES.get(parts[0])
    if (hit := re.fullmatch(r"\[(\d+) x (\w+)\]|<(\d+) x (\w+)>", parts[0])) and (each := _SIZES.get(hit[2] or hit[4])):
        size = int(hit[1] or hit[3]) * each
    (kind, base), (wide, index) = (_typed(p) for p in parts[1:3])
    if size is None or len(parts) != 3 or kind != "ptr" or not wide.startswith("i"):
        return lambda values: None
    w = _bits(wide)
    at, by = _value(base), _value(index, w)
    return lambda values: None if (p := at(values)) is None or (n := by(values)) is None else (p + _signed(n, w) * size) & (1 << 64) - 1


def _load(parts: list[str], words: list[int]) -> Callable:
    """An argument; and 0 for what lies elsewhere: tensors are taken to hold finite numbers."""
    w, at = _bits(parts[0]), _value(_typed(parts[1])[1])
    mask = (1 << w) - 1

    def value(values):
        p = at(values)
        if p is None or not w:
            return 0 if w and p is None else None
        if ARGUMENTS <= p < SCRATCH:
            k, shift = divmod(p - ARGUMENTS, 8)
            return words[k] >> 8 * shift & mask if k < len(words) and words[k] is not None else None
        return 0

    return value
