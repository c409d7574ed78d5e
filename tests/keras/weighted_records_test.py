"""Queries that weight records take `sample_weight` as the weight of the clipped gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.query import (
    ArrangedQuery,
    GaussianSumQuery,
    JointClippingQuery,
    NestedQuery,
    NormalizedQuery,
    WeightedAverageQuery,
    WeightedRecord,
    WeightedSumQuery,
)
from tfdp.sampling import FullBatch

X, Y = toy.data()
CLIP, MOST, DENOMINATOR = 0.5, 2.0, 8.0
# Within the bound, above it, below zero, and none at all.
WEIGHTS = np.float32([0.5, 1, 2, 3, 1e30, np.inf, 0, -1, np.nan, 0.25, 1, 1.5])
BOUNDED = np.float64([0.5, 1, 2, 2, 2, 2, 0, 0, 0, 0.25, 1, 1.5])


def average():
    return WeightedAverageQuery(CLIP, stddev=0.0, denominator=DENOMINATOR, max_weight=MOST)


def gradients_of_records():
    """Returns, for every record, the gradients of its loss, which has no weight."""
    model, result = toy.dense(), []
    for x, y in zip(X, Y, strict=True):
        with tf.GradientTape() as tape:
            loss = toy.LOGITS_LOSS(y[None], model(x[None]))
        result.append([g.numpy() for g in tape.gradient(loss, model.trainable_variables)])
    return result


def by_hand(groups=((0, 1, 2, 3),), clips=(CLIP,), weighted=(True,)):
    """Returns the sum over records of each group of leaves: clipped, then weighted."""
    total = [0.0] * 4
    for gradients, weight in zip(gradients_of_records(), BOUNDED, strict=True):
        for group, clip, is_weighted in zip(groups, clips, weighted, strict=True):
            norm = np.sqrt(sum(np.sum(gradients[i] ** 2) for i in group))
            for i in group:
                factor = min(1, clip / norm) * (weight if is_weighted else 1)
                total[i] = total[i] + factor * gradients[i]
    return total


# Over the gradients of two kernels and two biases.
QUERIES = {
    "average": (average, lambda: by_hand()),
    "joint": (
        lambda: NormalizedQuery(
            WeightedSumQuery(JointClippingQuery([1.0] * 4, CLIP, 0.0), MOST), DENOMINATOR
        ),
        lambda: by_hand(),
    ),
    "one part of two": (
        lambda: ArrangedQuery(
            NestedQuery(
                [average(), NormalizedQuery(GaussianSumQuery(0.1, 0.0), denominator=DENOMINATOR)]
            ),
            [[0, 2], [1, 3]],
        ),
        lambda: by_hand([(0, 2), (1, 3)], (CLIP, 0.1), (True, False)),
    ),
}


class Separate(GaussianSumQuery):
    """A sum that engines cannot compute from norms."""

    num_norm_groups = None

    def preprocess_record(self, params, record):
        return tf.clip_by_global_norm(record, params)[0]


QUERIES["without norms"] = (
    lambda: NormalizedQuery(WeightedSumQuery(Separate(CLIP, 0.0), MOST), DENOMINATOR),
    lambda: by_hand(),
)


def fitted(query, weights=WEIGHTS, jit_compile=False, **kwargs):
    """Returns a private model after one step, and how far it moved the weights."""
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, **kwargs)
    model = toy.private(optimizer=optimizer, jit_compile=jit_compile)
    before = toy.weights(model)
    model.fit(X, Y, sample_weight=weights, sampling=FullBatch(), verbose=0)
    return model, [a - b for a, b in zip(before, toy.weights(model), strict=True)]


ENGINES = ("bookkeeping", "vectorized", "loop")
CASES = [(name, engine, None) for name in QUERIES for engine in ENGINES]
CASES += [("average", "bookkeeping", 5), ("without norms", "vectorized", 5)]


@pytest.mark.parametrize("name, engine, size", CASES)
def test_every_engine_weights_what_it_has_clipped(name, engine, size):
    query, expected = QUERIES[name]
    _, moved = fitted(query(), engine=engine, physical_batch_size=size)
    for total, step in zip(expected(), moved, strict=True):
        np.testing.assert_allclose(step * DENOMINATOR, total, rtol=1e-4, atol=1e-6)


def test_weights_under_xla():
    _, moved = fitted(average(), jit_compile=True)
    for total, step in zip(by_hand(), moved, strict=True):
        np.testing.assert_allclose(step * DENOMINATOR, total, rtol=1e-4, atol=1e-6)


def test_event_has_the_bound_of_the_largest_weight_and_the_step_its_noise():
    query = WeightedAverageQuery(
        CLIP, noise_multiplier=1.5, denominator=DENOMINATOR, max_weight=MOST
    )
    model, moved = fitted(query)
    (event,) = (entry.event.event for entry in model.ledger)
    assert event == tfdp.GaussianSumEvent(CLIP * MOST, 1.5 * CLIP * MOST)
    assert all(np.any(np.abs(step) > 1e-4) for step in moved)


def test_without_sample_weights_each_record_has_weight_one():
    _, moved = fitted(average(), weights=None)
    _, expected = fitted(average(), weights=np.ones(len(X)))
    for step, same in zip(moved, expected, strict=True):
        np.testing.assert_array_equal(step, same)


def test_class_weights_are_weights_of_records():
    def run(**weights):
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average())
        model = toy.private(optimizer=optimizer)
        model.fit(X, Y, sampling=FullBatch(), verbose=0, **weights)
        return toy.weights(model)

    by_class = run(class_weight={0: 0.5, 1: 9.0})
    by_record = run(sample_weight=np.where(Y == 0, 0.5, 9.0))
    np.testing.assert_array_equal(by_class[0], by_record[0])


def test_no_weight_moves_the_sum_by_more_than_the_bound():
    def total(weights):
        loss = tfdp.gradients.ModelLoss(model, keras.losses.MeanSquaredError())
        data = (tf.constant(X) * 1e3, tf.one_hot(Y, 2))
        return tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, data, average(), weights=weights
        ).sample_state

    model = toy.dense()
    for weight in (1e30, np.inf, 2.0, 7.0):
        weights = np.ones(len(X))
        weights[3] = weight
        without = np.array(weights)
        without[3] = 0.0
        parts = zip(total(weights), total(without), strict=True)
        moved = np.sqrt(sum(np.sum((a - b).numpy().astype(np.float64) ** 2) for a, b in parts))
        assert 0.99 * CLIP * MOST < moved < CLIP * MOST * (1 + 1e-5)


def test_loss_in_the_logs_is_weighted_as_keras_shows_it():
    weights = np.linspace(0, 1, len(X), dtype=np.float32)
    plain = toy.dense()
    plain.compile(keras.optimizers.SGD(0.0), loss=toy.LOGITS_LOSS)
    expected = plain.fit(X, Y, batch_size=len(X), sample_weight=weights, verbose=0)
    model = toy.private(optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.0), average()))
    shown = model.fit(X, Y, sample_weight=weights, sampling=FullBatch(), verbose=0)
    np.testing.assert_allclose(shown.history["loss"], expected.history["loss"], rtol=1e-5)


def test_batches_of_a_data_set_bring_their_weights():
    def moved(data, **kwargs):
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average())
        model = toy.private(optimizer=optimizer)
        model.fit(*data, verbose=0, sampling=FullBatch(population_size=len(X)), **kwargs)
        return toy.weights(model)

    dataset = tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS[:, None])).batch(len(X))
    _, expected = fitted(average())
    start = toy.weights(toy.dense())
    for before, after, step in zip(start, moved([dataset]), expected, strict=True):
        np.testing.assert_allclose(before - after, step, rtol=1e-5, atol=1e-7)


def test_custom_loop_gives_weights():
    model = toy.dense()
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average())
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    gradients = optimizer.private_gradients(
        loss, model.trainable_variables, (tf.constant(X), tf.constant(Y)), weights=WEIGHTS
    )
    for total, gradient in zip(by_hand(), gradients, strict=True):
        np.testing.assert_allclose(gradient * DENOMINATOR, total, rtol=1e-4, atol=1e-6)


def test_microbatches_of_several_examples_have_no_weight_and_are_not_charged():
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average(), num_microbatches=3)
    model = toy.private(optimizer=optimizer)
    with pytest.raises(ValueError, match="a microbatch of several examples has no weight"):
        model.fit(X, Y, batch_size=6, verbose=0)
    assert model.ledger.total_count == 0


def test_views_of_an_example_have_no_weight_and_the_error_says_which_argument_makes_them():
    model = toy.private(optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average()))
    with pytest.raises(ValueError, match="all views of an example.*in fit privacy_unit and views"):
        model.fit(X, Y, batch_size=6, views=2, verbose=0)
    assert model.ledger.total_count == 0


def test_as_many_microbatches_as_examples_are_records():
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average(), num_microbatches=6)
    model = toy.private(optimizer=optimizer)
    model.fit(X, Y, batch_size=6, sample_weight=WEIGHTS, verbose=0)
    assert next(iter(model.ledger)).event.event == tfdp.GaussianSumEvent(CLIP * MOST, 0.0)


def test_weights_of_parts_of_a_record_are_refused_before_the_step():
    x = keras.Input((3, 2))
    model = toy.private(
        keras.Model(x, L.Dense(2)(x)),
        tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), average()),
    )
    with pytest.raises(ValueError, match=r"one weight for each example.*\[n, 3\]"):
        model.fit(np.ones([4, 3, 2]), np.zeros([4, 3]), sample_weight=np.ones([4, 3]), batch_size=2)
    assert model.ledger.total_count == 0


def test_weights_for_a_query_that_does_not_bound_them_are_refused():
    with pytest.raises(ValueError, match="weights are for a query that bounds them"):
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(VARIABLE * x),
            [VARIABLE],
            tf.ones([3]),
            GaussianSumQuery(1.0, 0.0),
            weights=tf.ones([3]),
        )


@pytest.mark.parametrize(
    "groups",
    [
        {"num_microbatches": 2, "microbatch_ids": tf.constant([0, 1, 1, 0])},
        {"examples_per_record": 2},
    ],
    ids=["microbatches", "several rows"],
)
def test_records_of_several_examples_are_refused(groups):
    with pytest.raises(ValueError, match="a microbatch of several examples has no weight"):
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(VARIABLE * x), [VARIABLE], tf.ones([4]), average(), **groups
        )


VARIABLE = tf.Variable(1.0)


@pytest.mark.parametrize("weights", [tf.ones([3, 2]), tf.ones([3], tf.bool), ["a", "b", "c"]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(TypeError, match="weights must hold numbers"):
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(VARIABLE * x),
            [VARIABLE],
            tf.ones([3]),
            average(),
            weights=weights,
        )


def test_sum_of_weighted_records_is_released_by_its_query_alone():
    plain = WeightedSumQuery(GaussianSumQuery(CLIP, 1.0), MOST).weighed(tf.ones([]))
    for release in (lambda: plain.derive_event(()), lambda: plain.get_noised_result([], ())):
        with pytest.raises(TypeError, match="released by its WeightedSumQuery"):
            release()


def test_weighed_record_is_that_of_the_query():
    query = WeightedSumQuery(GaussianSumQuery(CLIP, 0.0), MOST)
    params = query.derive_sample_params(query.initial_global_state())
    record = tf.constant([3.0, 4.0])
    for weight in WEIGHTS:
        np.testing.assert_array_equal(
            query.weighed(weight).preprocess_record(params, record),
            query.preprocess_record(params, WeightedRecord(record, weight)),
        )
