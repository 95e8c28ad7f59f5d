"""Results files of `triport bench --json` as tests need them: sound ones, and ones whose every name is hostile."""

import json
import random

NASTY = '</script><script>alert(1)</script><b title="x" \'&amp; $x^2$ _É漢字‮'


def row(op="softmax", case="128x128", dtype="fp32", backend="torch", t=1e-4, **more):
    """A right row of a results file."""
    spread = {"p20": 0.9 * t, "p50": t, "p80": 1.2 * t}
    return {"op": op, "case": case, "dtype": dtype, "backend": backend, "device": "cpu", "status": "ok", "error": 1e-7, "allowed": 2e-6,
            "bytes": 131072, "flops": 655360, "first_call_s": {"here": 0.1}, "peak_bytes": 65536, "wall_s": spread, "cpu_s": spread | {"avg": t},
            "roofline": 0.4, **more}


def made(name="laptop", seed=0):
    """A results file of two ops, two types, three backends and three sizes."""
    rng, rows = random.Random(seed), []
    for op in ("softmax", "matmul"):
        for dtype in ("fp32", "bf16"):
            for n in (64, 256, 1024):
                base = n * n * 1e-9 * rng.uniform(1, 3)
                for k, backend in enumerate(("torch", "torch-compile", "triton-cpu")):
                    t = base * rng.uniform(0.3, 3) if k else base
                    first = {"cold": 0.2, "reload": 0.003, "process": 0.02, "here": 0.2} if k == 2 else {"here": 0.01 * (k + 1)}
                    rows.append(row(op, f"{n}x{n}", dtype, backend, t, bytes=8 * n * n, flops=5 * n * n, speedup=base / t, first_call_s=first))
    return {"schema": 1, "complete": True, "rows": rows, "machine": {
        "cpu": f"CPU of {name}", "cores": 2, "threads": 2, "torch": "2", "command": "bench",
        "roofline": {"cpu": {"bytes_per_s": 3e10, "flop_per_s": 2e11}}}}


def written(folder, **files):
    """Paths of results files that hold these objects (or texts)."""
    out = []
    for name, data in files.items():
        out.append(folder / f"{name}.json")
        out[-1].write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return out


def nasty():
    """Results whose every name is hostile."""
    data = made()
    for n, r in enumerate(data["rows"]):
        for key in ("op", "case", "dtype", "backend", "device"):
            r[key] = f"{NASTY} {key} {n % 3} " + "long" * 60 * (n % 2)
    data["rows"][0] |= {"status": "failed", "reason": NASTY}
    data["rows"][3]["artefacts"] = {"asm": NASTY, "verdict": NASTY, "trace": NASTY, "case": NASTY}
    data["machine"] |= {"cpu": NASTY, "command": NASTY, "gpu": NASTY, "torch": NASTY}
    return data
