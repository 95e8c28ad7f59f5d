"""What a run found, in sentences: for the end of `triport bench`, for a CI job's summary and for the page of `triport report`."""

from __future__ import annotations

import statistics
import sys
from typing import Any, Iterable

from ..backends.host import board_text
from .results import above_roof
from .units import geomean, percent, plain, ratio

#: cases whose noisy rows are named; the others are counted
_NAMED = 4
#: characters of what an exception says
LONGEST = 1000
#: a share of the roof above this is shown as more than 100 %
_WHOLE = 1.005
#: columns that others are held against; what remains serves ops here, and is held against each of them
YARDSTICKS = ("torch", "torch-compile")


def where(row: dict) -> str:
    """A row's op, case, dtype, and its mode where that is not forward."""
    return " ".join([plain(row["op"]), plain(row["case"]), plain(row["dtype"]), *([plain(row["mode"])] if mode(row) != "fwd" else [])])


def place(row: dict) -> tuple[str, str, str, str]:
    """What rows of different columns share."""
    return row["op"], row["case"], row["dtype"], mode(row)


def mode(row: dict) -> str:
    return row.get("mode") or "fwd"


def seconds(row: dict) -> float | None:
    """A row's median time: the GPU's own where it was measured, else the wall's. None where there is none."""
    return (row.get("device_s") or row.get("wall_s") or {}).get("p50")


def is_noisy(row: dict) -> bool:
    """Its figure is not to be trusted, and why is in `noisy`."""
    return bool(row.get("noisy")) or row.get("speedup_is") == "noisy"


def beyond(row: dict) -> str:
    """By how much a wrong row is wrong."""
    error, allowed = (x if isinstance(x, str) else f"{x:.1e}" if isinstance(x, (int, float)) else "" for x in (row.get("error"), row.get("allowed")))
    return f"error {error}, allowed {allowed}" if error and allowed else ""


def raised(e: BaseException) -> str:
    """An exception in one line, all that it says."""
    errors = sys.modules.get("triton.compiler.errors")
    text = " ".join((_of_kernel(e) if errors is not None and isinstance(e, errors.CompilationError) else str(e)).split())
    return f"{type(e).__name__}: {text if len(text) <= LONGEST else text[:LONGEST] + ' ...'}"


def _of_kernel(e) -> str:
    """What Triton's front end does not take, and the kernel's line; it tells the place first, and what is wrong last."""
    from ..backends import of_triton
    inner = of_triton.innermost(e)
    line, lines = getattr(inner.node, "lineno", None), (inner.src or "").splitlines()
    return of_triton.refused(e) + (f" in `{lines[line - 1].strip()}`" if line and line <= len(lines) else "")


def words(rows: list[dict[str, Any]], remarks: Iterable[str] = ()) -> list[tuple[str, str]]:
    """(kind, sentence) in order; kinds: "bad" (wrong or failed), "skipped", "remark", "fact". remarks: what else is to be known, in sentences."""
    bad = [("skipped" if r["status"] == "skipped" else "bad", not_right(r)) for r in rows if r["status"] != "ok"]
    return bad + [("remark", text) for text in [*remarks, *_noise(rows), *_pace(rows)]] + [("fact", text) for text in _count(rows) + speeds(rows)]


def not_right(row: dict) -> str:
    """Why a row has no time."""
    at = f"{where(row)} on {plain(row['backend'])}"
    said = plain(row.get("reason") or "")
    by = "" if said and (row["status"] != "wrong" or str(row.get("error")) == "inf") else beyond(row)
    why = "; ".join(filter(None, (said, by)))
    return {"wrong": "WRONG", "failed": "FAILED", "skipped": "Skipped"}[row["status"]] + f": {at}" + (f": {why}" if why else "")


def _count(rows: list[dict]) -> list[str]:
    run = [r for r in rows if r["status"] != "skipped"]
    right = sum(r["status"] == "ok" for r in run)
    if not run:
        return []
    out = [f"{right} of {len(run)} results right" + ("." if right < len(run) else ": all of them.")]
    others = [f"{n} {status}" for status in ("wrong", "failed", "skipped") if (n := sum(r["status"] == status for r in rows))]
    return out + ([", ".join(others) + "."] if others else [])


