"""TTIR text -> typed operations.

The text that Triton prints is the portable interface between its versions: libtriton's Python bindings lack most
attributes. One tokeniser and one generic reader take almost every operation (operands, attributes, types); the few
that hold regions or successors have a row of their own in `_STRUCTURED`. What the reader keeps is what a compiler
needs: values with types, attributes, regions, and the user's file:line of every operation.
"""

from __future__ import annotations

import re

from ...base import CompileError
from .types import Block, Func, Loc, Module, Op, Region, Type, Value, parse_type


# --- tokens ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<ws>\s+|//[^\n]*)|(?P<str>"(?:[^"\\]|\\.)*")|(?P<val>%[\w$.-]+(?:\#\d+)?)|(?P<alias>\#[\w$.-]+)"""
    r"""|(?P<block>\^[\w]+)|(?P<sym>@[\w$.-]+|@"[^"]*")|(?P<type>(?:!?[A-Za-z_][\w.]*)<)|(?P<num>-?0x[0-9A-Fa-f]+"""
    r"""|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<id>!?[A-Za-z_][\w.$]*)|(?P<arrow>->)|(?P<open><\{|\(\{)"""
    r"""|(?P<close>\}>|\}\))|(?P<p>[{}()<>\[\],:=*|?+-])""", re.X)

_TYPE_HEADS = ("tensor<", "!tt.ptr<", "!tt.tensordesc<", "vector<", "!ttg.memdesc<")


def _tokens(text: str) -> list[tuple[str, str]]:
    out, i, n = [], 0, len(text)
    while i < n:
        m = _TOKEN.match(text, i)
        if m is None:
            line = text.count("\n", 0, i) + 1
            raise CompileError(f"TTIR text: cannot read {text[i:i + 20]!r} at line {line}")
        kind, tok = m.lastgroup, m.group()
        i = m.end()
        if kind == "ws":
            continue
        if kind == "type":
            if tok in _TYPE_HEADS:  # take the type as one token, to its matching bracket
                depth = 1
                while depth:
                    if i >= n:
                        raise CompileError("TTIR text: unterminated type")
                    depth += (text[i] == "<") - (text[i] == ">" and text[i - 1] != "-")
                    i += 1
                tok = text[m.start():i]
            else:  # array<i32: 0>, dense<...>, overflow<nsw>: the word, then the bracket
                out.append(("id", tok[:-1]))
                kind, tok = "p", "<"
        out.append((kind, tok))
    out.append(("end", ""))
    return out


# --- the reader ------------------------------------------------------------------------------------------------------


