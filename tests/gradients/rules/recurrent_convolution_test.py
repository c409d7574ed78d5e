"""ConvLSTM on a batch, against the explicit loop over records."""

import keras
import numpy as np
import pytest

import tfdp
from tests.gradients.problems import (
    assert_agrees_with_xla,
    assert_broken_record_contributes_nothing,
    assert_engines_agree,
    assert_layer_is_exact,
    assert_sums_agree,
    by_engine,
    floatx,
    model_of,
    normal,
    norms_and_sums_of,
    problem,
)
from tests.gradients.rules.recurrent_test import mask_by_hand, rules_of
from tfdp.gradients.keras_internals import CONV_LSTM_CELL
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.rules import recurrent_loop

L = keras.layers
SHAPE = (3, 5, 2)
FILM = (3, 4, 3, 2)

LAYERS = {
    "one": (lambda: L.ConvLSTM1D(2, 3, padding="same", return_sequences=True), SHAPE),
    "backwards": (lambda: L.ConvLSTM1D(2, 2, go_backwards=True, return_sequences=True), SHAPE),
    "bidirectional": (lambda: L.Bidirectional(L.ConvLSTM1D(2, 2)), SHAPE),
    "dilated": (lambda: L.ConvLSTM1D(2, 2, dilation_rate=2, return_sequences=True), SHAPE),
    "no_bias": (lambda: L.ConvLSTM1D(2, 3, use_bias=False), SHAPE),
    "strided": (lambda: L.ConvLSTM1D(2, 2, strides=2, return_sequences=True), SHAPE),
    "three": (lambda: L.ConvLSTM3D(2, 2, padding="same"), (2, 3, 2, 3, 2)),
    "two": (lambda: L.ConvLSTM2D(2, (2, 3), return_sequences=True), FILM),
    # Of this, TensorFlow would leave results unwritten (`onednn`).
    "two_of_one_wide": (lambda: L.ConvLSTM2D(2, (2, 3), strides=(1, 2)), (3, 5, 3, 1)),
    "two_activations": (
        lambda: L.ConvLSTM2D(2, 2, activation="relu", recurrent_activation="hard_sigmoid"),
        FILM,
    ),
    "two_over_channels": (lambda: L.ConvLSTM2D(2, 2, activation="softmax"), FILM),
    "two_unrolled": (lambda: L.ConvLSTM2D(2, 2, unroll=True, return_sequences=True), FILM),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    make, shape = LAYERS[name]
    assert rules_of(model_of(make, shape)) == {"RecurrentRule"}
    assert_layer_is_exact(make, shape)


DROPOUT = {
    "of_both": lambda: L.ConvLSTM1D(
        2, 2, dropout=0.5, recurrent_dropout=0.5, return_sequences=True
    ),
    "of_inputs": lambda: L.ConvLSTM1D(2, 2, strides=2, dropout=0.5, return_sequences=True),
    "of_states": lambda: L.ConvLSTM1D(2, 2, recurrent_dropout=0.5, go_backwards=True),
}


@pytest.fixture
def masks(monkeypatch):
    monkeypatch.setattr(CONV_LSTM_CELL, "_create_dropout_mask", mask_by_hand)


@pytest.mark.parametrize("name", sorted(DROPOUT))
def test_dropout(name, masks):
    model, x = model_of(DROPOUT[name], SHAPE), normal(*SHAPE)
    assert rules_of(model) == {"RecurrentRule"}
    assert_engines_agree(*problem(model, x))
    assert not np.allclose(model(x, training=True), model(x))  # Something was dropped.


def test_norms_with_dropout_in_double_precision(masks):
    with floatx("float64"):
        problem_of = problem(model_of(DROPOUT["of_both"], SHAPE), normal(*SHAPE))
        actual, expected, sums, loop = norms_and_sums_of(*problem_of)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)
        assert_sums_agree(sums, loop, 1e-10)


@pytest.mark.parametrize("zero_output", [False, True])
def test_masked_steps_and_states_that_are_passed_on(zero_output):
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    _, *states = L.ConvLSTM1D(2, 3, padding="same", return_state=True)(x)
    layer = L.ConvLSTM1D(
        2, 3, padding="same", return_sequences=True, zero_output_for_mask=zero_output
    )
    mask = keras.ops.abs(x[:, :, 0, 0]) > 0.4
    y = layer(x, initial_state=states, mask=mask)
    model = keras.Model(x, L.Dense(2)(keras.ops.reshape(y, (-1, 30))))
    shown = np.abs(normal(*SHAPE)[:, :, 0, 0]) > 0.4
    assert not shown[:, 0].all() and shown.any()
    assert_engines_agree(*problem(model, normal(*SHAPE)))


def test_layer_that_is_used_twice():
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    shared = L.ConvLSTM1D(2, 3, padding="same", return_sequences=True)
    y = L.Flatten()(shared(shared(x)))
    assert_engines_agree(*problem(keras.Model(x, L.Dense(2)(y)), normal(*SHAPE)))


def test_frozen_parts_and_microbatches():
    model = model_of(LAYERS["one"][0], SHAPE)
    model.layers[2].cell.kernel.trainable = False
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(*problem(model, normal(*SHAPE)))
    assert_engines_agree(*problem(model, normal(*SHAPE)), **grouping)


def test_more_steps_than_are_stacked_one_by_one(monkeypatch):
    monkeypatch.setattr(recurrent_loop, "_FEW_STEPS", 2)
    assert_layer_is_exact(*LAYERS["one"])


def test_length_that_is_not_known():
    keras.utils.set_random_seed(1)
    layers = [L.ConvLSTM1D(2, 2, return_sequences=True), L.ConvLSTM1D(2, 2), L.Flatten()]
    model = keras.Sequential([keras.Input((None, 5, 2)), *layers, L.Dense(2)])
    assert_engines_agree(*problem(model, normal(*SHAPE)))


def test_mixed_precision():
    with floatx("float32"):
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = model_of(LAYERS["one"][0], SHAPE)
        assert_engines_agree(*problem(model, normal(*SHAPE)), tolerance=0.02)


def test_with_xla():
    assert_agrees_with_xla(*problem(model_of(LAYERS["two"][0], FILM), normal(*FILM)))


def test_record_that_is_not_finite_contributes_nothing():
    assert_broken_record_contributes_nothing(*LAYERS["one"], (2, 0))


def test_masks_of_another_rank_are_refused():
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    y = L.ConvLSTM1D(2, 2)(x, mask=keras.ops.ones_like(x[..., :1, 0], dtype="bool"))
    loss, variables, examples = problem(keras.Model(x, L.Dense(2)(L.Flatten()(y))), normal(*SHAPE))
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    with pytest.raises(UnsupportedModelError, match=r"a mask \[records, steps\]"):
        by_engine(loss, variables, examples, query, "bookkeeping")
