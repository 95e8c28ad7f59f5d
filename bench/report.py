"""Results for people: a table, Markdown, or spine-triton's two lines a case."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def time_text(s: float) -> str:
    """Seconds at a glance: 12.3 us, 4.56 ms, 1.2 s."""
    if s < 1e-3:
        return f"{s * 1e6:.1f} us"
    return f"{s * 1e3:.2f} ms" if s < 1 else f"{s:.2f} s"


def table(rows: list[dict]) -> Table:
    """One line for each op x case x dtype x backend; columns that no line fills are left out."""
    bases = {r.get("baseline", "torch") for r in rows}
    t = Table(show_edge=False, pad_edge=False, header_style="bold")
    device = any("device_s" in r for r in rows)
    for name, right in (("op", 0), ("case", 0), ("dtype", 0), ("backend", 0), *([("GPU p50", 1)] if device else []), ("wall p50", 1),
                        ("p20..p80", 1), ("cpu p50", 1), ("GB/s", 1), ("TFLOP/s", 1), ("roof", 1),
                        (f"vs {bases.pop() if len(bases) == 1 else 'baseline'}", 1), ("cold", 1),
                        ("reload", 1), ("new process", 1), ("memory", 1), ("error", 1)):
        t.add_column(name, justify="right" if right else "left", no_wrap=True)
    last = None
    for r in rows:
        key = (r["op"], r["case"], r["dtype"])
        if last is not None and key != last:
            t.add_section()
        head = ("", "", "") if key == last else key
        last = key
        if r["status"] == "failed":
            t.add_row(*head, r["backend"], *([""] if device else []), "[red]failed[/red]", *[""] * 10, r["reason"][:40])
            continue
        if r["status"] == "wrong":
            t.add_row(*head, r["backend"], *([""] if device else []), "[red]WRONG[/red]", *[""] * 10, f"[red]{r['error']:.1e}[/red]")
            continue
        wall, cpu, first = r["wall_s"], r["cpu_s"], r["first_call_s"]
        speed = r.get("speedup")
        colour = "" if speed is None else "green" if speed >= 1.05 else "red" if speed < 0.95 else ""
        speed_text = f"{speed:.2f}x" if speed is not None else ""
        gpu = [time_text(r["device_s"]["p50"]) if "device_s" in r else ""] if device else []
        t.add_row(*head, r["backend"], *gpu, time_text(wall["p50"]), f"{time_text(wall['p20'])}..{time_text(wall['p80'])}",
                  time_text(cpu["p50"]), f"{r['gb_per_s']:.1f}" if "gb_per_s" in r else "",
                  f"{r['tflop_per_s']:.3f}" if "tflop_per_s" in r else "",
                  f"{100 * r['roofline']:.0f}%" if "roofline" in r else "",
                  f"[{colour}]{speed_text}[/{colour}]" if colour else speed_text,
                  time_text(first["cold"]) if "cold" in first else time_text(first["here"]),
                  time_text(first["reload"]) if "reload" in first else "", time_text(first["process"]) if "process" in first else "",
                  f"{r['peak_bytes'] / 1e6:.1f} MB" if "peak_bytes" in r else "", f"{r['error']:.0e}")
    t.columns = [c for c in t.columns if any(c.cells)]
    return t


def measured(limits: dict) -> str:
    """The limits of a run's devices."""
    out = []
    if "cpu" in limits:
        out.append(f"copy {limits['cpu']['bytes_per_s'] / 1e9:.1f} GB/s, FMA {limits['cpu']['flop_per_s'] / 1e12:.3f} TFLOP/s (fp32)")
    if "board" in limits:
        out.append(f"on the board copy {limits['board']['bytes_per_s'] / 1e9:.2f} GB/s")
    if "cuda" in limits:
        gpu = limits["cuda"]
        out.append(f"on the GPU copy {gpu['bytes_per_s'] / 1e9:.0f} GB/s, products {gpu['flop_per_s'] / 1e12:.0f} TFLOP/s (fp16), "
                   f"{gpu['flop_per_s_fp32'] / 1e12:.1f} (fp32)")
    return "; ".join(out)


def board_text(b: dict) -> str:
    """A board's line."""
    vectors = f", {b['vlen']}-bit vectors" if b["vlen"] else ""
    return f"{b['runner']}: {b['cpu']}, {b['arch']}{vectors}, {b['cores']} cores; compiled for {b['target']}"


