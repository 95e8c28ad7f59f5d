"""Bundles: an op's C functions for another machine, as a folder to copy there.

`lib<name>.so` and `<name>.h` for programs of one's own, `<name>` (a program that checks and times them; it needs libc alone),
`cases/*.case` to run it on, and `manifest.json`, which says what all that is and holds every file's SHA-256.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

from ...ops.records import DTYPES, Case, Op, dtype_name
from ...ops.sizes import next_power_of_2
from ..base import Error, version
from ..cpu.llvm import compile as llvm, targets
from . import glue, harness, library, link, request
from .library import Function
from .trace import trace

SCHEMA = 2
#: a manifest and a file of a bundle are smaller than this, bytes
MOST = 1 << 31


@dataclass
class Bundle:
    """A bundle in memory: `manifest` as JSON has it, `files` by path relative to its folder (without the manifest)."""

    manifest: dict
    files: dict[str, bytes]

    @property
    def name(self) -> str:
        return self.manifest["name"]

    @functools.cached_property
    def digest(self) -> str:
        """What identifies the bundle: the SHA-256 of its manifest, which has those of its files."""
        return hashlib.sha256(_text(self.manifest)).hexdigest()

    def write(self, folder: Path):
        """Write the bundle, the program executable. The files of a bundle that is there already go."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in _listed(folder):
            path.unlink(missing_ok=True)
        for path, data in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        os.chmod(folder / self.manifest["program"], 0o755)
        (folder / "manifest.json").write_bytes(_text(self.manifest))

    def function(self, name: str) -> tuple[int, dict]:
        """(number, description) of a function."""
        for n, f in enumerate(self.manifest["functions"]):
            if f["name"] == name:
                return n, f
        raise Error(f"the bundle {self.name} has no function {name!r}; it has {', '.join(f['name'] for f in self.manifest['functions'])}")


def _text(manifest: dict) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()


# --- making --------------------------------------------------------------------------------------------------------------------


def make(wanted: list[tuple[Op, Case, str]], row: targets.Target, name: str = "", cases: bool = True, seed: int = 0, by: str | None = None,
         repetitions: int = 20) -> Bundle:
    """The bundle of (op, case, dtype) for a CPU. Cases that differ in sizes alone have one function, with the tiles of the largest.
    cases: with inputs, and expected results from float64. Raises `Unsupported`, `CompileError`, `Unavailable`."""
    if not wanted:
        raise Error("a bundle has one op at least")
    groups: dict[tuple, list[tuple[Op, Case, str]]] = {}
    for op, case, dtype in wanted:
        groups.setdefault(key_of(op, case, dtype), []).append((op, case, dtype))
    functions, taken = [], set()
    for group in groups.values():
        op, case, dtype = max(group, key=lambda g: sum(torch.Size(s).numel() for s in g[1].shapes))
        program = trace(op, case, dtype, row)
        fname = function_name(op, case, dtype, taken)
        kernels = [library.compile_kernel(x, row, f"{fname}_{x.kernel.__name__}_{k}") for k, x in enumerate(program.launches)]
        functions.append(Function(fname, program, kernels))
        functions[-1].settle()
    name = name or (wanted[0][0].name if len({op.name for op, _, _ in wanted}) == 1 else "ops")
    objects = glue.objects(functions, row, name)
    program_ir, plain = harness.harness_ir(functions, row)
    program = llvm.emit_object(llvm.optimise(program_ir, plain), plain)
    shared, alone = link.link([(objects, ""), ([*objects, program], "_start")], row, by=by)
    files = {f"lib{name}.so": shared, f"{name}.h": library.header(name, functions, row).encode(), name: alone}
    listed = []
    for number, (function, group) in enumerate(zip(functions, groups.values())):
        for op, case, dtype in group if cases else ():
            path = f"cases/{function.name}-{_word(case.name)}.case"
            files[path] = case_file(number, function, op, case, dtype, seed, repetitions)
            listed.append({"file": path, "function": function.name, "case": case.name, "shapes": [list(s) for s in case.shapes], "seed": seed})
    manifest = {"schema": SCHEMA, "name": name, "program": name, "library": f"lib{name}.so", "header": f"{name}.h",
                "target": dataclasses.asdict(row), "functions": [_description(f) for f in functions], "cases": listed,
                "versions": {"triport": version(), "torch": torch.__version__, "triton": triton.__version__, **llvm.versions()},
                "files": {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}}
    return Bundle(json.loads(json.dumps(manifest)), files)


def key_of(op: Op, case: Case, dtype: str) -> tuple:
    return op.name, dtype, tuple(sorted((k, repr(v)) for k, v in case.kwargs.items())), case.transposed, case.types, tuple(map(len, case.shapes))


