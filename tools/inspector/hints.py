"""What type an argument of a kernel probably has, from how the kernel uses it: for the line that a user copies where types are missing."""

from __future__ import annotations

import ast
import re

#: functions whose first argument is an address (block pointers and descriptors are made of one)
_BY_ADDRESS = re.compile(r"(load|store|atomic_\w+|make_block_ptr|make_tensor_descriptor|_experimental_make_tensor_descriptor)$")
#: functions that give back the address that they take
_OF_ADDRESSES = ("multiple_of", "max_contiguous", "max_constancy", "advance")
#: functions whose argument is a number with a fraction
_OF_FLOATS = re.compile(r"(exp2?|log2?|sqrt|rsqrt|sin|cos|erf|tanh|sigmoid|fma|fdiv|clamp)$")
_FLOATS = re.compile(r"(.*_)?(eps|epsilon|scale|alpha|beta|gamma|lr|slope|prob|p|temperature|momentum|decay|value|threshold|theta|sigma|mu|softcap|"
                     r"drop\w*)(_.*)?$")


def types(jit) -> dict[str, str]:
    """Parameter -> "fp32[16]", "i32" or "fp32", a guess for each that is no constexpr; `jit`: a kernel of `triton.jit`."""
    names = [p.name for p in jit.params if not p.is_constexpr]
    said = {p.name: str(getattr(p, "annotation", "") or "") for p in jit.params}
    try:
        tree = ast.parse(jit.src)
    except (SyntaxError, AttributeError):
        tree = ast.Module([], [])
    addresses, floats = _addresses(tree), _floats(tree)
    out = {}
    for n in names:
        if n in addresses or re.search(r"(^|_)ptrs?($|_|\d)", n.lower()) or said[n].startswith("*"):
            out[n] = "fp32[16]"
        elif re.search(r"float|fp\d|bf16", said[n]) or n in floats or _FLOATS.match(n.lower()) and "int" not in said[n]:
            out[n] = "fp32"
        else:
            out[n] = "i32"
    return out


def _base(node) -> set[str]:
    """The names that may be the address in a sum: `x_ptr + offsets` is at x_ptr, `offsets[:, None] * n + base` at any of its terms that are names."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _base(node.left) or _base(node.right)
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return _base(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _OF_ADDRESSES and node.args:
            return _base(node.args[0])
        if node.func.attr in ("to", "cast"):
            return _base(node.func.value)
    return set()


def _called(node) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _addresses(tree) -> set[str]:
    """Names that loads and stores start from, through assignments: `p = x + i; tl.load(p)` is at x."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _BY_ADDRESS.match(_called(node)):
            first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg in ("pointer", "base", "ptr")), None)
            found |= _base(first) if first is not None else set()
    assigned = [(t.id, n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    for _ in range(len(assigned)):
        more = set().union(*(_base(value) for name, value in assigned if name in found), set()) - found
        if not more:
            break
        found |= more
    return found


def _floats(tree) -> set[str]:
    """Names that functions of floats take, and that stand beside a number with a fraction."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _OF_FLOATS.match(_called(node)):
            found |= {a.id for a in node.args if isinstance(a, ast.Name)}
        elif isinstance(node, ast.BinOp):
            sides = (node.left, node.right)
            if any(isinstance(s, ast.Constant) and isinstance(s.value, float) for s in sides):
                found |= {s.id for s in sides if isinstance(s, ast.Name)}
    return found
