"""Selections: their probabilities by hand, what a record can move, what is charged."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.accounting import RDPAccountant
from tfdp.events import ExponentialMechanismEvent, NonPrivateEvent, PureEpsilonEvent
from tfdp.noise import SeededRandomSource
from tfdp.noise.bits import system_fill
from tfdp.query import (
    ExponentialMechanismQuery,
    NestedQuery,
    QuantileSelectionQuery,
    ReportNoisyMaxQuery,
)
from tfdp.query.scores import STEPS
from tfdp.query.selection import exponential_mechanism, permute_and_flip

SELECTIONS = [ExponentialMechanismQuery, ReportNoisyMaxQuery]


def softmax(utilities, rate):
    weights = np.exp(rate * (np.array(utilities, float) - max(utilities)))
    return weights / weights.sum()


def flip_probabilities(utilities, rate):
    """Probabilities of permute-and-flip, by going through all orders."""
    keep = np.exp(rate * (np.array(utilities, float) - max(utilities)))
    total = np.zeros(len(utilities))
    orders = list(itertools.permutations(range(len(utilities))))
    for order in orders:
        reached = 1.0
        for index in order:
            total[index] += reached * keep[index] / len(orders)
            reached *= 1 - keep[index]
    return total


UTILITIES = [0, 2, 3, 3, -1]


@pytest.mark.parametrize(
    ("select", "expected"),
    [(exponential_mechanism, softmax), (permute_and_flip, flip_probabilities)],
)
def test_frequencies_are_the_probabilities(select, expected):
    rate = Fraction(3, 5)
    draws = [select(system_fill, UTILITIES, rate) for _ in range(5000)]
    counts = np.bincount(draws, minlength=5)
    for count, share in zip(counts, expected(UTILITIES, 0.6), strict=True):
        low, high = stats.binom.interval(1 - 1e-10, 5000, share)
        assert low <= count <= high
    # The other distribution would not do.
    wrong = softmax(UTILITIES, 1.2)
    assert stats.chisquare(counts, 5000 * wrong).pvalue < 1e-9


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize(
    ("probabilities", "bounded_range"), [(softmax, True), (flip_probabilities, False)]
)
def test_probabilities_of_neighbours_are_within_epsilon(probabilities, bounded_range, monotonic):
    epsilon = 0.8
    rate = epsilon if monotonic else epsilon / 2
    moves = [0, 1] if monotonic else [-1, 0, 1]
    worst, widest = 0.0, 0.0
    for move in itertools.product(moves, repeat=4):
        for base in ([0, 0, 0, 0], [3, 0, 1, 2], [5, 5, 0, 0]):
            ratio = np.log(probabilities(np.add(base, move), rate) / probabilities(base, rate))
            worst = max(worst, np.max(np.abs(ratio)))
            widest = max(widest, np.ptp(ratio))
    assert worst <= epsilon + 1e-12
    assert (widest <= epsilon + 1e-12) == bounded_range
    assert worst > epsilon / 2


@pytest.mark.parametrize("make", SELECTIONS)
@pytest.mark.parametrize("monotonic", [False, True])
def test_rate_and_steps_are_those_of_the_arguments(make, monotonic, monkeypatch):
    query = make(0.5, 2.0, monotonic)
    seen = []
    name = "exponential_mechanism" if make is ExponentialMechanismQuery else "permute_and_flip"
    monkeypatch.setattr(
        f"tfdp.query.selection.{name}", lambda fill, u, rate: seen.append((u, rate)) or 1
    )
    state = query.initial_sample_state(tf.zeros([3]))
    for record in ([1.0, 5.0, -5.0], [np.nan, 1.0, 1.0], [0.0, np.inf, 1.0], [0.5, 1e30, -1e30]):
        state = query.accumulate_record((), state, tf.constant(record))
    result, _, event = query.get_noised_result(state, ())
    low = 0 if monotonic else -2 * STEPS
    # One step of the grid is sensitivity / STEPS, so the rate is (1/2) epsilon / STEPS of them.
    rate = Fraction(1, 2) / (STEPS if monotonic else 2 * STEPS)
    assert seen == [([STEPS // 2 + STEPS // 4, 2 * STEPS, low], rate)]
    assert int(result) == 1 and result.dtype == tf.int64
    kind = ExponentialMechanismEvent if make is ExponentialMechanismQuery else PureEpsilonEvent
    assert event == query.derive_event(()) == kind(0.5)


@pytest.mark.parametrize("make", SELECTIONS)
def test_a_graph_selects_anew_each_time_and_as_without_one(make):
    query = make(1.0, 1.0)
    state = query.initial_sample_state(tf.zeros([50]))
    graph = tf.function(lambda: query.get_noised_result(state, ())[0])
    for draw in (graph, lambda: query.get_noised_result(state, ())[0]):
        indices = [int(draw()) for _ in range(40)]
        assert min(indices) >= 0 and max(indices) < 50 and len(set(indices)) > 10


@pytest.mark.parametrize("make", SELECTIONS)
def test_merged_states_are_those_of_all_records(make):
    query = make(1.0, 1.0)
    rng = np.random.default_rng(0)
    records = [tf.constant(rng.normal(size=4)) for _ in range(6)]
    states = []
    for part in (records, records[:2], records[2:]):
        state = query.initial_sample_state(records[0])
        for record in part:
            state = query.accumulate_record((), state, record)
        states.append(state)
    np.testing.assert_array_equal(query.merge_sample_states(*states[1:]), states[0])


ALL = [*(make(1e6, 1.0) for make in SELECTIONS), QuantileSelectionQuery((0.0, 1.0), 0.5, 1e6)]


@pytest.mark.parametrize("query", ALL, ids=lambda query: type(query).__name__)
def test_sums_may_be_an_array_and_must_be_integers(query):
    # Of quantiles that which is nearest to zero is best, of others the largest.
    state = np.array([-9, 0]) * STEPS
    for sums in (state, state.astype(np.int32), tf.constant(state)):
        index = query.get_noised_result(sums, ())[0]
        assert int(index) == 1
    for sums in (state.astype(np.float64), tf.constant([1.0, 2.0]), np.array([False, True])):
        with pytest.raises(TypeError, match="must be integers.* Received: shape .* and dtype"):
            query.get_noised_result(sums, ())


def test_seeded_selections_are_not_private_and_others_compose():
    for make in SELECTIONS:
        assert make(1.0, 1.0, random_source=SeededRandomSource(0)).derive_event(()) == (
            NonPrivateEvent()
        )
    nested = NestedQuery([make(0.5, 1.0) for make in SELECTIONS])
    accountant = RDPAccountant()
    accountant.compose(nested.derive_event(nested.initial_global_state()))
    assert 0.5 <= accountant.get_epsilon(1e-9) <= 1.0


# Quantiles.


def _quantile(query, records):
    state = query.initial_sample_state(tf.zeros([]))
    for record in records:
        state = query.accumulate_record((), state, tf.constant(record, tf.float64))
    return state


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 1.0])
def test_state_counts_records_less_the_quantile(quantile):
    candidates = (-1.0, 0.0, 2.0, 5.0)
    query = QuantileSelectionQuery(candidates, quantile, 1.0)
    records = [-3.0, 0.0, 0.5, 5.0, 7.0, np.nan, np.inf]
    finite = np.array(records[:5])
    expected = [np.sum(finite <= c) - quantile * 5 for c in candidates]
    np.testing.assert_array_equal(_quantile(query, records) / STEPS, expected)


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_record_moves_no_utility_by_more_than_the_sensitivity(quantile, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "tfdp.query.selection.exponential_mechanism",
        lambda fill, u, rate: seen.append((np.array(u), rate)) or 0,
    )
    query = QuantileSelectionQuery((1.0, 2.0, 3.0), quantile, 0.7)
    others = [0.5, 1.5, 1.5, 2.5, 9.0]
    for record in (None, -10.0, 1.5, 2.5, 100.0):
        records = others if record is None else [*others, record]
        query.get_noised_result(_quantile(query, records), ())
    (base, rate), *moved = seen
    worst = max(np.max(np.abs(u - base)) for u, _ in moved)
    # Twice the largest move at this rate is epsilon.
    assert 2 * worst * rate == pytest.approx(0.7, rel=1e-9)


def test_quantiles_are_found():
    rng = np.random.default_rng(0)
    candidates = tuple(np.linspace(0, 10, 41))
    for share in (0.1, 0.5, 0.9):
        query = QuantileSelectionQuery(candidates, share, 20.0)
        state = _quantile(query, rng.uniform(0, 10, 400))
        result, _, event = query.get_noised_result(state, ())
        assert abs(float(result) - 10 * share) <= 0.75
        assert event == ExponentialMechanismEvent(20.0)
    seeded = dataclasses.replace(query, random_source=SeededRandomSource(0))
    assert seeded.derive_event(()) == NonPrivateEvent()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialMechanismQuery(0.0, 1.0), "epsilon must be"),
        (lambda: ReportNoisyMaxQuery(math.inf, 1.0), "epsilon must be"),
        (lambda: ReportNoisyMaxQuery(1.0, 0.0), "sensitivity must be"),
        (lambda: ReportNoisyMaxQuery(1.0, 1.0, 1), "monotonic must be a bool"),
        (lambda: ReportNoisyMaxQuery(1.0, 1.0, random_source=1), "random_source must be"),
        (lambda: QuantileSelectionQuery((), 0.5, 1.0), "candidates must be numbers"),
        (lambda: QuantileSelectionQuery((1.0, 1.0), 0.5, 1.0), "candidates must increase"),
        (lambda: QuantileSelectionQuery((1.0, math.nan), 0.5, 1.0), "candidates must be"),
        (lambda: QuantileSelectionQuery((1.0,), 1.5, 1.0), "quantile must be"),
        (lambda: QuantileSelectionQuery((1.0,), 0.5, -1.0), "epsilon must be"),
        (
            lambda: QuantileSelectionQuery((1.0,), 0.5, 1.0).initial_sample_state(tf.zeros([2])),
            "must be scalars",
        ),
        *[
            (lambda t=t: ReportNoisyMaxQuery(1.0, 1.0).initial_sample_state(t), "must be vectors")
            for t in (tf.zeros([]), tf.zeros([0]), tf.zeros([2, 2]), [tf.zeros([2])])
        ],
        (
            lambda: ReportNoisyMaxQuery(1.0, 1.0).initial_sample_state(tf.zeros([2], tf.int32)),
            "float32 or float64",
        ),
    ],
)
def test_refuses_bad_arguments(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
