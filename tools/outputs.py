"""The files that a command's figures go to: `--json`, `--csv` and `--markdown FILE`, any of them together; `-` is stdout.

Who asks for figures on stdout gets nothing else there: what the command would print goes to stderr then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Callable, Iterable, Iterator

#: option -> what it writes
KINDS = {"json": "JSON", "csv": "CSV", "markdown": "a table in GitHub's Markdown"}


def add(parser):
    """The options, of a command whose figures are rows."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, row by row (docs/results.md); - is stdout")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line of CSV for each row there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as GitHub's Markdown there")


def wanted(args, reads: Iterable = ()) -> dict[str, Path]:
    """Option -> file, of those that were given. Raises `Error` for what cannot be written. reads: as of `file`."""
    from ..backends.base import Error
    found = {kind: path for kind in KINDS if (path := getattr(args, kind, None)) is not None}
    seen: dict[str, str] = {}
    for kind, path in found.items():
        where = "-" if str(path) == "-" else str(path.resolve())
        if where in seen:
            raise Error(f"--{seen[where]} and --{kind} both go to {path}; give each a file of its own")
        seen[where] = kind
        if where != "-":
            file(f"--{kind}", path, reads)
    return found


def file(option: str, path: Path, reads: Iterable = ()):
    """Raise `Error` where what an option names is no file that can be, or one of those that the command `reads`, also FILE:FUNCTION."""
    from ..backends.base import Error
    if str(path) == "-":
        raise Error(f"{option} -: it takes a file, and prints nothing; for one of that name say {path.resolve()}")
    read = [name for text in filter(None, map(str, filter(None, reads))) for name in (text, text.rpartition(":")[0])]
    if path.exists() and any(os.path.exists(name) and os.path.samefile(name, path) for name in read):
        raise Error(f"{option} {path}: it is what the command reads; name another file")
    if path.is_dir():
        raise Error(f"{option} {path}: it is a folder; name a file")
    if not path.resolve().parent.is_dir():
        raise Error(f"{option} {path}: there is no folder {path.resolve().parent}")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise Error(f"{option} {path}: it cannot be written here; name a file in a folder of yours")


@contextlib.contextmanager
def kept(paths: dict[str, Path]) -> Iterator[Callable]:
    """Within it, what is printed leaves stdout to the figures, where they go there. It gives `write(made)`: made: option -> a function that makes its
    text; called with it, what goes to stdout is printed, and files are written."""
    from ..bench.whole import write
    stdout = sys.stdout

    def put(made: dict[str, Callable[[], str]]):
        for kind, path in paths.items():
            if kind not in made:
                continue
            if str(path) == "-":
                print(made[kind]().rstrip("\n"), file=stdout)
            else:
                write(path, made[kind]())

    with contextlib.redirect_stdout(sys.stderr) if any(str(p) == "-" for p in paths.values()) else contextlib.nullcontext():
        yield put


@contextlib.contextmanager
def opened(args) -> Iterator:
    """The `bench.results.Results` of a run, which writes its files after each row; stdout gets its part at the end, of an interrupted run, too."""
    from ..bench import flat, report, results
    makers = {"json": results.text, "csv": flat.as_csv, "markdown": report.markdown}
    paths = wanted(args, getattr(args, "op", None) or ())
    files = {kind: path for kind, path in paths.items() if str(path) != "-"}
    with kept({k: p for k, p in paths.items() if k not in files}) as put:
        made = results.Results(files.get("json"), {path: makers[kind] for kind, path in files.items() if kind != "json"})
        yield made
        put({kind: lambda make=make: make(made.data()) for kind, make in makers.items() if made.rows})
