"""TTGIR's memory accesses with the address of every element: its integer arithmetic, computed for program 0 with arguments that stand for any.

A kernel's addresses come from its arguments, `tl.arange` and arithmetic. Integers that nobody has told are large and divisible by 4096, so that rows
lie far apart and bounds are not reached; what is loaded from memory and used as an index is random. Loops are walked once, both arms of a condition.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field

import numpy as np

from ....backends.cpu.ttir.locations import unescape
from .values import Value, argument, scattered, uniform

_ACCESS = re.compile(r"(tt\.load|tt\.store|tt\.atomic_rmw|tt\.atomic_cas|ttg\.async_copy_global_to_local|"
                     r"amdg?p?u?\.buffer_\w+|amdg\.\w*copy_global_to_local)$")
_BULK = re.compile(r"(tt\.descriptor_\w+|ttng\.async_tma_\w+|amdg\.async_tdm_copy\w*|amdg\.tdm\w*)$")
_TENSOR = re.compile(r"(tensor<((?:\d+x)*)(!tt\.ptr<[^>]*>|[a-z]\w*)(?:, (?:[^<>]|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)*)?>)")
_BITS = {"f8E4M3FN": 8, "f8E5M2": 8, "f8E4M3FNUZ": 8, "f8E5M2FNUZ": 8, "bf16": 16, "index": 64}


@dataclass
class Access:
    """A load, store or atomic of a tile. addresses: bytes, one for each element (shape of the tile); mask: which are accessed; line: (file, line)
    frames, innermost first; args: arguments of addresses and mask, pointers as *name, "/" where a tile is divided; type: the pointers' tensor type,
    whose layout says who holds what; bulk: a descriptor's, moved by the TMA unit."""

    kind: str
    lines: tuple
    width: int
    addresses: Value | None = None
    mask: np.ndarray | None = None
    type: str = ""
    args: frozenset = frozenset()
    bulk: bool = False
    loops: int = 0


@dataclass
class _Scope:
    kind: str
    results: list[str]
    passed: list = field(default_factory=list)


