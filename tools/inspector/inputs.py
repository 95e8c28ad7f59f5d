"""What `triport asm` is asked to look at -> its codes: an op, a kernel or an op of a user's file, CUDA C++, a folder of Triton's cache, any other file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ...backends.base import Error, suggest
from . import targets
from .code import Code
from .targets import Goal

#: option -> what it belongs to; `given` has its value where the user said it
_BELONGS = {"case": ("op",), "dtype": ("op",), "backend": ("op",), "arg": ("kernel",), "const": ("kernel",), "option": ("kernel",), "config": ("op", "kernel")}
#: kind of WHAT -> how to call it
_KINDS = {"op": "an op", "kernel": "a kernel (file.py:kernel)", "cuda": "CUDA C++", "cache": "a folder of Triton's cache", "file": "a file of code"}
#: kind of WHAT -> what to do instead of an option that is another's
_INSTEAD = {"kernel": "for a kernel say --arg and --const", "op": "for an op choose --case and --dtype"}


class Inputs:
    """The codes of whatever is named; a user's Python file is run once. args: the command's options; strict: refuse those that belong to another kind."""

    def __init__(self, args, strict: bool = True):
        self.args, self.strict = args, strict
        self.run: dict[tuple[Path, str], object] = {}

    def other(self, args) -> Inputs:
        """For what is compared with: options may be for either side, and what has been run is not run again."""
        made = Inputs(args, strict=False)
        made.run = self.run
        return made

    def codes(self, what: str, goal: Goal | None) -> list[Code]:
        """The codes of `what` for a target (None: its own, else the default). Raises `Error`."""
        path, part = _split(what)
        if path is not None and path.is_dir():
            return self._folder(path, part, goal)
        if path is None and _like_a_path(what):
            raise Error(f"there is no file {what if ':' not in what else what.partition(':')[0]}")
        if path is None:
            return self._op(self._built_in(what), goal)
        if path.suffix in (".py", ".cu") and not part:
            raise Error(f"{what}: say which kernel: {what.rstrip(':')}:NAME")
        if path.suffix == ".py":
            return self._python(path, part, goal)
        if path.suffix == ".cu":
            from . import code
            self._refuse("cuda", what)
            return [code.of_cuda(path, part, goal or targets.get("sm_90"))]
        from . import files
        self._refuse("file", what)
        found = files.of_path(path, part, goal, self.args.vlen)
        for c in found:
            if c.backend == "file" or c.backend == "llvm":
                c.matching = self.args.kernel or ""
        return found

    def _refuse(self, kind: str, what: str):
        """Raise `Error` for options that are another kind's: they would change nothing, and the user thinks they do."""
        wrong = [name for name, kinds in _BELONGS.items() if getattr(self.args, name) not in (None, []) and kind not in kinds]
        if wrong and self.strict:
            together = [name for name, kinds in _BELONGS.items() if kinds == _BELONGS[wrong[0]]]
            kinds = " or ".join(_KINDS[k] for k in _BELONGS[wrong[0]])
            raise Error(f"{' and '.join('--' + name for name in together)} belong{'s' if len(together) == 1 else ''} to {kinds}; {what} is {_KINDS[kind]}"
                        + (f": {_INSTEAD[kind]}" if kind in _INSTEAD else ", which is taken as it is: leave them out"))

    def _folder(self, path: Path, part: str, goal: Goal | None) -> list[Code]:
        from . import cachefolder
        self._refuse("cache", str(path))
        return cachefolder.codes(path, part, goal, self.args.kernel or "")

    # --- ops and kernels -----------------------------------------------------------------------------------------

    def _built_in(self, what: str):
        from ...ops import registry
        return registry.get(what)

    def _python(self, path: Path, name: str, goal: Goal | None) -> list[Code]:
        from ...ops.records import Op
        from . import cached, launches
        if not (self.args.arg or self.args.const or self.args.option or self.args.config) and (found := cached.last(path, name, goal)):
            self._refuse("kernel", f"{path}:{name}")
            return [found]
        thing = self._loaded(path, name)
        if isinstance(thing, Op):
            return self._op(thing, goal)
        if not launches.is_kernel(thing):
            raise Error(f"{path}:{name}: {name!r} is neither a kernel (@triton.jit) nor a triport.ops.Op there but {type(thing).__name__}")
        self._refuse("kernel", f"{path}:{name}")
        from . import code
        options = {k: launches.constant(v) for k, v in pairs(self.args.option, "--option").items()}
        if wrong := next((k for k in ("num_warps", "num_stages", "num_ctas", "maxnreg") if type(options.get(k, 1)) is not int), None):
            raise Error(f"--option {wrong}={options[wrong]}: it takes a whole number")
        launch = launches.of_kernel(thing, pairs(self.args.arg, "--arg"), pairs(self.args.const, "--const"), options, self.args.config or 0)
        self._tuned(name, [launch])
        return [code.of_launch(launch, goal or targets.get("native", self.args.vlen))]

    def _loaded(self, path: Path, name: str):
        from ...ops import registry
        key = path.resolve(), name
        if key not in self.run:
            module = sys.modules.get(path.stem) if any(p == key[0] for p, _ in self.run) else None
            self.run[key] = getattr(module, name) if module is not None and hasattr(module, name) else registry.load(path, name)
        return self.run[key]

    def check(self, what: str):
        """Raise `Error` where options choose no case or dtype of the op `what`. Nothing is compiled, and no target is needed."""
        from ...ops.records import Op
        path, part = _split(what)
        if path is None and not _like_a_path(what):
            self._chosen(self._built_in(what))
        elif path is not None and path.suffix == ".py" and part and isinstance(thing := self._loaded(path, part), Op):
            self._chosen(thing)

    def _chosen(self, op) -> tuple:
        """(case, dtype) of an op that the options choose."""
        from ...ops import cases
        from ...ops.records import DTYPES
        self._refuse("op", op.name)
        dtype = self.args.dtype or op.dtypes[0]
        if dtype not in DTYPES:
            raise Error(f"{suggest('dtype', dtype, DTYPES)}; {op.name} takes {', '.join(op.dtypes)}")
        if dtype not in op.dtypes:
            raise Error(f"--dtype {dtype}: {op.name} takes {', '.join(op.dtypes)}")
        return cases.one(op, self.args.case), dtype

    def _op(self, op, goal: Goal | None) -> list[Code]:
        from . import code, launches
        case, dtype = self._chosen(op)
        goal = goal or targets.get("native", self.args.vlen)
        if self.args.backend == "torch-compile":
            from . import inductor
            return inductor.cpp(op, case, dtype) if goal.name == "native" else inductor.triton_kernels(op, case, dtype, goal)
        found = launches.of_op(op, case, dtype, "cuda" if goal.gpu else "cpu", self.args.config or 0, goal.row)
        self._tuned(op.name, found)
        return [code.of_launch(launch, goal) for launch in found]

    def _tuned(self, what: str, launches):
        """Raise `Error` for a configuration where no kernel has several."""
        if self.strict and self.args.config is not None and not any(launch.config for launch in launches):
            raise Error(f"--config {self.args.config}: {what} is not autotuned (@triton.autotune), it has one configuration: leave --config out")


