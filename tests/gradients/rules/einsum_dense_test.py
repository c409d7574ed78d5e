"""EinsumDense against the explicit loop, for equations of every kind."""

import keras
import pytest

from tests.gradients.problems import (
    assert_agrees_for_any_length,
    assert_layer_agrees,
    assert_layer_is_exact,
    how_it_runs,
    lora,
    model_of,
    normal,
    problem,
)

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "einsum_heads": (lambda: L.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de"), (5, 4)),
    "einsum_from_heads": (lambda: L.EinsumDense("abcd,cde->abe", (5, 3), bias_axes="e"), (5, 2, 4)),
    "einsum_ellipsis": (lambda: L.EinsumDense("...x,xy->...y", 3, bias_axes="y"), (5, 4)),
    "einsum_shared_axis": (lambda: L.EinsumDense("abc,bcd->abd", (5, 3), bias_axes="b"), (5, 4)),
    "einsum_bias_of_position": (
        lambda: L.EinsumDense("abc,cd->abd", (5, 3), bias_axes="b"),
        (5, 4),
    ),
    "einsum_transposed": (lambda: L.EinsumDense("abc,dc->adb", (3, 5)), (5, 4)),
    # Keras adds a bias of one long axis along the last axis where that is as long, or along the
    # first one.
    "einsum_bias_along_the_last_axis": (
        lambda: L.EinsumDense("abc,cd->adb", (5, 5), bias_axes="d", activation="tanh"),
        (5, 4),
    ),
    "einsum_bias_along_the_first_axis": (
        lambda: L.EinsumDense("abcd,de->abce", (5, 5, 3), bias_axes="c", activation="tanh"),
        (5, 5, 4),
    ),
    "einsum_bias_of_two_axes": (
        lambda: L.EinsumDense("abcd,de->abce", (5, 5, 3), bias_axes="be"),
        (5, 5, 4),
    ),
    "einsum_sum_of_input": (lambda: L.EinsumDense("abc,cd->ad", (3,)), (5, 4)),
}


# Keras has the factors of a low-rank adaptation in single precision only.
ADAPTED = {
    "einsum_lora": (
        lambda: lora(L.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de")),
        (5, 4),
    ),
    # B is along an axis of the input.
    "einsum_lora_of_what_is_contracted": (
        lambda: lora(L.EinsumDense("abc,dc->abd", (5, 3))),
        (5, 4),
    ),
}


# What sums over an axis of the input alone has no rule.
WITHOUT_RULE = {
    "einsum_sum_of_input": "on the batch, with weights of its own: kernel",
    "einsum_lora_of_what_is_contracted": (
        "on the batch, with weights of its own: lora_kernel_a, lora_kernel_b"
    ),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert how_it_runs(model_of(*LAYERS[name])) == [WITHOUT_RULE.get(name, "EinsumDenseRule")]
    assert_layer_is_exact(*LAYERS[name])


@pytest.mark.parametrize("name", sorted(ADAPTED))
def test_low_rank_adaptation(name):
    assert how_it_runs(model_of(*ADAPTED[name])) == [WITHOUT_RULE.get(name, "EinsumDenseRule")]
    assert_layer_agrees(*ADAPTED[name])


def test_records_of_any_length():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 3, 4))
    outputs = L.EinsumDense("abcd,cde->abce", (None, 3, 2))(inputs)
    outputs = L.Dense(2)(L.GlobalAveragePooling2D()(outputs))
    assert_agrees_for_any_length(*problem(keras.Model(inputs, outputs), normal(5, 3, 4)))
