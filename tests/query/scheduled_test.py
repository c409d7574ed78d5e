"""Clips and noise that follow public schedules; each step is charged what it did."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import GaussianSumEvent
from tfdp.query import ScheduledGaussianSumQuery

schedules = keras.optimizers.schedules


def _states(query, number):
    state, states = query.initial_global_state(), []
    for _ in range(number):
        states.append(state)
        sample = query.initial_sample_state(tf.zeros([1]))
        _, state, _ = query.get_noised_result(sample, state)
    return states


def test_values_are_those_of_the_schedules():
    query = ScheduledGaussianSumQuery(
        schedules.PiecewiseConstantDecay([1, 3], [4.0, 2.0, 1.0]),
        schedules.PolynomialDecay(2.0, 4, 1.0),
    )
    states = _states(query, 6)
    assert [int(s.step) for s in states] == [0, 1, 2, 3, 4, 5]
    assert [float(s.l2_norm_clip) for s in states] == [4.0, 4.0, 2.0, 2.0, 1.0, 1.0]
    assert [float(s.noise_multiplier) for s in states] == [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]
    events = [query.derive_event(state) for state in states]
    assert events[:3] == [GaussianSumEvent(1.0, z) for z in (2.0, 1.75, 1.5)]
    assert dict(query.derive_metrics(states[1])) == {
        "clip": states[1].l2_norm_clip,
        "noise_multiplier": states[1].noise_multiplier,
    }


def test_a_schedule_of_clips_is_one_event():
    query = ScheduledGaussianSumQuery(schedules.ExponentialDecay(4.0, 1, 0.5), 1.5)
    assert {query.derive_event(state) for state in _states(query, 5)} == {GaussianSumEvent(1, 1.5)}


@pytest.mark.parametrize("jit_compile", [False, True])
def test_records_and_noise_follow_the_state(jit_compile, check_stddev):
    query = ScheduledGaussianSumQuery(schedules.ExponentialDecay(8.0, 1, 0.5), 0.25)
    quiet = ScheduledGaussianSumQuery(schedules.ExponentialDecay(8.0, 1, 0.5), 0.0)

    def step(query, state, record):
        params = query.derive_sample_params(state)
        sample = query.initial_sample_state(record)
        return query.get_noised_result(query.accumulate_record(params, sample, record), state)[:2]

    state = query.initial_global_state()
    graph = tf.function(lambda state, r: step(quiet, state, r), jit_compile=jit_compile)
    noisy = tf.function(lambda state, r: step(query, state, r))
    for clip in (8.0, 4.0, 2.0):
        result, following = graph(state, tf.constant([60.0, 80.0]))
        np.testing.assert_allclose(result, [0.6 * clip, 0.8 * clip], rtol=1e-5)
        loud = state._replace(noise_multiplier=tf.constant(0.25, tf.float64))
        check_stddev(noisy(loud, tf.zeros([1000]))[0].numpy(), 0.25 * clip)
        state = following


@pytest.mark.parametrize("multiplier", [0.0, 0.1, 7.0])
def test_noise_is_that_of_the_event_where_another_query_made_the_state(multiplier, check_stddev):
    state = ScheduledGaussianSumQuery(2.0, 1.5).initial_global_state()
    query = ScheduledGaussianSumQuery(2.0, multiplier)
    event, sample = query.derive_event(state), query.initial_sample_state(tf.zeros([1000]))
    result, following, same = query.get_noised_result(sample, state)
    assert event == same == GaussianSumEvent(1.0, 1.5 if multiplier else 0.0)
    if multiplier:
        check_stddev(result.numpy(), 2.0 * event.noise_stddev)
    else:
        assert not np.any(result)
    assert query.derive_event(following) == GaussianSumEvent(1.0, multiplier)


class OneThen(schedules.LearningRateSchedule):
    """One at step 0, and another value from step 1 on."""

    def __init__(self, value):
        self.value = value

    def __call__(self, step):
        return tf.where(step < 1, 1.0, self.value)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e20])
def test_schedule_that_leaves_the_range_is_refused_before_the_step(bad):
    query = ScheduledGaussianSumQuery(OneThen(bad), 1.0)
    with pytest.raises(ValueError, match="l2_norm_clip of step 1 must be"):
        query.derive_event(_graph_state(query))
    if bad != 0:
        query = ScheduledGaussianSumQuery(1.0, OneThen(bad))
        with pytest.raises(ValueError, match="noise_multiplier of step 1 must be"):
            query.derive_event(_graph_state(query))


def _graph_state(query):
    """Returns the state of step 1, as the step of an optimizer computes it."""

    @tf.function
    def following(state):
        return query.get_noised_result(query.initial_sample_state(tf.zeros([1])), state)[1]

    return following(query.initial_global_state())


@pytest.mark.parametrize("bad", [-1.0, math.nan, "1", None, tf.Variable(1.0), lambda step: 1.0])
def test_refuses_bad_arguments(bad):
    with pytest.raises((TypeError, ValueError), match="l2_norm_clip must be"):
        ScheduledGaussianSumQuery(bad, 1.0)
    with pytest.raises((TypeError, ValueError), match="noise_multiplier must be"):
        ScheduledGaussianSumQuery(1.0, bad)
    with pytest.raises(ValueError, match="l2_norm_clip of step 0 must be"):
        ScheduledGaussianSumQuery(0.0, 1.0)
