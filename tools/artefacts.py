"""What a benchmark leaves beside its figures: for each op and dtype that the CPU compiler got right, the inspector's page of its machine code.

The rows name it, as a path relative to the results file, so that a folder of both can be moved: `"artefacts": {"asm": path of the page, "verdict":
"VECTOR 100%", "case": the case whose code it is}`. A profiler's `"trace"` would be the path of its index page. `triport report` links to both.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Callable

#: the backend whose machine code is looked at
BACKEND = "triton-cpu"


def write(results, ops: list, folder: Path, remark: Callable[[str], None]):
    """Write a page for each (op, dtype) among the right rows of `results` (bench.results.Results), and name it and its verdict in each of these rows.
    What cannot be inspected is said by `remark` and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {op.name: op for op in ops}
    made: dict[tuple, dict | None] = {}
    for row in results.rows:
        key = (row["op"], row["dtype"])
        if row["backend"] != BACKEND or row["status"] != "ok" or row["op"] not in known:
            continue
        if key not in made:
            made[key] = _inspect(known[row["op"]], row["case"], row["dtype"], folder, results.path.parent, remark)
        if made[key]:
            row["artefacts"] = {**row.get("artefacts", {}), **made[key]}
    results.save()


def _inspect(op, case: str, dtype: str, folder: Path, base: Path, remark) -> dict | None:
    """The page of one op, written. Returns what its rows say of it."""
    from .inspector import code, launches, page, report, targets
    goal = targets.get("native")
    name = re.sub(r"[^\w.-]+", "-", f"asm-{op.name}-{dtype}.html")
    try:
        chosen = next(c for c in op.cases if c.name == case)
        reports = [report.of(code.of_launch(x, goal)) for x in launches.of_op(op, chosen, dtype, "cpu", row=goal.row)]
        (folder / name).write_text(page.render(reports), encoding="utf-8")
    except Exception as e:  # whatever a user's op does: the figures stand without it
        remark(f"no page of {op.name} {dtype}: {type(e).__name__}: {str(e).partition(chr(10))[0]}")
        return None
    path = Path(os.path.relpath((folder / name).resolve(), base.resolve()))
    return {"asm": path.as_posix(), "verdict": verdict(reports), "case": case}


def verdict(reports: list) -> str:
    """The verdict of all kernels of an op and the least share of vector code among their hot loops: "VECTOR 100%"."""
    from .inspector import verdict as judge
    word = judge.overall([r.verdict for r in reports]) or "nothing to judge"
    shares = [loop.figures["vector"] for r in reports for loop in r.hot if loop.figures["vector"] is not None]
    return f"{word} {math.floor(100 * min(shares))}%" if shares else word  # 100 only where all is