def _noise(rows: list[dict]) -> list[str]:
    """How many rows are noisy, the first few by name, and why: of the first, for a busy machine gives all of them much the same reason."""
    mine = [r for r in rows if r["status"] == "ok" and is_noisy(r)]
    if not mine:
        return []
    timed = sum(r["status"] == "ok" for r in rows)
    places: dict[str, list[str]] = {}
    for r in mine:
        places.setdefault(where(r), []).append(plain(r["backend"]))
    named = [f"{at} on {', '.join(names)}" for at, names in list(places.items())[:_NAMED]]
    rest = sum(map(len, list(places.values())[_NAMED:]))
    why = next((r for r in mine if r.get("noisy")), None)
    reason = f" Why, of {where(why)} on {plain(why['backend'])}: {plain(why['noisy']).rstrip('.')}." if why else ""
    if len(mine) == timed > 1:
        return [f"All {timed} rows are noisy, not to be relied on.{reason}"]
    return [f"{len(mine)} of {timed} rows {'is' if len(mine) == 1 else 'are'} noisy, not to be relied on: {'; '.join(named)}"
            + f"; and {rest} more" * bool(rest) + "." + reason]


def _pace(rows: list[dict]) -> list[str]:
    """How many times may not repeat, for the machine did not keep its pace, and why of the first; and which ratios hold all the same: those that the rounds, in which all
    took turns, are sure of."""
    mine = [r for r in rows if r["status"] == "ok" and r.get("unsteady")]
    if not mine:
        return []
    timed, first, places = sum(r["status"] == "ok" for r in rows), mine[0], set(map(place, mine))
    ratios = [r for r in rows if r["status"] == "ok" and r.get("speedup") and r["backend"] != baseline(r) and place(r) in places]
    sure = sum(not is_noisy(r) for r in ratios)
    hold = "; ratios, measured side by side, hold" + " where they are not noisy" * (sure < len(ratios)) if sure else ""
    return [f"{len(mine)} of {timed} times, marked ~, may be others in another run ({where(first)} on {plain(first['backend'])}: "
            f"{plain(first['unsteady']).rstrip('.')}){hold}."]


def speeds(rows: list[dict]) -> list[str]:
    """Each column's speed against the baseline, and of those that serve ops also against torch-compile."""
    names = list(dict.fromkeys(r["backend"] for r in rows if r["status"] == "ok"))
    bases = {baseline(r) for r in rows}
    out = [against(name, base, rows) for name in names for base in sorted(bases) if name != base and any(
        r["backend"] == name and baseline(r) == base for r in rows)]
    if "torch-compile" in bases:
        return out
    serving = [name for name in names if name not in YARDSTICKS and name not in bases]
    return out + [against(name, "torch-compile", rows) for name in serving if _known(name, "torch-compile", rows)]


def baseline(row: dict) -> str:
    """The column that a row's speed-up is against."""
    return row.get("baseline") or "torch"


def against(backend: str, base: str, rows: list[dict]) -> str:
    """A column's speed as a multiple of another's: the geometric mean over the rows that have both and are not noisy; the best and the worst of them."""
    known, mine = _known(backend, base, rows), [r for r in rows if r["backend"] == backend and r["status"] == "ok"]
    name, other = plain(backend), plain(base)
    if not known:
        return f"{name}: {len(mine)} right, no time of {other} beside them."
    sound = [(r, x) for r, x in known if not is_noisy(r)]
    noisy = len(known) - len(sound)
    if len(known) == 1:
        (row, x), = known
        return f"{name}: {ratio(x)} {other}'s speed ({where(row)}{', noisy' * noisy})."
    if not sound:
        return f"{name}: {noisy} rows beside {other}'s, all of them noisy: no mean of their speeds."
    (best, high), (worst, low) = max(sound, key=lambda k: k[1]), min(sound, key=lambda k: k[1])
    if len(sound) == 1:
        return f"{name}: {ratio(high)} {other}'s speed ({where(best)}); of {noisy} more the figures are noisy."
    said = f"{name}: {ratio(geomean([x for _, x in sound]))} {other}'s speed, the geometric mean of {len(sound)} rows"
    said += f" ({noisy} more noisy)" if noisy else ""
    return said + f"; best {ratio(high)} ({where(best)}), worst {ratio(low)} ({where(worst)})."


def _known(backend: str, base: str, rows: list[dict]) -> list[tuple[dict, float]]:
    """A column's rows that have a speed-up over column `base`, with it."""
    beside = {place(r): r for r in rows if r["backend"] == base and r["status"] == "ok"}
    return [(r, x) for r in rows if r["backend"] == backend and r["status"] == "ok" and (x := speedup(r, base, beside.get(place(r))))]


def mean(backend: str, base: str, rows: list[dict]) -> float | None:
    """A column's geometric mean of speed-ups over column `base`, of rows that are not noisy; None where there are none."""
    sound = [x for r, x in _known(backend, base, rows) if not is_noisy(r)]
    return geomean(sound) if sound else None


