"""`triport bench --distributed`: ops over torchrun's ranks, of which the first one prints."""

from __future__ import annotations

import contextlib
import os
import sys

from . import exits, outputs

#: options of `triport bench` that this way of it takes, and what is no option
_TAKEN = ("command", "distributed", "timeout", "op", "case", "sweep", "dtype", "device", "threads", "reps", "json", "csv", "markdown", "seed")


def run(args, defaults: dict, timeout: float) -> int:
    """defaults: those of `triport bench`'s options. timeout: seconds that a rank may be silent."""
    from ..backends.base import Error
    from ..bench import distributed, plan, ranks
    from ..ops import registry

    for name, value in vars(args).items():
        if name not in _TAKEN and value != defaults.get(name):
            raise Error(f"--{name.replace('_', '-')} does not go with --distributed, which takes {', '.join('--' + n for n in _TAKEN[2:])}")
    device = ranks.device_here(args.device)
    wanted = plan.Plan([registry.get(n) for n in args.op or distributed.WAYS], ["triton-gpu" if device == "cuda" else "triton-cpu"], args.dtype or ["fp32"],
                       args.case, args.sweep, [], device=device)
    items, remarks = wanted.items()
    if not (args.case or args.sweep):
        items = _middle(items)
    first = os.environ.get("RANK", "0") == "0"
    todo = distributed.pieces(items, int(os.environ.get("WORLD_SIZE", "1")))
    with outputs.opened(args) if first else contextlib.nullcontext() as results, ranks.group(device, timeout):
        return _measured(args, todo, device, results, remarks)


def _middle(items: list) -> list:
    """Of each op and dtype one case, the middle one by size."""
    by: dict = {}
    for op, dtype, case in items:
        by.setdefault((op.name, dtype), []).append((op, dtype, case))
    return [sorted(found, key=lambda item: item[2].elements)[len(found) // 2] for found in by.values()]


def _measured(args, todo, device: str, results, remarks: list[str]) -> int:
    import torch.distributed as dist

    from ..bench import distributed
    from ..bench.results import machine

    if results is None:
        for _ in distributed.measure(todo, device, args.reps, args.seed):
            pass
        return exits.GOOD  # the first rank says whether results were right
    for remark in remarks:
        print(remark, file=sys.stderr)
    results.meta = machine(device) | {"ranks": dist.get_world_size()}
    for row in distributed.measure(todo, device, args.reps, args.seed):
        results.add(row)
    results.finish()
    _show(results.rows, dist.get_world_size(), device)
    return exits.WRONG if any(row["status"] != "ok" for row in results.rows) else exits.GOOD


def _show(rows: list[dict], world: int, device: str):
    """A table for each op: a line for each number of ranks."""
    from rich.table import Table

    from ..bench import words
    from ..bench.report import console, time_text
    from ..bench.units import percent

    out = console()
    for heading in dict.fromkeys((r["op"], r["dtype"]) for r in rows):
        mine = [r for r in rows if (r["op"], r["dtype"]) == heading]
        t = Table(title=f"{heading[0]} {mine[0]['distributed']['of']} {heading[1]}", title_justify="left", show_edge=False, pad_edge=False, header_style="bold")
        for name in ("sharded", "scaling", "result"):
            t.add_column(name, no_wrap=True)
        for name in ("ranks", "time", "kernels", "communication", "efficiency"):
            t.add_column(name, justify="right", no_wrap=True)
        for r in mine:
            how = r["distributed"]
            # the mark stands in the last column, where it costs other headings least on a screen of 80 columns
            figures = ([time_text(s["p50"]) for s in (r["wall_s"], how["kernels_s"], how["communication_s"])] + [percent(r["metrics"]["efficiency"]) + " noisy" * words.is_noisy(r)]
                       if r["status"] == "ok" else ["WRONG", f"error {r['error']:.2g}", f"of {r['allowed']:.2g}", ""])
            t.add_row(how["sharded"], how["scaling"], how["placed"], str(how["ranks"]), *figures)
        out.print(t)
        out.print()
    for kind, text in words.words(rows):
        if kind == "remark":
            print(text)
    wrong = sum(r["status"] != "ok" for r in rows)
    print(f"{len(rows)} results of up to {world} ranks on {device}, " + (f"{wrong} of them wrong" if wrong else "all right"))
