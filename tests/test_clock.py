"""The clock and what its samples are worth: on a clock that goes on only where a candidate says so, and on synthetic samples."""

import math
import random
import statistics

import pytest
from triport.bench import clock, fields, load, noise, results


class World:
    """A machine on which only calls take time, all of it CPU time of ours."""

    def __init__(self, monkeypatch):
        self.now, self.slept = 0.0, []
        monkeypatch.setattr(clock, "time", self)
        monkeypatch.setattr(clock.load, "Watch", lambda: self)
        monkeypatch.setattr(clock.pace, "here", lambda: None)
        self.said = None

    def perf_counter(self):
        return self.now

    process_time = perf_counter

    def sleep(self, seconds):
        self.slept.append(seconds)

    def busy(self, wait):
        self.waited = wait
        return self.said

    def call(self, *seconds, calls=None):
        """A function that takes these seconds in turn, the last of them ever after."""
        left = list(seconds)

        def fn():
            self.now += left.pop(0) if len(left) > 1 else left[0]
            if calls is not None:
                calls.append(self.now)
        return fn


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_interleaving_takes_turns_and_who_is_first_changes(world):
    order = []
    turns = {k: clock.Turn(world.call(1e-3), before=lambda n, k=k: order.append(k)) for k in "ab"}
    for fn in (turns, {k: (lambda k=k: order.append(k), clock.nothing) for k in "ab"}):
        order.clear()
        samples = clock.interleave(fn, rounds=3, seconds=0)
        assert "".join(order)[-12:] == "aabb" + "bbaa" + "aabb" and all(len(s.wall) == 3 for s in samples.values())


def test_samples_are_of_turns_and_a_turn_is_as_long_as_asked(world):
    samples = clock.interleave({"a": (world.call(2**-10), clock.nothing), "b": (world.call(2**-13), clock.nothing)}, rounds=2, seconds=2**-6)
    assert samples["a"].repeats == 16 and samples["b"].repeats == 128
    assert samples["a"].wall == [2**-10] * 2 and samples["b"].cpu == [2**-13] * 2 and set(world.slept) == {clock.SETTLE}


@pytest.mark.parametrize("unlucky", range(9))
def test_one_unlucky_call_does_not_decide_how_often_is_called(world, unlucky):
    """One call of the first few takes a thousand times as long."""
    times = [1e-5] * 9
    times[unlucky] = 1e-2
    assert clock.calibrate(clock.Turn(world.call(*times, 1e-5)), 0.01) == 1000


def test_two_of_three_first_calls_are_unlucky(world):
    assert clock.calibrate(clock.Turn(world.call(0.014, 0.013, 1e-5)), 0.01) == 1000


def test_rounds_begin_again_where_a_candidate_was_calibrated_in_a_bad_moment(world):
    """The first hundred calls of one of two take a thousand times as long: in the end both have turns of the same length, and no sample is of before."""
    ticks = []
    samples = clock.interleave({"a": (world.call(1e-5), clock.nothing), "b": (world.call(*[1e-2] * 100, 1e-5), clock.nothing)}, rounds=60,
                               tick=lambda: ticks.append(1))
    assert [s.repeats for s in samples.values()] == [1000, 1000] and len(ticks) > 60
    assert all(s.wall == pytest.approx([1e-5] * 60) for s in samples.values())


def test_rounds_do_not_begin_again_for_ever(world):
    """A call that gets ever faster."""
    ticks = []
    seconds = [2.0**-k for k in range(7, 60) for _ in range(4)]
    clock.interleave({"a": (world.call(*seconds), clock.nothing)}, rounds=4, seconds=2**-6, tick=lambda: ticks.append(1))
    assert 4 <= len(ticks) <= 4 * (clock.AGAIN + 1)


def test_a_long_call_is_not_tried_often(world):
    for took, tries in ((3.0, 1), (0.5, 2), (0.05, 3)):
        calls = []
        assert clock.calibrate(clock.Turn(world.call(took, calls=calls)), 0.01) == 1 and len(calls) == tries


def test_what_calls_change_is_made_ready_outside_of_the_clock(world):
    ready, used = [], []

    def before(n):
        world.now += 5.0
        ready[:] = [0] * n

    def call():
        world.now += 1e-3
        used.append(ready.pop())  # raises where more is called than was made ready

    s = clock.interleave({"a": clock.Turn(call, before=before, limit=4)}, rounds=6)["a"]
    assert s.repeats == 4 and s.wall == pytest.approx([1e-3] * 6) and used
    world.now = 0.0
    assert clock.interleave({"a": clock.Turn(call, before=before)}, rounds=1)["a"].repeats == 10


