"""The page of `triport profile`: which launch is drawn, whose threads, and what is said of figures that may be none. Traces here are made up."""

import re

import numpy as np
import pytest
from triport.backends.cpu.run.trace import SPAN, Launch, Trace
from triport.bench import clock
from triport.tools import profile
from triport.tools.profiling import page, session, timeline
from triport.tools.profiling.session import Profile
from triport.tools.profiling.target import Target

KERNEL = {"name": "k", "hash": "h", "constants": {}, "scratch_bytes": 0}


def profiled(monkeypatch, launches, bytes_per_s=0.0) -> Profile:
    """A profile of launches (grid, threads, ns, bytes, {thread: ns of one chunk of all its programs}), one after the other."""
    t, spans, now = Trace(1), [], 0
    for n, (grid, threads, ns, nbytes, work) in enumerate(launches):
        t.launches.append(Launch(KERNEL, (grid, 1, 1), threads, nbytes, 1, now, now + ns))
        share = grid // len(work)
        spans += [(now, now + took, k * share, grid if k == len(work) - 1 else (k + 1) * share, thread, n) for k, (thread, took) in enumerate(work.items())]
        now += ns
    found = np.array(spans, SPAN)
    monkeypatch.setattr(t, "spans", lambda: found)
    out = Profile(Target("t", "triton-cpu"), wall=[1e-3] * 7, trace=t)
    out.kernels = timeline.kernels(t, bytes_per_s)
    return out


def lanes(text) -> list[tuple[str, str]]:
    """(thread, idle) of each lane."""
    return list(zip(re.findall(r">thread (\d+)</text>", text), re.findall(r">idle (\d+ %)</text>", text)))


def test_the_launch_that_is_drawn_is_of_the_kernels_own_grid(monkeypatch):
    """The small ones of another grid are more and take no time; and of its own the one that is nearest to the median that the table has."""
    small = (16, 1, 1700, 0, {1: 1600})
    p = profiled(monkeypatch, [small, (8192, 1, 1_500_000, 0, {1: 1_400_000}), small, small, (8192, 1, 1_610_000, 0, {1: 1_600_000}), small,
                               (8192, 1, 9_000_000, 0, {1: 8_000_000}), small])
    assert p.kernels[0].grid == (8192, 1, 1) and p.kernels[0].wall_s == pytest.approx(1.61e-3)
    text = page._threads(p)
    assert "k, 8192 programs in 1 chunks for 1 thread, 1.61 ms" in text and lanes(text) == [("0", "1 %")]


def test_a_thread_without_programs_has_a_lane(monkeypatch):
    """It was to share the launch, and came too late for any: idle all the time, as the table's imbalance says."""
    p = profiled(monkeypatch, [(8, 3, 1000, 0, {1: 900})])
    assert p.kernels[0].busy == pytest.approx(0.3) and p.kernels[0].imbalance == pytest.approx(2)
    assert lanes(page._threads(p)) == [("0", "10 %"), ("1", "100 %"), ("2", "100 %")]


def test_the_median_launch_and_the_share_of_all_are_told_apart(monkeypatch):
    """One slow launch with one busy thread: the share is of all of them, and the words say so."""
    p = profiled(monkeypatch, [(8, 2, 1000, 0, {1: 900, 2: 900})] * 4 + [(8, 2, 46_000, 0, {1: 1000})])
    assert profile._said(p).endswith(", k 1.0 us in the median and all its launches together with 8 % of 2 threads busy")


def test_no_rate_is_above_a_copys(monkeypatch):
    """Of 64 rows of a large table, and of a corner of a tensor, nobody knows the bytes; what tensors span is said to be that."""
    p = profiled(monkeypatch, [(64, 1, 936, 256_020_000, {1: 900}), (8192, 1, 4_000_000, 67_108_864, {1: 3_900_000}), (1, 1, 1000, 0, {1: 900})], 24e9)
    p.limits = {"cpu": {"bytes_per_s": 24e9}}
    rates = {k.grid[0]: k.rate for k in p.kernels}
    assert rates == {64: None, 8192: pytest.approx(67_108_864 / 4e-3), 1: None}
    text = page._kernels(p)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", text)]
    assert {r[1]: r[-2:] for r in rows} == {"64x1x1": ["unknown", ""], "8192x1x1": ["16.8", "70 %"], "1x1x1": ["", ""]}
    assert "tensors span</th>" in text and "GB/s, at most" in text and f"24.0 GB/s, none is shown (k 64x1x1): {timeline.UNKNOWN}." in text
    said = {e["args"]["grid"][0]: e["args"] for e in timeline.events(p.trace, 0, 24e9) if e.get("cat") == "launch" and "args" in e}
    assert said[64]["no GB/s"] == timeline.UNKNOWN and not any("GB/s" in key or "copy" in key for key in said[64] if key != "no GB/s")
    assert said[8192]["GB/s, at most"] == 16.777 and said[8192]["% of copy bandwidth, at most"] == 69.91 and "no GB/s" not in said[1]


