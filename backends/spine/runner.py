"""Where a bundle runs: an emulated board, a board over ssh, or this machine.

`qemu:riscv64?vlen=256` (also qemu:aarch64), `ssh:user@board:22`, `local`. A runner starts the bundle's program, gives it a request
and takes its answer; whatever else comes back, or does not come back in time, is an `Error`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from ...ops.accuracy import error
from ...ops.case import KEPT
from ..base import Error, Unavailable, suggest
from ..cpu.llvm import targets
from . import kept, probe, process, request
from .arguments import inputs_of, outputs_of
from .board import Board
from .bundle import Bundle
from .library import STATUS, WRONG_MACHINE
from .link import LOADERS
from .remote import ASK, Shell

#: the K1's extensions on QEMU's bare profile; the last two fill lanes that an instruction leaves open with ones, as hardware may
_RISCV = "rva22s64,v=true,vlen={vlen},zicond=true,zfh={half},zvfh={half},zbc=true,rvv_ta_all_1s=true,rvv_ma_all_1s=true"
_SCALAR = "rv64,v=false"
#: ISA -> (oldest QEMU whose emulation has what our code uses, its package's library of libc)
_EMULATED = {"riscv64": (10, "libc6-riscv64-cross"), "aarch64": (7, "libc6-arm64-cross")}


class Runner:
    """A machine to run bundles on. name: as the user typed it."""

    name: str

    def arch(self) -> str:
        raise NotImplementedError

    def command(self, bundle: Bundle, arguments: list[str]) -> list[str]:
        """The argument vector that starts the bundle's program with arguments."""
        raise NotImplementedError

    def execute(self, bundle: Bundle, arguments: list[str], data: bytes = b"", limit: float | None = None) -> bytes:
        """What the program writes, given `data`. Raises `Error` where it dies or takes longer than `limit` seconds."""
        what, allowed = f"{bundle.name} on {self.name}", process.limit()
        return process.output(process.run(self.command(bundle, arguments), data, limit or allowed, what), what)

    def call(self, bundle: Bundle, function: str, tensors: list, threads: int = 0, warmup: int = 0, repetitions: int = 0,
             limit: float | None = None) -> tuple[list, request.Answer]:
        """(the tensors that a function of the bundle writes, the program's answer). `tensors`, and numbers where the function takes some, are sent as copies, so they
        may share memory, and none is changed here. Raises `Error` for a status other than 0."""
        number, description = bundle.function(function)
        given, numbers = inputs_of(description, tensors)
        data = request.encode((number, description), given, numbers, threads, warmup, repetitions)
        lengths = [t.nbytes for role, t in given if role != "in"]
        try:
            answer = request.decode(self.execute(bundle, [], data, limit), lengths, repetitions)
        except Error as e:
            raise Error(f"{function} on {self.name}: {e}") from None
        if answer.status:
            about = ""
            if answer.status == WRONG_MACHINE:
                registers = f"vector registers there: {answer.vlen} bits; " if bundle.manifest["target"]["triple"].startswith("riscv") else ""
                about = f" ({registers}the code is for {bundle.manifest['target']['name']})"
            raise Error(f"{function} on {self.name} returned {_status(answer)}{about}")
        return list(outputs_of(description, given, tensors, answer.outputs).values()), answer

    def case(self, bundle: Bundle, path: str, threads: int = 0) -> tuple[float, float, request.Answer]:
        """(error, error that counts as right, answer) of one of the bundle's case files. threads: 0 for as many as the file says."""
        data = bundle.files[path]
        asked = request.parse(data, path)
        data = request.with_threads(data, threads) if threads else data
        answer = request.decode(self.execute(bundle, [], data), asked.lengths, asked.repetitions)
        if answer.status:
            raise Error(f"{path} on {self.name} returned {_status(answer)}")
        errors = [(error(request.tensor(answer.outputs[n], KEPT[dtype]), want), allowed) for n, dtype, want, allowed in asked.wants]
        worst = max(errors, key=lambda e: (not e[0] <= e[1], e[0] / e[1] if e[1] else e[0]), default=(0.0, 0.0))
        return *worst, answer

    @functools.cached_property
    def board(self) -> Board:
        """What the machine is."""
        bundle = probe.bundle(self.arch())
        return probe.read(self.name, self.arch(), self.execute(bundle, ["--board"], limit=ASK))


def _status(answer: request.Answer) -> str:
    name, text = next(((n, t) for v, n, t in STATUS if v == answer.status), ("an unknown status", "?"))
    return f"{name} ({answer.status}): {answer.said or text}"