def test_rounds_go_on_until_the_median_is_known(world):
    rng = random.Random(0)
    still = clock.interleave({"a": (world.call(1e-3), clock.nothing)})["a"]
    assert len(still.wall) == 6, "six are the fewest of which 95 % can be said"
    begun = world.now

    def noisy():
        world.now += 1e-2 * rng.uniform(1.0, 1.2)
    moved = clock.interleave({"a": (world.call(1e-2), clock.nothing), "b": (noisy, clock.nothing)}, precision=1e-4, budget=5.0)
    assert len(moved["a"].wall) == len(moved["b"].wall) > 20 and 5.0 <= world.now - begun < 5.6, "the noisier one goes on until the time is up"
    assert len(clock.interleave({"b": (noisy, clock.nothing)}, precision=0.1)["b"].wall) == 6


def test_a_long_call_is_measured_as_often_as_the_budget_allows(world):
    def rounds(seconds, **kwargs):
        return len(clock.interleave({"a": (world.call(seconds), clock.nothing)}, **kwargs)["a"].wall)
    assert rounds(30.0, budget=2.0) == 1, "no round fits"
    assert rounds(1.0, budget=2.0) == 6, "one fits, so there are six"
    assert rounds(0.3, budget=2.0) == 6 and rounds(30.0, rounds=3) == 3


@pytest.mark.parametrize("late", range(0, 30, 3))
def test_rounds_that_begin_again_late_are_as_many(world, late):
    """Calls get twenty times faster when the budget is all but spent: what was spent before does not count as the few rounds' that follow."""
    until = 0.9 + late / 100

    def call():
        world.now += 0.0215 if world.now < until else 0.001

    s = clock.interleave({"a": (call, clock.nothing)}, budget=1.0, precision=-1.0)["a"]  # which no median has
    assert len(s.wall) >= noise.FEW and world.now < 1.5


def test_single_calls_are_in_order(world):
    made_ready = []
    wall, cpu = clock.singles(clock.Turn(world.call(8.0, 1.0, 2.0), before=made_ready.append), n=4)
    assert wall == cpu == [8.0, 1.0, 2.0, 2.0] and made_ready == [1] * 4


def test_a_turn_ends_where_its_calls_have_become_slow(world):
    """A thousand calls of 10 us each, then of 1 s: the turn ends after a tenth of them, not after 1000 s."""
    turn = clock.Turn(world.call(1.0))
    assert turn.run_within(1000, 0.1) == (100.0, 100.0, 100)
    assert turn.run_within(1000, 1e9) == (1000.0, 1000.0, 1000) and turn.run_within(3, 0.1) == (1.0, 1.0, 1)
    samples = clock.interleave({"a": clock.Turn(world.call(*[1e-5] * 20000, 1.0))}, rounds=4)["a"]
    assert max(samples.wall) <= 1.0 and len(samples.wall) == 4


@pytest.mark.parametrize("n", range(1, 60))
def test_the_interval_of_the_median_is_the_narrowest_that_is_sure(n):
    def outside(r):  # exactly: fewer than r of n coins fall heads, or fewer than r tails
        return 2 * sum(math.comb(n, k) for k in range(r)) / 2**n
    r = noise.rank(n)
    assert 1 <= r <= (n + 1) / 2 and outside(r + 1) > 0.05 and (outside(r) <= 0.05 or n < 6)
    values = [float(k) for k in range(n)]
    random.Random(n).shuffle(values)
    assert noise.interval(values) == (r - 1, n - r)


def test_intervals_enclose_the_median_as_often_as_they_say(seed):
    """Of skewed samples, 3000 times."""
    rng = random.Random(seed)
    for n in (6, 15, 40):
        within = 0
        for _ in range(1000):
            low, high = noise.interval([rng.expovariate(1.0) for _ in range(n)])
            within += low <= math.log(2) <= high
        assert within >= 925, n  # 950 or more are to be expected; 25 fewer is 3.6 standard deviations


def _samples(rng, n, size=1.0, spread=0.05, drift=0.0):
    """Rounds of two candidates, the second `size` times as long: skewed noise of each, and the machine's drift, which they share."""
    a, b, shared = [], [], 1.0
    for _ in range(n):
        shared *= math.exp(rng.gauss(0, drift))
        a.append(shared * math.exp(spread * rng.expovariate(1.0)))
        b.append(size * shared * math.exp(spread * rng.expovariate(1.0)))
    return a, b


def _row(wall, busy=None, **more):
    row = {"device": "cpu", "bytes": None, "flops": None, **more}
    results.add_times(row, clock.Samples(wall, wall, busy=busy), None)
    return row


def _compared(a, b, busy=None):
    base, row = _row(a, busy), _row(b, busy)
    results.add_rates(row, base, {}, "fp32")
    return row


