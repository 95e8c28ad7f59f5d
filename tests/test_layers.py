"""Which module may import which: the order of the layers, for every import, also those within functions and those by name."""

import ast
import functools
import re
import textwrap

import pytest
from conftest import ROOT

TOPS = ("backends", "ops", "bench", "tools", "checking", "testing")
#: from the bottom up: a module imports those of its own layer and of the layers in front of it. Of the prefixes that a module's name begins with the
#: longest counts
LAYERS = (
    ("what a backend is, and leaves", ("backends.base", "backends.checking", "backends.memo", "backends.host", "backends.context", "backends.active", "backends.table",
                                       "backends.cpu.pages", "backends.forks", "backends.huge", "backends.of_torch", "backends.of_triton", "backends.platforms", "backends.trust")),
    ("LLVM", ("backends.cpu.llvm",)),
    ("TTIR", ("backends.cpu.ttir",)),
    ("plan", ("backends.cpu.plan",)),
    ("emit", ("backends.cpu.emit",)),
    ("run", ("backends.cpu.run",)),
    ("LLVM behind a guard, which runs", ("backends.cpu.llvm.guard", "backends.cpu.llvm.compile")),
    ("Triton's plugin", ("backends.cpu.plugin",)),
    ("Triton's interface", ("backends.cpu.cache", "backends.cpu.compiler", "backends.cpu.driver", "backends.cpu.lowered", "backends.cpu")),
    ("dispatch", ("backends.dispatch", "backends")),
    ("backends", ("backends.cpu.backend", "backends.cuda", "backends.inductor", "backends.nvrtc", "backends.torch_eager", "backends.triton_gpu")),
    ("ops", ("ops",)),
    ("who chooses by measurements, and boards", ("backends.auto", "backends.spine")),
    ("for users", ("checking",)),
    ("bench", ("bench",)),
    ("tools", ("tools",)),
    ("pytest's plugin", ("testing",)),
)
#: (module, what it imports) against the order -> why
ALLOWED = {("backends.table", "backends"): "a backend is imported by its name when somebody asks for it",
           ("backends.cpu.plugin.asked", "tools.inspector.recorder"): "a program's environment asks for the tool, and Triton imports the plugin alone",
           ("backends.cpu.plugin.inductor", "backends.spine.aoti"): "torch asks for a kernel's shared libraries, and finds the plugin alone",
           ("backends.cpu.plugin.products", "ops.tiles"): "Inductor asks how to multiply, and finds the plugin alone",
           ("backends.cpu.plugin.products", "ops.thin"): "as the line above, of few rows",
           ("backends.cpu.plugin.products", "ops.straight"): "Inductor asks whether a transposed factor is copied",
           ("ops.registry", "ops"): "an op's record is imported by its name when somebody asks for it"}
#: name of a module, or of a package that stands for itself alone
ALONE = {"backends", "backends.cpu"}


@functools.lru_cache(maxsize=None)
def sources() -> dict[str, tuple[str, bool]]:
    """Module -> (its text, is it a package?)."""
    out = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            package = parts[-1] == "__init__"
            out[".".join(parts[:-1] if package else parts)] = path.read_text(), package
    return out


def layer(module: str) -> int | None:
    """The number of a module's layer."""
    fits = [(len(prefix), n) for n, (_, prefixes) in enumerate(LAYERS) for prefix in prefixes
            if module == prefix or module.startswith(prefix + ".") and prefix not in ALONE]
    return max(fits)[1] if fits else None


#: beginnings of instructions and declarations, as a builder's method is told or a line of LLVM IR has them
IR = re.compile(r"\s*(define|declare|call|ret|br|load|store|alloca|getelementptr|bitcast|icmp|fcmp|add|sub|mul|lshr|shl|fence|cmpxchg|atomicrmw|"
                r"extractvalue|extractelement|insertelement|shufflevector|select|phi|module asm|target triple) .*(\bi\d+\b|\bptr\b|<\d+ x |\bvoid\b|=)")