class _Reader:

    def __init__(self, text: str):
        self.locs: dict[str, str] = {}
        # Location aliases stand on lines of their own, before and after the module.
        body = []
        for line in text.split("\n"):
            if line.startswith("#") and " = " in line:
                name, _, rest = line.partition(" = ")
                self.locs[name] = rest
            else:
                body.append(line)
        self.toks = _tokens("\n".join(body))
        self.i = 0
        self.scopes: list[dict[str, Value]] = [{}]
        self._loc_cache: dict[str, Loc] = {}

    # -- token helpers
    def peek(self, k=0):
        return self.toks[min(self.i + k, len(self.toks) - 1)]

    def next(self):
        t = self.toks[self.i]
        if t[0] == "end":
            raise CompileError("TTIR text ends too early")
        self.i += 1
        return t

    def at(self, text: str) -> bool:
        return self.toks[self.i][1] == text and self.toks[self.i][0] != "str"

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.i += 1
            return True
        return False

    def expect(self, text: str):
        t = self.next()
        if t[1] != text:
            near = " ".join(x[1] for x in self.toks[max(0, self.i - 8):self.i + 4])
            raise CompileError(f"TTIR text: expected {text!r}, found {t[1]!r} near `{near}`")

    # -- locations
    def resolve_loc(self, ref: str, depth=0) -> Loc:
        """The user's frame of a location: of a chain of call sites the innermost one outside Triton's library."""
        cached = self._loc_cache.get(ref)
        if cached:
            return cached
        text = self.locs.get(ref, ref) if ref.startswith("#") else ref
        frames = []
        self._frames(text, frames, 0)
        user = [f for f in frames if "/triton/language/" not in f.file.replace("\\", "/") and f.line]
        loc = (user or [f for f in frames if f.line] or [Loc()])[0]
        self._loc_cache[ref] = loc
        return loc

    def _frames(self, text: str, out: list[Loc], depth: int):
        if depth > 64:
            return
        for m in re.finditer(r'"((?:[^"\\]|\\.)*)":(\d+):\d+|(#[\w]+)', text):
            if m[3]:
                self._frames(self.locs.get(m[3], ""), out, depth + 1)
            else:
                out.append(Loc(m[1], int(m[2])))

    def loc(self) -> Loc:
        """Read an optional trailing `loc(...)`."""
        if not (self.at("loc") and self.peek(1)[1] == "("):
            return Loc()
        self.i += 1
        start, depth = self.i, 0
        while True:
            t = self.next()[1]
            depth += (t == "(") - (t == ")")
            if depth == 0:
                break
        inner = self.toks[start + 1:self.i - 1]
        if len(inner) == 1 and inner[0][0] == "alias":
            return self.resolve_loc(inner[0][1])
        text = "".join(f'{t[1]}' for t in inner)
        return self.resolve_loc(text)

    # -- values
    def use(self, tok: str) -> Value:
        name = tok[1:]
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        base, _, idx = name.partition("#")
        if idx == "0":
            return self.use("%" + base)
        raise CompileError(f"TTIR text: value %{name} is not defined")

    def define(self, name: str, value: Value):
        value.name = name
        self.scopes[-1][name] = value

    # -- attributes
    def attr_value(self):
        """An attribute's value: int, float, bool, str, list, dict, or its raw text."""
        kind, tok = self.next()
        if kind == "num":
            value = _number(tok)
            if self.accept(":"):
                value = _typed(value, self.type().elem)
            return value
        if kind == "str":
            return _unescape(tok)
        if tok in ("true", "false"):
            return tok == "true"
        if tok == "[":
            out = []
            while not self.accept("]"):
                out.append(self.attr_value())
                self.accept(",")
            return out
        if tok == "{":
            self.i -= 1
            return self.attr_dict()
        if tok == "array":
            self.expect("<")
            self.next()
            out = []
            if self.accept(":"):
                while not self.at(">"):
                    out.append(self.attr_value())
                    self.accept(",")
            self.expect(">")
            return out
        if tok == "dense":
            return self.dense()
        if kind == "sym":
            return tok
        text = tok
        if self.at("<"):  # #tt.something<...>
            depth = 0
            while True:
                t = self.next()[1]
                text += t
                depth += (t == "<") - (t == ">")
                if depth == 0:
                    break
        return text

    def dense(self):
        self.expect("<")
        if self.at("["):
            value = self.attr_value()
        else:
            kind, tok = self.next()
            value = {"true": True, "false": False}.get(tok) if kind == "id" else _number(tok)
            if kind == "str":
                raise CompileError("TTIR text: a hex-string constant; print the module without eliding")
        self.expect(">")
        self.expect(":")
        ty = self.type()
        if isinstance(value, list):
            value = [_typed(v, ty.elem) for v in _flatten(value)]
        else:
            value = _typed(value, ty.elem)
        return ("dense", value, ty)

    def attr_dict(self) -> dict:
        opening = self.next()[1]
        closing = "}>" if opening == "<{" else "}"
        out = {}
        while not self.accept(closing):
            kind, key = self.next()
            key = _unescape(key) if kind == "str" else key
            out[key] = self.attr_value() if self.accept("=") else True
            self.accept(",")
        return out

    def type(self) -> Type:
        kind, tok = self.next()
        if kind not in ("type", "id"):
            raise CompileError(f"TTIR text: expected a type, found {tok!r}")
        return parse_type(tok)

    def type_list(self) -> list[Type]:
        if self.accept("("):
            out = []
            while not self.accept(")"):
                out.append(self.type())
                self.accept(",")
            return out
        return [self.type()]

    # -- module and functions
    def module(self) -> Module:
        while not self.at("module"):
            self.next()
        self.next()
        if self.peek()[0] == "sym":
            self.next()
        if self.accept("attributes"):
            self.attr_dict()
        self.expect("{")
        funcs = {}
        while not self.at("}"):
            if self.at("tt.func"):
                f = self.func()
                funcs[f.name] = f
            else:
                self.skip_op()
        if not any(f.public for f in funcs.values()):
            raise CompileError("TTIR text holds no public tt.func")
        return Module(funcs)

    def skip_op(self):
        raise CompileError(f"TTIR text: unexpected {self.peek()[1]!r} outside a function")

    def func(self) -> Func:
        self.expect("tt.func")
        public = True
        while self.peek()[0] == "id":
            public = self.next()[1] != "private"
        name = self.next()[1][1:].strip('"')
        self.expect("(")
        self.scopes.append({})
        args, arg_attrs = [], []
        while not self.accept(")"):
            vname = self.next()[1]
            self.expect(":")
            v = Value(self.type())
            self.define(vname[1:], v)
            args.append(v)
            arg_attrs.append(self.attr_dict() if self.at("{") else {})
            self.loc()
            self.accept(",")
        results: list[Type] = []
        if self.accept("->"):
            results = self.type_list()
        if self.accept("attributes"):
            self.attr_dict()
        body = Region()
        self.region_body(body)
        loc = self.loc()
        self.scopes.pop()
        return Func(name, args, arg_attrs, results, body, loc, public)

    def region_body(self, region: Region, entry_args: list[Value] | None = None, opened=False, closing="}"):
        """The blocks between braces. `entry_args` are block arguments that the op's own syntax declared."""
        if not opened:
            self.expect("{")
        self.scopes.append({})
        block = Block("", entry_args or [], region=region)
        region.blocks.append(block)
        for a in block.args:
            a.block = block
            self.scopes[-1][a.name] = a
        while not self.at("}") and not self.at("})"):
            if self.peek()[0] == "block":
                label = self.next()[1]
                if block.ops or block.label:
                    block = Block(label, region=region)
                    region.blocks.append(block)
                else:
                    block.label = label
                if self.accept("("):
                    while not self.accept(")"):
                        vname = self.next()[1]
                        self.expect(":")
                        v = Value(self.type(), block=block)
                        self.define(vname[1:], v)
                        block.args.append(v)
                        self.loc()
                        self.accept(",")
                self.expect(":")
                self.loc()
                continue
            op = self.op()
            op.block = block
            block.ops.append(op)
        self.expect(closing)
        self.scopes.pop()

    # -- operations
    def op(self) -> Op:
        names: list[tuple[str, int]] = []
        while self.peek()[0] == "val":
            name = self.next()[1][1:]
            count = int(self.next()[1]) if self.accept(":") else 1
            names.append((name, count))
            self.accept(",")
        if names:
            self.expect("=")
        kind, opname = self.next()
        opname = _unescape(opname) if kind == "str" else opname
        op = Op(opname, [], [])
        types = (_STRUCTURED.get(opname) or (_generic_form if kind == "str" else _flat_form))(self, op)
        if opname == "tt.split":  # prints the one type of its two results once
            types = types * 2
        op.loc = self.loc()
        flat = [(n if c == 1 else f"{n}#{k}") for n, c in names for k in range(c)]
        if len(flat) != len(types):
            raise CompileError(f"TTIR text: {opname} names {len(flat)} results but has {len(types)} at {op.loc}")
        for k, (n, t) in enumerate(zip(flat, types)):
            v = Value(t, op, k)
            self.define(n, v)
            op.results.append(v)
        for v in op.operands:
            v.uses.append(op)
        for _, vals in op.successors:
            for v in vals:
                v.uses.append(op)
        return op


