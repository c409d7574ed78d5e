"""Events of sums of integers: their sizes, and what becomes of them where records move more."""

import math

import pytest

from tfdp.events import (
    GaussianSharesSumEvent,
    IntegerGaussianSumEvent,
    SkellamSharesSumEvent,
)


def test_several_about_one_sample_are_one():
    event = IntegerGaussianSumEvent(3.0, 2.0)
    assert event.repeated(4) == IntegerGaussianSumEvent(6.0, 2.0)
    assert event.scaled(2.0).noise_multiplier == pytest.approx(1 / 3)


def test_says_why_it_is_not_private():
    assert "zero" in IntegerGaussianSumEvent(3.0, 0.0).why_not_private()
    assert "seed" in IntegerGaussianSumEvent(3.0, 1.0, seeded=True).why_not_private()
    assert IntegerGaussianSumEvent(3.0, 1.0).why_not_private() is None


@pytest.mark.parametrize("bad", [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, math.nan)])
def test_refuses_bad_numbers(bad):
    with pytest.raises(ValueError, match="must be"):
        IntegerGaussianSumEvent(*bad)


def test_noise_of_all_shares_counts():
    event = GaussianSharesSumEvent(3.0, 2.0, 9, 10)
    assert event.noise_multiplier == 2.0
    assert event.scaled(2.0) == GaussianSharesSumEvent(6.0, 2.0, 9, 10)
    assert GaussianSharesSumEvent(3.0, 2.0, 9, 10, True).why_not_private().startswith("the noise")


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_refuses_bad_counts(bad):
    for counts in ((bad, 1), (1, bad)):
        with pytest.raises((TypeError, ValueError), match="must be"):
            GaussianSharesSumEvent(1.0, 1.0, *counts)


def test_skellam_noise_has_two_bounds():
    event = SkellamSharesSumEvent(9.0, 3.0, 2.0, 9)
    assert event.noise_multiplier == 2.0
    assert event.scaled(2.0) == SkellamSharesSumEvent(18.0, 6.0, 2.0, 9)
    assert event.why_not_private() is None
    assert "zero" in SkellamSharesSumEvent(9.0, 3.0, 0.0, 9).why_not_private()
    assert "seed" in SkellamSharesSumEvent(9.0, 3.0, 1.0, 9, seeded=True).why_not_private()
    for bad in ((0.0, 1.0, 1.0, 1), (1.0, 0.0, 1.0, 1), (1.0, 1.0, -1.0, 1), (1.0, 1.0, 1.0, 0)):
        with pytest.raises(ValueError, match="must be"):
            SkellamSharesSumEvent(*bad)
