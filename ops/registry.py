"""The built-in ops' records by name, and a user's own from `path/to/file.py:name`: `registry.get("softmax")`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from triton.runtime.jit import KernelInterface

from ..backends.base import Error, suggest
from .records import Op

NAMES = ("square", "gelu", "softmax", "matmul", "matmul_softmax", "lora_linear", "add_relu", "add_mul_act")


_names: dict[int, tuple[Op, str]] = {}  # by id: what each record was asked for by


def get(name: str) -> Op:
    """The record of a built-in op, or of `file.py:name`, an `Op` in the user's own file. Raises `Error`."""
    if not isinstance(name, str):
        raise Error(f"an op's name is {name!r}; it takes one of {', '.join(NAMES)}, or path/to/file.py:name")
    path, sep, attr = name.rpartition(":")
    if sep:
        found = _from_file(Path(path), attr)
        _names[id(found)] = found, f"{Path(path).resolve()}:{attr}"
        return found
    if name not in NAMES:
        raise Error(suggest("op", name, NAMES) + ", or path/to/file.py:name")
    return importlib.import_module(f"{__package__}.{name}").OP


def find(name: str) -> tuple:
    """(the record of an op, None, None), or of `file.py:name` that is a plain function (the function, its file, its module). Raises `Error`."""
    path, sep, attr = name.rpartition(":")
    found = load(Path(path), attr) if sep else None
    if found is None:
        return get(name), None, None
    if isinstance(found, Op):
        _names[id(found)] = found, f"{Path(path).resolve()}:{attr}"
        return found, None, None
    if isinstance(found, KernelInterface):
        raise Error(f"{name} is a kernel; export a function that allocates its result and launches it, or an Op")
    if not inspect.isfunction(found):
        raise Error(f"{name} is {type(found).__name__}; export takes an Op, or a function that launches Triton kernels")
    return found, Path(path).resolve(), sys.modules[Path(path).stem]


def name_of(op: Op) -> str | None:
    """What `get` finds a record by, in any process; None for one that it does not know."""
    if id(op) in _names:
        return _names[id(op)][1]
    return op.name if op.name in NAMES and get(op.name) is op else None


def load(path: Path, attr: str):
    """What `attr` is in a Python file of the user's. Raises `Error`."""
    if not path.is_file():
        raise Error(f"{path}:{attr}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise Error(f"{path}:{attr}: {path} is no Python file; its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Triton looks a kernel's module up by name
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # where `python file.py` finds what the file imports
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        raise Error(f"{path}:{attr}: importing {path} failed: {type(e).__name__}: {e}") from e
    if not hasattr(module, attr):
        known = [k for k, v in vars(module).items() if not k.startswith("_") and (
            isinstance(v, (Op, KernelInterface)) or inspect.isfunction(v) and v.__module__ == path.stem)]
        raise Error(f"{path}:{attr}: there is no {attr!r} in it; it has {', '.join(known) or 'neither ops nor kernels nor functions'}")
    return getattr(module, attr)


def _from_file(path: Path, attr: str) -> Op:
    found = load(path, attr)
    if not isinstance(found, Op):
        raise Error(f"{path}:{attr}: {attr!r} is not a triport.ops.Op there but {type(found).__name__}")
    return found
