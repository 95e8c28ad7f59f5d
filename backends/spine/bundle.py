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

from ...ops import room
from ...ops.case import KEPT
from ...ops.records import Case, Op, dtype_name
from ...ops.sizes import next_power_of_2
from ..base import Error, version
from ..cpu.llvm import compile as llvm, targets
from . import blame, classes, glue, harness, header, library, link, request, samples
from .ctext import c
from .library import Function
from .trace import At, Call, of_op

SCHEMA = 3
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
        """Write the bundle, the program executable. The files of a bundle that is there already go. Raises `Error`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in _listed(folder):
                path.unlink(missing_ok=True)
            for path, data in self.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            os.chmod(folder / self.manifest["program"], 0o755)  # noqa: S103  (a program, in a folder that the user named)
            (folder / "manifest.json").write_bytes(_text(self.manifest))
        except OSError as e:
            raise Error(f"the bundle {self.name}: {e.filename or folder} cannot be written: {e.strerror}") from None

    def function(self, name: str) -> tuple[int, dict]:
        """(number, description) of a function."""
        for n, f in enumerate(self.manifest["functions"]):
            if f["name"] == name:
                return n, f
        raise Error(f"the bundle {self.name} has no function {name!r}; it has {', '.join(f['name'] for f in self.manifest['functions'])}")


def _text(manifest: dict) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()


# --- making --------------------------------------------------------------------------------------------------------------------


def make(wanted: list[tuple[Op, Case, str] | Call], row: targets.Target, name: str = "", cases: bool = True, seed: int = 0, by: str | None = None,
         repetitions: int = 20, leading: bool = False, within: tuple[int, int] | None = None, explore: bool = True) -> Bundle:
    """The bundle of (op, case, dtype), or calls of users' functions, for a CPU. Cases that differ in sizes alone have one function, with the tiles of the largest.
    cases: with inputs, and expected results from float64. leading: matrices' leading dimensions are arguments; within: the powers of two that
    get a class of their own (`classes.py`); explore: make classes that no case has. Raises `Unsupported`, `CompileError`, `Unavailable`."""
    if not wanted:
        raise Error("a bundle has one op at least")
    for op, case, dtype in (w for w in wanted if cases and not isinstance(w, Call)):
        room.require(op, case, dtype)
    groups: dict[tuple, list] = {}
    for w in wanted:
        groups.setdefault((w.name, w.file, *(a.layout for a in w.arguments)) if isinstance(w, Call) else key_of(*w), []).append(w)
    largest = [max(g, key=lambda w: sum(torch.Size(s).numel() for s in w[1].shapes)) if not isinstance(g[0], Call) else g[0] for g in groups.values()]
    calls = [w if isinstance(w, Call) else of_op(*w, leading) for w in largest]
    functions = [_function(fname, call, [w for w in group if isinstance(w, Call)] or [call], row, within, explore)
                 for fname, call, group in zip(names_of(calls), calls, groups.values())]
    name = name or (_word(calls[0].name) if len({call.name for call in calls}) == 1 else "ops")
    objects = glue.objects(functions, row, name)
    program_ir, plain = harness.harness_ir(functions, [request.named(_description(f)) for f in functions], row)
    program = llvm.emit_object(llvm.optimise(program_ir, plain), plain)
    shared, alone = link.link([(objects, ""), ([*objects, program], "_start")], row, by=by)
    files = {f"lib{name}.so": shared, f"{name}.h": header.header(name, functions, row).encode(), name: alone}
    listed = []
    for number, (function, group) in enumerate(zip(functions, groups.values())):
        for w in group if cases else ():
            made = samples.of_call(w, function, seed) if isinstance(w, Call) else samples.of_op(*w, function, seed)
            path = f"cases/{function.name}-{_word(made.name)}.case"
            files[path] = samples.file(number, _description(function), made, repetitions)
            listed.append({"file": path, "function": function.name, "case": made.name, "shapes": made.shapes, "seed": seed, "expected": made.source})
    manifest = {"schema": SCHEMA, "name": name, "program": name, "library": f"lib{name}.so", "header": f"{name}.h",
                "target": dataclasses.asdict(row), "functions": [_description(f) for f in functions], "cases": listed,
                "versions": {"triport": version(), "torch": torch.__version__, "triton": triton.__version__, **llvm.versions()},
                "files": {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}}
    return Bundle(json.loads(json.dumps(manifest)), files)


def _function(fname: str, call: Call, calls: list[Call], row: targets.Target, within, explore: bool) -> Function:
    """A function of all its classes, compiled."""
    programs, remarks = classes.programs(calls, row, within, explore)
    variants, known = [], {}
    for n, program in enumerate(programs):
        kernels = []
        for k, x in enumerate(program.launches):
            key = repr((id(x.kernel), x.types, x.consts, x.options, [(a, str(v)) for a, v in x.args.items() if isinstance(v, At)]))
            if key not in known:
                with blame.told(call, x.kernel):
                    known[key] = library.compile_kernel(x, row, f"{fname}_{x.kernel.__name__}_{k}" + (f"_{n}" if n else ""))
            kernels.append(known[key])
        variants.append(library.Variant(program, kernels))
    made = Function(fname, variants, call, tuple(remarks))
    made.settle()
    return made


def key_of(op: Op, case: Case, dtype: str) -> tuple:
    return op.name, dtype, tuple(sorted((k, repr(v)) for k, v in case.kwargs.items())), case.transposed, case.types, tuple(map(len, case.shapes))


def _word(text: str) -> str:
    """A text as a file's name, or a part of one."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text.replace("=", "")).strip(".") or "ops"


