"""Layers that private training refuses, by name and with what to do."""

import keras
import numpy as np
import pytest
import toy
from toy import L

from tfdp.keras import NotPrivateError, declare_weights, make_private
from tfdp.sampling import FullBatch

X, Y = toy.data()


def with_layer(layer):
    return keras.Sequential([keras.Input((4,)), L.Dense(4), layer, L.Dense(2)])


class Nest(keras.layers.Layer):
    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [inner]

    def call(self, x):
        return self.blocks[0](x)


@pytest.mark.parametrize("nested", [False, True])
def test_batch_normalization_is_refused_by_name_with_the_fix(nested):
    layer = L.BatchNormalization(name="culprit")
    model = make_private(with_layer(Nest(layer) if nested else layer))
    with pytest.raises(NotPrivateError, match="culprit.*GroupNormalization.*trainable = False"):
        model.compile(toy.dp(), loss=toy.LOGITS_LOSS)


def test_frozen_batch_normalization_is_accepted():
    layer = L.BatchNormalization(trainable=False)
    model = toy.private(with_layer(layer), run_eagerly=True)
    before = [w.numpy() for w in layer.weights]
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    for b, a in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(b, a)


def test_batch_normalization_made_in_build_is_refused():
    class Late(keras.layers.Layer):
        def build(self, shape):
            self.inner = L.BatchNormalization(name="culprit")
            self.inner.build(shape)

        def call(self, x):
            return self.inner(x)

    model = make_private(keras.Sequential([L.Dense(4), Late(), L.Dense(2)]))
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    with pytest.raises(NotPrivateError, match="culprit"):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.total_count == 0


def test_spectral_normalization_is_refused():
    model = make_private(with_layer(L.SpectralNormalization(L.Dense(4), name="culprit")))
    with pytest.raises(NotPrivateError, match="culprit"):
        model.compile(toy.dp(), loss=toy.LOGITS_LOSS)


def test_stateful_rnn_is_refused():
    layers = [keras.Input(batch_shape=(4, 3, 2)), L.SimpleRNN(2, stateful=True, name="culprit")]
    model = make_private(keras.Sequential(layers))
    with pytest.raises(NotPrivateError, match="culprit.*stateful=False"):
        model.compile(toy.dp(), loss="mse")


def _texts(layer):
    """Returns a model with a layer that takes texts."""
    inputs = keras.Input((1,), dtype="string")
    numbers = keras.ops.reshape(keras.ops.cast(layer(inputs), "float32"), (-1, 1))
    return keras.Model(inputs, L.Dense(1)(numbers))


def _numbers(layer, dtype="float32"):
    inputs = keras.Input((4,), dtype=dtype)
    return keras.Model(inputs, L.Dense(1)(keras.ops.cast(layer(inputs), "float32")))


WORDS = np.array([["a"], ["b"], ["a"]])
# A layer that learns from data by itself, one that is given the same, a model, and data.
ADAPTED = {
    "normalization": (L.Normalization, {"mean": [1.0] * 4, "variance": [2.0] * 4}, _numbers, X),
    "discretization": (
        lambda **kwargs: L.Discretization(**(kwargs or {"num_bins": 3})),
        {"bin_boundaries": [0.1, 0.2]},
        _numbers,
        X,
    ),
    "integer_lookup": (
        L.IntegerLookup,
        {"vocabulary": [1, 2]},
        lambda layer: _numbers(layer, "int32"),
        np.arange(4),
    ),
    "string_lookup": (L.StringLookup, {"vocabulary": ["a", "b"]}, _texts, WORDS),
    "text_vectorization": (
        lambda **kwargs: L.TextVectorization(split=None, **kwargs),
        {"vocabulary": ["a", "b"]},
        _texts,
        WORDS,
    ),
}


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", ADAPTED)
def test_statistics_that_a_layer_was_adapted_to_are_refused(kind, is_nested):
    make, given, model_of, data = ADAPTED[kind]

    def private(layer):
        model = model_of(layer)
        if is_nested:
            model = keras.Model(model.inputs, model(model.inputs))
        return toy.private(model, loss="mse")

    layer = make()
    layer.adapt(data)
    with pytest.raises(NotPrivateError, match=f"{layer.name}' holds raw statistics.*trainable"):
        private(layer)
    layer.trainable = False  # The data were public.
    private(layer)
    private(make(**given))


def test_statistics_that_nobody_has_learned_are_accepted():
    """Models of keras.applications without weights have such a layer."""
    toy.private(_numbers(L.Normalization()))
    for layer in (L.StringLookup(), L.TextVectorization(split=None)):
        toy.private(_texts(layer))


@pytest.mark.parametrize(
    "options", [{}, {"split": "character"}, {"split": None, "ngrams": 2}], ids=str
)
def test_vectorization_that_splits_texts_is_refused_with_where_to_do_it(options):
    layer = L.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3, **options)
    for trainable in (True, False):
        layer.trainable = trainable
        with pytest.raises(NotPrivateError, match=rf"{layer.name}' splits .*x = layer\(texts\)"):
            toy.private(_texts(layer))


def test_vocabulary_that_was_set_is_refused_with_where_to_give_it():
    layer = L.StringLookup()
    layer.set_vocabulary(["a", "b"])
    with pytest.raises(NotPrivateError, match="constructor.*not by set_vocabulary"):
        toy.private(_texts(layer))


def test_layers_that_are_adapted_after_the_model_was_made_are_refused():
    layer = L.Normalization()
    model = toy.private(_numbers(layer), loss="mse")
    layer.adapt(X)
    with pytest.raises(NotPrivateError, match="holds raw statistics"):
        model.fit(X, Y, batch_size=4, verbose=0)


class _Fails(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise RuntimeError("before the first step")


def _began(model):
    with pytest.raises(RuntimeError, match="before the first step"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[_Fails()])


def _was_fitted(model):
    model.fit(X, Y, batch_size=4, verbose=0)


def _by_fit(model):
    model.fit(X, Y, batch_size=4, verbose=0)


def _by_batch(model):
    model.train_on_batch(X, Y)


@pytest.mark.parametrize("train", [_by_fit, _by_batch])
@pytest.mark.parametrize("before", [_began, _was_fitted])
def test_layers_that_are_adapted_between_two_calls_are_refused(before, train):
    layer = L.Normalization()
    model = toy.private(_numbers(layer), loss="mse")
    before(model)
    steps = model.ledger.total_count
    layer.adapt(X)
    declare_weights(model, "fresh_start")
    with pytest.raises(NotPrivateError, match="holds raw statistics"):
        train(model)
    assert model.ledger.total_count == steps


def test_layers_that_are_unfrozen_or_added_between_two_fits_are_refused():
    frozen = L.BatchNormalization(trainable=False, name="frozen")
    model = toy.private(with_layer(frozen))
    _was_fitted(model)
    frozen.trainable = True
    with pytest.raises(NotPrivateError, match="'frozen'.*GroupNormalization"):
        _by_fit(model)
    model = toy.private(toy.linear())
    _was_fitted(model)
    model.add(L.BatchNormalization(name="added"))
    with pytest.raises(NotPrivateError, match="'added'.*GroupNormalization"):
        _by_fit(model)
