"""Layers within blocks, as users write them, against the explicit loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    WithoutMask,
    assert_engines_agree,
    assert_layer_is_exact,
    by_engine,
    head,
    lora,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import ModelLoss, explain
from tfdp.gradients.blocks import Blocks

L, K = keras.layers, keras.ops
SHAPE = (BATCH, 4)


class Encoder(L.Layer):
    """Attention and two dense layers, with dropout, masks and a training flag."""

    def __init__(self, dropout=0.0, first=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = L.MultiHeadAttention(2, 2, dropout=dropout)
        self.norms = [L.LayerNormalization() for _ in range(2)]
        self.drop = L.Dropout(dropout)
        self.dense = [first or L.Dense(6, "gelu"), L.Dense(4)]

    def call(self, inputs, padding_mask=None, scale=1.0, training=None):
        if padding_mask is not None:
            padding_mask = K.cast(K.expand_dims(padding_mask, 1), "int32")
        h = self.attention(inputs, inputs, attention_mask=padding_mask, training=training)
        x = self.norms[0](inputs + scale * self.drop(h, training=training))
        h = self.dense[1](self.dense[0](x))
        return self.norms[1](x + self.drop(h, training=training))


class Shared(L.Layer):
    """One dense layer, called on three things, and by two names."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = self.same = L.Dense(4, activation="tanh")

    def call(self, inputs):
        return self.same(self.dense(inputs) + inputs) * self.dense(K.flip(inputs, 1))


class InTraining(L.Layer):
    """Does something else in training."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(4)

    def call(self, inputs, training=False):
        return self.dense(inputs) * (2.0 if training else 1.0) - inputs


class ManyToMany(L.Layer):
    """Takes a dictionary and a keyword, and returns a structure."""

    def __init__(self):
        super().__init__(name="block")
        self.dense, self.pool = L.Dense(4), L.GlobalAveragePooling1D()

    def call(self, inputs, *, shift):
        h = self.dense(inputs["a"]) * self.dense(inputs["b"])
        return {"h": h + shift, "pooled": (self.pool(h), self.pool(inputs["b"]))}


def many_to_many():
    x = keras.Input(SHAPE)
    y = L.Dense(4, name="first")(x)
    found = ManyToMany()({"a": y, "b": K.tanh(x)}, shift=K.square(y))
    parts = [L.Flatten()(found["h"]), *found["pooled"]]
    return keras.Model(x, head(L.Concatenate()(parts)))


def blocks_in_blocks():
    inner = Encoder(name="inner")

    class Twice(L.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner, self.dense = inner, L.Dense(4)

        def call(self, inputs):
            return self.inner(self.inner(inputs) + self.dense(inputs))

    return Twice()


def called_twice():
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    block = Encoder(name="block")
    return keras.Model(x, head(block(L.Dense(4)(block(x)))))


@pytest.fixture
def decisions(monkeypatch):
    """Whether every block that was tried out ran on the batch."""
    found, tried = [], Blocks.tried

    def noted(*args):
        trial = tried(*args)
        found.append(trial is not None)
        return trial

    monkeypatch.setattr(Blocks, "tried", noted)
    return found


class Difference(L.Layer):
    """Takes the same tensor twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(4), L.Dense(4)

    def call(self, query, value):
        return self.first(query) - self.second(value) * query


class SameTwice(L.Layer):
    def __init__(self):
        super().__init__(name="block")
        self.difference, self.attention = Difference(), L.MultiHeadAttention(2, 2)

    def call(self, inputs):
        h = K.tanh(inputs)
        return self.difference(value=h, query=h) + self.attention(h, h)


class Mixer(L.Layer):
    """Mixes positions by Fourier transforms, and looks for the largest (FNet)."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(4)

    def call(self, inputs):
        h = self.dense(inputs)
        mixed = K.fft2((h, K.zeros_like(h)))[0] + K.sort(h, axis=-1)
        first = K.take(h, [0, -1, 1], axis=-1)
        largest = K.one_hot(K.argmax(h, axis=-1), 4)
        heads = h[:, :, None]
        attended = K.dot_product_attention(heads, heads, heads)[:, :, 0]
        return K.concatenate([mixed, first, h * largest, attended, K.mod(h, 0.7)], axis=-1)


class Pools(L.Layer):
    """Pools what a layer in it makes, by Keras' operations."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(3)

    def call(self, inputs):
        h = self.dense(inputs)
        return K.max_pool(h, 2, 1, "same") - K.average_pool(h, 2, 1, "same")


