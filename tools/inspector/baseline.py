"""Two reports of a kernel, an earlier one from a file and today's: what got worse, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from ...backends.base import Error, contents
from . import record
from .verdict import PARTLY, SCALAR, VECTOR

_RANK = {None: 0, SCALAR: 1, PARTLY: 2, VECTOR: 3}
#: figure -> (what is more of it: worse or better, what to make of hot loops' values, how to say it)
_FIGURES = {
    "vector": (+1, min, "vector share of the worst hot loop"), "fma": (+1, min, "fma share of the worst hot loop"),
    "load_bits": (+1, min, "narrowest vector load, bits"), "store_bits": (+1, min, "narrowest vector store, bits"),
    "spills": (-1, sum, "spills"), "calls": (-1, sum, "calls"), "f64": (-1, sum, "fp64 instructions"), "gathers": (-1, sum, "gathers and scatters"),
    "masked": (-1, max, "masked share of the worst hot loop"), "convert": (-1, max, "conversions' share of the worst hot loop"),
    "matrix": (+1, sum, "matrix instructions"), "registers": (-1, max, "registers"), "shared": (-1, max, "shared memory, bytes"),
}
#: shares are rounded to four places; a difference below this is none
_NOISE = 0.005


def read(path: str | Path) -> list[dict]:
    """The reports of a file that `triport asm --json` printed. Raises `Error`."""
    try:
        found = json.loads(contents(path))
    except OSError as e:
        raise Error(f"{path} cannot be read: {e.strerror}") from None
    except ValueError:
        raise Error(f"{path} is no JSON: it takes a report that `triport asm --json` printed") from None
    if not isinstance(found, list) or not all(isinstance(d, dict) and isinstance(d.get("loops"), list) and "kernel" in d and "verdict" in d for d in found):
        raise Error(f"{path} is not a report that `triport asm --json` printed")
    newer = [d["schema"] for d in found if d.get("schema", record.SCHEMA) not in record.READ]
    if newer:
        raise Error(f"{path} has schema {newer[0]}; this version reads {', '.join(map(str, record.READ))}")
    return found


def worse(before: list[dict], now: list[dict]) -> tuple[list[str], list[str]]:
    """(a line for each thing that got worse, remarks on kernels that only one side has). Kernels belong together by name and target; of several of
    one name by their order. Raises `Error` where none does."""
    lines, remarks, left = [], [], list(before)
    pairs = 0
    for b in now:
        a = next((d for d in left if (d["kernel"], d.get("target")) == (b["kernel"], b["target"])), None)
        if a is None:
            remarks.append(f"{b['kernel']} [{b['target']}] is new: the baseline has nothing to compare it with")
            continue
        left.remove(a)
        pairs += 1
        lines += [f"{b['kernel']} [{b['target']}]: {text}" for text in _compared(a, b)]
    if not pairs:
        has = ", ".join(f"{d['kernel']} [{d.get('target')}]" for d in before[:5])
        raise Error(f"the baseline has no kernel of these; it has {has or 'none'}")
    remarks += [f"{a['kernel']} [{a.get('target')}] is in the baseline only" for a in left]
    return lines, remarks


def _compared(a: dict, b: dict) -> list[str]:
    out = []
    if _RANK.get(b["verdict"], 0) < _RANK.get(a["verdict"], 0):
        out.append(f"verdict is {b['verdict'] or 'none'}, was {a['verdict']}")
    if a.get("share") is not None and (b.get("share") is None or b["share"] < a["share"] - _NOISE):
        out.append(f"share of work that is vector is {_shown(b.get('share'))}, was {_shown(a['share'])}")
    if b["unknown"] > a.get("unknown", 0.0) + _NOISE:
        out.append(f"unknown instructions are {b['unknown']:.1%}, were {a.get('unknown', 0.0):.1%}")
    for name, (better, made, said) in _FIGURES.items():
        old, new = (_figure(d, name, made) for d in (a, b))
        if old is None or new is None:
            continue
        if (new - old) * better < -(_NOISE if isinstance(new, float) or isinstance(old, float) else 0):
            out.append(f"{said}: {_shown(new)}, was {_shown(old)}{_where(b, name, better)}")
    return out


def _figure(d: dict, name: str, made):
    values = [loop[name] for loop in d["loops"] if loop["hot"] and loop.get(name) is not None]
    return made(values) if values else None


def _shown(x) -> str:
    return "none" if x is None else f"{x:.2f}" if isinstance(x, float) else str(x)


def _where(d: dict, name: str, better: int) -> str:
    """The loop that has the worst of a figure, for the line."""
    hot = [loop for loop in d["loops"] if loop["hot"] and loop.get(name) is not None]
    worst = (min if better > 0 else max)(hot, key=lambda loop: loop[name])
    at = worst["lines"][0] if worst["lines"] else None
    return f" ({worst['label']}" + (f" {at['file'].rpartition('/')[2]}:{at['line']}" if at else "") + ")"