def _word(text: str) -> str:
    return re.sub(r"[^\w.,=-]+", "_", text).replace(",", "_").replace("=", "")


def function_name(op: Op, case: Case, dtype: str, taken: set) -> str:
    """triport_softmax_fp32_dim0: op, dtype, parameters, which matrices are transposed; a number where that is taken."""
    parts = ["triport", op.name, dtype]
    for k, v in case.kwargs.items():
        parts.append(f"{k}_{v}".replace("-", "minus").replace(".", "p"))
    names = list(inspect.signature(op.call).parameters)
    parts += [f"{names[k]}_t" for k in case.transposed]
    base = name = re.sub(r"\W", "_", "_".join(parts))
    n = 2
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name


def _description(f: Function) -> dict:
    p = f.program
    return {"name": f.name, "op": p.op, "dtype": p.dtype, "parameters": {k: v if isinstance(v, (int, float, str, bool, type(None))) else repr(v)
                                                                       for k, v in p.kwargs.items()},
            "declaration": library.declaration(f), "sizes": list(f.sizes.values()), "conditions": [f.text(c) for c in p.conditions],
            "arguments": [{"name": b.name, "role": b.role, "dtype": dtype_name(b.dtype), "shape": [f.text(s) for s in b.shape], "strides": [f.text(s) for s in b.strides],
                           "transposed": b.turned}
                          for b in p.arguments],
            "result": p.buffers[p.result].name, "needs": list(f.needs),
            "overlap": [{"written": x.name, "other": y.name, "equal_addresses": same} for x, y, same in f.apart],
            "kernels": [{"name": k.name, "source": f"{Path(inspect.getsourcefile(x.kernel.fn)).name}:{x.kernel.starting_line_number}",
                         "constants": {c: str(v) for c, v in x.consts.items()}, "scratch_bytes": k.metadata.scratch_bytes,
                         "assertions": [{"at": where, "message": message} for message, where in library.assertions(k)]}
                        for k, x in zip(f.kernels, p.launches)]}


def inputs_of(description: dict, tensors: list[torch.Tensor]) -> tuple[list[tuple[str, torch.Tensor]], list[int]]:
    """(role and values of every tensor argument, sizes) of a call with these tensors, in the op's order. Raises
    `Error` for tensors that the function does not take."""
    name = description["name"]
    given = [a for a in description["arguments"] if a["role"] != "out"]
    if len(given) != len(tensors):
        raise Error(f"{name} takes {len(given)} tensors ({', '.join(a['name'] for a in given)}), not {len(tensors)}")
    sizes: dict[str, int] = {}
    for a, t in zip(given, tensors):
        if dtype_name(t.dtype) != a["dtype"] or t.dim() != len(a["shape"]):
            raise Error(f"{name}: {a['name']} is {dtype_name(t.dtype)} of {t.dim()} dimensions; it takes {a['dtype']} of {len(a['shape'])}")
        for s, n in zip(a["shape"], t.shape):
            if s in description["sizes"] and sizes.setdefault(s, n) != n:
                raise Error(f"{name}: {a['name']} has shape {tuple(t.shape)}, and {s} is {sizes[s]} already")
            if s.isdigit() and int(s) != n:
                raise Error(f"{name}: {a['name']} has shape {tuple(t.shape)}, where {s} is fixed")
    values = {a["name"]: (t.T if a["transposed"] else t) for a, t in zip(given, tensors)}
    out = []
    for a in description["arguments"]:
        if a["role"] == "out":
            shape = [sizes[s] if s in sizes else int(s) for s in a["shape"]]
            out.append(("out", torch.zeros(shape, dtype=DTYPES[a["dtype"]])))
        else:
            out.append((a["role"], values[a["name"]]))
    return out, [sizes[s] for s in description["sizes"]]


def case_file(number: int, function: Function, op: Op, case: Case, dtype: str, seed: int, repetitions: int) -> bytes:
    """A request with inputs from `seed` and what float64 gives for them."""
    tensors = case.make(DTYPES[dtype], seed=seed)
    expected = op.expected(*tensors, **case.kwargs)
    description = _description(function)
    given, sizes = inputs_of(description, tensors)
    return request.encode(number, given, sizes, warmup=2, repetitions=repetitions, expected=expected, allowed=op.allowed(DTYPES[dtype]),
                          result=[a["name"] for a in description["arguments"]].index(description["result"]))


# --- reading -------------------------------------------------------------------------------------------------------------------


