"""Training with precision="exact": what a record contributes is its own, bit for bit."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.accounting import RDPAccountant
from tfdp.events import DiscreteGaussianSumEvent
from tfdp.gradients import clipped_gradient_sum
from tfdp.ledger import PrivacyLedger
from tfdp.query import grid

EXACT = tfdp.GaussianSumQuery(0.5, 0.0, precision="exact")
LIMIT = (0.5 / grid.grid_of(0.5)) ** 2


def average(stddev=1.0):
    return tfdp.GaussianAverageQuery(0.5, stddev=stddev, denominator=6, precision="exact")


def problem(size=9):
    """Returns (loss of one example, variables, examples) of wide layers, whose sums are long."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((67,)), keras.layers.Dense(33, activation="tanh"), keras.layers.Dense(3)]
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(size, 67)).astype("float32"), rng.integers(3, size=size)

    def loss(example):
        x, y = example
        return tf.reduce_mean(toy.LOGITS_LOSS(y, model(x)))

    return loss, [v.value for v in model.trainable_variables], (x, y)


def integers(loss, variables, examples, **kwargs):
    """Returns the sum of records, one vector of integers."""
    state = clipped_gradient_sum(loss, variables, examples, EXACT, **kwargs).sample_state
    return np.concatenate([np.ravel(leaf) for leaf in state.integers])


def rows(examples, index):
    return tuple(e[index] for e in examples)


def square(vector):
    return sum(int(i) ** 2 for i in vector)


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_one_record_more_moves_the_sum_by_its_own_integers(jit_compile):
    loss, variables, examples = problem()

    def step(x, y):
        return clipped_gradient_sum(loss, variables, (x, y), EXACT).sample_state.integers

    if jit_compile is not None:
        # One graph for samples of all sizes, where XLA does not need to know them.
        any_size = [tf.TensorSpec([None, 67]), tf.TensorSpec([None], tf.int64)]
        step = tf.function(
            step,
            input_signature=None if jit_compile else any_size,
            jit_compile=jit_compile,
            autograph=False,
        )

    def total(index):
        return np.concatenate([np.ravel(leaf) for leaf in step(*rows(examples, index))])

    alone = total([4])
    assert 0.99 * LIMIT < square(alone) <= LIMIT
    for others in ([0],) if jit_compile else ([0], [0, 1, 2, 3, 5, 6, 7, 8]):
        before = total(others)
        for position in {0, len(others) // 2, len(others)}:
            after = total([*others[:position], 4, *others[position:]])
            np.testing.assert_array_equal(after - before, alone)


def test_empty_sample_is_zero():
    loss, variables, examples = problem(1)
    assert not np.any(integers(loss, variables, rows(examples, slice(0))))


def test_padding_and_physical_batches_change_nothing():
    loss, variables, examples = problem()
    expected = integers(loss, variables, rows(examples, [0, 2, 3]))
    mask = np.array([True, False, True, True] + [False] * 5)
    np.testing.assert_array_equal(
        integers(loss, variables, examples, mask=mask, physical_batch_size=2), expected
    )


def test_one_example_more_changes_its_microbatch_only():
    loss, variables, examples = problem()
    ids = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])

    def total(index):
        kwargs = {"num_microbatches": 3, "microbatch_ids": ids[index]}
        return integers(loss, variables, rows(examples, index), **kwargs)

    everybody, without = np.arange(9), np.delete(np.arange(9), 4)
    moved = total(everybody) - total(without)
    assert 0 < square(moved) <= 4 * LIMIT
    np.testing.assert_array_equal(
        moved, total(everybody[ids == 1]) - total(without[ids[without] == 1])
    )


def test_auto_is_the_loop_and_says_so(caplog):
    loss, variables, examples = problem(3)
    with caplog.at_level(logging.INFO, logger="tfdp"):
        auto = integers(loss, variables, examples)
    assert "loop engine" in caplog.text
    assert "precision='exact'" in caplog.text
    np.testing.assert_array_equal(integers(loss, variables, examples, engine="loop"), auto)


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping"])
def test_engines_of_batches_are_refused(engine):
    loss, variables, examples = problem(3)
    with pytest.raises(ValueError, match="needs engine='loop'"):
        integers(loss, variables, examples, engine=engine)


def test_fit_and_replay():
    x, y = toy.data()
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), average())
    model = toy.private(optimizer=optimizer)
    before = toy.weights(model)
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    assert toy.all_finite(model)
    assert all(np.any(a != b) for a, b in zip(toy.weights(model), before, strict=True))
    expected = DiscreteGaussianSumEvent(0.5, 1.0, 2.0**-31, 2**30)
    assert [event.event for event in toy.events(model)] == [expected] * 4
    saved = PrivacyLedger.from_json_lines(model.ledger.to_json_lines())
    epsilon = saved.replay(RDPAccountant()).get_epsilon(1e-5)
    gaussian = tfdp.SampledEvent(
        toy.events(model)[0].sampling, tfdp.GaussianSumEvent(0.5, noise_stddev=1.0)
    )
    assert epsilon == pytest.approx(
        RDPAccountant().compose(gaussian, 4).get_epsilon(1e-5), rel=1e-6
    )


def test_step_is_that_of_the_float_query_up_to_the_grid():
    x, y = toy.data()
    stepped = []
    for query in (average(0.0), tfdp.GaussianAverageQuery(0.5, stddev=0.0, denominator=6)):
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.5), query)
        model = toy.private(optimizer=optimizer)
        model.fit(x, y, sampling=tfdp.sampling.FullBatch(), verbose=0)
        stepped.append(toy.weights(model))
    for exact, floating in zip(*stepped, strict=True):
        np.testing.assert_allclose(exact, floating, rtol=0, atol=1e-6)


def test_microbatches_double_the_bound_exactly():
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), average(), num_microbatches=2)
    assert optimizer.next_event().event == DiscreteGaussianSumEvent(1.0, 1.0, 2.0**-31, 2**30)
