"""Environment variables of loading and launching, and what they were called before."""

from __future__ import annotations

import os

#: TRIPORT_<name> -> its former name, which is heeded where the new one is not set
FORMER = {"PERF_MAP": "TRITON_CPU_PERF_MAP", "THREADS": "TRITON_CPU_THREADS"}


def get(name: str, default: str) -> str:
    """The value of TRIPORT_<name>."""
    return os.environ.get(f"TRIPORT_{name}", os.environ.get(FORMER.get(name, ""), default))
