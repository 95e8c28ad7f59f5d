"""docs/api.md: the public API in one page, made of signatures and docstrings.

`python tests/test_api.py` writes it anew. What is not on it may change from version to version.
"""

import ast
import importlib
import inspect
import sys
import textwrap
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
#: module -> its public names; None: its `__all__`
API = {
    "triport.ops": None,
    "triport.backends": None,
    "triport.backends.base": ("Error", "ArgumentError", "CompileError", "Unavailable", "Unsupported", "Backend"),
    "triport.checking": None,
    "triport.bench": None,
    "triport.bench.study": ("Study", "run"),
    "triport.bench.results": ("Results", "load"),
    "triport.bench.scaling": ("Law", "fit"),
    "triport.bench.report": ("console", "show", "markdown", "github", "words"),
    "triport.tools": ("annotate",),
    "triport.tools.inspector.report": ("inspect", "Report"),
    "triport.tools.tritonparse": ("register",),
}
HEAD = """# The public API

Made by `python tests/test_api.py` from signatures and docstrings. Types are in the package (`py.typed`), for pyright and mypy. What is not here, and any
name with a leading underscore, may change from version to version; what changes here is in `CHANGELOG.md`.

Beside it: [the command line](../README.md), [pytest's options and the fixture `triton_kernel_report`](testing.md), [environment variables](checking.md) of
checked kernels, and the formats that commands write ([results.md](results.md), [asm-schema.md](asm-schema.md)).
"""


def named():
    """(module's name, module, public names) of all."""
    for name, names in API.items():
        module = importlib.import_module(name)
        yield name, module, sorted(module.__all__, key=str.lower) if names is None else names


def _node(thing):
    """The definition of a function or class, without its decorators' doing."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]


def _signature(node) -> str:
    args = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    return f"({args})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _text(thing) -> str:
    doc = inspect.getdoc(thing) or ""
    assert doc, f"{thing} has no docstring"
    return doc


def _lines(name: str, thing) -> list[str]:
    if isinstance(thing, types.ModuleType):
        return [f"### {name}", "", _text(thing)]
    if isinstance(thing, dict):
        return [f"### {name}", "", "One of " + ", ".join(f"`{k}`" for k in thing) + "."]
    node = _node(thing)
    if not isinstance(node, ast.ClassDef):
        return [f"### {name}", "", "```python", f"{name}{_signature(node)}", "```", "", _text(thing)]
    fields = [f"{b.target.id}: {ast.unparse(b.annotation)}" + (f" = {ast.unparse(b.value)}" if b.value else "") for b in node.body
              if isinstance(b, ast.AnnAssign) and not b.target.id.startswith("_")]
    bases = ", ".join(map(ast.unparse, node.bases))
    out = [f"### {name}", "", "```python", f"class {name}" + (f"({bases})" if bases else ""), *(f"    {f}" for f in fields), "```", "", _text(thing)]
    for m in node.body:
        doc = ast.get_docstring(m) if isinstance(m, ast.FunctionDef) else None
        if not doc or m.name.startswith("_"):
            continue
        kind = {ast.unparse(d) for d in m.decorator_list}
        returns = f": {ast.unparse(m.returns)}" if m.returns else ""
        shown = f"{m.name}{returns}" if kind & {"property", "functools.cached_property"} else f"{m.name}{_signature(m)}"
        out += ["", f"- `{shown}`: " + " ".join(doc.split())]
    return out


def drawn() -> str:
    out = [HEAD]
    for name, module, names in named():
        out += [f"## {name}", ""]
        for n in names:
            out += [*_lines(n, getattr(module, n)), ""]
            if n == "annotate":
                out += [*_lines("annotate.as_nvtx", module.annotate.as_nvtx), ""]
    return "\n".join(out).rstrip("\n") + "\n"


def test_the_page_is_what_docstrings_say():
    assert PAGE.read_text() == drawn(), "run `python tests/test_api.py`"


def test_the_types_of_all_of_it_are_checked():
    """Each public name is in the file that type checkers read (tests/test_types.py), but for those of a backend's author."""
    words = {n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else n.name for n in ast.walk(ast.parse((ROOT / "tests" / "typed_user.py").read_text()))
             if isinstance(n, (ast.Name, ast.Attribute, ast.alias))}
    missing = {n for _, _, names in named() for n in names} - words
    assert not missing, missing


if __name__ == "__main__":
    PAGE.write_text(drawn())
    print(f"wrote {PAGE}", file=sys.stderr)