def _number(tok: str):
    if tok.startswith(("0x", "-0x")):
        return ("bits", int(tok, 16))  # the bit pattern of a float that decimal cannot say (NaN, infinities)
    return float(tok) if any(c in tok for c in ".eE") else int(tok)


def _typed(value, elem: str):
    """A number of element type `elem`: int, float, or ("bits", n) for a float given by its exact bit pattern."""
    is_int = elem.startswith("i")
    if isinstance(value, tuple):
        return value[1] if is_int else value
    return value if is_int else float(value)


def _flatten(x):
    return [z for y in x for z in _flatten(y)] if isinstance(x, list) else [x]


def _unescape(tok: str) -> str:
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else
                  {"n": "\n", "t": "\t"}.get(m[1], m[1]), tok[1:-1])


def _i1_like(t: Type) -> Type:
    return Type("i1", t.shape)


_DIALECTS = {"tt", "ttg", "arith", "math", "scf", "cf", "gpu", "ub", "llvm"}

# Result types of operations whose syntax names only operand types: (types after the colon) -> results.
_RESULTS = {
    "arith.cmpi": lambda ts: [_i1_like(ts[0])],
    "arith.cmpf": lambda ts: [_i1_like(ts[0])],
    **dict.fromkeys(("math.isnan", "math.isinf", "math.isfinite"), lambda ts: [_i1_like(ts[0])]),
    "tt.load": lambda ts: [ts[0].pointee.with_shape(ts[0].shape)],
    "tt.addptr": lambda ts: [ts[0]],
    "arith.select": lambda ts: [ts[-1]],
    "tt.store": lambda ts: [],
    "tt.assert": lambda ts: [],
    "tt.print": lambda ts: [],
    "tt.return": lambda ts: [],
    "scf.yield": lambda ts: [],
    "scf.condition": lambda ts: [],
    "tt.reduce.return": lambda ts: [],
    "tt.scan.return": lambda ts: [],
    "tt.map_elementwise.return": lambda ts: [],
    "tt.descriptor_store": lambda ts: [],
    "tt.atomic_store": lambda ts: [],
    "tt.grid_dependency_wait": lambda ts: [],
    "tt.grid_dependency_launch_dependents": lambda ts: [],
    "llvm.intr.assume": lambda ts: [],
    "ttg.barrier": lambda ts: [],
    "gpu.barrier": lambda ts: [],
}