_OPERATION = re.compile(r'(?:(%[^=]+?) = )?"?([a-z_]\w*(?:\.\w+)+)"?(.*)$')
_LOCATION = re.compile(r" loc\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def _without_place(text: str) -> tuple[str, str]:
    """(a line without its locations, the last of them)"""
    found = _LOCATION.findall(text)
    return _LOCATION.sub("", text), found[-1] if found else ""


def _shape(text: str) -> tuple[int, ...]:
    """(8, 4) of `8x4x`."""
    return tuple(int(n) for n in text.split("x") if n)


def bits_of(element: str) -> int:
    if element.startswith("!tt.ptr"):
        return 64
    hit = re.search(r"\d+", element)
    return _BITS.get(element) or (int(hit[0]) if hit else 32)


class Walk:
    """One pass over a kernel's TTGIR. known: arguments whose value is known (name -> integer); `alike`: arguments that are taken to be 1, to see
    what a stride does."""

    def __init__(self, text: str, known: dict[str, int] | None = None, ones: frozenset = frozenset()):
        self.known, self.ones = known or {}, ones
        self.values: dict[str, Value | None] = {}
        self.accesses: list[Access] = []
        self.dots: list[tuple[tuple, str]] = []
        self.descriptors: list[tuple] = []
        self.scopes: list[_Scope] = []
        self.loops = 0
        self.warps = int((re.search(r'"ttg\.num-warps" = (\d+)', text) or [0, 4])[1])
        self.places = _Places(text)
        for line in text.split("\n"):
            if line[:1] != "#" and line.strip():
                self.line(line.strip())

    # -- lines

    def line(self, text: str):
        body, place = _without_place(text)
        if body.endswith("{"):
            return self.open(body)
        if body.startswith("}"):
            return self.close(body)
        if body.startswith("^"):
            return self.bind(body, self.scopes[-1].passed)
        if hit := _OPERATION.match(body):
            self.operation(hit[2], self.results(hit[1] or ""), hit[3], self.places.of(place))
        return None

    @staticmethod
    def results(text: str) -> list[str]:
        if ":" in text:
            name, _, n = text.partition(":")
            return [f"{name}#{k}" for k in range(int(n))]
        return [t.strip() for t in text.split(",") if t.strip()]

    def function(self, text: str):
        if "public" not in text and self.values:
            return
        self.values = {}
        for k, hit in enumerate(re.finditer(r'%([\w$.-]+): (!tt\.ptr<[^>]*>|[a-z]\w*|!\S+)', text.partition("(")[2])):
            name, kind = hit[1], hit[2]
            if kind.startswith("!tt.ptr") or kind.startswith(("i", "index")):
                value = 1 if name in self.ones else (k + 1) << 40 if kind.startswith("!") else self.known.get(name, argument(k))
                self.values["%" + name] = Value(np.int64(value), frozenset({("*" if kind.startswith("!") else "") + name}))

    def open(self, body: str):
        """A line that ends with an opening brace: a region, or the next of an operation's regions."""
        if body.startswith("}"):
            return
        scope = _Scope("region", [])
        hit = _OPERATION.match(body)
        if body.startswith("tt.func"):
            self.function(body)
        elif hit:
            name, rest = hit[2], hit[3]
            scope = _Scope(name, self.results(hit[1] or ""))
            self.loops += name in ("scf.for", "scf.while")
            if counter := re.match(r"\s*(%\S+) = (%\S+) to", rest):
                self.values[counter[1]] = self.values.get(counter[2])
            if name in ("scf.for", "scf.while"):
                for pair in re.finditer(r"(%[\w$.#-]+) = (%[\w$.#-]+)", rest.partition("iter_args")[2] or (rest if name == "scf.while" else "")):
                    self.values[pair[1]] = self.values.get(pair[2])
            elif name == "ttg.warp_specialize":
                scope.passed = [self.values.get(x) for x in re.findall(r"%[\w$.#-]+", rest.partition(")")[0])]
        elif body.startswith("partition"):
            self.bind(body, self.scopes[-1].passed)
        self.scopes.append(scope)

    def bind(self, body: str, passed: list):
        """Give a block's arguments their values."""
        for k, (name, kind) in enumerate(re.findall(r"(%[\w$.#-]+): ([^,)]+)", body)):
            self.values[name] = passed[k] if k < len(passed) else uniform() if re.match(r"i\d+$", kind.strip()) else None

    def close(self, body: str):
        scope = self.scopes.pop()
        self.loops -= scope.kind in ("scf.for", "scf.while")
        if scope.kind.startswith("scf"):
            for k, name in enumerate(scope.results):
                self.values[name] = scope.passed[k] if k < len(scope.passed) else None
        else:
            self.unknown(scope.results, body)

    # -- operations

    def operation(self, name: str, results: list[str], rest: str, lines: tuple):
        names = re.findall(r"%[\w$.#-]+", rest.partition(" : ")[0] if not rest.startswith("(") else rest)
        if name in ("scf.yield", "scf.condition"):
            scope = self.scopes[-1]
            values = [self.values.get(n) for n in names[name == "scf.condition":]]
            if name == "scf.condition" or scope.kind != "scf.while" and not (scope.passed and all(v is not None for v in scope.passed)):
                scope.passed = values  # of two arms the first that is known; of a loop what it is left with
            return
        if name in ("tt.dot", "tt.dot_scaled") or "dot" in name and name.startswith(("ttng.", "ttg.")):
            self.dots.append((lines, rest))
        if name.startswith("ttng.tensormap") or name.endswith("make_tensor_descriptor"):
            self.descriptors.append(lines)
        if _ACCESS.match(name):
            self.access(name, names, rest, lines)
        elif _BULK.match(name):
            tiles = [m for m in _TENSOR.finditer(rest)] or []
            inner = re.search(r"<((?:\d+x)+)([a-z]\w*)", rest)
            self.accesses.append(Access("store" if "store" in name or "local_to_global" in name else "load", lines,
                                        bits_of(inner[2] if inner else tiles[0][3] if tiles else "i8"), bulk=True, loops=self.loops))
        value = self.evaluate(name, names, rest) if results else None
        if results and value is None:
            self.unknown(results, rest)
        elif results:
            self.values[results[0]] = value

    def unknown(self, results: list[str], signature: str):
        """Results that cannot be computed: random where they are tiles of integers, one number where they are scalars."""
        types = list(_TENSOR.finditer(signature))
        for name in results:
            if types and re.match(r"i\d+$|!tt\.ptr", types[-1][3]):
                shape = _shape(types[-1][2])
                self.values[name] = scattered(shape)
            elif types:
                self.values[name] = None
            else:
                self.values[name] = uniform() if re.search(r"\bi\d+\s*$|!tt\.ptr<[^>]*>\s*$", signature) else None

    def access(self, name: str, names: list[str], rest: str, lines: tuple):
        kind = "atomic" if "atomic" in name else "store" if "store" in name else "load"
        buffer = "buffer_" in name
        head, _, signature = rest.partition(" : ")
        pointer = re.search(r"!tt\.ptr<(\w+)", signature)
        bits = bits_of(pointer[1] if pointer else "f32")
        if buffer:
            hit = re.search(r"(%[\w$.#-]+)\[(%[\w$.#-]+)\]", head)
            base, offset = (self.values.get(hit[1]), self.values.get(hit[2])) if hit else (None, None)
            value = base + offset * Value(np.int64(bits // 8)) if base is not None and offset is not None else None
            names = [n for n in names if n not in (hit[1], hit[2])] if hit else names
        else:
            value = self.values.get(names[0]) if names else None
        mask = next((v for n in names[buffer is False:] if (v := self.values.get(n)) is not None and v.x.dtype == bool), None)
        args = frozenset().union(*(v.args for v in (value, mask) if v is not None))
        if mask is not None and mask.data:
            mask = None
        tensors = [t for t in _TENSOR.finditer(signature) if t[2]]
        written = next((t for t in tensors if "!tt.ptr" in t[3]), tensors[0] if tensors else None)
        self.accesses.append(Access(kind, lines, bits, value, None if mask is None else mask.x, written[1] if written else "", args,
        loops=self.loops))

    def evaluate(self, name: str, names: list[str], rest: str) -> Value | None:
        """An operation's result, where it can be computed."""
        signature = rest.rpartition(" : ")[2]
        if name == "arith.constant":
            return _constant(rest)
        if name == "tt.make_range":
            start, end = (int(re.search(rf"{word} = (-?\d+)", rest)[1]) for word in ("start", "end"))
            return Value(np.arange(start, end, dtype=np.int64))
        if name == "tt.get_program_id":
            return Value(np.int64(0))
        values = [self.values.get(n) for n in names]
        if not values or any(v is None for v in values):
            return None
        if name in _SAME:
            return values[0]
        if name in _SHAPES:
            types = [t for t in _TENSOR.finditer(signature) if t[2]]
            return _SHAPES[name](values[0], _shape(types[-1][2]) if types else (), rest)
        if name == "tt.addptr":
            size = bits_of(re.search(r"!tt\.ptr<(\w+)", signature)[1]) // 8
            return values[0] + values[1] * Value(np.int64(size))
        if name == "arith.cmpi":
            return values[0].with_(values[1], _COMPARE[re.match(r"\s*(\w+)", rest)[1]])
        if name == "arith.select":
            return Value(np.where(values[0].x, values[1].x, values[2].x), values[0].args | values[1].args | values[2].args,
                any(v.data for v in values))
        if name in _BINARY and len(values) == 2:
            value = values[0].with_(values[1], _BINARY[name])
            if name.startswith(("arith.div", "arith.rem", "arith.floordiv", "arith.ceildiv")) and value.x.ndim:
                value = Value(value.x, value.args | {"/"}, value.data)
            return value
        return None


_SAME = {"ttg.convert_layout", "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.bitcast", "arith.bitcast", "tt.ptr_to_int",
    "tt.int_to_ptr",
         "tt.unsplat", "amdg.extract_slice"}


def _reshape(f):
    return lambda v, shape, rest: Value(f(v.x, shape, rest), v.args, v.data)


def _transposed(x, shape, rest):
    hit = re.search(r"order = array<i32: ([\d, ]+)>", rest)
    return np.transpose(x, [int(n) for n in hit[1].split(",")] if hit else None)


_SHAPES = {"tt.splat": _reshape(lambda x, shape, rest: np.broadcast_to(x, shape)), "tt.broadcast": _reshape(lambda x, shape,
    rest: np.broadcast_to(x, shape)),
           "tt.expand_dims": _reshape(lambda x, shape, rest: x.reshape(shape)), "tt.reshape": _reshape(lambda x, shape, rest: x.reshape(shape)),
           "tt.trans": _reshape(_transposed)}


def _quotient(a, b):
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


_BINARY = {"arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.andi": operator.and_, "arith.ori": operator.or_,
           "arith.xori": operator.xor, "arith.shli": lambda a, b: a << (b & 63), "arith.shrsi": lambda a, b: a >> (b & 63),
           "arith.shrui": lambda a, b: a >> (b & 63),
           "arith.divsi": _quotient, "arith.divui": _quotient, "arith.floordivsi": _quotient, "arith.ceildivsi": lambda a, b: -_quotient(-a, b),
           "arith.remsi": lambda a, b: a - _quotient(a, b) * b, "arith.remui": lambda a, b: a - _quotient(a, b) * b, "arith.maxsi": np.maximum,
           "arith.minsi": np.minimum, "arith.maxui": np.maximum, "arith.minui": np.minimum}
_COMPARE = {"slt": operator.lt, "ult": operator.lt, "sle": operator.le, "ule": operator.le, "sgt": operator.gt, "ugt": operator.gt,
    "sge": operator.ge,
            "uge": operator.ge, "eq": operator.eq, "ne": operator.ne}


def _constant(rest: str) -> Value | None:
    """The value of `arith.constant`'s text; None for floats, which address nothing."""
    hit = re.match(r"\s*(?:\{[^}]*\}\s*)?(?:dense<)?(true|false|-?\d+)>?(?:\s*:\s*(.*))?$", rest.strip())
    if not hit:
        return None
    value = np.bool_(hit[1] == "true") if hit[1] in ("true", "false") else np.int64(int(hit[1]))
    tensor = _TENSOR.search(hit[2] or "")
    if (tensor[3] if tensor else hit[2] or "")[:1] == "f":
        return None
    shape = _shape(tensor[2]) if tensor else ()
    return Value(np.broadcast_to(value, shape) if shape else value)


class _Places:
    """TTGIR's locations: the name behind `loc(` -> (file, line) frames, innermost call first."""

    def __init__(self, text: str):
        self.named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))

    def lines(self) -> set[tuple[str, int]]:
        """Every (file, line) that is named."""
        return {(unescape(hit[1]), int(hit[2])) for text in self.named.values() if (hit := re.fullmatch(r'("[^"]*"):(\d+):\d+', text))}

    def of(self, text: str) -> tuple[tuple[str, int], ...]:
        text = text.strip()
        if text in self.named:
            return self.of(self.named[text])
        if hit := re.fullmatch(r'("[^"]*"):(\d+):\d+', text):
            return ((unescape(hit[1]), int(hit[2])),)
        if hit := re.fullmatch(r"callsite\((#loc\d*) at (#loc\d*)\)", text):
            return self.of(hit[1]) + self.of(hit[2])
        if hit := re.search(r"\((#loc\d*)\)$", text):
            return self.of(hit[1])
        if hit := re.search(r"fused.*\[(#loc\d*)", text):
            return self.of(hit[1])
        return ()
