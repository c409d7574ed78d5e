"""Counts and selection of partitions: probabilities by hand, what a record can move, the price."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.accounting import RDPAccountant
from tfdp.audit import epsilon_lower_bound
from tfdp.events import ComposedEvent, EpsilonDeltaEvent, NonPrivateEvent, PureEpsilonEvent
from tfdp.noise import SeededRandomSource
from tfdp.noise.bits import system_fill
from tfdp.query import (
    GaussianHistogramQuery,
    HistogramQuery,
    NestedQuery,
    PartitionSelectionQuery,
)
from tfdp.query.partitions import is_kept, keep_probability


def optimal(count, epsilon, delta):
    """p(count) in floating point, by its recursion."""
    p = 0.0
    for _ in range(count):
        p = min(math.exp(epsilon) * p + delta, 1 - math.exp(-epsilon) * (1 - p - delta), 1.0)
    return p


def closed_form(count, epsilon, delta):
    """Theorem 1 of Desfontaines et al. 2020, with its two crossovers."""
    e = math.exp(epsilon)
    first = 1 + math.floor(math.log((e + 2 * delta - 1) / ((e + 1) * delta)) / epsilon)
    below = (math.exp(min(count, first) * epsilon) - 1) / (e - 1) * delta
    if count <= first:
        return below
    m = count - first
    return min(
        1.0, (1 - math.exp(-m * epsilon)) * (1 + delta / (e - 1)) + math.exp(-m * epsilon) * below
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.02), (1.0, 1e-5), (3.0, 1e-9), (0.05, 0.3)])
def test_probabilities_are_those_of_the_theorem(epsilon, delta):
    for count in (0, 1, 2, 3, 5, 6, 7, 10, 11, 12, 25, 100):
        low, high = keep_probability(count, Fraction(epsilon), Fraction(delta))
        assert 0 <= high - low <= Fraction(1, 10**30)
        assert float(low) == pytest.approx(optimal(count, epsilon, delta), rel=1e-12)
        assert float(low) == pytest.approx(closed_form(count, epsilon, delta), rel=1e-12)
    assert keep_probability(0, Fraction(epsilon), Fraction(delta)) == (0, 0)
    assert keep_probability(10**9, Fraction(epsilon), Fraction(delta)) == (1, 1)
    assert keep_probability(-1, Fraction(epsilon), Fraction(delta)) == (0, 0)


def test_probabilities_of_neighbours_satisfy_both_inequalities_and_no_larger_ones_would():
    epsilon, delta = 0.7, 0.01
    e = math.exp(epsilon)
    p = [float(keep_probability(n, Fraction(epsilon), Fraction(delta))[0]) for n in range(40)]
    for few, more in zip(p, p[1:], strict=False):
        slack = (
            e * few + delta - more,
            (1 - more) * e - (1 - few) + delta,
        )
        assert min(slack) >= -1e-12
        assert more == 1 or min(slack) <= 1e-12


def test_frequency_is_the_probability():
    epsilon, delta = Fraction(1, 2), Fraction(1, 50)
    for count in (1, 4, 7, 20):
        kept = sum(is_kept(system_fill, count, epsilon, delta) for _ in range(2000))
        share = optimal(count, 0.5, 0.02)
        low, high = stats.binom.interval(1 - 1e-10, 2000, share)
        assert low <= kept <= high


def test_extreme_arguments_have_probabilities():
    for epsilon, delta in ((1e6, 1e-9), (1e6, 0.5), (1.0, 1e-300), (1e-3, 1e-9)):
        low, high = keep_probability(1, Fraction(epsilon), Fraction(delta))
        assert low <= Fraction(delta) <= high
        assert keep_probability(2**62, Fraction(epsilon), Fraction(delta)) == (1, 1)


def _all():
    return [
        PartitionSelectionQuery(1.0, 1e-3, 2),
        HistogramQuery(1.0, 2),
        HistogramQuery(1.0, 2, 1e-3),
        GaussianHistogramQuery(2.0, 2),
        GaussianHistogramQuery(2.0, 2, 1e-3),
    ]


@pytest.mark.parametrize("query", _all())
def test_a_record_is_in_its_first_partitions_and_counts_as_one_in_each(query):
    records = tf.constant(
        [[0, 5, 1e-9, 1], [1, 0, 0, -3], [1, np.nan, 0, 0], [0, np.inf, 0, 0], [0, 0, 0, 2]],
        tf.float32,
    )
    expected = [[0, 1, 1, 0], [1, 0, 0, 0], [0] * 4, [0] * 4, [0, 0, 0, 1]]
    state = query.initial_sample_state(tf.zeros([4]))
    for record, moved in zip(records, expected, strict=True):
        assert query.preprocess_record((), record).numpy().tolist() == moved
        state = query.accumulate_record((), state, record)
    assert state.numpy().tolist() == np.sum(expected, axis=0).tolist()
    batched = query.preprocess_record((), tf.constant([1.0, 0.0, 1.0, 1.0]))
    assert query.merge_sample_states(state, batched).numpy().tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("query", _all())
def test_in_a_graph_it_is_drawn_anew_and_the_event_is_that_of_the_query(query):
    counts = tf.constant([0, 3, 12, 14, 16, 1000], tf.int64)
    graph = tf.function(lambda: query.get_noised_result(counts, ())[0])
    seen = set()
    for draw in [graph] * 20 + [lambda: query.get_noised_result(counts, ())[0]] * 20:
        seen.add(str(tf.nest.map_structure(lambda x: x.numpy().tolist(), draw())))
    assert len(seen) > 1
    assert query.get_noised_result(counts, ())[2] == query.derive_event(())
    seeded = dataclasses.replace(query, random_source=SeededRandomSource(1))
    assert seeded.derive_event(()) == NonPrivateEvent()


@pytest.mark.parametrize(
    "query", [q for q in _all() if getattr(q, "threshold_delta", 1) is not None]
)
def test_a_partition_without_records_is_never_released(query):
    loud = dataclasses.replace(
        query, **({"delta": 0.5} if hasattr(query, "delta") else {"threshold_delta": 0.5})
    )
    for _ in range(5):
        result = loud.get_noised_result(tf.zeros([200], tf.int64), ())[0]
        assert not np.any(getattr(result, "kept", result))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 40.0])
def test_laplace_threshold_is_the_least_that_keeps_a_lone_record_secret(epsilon, delta, partitions):
    query = HistogramQuery(epsilon, partitions, delta)
    each, excess = epsilon / partitions, query.threshold - 1

    def tail(m):
        return math.exp(-m * each) / (1 + math.exp(-each)) if m > 0 else 0.5

    assert tail(excess) <= delta / partitions * (1 + 1e-12)
    assert excess == 1 or tail(excess - 1) > delta / partitions * (1 - 1e-12)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-12])
def test_gaussian_threshold_is_the_quantile(delta, partitions):
    query = GaussianHistogramQuery(3.0, partitions, delta)
    tail = stats.norm.sf((query.threshold - 1) / 3.0)
    assert tail <= delta / partitions
    assert tail >= delta / partitions * (1 - 1e-6)


def test_the_smallest_deltas_have_thresholds():
    excess = 3 * (300 * math.log(10) - math.log1p(math.exp(-1 / 3)))
    assert HistogramQuery(1.0, 3, 3e-300).threshold == 1 + math.ceil(excess)
    assert GaussianHistogramQuery(1.0, 1, 1e-300).threshold == pytest.approx(
        1 + stats.norm.isf(1e-300), rel=1e-8
    )
    assert keep_probability(10**6, Fraction(1), Fraction(1e-300))[0] == 1


def is_laplace(draws, epsilon):
    """Whether sizes are those of discrete Laplace noise; of draws of it one in 10^9 is rejected."""
    a = math.exp(-epsilon)
    mean, square = 2 * a / (1 - a**2), 2 * a / (1 - a) ** 2
    error = math.sqrt((square - mean**2) / len(draws))
    return abs(np.mean(np.abs(draws)) - mean) < 6.2 * error


def test_noise_of_histograms_is_that_of_the_event():
    counts = tf.fill([10_000], tf.constant(50, tf.int64))
    laplace = HistogramQuery(0.5).get_noised_result(counts, ())[0].counts.numpy() - 50
    assert is_laplace(laplace, 0.5)
    assert not is_laplace(laplace, 0.44) and not is_laplace(laplace, 0.56)  # 12 % off.
    assert np.all(laplace == np.round(laplace))
    gaussian = GaussianHistogramQuery(4.0).get_noised_result(counts, ())[0].counts.numpy() - 50
    assert stats.kstest(gaussian / 4.0, "norm").pvalue > 1e-9
    assert stats.kstest(gaussian / 2.0, "norm").pvalue < 1e-9


def test_events():
    assert PartitionSelectionQuery(1.0, 1e-3, 2).derive_event(()) == EpsilonDeltaEvent(1.0, 1e-3)
    assert HistogramQuery(1.0, 2).derive_event(()) == PureEpsilonEvent(1.0)
    assert HistogramQuery(1.0, 2, 1e-3).derive_event(()) == EpsilonDeltaEvent(1.0, 1e-3)
    both = GaussianHistogramQuery(2.0, 2, 1e-3).derive_event(())
    assert isinstance(both, ComposedEvent)
    assert both.events[0].l2_norm_bound >= math.sqrt(2) and both.events[0].noise_stddev == 2.0
    assert both.events[1] == EpsilonDeltaEvent(0.0, 1e-3)
    assert RDPAccountant().compose(both).get_epsilon(1e-3) == math.inf
    alone = GaussianHistogramQuery(2.0, 2).derive_event(())
    assert RDPAccountant().compose(both).get_epsilon(2e-3) == pytest.approx(
        RDPAccountant().compose(alone).get_epsilon(1e-3), rel=1e-3
    )


def test_inside_a_nested_query():
    query = NestedQuery([PartitionSelectionQuery(50.0, 1e-3), HistogramQuery(50.0)])
    state = query.initial_sample_state([tf.zeros([2]), tf.zeros([3])])
    params = query.derive_sample_params(query.initial_global_state())
    for _ in range(5):
        record = [tf.constant([1.0, 0.0]), tf.constant([0.0, 1.0, 0.0])]
        state = query.accumulate_record(params, state, record)
    (kept, histogram), _, event = query.get_noised_result(state, query.initial_global_state())
    assert kept.numpy().tolist() == [True, False]
    assert histogram.counts.numpy().tolist() == [0, 5, 0]
    assert event == ComposedEvent((EpsilonDeltaEvent(50.0, 1e-3), PureEpsilonEvent(50.0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PartitionSelectionQuery(0.0, 0.1), "epsilon must be finite, greater than 0"),
        (lambda: PartitionSelectionQuery(1.0, 0.0), "delta must be finite, greater than 0"),
        (lambda: PartitionSelectionQuery(1.0, 0.6), "delta must be finite"),
        (lambda: PartitionSelectionQuery(1e-4, 1e-30), "must be at most 1048576"),
        (lambda: HistogramQuery(1e-9, 2), "epsilon / max_partitions must be at least"),
        (lambda: HistogramQuery(1.0, 0), "max_partitions must be at least 1"),
        (lambda: HistogramQuery(1.0, 1, 0.0), "threshold_delta must be"),
        (lambda: HistogramQuery(1.0, 3, 1e-310), "threshold_delta / max_partitions must be"),
        (lambda: HistogramQuery(1.0, 3, 2e-300), "threshold_delta / max_partitions must be"),
        (lambda: GaussianHistogramQuery(1.0, 3, 5e-324), "threshold_delta / max_partitions must"),
        (lambda: PartitionSelectionQuery(1.0, 1e-310), "delta / max_partitions must be"),
        (lambda: GaussianHistogramQuery(0.0), "stddev must be positive"),
        (lambda: GaussianHistogramQuery(1.0, 2**21), "max_partitions at most 2.20"),
        (lambda: HistogramQuery(1.0).initial_sample_state(tf.zeros([2, 2])), "must be vectors"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# What each claims for one record more, and a variant whose noise is for less.
AUDITED = {
    "selection": (PartitionSelectionQuery(0.5, 0.05), PartitionSelectionQuery(3.0, 0.01), 1),
    "selection, delta": (PartitionSelectionQuery(1.0, 0.05), PartitionSelectionQuery(1.0, 0.4), 0),
    "laplace": (HistogramQuery(1.0), HistogramQuery(3.0), 20),
    "threshold": (HistogramQuery(1.0, 1, 0.05), HistogramQuery(1.0, 1, 0.4), 0),
    "gaussian": (GaussianHistogramQuery(2.0), GaussianHistogramQuery(0.5), 20),
    "gaussian threshold": (
        GaussianHistogramQuery(2.0, 1, 0.01),
        GaussianHistogramQuery(2.0, 1, 0.4),
        0,
    ),
}


@pytest.mark.parametrize("name", AUDITED)
def test_audit_finds_no_more_than_the_claim_and_finds_a_variant_that_costs_more(name):
    query, broken, count = AUDITED[name]
    delta = 0.02 if name == "gaussian threshold" else 0.05
    claim = RDPAccountant().compose(query.derive_event(())).get_epsilon(delta)

    def bound(made):
        # Partitions are released independently of each other: each is a run.
        runs = [tf.fill([4000], tf.constant(n, tf.int64)) for n in (count + 1, count)]
        found = [made.get_noised_result(run, ())[0] for run in runs]
        scores = [np.float64(getattr(result, "counts", result)) for result in found]
        return epsilon_lower_bound(*scores, delta, confidence=1 - 1e-9)

    assert bound(query) <= claim
    assert bound(broken) > claim
