"""Machines in words: what this one's CPU is called and which vector ISA it has, and a board's line."""

from __future__ import annotations

import functools

#: py-cpuinfo's flag -> the vector ISA's name, widest first
_ISA = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_2", "SSE4.2"), ("sve", "SVE"),
        ("asimd", "NEON"), ("v", "RVV"))


@functools.lru_cache(maxsize=1)
def cpu_info() -> dict:
    """py-cpuinfo's facts (it takes a second to gather them, so once). It reads them from a Python that it starts, and fails where that prints something else as well, as
    by a `sitecustomize`: then name and flags are the system's."""
    import cpuinfo
    try:
        return cpuinfo.get_cpu_info()
    except Exception:
        return _of_system()


def _of_system() -> dict:
    """The first CPU's name and flags by /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            first = dict(map(str.strip, line.split(":", 1)) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    except OSError:
        return {}
    return {"flags": (first.get("flags") or first.get("Features") or "").split()} | ({"brand_raw": first["model name"]} if "model name" in first else {})


def cpu_name() -> str:
    """The CPU's model and vector ISA, like "Intel(R) Xeon(R) Processor, AVX-512"."""
    info = cpu_info()
    flags = set(info.get("flags", ()))
    isa = next((name for flag, name in _ISA if flag in flags), "scalar")
    return f"{info.get('brand_raw') or info.get('arch_string_raw', 'unknown CPU')}, {isa}"


def board_text(b: dict) -> str:
    """A board's line, from what a results file says of it (`Backend.facts`)."""
    vectors = f", {b['vlen']}-bit vectors" if b["vlen"] else ""
    return f"{b['runner']}: {b['cpu']}, {b['arch']}{vectors}, {b['cores']} cores; compiled for {b['target']}"
