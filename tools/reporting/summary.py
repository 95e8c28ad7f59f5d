"""A run in words: what was wrong or failed first, then each backend's speed-up over torch."""

from __future__ import annotations

from .runs import Run, geomean


def ratio(x: float) -> str:
    """A speed-up at a glance, never rounded to nothing: 1.98x, 21.2x, 0.00042x."""
    return f"{x:.2f}x" if 0.1 <= x < 10 else f"{x:.3g}x" if x >= 10 else f"{x:.2g}x"


def _where(row: dict) -> str:
    return f"{row['op']} {row['case']} {row['dtype']}"


def words(run: Run) -> list[tuple[str, str]]:
    """(kind, sentence) in order; kinds: "bad" (wrong or failed), "remark", "fact"."""
    bad = [("bad", _bad(r)) for r in run.rows if r["status"] != "ok"]
    facts = [("fact", _speed(name, run.rows)) for name in dict.fromkeys(r["backend"] for r in run.rows) if name != "torch"]
    right = sum(r["status"] == "ok" for r in run.rows)
    count = [("fact", f"{right} of {len(run.rows)} results right" + ("." if right < len(run.rows) else ": all of them."))] if run.rows else []
    return bad + [("remark", text) for text in run.remarks] + count + facts


def _bad(row: dict) -> str:
    if row["status"] == "wrong":
        beyond = f": error {row['error']}, allowed {row['allowed']}" if row["error"] and row["allowed"] else ""
        return f"WRONG: {_where(row)} on {row['backend']}{beyond}"
    return f"FAILED: {_where(row)} on {row['backend']}" + (f": {row['reason']}" if row["reason"] else "")


def _speed(backend: str, rows: list[dict]) -> str:
    """A backend's geometric mean of speed-ups, its best and its worst."""
    mine = [r for r in rows if r["backend"] == backend and r["status"] == "ok"]
    known = [r for r in mine if r.get("speedup")]
    if not known:
        return f"{backend}: {len(mine)} right, no time of torch beside them."
    best, worst = max(known, key=lambda r: r["speedup"]), min(known, key=lambda r: r["speedup"])
    if best is worst:
        return f"{backend}: {ratio(best['speedup'])} torch's speed ({_where(best)})."
    mean = geomean([r["speedup"] for r in known])
    return (f"{backend}: {ratio(mean)} torch's speed, the geometric mean of {len(known)} rows; best {ratio(best['speedup'])} "
            f"({_where(best)}), worst {ratio(worst['speedup'])} ({_where(worst)}).")
