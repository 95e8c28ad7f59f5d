"""Where Python spends its time, as a flame graph: stacks sampled from a thread of its own, drawn as an SVG that can be searched and zoomed.

The form is Brendan Gregg's (CACM 59(6), 2016): a box's width is its share of samples, callers below callees.
"""

from __future__ import annotations

import contextlib
import html
import re
import sys
import threading
import time
from collections import Counter

#: boxes narrower than this share are left out: nobody could see them
LEAST = 0.0005
_WIDTH, _ROW = 1200, 17


class Sampler:
    """A context that samples the stacks of this process's Python threads, every `interval` seconds. stacks: (outermost, ..., innermost) -> samples."""

    def __init__(self, interval: float = 0.001):
        self.interval = interval
        self.stacks: Counter = Counter()
        self._stop = threading.Event()

    def __enter__(self):
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch, self.interval / 2))
        self._idle = set(sys._current_frames()) - {threading.get_ident()}
        self._thread = threading.Thread(target=self._run, name="triport sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._switch)

    def _run(self):
        me = threading.get_ident()
        due = time.perf_counter()
        while not self._stop.is_set():
            for ident, frame in sys._current_frames().items():
                if ident != me and ident not in self._idle:  # threads of before, as progress bars', wait for something
                    self.stacks[_stack(frame)] += 1
            due = max(due + self.interval, time.perf_counter())
            self._stop.wait(max(0.0, due - time.perf_counter()))


def _stack(frame) -> tuple[str, ...]:
    out = []
    while frame is not None:
        code = frame.f_code
        found = re.fullmatch(r"<(launch|replayed) (.*)>", code.co_filename)
        kernel = found and (found[1] == "launch" or not out)  # what replays an op is in native code, where nothing is called from it
        out.append(f"{found[2]} [triton-cpu]" if kernel else f"{code.co_name} ({_short(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(reversed(out))


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])


def trimmed(stacks: Counter, below: str) -> Counter:
    """Stacks without what lies outside the first frame whose function is `below`, the profiler's own callers, and without runpy's frames."""
    out: Counter = Counter()
    for stack, n in stacks.items():
        at = next((k + 1 for k, name in enumerate(stack) if name.startswith(f"{below} (")), 0)
        out[tuple(name for name in stack[at:] if "<frozen runpy>" not in name) or ("(profiler)",)] += n
    return out


def folded(stacks: Counter) -> str:
    """One line for each stack, "outer;inner samples", as flamegraph.pl and speedscope read it."""
    return "".join(f"{';'.join(s.replace(';', ':') for s in stack)} {n}\n" for stack, n in sorted(stacks.items()))


def _boxes(stacks: Counter):
    """(depth, first sample, samples, name) of every box."""
    root: dict = {}
    for stack, n in stacks.items():
        at = root
        for name in stack:
            node = at.setdefault(name, [0, {}])
            node[0] += n
            at = node[1]

    def walk(children, depth, start):
        for name, (n, below) in sorted(children.items()):
            yield depth, start, n, name
            yield from walk(below, depth + 1, start)
            start += n

    yield from walk(root, 0, 0)