def _split(what: str) -> tuple[Path | None, str]:
    """(the longest beginning of `what` that is a file or folder, what stands behind its colon); (None, "") where none is."""
    parts = what.split(":")
    for k in range(len(parts), 0, -1):
        path = Path(":".join(parts[:k])).expanduser()
        if path.exists() and (path.is_file() or k < len(parts) or "/" in what or what == "." or _no_op(what)):
            return path, ":".join(parts[k:])
    return None, ""


def _no_op(what: str) -> bool:
    """Is a folder's bare name none of an op's?"""
    from ...ops import registry
    return what not in registry.NAMES


def _like_a_path(what: str) -> bool:
    head = what.partition(":")[0]
    return "/" in what or ":" in what or bool(re.search(r"\.\w{1,8}$", head)) and not head.replace(".", "").isdigit()


def pairs(texts, flag: str) -> dict[str, str]:
    """{NAME: VALUE} of texts like NAME=VALUE. Raises `Error`."""
    out: dict[str, str] = {}
    for text in texts:
        name, sep, value = text.partition("=")
        if not sep or not name.isidentifier() or not value:
            raise Error(f"{flag} {text}: it takes NAME=VALUE")
        if name in out:
            raise Error(f"{flag} {name} is given twice: {out[name]} and {value}")
        out[name] = value
    return out
