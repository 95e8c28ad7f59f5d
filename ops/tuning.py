"""Tile sizes by measurement: for each kind of CPU, and each compute capability of a GPU, what `triport tune` found fastest, in
tuned.json beside this file, or in the file that TRIPORT_TUNED names.

An op states its tiles as `Tiles`: a default for each device, and the candidates that a search tries. What the table has for
this machine's kind comes before the default.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..backends.base import CompileError, Error, contents
from ..backends.context import call
from ..backends.cpu.llvm import targets
from ..backends.dispatch import replay
from .sizes import cdiv, known, planned

FILE = Path(__file__).with_name("tuned.json")


@dataclass(frozen=True)
class Tiles:
    """An op's tiles: `cpu` and `cuda` are the defaults, of one shape; `candidates` and `cuda_candidates`: what a search tries instead."""

    op: str
    cpu: object
    cuda: object
    candidates: tuple = ()
    cuda_candidates: tuple = ()

    def get(self, device_type: str):
        """The tiles for a device; other devices than the CPU take the GPU's. "meta" stands for what is only traced."""
        if call.trial and self.op in call.trial:
            return call.trial[self.op]
        if device_type not in ("cpu", "meta"):
            return self._like(tuned_gpu().get(self.op, self.cuda), self.cuda)
        return self._like((tuned() if call.tiles is None else call.tiles).get(self.op, self.cpu), self.cpu)

    def _like(self, found, default):
        """What a table has, if it has what the default has. Raises `Error`."""
        if found is default:
            return found
        if isinstance(default, dict):
            if isinstance(found, dict) and default.keys() <= found.keys():
                return found
            if isinstance(found, dict) and all(isinstance(x, tuple) and isinstance(x[0], tuple) for x in default.values()) and default.keys() & found.keys():
                return {**default, **found}  # speeds of tiles by dtype: of those that were not measured the default's
            wanted = f"an object with {', '.join(default)}"
        elif isinstance(default, tuple):
            if isinstance(found, list) and len(found) == len(default):
                return found
            wanted = f"a list of {len(default)}"
        else:
            return found
        raise Error(f"{path()}: its tiles of {self.op} are {json.dumps(found)[:80]}, not {wanted}; `triport tune --op {self.op}` writes them, and where a table has none ops go by "
                    "their defaults")


def blocks(smallest: int, largest: int) -> tuple:
    """Candidates {"BLOCK": n}, powers of two."""
    return tuple({"BLOCK": 1 << n} for n in range(smallest.bit_length() - 1, largest.bit_length()))


def gpu_blocks() -> tuple:
    """Candidates for a GPU: elements of a program and its warps."""
    return tuple({"BLOCK": n, "num_warps": w} for n in (1024, 2048, 4096, 8192) for w in (4, 8))


def gpu_kind() -> str:
    """What the table calls this machine's GPU: its compute capability, as sm_90."""
    import torch
    return "sm_%d%d" % torch.cuda.get_device_capability()


@functools.lru_cache(maxsize=1)
def tuned_gpu() -> dict:
    """Op -> tiles, for this machine's GPU; nothing where there is none, or none like it was measured."""
    import torch
    if not torch.cuda.is_available():
        return {}
    return load().get(gpu_kind(), {"tiles": {}})["tiles"]


def kind(row) -> str:
    """What the table calls a CPU with this row of targets.py: its vector ISA, and what multiplies bf16; of RISC-V's the row's name."""
    if row.length != "fixed":
        return f"{row.isa}/{row.name}"
    return "/".join([row.isa, *[p.name for p in row.products if p.takes == "bf16"][:1]])


@functools.lru_cache(maxsize=1)
def tuned() -> dict:
    """Op -> tiles, for this machine's kind of CPU."""
    try:
        return tuned_for(targets.native())
    except CompileError:
        return {}


def tuned_for(row) -> dict:
    """Op -> tiles, for a row's kind of CPU; that of its vector ISA alone where the very kind was never measured (but RISC-V's rows
    have little in common)."""
    table = load()
    alike = next((v for k, v in sorted(table.items()) if k.partition("/")[0] == row.isa), None) if row.length == "fixed" else None
    found = table.get(kind(row)) or alike
    return found["tiles"] if found else {}


@contextlib.contextmanager
def on(row):
    """Within it this thread's ops choose the tiles that they would have on a CPU of another row (of targets.py)."""
    before = call.tiles, call.row
    call.tiles, call.row = tuned_for(row), row
    try:
        yield
    finally:
        call.tiles, call.row = before


def workers() -> int:
    """Threads that an op's programs are shared out among: the cores of the board that code is made for, where they are known; else this process's."""
    import torch
    return call.row.cores if call.row is not None and call.row.cores else torch.get_num_threads()


