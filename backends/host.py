"""Machines in words: what this one's CPU is called and which vector ISA it has, and a board's line."""

from __future__ import annotations

import functools

#: py-cpuinfo's flag -> the vector ISA's name, widest first
_ISA = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_2", "SSE4.2"), ("sve", "SVE"),
        ("asimd", "NEON"), ("v", "RVV"))


@functools.lru_cache(maxsize=1)
def cpu_info() -> dict:
    """py-cpuinfo's facts (it takes a second to gather them, so once)."""
    import cpuinfo
    return cpuinfo.get_cpu_info()


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
