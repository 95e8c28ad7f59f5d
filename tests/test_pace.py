"""The machine's own pace: which rounds count, on a clock that goes on only where a call or the probe says so."""

import itertools

import pytest
from triport.bench import clock, fields, measure, noise, pace, results, words


class Machine:
    """Calls and the probe take `slower(now)` times as long as at best; nothing else takes time."""

    def __init__(self, monkeypatch, slower=lambda now: 1.0):
        self.now, self.slower, self.beside, self.probed = 0.0, slower, True, 0
        monkeypatch.setattr(clock, "time", self)
        monkeypatch.setattr(pace, "time", self)
        monkeypatch.setattr(clock.load, "Watch", lambda: self)
        self.pace = pace.Pace(self.sample)
        monkeypatch.setattr(pace, "here", lambda: self.pace)

    def perf_counter(self):
        return self.now

    process_time = monotonic = perf_counter

    def sleep(self, seconds):
        self.now += seconds

    def busy(self, wait):
        return None

    def sample(self, threads):
        """Two parts of 30 and 10 us on every thread."""
        self.probed += 1
        slower, out = self.slower(self.now), []
        for k in range(threads):
            start = self.now if self.beside else self.now + k
            out.append((start, start + 3e-5 * slower, start + 4e-5 * slower))
        self.now += 4e-5 * slower
        return out

    def call(self):
        self.now += 1e-3 * self.slower(self.now)


@pytest.fixture
def machine(monkeypatch):
    return lambda slower=lambda now: 1.0: Machine(monkeypatch, slower)


def timed(machine, **kwargs):
    return clock.interleave({"a": clock.Turn(machine.call)}, **kwargs)["a"]


def test_only_rounds_count_in_which_the_machine_kept_its_pace(machine):
    """For a tenth of a second in every two somebody takes a third of the core."""
    m = machine(lambda now: 1.5 if now % 0.2 < 0.1 else 1.0)
    s = timed(m, precision=1e-9)
    assert s.left_out >= 1 and s.unsteady is None
    assert len(s.wall) == len(s.cpu) >= noise.FEW and s.wall == pytest.approx([1e-3] * len(s.wall)), "measured times, of undisturbed rounds"


def test_a_machine_that_is_slow_from_the_start_makes_what_follows_unsteady_and_the_same_pace_does_not(machine):
    m = machine(lambda now: 1.23 if now > 1.0 else 1.0)
    before = timed(m)
    m.now = max(m.now, 1.1)
    after = timed(m)
    assert before.unsteady is None and before.left_out == 0 and len(before.wall) == 6
    assert after.unsteady == "the machine's own pace changed by 23 % while this was measured" and noise.why(after.wall, after.busy) is None
    assert after.left_out == 0 and len(after.wall) > 15, "a quarter of the budget was used, and all rounds are there"
    waited = sum(after.wall) * after.repeats
    assert waited < clock.PATIENCE * clock.BUDGET * 1.1, "and not more than that: the pace is what it is"


def test_a_pace_that_drifts_is_unsteady(machine):
    m = machine(lambda now: 1.0 + now / 4)
    assert timed(m).unsteady is None
    m.now = 1.0
    assert "pace changed by" in timed(m).unsteady


def test_a_constant_pace_changes_nothing(machine, monkeypatch):
    def measured(own):
        m = machine(lambda now: 1.7)
        if not own:
            monkeypatch.setattr(pace, "here", lambda: None)
        return timed(m)
    with_probe, without = measured(True), measured(False)
    assert with_probe.wall == pytest.approx(without.wall) and with_probe.repeats == without.repeats
    assert (with_probe.unsteady, with_probe.left_out) == (without.unsteady, without.left_out) == (None, 0)


def test_what_is_below_the_limit_counts_and_above_it_does_not(machine):
    for more, counts in ((0.8 * min(pace.ALLOWED), True), (1.2 * min(pace.ALLOWED), False)):
        m = machine(lambda now: 1.0 + more if now > 1.0 else 1.0)
        timed(m)
        m.now = 1.1
        assert (timed(m).unsteady is None) == counts


def test_a_best_is_forgotten_after_a_minute(machine):
    """A machine that stays slower, as one that has become warm, is at its best again."""
    m = machine(lambda now: 1.3 if now > 1.0 else 1.0)
    timed(m)
    m.now = 1.1
    assert timed(m).unsteady
    m.now = 2 + pace.MEMORY
    assert timed(m).unsteady is None


def test_a_fixed_number_of_rounds_stays_and_is_unsteady_where_the_most_were_disturbed(machine):
    m = machine(lambda now: 1.5 if now > 1.0 else 1.0)
    assert timed(m, rounds=5).unsteady is None
    m.now = 1.1
    s = timed(m, rounds=5)
    assert len(s.wall) == 5 and s.left_out == 0 and "changed by 50 %" in s.unsteady


