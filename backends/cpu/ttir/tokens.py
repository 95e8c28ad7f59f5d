"""The words of a TTIR text, and a cursor that walks along them and says where it stands when something is wrong."""

from __future__ import annotations

import re

from ...base import CompileError
from .locations import Locations

_SPACE = r"(?:\s+|//[^\n]*)*"
_TOKEN = re.compile(
    _SPACE + r"""(?:(?P<loc>loc\(\#[\w$.-]+\))|(?P<val>%[\w$.-]+(?:\#\d+)?)"""
    r"""|(?P<type>(?:tensor|!tt\.ptr|!tt\.tensordesc|vector|!ttg\.memdesc)<(?:[^<>-]|<[^<>-]*>)*>)|(?P<head>!?[A-Za-z_][\w.]*<)"""
    r"""|(?P<id>!?[A-Za-z_][\w.$]*)|(?P<arrow>->)|(?P<open><\{|\(\{)|(?P<close>\}>|\}\))"""
    r"""|(?P<num>-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<p>[{}()<>\[\],:=*|?+-])"""
    r"""|(?P<str>"(?:[^"\\]|\\.)*")|(?P<alias>\#[\w$.-]+)|(?P<block>\^[\w]+)|(?P<sym>@[\w$.-]+|@"[^"]*")|(?P<end>\Z))""")

_TYPE_HEADS = ("tensor<", "!tt.ptr<", "!tt.tensordesc<", "vector<", "!ttg.memdesc<")
_KERNEL = re.compile(r'tt\.func\s+public\s+@"?([\w$.-]+)')
_LOCATION = re.compile(r"\bloc\((.*)\)\s*$")

Token = tuple[str, str, int]  # kind (a group of `_TOKEN`, or "end"), text, place in the text


class Cursor:
    """A place among the tokens of `text`. What it raises are `CompileError`s that name the kernel, the user's line and the operation."""

    def __init__(self, text: str):
        # Location aliases stand on lines of their own, before and after the module; blank lines take their places, so that lines keep
        # their numbers.
        aliases, body = {}, []
        for line in text.split("\n"):
            if line.startswith("#") and " = " in line:
                name, _, rest = line.partition(" = ")
                aliases[name] = rest
                line = ""
            body.append(line)
        self.text = "\n".join(body)
        self.locations = Locations(aliases)
        self.i = 0
        self.started: int | None = None  # the token at which the operation that is read starts
        self.toks: list[Token] = []
        self._tokenise()

    def _tokenise(self):
        text, out, match, i, kind = self.text, self.toks, _TOKEN.match, 0, ""
        while kind != "end":
            m = match(text, i)
            if m is None:
                i = re.compile(_SPACE).match(text, i).end()
                raise self.error(f"cannot read {text[i:i + 20].partition(chr(10))[0]!r}", i)
            kind = m.lastgroup
            start, i = m.span(kind)
            if kind == "head":
                if m[kind] in _TYPE_HEADS:  # take the type as one token
                    kind, i = "type", self._end_of_type(start, i)
                else:  # array<i32: 0>, dense<...>, overflow<nsw>: the word, then the bracket
                    out.append(("id", text[start:i - 1], start))
                    kind, start = "p", i - 1
            out.append((kind, text[start:i], start))

    def _end_of_type(self, start: int, i: int) -> int:
        """Behind the bracket that closes the type that starts at `start`; `i` is behind its opening bracket."""
        depth = 1
        while depth:
            if i >= len(self.text):
                raise self.error("unterminated type", start)
            depth += (self.text[i] == "<") - (self.text[i] == ">" and self.text[i - 1] != "-")
            i += 1
        return i

    # -- errors

    def error(self, reason: str, place: int | None = None) -> CompileError:
        """`reason`, where it is: at `place` of the text, without one in the operation that is read, or else at the next token."""
        op = ""
        if place is None:
            at = self.i if self.started is None else self.started
            place = self.toks[min(at, len(self.toks) - 1)][2]
            op = next((f"{t[1].strip(chr(34))}: " for t in self.toks[self.started:self.i] if "." in t[1] and t[0] in ("id", "str")),
                      "") if self.started is not None else ""
        start = self.text.rfind("\n", 0, place) + 1
        line = self.text[start:].partition("\n")[0]
        kernel, printed = _KERNEL.search(self.text), _LOCATION.search(line)
        where = self.locations.resolve(printed[1]) if printed else None
        return CompileError(f"triton-cpu cannot compile{f' kernel {kernel[1]}' if kernel else ''}{f' at {where}' if where and where.line else ''} "
                            f"(TTIR text, line {self.text.count(chr(10), 0, place) + 1}): {op}{reason}")

    # -- tokens

    def peek(self, k: int = 0) -> Token:
        return self.toks[min(self.i + k, len(self.toks) - 1)] if k else self.toks[self.i]

    def next(self, *kinds: str) -> str:
        """The next token's text, which must be of one of `kinds` where some are given."""
        kind, text, _ = self.toks[self.i]
        if kind == "end":
            raise self.error("the text ends too early")
        if kinds and kind not in kinds:
            raise self.error(f"expected {' or '.join(_CALLED.get(k, k) for k in kinds)}, found {text!r}")
        self.i += 1
        return text

    def at(self, text: str) -> bool:
        kind, tok, _ = self.toks[self.i]
        return tok == text and kind != "str"

    def accept(self, text: str) -> bool:
        kind, tok, _ = self.toks[self.i]
        found = tok == text and kind != "str"
        self.i += found
        return found

    def at_location(self) -> bool:
        """Does a `loc(...)` follow?"""
        kind, tok, _ = self.toks[self.i]
        return kind == "loc" or tok == "loc" and self.peek(1)[1] == "("

    def expect(self, text: str):
        if not self.accept(text):
            found = self.peek()
            raise self.error(f"expected {text!r}, found {found[1]!r}" if found[0] != "end" else "the text ends too early")

    def skip_brackets(self):
        """Behind the bracket that closes the one at which the cursor stands."""
        depth = 0
        while True:
            tok = self.next()
            depth += (tok in _OPEN) - (tok in _CLOSE)
            if depth <= 0:
                return


_OPEN, _CLOSE = ("(", "[", "{", "<", "<{", "({"), (")", "]", "}", ">", "}>", "})")
_CALLED = {"val": "a value", "id": "a word", "str": "a text in quotes", "sym": "a symbol", "num": "a number", "block": "a block",
           "type": "a type"}