EXACT = {
    "blocks_in_blocks": blocks_in_blocks,
    "dropout_of_nothing": lambda: Encoder(dropout=0.0, name="block"),
    "keyword": lambda: Keyword(Encoder(name="inner")),
    "mixer": Mixer,
    "pools": Pools,
    "same_twice": SameTwice,
    "shared": Shared,
    "training": InTraining,
}


class Keyword(L.Layer):
    """Hands a keyword on."""

    def __init__(self, inner):
        super().__init__(name="block")
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs, scale=0.3, padding_mask=inputs[..., 0] > -0.5)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_block_is_exact(name, decisions):
    assert_layer_is_exact(EXACT[name], SHAPE)
    assert decisions and all(decisions)


@pytest.mark.parametrize("make", [called_twice, many_to_many])
def test_model_with_a_block_agrees(make, decisions):
    assert_engines_agree(*problem(make(), normal(*SHAPE)))
    assert decisions and all(decisions)


def test_training_flag_reaches_the_block():
    model = model_of(InTraining, SHAPE)
    x = normal(*SHAPE)
    assert np.any(model(x, training=True).numpy() != model(x, training=False).numpy())
    # The loop calls the model in training, so agreement above is about that.
    assert "block: block, on the batch" in explain(model)


def test_low_rank_adaptation_in_a_block(decisions):
    keras.utils.set_random_seed(1)
    first = lora(L.Dense(6, "gelu"))
    vars(first).pop("prepare")((None, *SHAPE))
    x = keras.Input(SHAPE)
    model = keras.Model(x, head(Encoder(first=first, name="block")(L.Dense(4)(x))))
    assert len([v for v in model.trainable_variables if "lora" in v.path]) == 2
    assert_engines_agree(*problem(model, normal(*SHAPE)))
    assert all(decisions)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_in_a_block(policy, decisions):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = model_of(lambda: Encoder(name="block"), SHAPE)
        loss, variables, examples = problem(model, normal(*SHAPE).astype("float32"))
        assert_engines_agree(loss, variables, examples, tolerance=0.03)
    finally:
        keras.config.set_dtype_policy(before)
    assert decisions and all(decisions)


def test_mask_that_keras_attaches_reaches_what_follows(decisions):
    keras.utils.set_random_seed(1)
    ids = keras.Input((5,), dtype="int32")
    x = Encoder(name="block")(L.Embedding(7, 4, mask_zero=True)(ids))
    model = keras.Model(ids, L.Dense(2)(L.GlobalAveragePooling1D()(x)))
    tokens = np.where(np.arange(5) < [[2], [5], [3], [4]], TOKENS, 0)
    assert_engines_agree(*problem(model, tokens))
    assert all(decisions)
    # Power: padding would count without it.
    masked, padded = model(tokens).numpy(), model(np.where(tokens == 0, 1, tokens)).numpy()
    assert np.max(np.abs(masked - padded)) > 1e-3


class Drops(L.Layer):
    def __init__(self):
        super().__init__(name="block")
        self.dense, self.drop = L.Dense(4), L.Dropout(0.5)

    def call(self, inputs, training=None):
        return self.drop(self.dense(inputs), training=training)


def test_dropout_in_a_block_draws_for_every_number_of_every_record(decisions):
    """Where the loss is linear in what is dropped, gradients have a known mean and variance."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Drops()(inputs))
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs * y))
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(400, 4)).astype("float32") for _ in range(2))
    query = tfdp.GaussianSumQuery(1e6, 1.0)
    kernel, bias = by_engine(
        loss, model.trainable_variables, (tf.constant(x), tf.constant(y)), query, "bookkeeping"
    )
    assert decisions == [True]
    # A mask is 0 or 2 with equal chances: mean 1, variance 1.
    deviations = np.concatenate(
        [
            ((kernel - x.T @ y) / np.sqrt(np.square(x).T @ np.square(y))).ravel(),
            (bias - y.sum(0)) / np.sqrt(np.square(y).sum(0)),
        ]
    )
    assert np.max(np.abs(deviations)) < 5  # One mask for all would give 20.
    assert np.std(deviations) > 0.4


def test_every_record_has_a_mask_of_its_own():
    x = keras.Input(SHAPE)
    model = keras.Model(x, Encoder(dropout=0.5, name="block")(x))
    same = tf.constant(np.repeat(normal(*SHAPE)[:1], BATCH, axis=0))
    loss = ModelLoss(
        model, lambda y, outputs: tf.reduce_sum(tf.square(outputs) * tf.range(4.0) * y)
    )
    total = tfdp.clipped_gradient_sum(
        loss,
        model.trainable_variables,
        (same, tf.ones([BATCH, 1])),
        tfdp.GaussianSumQuery(1e6, 1.0),
        engine="bookkeeping",
    )
    # Equal records lose different things, so their losses differ.
    assert len(np.unique(total.losses.numpy())) == BATCH


class WithoutCache(L.Layer):
    """A block that returns None for what it does not keep, as KerasHub's attention layers do."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(4, activation="tanh")

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, inputs):
        return self.dense(inputs) * self.scale, None


