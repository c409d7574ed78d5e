"""Rounding never promises more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.audit.membership import Estimate
from tfdp.report.numbers import (
    at_most,
    exact,
    interval,
    percent,
    percent_up,
    rest_of,
    round_down,
    round_up,
    span,
    span_down,
)
from tfdp.report.releases import Range


@given(st.floats(1e-12, 1e12))
def test_rounded_up_is_at_least_the_number_and_near_it(value):
    shown = float(round_up(value))
    assert value <= shown <= value * 1.001 + 1e-300
    assert value * 0.999 <= float(round_down(value)) <= value


@pytest.mark.parametrize("text", ["2.380", "0.9470", "10.00", "123500", "0.00001235"])
def test_rounded_up_number_stays(text):
    assert round_up(float(text)) == round_down(float(text)) == text


@given(st.floats(0, 1))
def test_percentage_is_at_least_the_probability(value):
    shown = float(percent_up(value).removesuffix("\xa0%")) / 100
    assert value - 1e-12 <= shown <= value + 1.0001e-4


def test_spans():
    assert span(None) == "not recorded"
    assert span(Range(0.5, 0.5, 1)) == "0.5"
    assert span(Range(1, 2000, 7)) == "1 to 2,000 (7 values)"
    assert exact(60_000) == "60,000"
    assert round_up(math.inf) == "infinite"


@given(st.floats(1e-12, 1e12))
def test_few_digits_are_below_and_near(value):
    assert value * 0.99999 <= float(at_most(value)) <= value


@given(st.floats(1e-300, 1 - 1e-16, exclude_max=True))
def test_exact_numbers_are_read_as_they_are(value):
    assert float(exact(value)) == value
    percentage = percent(value).removesuffix("\xa0%")
    assert float(percentage) == pytest.approx(100 * value, rel=1e-14)


def test_no_number_is_more_than_it_is():
    assert span_down(Range(1.0999996, 2.0000049, 3)) == "1.09999 to 2 (3 values)"
    assert at_most(1 - 1e-12, 9) == "0.999999999" and rest_of(1 - 1e-12) == "1e-12"
    assert exact(1.0000004e-5) == "1.0000004e-5"
    assert percent_up(0.27190000001) == "27.20\xa0%"


def test_intervals_are_no_narrower_than_they_are():
    estimate = Estimate(0.50004, 0.40009, 0.60001)
    assert interval(estimate) == "0.5000 (0.4000 to 0.6001)"