@functools.cache
def second_cache() -> int:
    """Bytes of a core's second cache, as Linux says; 1 MiB where it does not."""
    try:
        found = re.fullmatch(r"(\d+)([KM])", Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip())
    except OSError:
        found = None
    return int(found[1]) << {"K": 10, "M": 20}[found[2]] if found else 1 << 20


#: elements of the smallest program that an element-wise op is cut into for the sake of idle cores
SMALLEST = 1024


def tile(tiles: Tiles, x) -> dict:
    """An element-wise op's {"BLOCK": elements of a program, ...} for the tensor x: smaller than the table says where cores of the board that code is made
    for would have no program."""
    found = tiles.get(x.device.type)
    sizes = planned(*x.shape)
    if sizes is None or call.row is None or not call.row.cores or tries(tiles.op):
        return found
    block = found["BLOCK"]
    while block > SMALLEST and cdiv(math.prod(sizes), block) < call.row.cores:
        block //= 2
    return {**found, "BLOCK": block}


def path() -> Path:
    """The file of the table: TRIPORT_TUNED, or tuned.json beside this file."""
    return Path(os.environ.get("TRIPORT_TUNED") or FILE)


def load(file: Path | None = None) -> dict:
    """The table: kind of CPU or GPU -> {"tiles": {op: tiles}, "runs": [{"searched": ops, "machine", "threads", "date", "command", "versions"}]},
    each op in the run that searched it last, and a GPU's "choices" (choices.py). Empty where there is none. Raises `Error` for a file that is none."""
    file = file or path()
    def no_table(why: str) -> Error:
        return Error(f"{file}: it is no table of tiles{why}; `triport tune` writes one, and where there is none ops go by their defaults")

    try:
        table = json.loads(contents(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as e:
        raise no_table(f" ({getattr(e, 'strerror', None) or e})") from None
    if not isinstance(table, dict):
        raise no_table(f" but a {type(table).__name__}")
    for kind, entry in table.items():
        if not isinstance(entry, dict):
            raise no_table(f": {kind} has {json.dumps(entry)[:80]}")
        tiles, runs = entry.setdefault("tiles", {}), entry.setdefault("runs", [])  # there may be a GPU's choices alone
        if not isinstance(tiles, dict) or not isinstance(runs, list) or not all(isinstance(r, dict) and isinstance(r.get("searched"), list) for r in runs):
            raise no_table(f": {kind} has tiles that are no object, or runs that do not say what they searched")
        for op, sizes in tiles.items():
            if not _are_sizes(sizes):
                raise no_table(f": {kind} has tiles of {op} that are no positive numbers: {json.dumps(sizes)[:80]}")
    return table


def _are_sizes(x) -> bool:
    """Are these positive numbers, or lists and dicts of such that are not empty?"""
    if isinstance(x, (list, dict)):
        return bool(x) and all(map(_are_sizes, x.values() if isinstance(x, dict) else x))
    return isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x < math.inf


def writable(path: Path):
    """Raise `Error` where a table cannot be written, before anything is searched for it."""
    path = path.resolve()
    if path.is_dir():
        raise Error(f"{path}: it is a folder; name a file for the table")
    if not path.parent.is_dir():
        raise Error(f"{path}: there is no folder {path.parent} for the table")
    if not os.access(path.parent, os.W_OK):
        raise Error(f"{path}: no table can be written in its folder")


@contextlib.contextmanager
def updating(path: Path):
    """The table of a file, which is written when the block ends; one process at a time, for a search of several boards has one for each."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        table = load(path)
        yield table
        save(table, path)
    finally:
        os.close(folder)


def save(table: dict, path: Path = FILE):
    """Write a table beside its file, and rename it: whoever reads, or ends meanwhile, has a whole one."""
    text = json.dumps(table, indent=1, sort_keys=True)
    flat = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()).replace("[ ", "[").replace(" ]", "]"), text)  # a tile a line
    path = path.resolve()  # through a link to the file that it names
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(flat + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def tries(table: str) -> bool:
    """Does this thread try tiles of this table now?"""
    return table in (call.trial or ())


def plainly_here(x, table: str, *sizes) -> bool:
    """Is a call on this machine's CPU to choose freely how it is computed? Not for a board's code, whose classes of sizes are few, nor while sizes are open or tiles
    of this table are tried. x: one of its tensors."""
    return x.device.type == "cpu" and call.row is None and known(*sizes) and not tries(table)


@contextlib.contextmanager
def trying(table: str, tiles, op: str, plans: dict):
    """Within it `op`, whose table has the name `table`, uses `tiles` in this thread; `plans` keeps what its calls launched."""
    before, call.trial = call.trial, {**(call.trial or {}), table: tiles}
    try:
        with replay.plans(op, plans):
            yield
    finally:
        call.trial = before