def svg(stacks: Counter, title: str) -> str:
    """A flame graph of stacks as an SVG document: click a box to zoom, Ctrl-F or the field to search."""
    total = sum(stacks.values()) or 1
    limit = sys.getrecursionlimit()
    with contextlib.ExitStack() as stack:
        deepest = max((len(s) for s in stacks), default=0)
        sys.setrecursionlimit(max(limit, 4 * deepest + 1000))
        stack.callback(sys.setrecursionlimit, limit)
        boxes = [b for b in _boxes(stacks) if b[2] / total >= LEAST]
    rows = max((b[0] for b in boxes), default=0) + 1
    height = rows * _ROW + 60
    parts = []
    for depth, start, n, name in boxes:
        x, w, y = _WIDTH * start / total, _WIDTH * n / total, height - 26 - (depth + 1) * _ROW
        kernel = name.endswith("[triton-cpu]")
        shown = name if len(name) * 6.3 < w else name[:max(0, int(w / 6.3) - 2)] + "..." if w > 40 else ""
        tip = f"{name}: {n} samples, {n / total:.1%}"
        text = f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(shown)}</text>' if shown else ""
        parts.append(f'<g class="{"k" if kernel else f"c{sum(map(ord, name)) % 5}"}" data-n="{html.escape(name, quote=True)}" data-x="{start}" data-w="{n}"><title>'
                     f'{html.escape(tip)}</title><rect x="{x:.1f}" y="{y}" width="{max(w - 0.4, 0.3):.1f}" height="{_ROW - 1}" rx="2"/>{text}</g>')
    return _SVG.format(width=_WIDTH, height=height, title=html.escape(title), total=total, boxes="\n".join(parts), foot=height - 8)


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" data-total="{total}" font-family="Verdana, sans-serif">
<style>
text {{ font-size: 11px; pointer-events: none; fill: #222 }} .head {{ font-size: 14px; fill: currentColor }} .foot {{ fill: currentColor }}
.c0 rect {{ fill: #e8b073 }} .c1 rect {{ fill: #e3a15c }} .c2 rect {{ fill: #edbf8a }} .c3 rect {{ fill: #dd9a63 }} .c4 rect {{ fill: #f0ca9c }}
.k rect {{ fill: #56b4e9 }} g.hit rect {{ fill: #cc79a7 }} g {{ cursor: pointer }} g:hover rect {{ stroke: #222; stroke-width: 1 }}
input {{ font: 11px Verdana, sans-serif; width: 180px }}
</style>
<text class="head" x="4" y="18">{title}: {total} samples; kernels in blue</text>
<foreignObject x="1000" y="2" width="200" height="26"><input xmlns="http://www.w3.org/1999/xhtml" placeholder="search" aria-label="search"/></foreignObject>
<text class="foot" x="4" y="{foot}"> </text>
{boxes}
<script><![CDATA[
(function () {{
  const svg = document.currentScript.closest("svg"), W = {width}, total = {total};
  const all = [...svg.querySelectorAll("g[data-n]")], foot = svg.querySelector(".foot"), field = svg.querySelector("input");
  function zoom(from, count) {{
    for (const g of all) {{
      const x = (g.dataset.x - from) / count * W, w = g.dataset.w / count * W, r = g.querySelector("rect"), t = g.querySelector("text");
      const left = Math.max(x, 0), right = Math.min(x + w, W);
      g.style.display = right - left > 0.2 ? "" : "none";
      r.setAttribute("x", left); r.setAttribute("width", Math.max(right - left - 0.4, 0.3));
      const room = Math.floor((right - left) / 6.3), name = g.dataset.n;
      let text = t;
      if (!text) {{ text = document.createElementNS("http://www.w3.org/2000/svg", "text"); text.setAttribute("y", +r.getAttribute("y") + 12); g.append(text); }}
      text.setAttribute("x", left + 3);
      text.textContent = name.length <= room ? name : room > 5 ? name.slice(0, room - 2) + "..." : "";
    }}
  }}
  function search(word) {{
    let hits = [];
    for (const g of all) {{
      const hit = word && g.dataset.n.toLowerCase().includes(word.toLowerCase());
      g.classList.toggle("hit", !!hit);
      if (hit) hits.push([+g.dataset.x, +g.dataset.x + +g.dataset.w]);
    }}
    hits.sort((a, b) => a[0] - b[0]);
    let end = 0, sum = 0;
    for (const [a, b] of hits) {{ if (b > end) {{ sum += b - Math.max(a, end); end = b; }} }}
    foot.textContent = word ? "matched: " + (100 * sum / total).toFixed(1) + " %" : " ";
  }}
  for (const g of all) g.addEventListener("click", e => {{ e.stopPropagation(); zoom(+g.dataset.x, +g.dataset.w); }});
  svg.addEventListener("click", e => {{ if (e.target === svg) zoom(0, total); }});
  if (field) {{ field.addEventListener("input", () => search(field.value)); field.addEventListener("click", e => e.stopPropagation()); }}
}})();
]]></script>
</svg>
"""
