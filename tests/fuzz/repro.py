"""A failing program as a script that needs torch, triton and numpy alone."""

from __future__ import annotations

import inspect

import numpy as np

from . import evaluate, program as tree, source
from .check import Failure
from .program import GUARD, STORED, Program

#: how a script fills memory, as it was when this process began
FILL = [inspect.getsource(tree.encode), "", inspect.getsource(tree.fill), ""]


def script(p: Program, failure: Failure) -> str:
    """The script: it runs the kernel, prints what differs and ends with 1 if anything does."""
    out = [f"# {failure.kind}: {' '.join(failure.detail.split())[:200]}", f"# from seed {p.seed}", "import os", "import sys", "",
           "os.environ.setdefault('TRITON_DEFAULT_BACKEND', 'cpu')", "import numpy as np", "import torch", source.module(p), ""]
    out += [f"INTS, FLOATS = {tree.INTS!r}, {tree.FLOATS!r}", "NUMPY = {t: np.dtype({'int1': 'bool', 'bfloat16': 'float32'}.get(t, t)) "
            "for t in ('int1', *INTS, *FLOATS)}", "", ""]
    out += [*FILL, "bad = 0"]
    for launch in p.launches:
        out += _launch(p, launch)
    out += ["print('wrong' if bad else 'as wanted')", "sys.exit(1 if bad else 0)"]
    return "\n".join(out) + "\n"


def _launch(p: Program, launch) -> list[str]:
    out = ["data = {}"]
    for s in p.storages:
        out.append(f"data[{s.name!r}] = torch.from_numpy(np.ascontiguousarray(fill({s.dtype!r}, {s.size + 2 * GUARD}, {s.seed}, {s.span!r}))"
                   ".view(np.uint8).copy())")
    storages = {s.name: s for s in p.storages}
    args = []
    for b in p.buffers:
        s = storages[b.storage]
        width = STORED[s.dtype].itemsize
        start, end = GUARD * width + b.offset, (GUARD + s.size) * width
        kind = "bool" if b.dtype == "int1" else b.dtype
        args.append(f"data[{b.storage!r}][{start}:{end - (end - start) % STORED[b.dtype].itemsize}].view(torch.{kind})")
        out.append(f"{b.name} = {args[-1]}")
    numbers = [repr(v) for v in launch.scalars.values()]
    wanted = evaluate.run(p, launch)
    out.append(f"kernel[{launch.grid}]({', '.join([*(b.name for b in p.buffers), *numbers])})")
    for s in p.storages:
        stored = STORED[s.dtype]
        view = f"data[{s.name!r}].numpy().view({str(stored)!r})"
        before = np.ascontiguousarray(tree.fill(s.dtype, s.size + 2 * GUARD, s.seed, s.span)).view(stored)
        after = wanted[s.name].view(stored)
        changed = np.flatnonzero(before != after)
        out += [f"wanted = np.ascontiguousarray(fill({s.dtype!r}, {s.size + 2 * GUARD}, {s.seed}, {s.span!r})).view({str(stored)!r}).copy()"]
        if len(changed):
            out.append(f"wanted[{changed.tolist()}] = {after[changed].tolist()}")
        sign = " | ((got == 0) & (wanted == 0))" if s.dtype in tree.FLOATS else ""
        out += [f"got = {view}", f"at = np.flatnonzero(~((got == wanted){sign}))", "bad += len(at)",
                f"print({s.name!r}, 'differs at', (at - {GUARD})[:10].tolist(), 'wanted', wanted[at][:10].tolist(), 'got', got[at][:10].tolist())"]
    return out
