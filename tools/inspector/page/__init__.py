"""The page of machine code: source, plan, stages and assembly beside each other in one file that opens offline, at the hottest loop.

`render` writes it. data.py says what is in it, links.py which lines belong together, words.py what mnemonics mean; the scripts draw it: model.js
(kernels, rows), pane.js (one pane), loops.js (the list of kernels, the table of loops, the card of one), tools.js (the box, search, the help),
state.js (what is shown), page.js (pointer, keys, the address).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from importlib import resources
from typing import Sequence

from ..report import Report
from ..schema import KINDS
from . import data

_SCRIPTS = ("model.js", "pane.js", "loops.js", "tools.js", "state.js", "page.js")


def render(reports: Sequence[Report | dict], others: Sequence[Report | dict | None] = (), ranked: Sequence[dict] = ()) -> str:
    """The page of one or more kernels, in the order that they are listed in.

    others: for each what it is compared with, shown beside it; a report, or one that `triport asm --json` saved. ranked: for each columns of the list
    of kernels, name -> text or number; "share" is a part of 1, drawn as a bar. A report with a `run` has its own.
    """
    pick = lambda given, n: given[n] if n < len(given) else None  # noqa: E731
    kernels = [data.kernel(r, pick(others, n), pick(ranked, n)) for n, r in enumerate(reports)]
    heads = [k["sides"] for k in kernels]
    names = [f"{h[0]['kernel']} {' and '.join(str(s['target']) for s in h)}" for h in heads]
    title = ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])
    scripts, style = [_file(name) for name in _SCRIPTS], _file("page.css")
    # What a browser runs and applies is these texts and nothing else, and it fetches nothing, whatever the kernels' texts hold.
    policy = ("default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
              f"style-src {_digest(style)}; script-src {' '.join(map(_digest, scripts))}")
    said = [f"{s['kernel']} for {s['target']}: {s['verdict'] or 'nothing to judge'}" for h in heads for s in h]
    words = "".join(f"<li>{html.escape(text)}</li>" for text in said)
    parts = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": style, "WORDS": words, "DATA": _packed({"kernels": kernels, "kinds": KINDS}),
             "SCRIPT": "\n".join(f"<script>{s}</script>" for s in scripts)}
    out, rest = [], _file("page.html")
    while rest:  # each part once: what a part says is not looked through for names of parts
        before, mark, rest = rest.partition("@")
        name, _, rest = rest.partition("@") if mark else ("", "", "")
        out += [before, parts[name] if mark else ""]
    return "".join(out)


def _packed(value) -> str:
    """JSON, compressed and in base64: texts of stages repeat themselves, and nothing in them can end the element that holds them."""
    text = json.dumps(value, separators=(",", ":"), default=vars)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
