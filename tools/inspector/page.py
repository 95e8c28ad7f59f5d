"""The page: source, TTIR, LLVM IR and assembly side by side in one file that opens offline. A line lit in one pane lights up in all."""

from __future__ import annotations

import html
import re
from pathlib import Path

from . import verdict
from .report import Report
from .stats import _LIBRARY, Region, line_of
from .terminal import style

_TEXT_STAGES = ("ttir", "ttgir", "llir", "ptx")
_TITLES = {"ttir": "TTIR", "ttgir": "TTGIR", "llir": "LLVM IR", "ptx": "PTX"}
_CLASS = {"bold white on red": "unknown", "bold red": "bad", "bold bright_green": "matrix", "yellow": "gather", "cyan": "vmem", "green": "vfp",
          "bold yellow": "sfp", "dark_cyan": "smem", "bright_blue": "vint", "dim": "rest"}


def render(reports: list[Report]) -> str:
    """The page of one or more kernels."""
    kernels = "\n".join(_kernel(r, n) for n, r in enumerate(reports))
    title = html.escape(", ".join(f"{r.code.name} {r.code.target}" for r in reports))
    return (_TEMPLATE.replace("@TITLE@", title).replace("@STYLE@", _STYLE).replace("@SCRIPT@", _SCRIPT).replace("@KERNELS@", kernels))


def _kernel(report: Report, n: int) -> str:
    code = report.code
    panes = []
    text = code.stages.get("source")
    files = list(dict.fromkeys(at[0] for r in report.regions for i in r.instructions if (at := line_of(i))))
    main = files or list(code.sources)
    for path in main[:4]:
        shown = text if isinstance(text, str) and path in code.sources else _read(path)
        if shown:
            panes.append(_pane(f"source {path.rpartition('/')[2]}", "source", _source(shown, path, report, n)))
    if not panes and isinstance(text, str):
        panes.append(_pane("source", "source", _source(text, "", report, n)))
    for stage in _TEXT_STAGES:
        if isinstance(code.stages.get(stage), str):
            lines = code.stages[stage]
            keys = _ptx_keys(report, lines) if stage == "ptx" else _llir_keys(lines) if stage == "llir" else _ttir_keys(lines)
            panes.append(_pane(_TITLES[stage], stage, "\n".join(_line(t, k, n) for t, k in zip(lines.split("\n"), keys))))
    panes.append(_pane({"sass": "SASS", "amdgcn": "AMDGCN", "ptx": "PTX"}.get(code.isa, f"assembly, {code.isa}"), "asm", _assembly(report, n)))
    v = report.verdict or "nothing to judge"
    facts = ", ".join(f"{html.escape(str(k))} {html.escape(str(x))}" for k, x in code.facts.items())
    why = "".join(f"<li><b>{html.escape(r.label)} {html.escape(r.where)}</b>: {html.escape(c.text)}{f' [{html.escape(c.line)}]' if c.line else ''}. "
                  f"{f'Plan: {html.escape(c.plan)}. ' if c.plan else ''}<i>{html.escape(c.remedy)}</i></li>" for r in report.hot for c in verdict.causes(r, report.gpu))
    return (f'<section class="kernel" id="k{n}"><h2>{html.escape(code.name)} <small>{html.escape(code.target)}, {html.escape(code.backend)}</small> '
            f'<span class="v {v}">{v}</span></h2><p class="facts">{facts}{", " if facts else ""}unknown instructions {report.unknown:.1%}</p>'
            f'{_table(report)}{f"<ul class=why>{why}</ul>" if why else ""}<div class="panes">{"".join(panes)}</div></section>')


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _pane(title: str, kind: str, body: str) -> str:
    return f'<div class="pane {kind}"><h3>{html.escape(title)}</h3><pre>{body}</pre></div>'


def _key(frame) -> str:
    return f"{frame[0]}:{frame[1]}" if frame else ""


def _line(text: str, key: str, n: int, css: str = "", note: str = "") -> str:
    attrs = (f' data-k="{n}|{html.escape(key, quote=True)}"' if key else "") + (f' class="{css}"' if css else "") + (
        f' title="{html.escape(note, quote=True)}"' if note else "")
    return f"<span{attrs}>{html.escape(text) or ' '}</span>"


def _source(text: str, path: str, report: Report, n: int) -> str:
    used = {at[1] for r in report.regions for i in r.instructions if (at := line_of(i)) and at[0] == path}
    lines = text.split("\n")
    low, high = (max(0, min(used) - 12), min(len(lines), max(used) + 6)) if used and len(lines) > 120 else (0, len(lines))
    return "\n".join(_line(f"{k + 1:5} {lines[k]}", f"{path}:{k + 1}" if k + 1 in used else "", n) for k in range(low, high))


