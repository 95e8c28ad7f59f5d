"""Attributes of a TTIR text: numbers, texts, lists, dictionaries, dense constants."""

from __future__ import annotations

from .locations import unescape
from .tokens import Cursor
from .types import Type, parse_type


class Attributes(Cursor):
    """A cursor that reads types and attributes."""

    # -- types

    def type(self) -> Type:
        return parse_type(self.next("type", "id"))

    def type_list(self) -> list[Type]:
        """One type, or several in brackets."""
        if not self.accept("("):
            return [self.type()]
        out = []
        while not self.accept(")"):
            out.append(self.type())
            self.accept(",")
        return out

    # -- values

    def number(self):
        """The next number: an int, a float, or ("bits", n) for the bit pattern of a float that decimal cannot say (NaN, infinities)."""
        tok = self.next("num")
        if tok.startswith(("0x", "-0x")):
            return ("bits", int(tok, 16))
        return float(tok) if any(c in tok for c in ".eE") else int(tok)

    def attribute(self):
        """An attribute's value: int, float, bool, str, list, dict, or its raw text."""
        kind, tok, _ = self.peek()
        if kind == "num":
            value = self.number()
            return typed(value, self.type().elem) if self.accept(":") else value
        if tok in ("{", "<{"):
            return self.dictionary()
        self.next()
        if kind == "str":
            return unescape(tok)
        if tok in ("true", "false"):
            return tok == "true"
        if tok == "[":
            return self._list("]")
        if tok == "array":
            return self._array()
        if tok == "dense":
            return self.dense()[0]
        if kind != "sym" and self.at("<"):  # #tt.something<...>
            start = self.i
            self.skip_brackets()
            tok += "".join(t[1] for t in self.toks[start:self.i])
        return tok

    def _list(self, closing: str) -> list:
        out = []
        while not self.accept(closing):
            out.append(self.attribute())
            self.accept(",")
        return out

    def _array(self) -> list:
        """`array<i32: 1, 2>`, `array<i32>`"""
        self.expect("<")
        self.next()
        if self.accept(":"):
            return self._list(">")
        self.expect(">")
        return []

    def dense(self) -> tuple[object, Type]:
        """`<elements> : type` behind the word `dense`: (one value or a list of all, the type)."""
        self.expect("<")
        if self.at("["):
            value = self.attribute()
        elif self.peek()[0] == "str":
            raise self.error("a constant as hexadecimal text; print the module without eliding")
        else:
            value = self.number_or_truth()
        self.expect(">")
        self.expect(":")
        ty = self.type()
        return ([typed(v, ty.elem) for v in _flatten(value)] if isinstance(value, list) else typed(value, ty.elem)), ty

    def number_or_truth(self):
        return self.next() == "true" if self.peek()[1] in ("true", "false") else self.number()

    def dictionary(self) -> dict:
        """`{key = value, flag}`; a flag is True."""
        closing = "}>" if self.next() == "<{" else "}"
        out = {}
        while not self.accept(closing):
            kind, key, _ = self.peek()
            self.next("id", "str")
            key = unescape(key) if kind == "str" else key
            out[key] = self.attribute() if self.accept("=") else True
            self.accept(",")
        return out


def typed(value, elem: str):
    """A number of element type `elem`: int, float, or ("bits", n) for a float given by its exact bit pattern."""
    is_int = elem.startswith("i")
    if isinstance(value, tuple):
        return value[1] if is_int else value
    return value if is_int else float(value)


def _flatten(x):
    return [z for y in x for z in _flatten(y)] if isinstance(x, list) else [x]
