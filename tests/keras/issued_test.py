"""Gradients that were not charged are not applied, and those that were are applied once."""

import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import X, Y, matrix, squared_error

from tfdp.keras import (
    NotPrivateError,
)

EXAMPLES = toy.examples()


@pytest.mark.parametrize("method", ["apply", "apply_gradients"])
def test_plain_gradients_are_refused(method):
    optimizer, variable = toy.dp(), matrix()
    optimizer.build([variable])
    gradient = tf.ones([4, 2])
    arguments = (
        ([gradient], [variable])
        if method == "apply"
        else (zip([gradient], [variable], strict=True),)
    )
    with pytest.raises(NotPrivateError, match="make_private"):
        getattr(optimizer, method)(*arguments)
    assert not variable.numpy().any()
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_raw_model_trained_by_mistake_is_refused(run_eagerly):
    model = toy.dense()
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS, run_eagerly=run_eagerly)
    start = toy.weights(model)
    with pytest.raises(NotPrivateError, match="make_private"):
        model.fit(X, Y, verbose=0)
    toy.assert_weights(model, start, 0)


def test_no_gradients_are_refused():
    with pytest.raises(NotPrivateError):
        toy.dp().apply([], [])


def test_gradients_are_applied_once_only():
    optimizer, variable = toy.dp(), matrix()
    gradients = optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)
    optimizer.apply(gradients, [variable])
    after = variable.numpy()
    with pytest.raises(NotPrivateError):
        optimizer.apply(gradients, [variable])
    np.testing.assert_array_equal(variable, after)


def test_gradients_are_applied_to_their_own_variables_only():
    optimizer, variable, other = toy.dp(), matrix(), matrix()
    optimizer.build([variable, other])
    gradients = optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)
    for variables in ([other], [variable, other]):
        with pytest.raises(NotPrivateError, match="other variables"):
            optimizer.apply(gradients, variables)
    assert not (variable.numpy().any() or other.numpy().any())
    optimizer.apply(gradients)  # To what they were taken for.
    assert variable.numpy().any() and not other.numpy().any()


def test_gradients_of_another_optimizer_are_refused():
    first, second, variable = toy.dp(), toy.dp(), matrix()
    gradients = first.private_gradients(squared_error(variable), [variable], EXAMPLES)
    with pytest.raises(NotPrivateError):
        second.apply(gradients, [variable])
    assert second.ledger.total_count == 0


def test_processed_gradients_are_refused_but_may_go_to_the_inner_optimizer():
    optimizer, variable = toy.dp(), matrix()
    gradients = optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)
    halved = [g / 2 for g in gradients]
    with pytest.raises(NotPrivateError, match="inner_optimizer"):
        optimizer.apply(halved, [variable])
    optimizer.inner_optimizer.apply(halved, [variable])
    np.testing.assert_allclose(variable, -0.5 * halved[0], rtol=1e-6)