def test_without_a_measured_copy_a_rate_is_still_a_bound(monkeypatch):
    p = profiled(monkeypatch, [(8, 1, 1000, 64_000, {1: 900})])
    rows = re.findall(r"<td[^>]*>(.*?)</td>", page._kernels(p))
    assert rows[-2:] == ["64.0", ""] and "above this machine's copy" not in page._kernels(p)


def timed(monkeypatch, walls: dict[str, list[float]], **more) -> list[Profile]:
    """Profiles of steps {title: wall seconds of each round} that one call of the clock has timed."""
    profiles = [Profile(Target(title, title, step=lambda: None)) for title in walls]
    asked = []

    def interleave(candidates, rounds):
        asked.append((list(candidates), rounds))
        return {name: clock.Samples(wall, wall, **more) for name, wall in zip(candidates, walls.values())}

    monkeypatch.setattr(session.clock, "interleave", interleave)
    monkeypatch.setattr(session.load.Watch, "busy", lambda self, wait=False: None)
    session.times(profiles)
    assert asked == [(["0", "1"][:len(walls)], session.ROUNDS)]  # both in one: in turns
    return profiles


def test_noise_of_a_step_is_said(monkeypatch, tmp_path):
    """In the words and on the page, with the reason: of rounds that spread, and of other programs."""
    quiet, spread = timed(monkeypatch, {"quiet": [1e-3] * 7, "spread": [1e-3, 1e-3, 2e-3, 9e-3, 1e-3, 3e-3, 1e-3]})
    assert profile._said(quiet) == "quiet by quiet: 1.00 ms a step, first call 0 s"
    assert profile._said(spread) == "spread by spread: 1.00 ms a step (noisy, not to be relied on: after 7 rounds the median is known to +-400 % only), first call 0 s"
    (tmp_path / "flame.svg").write_text('<svg viewBox="0 0 9 9"></svg>')
    text = page._side("", spread, tmp_path) + page._summary([("", spread)])
    assert "The time of a step is noisy, not to be relied on: after 7 rounds" in text and "(1.00 ms to 9.00 ms), noisy" in text
    assert "noisy" not in page._side("", quiet, tmp_path) + page._summary([("", quiet)])
    disturbed, = timed(monkeypatch, {"x": [1e-3] * 7}, busy="other programs used 1.1 of 2 cores", unsteady="the machine's own pace changed by 23 %")
    assert "~1.00 ms a step (noisy, not to be relied on: other programs used 1.1 of 2 cores)" in profile._said(disturbed)
    assert "may be another in another run: the machine&#x27;s own pace" in page._side("", disturbed, tmp_path)


def test_a_busy_machine_is_said_of_what_was_profiled(monkeypatch, tmp_path):
    monkeypatch.setattr(session.load.Watch, "busy", lambda self, wait=False: "other programs used 1.1 of 2 cores")
    p = session.steps(Target("t", "b", lambda: None), tmp_path, 1, False, False)
    assert p.remarks == ["The machine was busy while this was profiled: other programs used 1.1 of 2 cores; the times of kernels and threads are not to be relied on"]


MACHINE = {"cpu": "X", "cores": 2, "threads": 2, "torch": "2", "triton": "3", "LLVM": "22"}


def test_a_name_that_is_a_part_of_the_page(monkeypatch, tmp_path):
    """Text is text: "@SIDES@" in a title is not where the sides go."""
    p = profiled(monkeypatch, [(8, 1, 1000, 0, {1: 900})])
    p.target.title = "a@SIDES@b@COMMAND@c"
    (tmp_path / "flame.svg").write_text('<svg viewBox="0 0 9 9"></svg>')
    page.write([("", p)], tmp_path / "index.html", MACHINE, "@SUMMARY@")
    text = (tmp_path / "index.html").read_text()
    assert "<title>a@SIDES@b@COMMAND@c: profile</title>" in text and "<code>@SUMMARY@</code>" in text and text.count("<section>") == 1
    assert "@media (max-width" in text and "repeat(1, " in text


def test_a_launch_whose_caller_ran_nothing(monkeypatch):
    assert lanes(page._threads(profiled(monkeypatch, [(8, 2, 1000, 0, {7: 400})]))) == [("0", "100 %"), ("1", "60 %")]
