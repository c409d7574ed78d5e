"""What every query promises, for those that count or select instead of summing up."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp import query as tfdp_query
from tfdp.accounting import PRVAccountant
from tfdp.audit import epsilon_lower_bound
from tfdp.events import (
    ComposedEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    PureEpsilonEvent,
    UnsupportedEventError,
    scale_sensitivity,
)

# Query, and whether its records are scalars.
QUERIES = {
    "exponential": (tfdp_query.ExponentialMechanismQuery(1.0, 1.0), False),
    "noisy_max": (tfdp_query.ReportNoisyMaxQuery(1.0, 1.0, monotonic=True), False),
    "quantile": (tfdp_query.QuantileSelectionQuery((0.0, 1.0), 0.5, 1.0), True),
    "above": (tfdp_query.AboveThresholdQuery(1.0, 1.0, 1.0, numeric_epsilon=1.0), False),
    "partitions": (tfdp_query.PartitionSelectionQuery(1.0, 1e-3, 2), False),
    "histogram": (tfdp_query.HistogramQuery(1.0, 2, 1e-3), False),
    "gaussian_histogram": (tfdp_query.GaussianHistogramQuery(2.0, 2, 1e-3), False),
    "tree": (tfdp_query.TreeRangeSumQuery.build_central_gaussian_query(1.5, 1.0), False),
}
CASES = pytest.mark.parametrize(("query", "is_scalar"), QUERIES.values(), ids=QUERIES)


def _records(is_scalar, count=6, seed=0):
    rng = np.random.default_rng(seed)
    shape = [count] if is_scalar else [count, 4]
    numbers = rng.normal(size=shape) * rng.choice([0.1, 1.0, 100.0], size=[count, *shape[1:]])
    return tf.constant(numbers, tf.float32)


def _state(query, records):
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(records[0])
    for record in tf.unstack(records):
        state = query.accumulate_record(params, state, record)
    return state


@CASES
@pytest.mark.parametrize("cut", [0, 2, 6])
def test_merge_equals_accumulate_for_any_split_and_order(query, is_scalar, cut):
    records = _records(is_scalar)
    shuffled = tf.gather(records, [3, 1, 5, 0, 2, 4])
    parts = [
        _state(query, part) if len(part) else None for part in (shuffled[:cut], shuffled[cut:])
    ]
    empty = query.initial_sample_state(records[0])
    merged = query.merge_sample_states(*(empty if part is None else part for part in parts))
    np.testing.assert_allclose(merged, _state(query, records), rtol=1e-6, atol=1e-6)


@CASES
def test_the_state_of_a_sum_is_the_sum_of_preprocessed_records(query, is_scalar):
    assert query.is_sum
    records = _records(is_scalar)
    params = query.derive_sample_params(query.initial_global_state())
    total = tf.add_n([query.preprocess_record(params, r) for r in tf.unstack(records)])
    np.testing.assert_allclose(total, _state(query, records), rtol=1e-6, atol=1e-6)


@CASES
def test_every_result_has_the_event_that_was_charged_in_a_graph_too(query, is_scalar):
    state = _state(query, _records(is_scalar))
    global_state = query.initial_global_state()
    charged = query.derive_event(global_state)
    assert query.get_noised_result(state, global_state)[2] == charged
    found = []

    @tf.function
    def graph():
        result, _, event = query.get_noised_result(state, global_state)
        found.append(event)
        return result

    graph()
    assert found == [charged]
    assert 0 < PRVAccountant().compose(charged).get_epsilon(0.01) < 10


@CASES
def test_in_a_nested_query_both_parts_are_released_and_charged(query, is_scalar):
    nested = tfdp_query.NestedQuery([query, tfdp_query.GaussianSumQuery(1.0, 1.0)])
    record = _records(is_scalar)[0]
    state = nested.initial_sample_state([record, record])
    params = nested.derive_sample_params(nested.initial_global_state())
    state = nested.accumulate_record(params, state, [record, record])
    _, _, event = nested.get_noised_result(state, nested.initial_global_state())
    assert event == nested.derive_event(nested.initial_global_state())
    assert event.events[0] == query.derive_event(query.initial_global_state())


PURE = [
    PureEpsilonEvent(1.0),
    ExponentialMechanismEvent(1.0),
    EpsilonDeltaEvent(1.0, 1e-6),
    EpsilonDeltaEvent(0.0, 1e-6),
]


@pytest.mark.parametrize("event", PURE)
def test_what_has_no_bound_cannot_be_scaled_for_microbatches(event):
    # A microbatch of several records moves a sum twice as far; what that makes of an epsilon that
    # was only declared, nobody knows.
    for whole in (event, ComposedEvent((event,))):
        with pytest.raises(UnsupportedEventError, match=f"{type(event).__name__} cannot be scaled"):
            scale_sensitivity(whole, 2)


@CASES
def test_record_weights_are_refused_where_the_event_cannot_be_scaled(query, is_scalar):
    if query is QUERIES["tree"][0]:
        weighted = tfdp_query.WeightedSumQuery(query, 2.0)
        assert weighted.derive_event(query.initial_global_state()).l2_norm_bound == 3.0
        return
    with pytest.raises(UnsupportedEventError, match="cannot be scaled"):
        tfdp_query.WeightedSumQuery(query, 2.0)


# What divides, weights, arranges or adds up the result of another query.
HOLDERS = {
    "normalized": lambda query: tfdp_query.NormalizedQuery(query, 2.0),
    "arranged": lambda query: tfdp_query.ArrangedQuery(query, [0]),
    "tree": tfdp_query.TreeRangeSumQuery,
    "scaled": lambda query: tfdp_query.ScaleThenPrivatizeQuery(query, tf.zeros([4])),
    "weighted": lambda query: tfdp_query.WeightedSumQuery(query, 2.0),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("name", [name for name in QUERIES if name not in ("quantile", "tree")])
def test_what_needs_numbers_refuses_a_result_of_choices_before_it_is_drawn(name, make):
    query = QUERIES[name][0]
    assert not query.has_numeric_result
    for held in (query, tfdp_query.NestedSumQuery([tfdp_query.GaussianSumQuery(1.0, 1.0), query])):
        with pytest.raises((TypeError, UnsupportedEventError), match="numbers|cannot be scaled"):
            make(held)


def test_counts_are_not_weighted():
    # A weight would cut whole numbers, and its event would be one that could be scaled.
    with pytest.raises(TypeError, match="result of numbers"):
        tfdp_query.WeightedSumQuery(tfdp_query.GaussianHistogramQuery(1.0, 2), 3.0)


def test_records_of_several_leaves_are_refused():
    for query, is_scalar in QUERIES.values():
        if not is_scalar:
            with pytest.raises(ValueError, match="must be"):
                query.initial_sample_state([tf.zeros([2]), tf.zeros([3])])


# How a query is made for an epsilon, the records of two neighbours, and what an attacker looks at.
AUDITED = {
    "exponential": (
        lambda e: tfdp_query.ExponentialMechanismQuery(e, 1.0),
        ([[1.0, -1.0]], []),
        float,
    ),
    "noisy_max": (lambda e: tfdp_query.ReportNoisyMaxQuery(e, 1.0), ([[1.0, -1.0]], []), float),
    "quantile": (
        lambda e: tfdp_query.QuantileSelectionQuery((0.0, 2.0), 0.5, e),
        ([3.0, 1.0, 1.0], [1.0, 1.0]),
        float,
    ),
    "above": (
        lambda e: tfdp_query.AboveThresholdQuery(0.5, e, 1.0),
        ([[1.0, 0.0]], []),
        lambda result: float(result.above[0]),
    ),
}


@pytest.mark.parametrize("name", AUDITED)
def test_audit_finds_no_more_than_the_claim_and_finds_a_claim_that_is_too_small(name):
    make, neighbours, look = AUDITED[name]
    template = tf.zeros([] if name == "quantile" else [2])

    def bound(epsilon):
        query, scores = make(epsilon), []
        for records in neighbours:
            state = query.initial_sample_state(template)
            for record in records:
                state = query.accumulate_record((), state, tf.constant(record))
            # Traced once: eagerly, Laplace noise is compiled again for every draw.
            draw = tf.function(lambda q=query, s=state: q.get_noised_result(s, ())[0])
            scores.append([look(draw()) for _ in range(400)])
        return epsilon_lower_bound(*scores, 1e-6, confidence=1 - 1e-7)

    # 200 runs with a probability of 1/2 show 0.3 against a probability near 0, but hardly 1.
    claim = PRVAccountant().compose(make(0.3).derive_event(())).get_epsilon(1e-6)
    assert bound(0.3) <= claim <= 0.3 * (1 + 1e-6)
    assert bound(100.0) > claim


def test_audit_of_laplace_noise():
    def bound(epsilon):
        query = tfdp_query.LaplaceSumQuery(1.0, 1 / epsilon)
        # Noise on every coordinate is drawn by itself: each is a run.
        runs = [tf.fill([4000], moved) for moved in (1.0, 0.0)]
        scores = [query.get_noised_result(run, ())[0].numpy() for run in runs]
        return epsilon_lower_bound(*scores, 1e-6, confidence=1 - 1e-7)

    assert bound(1.0) <= 1.0 < bound(3.0)
