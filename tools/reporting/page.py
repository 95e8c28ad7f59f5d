"""The page: one file that opens without network. What comes from results files enters it as escaped text, or as JSON that the page's own code reads
and writes into the document as text alone."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources

from ...bench import fields
from ..template import filled
from . import colours, summary
from .runs import Run

_ROW = ("run", "op", "case", "variant", "dtype", "backend", "device", "status", "reason", "error", "allowed", "gpu", "time", "wall", "cpu", "first",
        "bytes", "flops", "speedup", "baseline", "noisy", "unsteady", "roof", "peak", "asm", "trace", "verdict", "code_case")


def render(runs: list[Run]) -> str:
    """The page of some runs."""
    scripts, style = [_file(name) for name in ("plot.js", "figures.js", "page.js")], _file("page.css")
    # What a browser runs and applies is these texts and nothing else, and it fetches nothing, whatever the files said.
    policy = ("default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
              f"style-src {_digest(style)}; script-src {' '.join(map(_digest, scripts))}")
    parts = {"TITLE": html.escape("triport: " + ", ".join(r.name for r in runs)), "POLICY": policy, "STYLE": style,
             "SUMMARY": "\n".join(map(_card, runs)), "DATA": data(runs), "SCRIPT": "\n".join(f"<script>{s}</script>" for s in scripts)}
    return filled(_TEMPLATE, parts)


def data(runs: list[Run]) -> str:
    """What the page draws, as JSON that may stand inside a script element: no "<" that could end it."""
    backends = [r["backend"] for run in runs for r in run.rows]
    against, = (c.header for c in fields.of([r for run in runs for r in run.measured], ["speedup"]) if c.name == "speedup")
    text = json.dumps({
        "runs": [{"name": r.name, "threads": r.threads, "limits": r.limits} for r in runs], "colours": colours.of(backends),
        "against": against, "marks": list(colours.MARKS), "dashes": list(colours.DASHES),
        "rows": [{k: row[k] for k in _ROW if row.get(k) not in (None, "")} for run in runs for row in run.rows],
    }, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _card(run: Run) -> str:
    """A run's summary. A long list of failures folds after the first few."""
    items = [f'<li class="{kind}">{html.escape(text)}</li>' for kind, text in summary.words(run)]
    bad = [x for x in items if x.startswith('<li class="bad"')]
    shown = [x for x in items if x not in bad]
    fold = f"<details><summary>{len(bad) - 8} more that are not right</summary><ul>{''.join(bad[8:])}</ul></details>" if len(bad) > 8 else ""
    head = f"<ul>{''.join(bad[:8])}</ul>{fold}" if bad else ""
    command = f'<p class="command"><code>triport {html.escape(run.command)}</code></p>' if run.command else ""
    return (f'<article class="card"><h3>{html.escape(run.name)}</h3><p class="about">{html.escape(run.about)}</p>{head}<ul>{"".join(shown)}</ul>'
            f'{command}</article>')


_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>@TITLE@</title>
<meta http-equiv="Content-Security-Policy" content="@POLICY@"><link rel="icon" href="data:,"><style>@STYLE@</style></head>
<body>
<header><h1>Benchmark report</h1><label class="theme">Colours <select id="theme"><option value="">as the system</option>
<option value="light">light</option><option value="dark">dark</option></select></label></header>
<main>
<section aria-labelledby="h-summary"><h2 id="h-summary">In words</h2><div class="cards">
@SUMMARY@
</div></section>
<section aria-labelledby="h-filters"><h2 id="h-filters">What is shown</h2><form id="filters"></form>
<p><output id="count"></output> <button type="button" id="reset">Show all</button></p></section>
<noscript><p>The plots and the table are drawn by this page's own script, which is switched off.</p></noscript>
<div id="figures"></div>
<section aria-labelledby="h-table"><h2 id="h-table">All figures</h2><p>Times are medians, CPU times means; a heading sorts. GPU rows give the GPU's own time.
Noisy: not to be relied on. ~: may be another in another run.</p>
<div class="scroll" role="region" aria-labelledby="h-table" tabindex="0"><table id="rows"></table></div></section>
</main>
<div id="tip" role="dialog" aria-label="A measured row" hidden></div>
<script type="application/json" id="data">@DATA@</script>
@SCRIPT@</body></html>
"""
