"""`triport report` says of a run what `triport bench` said at its end: the same baseline, speed-ups, noise and remarks."""

import json

import pytest
from results_files import row, written
from triport.bench import clock, words
from triport.bench.results import add_rates, add_times
from triport.tools.__main__ import main
from triport.tools.reporting import page, png, runs, summary

LIMITS = {"bytes_per_s": 3e10, "flop_per_s": 1e11, "cache_bytes": 0}


def timed(backend, rounds, baseline="torch", base=None, **more):
    """A right row of these rounds in seconds, as a run writes it; base: the row that its speed-up is over, itself by default."""
    out = {k: v for k, v in row(backend=backend, baseline=baseline, **more).items() if k not in ("wall_s", "cpu_s", "roofline")}
    add_times(out, clock.Samples(rounds, rounds, 10), None)
    out |= {k: v for k, v in more.items() if k in ("noisy", "unsteady")}
    add_rates(out, out if base is None else base, LIMITS, out["dtype"])
    return out


def case(rounds: dict, baseline="torch", **more) -> list:
    """Rows of one op and case: {backend: rounds}."""
    base = timed(baseline, rounds[baseline], baseline, **more)
    return [base] + [timed(b, r, baseline, base, **more) for b, r in rounds.items() if b != baseline]


def data_of(rows, **machine):
    return {"schema": 2, "complete": True, "machine": {"cpu": "X", "roofline": {"cpu": LIMITS}, **machine}, "rows": rows}


SHAPE = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0]
MANUAL = case({"manual": [1e-3 * s for s in SHAPE], "torch": [1e-3 * s for s in SHAPE], "fused": [2.5e-4 * s for s in SHAPE]}, "manual", op="my_softmax")
NOISE = "other programs used 1.9 of 2 cores"
#: one case sound and twice as fast, one noisy and absurdly fast
MIXED = [*case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]}, case="8x8"),
         *case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [1e-6 * s for s in SHAPE]}, case="9x9", noisy=NOISE)]


def read(folder, **files):
    return runs.read(written(folder, **files), folder / "r.html")


@pytest.mark.parametrize("data", [
    data_of(MANUAL), data_of(MIXED), data_of(MIXED[2:]),
    data_of(case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]}, unsteady="the machine's own pace changed by 23 %"),
            busy=NOISE, left_out={"cuda": "there is no GPU"}),
    data_of(case({"torch": [1e-6 * s for s in SHAPE], "triton-cpu": [5e-7 * s for s in SHAPE]}, dtype="fp64")),  # above the roof
    data_of(case({"torch": [1e-3 * s for s in SHAPE], "torch-compile": [7e-3, 8e-3, 4e-3, 4.2e-3, 4.1e-3, 9e-3, 4e-3],
                  "triton-cpu": [7e-3, 8e-3, 2e-3, 2e-3, 2.1e-3, 9e-3, 8e-3]})),  # a ratio of rounds is none of medians
    data_of(case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]}, mode="bwd", new_process="no second process")),
    data_of(MIXED) | {"complete": False},
    data_of([*MIXED, row(backend="cuda", status="skipped", reason="there is no GPU"), row(backend="spine", status="failed", reason="ssh: no route")])])
def test_the_words_are_those_of_bench(tmp_path, data):
    """Every sentence of one is in the other, with its kind, in the same order."""
    assert summary.words(read(tmp_path, x=data)[0]) == words.words(data["rows"], words.remarks(data))


def test_the_page_knows_the_baseline(tmp_path):
    """The heading of the speed-ups names it, each row has its own."""
    own, both = (json.loads(page.data(read(tmp_path, x=data_of(rows)))) for rows in (MANUAL, [*MANUAL, *MIXED]))
    assert own["against"] == "vs manual" and {r["baseline"] for r in own["rows"]} == {"manual"}
    assert both["against"] == "vs baseline" and [r["baseline"] for r in both["rows"]] == ["manual"] * 3 + ["torch"] * 4


def test_the_page_knows_what_is_noisy(tmp_path):
    """With the reason; also where only the speed-up is, which no field says why."""
    rows = [*MIXED, *case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [x * 1e-3 for x in (1, 1, 1, 1, 1.3, 1.3, 1)]}, case="10x10")]
    rows[-1].pop("noisy", None)
    assert rows[-1]["speedup_is"] == "noisy"
    rows[0]["unsteady"] = "the machine's own pace changed by 23 %"
    said = json.loads(page.data(read(tmp_path, x=data_of(rows))))["rows"]
    assert [r.get("noisy") for r in said] == [None, None, NOISE, NOISE, None, "its rounds differ by too much to say"]
    assert [("unsteady" in r) for r in said] == [True] + [False] * 5


def _drawn(monkeypatch, folder, data):
    """(title, texts beside bars, x axis) of each plot of speed-ups, and how many bars it has; the files' names."""
    found = []
    original = png._speed

    def speed(axes, *args):
        original(axes, *args)
        found.append((axes.get_title(loc="left"), [t.get_text() for t in axes.texts], axes.get_xlabel(), len(axes.containers)))

    monkeypatch.setattr(png, "_speed", speed)
    names = [p.name for p in png.write(read(folder, x=data), folder / "png")]
    return found, [n for n in names if n.startswith("speed")]


