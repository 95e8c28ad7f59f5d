"""What stands at the end of a run: what checks found by kernel, launches by test, what no GPU would take."""

from __future__ import annotations

from collections import defaultdict

#: tests that the table of launches shows without -v
ROWS = 20


def write(out, session):
    """The sections that a session's options ask for. out: pytest's terminal reporter."""
    if session.check:
        _checks(out, session.told)
    if session.launches:
        _launches(out, session.told)
    if session.lint != "off":
        _lint(out, session)


def _checks(out, told):
    by_kernel, launched = defaultdict(list), 0
    for t in told:
        launched += sum(row[0] + row[1] for row in t["launches"].values())
        for record in t["checks"]:
            by_kernel[record["kernel"]].append((record, t["test"]))
    out.section("Triton checks")
    if not by_kernel:
        out.write_line(f"nothing found in {_count(launched, 'launch', 'launches')}")
    for kernel, found in sorted(by_kernel.items(), key=lambda row: -len(row[1])):
        out.write_line(f"{kernel}: {_count(len(found), 'report')}")
        at = defaultdict(list)
        for record, test in found:
            at[record["kind"], record["file"], record["line"]].append((record["program"], test))
        for (kind, file, line), where in sorted(at.items()):
            program, test = where[0]
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            out.write_line(f"  {kind} at {file}:{line}, program {program} in {test}{more}")


def _launches(out, told):
    tests = defaultdict(lambda: defaultdict(lambda: [0, 0, 0.0]))
    for t in told:
        for kernel, row in t["launches"].items():
            tests[t["test"]][kernel] = [a + b for a, b in zip(tests[t["test"]][kernel], row)]
        tests[t["test"]]  # also of those that launched nothing
    rows = sorted(tests.items(), key=lambda row: (-sum(n + tuned for n, tuned, _ in row[1].values()), row[0]))
    shown = [row for row in rows if row[1]]
    out.section("Triton launches")
    if shown:
        out.write_line(f"{'launches':>8}  {'kernel time':>11}  test")
    limit = None if out.config.get_verbosity() > 0 else ROWS
    for test, kernels in shown[:limit]:
        total, tuned = sum(n + t for n, t, _ in kernels.values()), sum(t for _, t, _ in kernels.values())
        names = ", ".join(f"{name} x{n + t}" for name, (n, t, _) in sorted(kernels.items()))
        note = f", {tuned} of them the autotuner's" if tuned else ""
        out.write_line(f"{total:>8}  {sum(s for *_, s in kernels.values()) * 1e3:>8.2f} ms  {test}: {names}{note}")
    if len(shown) > ROWS and limit:
        out.write_line(f"and {len(shown) - ROWS} tests more, with -v")
    kernels = {name for _, row in shown for name in row}
    out.write_line(f"{_count(len(kernels), 'kernel')} in {_count(len(shown), 'test')}; {_count(len(rows) - len(shown), 'test')} launched none")


def _lint(out, session):
    tests = defaultdict(list)
    for t in session.told:
        for text in t["lint"]:
            tests[text].append(t["test"])
    if tests:
        out.section(f"Triton kernels that no GPU would take (as {session.gpu.name})")
        for text, where in sorted(tests.items()):
            out.write_line(f"{text}\n    in {where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}")


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"
