"""The fit of a power law to times over sizes."""

import numpy as np
import pytest
from triport.backends.base import Error
from triport.bench import scaling


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0])
def test_a_power_law_is_recovered(exponent):
    x = [3, 10, 17, 200]
    law = scaling.fit(x, [0.02 * v**exponent for v in x])
    assert law.exponent == pytest.approx(exponent, abs=1e-9) and law.factor == pytest.approx(0.02) and law.error == pytest.approx(0, abs=1e-7)
    assert law(50) == pytest.approx(0.02 * 50**exponent)


def test_a_noisy_laws_error_is_least_squares(seed):
    x = np.arange(1, 12) * 5.0
    t = 1e-5 * x**1.7 * np.exp(np.random.default_rng(seed).normal(0, 0.1, len(x)))
    (slope, _), covariance = np.polyfit(np.log(x), np.log(t), 1, cov=True)
    law = scaling.fit(list(x), list(t))
    assert law.exponent == pytest.approx(slope) and law.error == pytest.approx(covariance[0, 0]**0.5)
    assert law.text == f"{slope:.2f} ± {law.error:.2f}"


def test_two_points_have_no_error_and_one_no_law():
    law = scaling.fit([2, 4], [1, 8])
    assert law.exponent == pytest.approx(3) and law.error is None and law.text == "3.00"
    for x, t in (([2], [1]), ([2, 2], [1, 2]), ([], [])):
        with pytest.raises(Error, match="two different sizes"):
            scaling.fit(x, t)
    for x, t in (([1, 2], [1, 0]), ([0, 2], [1, 1]), ([1, 2], [1]), ([1, 2], [1, float("nan")])):
        with pytest.raises(Error, match="above 0"):
            scaling.fit(x, t)
