"""`triport.bench.benchmark` and `compare`: what they return and print, what they refuse, and that nothing wrong is timed."""

import math
import subprocess
import sys

import numpy
import pytest
import torch
from triport.backends.base import Error
from triport.bench import agreement, benchmark, clock, compare, load, measure, pace


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """What else this machine does is not what is tested here."""
    monkeypatch.setattr(load.Watch, "busy", lambda self, wait=False: None)
    monkeypatch.setattr(pace, "here", lambda: None)


@pytest.fixture
def timed(monkeypatch):
    """The candidates that the clock was given."""
    names = []
    monkeypatch.setattr(clock, "interleave", lambda turns, *a, real=clock.interleave, **k: (names.extend(turns), real(turns, *a, **k))[1])
    return names


def measurement(label, rounds, noisy=None):
    return measure.Measurement(label, rounds, [2 * t for t in rounds], 100, 0.5, noisy)


def test_a_measurement_of_a_function_with_its_arguments():
    seen = []

    def double(x, by=2):
        seen.append((x, by))
        return x * by

    m = benchmark(double, 21, by=3, rounds=7)
    assert set(seen) == {(21, 3)} and m.label == "double" and len(m.rounds) == len(m.cpu_rounds) == 7 and m.first > 0
    assert m.ci[0] <= m.median <= m.ci[1] and m.median == sorted(m.rounds)[3] and len(seen) >= 7 * m.repeats
    assert benchmark(double, 1, rounds=1, label="twice").label == "twice"
    assert benchmark(double, 1, rounds=1).noisy == "1 round is too few to tell noise"


@pytest.mark.parametrize("argument,fn", [(lambda: numpy.ones(5), lambda a: a.sort() or a.__iadd__(1)), (list, lambda a: a.append(1)), (dict, lambda a: a.update(x=1))])
def test_candidates_that_change_what_is_no_tensor(argument, fn):
    def nothing(a):
        return None

    with pytest.raises(Error, match="changes its arguments"):
        compare({"nothing": nothing, "changes": lambda a: (fn(a), None)[1]}, argument())
    assert compare([nothing, lambda a: None], argument(), rounds=1)


def test_what_cannot_be_measured():
    async def soon():
        pass

    for fn, options, said in ((soon, {}, "async function"), (3, {}, "not a function"), (int, {"rounds": 2.5}, "rounds 2.5"), (int, {"precision": "2%"}, "precision '2%'")):
        with pytest.raises(Error, match=said):
            benchmark(fn, **options)
    assert compare([lambda: numpy.ones(4).mean(), lambda: 1.0], rounds=1)


def test_a_measurement_waits_for_what_the_call_began():
    events = []
    m = benchmark(lambda: events.append("call"), rounds=2, synchronize=lambda: events.append("wait"), label="x")
    assert events[:2] == ["call", "wait"] and events[-1] == "wait" and m.repeats > 1
    assert events[-1 - m.repeats:] == ["call"] * m.repeats + ["wait"], "once a turn"


def test_a_measurement_in_words():
    m = measurement("gelu", [10e-6 + k * 1e-8 for k in range(9)])
    assert str(m) == repr(m) == "gelu: 10.0 us (10.0 us to 10.1 us with 95 % confidence, 9 rounds of 100 calls), CPU time 20.1 us, first call 500 ms"
    assert str(measurement("a", [1.0] * 9, "other programs used 1.8 of 2 cores")).endswith("\n  noisy: other programs used 1.8 of 2 cores")
    assert m._repr_markdown_().splitlines() == [
        "|  | median | 95 % confidence | CPU time | first call | rounds x calls |", "| --- | --: | --: | --: | --: | --: |",
        "| gelu | 10.0 us | 10.0 us to 10.1 us | 20.1 us | 500 ms | 9 x 100 |"]
    for seconds, said in ((1.234, "1.23 s"), (99.9e-3, "99.9 ms"), (0.1, "100 ms"), (12.34e-6, "12.3 us"), (5e-9, "5.00 ns"), (0.0, "0.00 ns")):
        assert str(measurement("a", [seconds] * 9)).startswith(f"a: {said} ({said} to {said} with")