def test_plots_as_pngs_have_their_baseline(tmp_path, monkeypatch):
    found, names = _drawn(monkeypatch, tmp_path, data_of(MANUAL))
    assert names == ["speed-x.png"]
    (title, bars, axis, count), = found
    assert title == "x: speed-up over manual" and axis.startswith("times as fast as manual") and sorted(bars) == ["1.00x", "4.00x"] and count == 2
    _, names = _drawn(monkeypatch, tmp_path, data_of([*MANUAL, *MIXED]))
    assert names == ["speed-x-manual.png", "speed-x-torch.png"]


def test_plots_as_pngs_have_no_bar_of_noise(tmp_path, monkeypatch):
    """A mean is of the sound rows, as in the words; where there are none there is no bar."""
    (_, bars, _, count), = _drawn(monkeypatch, tmp_path, data_of(MIXED))[0]
    assert bars == ["2.00x"] and count == 1
    (_, bars, _, count), = _drawn(monkeypatch, tmp_path, data_of(MIXED[2:]))[0]
    assert bars == ["noisy"] and count == 0


def test_cpu_time_is_the_mean(tmp_path):
    """As in bench's table: Linux may count it in ticks, of which most rounds have none and the median says nothing."""
    rows = case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]})
    rows[1]["cpu_s"] = clock.summary([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7e-3])
    assert [r["cpu"] for r in json.loads(page.data(read(tmp_path, x=data_of(rows))))["rows"]] == [pytest.approx(1e-3), pytest.approx(1e-3)]
    del rows[1]["cpu_s"]["avg"]  # a file that has none
    assert "cpu" not in json.loads(page.data(read(tmp_path, x=data_of(rows))))["rows"][1]


# --- in a browser ----------------------------------------------------------------------------------------------------


def _page(browser, folder, data):
    path, = written(folder, x=data)
    assert main(["report", str(path), "-o", str(folder / "r.html")]) == 0
    browser.get((folder / "r.html").as_uri())
    texts = browser.execute_script("return [...document.querySelectorAll('#speed svg text')].map(e => e.textContent)")
    return texts, browser.execute_script("return [...document.querySelectorAll('#speed [role=button]')].map(e => [e.getAttribute('aria-label'), e.getAttribute('fill')])")


def test_a_plot_of_speed_ups_in_a_browser(browser, tmp_path):
    """It is over the op's own baseline, which has no bar of its own; torch beside it has one."""
    texts, points = _page(browser, tmp_path, data_of(MANUAL))
    assert browser.find_element("css selector", "#speed h2").text == "Speed-up over manual" and "times as fast as manual on that machine" in texts
    assert {label.split()[3].rstrip(",") for label, _ in points} == {"torch", "fused"} and {"1.00x", "4.00x"} <= set(texts)
    heads = [e.text for e in browser.find_elements("css selector", "#rows th")]
    assert "vs manual" in heads and "vs torch" not in heads
    texts, points = _page(browser, tmp_path, data_of([*MANUAL, *MIXED]))
    titles = [e.text for e in browser.find_elements("css selector", "#speed h3")]
    assert titles == ["x, over manual", "x, over torch"] and browser.find_element("css selector", "#speed h2").text == "Speed-up over each op's baseline"


def test_no_cpu_time_in_a_browser(browser, tmp_path):
    """A row whose CPU time was too short to count is in the table, and said not to be drawn."""
    rows = case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]})
    rows[1]["cpu_s"] = clock.summary([0.0] * 7)
    _page(browser, tmp_path, data_of(rows))
    texts = browser.execute_script("return [...document.querySelectorAll('#cpu svg text')].map(e => e.textContent)")
    assert "not drawn: 1 whose CPU time was too short to count" in texts and browser.execute_script("return document.querySelectorAll('#cpu [role=button]').length") == 1


def test_noise_in_a_browser(browser, tmp_path):
    """Noisy rows are hollow marks, in no bar and no mean, and said to be noisy in the table."""
    texts, points = _page(browser, tmp_path, data_of([*MIXED, *case({"torch": [1e-3 * s for s in SHAPE], "triton-cpu": [5e-4 * s for s in SHAPE]}, op="gelu")]))
    bars = "return [...document.querySelectorAll('#speed .bar')].length"
    assert browser.execute_script(bars) == 2 and texts.count("2.00x") == 2
    assert [fill for label, fill in points if label.endswith(", noisy")] == ["none"] and len(points) == 3
    cells = browser.execute_script("return [...document.querySelectorAll('#rows td')].map(e => e.textContent)")
    assert "1000x noisy" in cells and "2.00x" in cells
    texts, points = _page(browser, tmp_path, data_of(MIXED[2:]))
    assert browser.execute_script(bars) == 0 and "noisy" in texts