def _flat_form(r: _Reader, op: Op) -> list[Type]:
    """`op words %operands, key = value {attrs} : types (to|->) types`: every operation without a region."""
    types: list[Type] = []
    results: list[Type] | None = None
    if op.name == "arith.constant":
        if r.at("{"):
            r.attr_dict()
        if r.accept("dense"):
            _, value, ty = r.dense()
        else:
            tok = r.next()[1]
            if tok in ("true", "false"):
                value, ty = tok == "true", Type("i1")
            else:
                value = _number(tok)
                r.expect(":")
                ty = r.type()
                value = _typed(value, ty.elem)
        op.attrs["value"] = value
        return [ty]
    while True:
        kind, tok = r.peek()
        if kind == "end" or (tok == "loc" and r.peek(1)[1] == "("):
            break
        if kind == "val" and r.peek(1)[1] == "=":
            break  # the next operation, where no location was printed
        if kind == "val":
            op.operands.append(r.use(r.next()[1]))
        elif tok == ":":
            r.next()
            if r.peek()[0] == "val":  # tt.print "prefix" {attrs} : %operands : types
                continue
            while True:
                types.extend(r.type_list() if r.at("(") else [r.type()])
                if r.accept("->") or r.accept("to"):
                    results = r.type_list()
                    break
                if not (r.accept(",") or r.accept("*")):
                    break
            break
        elif tok in ("{", "<{"):
            op.attrs.update(r.attr_dict())
        elif kind == "id" and r.peek(1)[1] == "=":
            r.next()
            r.next()
            op.attrs[tok] = r.attr_value()
        elif kind == "id" and r.peek(1)[1] == "<":
            r.next()
            r.next()
            flags = []
            while not r.accept(">"):
                flags.append(r.next()[1])
            op.attrs[tok] = flags
        elif kind == "id" and tok.partition(".")[0] in _DIALECTS and "." in tok:
            break  # the next operation, where this one has neither types nor a location
        elif kind == "id":
            if tok == "scale":  # tt.dot_scaled: the next operand scales the one before
                op.attrs.setdefault("scales", []).append(len(op.operands))
            op.words.append(r.next()[1])
        elif kind == "str":
            op.words.append(_unescape(r.next()[1]))
        elif kind == "sym":
            op.attrs["callee"] = r.next()[1][1:].strip('"')
        elif kind == "num":
            op.words.append(r.next()[1])
        elif tok in ",()[]*":
            r.next()
        elif tok in ("}", "})") or kind == "block":
            break
        else:
            raise CompileError(f"TTIR text: cannot read {tok!r} in {op.name}")
    if results is not None:
        return results
    if op.name in _RESULTS:
        return _RESULTS[op.name](types)
    return types[-1:]