@functools.lru_cache(maxsize=64)
def _unpacked(digest: str, bundle: "_Hashed") -> Path:
    """A folder with the bundle, for as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="triport-bundle-")
    _folders.append(folder)
    bundle.value.write(Path(folder.name))
    return Path(folder.name)


_folders: list = []


@dataclass(frozen=True)
class _Hashed:
    """A bundle that takes no part in a cache's key; its digest does."""

    value: Bundle

    def __eq__(self, other):
        return isinstance(other, _Hashed)

    def __hash__(self):
        return 0


def _admission(bundle: Bundle) -> str:
    """What a shell does before it becomes the bundle's program, for cores that take no process unasked: a line of sh's, or "". The file is that of our own
    row, whatever a manifest says."""
    row = targets.TARGETS.get(bundle.manifest["target"]["name"].partition(":")[0])
    file = shlex.quote(row.admits) if row and row.admits else ""
    return f"if [ -e {file} ]; then echo $$ > {file} || exit; fi; " if file else ""


def program_of(bundle: Bundle) -> str:
    return str(_unpacked(bundle.digest, _Hashed(bundle)) / bundle.manifest["program"])


class Local(Runner):
    """This machine."""

    name = "local"

    def arch(self) -> str:
        return platform.machine()

    def command(self, bundle: Bundle, arguments: list[str]) -> list[str]:
        own = [program_of(bundle), *arguments]
        return ["sh", "-c", f'{before}exec "$0" "$@"', *own] if (before := _admission(bundle)) else own


class Qemu(Runner):
    """An emulated board: qemu-user."""

    def __init__(self, name: str, arch: str, vlen: int, half: bool = True):
        self.name, self._arch, self.vlen = name, arch, vlen
        self.program = emulator(arch)
        self.root = _root(arch)
        self.cpu = "" if arch != "riscv64" else _RISCV.format(vlen=vlen, half=str(half).lower()) if vlen else _SCALAR

    def arch(self) -> str:
        return self._arch

    def command(self, bundle: Bundle, arguments: list[str]) -> list[str]:
        return [self.program, *(["-cpu", self.cpu] if self.cpu else []), "-L", self.root, program_of(bundle), *arguments]


@functools.lru_cache(maxsize=None)
def emulator(arch: str) -> str:
    """The emulator's path. TRIPORT_QEMU is the folder of another."""
    folder = os.environ.get("TRIPORT_QEMU")
    program = shutil.which(f"qemu-{arch}", path=folder) or shutil.which(f"qemu-{arch}-static", path=folder)
    oldest = _EMULATED[arch][0]
    how = (f"qemu-user {oldest} or newer (Debian 12: apt-get install -t bookworm-backports qemu-user; Debian 13, Ubuntu 25.04: apt-get install qemu-user; "
           "or TRIPORT_QEMU=FOLDER)")
    if program is None:
        raise Unavailable(f"qemu-{arch} was not found; it comes with {how}")
    text = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace").stdout
    version = re.search(r"version (\d+)", text)
    if not version or int(version[1]) < oldest:
        raise Unavailable(f"{program} is {text.splitlines()[0] if text else 'silent about its version'}: it lacks instructions of these boards, and code for them dies "
                          f"or goes wrong in it. It takes {how}")
    return program


@functools.lru_cache(maxsize=None)
def _root(arch: str) -> str:
    """The folder below which an emulated program finds its C library. TRIPORT_SYSROOT names another."""
    for folder in (os.environ.get("TRIPORT_SYSROOT"), f"/usr/{arch}-linux-gnu", "/"):
        if folder and Path(folder + LOADERS[arch]).exists():
            return folder
    raise Unavailable(f"no C library for {arch} was found: apt-get install {_EMULATED[arch][1]}, or TRIPORT_SYSROOT=FOLDER that has {LOADERS[arch]}")