def test_the_same_twice_is_not_called_faster(seed):
    """However noisy the samples, and whatever the machine drifts."""
    rng = random.Random(seed)
    for spread in (0.01, 0.1, 0.5, 2.0):
        for drift in (0.0, 0.1):
            said = [_compared(*_samples(rng, rng.choice([5, 6, 7, 10, 40]), 1.0, spread, drift))["speedup_is"] for _ in range(200)]
            assert sum(s in ("faster", "slower") for s in said) <= 2, (spread, drift)


def test_twice_as_fast_is_called_so_and_little_is_the_same(seed):
    rng = random.Random(seed)
    for size, verdict in ((0.5, "faster"), (2.0, "slower"), (1.02, "same"), (0.98, "same")):
        row = _compared(*_samples(rng, 20, size, 0.01))
        assert row["speedup_is"] == verdict and "noisy" not in row
        low, high = row["speedup_ci"]
        assert low <= row["speedup"] <= high and row["speedup"] == pytest.approx(1 / size, rel=0.03)


def test_rounds_pair_so_that_drift_of_the_machine_is_not_noise(seed):
    """The machine gets ten times slower; each round's ratio is the same."""
    a, b = _samples(random.Random(seed), 30, 0.8, 0.005)
    a, b = ([t * 10**(k / 30) for k, t in enumerate(x)] for x in (a, b))
    assert noise.paired(a, b).verdict() == "faster" and noise.apart(a, b).verdict() == "noisy"
    assert _compared(a, b)["speedup_ci"] == list(noise.paired(a, b).ci)


def test_a_noisy_rows_ratio_is_not_coloured():
    steady, wild = [1.0] * 12, [0.1, 0.5] * 6
    row = _compared(steady, wild)
    assert row["speedup_is"] == "noisy" and row["noisy"] == "after 12 rounds the median is known to +-67 % only"
    row = _compared(steady, [0.5] * 12, busy="other programs used 1.8 of 2 cores")
    assert row["speedup_is"] == "noisy" and row["noisy"] == "other programs used 1.8 of 2 cores" and row["speedup"] == 2.0
    row = _compared([2.0] * 3, [1.0] * 3)
    assert row["speedup_is"] == "noisy" and row["noisy"] == "3 rounds are too few to tell noise" and "speedup_ci" not in row
    assert _compared([2.0], [1.0])["noisy"] == "1 round is too few to tell noise"


def test_a_ratio_that_could_be_either_is_noisy():
    assert noise.Ratio(1.1, (0.9, 1.3)).verdict() == "noisy" and noise.Ratio(1.04, (1.0, 1.08)).verdict() == "same"
    assert noise.Ratio(2.0, (1.06, 3.0)).verdict() == "faster" and noise.Ratio(2.0, (1.06, 3.0)).verdict(noisy=True) == "noisy"
    assert noise.Ratio(0.9, (0.8, 0.94)).verdict() == "slower" and noise.Ratio(2.0).verdict() == "noisy"


def test_a_gpus_clock_is_compared_with_another_as_wholes():
    """Its rounds are not the host's; and a busy host does not make its time doubtful."""
    gpu = {"device": "cuda", "bytes": None, "flops": None}
    results.add_times(gpu, clock.Samples([1.0] * 7, [1.0] * 7, busy="other programs used 2.0 of 2 cores"), [0.5] * 9)
    assert "noisy" not in gpu
    row = _row([2.0] * 7)
    results.add_rates(row, gpu, {}, "fp32")
    assert row["speedup"] == 0.25 and row["speedup_ci"] == [0.25, 0.25] and row["speedup_is"] == "slower"


STAT = "cpu  90 0 0 900 0 0 0 0 0 0\ncpu0 {} 5 5 100 50 1 1 {} 7 7\ncpu1 40 0 0 100 0 0 0 0 0 0\nintr 5\n"


