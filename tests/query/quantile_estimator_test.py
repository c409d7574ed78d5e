"""Estimates of a quantile: the values that TensorFlow Privacy publishes, bounds, and what moves."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.events import GaussianSumEvent, NonPrivateEvent
from tfdp.query import NoPrivacyQuantileEstimatorQuery, QuantileEstimatorQuery


def estimator(initial, target, rate, stddev, expected, geometric):
    """Returns the exact estimator where no number of records is expected, as its tests do."""
    if expected is None:
        return NoPrivacyQuantileEstimatorQuery(initial, target, rate, geometric)
    return QuantileEstimatorQuery(initial, target, rate, stddev, expected, geometric)


def step(query, records, state):
    """Returns the result and the next state."""
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state(tf.zeros([]))
    for record in records:
        sample = query.accumulate_record(params, sample, tf.constant(record))
    return query.get_noised_result(sample, state)[:2]


def estimates(query, records, number):
    state, result = query.initial_global_state(), []
    for _ in range(number):
        estimate, state = step(query, records, state)
        assert float(estimate) == float(state.current_estimate)
        result.append(float(estimate))
    return result


ROOT_2 = math.sqrt(2)
# target, learning rate, geometric, first estimate, records, estimates
PUBLISHED = {
    "target_zero": (0.0, 1.0, False, 10.0, [8.5, 7.25], [9.0, 8.0, 7.5, 7.0, 7.0]),
    "target_zero_geometric": (
        0.0,
        math.log(2),
        True,
        16.0,
        [5.0, 2.5],
        [8.0, 4.0, 2 * ROOT_2, 2.0, 2.0],
    ),
    "target_one": (1.0, 1.0, False, 0.0, [1.5, 2.75], [1.0, 2.0, 2.5, 3.0, 3.0]),
    "target_one_geometric": (
        1.0,
        math.log(2),
        True,
        0.5,
        [1.5, 3.0],
        [1.0, 2.0, 2 * ROOT_2, 4.0, 4.0],
    ),
}


@pytest.mark.parametrize("expected", [None, 2.0], ids=["exact", "fixed"])
@pytest.mark.parametrize("case", PUBLISHED.values(), ids=PUBLISHED)
def test_published_values(case, expected):
    target, rate, geometric, initial, records, wanted = case
    query = estimator(initial, target, rate, 0.0, expected, geometric)
    np.testing.assert_allclose(estimates(query, records, 5), wanted, rtol=1e-5)


@pytest.mark.parametrize("initial", [1.0, 10.0])
@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("expected", [None, 21], ids=["exact", "noised"])
def test_median_of_a_range(initial, geometric, expected):
    records = np.linspace(0.0, 10.0, 21, dtype=np.float32)
    query = estimator(initial, 0.5, 1.0, 1e-2, expected, geometric)
    assert np.all(np.abs(np.array(estimates(query, records, 50)[41:]) - 5.0) < 0.25)


@pytest.mark.parametrize("initial", [1.0, 10.0])
@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("expected", [None, 20], ids=["exact", "noised"])
def test_median_of_equal_records(initial, geometric, expected):
    # The loss has a kink there, so the rate must fall: a new query goes on from the same state.
    query = estimator(initial, 0.5, 1.0, 1e-2, expected, geometric)
    state = query.initial_global_state()
    for t in range(50):
        slower = dataclasses.replace(query, learning_rate=1 / math.sqrt(t + 1))
        estimate, state = step(slower, [5.0] * 20, state)
        assert t <= 40 or abs(float(estimate) - 5.0) < 0.5


def test_an_estimate_may_begin_at_its_bounds():
    query = QuantileEstimatorQuery(2.0, 0.5, 0.4, 3.0, 60.0, min_estimate=2.0, max_estimate=2.0)
    assert estimates(query, [1.0], 2) == [2.0, 2.0]


def test_estimates_move_by_differences_where_nobody_says():
    for query in (
        QuantileEstimatorQuery(2.0, 0.25, 0.4, 0.0, 1.0),
        NoPrivacyQuantileEstimatorQuery(2.0, 0.25, 0.4),
    ):
        result, _ = step(query, [1.0], query.initial_global_state())
        assert float(result) == pytest.approx(2.0 - 0.4 * (1.0 - 0.25), rel=1e-6)


def test_step_by_hand():
    # 3 of 4 records are at most 2: shares 3/4, but 8 records are expected: 1/2 + (3 - 1) / 2 / 8.
    query = QuantileEstimatorQuery(2.0, 0.25, 0.4, 0.0, 8.0, geometric_update=True)
    result, _ = step(query, [1.0, 2.0, 0.5, 3.0], query.initial_global_state())
    assert float(result) == pytest.approx(2 * math.exp(-0.4 * (0.625 - 0.25)), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_record_that_is_not_finite_is_not_counted(bad):
    query = QuantileEstimatorQuery(2.0, 0.5, 0.4, 0.0, 4.0)
    state = query.initial_global_state()
    assert step(query, [1.0, bad], state) == step(query, [1.0], state)


@pytest.mark.parametrize("geometric", [False, True])
def test_estimate_stays_between_its_bounds(geometric):
    query = QuantileEstimatorQuery(2.0, 0.5, 30.0, 5.0, 2.0, geometric, 1.5, 4.0)
    low = estimates(query, [1e-3] * 50, 4)
    high = estimates(query, [1e6] * 50, 4)
    assert low == [1.5] * 4
    assert high == [4.0] * 4


@pytest.mark.parametrize(
    ("geometric", "initial", "bounds"),
    [
        (True, 2.0, (2e-6, 2e6)),
        (True, 1e-10, (1e-12, 1e-4)),
        (True, 1e15, (1e9, 1e18)),
        (False, 2.0, (-1e18, 1e18)),
    ],
)
def test_bounds_where_none_are_given(geometric, initial, bounds):
    for query in (
        QuantileEstimatorQuery(initial, 0.5, 0.4, 3.0, 60.0, geometric),
        NoPrivacyQuantileEstimatorQuery(initial, 0.5, 0.4, geometric),
    ):
        assert (query.min_estimate, query.max_estimate) == pytest.approx(bounds, rel=1e-12)


def test_event_is_that_of_the_count_and_follows_no_estimate():
    query = QuantileEstimatorQuery(2.0, 0.5, 0.4, 3.0, 60)
    state = query.initial_global_state()
    event = GaussianSumEvent(0.5, 3.0)
    for _ in range(3):
        assert query.derive_event(state) == event
        _, state = step(query, [1.0] * 4, state)
    plain = NoPrivacyQuantileEstimatorQuery(2.0, 0.5, 0.4)
    assert plain.derive_event(plain.initial_global_state()) == NonPrivateEvent()


def test_noise_of_the_count_is_that_of_the_event(check_stddev):
    query = QuantileEstimatorQuery(1.0, 0.5, 1e-3, 2.0, 100.0)
    empty = query.initial_sample_state(tf.zeros([], tf.float64))

    @tf.function
    def draw():
        return query.get_noised_result(empty, query.initial_global_state())[0]

    # estimate = 1 - 1e-3 noise / 100
    draws = np.array([draw().numpy() for _ in range(1000)], np.float64)
    check_stddev((1 - draws) * 1e5, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_quantile": 1.1}, "target_quantile must be"),
        ({"target_quantile": -0.1}, "target_quantile must be"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"learning_rate": 1.1e18}, "learning_rate must be"),
        ({"learning_rate": tf.Variable(1.0)}, "learning_rate must be a real number"),
        ({"below_estimate_stddev": -1.0}, "below_estimate_stddev must be"),
        ({"expected_num_records": 0.0}, "expected_num_records must be"),
        ({"expected_num_records": None}, "expected_num_records must be a real number"),
        ({"initial_estimate": 0.0, "geometric_update": True}, "initial_estimate must be"),
        ({"initial_estimate": math.nan}, "initial_estimate must be"),
        ({"geometric_update": 1}, "geometric_update must be a bool"),
        ({"min_estimate": 3.0}, "must be between the bounds"),
        ({"max_estimate": 1.0}, "must be between the bounds"),
        ({"random_source": 7}, "random_source must be"),
    ],
)
def test_refuses_bad_arguments(change, message):
    good = QuantileEstimatorQuery(2.0, 0.5, 0.4, 3.0, 60)
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(good, **{"min_estimate": None, "max_estimate": None, **change})


def test_refuses_records_that_are_not_scalars():
    query = QuantileEstimatorQuery(2.0, 0.5, 0.4, 3.0, 60)
    with pytest.raises(ValueError, match="must be scalars.*shape \\(2,\\)"):
        query.initial_sample_state(tf.zeros([2]))
    with pytest.raises(ValueError, match="must be scalars"):
        query.preprocess_record(tf.constant(1.0), tf.zeros([1]))


def test_metric_is_the_estimate():
    query = tfdp.QuantileEstimatorQuery(2.0, 0.5, 0.4, 3.0, 60)
    assert float(query.derive_metrics(query.initial_global_state())["estimate"]) == 2.0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_a_record_moves_a_large_count_by_one_half(dtype):
    # In float32 it would be moved by nothing or by 4.
    query = QuantileEstimatorQuery(10.0, 0.5, 0.1, 1.0, 1e8)
    empty = query.initial_sample_state(tf.zeros([], dtype))
    many = one = query.accumulate_record(10.0, empty, tf.ones([], dtype))
    for _ in range(30):
        many = query.merge_sample_states(many, many)
    for add in (query.merge_sample_states, query.accumulate_preprocessed_record):
        assert float(add(many, one).below) - float(many.below) == 0.5
    result, _, _ = query.get_noised_result(many, query.initial_global_state())
    assert result.dtype == dtype


def test_records_of_two_dtypes_are_not_mixed():
    query = QuantileEstimatorQuery(10.0, 0.5, 0.1, 1.0, 1e8)
    state = query.initial_sample_state(tf.zeros([]))
    with pytest.raises(ValueError, match="dtypes differ"):
        query.accumulate_record(10.0, state, tf.zeros([], tf.float64))