class Ssh(Runner):
    """A board over ssh (`remote.py`). A bundle is copied there once, to ~/.cache/triport."""

    def __init__(self, name: str):
        self.name, self.shell = name, Shell(name)
        self._there: set[str] = set()

    @functools.lru_cache(maxsize=None)
    def arch(self) -> str:
        text = self.shell.run("uname -m").decode(errors="replace").strip()
        if text not in ("riscv64", "aarch64", "x86_64"):
            raise Error(f"{self.name} says it is {text[:40]!r}; boards are riscv64, aarch64 and x86_64")
        return text

    def execute(self, bundle: Bundle, arguments: list[str], data: bytes = b"", limit: float | None = None) -> bytes:
        allowed = process.limit()
        return self.shell.run(self._script(bundle, arguments), data, limit or allowed, f"{bundle.name} on {self.name}")

    def command(self, bundle: Bundle, arguments: list[str]) -> list[str]:
        return self.shell.command(self._script(bundle, arguments))

    def _script(self, bundle: Bundle, arguments: list[str]) -> str:
        """The line of sh's that runs the program there, after it was copied there."""
        return f"{_admission(bundle)}exec {self._copied(bundle)}/{shlex.join([bundle.manifest['program'], *arguments])}"

    def _copied(self, bundle: Bundle) -> str:
        """The folder there that has the program, as sh's word."""
        folder = f'{kept.FOLDER}/{shlex.quote(bundle.digest)}'
        if bundle.digest in self._there:
            return folder
        name = bundle.manifest["program"]
        sums = shlex.quote(f"{bundle.manifest['files'][name]}  {name}")
        check = f"cd {folder} 2>/dev/null && printf '%s\\n' {sums} | sha256sum -c - >/dev/null 2>&1 && echo whole || echo absent"
        if self.shell.run(check).strip() != b"whole":
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as tar:
                info = tarfile.TarInfo(name)
                data = bundle.files[name]
                info.size, info.mode = len(data), 0o755
                tar.addfile(info, io.BytesIO(data))
            self.shell.run(f"mkdir -p {folder} && cd {folder} && tar -xf - && chmod 755 ./{shlex.quote(name)}", packed.getvalue())
            if self.shell.run(check).strip() != b"whole":
                raise Error(f"{self.name}: the bundle did not arrive whole in ~/.cache/triport (is there room, and sha256sum?)")
        self._there.add(bundle.digest)
        return folder

    def kept(self) -> tuple[list[kept.Kept], int]:
        """(the bundles that are there, how many other entries their folder has)."""
        return kept.listed(self.shell)

    def clean(self) -> tuple[list[kept.Kept], int]:
        """Remove them. Returns what was there."""
        self._there.clear()
        return kept.clean(self.shell)


def names(text: str) -> list[str]:
    """The runners of `--on TEXT`, which may name several, with commas between them. Raises `Error` for one that is none; whether it is there is not
    looked at."""
    found = text.split(",")
    if "" in found:
        raise Error(f"--on {text}: there is nothing before, behind or between commas")
    for name in found:
        if found.count(name) > 1:
            raise Error(f"--on {text}: {name!r} is named twice")
        with contextlib.suppress(Unavailable):
            get(name)
    return found


@functools.lru_cache(maxsize=None)
def get(text: str) -> Runner:
    """The runner of `--on TEXT`. Raises `Error` for what is none, `Unavailable` with what to install."""
    kind, _, rest = text.partition(":")
    if "," in text:
        raise Error(f"{text} names several boards; one is taken here (--on of bench, devices and tune takes several)")
    if text == "local":
        return Local()
    if kind == "qemu":
        return _emulated(text, rest)
    if kind == "ssh":
        return Ssh(text)
    raise Error(f"--on: {suggest('runner', kind, ('qemu', 'ssh', 'local'))}. It takes qemu:riscv64?vlen=256, ssh:user@board or local")


def _emulated(text: str, rest: str) -> Qemu:
    arch, _, query = rest.partition("?")
    if arch not in _EMULATED:
        raise Error(f"--on {text}: {suggest('emulated machine', arch, _EMULATED)}")
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    vlen = options.pop("vlen", "256" if arch == "riscv64" else "0")
    half = options.pop("zvfh", "true")
    if options:
        raise Error(f"--on {text}: {suggest('option', next(iter(options)), ['vlen', 'zvfh'])}")
    if half not in ("true", "false"):
        raise Error(f"--on {text}: zvfh is {half!r}; it takes true or false (a CPU without instructions for fp16)")
    if arch != "riscv64":
        if vlen != "0" or half != "true":
            raise Error(f"--on {text}: vlen is the length of RISC-V's vector registers, zvfh one of its extensions")
        return Qemu(text, arch, 0)
    if vlen not in ("0", "128", "256", "512", "1024"):
        raise Error(f"--on {text}: vlen is {vlen!r}; it takes 128, 256, 512 or 1024 bits, or 0 for a CPU without vector registers")
    return Qemu(text, arch, int(vlen), half == "true")


def chosen(text: str | None = None) -> Runner | None:
    """The runner that `--on` or else TRIPORT_SPINE names; this machine where it is a riscv64 one; else None."""
    text = text or os.environ.get("TRIPORT_SPINE")
    if text:
        return get(text)
    return get("local") if platform.machine() == "riscv64" else None
