"""Attention, to its own input and with a mask, against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import (
    TOKENS,
    Pair,
    assert_layer_is_exact,
    assert_tokens_agree,
    how_it_runs,
    model_of,
)
from tfdp.gradients.rules.rule import rule_for

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "attention": (lambda: Pair(L.MultiHeadAttention(2, 3)), (5, 4)),
    "grouped_attention": (lambda: Pair(L.GroupQueryAttention(3, 4, 2)), (5, 4)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    # Its four projections.
    assert how_it_runs(model_of(*LAYERS[name])) == ["EinsumDenseRule"] * 4
    assert_layer_is_exact(*LAYERS[name])


def masked_attention():
    keras.utils.set_random_seed(1)
    x = keras.Input((5,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=True)(x)
    h = L.MultiHeadAttention(2, 3)(h, h)
    return keras.Model(x, L.Dense(2)(L.GlobalAveragePooling1D()(h)))


def test_masked_attention():
    tokens = TOKENS.copy()
    tokens[:, 4] = 0
    assert how_it_runs(masked_attention()) == ["EinsumDenseRule"] * 4
    assert_tokens_agree(masked_attention(), tokens)


@pytest.mark.parametrize(
    "axes, holds",
    [(None, True), ((1,), True), ((1, 2), True), ((0,), False), ((0, 1), False), ((-2,), False)],
    ids=str,
)
def test_attention_along_an_axis_that_may_be_of_records_has_no_rule(axes, holds):
    assert (rule_for(L.MultiHeadAttention(2, 3, attention_axes=axes)) is not None) == holds
