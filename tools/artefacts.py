"""What a benchmark leaves beside its figures: for each op and dtype that the CPU compiler got right, the inspector's page of its machine code, and
a profile.

The rows name them, as paths relative to the results file, so that a folder of all can be moved: `"artefacts": {"asm": path of the page, "verdict":
"VECTOR 100%", "trace": path of the profile's page, "case": the case that both are of}`. `triport report` links to both.
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
    """Write a page and a profile for each (op, dtype) among the right rows of `results` (bench.results.Results), and name them in each of these rows.
    What cannot be inspected is said by `remark` and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {op.name: op for op in ops}
    made: dict[tuple, dict | None] = {}
    taken: set[str] = set()
    for row in results.rows:
        key = (row["op"], row["dtype"])
        if row["backend"] != BACKEND or row["status"] != "ok" or row["op"] not in known:
            continue
        if key not in made:
            of = known[row["op"]], row["case"], row["dtype"], folder, _free(*key, taken), results.path.parent, remark
            made[key] = (_inspect(*of) or {}) | (_profile(*of) or {})
        if made[key]:
            row["artefacts"] = {**row.get("artefacts", {}), **made[key]}
    results.save()


def _free(op: str, dtype: str, taken: set[str]) -> str:
    """A name for an op's files of plain letters, and one that no other op's have: "soft max" and "soft-max" are two."""
    stem = re.sub(r"[^\w.-]+", "-", f"{op}-{dtype}")
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}"
    taken.add(name)
    return name


def _inspect(op, case: str, dtype: str, folder: Path, name: str, base: Path, remark) -> dict | None:
    """The page of one op, written as asm-`name`.html. Returns what its rows say of it."""
    from ..bench import whole
    from ..ops import cases
    from .inspector import code, launches, page, report, targets
    goal = targets.get("native")
    file = folder / f"asm-{name}.html"
    try:
        chosen = cases.parse(op, case)
        reports = [report.of(code.of_launch(x, goal)) for x in launches.of_op(op, chosen, dtype, "cpu", row=goal.row)]
        whole.write(file, page.render(reports))
    except Exception as e:  # whatever a user's op does: the figures stand without it
        remark(f"no page of {op.name} {dtype}: {type(e).__name__}: {str(e).partition(chr(10))[0]}")
        return None
    path = Path(os.path.relpath(file.resolve(), base.resolve()))
    return {"asm": path.as_posix(), "verdict": verdict(reports), "case": case}


def _profile(op, case: str, dtype: str, folder: Path, name: str, base: Path, remark) -> dict | None:
    """The profile of one op, written into profile-`name`. Returns what its rows say of it."""
    from ..bench import results
    from ..ops import cases
    from .profiling import page, session, target
    below = folder / f"profile-{name}"
    try:
        chosen = cases.parse(op, case)
        profile = session.steps(target.of_op(op, chosen, dtype, BACKEND), below, count_hardware=False, measure=False)
        session.times([profile])
        page.write([("", profile)], below / "index.html", results.machine(), f"a profile of {op.name} {case} {dtype} beside its figures")
    except Exception as e:
        remark(f"no profile of {op.name} {dtype}: {type(e).__name__}: {str(e).partition(chr(10))[0]}")
        return None
    return {"trace": Path(os.path.relpath((below / "index.html").resolve(), base.resolve())).as_posix(), "case": case}


def verdict(reports: list) -> str:
    """The verdict of all kernels of an op and the least share of vector code among their hot loops: "VECTOR 100%"."""
    from .inspector.verdict import overall
    word = overall([r.verdict for r in reports]) or "nothing to judge"
    shares = [loop.figures["vector"] for r in reports for loop in r.hot if loop.figures["vector"] is not None]
    return f"{word} {math.floor(100 * min(shares))}%" if shares else word  # 100 only where all is