def names_of(calls: list[Call]) -> list[str]:
    """triport_softmax_fp32_dim0: op, dtype, parameters, which matrices are transposed. Where several have one name all say their tensors, too:
    triport_square_fp32_2d, triport_square_fp32_3d; what is one even so is numbered."""
    def plain(call: Call) -> str:
        parts = ["triport", call.name, call.dtype]
        if not call.file:
            parts += [f"{k}_{v}".replace("-", "minus").replace(".", "p") for k, v in call.constants.items()]
        parts += [f"{a.name}_t" for a in call.arguments if a.turned]
        return re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII)

    def full(call: Call) -> str:
        tensors = [f"{len(a.shape)}d" + ("" if dtype_name(a.dtype) == call.dtype else f"_{dtype_name(a.dtype)}") for a in call.arguments if a.kind == "tensor"]
        tensors = tensors[:1] if len(set(tensors)) == 1 else tensors
        constants = [f"{k}_{v}".replace("-", "minus").replace(".", "p") for k, v in call.constants.items()] if call.file else []
        return re.sub(r"\W+", "_", "_".join([plain(call), *tensors, *constants]), flags=re.ASCII)

    names = list(map(plain, calls))
    names = [full(call) if names.count(n) > 1 else n for n, call in zip(names, calls)]
    return [f"{n}_{names[:k].count(n) + 1}" if n in names[:k] else n for k, n in enumerate(names)]


def _description(f: Function) -> dict:
    p = f.program
    return {"name": f.name, "op": p.op, "dtype": p.dtype, "parameters": {k: v if isinstance(v, (int, float, str, bool, type(None))) else repr(v)
                                                                       for k, v in p.kwargs.items()},
            "declaration": header.declaration(f), "order": [a.name for a in f.call.arguments if a.kind != "constant"],
            "numbers": [{"name": q.name, "kind": q.kind, "tensor": q.tensor} for q in p.parameters],
            "conditions": [c(e, p.sizes) for e in p.conditions if all(e in v.program.conditions for v in f.variants)],
            "classes": [header.class_text(v) for v in f.variants] if len(f.variants) > 1 else [],
            "arguments": [{"name": b.name, "role": b.role, "dtype": dtype_name(b.dtype), "shape": [c(s, p.sizes) for s in b.shape], "strides": [c(s, p.sizes) for s in b.strides],
                           "transposed": b.turned, "ld": str(b.ld) if b.ld is not None else ""}
                          for b in p.arguments],
            "results": [p.buffers[k].name for k in p.results], "needs": list(f.needs),
            "overlap": [{"written": x.name, "other": y.name, "equal_addresses": same} for x, y, same in f.apart],
            "kernels": [{"name": k.name, "source": f"{Path(inspect.getsourcefile(x.kernel.fn)).name}:{x.kernel.starting_line_number}",
                         "constants": {c: str(v) for c, v in x.consts.items()}, "scratch_bytes": k.metadata.scratch_bytes,
                         "assertions": [{"at": where, "message": message} for message, where in library.assertions(k)]}
                        for v in f.variants for k, x in zip(v.kernels, v.program.launches)]}


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
        need(isinstance(f.get("numbers"), list) and all(_is_number(q) for q in f["numbers"]), f"{f['name']} has no sizes")
        need(isinstance(f.get("order"), list) and all(isinstance(s, str) for s in f["order"]), f"{f['name']} has no order of arguments")
        need(isinstance(f.get("arguments"), list) and f["arguments"] and all(_is_argument(a) for a in f["arguments"]), f"{f['name']} has no arguments")
        need(isinstance(f.get("results"), list) and set(f["results"]) <= {a["name"] for a in f["arguments"]}, f"{f['name']} has no results")
        need(isinstance(f.get("overlap"), list) and all(isinstance(o, dict) and isinstance(o.get("written"), str) and isinstance(o.get("other"), str)
                                                        for o in f["overlap"]), f"{f['name']} does not say what may overlap")
    need(isinstance(manifest.get("cases"), list) and all(isinstance(c, dict) and c.get("file") in files for c in manifest["cases"]), "it lists no cases")


def _is_argument(a) -> bool:
    return (isinstance(a, dict) and isinstance(a.get("name"), str) and a.get("role") in ("in", "out", "inout") and a.get("dtype") in KEPT
            and isinstance(a.get("shape"), list) and all(isinstance(s, str) for s in a["shape"]) and isinstance(a.get("transposed"), bool)
            and isinstance(a.get("ld"), str))


def _is_number(q) -> bool:
    return isinstance(q, dict) and isinstance(q.get("name"), str) and q.get("kind") in ("size", "ld", "int", "float", "bool")


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
    if key in _known and _known[key][1].manifest["functions"][0]["conditions"]:
        key = (*key, case.shapes)  # made for some sizes, which need not be these
    if key not in _known:
        _known[key] = op, make([(op, case, dtype)], row, cases=False, explore=False)  # with the op, whose address is in the key
    return _known[key][1]
