"""What a board is: a small bundle asks Linux there, and times a copy."""

from __future__ import annotations

import functools
import re
import statistics

import torch
import triton
import triton.language as tl

from ...ops.records import Case, Op
from ..base import Error
from ..cpu.llvm import targets
from .board import Board
from .bundle import Bundle, make
from .library import BASE


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 16384),)](x, out, x.numel(), BLOCK=16384)
    return out


OP = Op("copy", copy, torch.clone, (Case(((1 << 22,),)),), nbytes=lambda x: 2 * x.numel() * x.element_size())


@functools.lru_cache(maxsize=None)
def bundle(arch: str, row: targets.Target | None = None) -> Bundle:
    """The bundle that asks: for the plainest CPU of an ISA, or for a row. On RISC-V it has to know of vector registers to tell their length."""
    if row is None:
        row = targets.get("rv64gcv" if arch == "riscv64" else BASE.get(arch) or _unknown(arch))
    return make([(OP, OP.cases[0], "fp32")], row, name="probe", cases=False)


def _unknown(arch: str):
    raise Error(f"there is no row of the compiler for {arch}; boards are {', '.join(BASE)}")


def read(name: str, arch: str, data: bytes) -> Board:
    """The `Board` that the program's `--board` describes. Raises `Error` for anything else."""
    facts: dict[str, str] = {}
    files: dict[str, str] = {}
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        line = data[at:end if end >= 0 else len(data)].decode(errors="replace")
        at = end + 1 if end >= 0 else len(data)
        if hit := re.fullmatch(r"file (\S+) (\d+)", line):
            files[hit[1]] = data[at:at + int(hit[2])].decode(errors="replace")
            at += int(hit[2])
        elif hit := re.fullmatch(r"(target|vlen|cpus|hwcap|fits) (\S+)", line):
            facts[hit[1]] = hit[2]
        else:
            raise Error(f"{name} did not describe itself but wrote {line[:80]!r}")
    if not {"vlen", "cpus"} <= set(facts) or not all(facts[k].isdigit() for k in ("vlen", "cpus")):
        raise Error(f"{name} did not describe itself; it wrote {data[:80]!r}")
    info = files.get("/proc/cpuinfo", "")

    def first(*keys: str) -> str:
        for key in keys:
            if hit := re.search(rf"^{key}\s*:\s*(.+)$", info, re.M):
                return hit[1].strip()
        return ""

    shared = {v.strip() for k, v in files.items() if k.endswith("index2/shared_cpu_list") and v.strip()}
    memory = re.search(r"MemTotal:\s*(\d+) kB", files.get("/proc/meminfo", ""))
    model = files.get("/proc/device-tree/model", "").strip("\0 \n")
    cpu = first("uarch", "model name", "CPU part") or arch
    return Board(name, arch, f"{model}, {cpu}" if model and arch != "riscv64" else cpu, first("isa", "flags", "Features"),
                 int(facts["vlen"]), int(facts["cpus"]), sorted(shared, key=lambda s: int(re.match(r"\d+", s)[0])), int(memory[1]) * 1024 if memory else 0)


def bandwidth(runner) -> float:
    """Bytes a second, read and written, of a copy of 16 MiB there (fp32, median of 5; on an emulated board: of the emulation)."""
    b = bundle(runner.arch(), runner.board.row())
    x = torch.arange(OP.cases[0].shapes[0][0], dtype=torch.float32)
    (out,), answer = runner.call(b, b.manifest["functions"][0]["name"], [x], warmup=1, repetitions=5)
    if not torch.equal(out, x):
        raise Error(f"{runner.name} copied wrongly")
    return OP.nbytes(x) / statistics.median(answer.wall)