def test_a_comparison_in_words():
    made = measure.Comparison({"torch": measurement("torch", [2e-3] * 9), "by hand": measurement("by hand", [4e-3] * 9),
                               "fused|": measurement("fused|", [1e-3] * 9)}, "torch", {})
    assert made.verdict("fused|") == "faster" and made.verdict("by hand") == "slower" and made.verdict("torch") == "same"
    assert made.speedup("fused|").median == 2.0 and made["fused|"].median == 1e-3 and list(made) == ["torch", "by hand", "fused|"] and len(made) == 3
    assert str(made).splitlines() == [
        "          median     95 % confidence  CPU time  first call  rounds x calls  against torch",
        "torch    2.00 ms  2.00 ms to 2.00 ms   4.00 ms      500 ms         9 x 100  baseline",
        "by hand  4.00 ms  4.00 ms to 4.00 ms   8.00 ms      500 ms         9 x 100  0.50x (0.50 to 0.50) slower",
        "fused|   1.00 ms  1.00 ms to 1.00 ms   2.00 ms      500 ms         9 x 100  2.00x (2.00 to 2.00) faster"]
    assert r"| fused\| | 1.00 ms |" in made._repr_markdown_() and len({line.count("|") - line.count("\\|") for line in made._repr_markdown_().splitlines()}) == 1


def test_a_comparison_with_noise_in_words():
    busy = "other programs used 1.8 of 2 cores"
    both = measure.Comparison({k: measurement(k, [t] * 9, busy) for k, t in (("a", 1.0), ("b", 0.5))}, "a", {})
    assert both.verdict("b") == "noisy" and str(both).count(busy) == 1 and str(both).endswith(f"2.00x (2.00 to 2.00) noisy\n  noisy: {busy}")
    mixed = measure.Comparison({"a": measurement("a", [1.0] * 9, busy), "b": measurement("b", [0.5] * 9, f"{busy}; few")}, "a", {})
    assert str(mixed).endswith(f"\n  noisy: {busy}\n  noisy: b: few")
    one = measure.Comparison({"a": measurement("a", [1.0] * 9), "b": measurement("b", [0.5] * 9, "9 rounds")}, "a", {})
    assert str(one).endswith("\n  noisy: b: 9 rounds") and one._repr_markdown_().endswith("\n\nnoisy: b: 9 rounds")


def test_candidates_take_turns_with_the_same_arguments(timed, seed):
    x = torch.randn(33, 7, generator=torch.Generator().manual_seed(seed))
    c = compare({"torch": torch.square, "product": lambda x: x * x}, x, rounds=6)
    assert timed == ["torch", "product"] and c.baseline == "torch" and c.errors["torch"] == 0 and c.errors["product"] <= 2e-6
    assert len(c["torch"].rounds) == len(c["product"].rounds) == 6 and c.speedup("torch").ci == (1.0, 1.0)
    assert compare([torch.square, torch.square], x, rounds=1, baseline="square 2").baseline == "square 2"


WRONG = {"zeros": torch.zeros_like, "nan": lambda x: x * x * float("nan"), "shape": lambda x: (x * x)[1:], "dtype": lambda x: (x * x).half(),
         "tuple": lambda x: (x * x,), "none": lambda x: None, "number": lambda x: 1.0, "one": lambda x: (x * x).index_fill(0, torch.tensor(3), 0.0)}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("reference", [None, torch.square])
def test_what_is_wrong_is_not_timed(timed, name, reference, seed):
    x = torch.randn(33, 7, generator=torch.Generator().manual_seed(seed)) + 3
    with pytest.raises(Error, match=f"candidate {name} is wrong: its error against (the reference|candidate right) is .*; nothing was timed"):
        compare({"right": torch.square, name: WRONG[name]}, x, reference=reference, allowed=1e-5)
    assert timed == []


