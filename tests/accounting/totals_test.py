"""tfdp.accounting.totals: few kinds of steps that cost at least as much, exactly so where few."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.strategies import ledger_events
from tfdp.accounting import RDPAccountant
from tfdp.accounting.totals import Totals, round_down
from tfdp.events import (
    ComposedEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


def _totals(pairs, most_kinds=10_000):
    totals = Totals(most_kinds)
    for event, count in pairs:
        totals.add(event, count)
    return totals


def _epsilon(pairs, delta=1e-5):
    accountant = RDPAccountant()
    for event, count in pairs:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def _step(z, q=0.01, clip=1.0, relation=ADD):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(clip, z * clip), relation)


def test_steps_of_one_kind_are_counted_together():
    # Powers of two keep the ratio of noise and clip exact.
    adaptive = [(_step(1.5, clip=2.0**k), k + 1) for k in range(10)]
    totals = _totals([*adaptive, (_step(2.5), 3)])
    assert [entry.count for entry in totals] == [55, 3]
    assert next(iter(totals)).event == adaptive[0][0]
    assert totals.digits is None


def test_relations_and_units_are_kept_apart():
    events = [
        _step(1.5),
        _step(1.5, relation=ZERO),
        SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 1.5), ADD, "user"),
    ]
    assert len(_totals((event, 1) for event in events)) == 3


def test_passes_are_kept_apart():
    # Five steps of one pass and five of another are two begun passes, not one.
    passes = [
        (SampledEvent(ShuffledSampling(10, 100, i), GaussianSumEvent(1.0, 4.0), ZERO), 5)
        for i in range(2)
    ]
    assert list(_totals(passes)) == passes


def test_failures_of_truncated_samples_stay():
    step = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 25), GaussianSumEvent(1.0, 4.0))
    totals = _totals([(step, 3), (_step(4.0), 2)], most_kinds=1)
    assert (step, 3) in list(totals)


@settings(max_examples=40)
@given(st.lists(st.tuples(ledger_events, st.integers(1, 1000)), min_size=1, max_size=5))
def test_exact_totals_cost_exactly_as_much(pairs):
    try:
        expected = _epsilon(pairs)
    except UnsupportedEventError:
        with pytest.raises(UnsupportedEventError):
            _epsilon(_totals(pairs))
        return
    assert _epsilon(_totals(pairs)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("relation", [ADD, ZERO, REPLACE], ids=str)
@pytest.mark.parametrize("digits", [6, 5, 4, 3, 2])
def test_rounding_charges_a_little_more(relation, digits):
    # About three of these multipliers begin with the same digits, and none with the same and more.
    step = 0.3 * 10.0**-digits
    pairs = [(_step(0.61 + step * (i + 0.5), relation=relation), i + 1) for i in range(60)]
    kept = len({round_down(event.event.noise_multiplier, digits) for event, _ in pairs})
    assert kept < 25
    rounded = _totals(pairs, kept)
    assert (rounded.digits, len(rounded)) == (digits, kept)
    exact, charged = _epsilon(pairs), _epsilon(rounded)
    # Multipliers are lowered by 10^-digits / 0.61 at most, and epsilon falls with their square and
    # more.
    assert exact < charged <= exact * (1 + 10 * 10.0**-digits)
    assert sum(entry.count for entry in rounded) == sum(count for _, count in pairs)


def test_rounding_does_not_depend_on_order():
    pairs = [(_step(0.7 + i / 777, q=0.01 + i / 3e4), i + 1) for i in range(60)]
    forwards, backwards = _totals(pairs, 8), _totals(reversed(pairs), 8)
    assert forwards.digits == backwards.digits
    assert sorted(forwards, key=repr) == sorted(backwards, key=repr)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: GaussianSumEvent(1.0, 2.0 + i / 777),
        lambda i: SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 2.0 + i / 777), REPLACE),
        lambda i: SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 2.0 + i / 777), ZERO),
        lambda i: SampledEvent(FixedSizeSampling(2, 100), GaussianSumEvent(1.0, 9.0 + i / 777)),
        lambda i: _step(2.0 + i / 777, q=1.0, relation=REPLACE),
        lambda i: _step(2.0 + i / 777, q=0.2, relation=REPLACE),
        lambda i: _step(2.0 + i / 777, q=1 - 1e-10, relation=REPLACE),
        lambda i: SampledEvent(
            PoissonSampling(0.1), ComposedEvent((GaussianSumEvent(1.0, 9.0 + i / 777),) * 2)
        ),
    ],
    ids=[
        "bare",
        "full replace",
        "full zero",
        "fixed",
        "poisson 1",
        "poisson replace",
        "nearly all replace",
        "composed",
    ],
)
def test_everything_gaussian_is_rounded(make):
    pairs = [(make(i), 2) for i in range(40)]
    totals = _totals(pairs, 4)
    assert len(totals) <= 4
    assert _epsilon(pairs) <= _epsilon(totals) <= 1.3 * _epsilon(pairs)


def test_what_cannot_be_rounded_is_kept():
    laplace = [(LaplaceSumEvent(1.0, 50.0 + i), 1) for i in range(6)]
    others = [(NonPrivateEvent(), 1), (_step(1.0), 1)]
    assert sorted(_totals([*laplace, *others], 2), key=repr) == sorted(
        [*laplace, *others], key=repr
    )


def test_events_that_no_accountant_prices_are_kept():
    step = SampledEvent(
        PoissonSampling(0.1), ComposedEvent((GaussianSumEvent(1.0, 1.0), LaplaceSumEvent(1.0, 1.0)))
    )
    assert list(_totals([(step, 2), (step, 3)], 1)) == [(step, 5)]


@given(st.floats(-300, 300).map(lambda x: 10**x), st.integers(1, 6))
def test_round_down_is_below_by_less_than_one_digit(x, digits):
    rounded = round_down(x, digits)
    assert rounded <= x < rounded * (1 + 10.0 ** (1 - digits)) * (1 + 1e-9)
    assert rounded == float(f"{rounded:.{digits}g}") or x < 1e-290


@pytest.mark.parametrize("x", [1.0, 2.5, 1e-5, 123456.0, math.nextafter(1.1, 2)])
def test_round_down_keeps_what_is_round(x):
    assert round_down(x, 6) == float(f"{x:.6g}")


def test_memory_of_remembered_events_is_bounded():
    totals = _totals((_step(1.5, clip=1.0 + i / 1e4), 1) for i in range(5000))
    assert len(totals._remembered) <= 4096
    # One kind, but for the last digit of noise over clip.
    assert len(totals) <= 5
    assert sum(entry.count for entry in totals) == 5000


@pytest.mark.parametrize("most_kinds", [0, -1])
def test_most_kinds_is_checked(most_kinds):
    with pytest.raises(ValueError, match="most_kinds must be"):
        Totals(most_kinds)


def test_repeated_objects_and_equal_objects_are_one():
    step = _step(1.5)
    assert [e.count for e in _totals(itertools.repeat((step, 2), 3))] == [6]
    assert [e.count for e in _totals((_step(1.5), 2) for _ in range(3))] == [6]


@pytest.mark.parametrize(
    "sampling, factor",
    [(FixedSizeSampling(20, 40), 2.0), (TruncatedPoissonSampling(0.5, 40, 41), 1.0)],
    ids=["fixed size", "truncated"],
)
@pytest.mark.parametrize("most_kinds", [100, 4])
def test_steps_whose_groups_depend_on_the_population_keep_it(sampling, factor, most_kinds):
    # For one unit a Poisson sample costs the same; for several on the way to fewer units, less.
    pairs = [
        (SampledEvent(each, GaussianSumEvent(1.0, scale * (90.0 + i / 777))), 1)
        for i in range(20)
        for each, scale in ((PoissonSampling(0.5), 1.0), (sampling, factor))
    ]
    totals = _totals(pairs, most_kinds)
    assert len(totals) <= most_kinds and (totals.digits is None) == (most_kinds == 100)
    assert {step.event.sampling for step in totals} == {sampling, PoissonSampling(0.5)}
    assert _epsilon(pairs) <= _epsilon(totals) <= 1.1 * _epsilon(pairs)
    exact, charged = RDPAccountant(group_size=10), RDPAccountant(group_size=10)
    if isinstance(sampling, FixedSizeSampling):
        exact.compose_entries(pairs)
        charged.compose_entries(totals)
        assert charged.get_epsilon(1e-5) >= exact.get_epsilon(1e-5) * (1 - 1e-9)
