"""Layers that return, or are called on, what is the same for all records: one row of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_engines_agree,
    head,
    normal,
    problem,
    squared_error,
    targets,
)

L, K = keras.layers, keras.ops
HEADS, LENGTH, WIDTH = 2, 4, 4


class Positions(L.Layer):
    """A number for each head and difference of two positions, which no record changes."""

    def build(self, *_):
        shape = (2 * LENGTH - 1, HEADS)
        self.table = self.add_weight(shape=shape, initializer="uniform", name="table")

    def call(self, inputs=None):
        places = K.arange(LENGTH)
        apart = places[:, None] - places + LENGTH - 1
        return K.transpose(K.take(self.table, apart, axis=0), (2, 0, 1))[None]


class Causal(L.Layer):
    def call(self, inputs):
        places = K.arange(LENGTH)
        return K.cast(places[:, None] >= places, "bool")[None, None]


class AverageOfTheBatch(L.Layer):
    """A row that is no constant: of a batch of one it is the record's."""

    def call(self, inputs):
        found = K.einsum("btd,bsd->bts", inputs, inputs)
        return K.mean(found, axis=0, keepdims=True)[:, None]


class Attention(L.Layer):
    def __init__(self, code=None):
        super().__init__()
        self.code = code or (lambda scores, bias: scores + bias)
        to_heads = "btd,dhk->bhtk"
        self.query, self.key, self.value = (
            L.EinsumDense(to_heads, (HEADS, LENGTH, 3)) for _ in range(3)
        )
        self.out = L.EinsumDense("bhtk,hkd->btd", (LENGTH, WIDTH))

    def call(self, inputs, bias):
        scores = K.einsum("bhtk,bhsk->bhts", self.query(inputs), self.key(inputs))
        if bias.dtype == "bool":
            scores = K.where(bias, scores, -1e9)
        else:
            scores = self.code(scores, bias)
        return self.out(K.matmul(K.softmax(scores), self.value(inputs)))


class Encoder(L.Layer):
    """A block of layers that share what is the same for all records."""

    def __init__(self, bias, code=None, on_nothing=False):
        super().__init__()
        self.bias, self.on_nothing = bias, on_nothing
        self.layers = [Attention(code), Attention(code)]

    def call(self, inputs):
        bias = self.bias() if self.on_nothing else self.bias(inputs)
        for layer in self.layers:
            inputs = inputs + layer(inputs, bias)
        return inputs


def functional(x):
    return Attention()(x, Positions()(x))


# name -> (from inputs to outputs, whether a layer runs record by record)
ENCODERS = {
    "average_of_the_batch": (lambda x: Encoder(AverageOfTheBatch())(x), True),
    "first_row": (lambda x: Encoder(Positions(), lambda s, bias: s + bias[0])(x), True),
    "functional": (functional, False),
    "mask": (lambda x: Encoder(Causal())(x), False),
    "on_nothing": (lambda x: Encoder(Positions(), on_nothing=True)(x), False),
    "positions": (lambda x: Encoder(Positions())(x), False),
    "squared": (lambda x: Encoder(Positions(), lambda s, bias: s * bias + bias**2)(x), False),
}


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_one_row_for_all_records(name):
    make, is_by_record = ENCODERS[name]
    keras.utils.set_random_seed(1)
    inputs = keras.Input((LENGTH, WIDTH))
    model = keras.Model(inputs, head(make(L.Dense(WIDTH)(inputs))))
    rng = np.random.default_rng(3)
    for v in model.trainable_variables:
        v.assign(rng.normal(size=v.shape))
    assert_engines_agree(*problem(model, normal(LENGTH, WIDTH)))
    assert ("record by record" in tfdp.gradients.explain(model)) is is_by_record


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.bias, self.attention, self.dense = Positions(), Attention(), L.Dense(3)

    def call(self, inputs):
        bias = self.bias(inputs)
        return self.dense(K.mean(self.attention(inputs, bias), axis=1))


def test_subclassed_model():
    keras.utils.set_random_seed(1)
    model, x = Subclassed(), normal(LENGTH, WIDTH)
    y = targets(model(x).shape[-1])
    loss = tfdp.gradients.ModelLoss(model, squared_error)
    assert_engines_agree(loss, model.trainable_variables, (tf.constant(x), tf.constant(y)))
    assert "record by record" not in tfdp.gradients.explain(model, x)
