import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import GaussianSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import JointClippingQuery, NormalizedQuery


def _preprocess(query, record):
    return query.preprocess_record(query.derive_sample_params(query.initial_global_state()), record)


def _release(query, records):
    global_state = query.initial_global_state()
    params = query.derive_sample_params(global_state)
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record(params, state, record)
    return query.get_noised_result(state, global_state)


def test_clips_the_joint_norm_of_scaled_groups():
    # alpha = (2, 10): (6, 40) -> (3, 4), joint norm 5, clip 1: (0.6, 0.8).
    # The result is scaled back: (1.2, 8).
    query = JointClippingQuery([2.0, 10.0], l2_norm_clip=1.0, noise_multiplier=0.0)
    record = [tf.constant(6.0), tf.constant(40.0)]
    np.testing.assert_allclose(_preprocess(query, record), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(_release(query, [record])[0], [1.2, 8.0], rtol=1e-6)


def test_does_not_clip_below_the_joint_norm():
    # (0.6, 4) / (2, 10) = (0.3, 0.4), of norm 0.5.
    query = JointClippingQuery([2.0, 10.0], 1.0, 0.0)
    record = [tf.constant(0.6), tf.constant(4.0)]
    np.testing.assert_allclose(_preprocess(query, record), [0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(_release(query, [record, record])[0], [1.2, 8.0], rtol=1e-6)


def test_scale_goes_with_all_the_leaves_below_it():
    # "x" is scaled by 1/2: ((4, 4), 2) -> ((2, 2), 1); "y" by 1: 4.
    # Joint norm 5, clip 2.5: a half of all.
    query = JointClippingQuery({"x": 2.0, "y": 1.0}, 2.5, 0.0)
    record = {"x": [tf.constant([4.0, 4.0]), tf.constant(2.0)], "y": tf.constant(4.0)}
    assert query.norm_groups(record) == [0, 0, 1]
    scaled = _preprocess(query, record)
    # Factors are rounded down, by some units in the last place.
    np.testing.assert_allclose(scaled["x"][0], [1.0, 1.0], rtol=2e-6)
    np.testing.assert_allclose(scaled["x"][1], 0.5, rtol=2e-6)
    np.testing.assert_allclose(scaled["y"], 2.0, rtol=2e-6)


def test_one_scale_for_the_whole_record():
    # 1/2 of |(6, 8)| is 5, clip 1: (0.6, 0.8), scaled back.
    query = JointClippingQuery(2.0, 1.0, 0.0)
    result, _, _ = _release(query, [tf.constant([6.0, 8.0])])
    np.testing.assert_allclose(result, [1.2, 1.6], rtol=1e-6)


def test_event_is_one_gaussian_sum():
    # Bound C, noise z C, on the scaled sums.
    query = JointClippingQuery([2.0, 10.0], 1.5, 2.0)
    assert query.derive_event(query.initial_global_state()) == GaussianSumEvent(1.5, 3.0)
    assert _release(query, [[tf.zeros([1]), tf.zeros([1])]])[2] == GaussianSumEvent(1.5, 3.0)


def test_event_says_where_noise_is_seeded():
    query = JointClippingQuery(1.0, 1.0, 1.0, SeededRandomSource(0))
    assert query.derive_event(query.initial_global_state()).seeded


def test_noise_of_a_group_is_in_proportion_to_its_scale(check_stddev, check_independent):
    # alpha_g z C = (0.25, 4) * 2 * 1.5 = (0.75, 12) on the sum; over the denominator 3: (0.25, 4).
    query = JointClippingQuery({"x": 0.25, "y": 4.0}, l2_norm_clip=1.5, noise_multiplier=2.0)
    record = {"x": [tf.zeros([1000]), tf.zeros([1000])], "y": tf.zeros([1000])}
    first, second = _release(query, [record])[0], _release(query, [record])[0]
    for result in (first, second):
        check_stddev(result["x"][0], 0.75)
        check_stddev(result["x"][1], 0.75)
        check_stddev(result["y"], 12.0)
        check_independent(result["x"][0], result["x"][1])
        check_independent(result["x"][0], result["y"])
    check_independent(first["y"], second["y"])

    average, _, _ = _release(NormalizedQuery(query, 3.0), [record])
    check_stddev(average["x"][0], 0.25)
    check_stddev(average["y"], 4.0)


def test_changing_the_scales_that_were_passed_changes_nothing():
    scales = [1.0, 2.0]
    query = JointClippingQuery(scales, 1.0, 0.0)
    scales[0] = 100.0
    assert query.scales == [1.0, 2.0]


BAD_NUMBERS = [(-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError)] + [
    (True, TypeError),
    ("1", TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize("value, error", [*BAD_NUMBERS, (0.0, ValueError)])
def test_refuses_bad_scales(value, error):
    with pytest.raises(error, match="scales must be"):
        JointClippingQuery([1.0, value], 1.0, 1.0)


@pytest.mark.parametrize("scales", [[], {}])
def test_refuses_no_scales(scales):
    with pytest.raises(TypeError, match="must hold a number"):
        JointClippingQuery(scales, 1.0, 1.0)


@pytest.mark.parametrize("value, error", [*BAD_NUMBERS, (0.0, ValueError)])
def test_refuses_a_bad_clip(value, error):
    with pytest.raises(error, match="l2_norm_clip must be"):
        JointClippingQuery([1.0], value, 1.0)


@pytest.mark.parametrize("value, error", BAD_NUMBERS)
def test_refuses_a_bad_noise_multiplier(value, error):
    with pytest.raises(error, match="noise_multiplier must be"):
        JointClippingQuery([1.0], 1.0, value)


def test_refuses_what_is_not_a_random_source():
    with pytest.raises(TypeError, match="random_source must be"):
        JointClippingQuery([1.0], 1.0, 1.0, random_source=7)


def test_structure_mismatch_prints_both_structures():
    query = JointClippingQuery({"x": 1.0, "y": 1.0}, 1.0, 1.0)
    with pytest.raises(ValueError) as error:
        _preprocess(query, {"x": tf.zeros([2])})
    assert "Expected: {'x': '.', 'y': '.'}" in str(error.value)
    assert "(2,)" in str(error.value)


@pytest.mark.parametrize(
    ("scale", "multiplier", "clip", "name"),
    [
        (1e10, 1.0, 1e10, r"scales \* l2_norm_clip"),
        (1e-10, 1.0, 1e-10, r"scales \* l2_norm_clip"),
        (1e-5, 1e20, 1e12, r"noise_multiplier \* l2_norm_clip"),
        (1e8, 1e15, 1e8, r"scales \* noise_multiplier \* l2_norm_clip"),
    ],
)
def test_products_that_float32_cannot_hold_are_refused(scale, multiplier, clip, name):
    with pytest.raises(ValueError, match=f"^{name} must be finite"):
        JointClippingQuery([1.0, scale], clip, multiplier)