def speedup(row: dict, base: str, beside: dict | None) -> float | None:
    """How many times as fast as column `base` (whose row at the same place is `beside`) a row is; by rounds, where both have the same number."""
    if base == baseline(row):
        return row.get("speedup") or None
    if beside is None:
        return None
    key = "device_rounds_s" if "device_rounds_s" in row and "device_rounds_s" in beside else "rounds_s"
    own, theirs = row.get(key) or [], beside.get(key) or []
    if own and len(own) == len(theirs) and ("device_s" in row) == ("device_s" in beside):
        return statistics.median(y / x for x, y in zip(own, theirs))
    own, theirs = seconds(row), seconds(beside)
    return theirs / own if own and theirs else None


# --- machines --------------------------------------------------------------------------------------------------------


def _above_roof(rows: list[dict], roofline: dict) -> list[str]:
    """Which rows take more than the whole roof, a sentence for each reason: how many, and the one that takes most."""
    found: dict[str, list[dict]] = {}
    for r in rows:
        limits = roofline.get(r.get("device") or "cpu") or {}
        if r["status"] == "ok" and (r.get("roofline") or 0) > _WHOLE and {"bytes_per_s", "flop_per_s"} <= limits.keys():
            found.setdefault(above_roof(limits, r.get("bytes"), r.get("flops"), r["dtype"]), []).append(r)
    out = []
    for why, mine in found.items():
        most = max(mine, key=lambda r: r["roofline"])
        who = f"{where(most)} on {plain(most['backend'])}"
        others = f", as {len(mine) - 1} other{'s' * (len(mine) > 2)}" if len(mine) > 1 else ""
        out.append(f"{who} is at {percent(most['roofline'])} of the roof{others}: {why if len(mine) == 1 else why.replace('its', 'their')}.")
    return out


def measured(limits: dict) -> str:
    """The limits of a run's devices."""
    out = []
    if "cpu" in limits:
        out.append(f"copy {limits['cpu']['bytes_per_s'] / 1e9:.1f} GB/s" + (f", FMA {limits['cpu']['flop_per_s'] / 1e12:.3f} TFLOP/s (fp32)" if "flop_per_s" in limits["cpu"] else ""))
    if "board" in limits:
        out.append(f"on the board copy {limits['board']['bytes_per_s'] / 1e9:.2f} GB/s")
    if "cuda" in limits:
        gpu = limits["cuda"]
        out.append(f"on the GPU copy {gpu['bytes_per_s'] / 1e9:.0f} GB/s, products {gpu['flop_per_s'] / 1e12:.0f} TFLOP/s (fp16), "
                   f"{gpu['flop_per_s_fp32'] / 1e12:.1f} (fp32)")
    return "; ".join(out)


def about(m: dict) -> list[str]:
    """A run's machine, a line each: CPU and versions, GPU, board, measured limits. What a file lacks is left out."""
    counts = ", ".join(f"{m[k]} {k}" for k in ("cores", "threads") if k in m)
    versions = ", ".join(f"{k} {m[k]}" for k in ("torch", "triton", "LLVM") if k in m)
    out = ["; ".join(filter(None, (m.get("cpu"), counts, versions)))]
    if "gpu" in m:
        out.append("; ".join(filter(None, (m["gpu"], ", ".join(f"{name} {m[k]}" for name, k in (
            ("CUDA", "cuda"), ("NVRTC", "NVRTC"), ("cuda-core", "cuda-core")) if k in m)))))
    if "board" in m:
        out.append(board_text(m["board"]))
    if m.get("roofline"):
        out.append("measured here: " + measured(m["roofline"]))
    return [line for line in map(plain, out) if line]


def remarks(data: dict) -> list[str]:
    """What is to be known beside a run's rows: that the machine was busy, that the run was interrupted, what was left out."""
    m = data["machine"]
    out = [f"The machine was busy: {plain(m['busy'])}"] if m.get("busy") else []
    if data.get("complete") is False:
        n = len(data["rows"])
        out.append(f"The run was interrupted after {n} row{'s' * (n != 1)}; those that would have followed are missing.")
    out += [f"{plain(name)} is left out: {plain(why)}" for name, why in (m.get("left_out") or {}).items()]
    out += _above_roof(data["rows"], m.get("roofline") or {})
    return out + [f"{where(r)} on {plain(r['backend'])}: no first call in a new process: {plain(r['new_process'])}"
                  for r in data["rows"] if "new_process" in r]
