"""The page of `triport profile`: which launch is drawn, whose threads, and what is said of figures that may be none. Traces here are made up."""

import re

import numpy as np
import pytest
from triport.backends.cpu.run.trace import SPAN, Launch, Trace
from triport.tools import profile
from triport.tools.profiling import page, timeline
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


def test_a_launch_whose_caller_ran_nothing(monkeypatch):
    assert lanes(page._threads(profiled(monkeypatch, [(8, 2, 1000, 0, {7: 400})]))) == [("0", "100 %"), ("1", "60 %")]
