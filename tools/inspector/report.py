"""A kernel's report: its functions, regions and verdict, and the same as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from ...backends.base import Error
from . import files, flow, gpu, isa, record, stats, targets, text, verdict, weights
from .code import Code, of_compiled
from .schema import Function
from .stats import Region


@dataclass
class Report:
    """A `Code` read, classified and judged. regions: every loop and body; hot: those that are judged; bounds: why loops have no bound, or whose
    it is (`bound.fill`); run: what a program did with it (`recorder.Run`)."""

    code: Code
    functions: list[Function]
    regions: list[Region] = field(default_factory=list)
    bounds: str = ""
    run: object = None

    @property
    def gpu(self) -> bool:
        return isa.ISAS[self.code.isa].gpu

    @property
    def hot(self) -> list[Region]:
        return [r for r in self.regions if r.hot]

    @property
    def share(self) -> float | None:
        """Share of the work that vector code does, loops weighed by how often they run (CPU); None where nothing works."""
        return None if self.gpu else weights.share(self.regions)

    @property
    def verdict(self) -> str | None:
        """VECTOR, PARTLY or SCALAR; None where nothing works, or too much is not known to say."""
        if self.unknown > verdict.UNKNOWN:
            return None
        if self.gpu:
            return verdict.overall([verdict.of(r, True) for r in self.hot])
        return verdict.weighed(self.share, self.hot)

    @property
    def occupancy(self) -> gpu.Occupancy | None:
        """How many warps of a GPU kernel stay on a multiprocessor at once; None where that is not known."""
        return gpu.occupancy(gpu.arch.of(self.code.target, self.code.text), self.code.facts) if self.gpu else None

    @property
    def unknown(self) -> float:
        """Share of instructions that the classifier does not know."""
        every = [i.what.kind for f in self.functions for i in f.instructions]
        return every.count("unknown") / len(every) if every else 0.0

    @property
    def remark(self) -> str:
        """What its code has to say, and of a file's functions that they are judged together."""
        working = {id(r.function) for r in self.regions if r.figures.get("vector") is not None or r.figures.get("calls")}
        together = self.code.backend == "file" and len(working) > 1
        return "; ".join(filter(None, (self.code.remark, f"{len(working)} functions, judged together; FILE:FUNCTION judges one" if together else "")))

    def failures(self, required: str | Sequence[tuple[str, str, float | str]]) -> list[str]:
        """One line for each requirement that is not met, by the whole or by a hot loop. required: as --require takes it, "vector>=0.9, spills=0", or (figure, comparison, bound) each.

        Raises `Error` for a text that --require would not take."""
        if isinstance(required, str):
            required = verdict.requirements(required)
        if not self.hot:
            return [f"{self.code.name} [{self.code.target}]: there is no hot loop to judge"]
        return [*verdict.failures_of_all(self, required), *(line for r in self.hot for line in verdict.failures(r, required, self.gpu))]

    def as_dict(self, instructions: bool = True) -> dict[str, Any]:
        """The report as JSON takes it (docs/asm-schema.md)."""
        return record.of(self, instructions)


def of(code: Code) -> Report:
    """Read and judge a kernel's assembly. Raises `Error` where it holds no instructions."""
    row = isa.ISAS[code.isa]
    found = text.functions(code.text, row)
    if not found:
        raise Error(f"{code.name}: no instructions of {code.isa} were found in it")
    found = files.chosen(found, code)
    report = Report(code, found)
    for f in found:
        isa.classify(f, row, isa.Machine(code.vlen))
        flow.analyse(f)
        report.regions += gpu.regions(f, code) if row.gpu else weights.of_function(f, stats.regions(f, code))
    if not row.gpu:
        weights.of_calls(report.regions)
        weights.of_report(report.regions)
    elif any(r.hot and r.loop for r in report.regions):  # beside loops, functions without one set things up
        looping = {id(r.function) for r in report.regions if r.hot and r.loop}
        for r in report.regions:
            r.hot = r.hot and (r.loop is not None or id(r.function) in looping)
    record.number(report)
    return report


def inspect(thing: object, target: str | None = None) -> Report:
    """The report of a compiled kernel object (what `kernel[grid](...)`, `kernel.warmup` and `triton.compile` return), of a path to a .s, .ptx, .o,
    .so, .cubin or .hsaco file, or of a `Code`. target: a name from `targets.names()` where the thing itself does not say it. Its loops
    have bounds where llvm-mca is there."""
    from pathlib import Path

    from . import bound
    goal = targets.get(target) if target else None
    if isinstance(thing, (str, Path)):
        code = files.of_file(Path(thing), goal)
    elif hasattr(thing, "asm") and hasattr(thing, "metadata"):
        code = of_compiled(thing, goal)
    elif isinstance(thing, Code):
        code = thing
    else:
        raise Error(f"inspect takes a compiled kernel, a path or a Code, not {type(thing).__name__}")
    report = of(code)
    bound.fill([report])
    return report
