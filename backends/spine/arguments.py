"""A call's tensors and numbers as a bundle's function takes them, by its description in the manifest."""

from __future__ import annotations

import torch

from ...ops.case import KEPT, dtype_name
from ..base import Error
from . import ctext, request


def inputs_of(description: dict, values: list) -> tuple[list[tuple[str, torch.Tensor]], list[int | float]]:
    """(role and values of every tensor argument, numbers) of a call with these arguments (tensors and numbers), in the function's order. A matrix with a
    leading dimension is given as its lines with what lies between them. Raises `Error` for what the function does not take."""
    name = description["name"]
    if len(description["order"]) != len(values):
        raise Error(f"{name} takes {len(description['order'])} tensors and numbers ({', '.join(description['order'])}), not {len(values)}")
    given = dict(zip(description["order"], values))
    numbers: dict[str, int | float] = {}
    for a in (a for a in description["arguments"] if a["role"] != "out"):
        t = given[a["name"]]
        if not isinstance(t, torch.Tensor) or dtype_name(t.dtype) != a["dtype"] or t.dim() != len(a["shape"]):
            said = f"{dtype_name(t.dtype)} of {t.dim()} dimensions" if isinstance(t, torch.Tensor) else type(t).__name__
            raise Error(f"{name}: {a['name']} is {said}; it takes {a['dtype']} of {len(a['shape'])}")
        for s, n in zip(a["shape"], t.shape):
            if numbers.setdefault(s, n) != n:
                raise Error(f"{name}: {a['name']} has shape {tuple(t.shape)}, and {s} is {numbers[s]} already")
        if a["ld"]:
            numbers[a["ld"]] = max(t.stride(1 if a["transposed"] else 0), t.shape[0 if a["transposed"] else 1]) if t.numel() else t.shape[0 if a["transposed"] else 1]
    for q in description["numbers"]:
        if q["kind"] in ("int", "float", "bool"):
            v = given[q["name"]]
            if isinstance(v, torch.Tensor) or not isinstance(v, (bool, int) if q["kind"] != "float" else (bool, int, float)):
                raise Error(f"{name}: {q['name']} is {type(v).__name__}; it takes {q['kind']}")
            numbers[q["name"]] = float(v) if q["kind"] == "float" else int(v)
    out = []
    for a in description["arguments"]:
        if a["role"] == "out":
            try:
                shape = [ctext.value(s, numbers) for s in a["shape"]]
            except ValueError as e:
                raise Error(f"{name}: the shape of {a['name']} is no number here: {e}") from None
            t = torch.zeros(shape, dtype=KEPT[a["dtype"]])
            out.append(("out", t.T.contiguous() if a["transposed"] else t))
        else:
            t = given[a["name"]]
            out.append((a["role"], _lines(t.T if a["transposed"] else t, numbers[a["ld"]]) if a["ld"] else t.T if a["transposed"] else t))
    return out, [numbers[q["name"]] for q in description["numbers"]]


def _lines(t: torch.Tensor, ld: int) -> torch.Tensor:
    """All memory from a matrix' first element to its last."""
    if not t.numel():
        return torch.empty(0, dtype=t.dtype)
    whole = torch.zeros((t.shape[0] - 1) * ld + t.shape[1], dtype=t.dtype)
    whole.as_strided(t.shape, (ld, 1)).copy_(t)
    return whole


def outputs_of(description: dict, given: list[tuple[str, torch.Tensor]], values: list, raw: list[bytes]) -> dict[str, torch.Tensor]:
    """The written tensors by name, as a call with `values` has them afterwards. given: as `inputs_of` has made it; raw: what came back."""
    known = dict(zip(description["order"], values))
    out = {}
    written = [(a, t) for a, (role, t) in zip(description["arguments"], given) if role != "in"]
    for (a, like), data in zip(written, raw):
        t = request.tensor(data, KEPT[a["dtype"]])
        if a["ld"]:
            m = known[a["name"]].T if a["transposed"] else known[a["name"]]
            ld = max(known[a["name"]].stride(1 if a["transposed"] else 0), m.shape[1])
            t = t.as_strided(m.shape, (ld, 1)) if m.numel() else torch.empty(m.shape, dtype=t.dtype)
        else:
            t = t.view(like.shape)
        out[a["name"]] = t.T if a["transposed"] else t
    return out