@pytest.mark.parametrize("want,got,said", [
    (torch.ones(3), torch.ones(4), "shape (4,), (3,) expected"), ({"a": torch.ones(3)}, {"b": torch.ones(3)}, "keys 'b'; 'a' expected"), ("yes", "no", "'no', 'yes' expected"),
    ((torch.ones(3), torch.ones(2)), (torch.ones(3),), "1 results, 2 expected"), ((torch.ones(3), 1.0), (torch.ones(3), "1"), "str, float expected"),
    ([torch.ones(3)], [torch.tensor([1.0, float("nan"), 1.0])], "nan at [1], 1 expected")])
def test_what_no_number_says_is_said(timed, want, got, said):
    with pytest.raises(Error) as e:
        compare({"right": lambda x: want, "other": lambda x: got}, torch.ones(1))
    assert f"is inf ({said})" in str(e.value) and timed == []


def test_results_of_other_dtypes_are_named(timed):
    """They may be right; their times are of other work."""
    c = compare({"wide": lambda x: x + 1, "narrow": lambda x: (x + 1).half(), "both": lambda x: x + 1}, torch.ones(64), rounds=1)
    assert c.returns == {"wide": ["float32"], "narrow": ["float16"], "both": ["float32"]}
    said = "narrow returns float16, wide float32; their times are not of the same work"
    assert str(c).count(said) == 1 and c._repr_markdown_().count(said) == 1 and "both returns" not in str(c)


def test_the_reference_is_called_in_float64(seed):
    x, seen = torch.randn(50, generator=torch.Generator().manual_seed(seed)), []
    index = torch.arange(50)
    c = compare({"take": lambda pair, scale: pair["x"][pair["i"]] * scale}, {"x": x, "i": index}, scale=2.0, rounds=1,
                reference=lambda pair, scale: (seen.append((pair["x"].dtype, pair["i"].dtype)), pair["x"][pair["i"]] * scale)[1])
    assert seen == [(torch.float64, torch.int64)] and 0 <= c.errors["take"] <= 2e-6
    with pytest.raises(Error, match="against the reference"):
        compare({"first": torch.sin}, x, reference=torch.cos)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_may_be_as_far_off_as_their_parts(dtype, seed):
    x = torch.randn(64, 64, dtype=dtype)
    seen = []
    compare({"a": lambda x: x.sum(0), "b": lambda x: x.flip(0).cumsum(0)[-1]}, x, rounds=1, budget=0.01)
    compare({"a": lambda x: x.sum(0)}, x, rounds=1, budget=0.01, reference=lambda x: seen.append(x.dtype) or x.sum(0))
    assert seen == [torch.complex128]
    with pytest.raises(Error, match="candidate b is wrong"):
        compare({"a": lambda x: x.sum(0), "b": lambda x: x.sum(0).conj() * 1.0}, x, rounds=1, budget=0.01)


def test_sparse_results_are_compared_by_their_values(seed):
    x = torch.eye(30)
    compare({"a": lambda x: x + 0, "b": lambda x: x.to_sparse()}, x, rounds=1, budget=0.01)
    with pytest.raises(Error, match="candidate b is wrong"):
        compare({"a": lambda x: x + 0, "b": lambda x: (2 * x).to_sparse()}, x, rounds=1, budget=0.01)


