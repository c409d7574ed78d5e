"""Sums with an l1 clip and Laplace noise: by hand, in training, and priced."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tests.numerics.exact import long, that_vanish
from tfdp.accounting import PLDAccountant, RDPAccountant
from tfdp.events import LaplaceSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import LaplaceSumQuery


def _sum(query, records):
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record((), state, record)
    return state


def test_clips_in_l1_over_all_leaves():
    query = LaplaceSumQuery(2.0, 0.0)
    records = [{"a": tf.constant([3.0, -4.0]), "b": tf.constant(1.0)}]
    state = _sum(query, records)
    np.testing.assert_allclose(state["a"], [0.75, -1.0], rtol=1e-5)
    np.testing.assert_allclose(state["b"], 0.25, rtol=1e-5)
    small = {"a": tf.constant([0.5, -0.25]), "b": tf.constant(1.0)}
    np.testing.assert_array_equal(_sum(query, [small])["a"], [0.5, -0.25])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("size", [1, 7, 300, 100_000])
def test_no_record_exceeds_the_bound(dtype, size):
    rng = np.random.default_rng(size)
    for clip in (1e-12, 0.1, 3.0, 1e18):
        query = LaplaceSumQuery(clip, 0.0)
        for _ in range(5):
            scale = 10.0 ** rng.uniform(-10, 10)
            record = tf.constant(rng.standard_cauchy(size) * clip * scale / size, dtype)
            clipped = query.preprocess_record((), record).numpy()
            assert math.fsum(abs(float(x)) for x in clipped) <= clip


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [(2**17,), (2**17, 1), (4099, 4)])
def test_numbers_that_vanish_beside_others_count(shape, jit_compile):
    query = LaplaceSumQuery(1.0, 0.0)
    clip = tf.function(
        lambda record: query.preprocess_record((), record), autograph=False, jit_compile=jit_compile
    )
    for vector in that_vanish(math.prod(shape)):
        clipped = clip(tf.constant(vector.reshape(shape))).numpy()
        assert 1 - 1e-4 < np.sum(long(clipped)) <= 1


def test_noise_is_that_of_the_event_on_every_leaf():
    query = LaplaceSumQuery(1.0, 3.0)
    draw = tf.function(
        lambda: query.get_noised_result({"a": tf.zeros([6000]), "b": tf.zeros([150, 40])}, ())[0]
    )
    for leaf in draw().values():
        scaled = np.ravel(leaf) / 3.0
        assert stats.kstest(scaled, "laplace").pvalue > 1e-9
        assert stats.kstest(scaled * 1.5, "laplace").pvalue < 1e-9
        assert stats.kstest(scaled / 1.5, "laplace").pvalue < 1e-9


def test_event_and_its_price():
    query = LaplaceSumQuery(2.0, 4.0)
    assert query.derive_event(()) == LaplaceSumEvent(2.0, 4.0)
    assert LaplaceSumQuery(1.0, 1.0, SeededRandomSource(0)).derive_event(()).seeded
    accountant = PLDAccountant()
    accountant.compose(query.derive_event(()))
    assert accountant.get_epsilon(0.0) == pytest.approx(0.5, rel=1e-3)
    accountant = RDPAccountant()
    accountant.compose(LaplaceSumQuery(1.0, 0.0).derive_event(()))
    assert accountant.get_epsilon(1e-5) == math.inf


@pytest.mark.parametrize("engine", ["auto", "vectorized", "loop"])
def test_trains_with_an_l1_clip(engine):
    x = np.array([[1.0, 2.0], [-3.0, 0.5], [0.1, 0.1]], np.float32)
    variable = keras.Variable(np.zeros([2], np.float32))
    query = tfdp.NormalizedQuery(LaplaceSumQuery(1.0, 0.0), 4.0)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, engine=engine)

    @tf.function
    def step():
        optimizer.private_step(lambda r: tf.reduce_sum(r @ variable[:, None]), [variable], x)

    step()
    clipped = x / np.maximum(np.abs(x).sum(1, keepdims=True), 1.0)
    np.testing.assert_allclose(variable.numpy(), -clipped.sum(0) / 4, rtol=1e-5)
    (entry,) = optimizer.ledger
    assert entry.event.event == LaplaceSumEvent(1.0, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_refuses_bad_arguments(bad):
    with pytest.raises((TypeError, ValueError), match="l1_norm_clip must be"):
        LaplaceSumQuery(bad, 1.0)
    if bad != 0.0:
        with pytest.raises((TypeError, ValueError), match="scale must be"):
            LaplaceSumQuery(1.0, bad)
