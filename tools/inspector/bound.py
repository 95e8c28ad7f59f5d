"""The bound of a loop: the fewest cycles that a CPU's ports, its widths and the loop's own dependencies let one turn take, against its bytes and
FLOP.

`fill` asks llvm-mca (mca.py) once for all loops of a kind of CPU. What it is told is what the model says: caches that always hit, branches that are
always foreseen. A peak is that of the same model, for independent multiply-adds; a memory's bandwidth counts only where the caller gives it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ...backends.base import Error, nearest
from . import limits, mca
from .isa.operands import split
from .schema import Bound  # noqa: F401  (its name here is part of what others use)

#: names that people use -> LLVM's
ALIASES = {"goldencove": "sapphirerapids", "golden-cove": "sapphirerapids", "spr": "sapphirerapids", "icelake": "icelake-server",
           "skylake-server": "skylake-avx512", "zen1": "znver1", "zen2": "znver2", "zen3": "znver3", "zen4": "znver4", "zen5": "znver5",
           "x60": "spacemit-x60", "k1": "spacemit-x60", "n1": "neoverse-n1", "n2": "neoverse-n2", "v1": "neoverse-v1", "v2": "neoverse-v2",
           "graviton3": "neoverse-v1", "graviton4": "neoverse-v2", "grace": "neoverse-v2"}
_TRIPLES = {"x86-64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu", "riscv64": "riscv64-unknown-linux-gnu"}
_FEATURES = {"x86-64": "", "aarch64": "+all", "riscv64": "+m,+a,+f,+d,+c,+v,+zba,+zbb,+zbs,+zfh,+zvfh,+zicond"}
#: whose model stands for a file of an ISA whose target nobody said
_SOME = {"x86-64": "x86-64-v3", "aarch64": "neoverse-v2", "riscv64": "spacemit-x60"}
_OTHERS = {"x86-64": "znver5, goldencove, skylake", "aarch64": "neoverse-v2, neoverse-n2, cortex-a72", "riscv64": "spacemit-x60, sifive-x280"}
#: bits of the vectors that a model of a RISC-V CPU counts cycles of, whatever the code is for
_VECTORS = {"spacemit-x60": 256, "sifive-x280": 512, "sifive-x390": 1024}
#: CPUs that start two 512-bit multiply-adds a cycle (Intel's and AMD's optimization guides), whatever LLVM's model says
_TWO = ("sapphirerapids", "emeraldrapids", "graniterapids", "znver5")
#: loops of more instructions than this are not simulated
LONGEST = 3000


@dataclass
class _Machine:
    """What one run of llvm-mca is for: whose model; what of a code's assembler must be on."""

    isa: str
    cpu: str
    features: str
    borrowed: bool = False


@dataclass
class _Job:
    """A region on its way: its lines, the instructions that they are (None: a remark to llvm-mca), what was left out."""

    region: object
    lines: list[str]
    kept: list
    cut: list[str] = field(default_factory=list)


def _known(model: str) -> str:
    """LLVM's name of a CPU, of whatever ISA. Raises `Error` where it knows no such CPU, `mca.Missing`."""
    cpu, names = ALIASES.get(model.lower(), model), frozenset.union(*map(mca.cpus, _TRIPLES.values()))
    if names and cpu not in names and cpu != "native":
        raise Error(f"--model {model}: llvm-mca knows no such CPU{nearest(model, sorted({*names, *ALIASES}))} It takes LLVM's name of one, such as "
                    f"{', '.join(_OTHERS.values())} (llvm-mca -mcpu=help lists them), or {', '.join(ALIASES)}")
    return cpu


def machine(code, model: str | None = None) -> _Machine:
    """Whose ports a code is judged by. Raises `mca.Missing`, and `Error` for a model that there is not."""
    if code.isa not in _TRIPLES:
        raise mca.Missing(f"llvm-mca has no model that fits {code.isa} code")
    if model:
        return _Machine(code.isa, _known(model), _FEATURES[code.isa])
    from ...backends.cpu.llvm import targets
    import platform
    try:
        said = code.target not in ("native", code.isa) or code.backend != "file" and code.target != "native"
        row = targets.get(code.target) if said else None
    except Error:
        row = None
    if row is not None and row.triple.startswith(_TRIPLES[code.isa].partition("-")[0]):
        own = (row.features,) if row.features and code.isa != "aarch64" else (row.features, _FEATURES[code.isa])
        return _Machine(code.isa, row.cpu, ",".join(filter(None, own)))
    host = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}.get(platform.machine())
    if host == code.isa:
        return _Machine(code.isa, "native", _FEATURES[code.isa])
    return _Machine(code.isa, _SOME[code.isa], _FEATURES[code.isa], borrowed=True)


