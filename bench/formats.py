"""Results as text for other readers: Markdown, a summary for a CI job on GitHub, and the lines of spine-triton's benchmarks."""

from __future__ import annotations

import re
from typing import Any

from ..backends.host import board_text
from . import clock, fields, words
from .units import plain, ratio, time_text


def _escaped(text: str) -> str:
    """Text that is a cell of a Markdown table and nothing else: no column, no markup, no HTML."""
    text = re.sub(r"([\\`*\[\]|~])", r"\\\1", plain(text))
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # within a word it is no markup: add_mul_act
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _lines(heads: list[str], rows: list[list[str]], left: int) -> list[str]:
    """A Markdown table whose first `left` columns stand on the left."""
    return [f"| {' | '.join(map(_escaped, heads))} |", "|" + "---|" * left + "--:|" * (len(heads) - left),
            *(f"| {' | '.join(map(_escaped, cells))} |" for cells in rows)]


def _places(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells that say of what a row is: op, case, dtype, and mode and baseline where they are not the same in all rows."""
    several = len({words.baseline(r) for r in rows}) > 1
    modes = any(words.mode(r) != "fwd" for r in rows)
    return (["op", "case", "dtype", *["mode"] * modes, *["baseline"] * several],
            [[r["op"], r["case"], r["dtype"], *[words.mode(r)] * modes, *[words.baseline(r)] * several] for r in rows])


def _table(rows: list[dict], names: list[str] | None) -> list[str]:
    heads, places = _places(rows)
    shown = fields.of(rows, names)
    return _lines([*heads, *(c.header for c in shown)], [place + [c.text(r) for c in shown] for place, r in zip(places, rows)], len(heads) + 1)


def _made_by(m: dict) -> str:
    """The command, the day, the machine and the versions."""
    board = board_text(m["board"]) + "; " if "board" in m else ""
    gpu = f"{m['gpu']}, CUDA {m['cuda']}; " if "gpu" in m else ""
    versions = ", ".join(f"{name} {m[k]}" for name, k in (("Python", "python"), ("torch", "torch"), ("triton", "triton"), ("llvmlite", "llvmlite"))
                         if k in m) + (f" (LLVM {m['LLVM']})" if "LLVM" in m else "")
    limits = f"; measured in the run: {words.measured(m['roofline'])}" if m.get("roofline") else ""
    command = plain(m.get("command", "bench")).replace("`", "'")
    day = f" on {m['time'][:10]}" if "time" in m else ""
    threads = f", {m['threads']} threads" if "threads" in m else ""
    return f"`triport {command}`{day}: {board}{gpu}{m.get('cpu', 'CPU unknown')}{threads}" + f"; {versions}" * bool(versions) + f"{limits}."


def _not_right(rows: list[dict]) -> list[str]:
    return [f"- {_escaped(words.not_right(r))}" for r in rows if r["status"] != "ok"]


def markdown(data: dict[str, Any], names: list[str] | None = None) -> str:
    """The table as Markdown, with the machine and the command that made it. names: columns (default: all that some row fills)."""
    out = [_made_by(data["machine"]), "", *_table(data["rows"], names)]
    bad = _not_right(data["rows"])
    return "\n".join(out + ([""] + bad if bad else []))


def verdict(rows: list[dict]) -> str:
    """A run in one line."""
    run = [r for r in rows if r["status"] != "skipped"]
    bad = [f"{n} {status}" for status in ("wrong", "failed") if (n := sum(r["status"] == status for r in run))]
    said = ", ".join(bad) or (f"{len(run)} of {len(run)} results right" if run else "no results")
    bases = list(dict.fromkeys(map(words.baseline, rows)))
    names = dict.fromkeys(r["backend"] for r in rows if r["backend"] not in (*words.YARDSTICKS, *bases))
    speeds = [f"{plain(name)} at {ratio(x)} {plain(base)}'s speed"
              for name in names for base in bases if (x := words.mean(name, base, rows))]
    return "; ".join([said, *speeds])


def github(data: dict[str, Any], names: list[str] | None = None) -> str:
    """A summary for a CI job (`>> $GITHUB_STEP_SUMMARY`): a verdict, a short table, what was found in words, and the whole table folded."""
    rows = data["rows"]
    heads, places = _places(rows)
    known = {c.name: c for c in fields.of(rows)}
    base = known["speedup"].header if "speedup" in known else "vs torch"
    short = [[*place, r["backend"], known["time"].text(r), _compared(r)] for place, r in zip(places, rows)]
    found = words.words(rows, words.remarks(data))
    out = [f"## triport bench: {_escaped(verdict(rows))}", "", *(f"- {_escaped(text)}" for _, text in found), "",
           *_lines([*heads, "backend", "time", base], short, len(heads) + 1), "",
           "<details><summary>All figures</summary>", "", _made_by(data["machine"]), "", *_table(rows, names), "", "</details>"]
    return "\n".join(out)


def _compared(row: dict) -> str:
    """A speed-up with the word for it: faster, slower, same, noisy; without one where the row does not say."""
    if not row.get("speedup"):
        return ""
    word = "noisy" if words.is_noisy(row) else row.get("speedup_is", "")
    return f"{ratio(row['speedup'])} {plain(word)}".strip()


def spine(data: dict[str, Any]) -> str:
    """The lines of spine-triton's benchmarks for each right row, in seconds: single calls, of which the first one compiles. Avg, min, std and max are
    of all of them; what the first call took and what all took together stand apart. A row whose calls were not timed one by one says so."""
    out = []
    for r in data["rows"]:
        if r["status"] != "ok":
            continue
        details = {k: v for k, v in (("dtype", r["dtype"]), ("mode", words.mode(r))) if v not in ("fp32", "fwd")}
        title = f"bench_{plain(r['op'])}({plain(r['case'])}, '{plain(r['backend'])}') {details}"
        calls = r.get("calls_s") or {}
        if not calls.get("wall"):
            many = f"rounds of {r['repeats']} calls" if r.get("repeats", 1) > 1 else "rounds"
            out.append(f"{title}: no single calls in this row, its time is the median of {many}, {time_text(words.seconds(r) or 0)}; "
                       "a run with --format spine times them")
            continue
        out.append(f"{title}, {len(calls['wall'])} times, all results in seconds")
        kinds = [(label, calls[key]) for label, key in (("Wall", "wall"), ("CPU", "cpu")) if calls.get(key)]
        for label, values in kinds:
            s = clock.summary(values)
            out.append(f"{label}: Avg={s['avg']:.6f}, min={s['min']:.6f}, std={s['std']:.6f}, max={s['max']:.6f}")
        out.append("First call: " + ", ".join(f"{label}={values[0]:.6f}" for label, values in kinds))
        if later := [f"{label} Avg={clock.summary(values[1:])['avg']:.6f}" for label, values in kinds if len(values) > 1]:
            out.append("Later calls: " + ", ".join(later))
        out.append("Total: " + ", ".join(f"{label}={sum(values):.6f}" for label, values in kinds))
    return "\n".join(out)