def test_busy_seconds_of_the_cores_that_we_may_use(monkeypatch):
    monkeypatch.setattr(load.os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    assert load.busy_seconds(STAT.format(80, 8), {0}) == 1.0 and load.busy_seconds(STAT.format(80, 8), {0, 1}) == 1.4
    assert load.busy_seconds("cpu0 80 0 0 100\n", {0}) == 0.8, "kernels before 2.6 have no more"
    assert load.busy_seconds(STAT.format(80, 8), {0, 2}) is None and load.busy_seconds("", {0}) is None and load.busy_seconds("", set()) is None


def test_what_others_used_is_said():
    assert load.taken(4.0, 0.4, 2.0, 2) == "other programs used 1.8 of 2 cores"
    assert load.taken(4.0, 3.9, 2.0, 2) is None and load.taken(4.0, 5.0, 2.0, 2) is None, "all of it, or more by the ticks' rounding, was ours"
    assert load.taken(4.0, 2.0, 2.0, 64) is None, "one of 64 cores leaves enough"
    assert load.taken(0.2, 0.0, 0.1, 2) is None, "ten ticks say nothing"


def test_where_nothing_says_who_works_nothing_is_said(monkeypatch):
    monkeypatch.setattr(load, "cores_seconds", lambda cores: None)
    assert load.Watch().busy() is None


def test_a_watch_counts_what_is_not_ours(monkeypatch):
    everybody, own, now = iter([10.0, 14.0]), iter([1.0, 1.5]), iter([0.0, 2.0])
    monkeypatch.setattr(load, "cores_seconds", lambda cores: next(everybody))
    monkeypatch.setattr(load, "own_seconds", lambda: next(own))
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(now))
    assert load.Watch().busy() == "other programs used 1.8 of 2 cores"


def test_a_busy_machine_is_said_of_each_candidate(world):
    world.said = "other programs used 1.8 of 2 cores"
    assert [s.busy for s in clock.interleave({k: (world.call(1e-3), clock.nothing) for k in "ab"}, rounds=1).values()] == [world.said] * 2
    assert not world.waited
    clock.interleave({"a": (world.call(1e-3), clock.nothing)})
    assert world.waited, "what was known soon waits for who else works"


def test_a_watch_waits_where_too_little_has_passed(monkeypatch):
    everybody, slept = iter([10.0, 10.4]), []
    monkeypatch.setattr(load, "cores_seconds", lambda cores: next(everybody))
    monkeypatch.setattr(load, "own_seconds", lambda: 0.0)
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(load.time, "perf_counter", lambda: 5.0 + sum(slept))
    monkeypatch.setattr(load.time, "sleep", slept.append)
    assert load.Watch().busy(wait=True) == "other programs used 1.6 of 2 cores" and slept == [load.SHORTEST]


def test_summaries_have_the_medians_interval():
    values = [float(k) for k in range(20)]
    s = clock.summary(values)
    assert s["ci"] == [5.0, 14.0] and s["ci"][0] <= s["p50"] == statistics.median(values) <= s["ci"][1]


@pytest.mark.parametrize("n", range(1, 6))
def test_there_is_no_interval_of_few_rounds(n):
    """Six are the fewest that make one of 95 %: neither of a median nor of a ratio, and no verdict by one; the table's cells are empty."""
    base, row = _row([3.0] * n), _row([1.0] * n)
    results.add_rates(row, base, {}, "fp32")
    row |= {"status": "ok", "backend": "x"}
    assert "ci" not in row["wall_s"] and "speedup_ci" not in row and row["speedup"] == 3.0 and row["speedup_is"] == "noisy" and "too few" in row["noisy"]
    assert noise.apart([3.0] * n, [1.0] * 40).ci is None and noise.apart([3.0] * 40, [1.0] * n).ci is None
    before = {**row, "wall_s": {**row["wall_s"], "ci": [1.0, 1.0]}, "speedup_ci": [3.0, 3.0]}  # as files of earlier versions have it
    cells = {c.name: c.text(before) for c in fields.FIELDS}
    assert cells["ci"] == cells["speedup_ci"] == "" and cells["speedup"] == "3.00x noisy"


def test_a_gpus_rounds_go_on_until_they_are_precise(world, monkeypatch):
    """On a GPU that takes as long as the call says: what has inputs to renew is called, with as many as were made ready, and the rest is captured."""
    torch = pytest.importorskip("torch")

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = world.now

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    for name, fake in (("zeros", lambda *a, **k: None), ("empty", lambda *a, **k: None), ("sum", lambda *a, **k: setattr(world, "now", world.now + 1e-3))):
        monkeypatch.setattr(torch, name, fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: type("Properties", (), {"L2_cache_size": 4}))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    captured, ready = [], []
    monkeypatch.setattr(clock, "captured", lambda fn: (captured.append(fn), fn)[1])
    rng = random.Random(0)

    def noisy():
        world.now += rng.uniform(1.0, 1.2) * 1e-3

    def in_place():
        ready.pop()
        world.now += 2e-3

    candidates = {"a": noisy, "b": clock.Turn(in_place, before=lambda n: ready.extend([0] * n), limit=2)}
    out = clock.on_gpu(candidates, precision=0.01, budget=60)
    assert captured == [noisy] and ready == [] and out["b"] == pytest.approx([2e-3] * len(out["a"]))
    assert noise.width(out["a"]) <= 0.01 < noise.width(out["a"][:-1]) and len(out["a"]) > 6
    assert {len(s) for s in clock.on_gpu(candidates, 7).values()} == {7}