# --- lines of TTIR and LLVM IR ---------------------------------------------------------------------------------------


def _ttir_keys(text: str) -> list[str]:
    """The source line of every line of TTIR or TTGIR, by its location aliases; "" where it has none."""
    named = dict(re.findall(r"^(#loc\w*) = loc\((.*)\)$", text, re.M))

    def frames(body: str, depth: int = 0) -> list[tuple[str, int]]:
        if depth > 20:
            return []
        if hit := re.match(r'"([^"]+)":(\d+):\d+', body):
            return [(hit[1], int(hit[2]))]
        return [f for ref in re.findall(r"#loc\w*", body) for f in frames(named.get(ref, ""), depth + 1)]

    out = []
    for line in text.split("\n"):
        hit = re.search(r"loc\((#loc\w*)\)\s*\{?$", line) if not line.startswith("#loc") else None
        found = frames(named.get(hit[1], "")) if hit else []
        out.append(_key(next((f for f in found if not _LIBRARY.search(f[0])), None)))
    return out


def _llir_keys(text: str) -> list[str]:
    """The source line of every line of LLVM IR, by its !dbg."""
    meta = dict(re.findall(r"^!(\d+) = (?:distinct )?(!DI\w+\(.*\))$", text, re.M))
    ref = lambda body, name: (re.search(rf"\b{name}: !(\d+)", body) or [None, None])[1]  # noqa: E731

    def path(scope: str | None) -> str:
        for _ in range(20):
            body = meta.get(scope or "", "")
            if at := ref(body, "file"):
                name = re.search(r'filename: "([^"]*)"', meta.get(at, ""))
                folder = re.search(r'directory: "([^"]*)"', meta.get(at, ""))
                return "/".join(filter(None, (folder[1] if folder else "", name[1] if name else "")))
            scope = ref(body, "scope")
        return ""

    def key(n: str) -> str:
        for _ in range(20):
            body = meta.get(n, "")
            line = re.search(r"\bline: (\d+)", body)
            frame = (path(ref(body, "scope")), int(line[1])) if line else None
            if frame and frame[1] and not _LIBRARY.search(frame[0]):
                return _key(frame)
            n = ref(body, "inlinedAt") or ""
            if not n:
                return ""
        return ""

    return [key(hit[1]) if (hit := re.search(r"!dbg !(\d+)", line)) else "" for line in text.split("\n")]


def _ptx_keys(report: Report, text: str) -> list[str]:
    """The source line of every line of PTX: that of the .loc before it."""
    from .text import SourceLines
    where, out = SourceLines(), []
    for raw in text.split("\n"):
        if raw.strip().startswith(".file"):
            where.read(raw.strip())
    for raw in text.split("\n"):
        stripped = raw.strip()
        if stripped.startswith(".loc"):
            where.read(stripped)
        frame = next((f for f in where.frames() if not _LIBRARY.search(f[0])), None)
        out.append(_key(frame) if re.match(r"[a-z@]", stripped) else "")
    return out


# --- the assembly ----------------------------------------------------------------------------------------------------


def _assembly(report: Report, n: int) -> str:
    """Instructions in text order, in a foldable group for each run of one region: hot loops open, the rest by heat."""
    owner = {id(i): r for r in report.regions for i in r.instructions}
    out, run, last = [], [], None
    for f in report.functions:
        names = {at: name for name, at in f.labels.items()}
        for k, i in enumerate(f.instructions):
            r = owner.get(id(i))
            if r is not last and run:
                out.append(_group(last, run, report))
                run = []
            last = r
            if k in names:
                run.append(f'<span class="label">{html.escape(names[k])}:</span>')
            c = i.what
            note = " ".join(filter(None, (c.unit, c.kind, c.element, f"{c.bits} bit" if c.bits else "", "spill" if c.is_spill else "")))
            run.append(_line(f"    {i.text}", _key(line_of(i)), n, _CLASS[style(c)], note))
        if run:
            out.append(_group(last, run, report))
            run, last = [], None
    return "".join(out)


def _group(r: Region | None, lines: list[str], report: Report) -> str:
    v = verdict.of(r, report.gpu) if r and (r.hot or r.tail) else None
    title = "" if r is None else (f"{r.label} {r.where} " + (f'<b class="v {v}">{v}</b> ' if v else "") + ("tail " if r.tail else "")
                                  + f"<small>{r.heat:.0%} of the estimated work</small>")
    is_open = r is None or r.hot or r.heat >= 0.1
    heat = 0 if r is None else min(9, int(r.heat * 10))
    return (f'<details class="region heat{heat}{" hot" if r and r.hot else ""}"{" open" if is_open else ""}><summary>{title or "code"}</summary>'
            + "\n".join(lines) + "</details>")


