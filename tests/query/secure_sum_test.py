"""Scales and noise of secure sums, by what their arguments ask for."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.query import rounded_norm_bound, secure_sum_query

ARGUMENTS = {
    "l2_norm_clip": 0.5,
    "noise_multiplier": 1.5,
    "num_coordinates": 50,
    "num_records": 30,
    "modulus_bits": 14,
}


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize("min_contributors", [None, 20])
def test_noise_is_what_was_asked_for_and_the_scale_the_largest(noise, min_contributors):
    query = secure_sum_query(**ARGUMENTS, noise=noise, min_contributors=min_contributors)
    event = query.derive_event(query.initial_global_state())
    assert event.noise_multiplier == pytest.approx(1.5)
    assert event.min_shares == (min_contributors or 30)
    bound = rounded_norm_bound(query.scale * 0.5, 64)
    assert query.sum_query.l2_norm_bound == pytest.approx(bound)
    norm, stddev = query.scale * 0.5, query.sum_query.local_stddev
    spread = math.sqrt((30 * norm) ** 2 / 64 + 30 / 4 + 30 * stddev**2)
    assert 8 * spread == pytest.approx(2**14)


def test_scale_stays_where_the_noise_can_be_drawn():
    many = ARGUMENTS | {"modulus_bits": 40}
    assert secure_sum_query(**many).sum_query.l2_norm_bound == pytest.approx(2**31, rel=1e-3)
    skellam = secure_sum_query(**many, noise="skellam").sum_query
    assert skellam.local_stddev == pytest.approx(2**14, rel=1e-6)
    assert skellam.local_stddev <= 2**14


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
def test_a_sum_of_records_that_are_all_alike_comes_out(noise):
    query = secure_sum_query(**ARGUMENTS | {"noise_multiplier": 0.2}, noise=noise)
    record = tf.constant(np.random.default_rng(0).normal(size=50), tf.float32)
    state = query.initial_global_state()
    add = tf.function(lambda sample, params: query.accumulate_record(params, sample, record))
    sample = query.initial_sample_state(record)
    for _ in range(30):
        sample = add(sample, query.derive_sample_params(state))
    result = query.get_noised_result(sample, state)[0]
    expected = 30 * 0.5 * record / tf.norm(record)
    noise = 0.2 * query.sum_query.l2_norm_bound / query.scale
    assert np.linalg.norm(result - expected) < 6 * math.sqrt(64) * noise


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"modulus_bits": 3}, "does not fit into modulus_bits=3"),
        ({"min_contributors": 31}, "at most num_records=30"),
        ({"noise": "gaussian"}, "noise must be one of"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"room": -1.0}, "room must be"),
        ({"num_records": 0}, "num_records must be"),
        ({"l2_norm_clip": math.nan}, "l2_norm_clip must be"),
    ],
)
def test_refuses(bad, message):
    with pytest.raises(ValueError, match=message):
        secure_sum_query(**ARGUMENTS | bad)
