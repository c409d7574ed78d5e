import math
from fractions import Fraction

import numpy as np
import pytest

from tfdp.events.shown import shown_down, shown_up


@pytest.mark.parametrize("digits", [4, 6])
def test_numbers_are_rounded_to_one_side_and_by_less_than_a_digit(digits):
    rng = np.random.default_rng(0)
    for value in (rng.standard_normal(300) * 10.0 ** rng.integers(-300, 300, 300)).tolist():
        low, high = shown_down(value, digits), shown_up(value, digits)
        assert Fraction(float(low)) <= Fraction(value) <= Fraction(float(high))
        assert abs(float(high) - float(low)) <= 10.1 ** (1 - digits) * 10 * abs(value)


def test_what_has_few_digits_is_shown_as_it_is():
    assert [shown_up(v) for v in (0.0, 1.1, 1e-5, math.inf)] == ["0", "1.1", "1e-05", "inf"]
    assert [shown_down(v) for v in (0.0, 1.1, 1e-5, -math.inf)] == ["0", "1.1", "1e-05", "-inf"]