def _generic_form(r: _Reader, op: Op) -> list[Type]:
    """`"op"(%operands) <{attrs}> ({ regions }) : (types) -> types`: MLIR's generic syntax."""
    r.expect("(")
    while not r.accept(")"):
        op.operands.append(r.use(r.next()[1]))
        r.accept(",")
    if r.accept("["):
        while not r.accept("]"):
            op.successors.append((r.next()[1], []))
            r.accept(",")
    if r.at("<{"):
        op.attrs.update(r.attr_dict())
    if r.accept("({"):
        while True:
            region = Region(op=op)
            op.regions.append(region)
            more = _region_in_generic(r, region)
            if not more:
                break
    if r.at("{"):
        op.attrs.update(r.attr_dict())
    r.expect(":")
    r.type_list()
    r.expect("->")
    return r.type_list()


def _region_in_generic(r: _Reader, region: Region) -> bool:
    depth_toks = r.i
    # The closing token tells whether another region follows: `}, {` or `})`.
    r.region_body(region, opened=True, closing=_closing_of(r, depth_toks))
    if r.toks[r.i - 1][1] == "})":
        return False
    r.accept(",")
    r.expect("{")
    return True


def _closing_of(r: _Reader, start: int) -> str:
    depth, i = 1, start
    while True:
        tok = r.toks[i][1] if r.toks[i][0] != "str" else ""
        if tok in ("{", "({", "<{"):
            depth += 1
        elif tok in ("}", "})", "}>"):
            depth -= 1
            if depth == 0:
                return tok
        i += 1


def _carried(r: _Reader, op: Op) -> list[str]:
    """`(%name = %init, ...)`: the names; the values become operands."""
    names = []
    r.expect("(")
    while not r.accept(")"):
        names.append(r.next()[1][1:])
        r.expect("=")
        op.operands.append(r.use(r.next()[1]))
        r.accept(",")
    return names


def _scf_for(r: _Reader, op: Op) -> list[Type]:
    if r.accept("unsigned"):
        op.attrs["unsigned"] = True
    iv_name = r.next()[1][1:]
    r.expect("=")
    op.operands.append(r.use(r.next()[1]))
    r.expect("to")
    op.operands.append(r.use(r.next()[1]))
    r.expect("step")
    op.operands.append(r.use(r.next()[1]))
    names, types = [], []
    if r.accept("iter_args"):
        names = _carried(r, op)
        r.expect("->")
        types = r.type_list()
    iv_type = r.type() if r.accept(":") else Type("index")
    args = [Value(iv_type, name=iv_name)] + [Value(t, name=n) for n, t in zip(names, types)]
    region = Region(op=op)
    op.regions.append(region)
    r.region_body(region, args)
    if r.at("{"):
        op.attrs.update(r.attr_dict())
    return types


def _scf_if(r: _Reader, op: Op) -> list[Type]:
    op.operands.append(r.use(r.next()[1]))
    types = r.type_list() if r.accept("->") else []
    region = Region(op=op)
    op.regions.append(region)
    r.region_body(region)
    if r.accept("else"):
        region = Region(op=op)
        op.regions.append(region)
        r.region_body(region)
    if r.at("{"):
        op.attrs.update(r.attr_dict())
    return types


def _scf_while(r: _Reader, op: Op) -> list[Type]:
    names = _carried(r, op) if r.at("(") else []
    r.expect(":")
    ins = r.type_list()
    r.expect("->")
    types = r.type_list()
    before, after = Region(op=op), Region(op=op)
    op.regions += [before, after]
    r.region_body(before, [Value(t, name=n) for n, t in zip(names, ins)])
    r.expect("do")
    r.region_body(after)
    if r.accept("attributes"):
        op.attrs.update(r.attr_dict())
    return types


def _branch(r: _Reader, op: Op) -> list[Type]:
    if op.name == "cf.cond_br":
        op.operands.append(r.use(r.next()[1]))
        r.accept(",")
    while True:
        label = r.next()[1]
        vals = []
        if r.accept("("):
            while not r.accept(")"):
                if r.peek()[0] == "val":
                    vals.append(r.use(r.next()[1]))
                else:
                    r.next()
        op.successors.append((label, vals))
        if not r.accept(","):
            break
    if r.at("{"):
        op.attrs.update(r.attr_dict())
    return []


_STRUCTURED = {
    "scf.for": _scf_for,
    "scf.if": _scf_if,
    "scf.while": _scf_while,
    "cf.br": _branch,
    "cf.cond_br": _branch,
}


def parse(text: str) -> Module:
    """Read a TTIR module. Raises `CompileError` on text it does not understand."""
    try:
        return _Reader(text).module()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
        raise CompileError(f"TTIR text: cannot be read ({type(e).__name__}: {e})") from e