def _fits(report, m: _Machine):
    """Raises `mca.Missing` where code with vectors is judged for others than the model's, whose cycles are not theirs."""
    bits, own = report.code.vlen, _VECTORS.get(m.cpu)
    if own and bits != own and any(i.what.unit == "vector" and i.what.kind != "call" for r in report.regions if r.hot or r.tail for i in r.instructions):
        raise mca.Missing(f"llvm-mca's model of {m.cpu} is that of vectors of {own} bits, and this code is judged for {bits}; --target says what it is for, "
                          f"such as {'spacemit-x60' if m.cpu == 'spacemit-x60' else f'rv64gcv:vlen{own}'}")


def fill(reports, model: str | None = None, bandwidth: float | None = None):
    """Set `bound` of every hot loop and tail of CPU reports, and `bounds` of the reports: why there are none. model: LLVM's name of a CPU, instead of
    the target's; bandwidth: bytes a cycle from memory."""
    groups: dict[tuple, list] = {}
    for report in reports:
        if report.gpu:
            report.bounds = "no bound: llvm-mca has no models of GPUs"
            continue
        try:
            m = machine(report.code, model)
            _fits(report, m)
        except mca.Missing as e:
            report.bounds = f"no bound: {e}"
            continue
        groups.setdefault((m.isa, m.cpu, m.features), []).append((report, m))
    for (isa, cpu, features), members in groups.items():
        try:
            _group(members, isa, cpu, features, bandwidth)
        except mca.Missing as e:
            hint = f"; --model NAME takes another CPU's, such as {_OTHERS[isa]}" if "no model" in str(e) else ""
            for report, _ in members:
                report.bounds = f"no bound: {e}{hint}"


def _group(members, isa: str, cpu: str, features: str, bandwidth: float | None):
    jobs: dict[str, _Job] = {}
    for report, _ in members:
        for r in report.regions:
            if (r.hot or r.tail) and 0 < len(r.instructions) <= LONGEST:
                job = _job(r, isa)
                if job.kept:
                    jobs[f"L{len(jobs)}"] = job
            elif r.hot:
                report.bounds = f"{r.label} has {len(r.instructions)} instructions: loops of up to {LONGEST} are simulated"
    if not jobs:
        return
    pieces = {}
    for name, job in jobs.items():
        pieces |= {name: job.lines, f"{name}x2": job.lines * 2}
        if (plain := _plain(job, isa)):
            pieces[f"{name}:reg"] = plain
    answer = mca.run({**pieces, **_probes(isa)}, _TRIPLES[isa], cpu, features)
    for name, job in jobs.items():
        _refuse(job, answer.refused.get(name, []))
        if (one := answer.pieces.get(name)) and (two := answer.pieces.get(f"{name}x2")) and two.total > one.total:
            job.region.bound = limits.of(job.region, job.kept, tuple(job.cut), one, two, answer, isa, bandwidth, answer.pieces.get(f"{name}:reg"))
            job.region.figures.update({"cycles": round(job.region.bound.cycles, 3),
                                       "peak": None if job.region.bound.peak_share is None else round(job.region.bound.peak_share, 4)})
    ports = f", which has {answer.ports}'s ports" if answer.ports and not _same(answer.ports, answer.cpu) else ""
    if answer.cpu in _TWO and (probe := answer.pieces.get("fma:f32:512")) and probe.taken < probe.throughput * 1.5:
        ports += "; it starts one 512-bit multiply-add a cycle, the CPU itself two"
    for report, m in members:
        asked = "; no target was given: --target or --model says another" if m.borrowed else ""
        report.bounds = "; ".join(filter(None, (f"cycles by llvm-mca {answer.version}'s model of {answer.cpu}{ports}{asked}", report.bounds)))


def _same(ports: str, cpu: str) -> bool:
    """Is the model a CPU's own?"""
    plain = lambda text: re.sub(r"[\s-]|server|client|spacemit", "", text.lower()).replace("znver", "zen")  # noqa: E731
    return plain(ports) in plain(cpu) or (ports, cpu) in (("Golden Cove", "sapphirerapids"), ("Skylake server", "skylake-avx512"))


# --- what is given to llvm-mca -----------------------------------------------------------------------------------------


