"""Rounding never promises more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.report.numbers import percent_up, plain, round_down, round_up, span
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
    assert plain(60_000) == "60,000"
    assert round_up(math.inf) == "infinite"
