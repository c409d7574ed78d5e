import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import GaussianSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
    NoPrivacySumQuery,
    NormalizedQuery,
    WeightedAverageQuery,
)


def _release(query, records, template=None):
    global_state = query.initial_global_state()
    params = query.derive_sample_params(global_state)
    state = query.initial_sample_state(records[0] if template is None else template)
    for record in records:
        state = query.accumulate_record(params, state, record)
    return query.get_noised_result(state, global_state)


def test_divides_the_sum_by_the_denominator():
    # clip 5: (3, 4) + (0, 50) * 1/10 = (3, 9); over 4: (0.75, 2.25). The sample holds 2 records.
    query = GaussianAverageQuery(5.0, noise_multiplier=0.0, denominator=4)
    result, _, _ = _release(query, [tf.constant([3.0, 4.0]), tf.constant([0.0, 50.0])])
    np.testing.assert_allclose(result, [0.75, 2.25], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_never_uses_the_size_of_the_sample(count):
    # `count` records of 1 over 4.
    query = GaussianAverageQuery(1.0, noise_multiplier=0.0, denominator=4)
    result, _, _ = _release(query, [tf.constant([1.0])] * count)
    np.testing.assert_allclose(result, [count / 4], rtol=1e-6)


def test_denominator_may_be_a_fraction():
    # The expected size q * N of a Poisson sample need not be whole: 1 / 2.5.
    result, _, _ = _release(
        GaussianAverageQuery(1.0, noise_multiplier=0.0, denominator=2.5), [tf.constant([1.0])]
    )
    np.testing.assert_allclose(result, [0.4], rtol=1e-6)


def test_event_is_that_of_the_sum():
    query = GaussianAverageQuery(l2_norm_clip=2.0, noise_multiplier=1.5, denominator=256)
    assert query.derive_event(query.initial_global_state()) == GaussianSumEvent(2.0, 3.0)
    _, _, event = _release(query, [tf.zeros([1])])
    assert event == GaussianSumEvent(2.0, 3.0)


def test_stddev_is_that_of_the_sum():
    query = GaussianAverageQuery(2.0, stddev=3.0, denominator=256)
    assert query.derive_event(query.initial_global_state()) == GaussianSumEvent(2.0, 3.0)


def test_noise_on_an_average_is_that_of_the_sum_over_the_denominator(check_stddev):
    # z C / denominator = 2 * 3 / 4 = 1.5, in an empty sample too.
    query = GaussianAverageQuery(l2_norm_clip=3.0, noise_multiplier=2.0, denominator=4)
    result, _, _ = _release(query, [], template=tf.zeros([1000]))
    check_stddev(result, 1.5)


def test_divides_every_part_of_a_nested_query():
    # Clips 1 and 2: 3 -> 1, -8 -> -2; over 4.
    nested = NestedQuery([GaussianSumQuery(1.0, 0.0), GaussianSumQuery(2.0, 0.0)])
    result, _, _ = _release(NormalizedQuery(nested, 4.0), [[tf.constant(3.0), tf.constant(-8.0)]])
    np.testing.assert_allclose(result, [0.25, -0.5], rtol=1e-6)


def test_normalizes_twice():
    # 6 / 2 / 3 = 1.
    query = NormalizedQuery(NormalizedQuery(NoPrivacySumQuery(), 2), 3)
    result, state, _ = _release(query, [tf.constant([6.0])])
    np.testing.assert_allclose(result, [1.0])
    assert state == query.initial_global_state()


def test_random_source_reaches_the_sum():
    query = GaussianAverageQuery(
        1.0, noise_multiplier=1.0, denominator=1.0, random_source=SeededRandomSource(0)
    )
    assert query.derive_event(query.initial_global_state()).seeded


@pytest.mark.parametrize("query", [GaussianAverageQuery, NormalizedQuery])
@pytest.mark.parametrize(
    "denominator, error",
    [(0, ValueError), (-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError)]
    + [(True, TypeError), ("4", TypeError), ([4.0], TypeError), (None, TypeError)],
)
def test_refuses_a_bad_denominator(query, denominator, error):
    with pytest.raises(error, match="denominator"):
        if query is NormalizedQuery:
            NormalizedQuery(GaussianSumQuery(1.0, 1.0), denominator)
        else:
            GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=denominator)


@pytest.mark.parametrize("numerator", [None, 1.0, "sum", [GaussianSumQuery(1.0, 1.0)]])
def test_refuses_a_numerator_that_is_not_a_query(numerator):
    with pytest.raises(TypeError, match="numerator_query must be a DPQuery"):
        NormalizedQuery(numerator, 1.0)


@pytest.mark.parametrize("arguments", [{}, {"noise_multiplier": 1.0, "stddev": 1.0}])
def test_needs_exactly_one_of_noise_multiplier_and_stddev(arguments):
    with pytest.raises(TypeError, match="exactly one of noise_multiplier and stddev"):
        GaussianAverageQuery(1.0, denominator=4.0, **arguments)


@pytest.mark.parametrize("name", ["l2_norm_clip", "noise_multiplier", "stddev"])
@pytest.mark.parametrize(
    "value, error",
    [(-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError)]
    + [(True, TypeError), ("1", TypeError), ([1.0], TypeError)],
)
def test_average_refuses_bad_numbers(name, value, error):
    arguments = {"l2_norm_clip": 1.0, "denominator": 4.0}
    if name == "l2_norm_clip":
        arguments["noise_multiplier"] = 1.0
    with pytest.raises(error, match=f"{name} must be"):
        GaussianAverageQuery(**(arguments | {name: value}))


def test_average_refuses_what_is_not_a_random_source():
    with pytest.raises(TypeError, match="random_source"):
        GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=4.0, random_source=3)


@pytest.mark.parametrize("query", [GaussianAverageQuery, WeightedAverageQuery])
@pytest.mark.parametrize("positional", [(2.0, 10), (2.0,)])
def test_noise_without_a_name_is_refused(query, positional):
    # In TensorFlow Privacy the second argument is the absolute noise, not its multiplier.
    with pytest.raises(TypeError, match="stddev=.*Received after l2_norm_clip: 2.0"):
        query(0.1, *positional)
