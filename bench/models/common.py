"""What every model shares: options, a run of studies, their table, their plot."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Callable

import torch

from ...backends.base import Error, suggest
from ...ops import registry
from ...ops.records import DTYPES, Case
from .. import counts, fields, report, study
from ..results import Results
from ..study import Study
from .variants import Variants, generated, of_size, on_device

#: --clock -> the keys of a row's summary and of its rounds
CLOCKS = {"wall": ("wall_s", "rounds_s"), "cpu": ("cpu_s", "cpu_rounds_s")}


def add(parser):
    """The options of all models."""
    parser.add_argument("--size", default="main", metavar="NAME", help="small or main (default: main)")
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is a GPU)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's number)")
    parser.add_argument("--reps", type=int, default=10, metavar="N", help="rounds of timing (default: 10)")
    parser.add_argument("--clock", default="wall", metavar="NAME",
                        help="what plots, exponents and verdicts go by: wall, or cpu, the process' own time, which other work on the machine does not "
                             "lengthen, for --threads 1 (default: wall; on a GPU it is the GPU's)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of inputs and parameters (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, as triport bench --json does")
    fields.add(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result there: .png, .svg, .pdf")
    parser.add_argument("--show-inductor", action="store_true", help="print what Inductor generates for the compiled variants, and stop")


def settle(args):
    """Check the common options and fill in what depends on the machine. Raises `Error`."""
    counts.check(threads=args.threads, reps=args.reps)
    counts.seed(args.seed)
    if args.clock not in CLOCKS:
        raise Error(suggest("clock", args.clock, CLOCKS))
    for path, name in ((args.json, "--json"), (args.plot, "--plot")):
        if path and not path.resolve().parent.is_dir():
            raise Error(f"{name} {path}: there is no folder {path.resolve().parent}")
        if path and path.is_dir():
            raise Error(f"{name} {path}: it is a folder; name a file")
    if args.plot and args.plot.suffix not in (".png", ".svg", ".pdf"):
        raise Error(f"--plot {args.plot}: it takes a file name that ends in .png, .svg or .pdf")
    args.device = on_device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.threads:
        torch.set_num_threads(args.threads)


def of_op(name: str, shapes: tuple, device: str, seed: int, variants: Variants, **kwargs) -> Study:
    """A study of a built-in op at a case: its inputs, its reference, its bytes and flops."""
    op, case = registry.get(name), Case(shapes, kwargs)
    inputs = tuple(case.make(DTYPES["fp32"], device, seed))
    return Study(name, case.name, variants.calls, inputs, lambda *a: op.expected(*a, **kwargs), allowed=op.allowed(torch.float32),
                 nbytes=op.nbytes(*inputs, **kwargs), flops=op.flops(*inputs, **kwargs), left_out=variants.left_out)


def of_sizes(name: str, sizes: dict, variants: Callable[[Variants], None], **kwargs):
    """(steps, add, run) of a model that is one built-in op over the shapes that `sizes` has for a size; `variants` adds the op's variants."""

    def studies(size: str, device: str, seed: int):
        for shape in of_size(sizes, size):
            v = Variants(device)
            variants(v)
            yield of_op(name, (shape,), device, seed, v, **kwargs)

    def steps(size: str, device: str, seed: int) -> dict:
        return next(studies(size, device, seed)).steps()

    def run(args) -> int:
        return measure(studies(args.size, args.device, args.seed), args)[0]

    return steps, lambda parser: None, run


def measure(studies, args, draw: Callable | None = None, seconds: float = 0.01) -> tuple[int, list[dict]]:
    """Run studies as the options say, rounds of `seconds` each. (exit code, rows): 1 where a variant was wrong or failed. draw(rows, figure): the plot,
    by default `times`."""
    from .. import screen

    if args.show_inductor:
        return show_inductor(studies, args), []
    names = fields.chosen(args.columns) if args.columns is not None else None
    remarks = screen.console(stderr=True)
    said: set = set()

    def each():
        for s in studies:
            for name, reason in s.left_out.items():
                if name not in said:
                    said.add(name)
                    remarks.print(f"{name} is left out: {reason}", highlight=False, soft_wrap=True)
            yield s

    results = Results(args.json)
    with remarks.status("measuring the machine") as status:
        wrong = study.run(each(), results, args.reps, seconds, args.device, status.update)
    told = {"machine": {k: v for k, v in results.meta.items() if k != "left_out"}, "rows": results.rows}  # what is left out was said as it came up
    report.show(told, report.console(), names, args.wide, "--wide shows them, --columns chooses")
    if args.plot:
        plot(args.plot, results.rows, draw or partial(times, clock=args.clock))
    return (1 if wrong else 0), results.rows


def show_inductor(studies, args) -> int:
    """Print what Inductor writes for the compiled variants of the first study."""
    first = next(iter(studies))
    names = [name for name in first.candidates if name.startswith("torch-compile")]
    if not names:
        raise Error("--show-inductor: no compiled variant can run here: "
                    + ("; ".join(f"{n}: {r}" for n, r in first.left_out.items()) or f"there are {', '.join(first.candidates)}"))
    for name in names:
        for code in generated(first.call(name)):
            print(f"# {name}: {first.op} {first.case}\n{code}")
    return 0


def stats(row: dict, clock: str = "wall") -> dict:
    """The summary of a row's times by a clock; of the GPU's own where it was measured."""
    return row["device_s"] if "device_s" in row else row[CLOCKS[clock][0]]


def rounds(row: dict, clock: str = "wall") -> list[float]:
    """A row's seconds a call, round by round, likewise."""
    return row["device_rounds_s"] if "device_rounds_s" in row else row[CLOCKS[clock][1]]


def basis(args) -> str:
    """What `stats` and `rounds` are of, in words."""
    return "the GPU's time" if args.device == "cuda" else "CPU time" if args.clock == "cpu" else "wall time"


def plot(path: Path, rows: list[dict], draw: Callable):
    """A figure that `draw(rows, figure)` fills, as a file."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(9, 5), layout="constrained")
    draw(rows, figure)
    figure.savefig(path, dpi=120)


def times(rows: list[dict], figure, clock: str = "wall"):
    """A panel for each op: a line for each variant over the cases, or bars where there is one case; percentiles 20 to 80 as error bars."""
    ops = list(dict.fromkeys(r["op"] for r in rows))
    for axes, op in zip(figure.subplots(1, len(ops), squeeze=False)[0], ops):
        of = [r for r in rows if r["op"] == op and "wall_s" in r]
        cases = list(dict.fromkeys(r["case"] for r in of))
        names = list(dict.fromkeys(r["backend"] for r in of))
        for k, name in enumerate(names):
            mine = {r["case"]: r for r in of if r["backend"] == name}
            at = [cases.index(c) for c in mine] if len(cases) > 1 else [k]
            took = [stats(r, clock) for r in mine.values()]
            y = [1e3 * s["p50"] for s in took]
            bars = [[1e3 * (s["p50"] - s["p20"]) for s in took], [1e3 * (s["p80"] - s["p50"]) for s in took]]
            if len(cases) > 1:
                axes.errorbar(at, y, bars, marker="o", capsize=3, label=name)
            else:
                axes.bar(at, y, yerr=bars, capsize=3)
        if len(cases) > 1:
            axes.set_xticks(range(len(cases)), cases, rotation=30, ha="right")
            axes.set_yscale("log")
            axes.legend()
        else:
            axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        axes.set_title(op if len(cases) > 1 else f"{op} {''.join(cases)}")
        axes.set_ylabel("ms")