def written(text: str) -> list[tuple[str, int]]:
    """(what, line) of texts in a module that are lines of LLVM IR, and of calls that take such a line."""
    out = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "%" for part in node.values)
            out += [(said, node.lineno)] * any(IR.match(line) for line in said.split("\n"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            to = ast.unparse(node.func)
            first = [type(a) for a in node.args if isinstance(a, (ast.Constant, ast.JoinedStr)) and not isinstance(getattr(a, "value", ""), int)]
            out += [(to, node.lineno)] * bool(re.search(r"\bb\.(emit|value)$|\.(section|items|allocas)\.append$", to) and first)
    return out


def test_llvm_ir_is_written_by_the_builder():
    """In `llvm` alone instructions are text; everything else calls its methods."""
    found = [f"{module}:{line}: {what}" for module, (text, _) in sources().items() if not module.startswith("backends.cpu.llvm.")
             for what, line in written(text)]
    assert not found, "\n".join(found)


def test_a_line_of_llvm_ir_is_seen():
    assert written('b.emit("ret void")') and written('b.value(ty, f"lshr i64 {v.s}, {n}")') and written('x = f"  call void @{name}(i32 1)"')
    assert not written('b.lshr(v, 3)\nf"call {name} with 3"')


@functools.lru_cache(maxsize=None)
def imports(module: str, text: str, package: bool) -> list[tuple[str, int]]:
    """(module of ours, line) of everything that a module imports, wherever it does, relatively, by its full name or by `import_module`."""
    known = sources()
    here = module.split(".") if package else module.split(".")[:-1]
    out = []

    def add(parts, names, line):
        base = ".".join(parts)
        for name in names:
            inner = f"{base}.{name}".strip(".")
            found = inner if inner in known else base
            if found in known:
                out.append((found, line))

    def relative(name: str) -> list[str]:
        up = len(name) - len(name.lstrip("."))
        return (here[:len(here) - up + 1] + [p for p in name[up:].split(".") if p]) if up else name.removeprefix("triport.").split(".")

    tree = ast.parse(text)
    typing = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" for part in node.body
              for inner in ast.walk(part)}  # what type checkers alone import is no dependence
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "triport"):
            add(relative("." * node.level + (node.module or "").removeprefix("triport").lstrip(".")) if node.level else node.module.split(".")[1:],
                [a.name for a in node.names], node.lineno)
        elif isinstance(node, ast.Import):
            for a in node.names:
                if a.name.startswith("triport."):
                    add(a.name.split(".")[1:], [""], node.lineno)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            said = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
            own = isinstance(said[0], ast.FormattedValue) and getattr(said[0].value, "id", "") in ("__package__", "__name__")
            text_ = said[0].value if isinstance(said[0], ast.Constant) else "." if own else ""
            if text_.startswith((".", "triport.")):
                parts = relative(text_)
                add(parts if ".".join(parts) in known else parts[:-1], [""], node.lineno)
    return out


def against(known: dict[str, tuple[str, bool]]) -> list[str]:
    """The imports that go upwards."""
    out = []
    for module, (text, package) in known.items():
        for other, line in imports(module, text, package):
            if layer(other) > layer(module) and (module, other) not in ALLOWED:
                out.append(f"{module}:{line} ({LAYERS[layer(module)][0]}) imports {other} ({LAYERS[layer(other)][0]})")
    return out


def cycles(known: dict[str, tuple[str, bool]]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others (Tarjan's strongly connected components)."""
    graph = {m: {o for o, _ in imports(m, text, package) if o != m and (m, o) not in ALLOWED} for m, (text, package) in known.items()}
    index, low, stack, out = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph[v]:
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                out.append(sorted(stack[at:]))
            del stack[at:]

    for v in graph:
        if v not in index:
            visit(v)
    return out


def test_every_module_has_a_layer():
    known = sources()
    assert not [m for m in known if layer(m) is None]
    prefixes = [p for _, of in LAYERS for p in of]
    assert len(set(prefixes)) == len(prefixes)
    assert not [p for p in prefixes if not any(m == p or m.startswith(p + ".") for m in known)]


def test_imports_go_down():
    found = against(sources())
    assert not found, "\n".join(found)


def test_no_modules_import_each_other():
    found = cycles(sources())
    assert not found


def test_nothing_is_allowed_that_is_not_done():
    known = sources()
    done = {(m, o) for m, (text, package) in known.items() for o, _ in imports(m, text, package)}
    assert set(ALLOWED) <= done


@pytest.mark.parametrize("module,planted,found", [
    ("backends.cpu.plan.facts", "from ..emit import kernel", "backends.cpu.emit.kernel"),
    ("backends.cpu.run.kept", "def f():\n    from ....ops.softmax import softmax", "ops.softmax"),
    ("backends.dispatch.quick", "class C:\n    def f(self):\n        import triport.bench.clock", "bench.clock"),
    ("backends.spine.runner", "if True:\n    from ... import tools", "tools"),
    ("ops.gelu", "def f():\n    from triport.backends.spine import runner", "backends.spine.runner"),
    ("bench.clock", "importlib.import_module('..tools.asm', __package__)", "tools.asm"),
    ("ops.gelu", "importlib.import_module(f'triport.bench.models.{x}')", "bench.models"),
    ("backends.cpu.cache", "from .. import get", "backends")])
def test_an_import_that_goes_up_is_found(module, planted, found):
    known = dict(sources())
    text, package = known[module]
    known[module] = text + "\n" + textwrap.dedent(planted) + "\n", package
    told = against(known)
    assert len(told) == 1 and told[0].startswith(f"{module}:") and f"imports {found} (" in told[0]


def test_modules_of_one_layer_that_import_each_other_are_found():
    known = dict(sources())
    text, package = known["ops.checks"]
    known["ops.checks"] = text + "\ndef f():\n    from . import softmax\n", package
    assert not against(known)
    found, = cycles(known)
    assert {"ops.checks", "ops.softmax"} <= set(found)


def test_a_backend_is_not_asked_whether_it_has_a_method():
    """`Backend` says what all of them have."""
    for module, (text, _) in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("hasattr", "getattr"):
                assert "backend" not in ast.unparse(node.args[0]), f"{module}:{node.lineno}"