def _job(r, isa: str) -> _Job:
    job = _Job(r, [], [])
    if isa == "riscv64" and (state := _vtype_before(r)):
        job.lines += state
    for i in r.instructions:
        c = i.what
        if c.kind == "call":
            job.cut.append(f"the call of {c.target or 'an address'}")
        elif c.flow == "return" or i.mnemonic.startswith(("?", ".", "<")):
            continue
        else:
            operands = i.operands
            if c.flow in ("jump", "branch"):
                ops = split(operands)
                operands = ", ".join((*ops[:-1], ops[-1] if ops[-1].startswith("*") else ".Lto")) if ops else operands
            job.lines.append(f"{i.mnemonic} {operands}".strip())
            job.kept.append(i)
    return job


def _plain(job: _Job, isa: str) -> list[str]:
    """The lines of a job where x86 loads an operand of what it computes, with a register in its place: how much sooner the other operands may come. Empty
    where there are none."""
    if isa != "x86-64" or not any(_folded(i) for i in job.kept):
        return []
    out = []
    for i, line in zip(job.kept, job.lines):
        ops = split(i.operands)
        register = next((o.partition("{")[0] for o in reversed(ops) if o.startswith("%")), "")
        if _folded(i) and register:
            line = f"{i.mnemonic} {', '.join(register if '(' in o else o for o in ops)}"
        out.append(line)
    return out


def _folded(i) -> bool:
    return bool(i.what.loads) and i.what.kind not in ("load", "gather")


def _vtype_before(r) -> list[str]:
    """Remarks to llvm-mca: the vector type in force where a region begins."""
    from .isa.riscv import vtype
    first = next((k for k, i in enumerate(r.function.instructions) if i is r.instructions[0]), 0)
    for i in reversed(r.function.instructions[:first]):
        if i.mnemonic.startswith("vset"):
            if not (state := vtype(i.mnemonic, i.operands)):
                return []
            return [f"# LLVM-MCA-RISCV-LMUL {_lmul(state.lmul)}", f"# LLVM-MCA-RISCV-SEW E{state.sew}"]
    return []


def _lmul(x: float) -> str:
    return f"M{int(x)}" if x >= 1 else f"MF{round(1 / x)}"


def _refuse(job: _Job, lines: list[str]):
    """Take what llvm-mca does not read out of a job."""
    refused = Counter(lines)
    if refused:
        kept, texts = [], [t for t in job.lines if not t.startswith("# LLVM-MCA")]
        for i, text in zip(job.kept, texts):
            if refused[text]:
                refused[text] -= 1
            else:
                kept.append(i)
        names = Counter(t.split(" ")[0] for t in lines)
        job.cut.append(f"{len(lines)} instruction{'s' * (len(lines) > 1)} that llvm-mca does not take ({', '.join(names)})")
        job.kept = kept


def _probes(isa: str) -> dict[str, list[str]]:
    """Independent multiply-adds by (element, bits): what their throughput is worth is the model's peak."""
    out = {}
    if isa == "x86-64":
        for bits, reg, last in ((512, "zmm", 31), (256, "ymm", 15), (128, "xmm", 15)):
            for element, suffix in (("f32", "ps"), ("f64", "pd"), ("f16", "ph")):
                out[f"fma:{element}:{bits}"] = [f"vfmadd231{suffix} %{reg}0, %{reg}1, %{reg}{k}" for k in range(2, last - 1)]
        for element, suffix in (("f32", "ps"), ("f64", "pd")):  # without FMA: as many multiplications as additions
            out[f"two:{element}:128"] = [f"{op}{suffix} %xmm0, %xmm{k}" for k in range(2, 14, 2) for op, k in (("mul", k), ("add", k + 1))]
    elif isa == "aarch64":
        for element, form in (("f32", "4s"), ("f64", "2d"), ("f16", "8h")):
            out[f"fma:{element}:128"] = [f"fmla v{k}.{form}, v0.{form}, v1.{form}" for k in range(2, 26)]
    else:
        for element, sew in (("f32", 32), ("f64", 64), ("f16", 16)):
            for lmul in (1, 2, 4):
                out[f"fma:{element}:v{lmul}"] = [f"# LLVM-MCA-RISCV-LMUL M{lmul}", f"# LLVM-MCA-RISCV-SEW E{sew}",
                                                 *[f"vfmacc.vv v{k}, v0, v{lmul}" for k in range(2 * lmul, 32 - lmul, lmul)]]
            out[f"fma:{element}:scalar"] = [f"fmadd.{dict(f32='s', f64='d', f16='h')[element]} ft{k}, fa0, fa1, ft{k}" for k in range(8)]
    return out
