"""docs/design.md's map of the compiler: every module, with the first sentence of what it says of itself.

`python tests/test_module_map.py` writes it anew."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- map -->\n", "<!-- end of the map -->\n"
#: folders in the order of a kernel's way
FOLDERS = ("", "ttir", "plan", "emit", "emit/element", "emit/root", "emit/product", "emit/checks", "llvm", "run", "plugin")


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    end = next((n for n, c in enumerate(text) if c == "." and (n + 1 == len(text) or text[n + 1] == " ")), len(text))
    return text[:end].rstrip(":")


def drawn() -> str:
    cpu = ROOT / "backends" / "cpu"
    lines = []
    for folder in FOLDERS:
        lines.append(f"- `backends/cpu/{folder}`" if folder else "- `backends/cpu`")
        lines += [f"  - `{path.name}`: {sentence(path)}" for path in sorted((cpu / folder).glob("*.py")) if path.name != "__init__.py"]
    return "\n".join(lines) + "\n"


def test_the_map_is_the_tree():
    page = PAGE.read_text()
    assert page[page.index(BEGIN) + len(BEGIN):page.index(END)] == drawn(), "run `python tests/test_module_map.py`"
    found = {str(p.parent.relative_to(ROOT / "backends" / "cpu")).replace(".", "") for p in (ROOT / "backends" / "cpu").rglob("*.py")}
    assert found == set(FOLDERS)
    assert all(len(line) > 25 for line in drawn().split("\n") if ".py`" in line), "a module says nothing of itself"


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[:page.index(BEGIN) + len(BEGIN)] + drawn() + page[page.index(END):])