def _table(report: Report) -> str:
    names = ("instructions", "vector", "fma", "load_bits", "store_bits", "bytes_per_access", "spills", "calls", "f64", "matrix")
    rows = []
    for r in report.regions:
        if r.instructions and (r.hot or r.tail):
            v = verdict.of(r, report.gpu)
            cells = "".join(f"<td>{'' if r.figures[k] is None else r.figures[k]}</td>" for k in names)
            rows.append(f'<tr><td>{html.escape(r.label)}{" (tail)" if r.tail else ""}</td><td>{html.escape(r.where)}</td><td class="v {v}">{v or ""}</td>'
                        f"{cells}</tr>")
    head = "".join(f"<th>{k.replace('_', ' ')}</th>" for k in ("loop", "lines", "verdict", *names))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"



_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--line:#d8dbe0;--dim:#8a9099;--lit:#fff1a8;--pin:#ffd75e;--hot:#fff6ec}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#dfe3e8;--line:#33383f;--dim:#7d8590;--lit:#4a431c;--pin:#6b5c10;--hot:#221c14}}
body{margin:1rem;background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif}
h2{margin:.2rem 0}h2 small{font-weight:400;color:var(--dim)}h3{margin:0;padding:.35rem .6rem;font-size:13px;border-bottom:1px solid var(--line)}
.facts{color:var(--dim);margin:.2rem 0 .6rem}table{border-collapse:collapse;font-size:13px;margin-bottom:.6rem}
th,td{padding:.15rem .6rem;border-bottom:1px solid var(--line);text-align:right}th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}
.panes{display:flex;gap:.6rem;overflow-x:auto;height:78vh}.pane{flex:1 0 26rem;display:flex;flex-direction:column;border:1px solid var(--line);border-radius:6px;min-width:0}
pre{margin:0;overflow:auto;font:12px/1.5 ui-monospace,monospace;flex:1;padding:.3rem 0}pre span{display:block;padding:0 .6rem;white-space:pre}
.pane pre{display:block}.pane [data-k]{cursor:pointer}.lit{background:var(--lit)}.pin{background:var(--pin)}
details.region{border-left:3px solid var(--line);margin:.2rem 0}details.hot{border-color:#e8590c;background:var(--hot)}summary{cursor:pointer;padding:0 .6rem;color:var(--dim)}
.v{font-weight:700}.VECTOR{color:#2b8a3e}.PARTLY{color:#e67700}.SCALAR{color:#e03131}.why i{color:var(--dim)}
.label{color:var(--dim)}.rest{color:var(--dim)}.vmem{color:#0b7285}.vfp{color:#2b8a3e}.sfp{color:#e67700}.smem{color:#5c7cfa}.vint{color:#7048e8}.matrix{color:#087f5b;font-weight:700}
.gather{color:#d9480f}.bad{color:#e03131;font-weight:700}.unknown{background:#e03131;color:#fff}
"""

_SCRIPT = """
const groups = new Map();
for (const e of document.querySelectorAll('[data-k]')) {
  if (!groups.has(e.dataset.k)) groups.set(e.dataset.k, []);
  groups.get(e.dataset.k).push(e);
}
let pinned = null;
const mark = (key, name, on) => { for (const e of groups.get(key) || []) e.classList.toggle(name, on); };
document.addEventListener('mouseover', ev => { const e = ev.target.closest('[data-k]'); if (e) mark(e.dataset.k, 'lit', true); });
document.addEventListener('mouseout', ev => { const e = ev.target.closest('[data-k]'); if (e) mark(e.dataset.k, 'lit', false); });
document.addEventListener('click', ev => {
  const e = ev.target.closest('[data-k]');
  if (!e) return;
  if (pinned) mark(pinned, 'pin', false);
  pinned = pinned === e.dataset.k ? null : e.dataset.k;
  if (!pinned) return;
  mark(pinned, 'pin', true);
  const seen = new Set([e.closest('.pane')]);
  for (const other of groups.get(pinned)) {
    const pane = other.closest('.pane');
    if (seen.has(pane)) continue;
    seen.add(pane);
    const fold = other.closest('details');
    if (fold) fold.open = true;
    const pre = pane.querySelector('pre');
    pre.scrollTop += other.getBoundingClientRect().top - pre.getBoundingClientRect().top - pre.clientHeight / 3;
  }
});
"""

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>@TITLE@</title><style>@STYLE@</style></head>
<body>@KERNELS@<script>@SCRIPT@</script></body></html>
"""