class UsesCache(L.Layer):
    def __init__(self):
        super().__init__()
        self.inner = WithoutCache()

    def call(self, inputs):
        outputs, cache = self.inner(inputs)
        return outputs if cache is None else cache


def test_block_that_returns_none_runs_on_the_batch(decisions):
    loss, variables, examples = problem(model_of(UsesCache, SHAPE), normal(*SHAPE))
    assert "record by record" not in explain(loss.model)
    assert_engines_agree(loss, variables, examples)
    assert decisions
    assert all(decisions)


@pytest.mark.parametrize("make", [L.AdditiveAttention, lambda: L.Attention(use_scale=True)])
def test_mask_that_keras_both_attaches_and_hands_over(make):
    # Layers without a rule for their scale: blocks, which are handed the mask of their inputs.
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(7, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, head(WithoutMask()(make()([x, x]))))
    loss, variables, examples = problem(model, TOKENS % 4)
    assert "on the batch, with weights of its own" in explain(model)
    assert_engines_agree(loss, variables, examples)


class Places(L.Layer):
    """A table and positions, with a method of its own that computes the mask."""

    def __init__(self):
        super().__init__()
        self.table = L.Embedding(7, 4, mask_zero=True)

    def compute_mask(self, inputs, previous=None):
        return self.table.compute_mask(inputs)

    def call(self, inputs):
        return self.table(inputs) + K.reshape(K.arange(20.0) / 20, (1, 5, 4))


class OnMasked(L.Layer):
    """Attention takes the mask of what it is called on away, in Keras, too."""

    def __init__(self, code, has_weight):
        super().__init__(name="block")
        self.code, self.has_weight = code, has_weight
        self.attention, self.add = L.MultiHeadAttention(2, 2), L.Add()
        self.pool, self.loop, self.dense = L.GlobalAveragePooling1D(), L.LSTM(4), L.Dense(4)
        self.places = Places()

    def build(self, *shapes):
        if self.has_weight:
            self.scale = self.add_weight(shape=(4,), name="scale")

    def call(self, inputs):
        outputs = self.code(self, self.places(inputs))
        return outputs * self.scale if self.has_weight else outputs


ON_MASKED = {
    "added": lambda b, x: b.pool(b.add([x, b.attention(x, x)])),
    "before": lambda b, x: b.loop(x) + b.pool(b.attention(x, x)),
    "after": lambda b, x: b.pool(b.attention(x, x)) + b.loop(x),
    "of_others": lambda b, x: b.pool(b.attention(b.dense(x), x)) + b.pool(x),
}


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("name", sorted(ON_MASKED))
def test_masks_in_a_block_are_those_of_keras(name, has_weight, decisions):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int32")
    model = keras.Model(inputs, L.Dense(2)(OnMasked(ON_MASKED[name], has_weight)(inputs)))
    tokens = TOKENS.copy()
    tokens[:, 3:] = tokens[0, 1:] = 0
    assert_engines_agree(*problem(model, tokens))
    assert decisions and all(decisions)


def test_masks_of_rows_of_records_run_record_by_record():
    class OfRows(L.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.places = Places()

        def call(self, inputs):
            return K.reshape(self.places(K.reshape(inputs, (-1, 5))), (-1, 2, 20))

    keras.utils.set_random_seed(1)
    inputs = keras.Input((2, 5), dtype="int32")
    model = keras.Model(inputs, head(OfRows()(inputs)))
    assert "block: record by record" in explain(model)
    tokens = np.stack([TOKENS, TOKENS[:, ::-1]], 1)
    assert_engines_agree(*problem(model, tokens))
