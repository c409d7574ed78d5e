"""Compiled epochs against steps written out in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.federated.selective import (
    GaussianUpload,
    LargestValues,
    LocalSGD,
    ParameterServer,
    Participant,
    run_epoch,
)
from tfdp.ledger import PrivacyLedger


def linear(classes=3, features=4):
    layers = [keras.Input((features,)), keras.layers.Dense(classes)]
    return keras.Sequential(layers)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def slow_epoch(w, x, y, order, batch_size, rate):
    """SGD on a linear model, by the gradient of the cross-entropy."""
    kernel, bias = w[:12].reshape(4, 3).astype(np.float64), w[12:].astype(np.float64)
    for start in range(0, len(order) - batch_size + 1, batch_size):
        rows = order[start : start + batch_size]
        logits = x[rows] @ kernel + bias
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        p[np.arange(batch_size), y[rows]] -= 1
        kernel -= rate * x[rows].T @ p / batch_size
        bias -= rate * p.mean(0)
    return np.concatenate([kernel.ravel(), bias])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(11, 4)).astype(np.float32), rng.integers(0, 3, 11).astype(np.int32)


@pytest.mark.parametrize("batch_size", [4, 20])
def test_an_epoch_is_the_one_written_out(data, batch_size):
    model = linear()
    sgd = LocalSGD(model, LOSS, 0.5, batch_size, generator=np.random.default_rng(7))
    start = sgd.parameters()
    found = sgd.on(*data)(start)
    order = np.random.default_rng(7).permutation(11)
    expected = slow_epoch(start, *data, order, min(batch_size, 11), 0.5)
    assert found == pytest.approx(expected, abs=1e-5)
    assert np.abs(found - start).max() > 0.05
    # The model only describes: it is as before.
    assert np.array_equal(sgd.parameters(), start)
    logits = data[0] @ found[:12].reshape(4, 3) + found[12:]
    assert sgd.accuracy(found, *data) == pytest.approx(np.mean(logits.argmax(1) == data[1]))


def test_a_part_of_an_epoch_is_its_first_batches(data):
    sgd = LocalSGD(linear(), LOSS, 0.5, 4, generator=np.random.default_rng(7))
    start = sgd.parameters()
    found = sgd.on(*data, batches=1)(start)
    order = np.random.default_rng(7).permutation(11)[:4]
    assert found == pytest.approx(slow_epoch(start, *data, order, 4, 0.5), abs=1e-5)
    with pytest.raises(ValueError, match="There are 2 batches"):
        sgd.on(*data, batches=3)


def test_participants_learn_together_what_one_alone_cannot(data):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1).astype(np.int32)
    sgd = LocalSGD(linear(), LOSS, 0.3, 10, generator=rng)
    server = ParameterServer(sgd.parameters(), largest_fraction=0.5, largest_value=5.0)
    # Each has seen one class only.
    parts = [np.flatnonzero(y == label) for label in range(3)]
    participants = {
        i: Participant(sgd.on(x[rows], y[rows]), LargestValues(0.5, 5.0))
        for i, rows in enumerate(parts)
    }
    for _ in range(20):
        assert run_epoch(server, participants) == {}
    alone = sgd.parameters()
    for _ in range(20):
        alone = sgd.on(x[parts[0]], y[parts[0]])(alone)
    assert sgd.accuracy(alone, x, y) < 0.5 < 0.75 < sgd.accuracy(server.parameters, x, y)


def embedding():
    layers = [keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((2,), dtype="int32"), *layers])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("place", ["label", "id"])
def test_what_does_not_exist_is_no_error_and_is_charged(data, place, compiled):
    """The text of TensorFlow's error holds every label of the batch."""
    x, y = np.tile(np.arange(4, dtype=np.int32)[:, None], (2, 2)), np.tile([0, 1, 2, 1], 2)
    (y if place == "label" else x[:, 0])[5] = 7
    sgd = LocalSGD(embedding(), LOSS, 0.5, 4, jit_compile=compiled)
    ledger = PrivacyLedger()
    upload = GaussianUpload(0.5, 1.0, 5.0, 1.0, ledger)
    server = ParameterServer(sgd.parameters())
    assert run_epoch(server, {"a": Participant(sgd.on(x, y), upload)}) == {}
    assert server.version == 1 and ledger.total_count == 1


def test_a_loss_may_have_branches_of_python(data):
    def loss(y, outputs):
        if tf.reduce_sum(outputs) > 1e9:
            return 0.0 * LOSS(y, outputs)
        return LOSS(y, outputs)

    found = []
    for one in (loss, LOSS):
        keras.utils.set_random_seed(1)
        sgd = LocalSGD(linear(), one, 0.5, 4, generator=np.random.default_rng(7))
        found.append(sgd.on(*data)(sgd.parameters()))
    np.testing.assert_allclose(*found, atol=1e-6)


@pytest.mark.parametrize("generator", [0, 5])
def test_what_is_no_generator_is_refused(generator):
    with pytest.raises(TypeError, match="generator must be .* Received: int."):
        LocalSGD(linear(), LOSS, 0.5, generator=generator)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros([0, 4], np.float32), np.zeros(0, np.int32)),
        (np.zeros([5, 4], np.float32), np.zeros(3, np.int32)),
        (np.zeros([3, 4], np.float32), np.zeros(5, np.int32)),
        (np.float32(1), np.int32(1)),
    ],
    ids=["none", "more_x", "more_y", "scalars"],
)
def test_refuses_no_examples_and_unequally_many(x, y):
    with pytest.raises(ValueError, match="equally many examples, at least one. Received: x of sh"):
        LocalSGD(linear(), LOSS, 0.5).on(x, y)


def test_refuses_state_that_nobody_shares():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    with pytest.raises(ValueError, match="moving_mean"):
        LocalSGD(model, LOSS, 0.1)
    with pytest.raises(ValueError, match="learning_rate"):
        LocalSGD(linear(), LOSS, 0.0)