def load(folder: Path) -> Bundle:
    """A bundle from its folder. Nothing of it is believed before its SHA-256 is that of the manifest. Raises `Error`."""
    folder = Path(folder)
    path = folder / "manifest.json"
    try:
        manifest = json.loads(_read(path).decode())
    except (ValueError, RecursionError) as e:
        raise Error(f"{path} is no manifest of a bundle: {e}") from None
    _check(manifest, path)
    files = {}
    for name, digest in manifest["files"].items():
        data = _read(folder / name)
        if hashlib.sha256(data).hexdigest() != digest:
            raise Error(f"{folder / name} is not what its manifest says (SHA-256): it was changed or cut short; export the bundle again")
        files[name] = data
    return Bundle(manifest, files)


def _listed(folder: Path) -> list[Path]:
    """The files that a folder's manifest lists, if it is one."""
    try:
        manifest = json.loads(_read(folder / "manifest.json").decode())
        _check(manifest, folder)
    except (Error, ValueError, RecursionError):
        return []
    return [folder / name for name in manifest["files"]]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST:
            raise Error(f"{path} is larger than any file of a bundle")
        return path.read_bytes()
    except OSError as e:
        raise Error(f"{path} cannot be read: {e.strerror}") from None


def _check(manifest, path: Path):
    """Raise `Error` unless a manifest has the form that `make` gives it."""
    def need(holds: bool, what: str):
        if not holds:
            raise Error(f"{path} is no manifest of a bundle: {what}")

    need(isinstance(manifest, dict), "it is no object")
    need(manifest.get("schema") == SCHEMA, f"its schema is {manifest.get('schema')!r}; this triport reads {SCHEMA}")
    files = manifest.get("files")
    need(isinstance(files, dict) and files, "it lists no files")
    for name, digest in files.items():
        need(re.fullmatch(r"(cases/)?[\w.,=-]+", name) is not None and not name.startswith((".", "-")) and ".." not in name, f"{name!r} is no file of a bundle")
        need(isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) is not None, f"{name} has no SHA-256")
    for key in ("name", "program", "library", "header"):
        need(isinstance(manifest.get(key), str) and (key == "name" or manifest[key] in files), f"its {key} is {manifest.get(key)!r}")
    target = manifest.get("target")
    need(isinstance(target, dict) and isinstance(target.get("name"), str) and isinstance(target.get("triple"), str), "it has no target")
    functions = manifest.get("functions")
    need(isinstance(functions, list) and functions, "it lists no functions")
    for f in functions:
        need(isinstance(f, dict) and all(isinstance(f.get(k), str) for k in ("name", "op", "dtype")), "a function has no name, op and dtype")
        need(isinstance(f.get("sizes"), list) and all(isinstance(s, str) for s in f["sizes"]), f"{f['name']} has no sizes")
        need(isinstance(f.get("arguments"), list) and f["arguments"] and all(_is_argument(a) for a in f["arguments"]), f"{f['name']} has no arguments")
        need(f.get("result") in [a["name"] for a in f["arguments"] if a["role"] != "in"], f"{f['name']} has no result")
        need(isinstance(f.get("overlap"), list) and all(isinstance(o, dict) and isinstance(o.get("written"), str) and isinstance(o.get("other"), str)
                                                        for o in f["overlap"]), f"{f['name']} does not say what may overlap")
    need(isinstance(manifest.get("cases"), list) and all(isinstance(c, dict) and c.get("file") in files for c in manifest["cases"]), "it lists no cases")


def _is_argument(a) -> bool:
    return (isinstance(a, dict) and isinstance(a.get("name"), str) and a.get("role") in ("in", "out", "inout") and a.get("dtype") in DTYPES
            and isinstance(a.get("shape"), list) and all(isinstance(s, str) for s in a["shape"]) and isinstance(a.get("transposed"), bool))


_known: dict[tuple, tuple[Op, Bundle]] = {}


@contextlib.contextmanager
def fresh():
    """Within it `for_call` makes bundles anew, as for other tiles, and keeps none."""
    global _known
    before, _known = _known, {}
    try:
        yield
    finally:
        _known = before


def for_call(op: Op, case: Case, dtype: str, row: targets.Target) -> Bundle:
    """The bundle of one case without case files, as runners need it; kept for the process, and for sizes up to the next powers of two, so that
    tiles suit them."""
    key = (id(op), key_of(op, case, dtype), row, triton.knobs.runtime.debug, tuple(tuple(map(next_power_of_2, s)) for s in case.shapes))
    if key not in _known:
        _known[key] = op, make([(op, case, dtype)], row, cases=False)  # with the op, whose address is in the key
    return _known[key][1]
