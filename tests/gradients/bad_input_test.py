"""What a step cannot use is refused with a sentence of ours, before anything is charged."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

N = 6
X = tf.reshape(tf.range(24.0), [N, 4])
WEIGHT = tf.Variable(tf.ones([4, 2]))
QUERY = tfdp.GaussianAverageQuery(1.0, noise_multiplier=0.0, denominator=4)


def _loss(example):
    return tf.reduce_sum(example @ WEIGHT)


def _sum(loss_fn=_loss, variables=(WEIGHT,), examples=X, **arguments):
    return tfdp.clipped_gradient_sum(loss_fn, list(variables), examples, QUERY, **arguments)


def _optimizer(method):
    def call(loss_fn=_loss, variables=(WEIGHT,), examples=X, **arguments):
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), QUERY)
        variables = list(variables) if isinstance(variables, tuple) else variables
        return getattr(optimizer, method)(loss_fn, variables, examples, **arguments)

    return call


ENTRIES = [_sum, _optimizer("private_gradients"), _optimizer("private_step")]
IDS = ["clipped_gradient_sum", "private_gradients", "private_step"]
RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0]])

BAD = {
    "objects": ({"examples": np.array([[None]] * N, object)}, TypeError, "object.*one dtype"),
    "dates": ({"examples": np.zeros(N, "datetime64[s]")}, TypeError, "datetime64.*origin"),
    "fields": ({"examples": np.zeros(N, [("a", float)])}, TypeError, "tensors or arrays"),
    "ragged list": ({"examples": ([[1.0], [2.0, 3.0]],)}, (TypeError, ValueError), "examples"),
    "ragged": ({"examples": RAGGED}, TypeError, "must be dense.*RaggedTensor.*pad"),
    "sparse": ({"examples": tf.sparse.from_dense(X)}, TypeError, "must be dense.*to_dense"),
    "nothing": ({"examples": None}, ValueError, "holds no tensor"),
    "scalar": ({"examples": 3.0}, ValueError, "leading axis.*float32"),
    "text": ({"examples": "abc"}, ValueError, "leading axis.*string"),
    "no loss": ({"loss_fn": None}, TypeError, "loss_fn must be a function.*None"),
    "number as loss": ({"loss_fn": 3}, TypeError, "loss_fn must be a function.*3"),
    "loss is None": ({"loss_fn": lambda e: None}, ValueError, "loss_fn must return.*None"),
    "loss is a string": ({"loss_fn": lambda e: "a"}, ValueError, "floating-point.*string"),
    "loss is an integer": ({"loss_fn": lambda e: 3}, ValueError, "floating-point.*int32"),
    "loss is complex": (
        {"loss_fn": lambda e: tf.cast(_loss(e), tf.complex64)},
        ValueError,
        "floating-point.*complex64",
    ),
    "no pair": ({"has_aux": True}, ValueError, r"pair, \(loss, aux\)"),
    "array as variable": ({"variables": (np.zeros([4, 2]),)}, TypeError, "variables must be"),
    "name as variable": ({"variables": ("kernel",)}, TypeError, "variables must be"),
    "mask of floats": ({"mask": np.full(N, np.nan)}, TypeError, "mask must hold booleans.*float64"),
    "mask of strings": ({"mask": ["a"] * N}, TypeError, "mask must hold booleans.*string"),
    "mask of two axes": ({"mask": np.ones([N, 3], bool)}, TypeError, r"shape \[n\].*\(6, 3\)"),
    "mask of none": ({"mask": True}, TypeError, r"shape \[n\].*\(\)"),
    "short mask": ({"mask": [True]}, ValueError, "same length"),
    "loss scale 0": ({"loss_scale": 0.0}, ValueError, "loss_scale must be finite"),
    "loss scale NaN": ({"loss_scale": np.nan}, ValueError, "loss_scale must be finite"),
    "loss scale a": ({"loss_scale": "a"}, TypeError, "loss_scale must be a real number"),
}


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
@pytest.mark.parametrize("name", BAD)
def test_bad_argument_is_named(entry, name):
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=f"(?s){message}"):
        entry(**arguments)


@pytest.mark.parametrize("entry", ENTRIES[1:], ids=IDS[1:])
@pytest.mark.parametrize("variables", [None, WEIGHT, "kernel"])
def test_optimizer_takes_a_list_of_variables(entry, variables):
    with pytest.raises(TypeError, match="variables must be a list"):
        entry(variables=variables)


@pytest.mark.parametrize("entry", ENTRIES[1:], ids=IDS[1:])
def test_optimizer_takes_at_least_one_variable(entry):
    with pytest.raises(ValueError, match="no layer is trainable"):
        entry(variables=[])


@pytest.mark.parametrize(
    ("ids", "message"),
    [(np.zeros(N), "integers.*float64"), (np.zeros([N, 2], int), r"\(6, 2\)"), (["a"] * N, "str")],
)
def test_microbatches_are_numbers(ids, message):
    with pytest.raises(TypeError, match=f"microbatch_ids must hold {message}|{message}"):
        _sum(num_microbatches=3, microbatch_ids=ids)


def test_rank_that_nobody_knows_is_refused():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def total(examples):
        return _sum(examples=examples).losses

    with pytest.raises(ValueError, match="unknown rank.*ensure_shape"):
        total(X)


def test_nothing_is_charged_for_what_cannot_run():
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), QUERY)
    for arguments in ({"mask": ["a"] * N}, {"loss_scale": 0.0}):
        with pytest.raises((TypeError, ValueError)):
            optimizer.private_step(_loss, [WEIGHT], X, **arguments)
    with pytest.raises(TypeError):
        optimizer.private_step(_loss, [WEIGHT], RAGGED)
    assert optimizer.ledger.total_count == 0


def test_values_decide_nothing():
    # A record that is not finite contributes zero, whatever the dtype can hold.
    bad = tf.concat([X[:3], [[np.nan, 1.0, 1.0, 1.0], [np.inf] * 4, [-np.inf] * 4]], 0)
    got, expected = _sum(examples=bad).sample_state, _sum(examples=X[:3]).sample_state
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