def show(data: dict, console: Console):
    """The machine's line, the table, and what went wrong."""
    m = data["machine"]
    console.print(f"{m['cpu']}; {m['cores']} cores, {m['threads']} threads; torch {m['torch']}, triton {m['triton']}, "
                  f"LLVM {m['LLVM']}")
    if "gpu" in m:
        console.print(f"{m['gpu']}; CUDA {m['cuda']}" + (f", NVRTC {m['NVRTC']}, cuda-core {m['cuda-core']}" if "NVRTC" in m else ""))
    if "board" in m:
        console.print(board_text(m["board"]))
    console.print("measured here: " + measured(m["roofline"]))
    console.print(table(data["rows"]))
    for r in data["rows"]:
        if r["status"] == "failed":
            console.print(f"[red]{r['op']} {r['case']} {r['dtype']} {r['backend']}: {r['reason']}[/red]", highlight=False)
        elif r["status"] == "wrong":
            console.print(f"[red]{r['op']} {r['case']} {r['dtype']} {r['backend']}: error {r['error']:.2e}, allowed "
                          f"{r['allowed']:.1e}[/red]", highlight=False)
        if "new_process" in r:
            console.print(f"[yellow]{r['op']} {r['case']} {r['dtype']} {r['backend']}: no first call in a new process: {r['new_process']}[/yellow]", highlight=False)


def markdown(data: dict) -> str:
    """The table as Markdown, with the machine and the command that made it."""
    m = data["machine"]
    device = any("device_s" in r for r in data["rows"])
    gpu = f"{m['gpu']}, CUDA {m['cuda']}; " if "gpu" in m else ""
    columns = ["op", "case", "dtype", "backend", *(["GPU p50"] if device else []), "wall p50", "p20..p80", "CPU p50", "GB/s", "TFLOP/s", "roof",
               "vs torch", "cold", "reload", "new process"]
    board = board_text(m["board"]) + "; " if "board" in m else ""
    out = [f"`triport {m['command']}` on {m['time'][:10]}: {board}{gpu}{m['cpu']}, {m['threads']} threads; Python {m['python']}, torch "
           f"{m['torch']}, triton {m['triton']}, llvmlite {m['llvmlite']} (LLVM {m['LLVM']}); measured in the run: {measured(m['roofline'])}.", "",
           f"| {' | '.join(columns)} |", "|" + "---|" * 4 + "--:|" * (len(columns) - 4)]
    for r in data["rows"]:
        if r["status"] != "ok":
            out.append(f"| {r['op']} | {r['case']} | {r['dtype']} | {r['backend']} | {r['status']} |" + " |" * (len(columns) - 5))
            continue
        w, first = r["wall_s"], r["first_call_s"]
        cells = [r["op"], r["case"], r["dtype"], r["backend"], *([time_text(r["device_s"]["p50"]) if "device_s" in r else ""] if device else []),
                 time_text(w["p50"]), f"{time_text(w['p20'])}..{time_text(w['p80'])}", time_text(r["cpu_s"]["p50"]),
                 f"{r['gb_per_s']:.1f}" if "gb_per_s" in r else "", f"{r['tflop_per_s']:.3f}" if "tflop_per_s" in r else "",
                 f"{100 * r['roofline']:.0f}%" if "roofline" in r else "",
                 f"{r['speedup']:.2f}x" if r.get("speedup") else "",
                 *(time_text(first[k]) if k in first else "" for k in ("cold", "reload", "process"))]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def spine(data: dict) -> str:
    """spine-triton's format: a title and two lines, `Wall: Avg=...` and `CPU: Avg=...`, for each row. In seconds."""
    out = []
    for r in data["rows"]:
        if r["status"] != "ok":
            continue
        n = r["wall_s"]["n"] * r["repeats"]
        out.append(f"bench_{r['op']}({r['case']}, '{r['backend']}') {{}}, {n} times, all results in seconds")
        for label, key in (("Wall", "wall_s"), ("CPU", "cpu_s")):
            s = r[key]
            out.append(f"{label}: Avg={s['avg']:.6f}, min={s['min']:.6f}, std={s['std']:.6f}, max={s['max']:.6f}")
    return "\n".join(out)