@pytest.mark.parametrize("kind", [torch, numpy], ids=["torch", "numpy"])
def test_results_in_one_place_are_each_candidates_own(kind, seed):
    """Functions that write into one `out`: what an earlier one left there is not a later one's result, and who writes it all is right."""
    x = torch.rand(9) if kind is torch else numpy.random.default_rng(seed).random(9)
    out = kind.zeros_like(x)

    def right(x):
        return kind.add(x, 1, out=out)

    def also(x):
        return kind.add(x, 1.0, out=out)[:]

    def idle(x):
        return out

    def late(x):
        return kind.add(x, 2, out=out)

    assert len(compare([right, also], x, rounds=1).errors) == 2
    for wrong in (idle, late):
        for more in ({}, {"reference": lambda x: x + 1}):
            with pytest.raises(Error, match=rf"candidate {wrong.__name__} is wrong: .*its result lies where an earlier candidate's does"):
                compare([right, wrong], x, rounds=1, **more)
            assert (abs(out - x) < 3).all()  # nothing is left spoilt


def test_a_result_that_is_an_argument_is_no_result_of_another(seed):
    x = torch.rand(9)
    assert len(compare([lambda x: x, lambda x: x.view(9)], x, rounds=1).errors) == 2


def test_a_candidate_that_changes_its_arguments_is_refused_and_they_are_put_right(timed, seed):
    x = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    before = x.clone()
    with pytest.raises(Error, match="candidate in place changes tensor 0 of its arguments"):
        compare({"torch": torch.sin, "in place": torch.sin_}, x)
    assert timed == [] and torch.equal(x, before)


def test_results_are_compared_part_by_part():
    one, off = torch.ones(4), torch.ones(4) + 1e-3
    inf = math.inf
    for got, want, error in (((one, 1), (one, 1), 0), ([one], (one,), 0), ({"a": one}, {"a": off}, pytest.approx(1e-3, rel=0.01)), ({"a": one}, {"b": one}, inf),
                             ((one,), (one, one), inf), (one, 1.0, inf), (1.0, 1.0, 0), (1.0 + 1e-9, 1.0, pytest.approx(1e-9)), (float("nan"), 1.0, inf),
                             (float("nan"), float("nan"), 0), (float("inf"), 1.0, inf), (1.0, float("inf"), inf), (1e-300, 0.0, inf), (3, 4, inf), (3, 3, 0),
                             ("a", "a", 0), ("a", "b", inf), (None, None, 0), (one.numpy(), off.numpy(), pytest.approx(1e-3, rel=0.01)),
                             ((), (), 0), (torch.tensor([1, 2]), torch.tensor([1, 3]), pytest.approx(0.316, rel=0.01))):
        assert agreement.error(got, want)[0] == error, (got, want)
    assert agreement.error((one, torch.ones(2, dtype=torch.float64)), (one * (1 + 1e-6), torch.ones(2, dtype=torch.float64) * (1 + 1e-9)))[1] == 1e-14, \
        "the part that is furthest beyond what is allowed"


def test_options_out_of_range_say_what_is_taken():
    for options, said in (({"precision": 0}, "precision 0: it takes a share"), ({"budget": -1}, "budget -1: it takes seconds"),
                          ({"rounds": 0}, "rounds 0: it takes a number from 1 up"), ({"precision": float("nan")}, "precision nan")):
        for call in (lambda **k: benchmark(len, "a", **k), lambda **k: compare([len], "a", **k)):
            with pytest.raises(Error, match=said):
                call(**options)
    with pytest.raises(Error, match="unknown baseline 'tosh'; did you mean 'torch'"):
        compare({"torch": torch.sin}, torch.ones(2), baseline="tosh")
    with pytest.raises(Error, match="there are no candidates"):
        compare({})
    with pytest.raises(Error, match="candidate a is int, not a function"):
        compare({"a": 3})


def test_the_package_imports_nothing_until_it_is_asked():
    code = ("import sys, triport.bench as b; assert not {'torch', 'triport.bench.measure', 'statistics'} & set(sys.modules); "
            "assert 'compare' in dir(b); from triport.bench import benchmark; print(benchmark(len, 'a', rounds=1).label); assert 'torch' not in sys.modules")
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert p.stdout == "len\n", p.stderr
    import triport.bench
    with pytest.raises(AttributeError, match="no attribute 'bench_mark'"):
        triport.bench.bench_mark  # noqa: B018