def test_candidates_leave_out_the_same_rounds(machine):
    """What one candidate's turn met leaves the round out for all: ratios are of the same round."""
    ticks = itertools.count()
    m = machine()
    m.slower = lambda now: 1.5 if next(ticks) % 50 < 10 else 1.0
    out = clock.interleave({"a": clock.Turn(m.call), "b": clock.Turn(m.call)}, precision=1e-9, budget=1.0)
    assert len(out["a"].wall) == len(out["b"].wall) and out["a"].left_out == out["b"].left_out


def test_threads_that_do_not_run_side_by_side_are_said(machine, monkeypatch):
    m = machine()
    monkeypatch.setattr(pace, "threads", lambda wall, cpu: 4)
    m.beside = False
    assert timed(m).unsteady == "threads came late: there were not cores for all of them"
    m.beside = True
    assert timed(m).unsteady is None


def test_calls_on_one_thread_are_probed_on_one(machine, monkeypatch):
    """Other threads would still spin when the turn begins."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [pace.threads(1.0, cpu) for cpu in (0.9, 1.1, 4.0)] == [1, 1, 8]


def test_an_interrupted_sample_does_not_decide(machine):
    m = machine()
    m.pace.figure()
    late = itertools.count()
    m.slower = lambda now: 40.0 if next(late) == 3 else 1.0
    assert m.pace.figure().parts == pytest.approx((3e-5, 1e-5))


def test_the_probe_runs_on_this_machine():
    own = pace.Pace(pace._sampler())
    for threads in (1, 2):
        sample = own._sample(threads)
        assert len(sample) == threads and all(start < mid < end for start, mid, end in sample)
    figure = own.figure()
    assert figure.together and min(figure.parts) > 0 and own.best(1) <= figure.parts


def test_ctrl_c_in_the_probe_is_raised(monkeypatch):
    from types import SimpleNamespace

    from triport.backends.cpu.run import launch

    def interrupted():
        raise KeyboardInterrupt

    real = launch.pool()
    monkeypatch.setattr(launch, "pool", lambda: SimpleNamespace(call=lambda packed: launch.INTERRUPTED, openmp=real.openmp, raise_signal=interrupted))
    with pytest.raises(KeyboardInterrupt):
        pace._sampler()(1)


def test_a_row_and_a_measurement_say_how_many_rounds_were_left_out():
    row = {}
    results.add_times(row, clock.Samples([1e-3] * 6, [1e-3] * 6, 10, left_out=4), None)
    assert row["rounds_left_out"] == 4 and "noisy" not in row
    results.add_times(row := {}, clock.Samples([1e-3] * 6, [1e-3] * 6, 10), None)
    assert "rounds_left_out" not in row
    assert "6 rounds of 10 calls, 4 left out)" in str(measure.Measurement("f", [1e-3] * 6, [1e-3] * 6, 10, 0.5, left_out=4))


def test_unsteady_times_are_marked_and_ratios_stay():
    """Ratios are of rounds side by side: what slows the machine slows both."""
    why = "the machine's own pace changed by 30 % while this was measured"
    rows = []
    for name, t in (("torch", 2e-3), ("triton-cpu", 1e-3)):
        row = {"op": "a", "case": "8x8", "dtype": "fp32", "backend": name, "device": "cpu", "status": "ok", "baseline": "torch", "bytes": None, "flops": None}
        results.add_times(row, clock.Samples([t] * 6, [t] * 6, 10, unsteady=why), None)
        results.add_rates(row, rows[0] if rows else None, {}, "fp32")
        rows.append(row)
    assert rows[1]["unsteady"] == why and "noisy" not in rows[1] and rows[1]["speedup_is"] == "faster"
    assert [next(f for f in fields.FIELDS if f.name == "time").text(r) for r in rows] == ["~2.00 ms", "~1.00 ms"]
    said = " ".join(text for _, text in words.words(rows))
    assert "2 of 2 times, marked ~" in said and "30 %" in said and "noisy" not in said
    both = measure.Comparison({n: measure.Measurement(n, [t] * 6, [t] * 6, 10, 0.5, unsteady=why) for n, t in (("a", 2e-3), ("b", 1e-3))}, "a", {})
    assert both.verdict("b") == "faster" and str(both).count(why) == 1
    results.add_times(row := {}, clock.Samples([1e-3] * 6, [1e-3] * 6, 10, unsteady=why), [1e-3] * 6)
    assert "unsteady" not in row, "a GPU's own time"


def test_each_part_has_its_limit():
    """Reads, which feel what is left in the cache, may be slower than additions."""
    times = iter([(3e-5, 1e-5)] * pace.SAMPLES * (1 + pace.FIRST))

    def sample(threads):
        adds, reads = next(times)
        return [(0.0, adds, adds + reads)] * threads

    own = pace.Pace(sample)
    rounds = pace.Rounds(own)
    own.figure(2)
    for adds, reads in ((1.0, 1.15), (1.15, 1.0), (1.0, 1.25), (1.0, 1.0)):
        times = iter([(3e-5 * adds, 1e-5 * reads)] * pace.SAMPLES)
        rounds.look(2)
        rounds.close()
    assert rounds.count() == [0, 3] and rounds.why(fixed=True).startswith("the machine's own pace changed by 15 %")
