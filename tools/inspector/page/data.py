"""What the page shows, as JSON: kernels with their loops and panes. A kernel is a report, or what `triport asm --json` saved of one.

Lines of all panes are linked by keys: numbers of source lines in the kernel's table `places`. Lists that run along a pane's lines hold numbers into
tables (`what`: how an instruction is classified, `says`: what its mnemonic means), -1 where there is nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from .. import diff
from ..isa import ISAS
from ..report import Report
from . import links, words

_TITLES = {"source": "source", "plan": "plan", "ttir": "TTIR", "ttgir": "TTGIR", "llir": "LLVM IR", "ptx": "PTX", "asm": "assembly", "sass": "SASS",
           "amdgcn": "AMDGCN"}
_STAGES = ("plan", "ttir", "ttgir", "llir", "ptx")
#: source files that get a pane, and lines from which a file is shown in part
_FILES, _LONG = 4, 400
#: counts of a loop that the page does not show
_COUNTS = ("lines", "kinds", "units", "float_elements", "called")
#: share of the work from which a loop is shown unfolded
_WARM = 0.1
#: lines from which it is worth folding a loop
_SHORT = 3
#: files that are nobody's kernel: a compiler's, a system's or torch's headers
_FOREIGN = re.compile(r"^/usr/|/lib/gcc/|/torch/include/|intrin\.h$")


def kernel(report: Report | dict, other: Report | dict | None = None, ranked: dict | None = None) -> dict:
    """A kernel as the page takes it. other: what it is compared with, shown beside it. ranked: columns of the list of kernels (time, launches)."""
    sides = [_Side(report)] + ([_Side(other)] if other is not None else [])
    table = _Table()
    panes = [p for n, s in enumerate(sides) for p in s.panes(table, n)]
    seen, unique = set(), []
    for p in panes:  # a source file that both sides have is one pane
        mark = (p["title"], *p["lines"]) if p["kind"] == "source" else None
        if mark is None or mark not in seen:
            unique.append(p)
        seen.add(mark)
    first = sides[0].dict
    out = {"name": first["kernel"], "sides": [s.head() for s in sides], "loops": [loop for n, s in enumerate(sides) for loop in s.loops(table, n)],
           "panes": unique, "places": table.names, "ranked": ranked or _ran(first.get("run"))}
    if len(sides) == 2:
        out["pair"] = diff.compare(first, sides[1].dict)
    return out


class _Table:
    """Numbers of source lines."""

    def __init__(self):
        self.numbers: dict[tuple[str, int], int] = {}
        self.names: list[str] = []

    def __call__(self, place) -> int:
        place = (place[0], int(place[1]))
        if place not in self.numbers:
            self.numbers[place] = len(self.names)
            self.names.append(f"{place[0].rpartition('/')[2]}:{place[1]}")
        return self.numbers[place]


def _whole(report: Report) -> dict:
    """`Report.as_dict` with the mnemonic of each instruction."""
    out = report.as_dict()
    for row, i in zip(out["instructions"], (i for f in report.functions for i in f.instructions)):
        row["mnemonic"] = i.mnemonic
    return out


class _Side:
    """One kernel of one or two that are shown beside each other."""

    def __init__(self, report: Report | dict):
        self.report = report if isinstance(report, Report) else None
        self.dict = _whole(report) if isinstance(report, Report) else report

    def head(self) -> dict:
        d = self.dict
        known = ("kernel", "target", "backend", "isa", "verdict", "unknown", "share", "remark", "bounds")
        extra = {k: v for k, v in d.items() if k == "occupancy" and v not in (None, "")}
        ran = _ran(d.get("run"))
        return {**{k: d.get(k) for k in known}, "run": ", ".join(f"{k} {_part(x)}" for k, x in ran.items()), "facts": {**d.get("facts", {}), **extra},
                "gpu": d["isa"] in ISAS and ISAS[d["isa"]].gpu}

    def loops(self, table: _Table, side: int) -> list[dict]:
        """Loops and bodies; `keys`: the source lines of their work, those with most first; `more`: those of their other code."""
        out = []
        code: dict[str, Counter] = {}
        for i in self.dict.get("instructions", ()):
            if i.get("line"):
                code.setdefault(i.get("loop"), Counter())[tuple(i["line"])] += 1
        for n, loop in enumerate(self.dict["loops"]):
            lines = sorted(loop.get("lines", ()), key=lambda at: -at["instructions"])
            name = loop.get("id") or f"{'L' if loop.get('depth') else 'B'}{n}"
            keys = [table((at["file"], at["line"])) for at in lines]
            more = [key for at, _ in code.get(name, Counter()).most_common() if (key := table(at)) not in keys]
            out.append({**{k: v for k, v in loop.items() if k not in _COUNTS and v is not None}, "id": name, "side": side, "where": _where(lines),
                        "keys": keys, "more": more})
        return out

    def panes(self, table: _Table, side: int) -> list[dict]:
        """Source files, stages, assembly. They are read in the other order: a plan names lines that code comes from, and a source's lines are links
        where another pane is about them."""
        assembly = self._assembly(table)
        stages = self._stages(table)
        out = [*self._sources(table), *stages, assembly]
        taken: dict[str, int] = {}
        for p in out:
            taken[p["kind"]] = taken.get(p["kind"], 0) + 1
            p["id"] = ("b-" if side else "") + p["kind"] + (str(taken[p["kind"]]) if taken[p["kind"]] > 1 else "")
            p["side"] = side
        return out

    def _stages(self, table: _Table) -> list[dict]:
        if not self.report:
            return []
        stages, out = self.report.code.stages, []
        for stage in (*_STAGES[1:], "plan"):
            text = stages.get(stage)
            if not isinstance(text, str) or not text.strip() or stage == self.dict["isa"]:
                continue
            found = links.of(stage, text, next(iter(self.report.code.sources), ""), list(table.numbers))
            pane = {"kind": stage, "title": _TITLES[stage], "lines": found.lines, "keys": [[table(at) for at in x] for x in found.places],
                    "folds": [[a, b, title, 0, -1] for a, b, title in found.folds]}
            if stage == "ptx":
                meant = _Numbered()
                pane |= {"says": [meant(words.meaning("ptx", _mnemonic(line))) for line in found.lines], "words": meant.table}
            out.append(pane)
        return sorted(out, key=lambda p: _STAGES.index(p["kind"]))

    def _sources(self, table: _Table) -> list[dict]:
        if not self.report:
            return []
        code = self.report.code
        text = code.stages.get("source")
        files = list(dict.fromkeys(i["line"][0] for i in self.dict["instructions"] if i.get("line"))) or [*code.sources]
        out = []
        for path in files[:_FILES]:
            shown = text if isinstance(text, str) and path in code.sources else _read(path)
            if shown:
                out.append(_source(shown, path, table) | {"own": int(not _FOREIGN.search(path))})
        if not out and isinstance(text, str) and text:
            out.append(_source(text, "", table))
        return out

    def _assembly(self, table: _Table) -> dict:
        """Instructions in text order, with labels between them; a group for each run of instructions of one loop."""
        isa, every = self.dict["isa"], self.dict.get("instructions", ())
        kinds, meant = _Numbered(), _Numbered()
        rows: list[tuple] = []  # (text, keys, number of its class, number of its meaning, address)
        numbers = {loop.get("id"): n for n, loop in enumerate(self.dict["loops"])}
        several = len({i["function"] for i in every}) > 1
        folds: list[list] = []
        function, loop = None, None
        for i in every:
            if several and i["function"] != function:
                rows.append((f"{i['function']}:", [], -1, -1, None))
            if (i["function"], i.get("loop")) != (function, loop):
                folds.append([len(rows), 0, "", 0, numbers.get(i.get("loop"), -1)])
                function, loop = i["function"], i.get("loop")
            if i.get("label"):
                rows.append((f"{i['label']}:", [], -1, -1, None))
            mnemonic = i.get("mnemonic") or _mnemonic(i["text"])
            rows.append(("    " + i["text"].replace("\t", " "), [table(i["line"])] if i.get("line") else [], kinds(_class(i, mnemonic)),
                         meant(words.meaning(isa, mnemonic)), i.get("address")))
            folds[-1][1] = len(rows)
        for fold in folds:
            owner = self.dict["loops"][fold[4]] if fold[4] >= 0 else None
            fold[3] = int(owner is None or owner.get("hot", False) or owner.get("heat", 0) >= _WARM or fold[1] - fold[0] < _SHORT)
        lines, keys, what, says, at = map(list, zip(*rows)) if rows else ([], [], [], [], [])
        return {"kind": "asm", "title": _TITLES.get(isa, f"assembly, {isa}"), "lines": lines, "keys": keys, "what": what, "says": says,
                **({"at": at} if any(x is not None for x in at) else {}), "folds": folds, "kinds": kinds.table, "words": meant.table}


class _Numbered:
    """Numbers of values, -1 for an empty one."""

    def __init__(self):
        self.numbers: dict = {}
        self.table: list = []

    def __call__(self, value) -> int:
        if not value:
            return -1
        if value not in self.numbers:
            self.numbers[value] = len(self.table)
            self.table.append(value)
        return self.numbers[value]


def _ran(run: dict | None) -> dict:
    """What a program did with a kernel, as columns of the list of kernels."""
    if not run:
        return {}
    seconds = run.get("seconds") or 0.0
    time = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
    first = (run.get("calls") or [{}])[0]
    called = f"grid {'x'.join(map(str, first['grid']))}, {first['arguments']}" if first else ""
    more = len(run.get("calls") or ()) - 1 + (run.get("more") or 0)
    called += f" and {more} others" if called and more > 0 else ""
    return {"launches": run.get("launches"), "time": time, "share": run.get("share"), **({"called": called} if called else {})}


def _part(x) -> str:
    return f"{x:.0%}" if isinstance(x, float) else str(x)


def _class(i: dict, mnemonic: str) -> tuple:
    """How the page says and colours an instruction: (mnemonic, style, kind, unit, element, bits, bits loaded, bits stored, masked, spill)."""
    return (mnemonic, style(i), i["kind"], i["unit"], i.get("element", ""), i.get("bits", 0), i.get("load_bits", 0), i.get("store_bits", 0),
            int(bool(i.get("masked"))), int(bool(i.get("spill"))))


def style(i: dict) -> str:
    """The colour of an instruction by what it does. Arithmetic with an operand in memory is arithmetic."""
    kind, vector, is_float = i["kind"], i["unit"] == "vector", i.get("element", "")[:1] == "f" or i.get("element") == "bf16"
    if kind == "unknown":
        return "unknown"
    if i.get("spill") or kind == "call":
        return "bad"
    if i["unit"] == "matrix":
        return "matrix"
    if kind in ("gather", "scatter"):
        return "gather"
    if kind in ("arithmetic", "fma", "convert") and (is_float or vector):
        return ("vfp" if vector else "sfp") if is_float else "vint"
    if kind in ("load", "store", "atomic"):
        return "vmem" if vector else "smem"
    return "vint" if vector and kind in ("shuffle", "move", "mask") else "rest"


def _mnemonic(text: str) -> str:
    """The mnemonic of a line of assembly."""
    hit = re.match(r"\s*(?:@!?\S+\s+)?((?:(?:lock|rep\w*)\s+)?[A-Za-z_][\w.:]*)", text)
    return hit[1] if hit else ""


def _where(lines: list[dict]) -> str:
    """file.py:first-last of the file with most lines."""
    files = [at["file"] for at in lines]
    if not files:
        return ""
    name = max(files, key=files.count)
    at = sorted(x["line"] for x in lines if x["file"] == name)
    return f"{name.rpartition('/')[2]}:{at[0]}" + (f"-{at[-1]}" if at[-1] != at[0] else "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _source(text: str, path: str, table: _Table) -> dict:
    """A source file; of a long one what is around the lines that something comes from."""
    lines = text.rstrip("\n").split("\n")
    used = {n for file, n in table.numbers if file == path and n <= len(lines)}
    low, high = (max(0, min(used) - 20), min(len(lines), max(used) + 10)) if used and len(lines) > _LONG else (0, len(lines))
    return {"kind": "source", "title": path.rpartition("/")[2] or "source", "lines": [x.expandtabs(4) for x in lines[low:high]], "first": low + 1,
            "keys": [[table((path, n))] if n in used else [] for n in range(low + 1, high + 1)], "folds": []}
