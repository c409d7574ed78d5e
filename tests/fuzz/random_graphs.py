"""Models of random layers, operations and masks, in which no mistake about axes goes unseen.

Every axis is as long as the batch, or 1. So what stands where records should stand broadcasts, or
fits, and nothing fails where a layer mixes records: it gives other gradients than the loop.
"""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    ModelLoss,
    by_engine,
    floatx,
    squared_error,
)
from tests.gradients.problems import targets as make_targets

L, K, N = keras.layers, keras.ops, BATCH

INPUTS = [(), (N,), (1,), (N, N), (N, N), (1, N), (N, 1), (N, N, N)]
AXES = [-1, 1, 2, -2, (1, 2), (-2, -1)]
ACTIVATIONS = ["gelu", "linear", "relu", "softmax", "tanh"]
EQUATIONS = ["...a,ab->...b", "ab,bc->ac", "abc,bcd->ad", "abc,bd->adc", "abc,cd->abd"]
# Of one tensor. Each takes a function that chooses.
LAYERS = [
    lambda d: L.Activation(d(ACTIVATIONS)),
    lambda d: L.AveragePooling1D(2, 1, padding="same"),
    lambda d: L.Bidirectional(L.SimpleRNN(2, return_sequences=True)),
    lambda d: L.Conv1D(N, d([1, 2]), padding=d(["causal", "same"])),
    lambda d: L.Conv2D(N, 2, padding="same"),
    lambda d: L.Cropping1D(1),
    lambda d: L.Dense(d([1, N]), activation=d(ACTIVATIONS)),
    lambda d: L.DepthwiseConv1D(2, padding="same"),
    lambda d: L.ELU(),
    lambda d: L.EinsumDense(d(EQUATIONS), d([(N,), (N, N), (None, N)])),
    lambda d: L.Flatten(),
    lambda d: L.GRU(N, return_sequences=d([True, False])),
    lambda d: L.GlobalAveragePooling1D(),
    lambda d: L.GlobalAveragePooling2D(),
    lambda d: L.GlobalMaxPooling1D(keepdims=d([True, False])),
    lambda d: L.GroupNormalization(d([-1, 1, 2]), axis=d([-1, 1])),
    lambda d: L.LSTM(N, return_sequences=d([True, False])),
    lambda d: L.LayerNormalization(axis=d(AXES), center=d([True, False]), scale=d([True, False])),
    lambda d: L.Masking(0.0),
    lambda d: L.MaxPooling1D(2, 1, padding="same"),
    lambda d: L.MaxPooling2D(2, 1, padding="same"),
    lambda d: L.PReLU(),
    lambda d: L.Permute(d([(2, 1), (1, 2), (3, 1, 2), (2, 1, 3)])),
    lambda d: L.RMSNormalization(),
    lambda d: L.ReLU(threshold=d([0.0, 1.0])),
    lambda d: L.RepeatVector(d([1, N])),
    lambda d: L.Rescaling(d([2.0, [1.0] * N]), offset=d([0.0, [1.0] * N])),
    lambda d: L.Reshape(d([(N, N), (N,), (-1, N), (N, 1), (1, N), (N, N, 1), (-1,)])),
    lambda d: L.Softmax(axis=d(AXES)),
    lambda d: L.TimeDistributed(L.Dense(N)),
    lambda d: L.UnitNormalization(axis=d(AXES)),
    lambda d: L.UpSampling1D(2),
    lambda d: L.ZeroPadding1D(1),
    lambda d: keras.Sequential([L.Dense(N), d([L.Softmax, L.LayerNormalization, L.ELU])()]),
]
OPERATIONS = [
    lambda d, x: L.Embedding(3, N, mask_zero=d([True, False]))(
        K.cast(K.minimum(K.abs(x), 2.0), "int32")
    ),
    lambda d, x: K.cumsum(x, axis=d([0, 1])),
    lambda d, x: K.expand_dims(x, d([0, 1, -1])),
    lambda d, x: K.mean(x, axis=-1),
    lambda d, x: K.reshape(x, (-1, N)),
    lambda d, x: K.softmax(x, axis=d([-1, 1, 0])),
    lambda d, x: K.squeeze(x, -1),
    lambda d, x: K.sum(x, axis=d([-1, 1, 0]), keepdims=d([True, False])),
    lambda d, x: K.tanh(x),
    lambda d, x: K.transpose(x),
    lambda d, x: x[:, 0],
]


def _sum_of(make):
    def checked(draw, x, y):
        # In a batch of one, Keras takes [1, t, 1] for a bias and adds it along the last axis.
        if any(z.shape[-1] == 1 and math.prod(z.shape[1:]) == N for z in (x, y)):
            raise ValueError
        return make(draw, x, y)

    return checked


# Of several tensors, the last of which may be a mask.
OF_TWO = [
    _sum_of(lambda d, x, y: K.add(x, y)),
    lambda d, x, y: K.divide(x, 2.0 + K.abs(y)),
    lambda d, x, y: K.matmul(x, y),
    lambda d, x, y: K.maximum(x, y),
    lambda d, x, y: K.multiply(x, y),
    _sum_of(lambda d, x, y: d([L.Add, L.Average])()([x, y])),
    _sum_of(lambda d, x, y: L.Add()([x, y, x])),
    lambda d, x, y: d([L.Maximum, L.Minimum, L.Multiply, L.Subtract])()([x, y]),
    lambda d, x, y: L.Concatenate(axis=d([-1, 1, 2]))([x, y]),
    lambda d, x, y: L.Dot(axes=d([1, -1, 2, (1, 2), (2, 1)]))([x, y]),
]
MASKED = [
    lambda d, x, y, m: L.AdditiveAttention(use_scale=False)([x, y], mask=[d([None, m]), m]),
    lambda d, x, y, m: L.Attention()([x, y], mask=[d([None, m]), m]),
    lambda d, x, y, m: L.GRU(N)(x, mask=m),
    lambda d, x, y, m: L.GlobalAveragePooling1D()(x, mask=m),
    lambda d, x, y, m: L.GroupQueryAttention(N, 2, 1)(x, y, attention_mask=m),
    lambda d, x, y, m: L.MultiHeadAttention(1, N, attention_axes=d([None, None, (1,), (2,)]))(
        x, y, attention_mask=d([None, m]), use_causal_mask=d([True, False])
    ),
    lambda d, x, y, m: L.MultiHeadAttention(1, N)(x, y, value_mask=m),
    lambda d, x, y, m: L.Softmax()(x, mask=m),
    lambda d, x, y, m: L.TimeDistributed(L.Dense(N))(x, mask=m),
]


class Outcome(NamedTuple):
    """What book-keeping did with a model.

    Attributes:
        difference: From the loop's sum, over its largest number; None where an engine failed.
        refused: Whether book-keeping failed, and the loop did not.
        parts: What the model is made of.
    """

    difference: float | None
    refused: bool
    parts: list[str]


def verdict(outcome: Outcome) -> str:
    """Returns "agree", "differ", "refused" or "both fail"."""
    if outcome.difference is None:
        return "refused" if outcome.refused else "both fail"
    return "agree" if outcome.difference < 1e-6 else "differ"


def compare(seed: int, make: Callable[..., Any]) -> Outcome:
    """Returns what came of the model with this number.

    Args:
        seed: Of everything.
        make: Returns a model and its parts from a `random.Random`.
    """
    draw = random.Random(seed)
    with floatx("float64"):
        keras.utils.set_random_seed(seed)
        model, parts = make(draw)
        rng = np.random.default_rng(seed)
        inputs = [rng.normal(size=(N, *x.shape[1:])) for x in model.inputs]
        for x in inputs:
            # Something for `Masking`.
            x[draw.randrange(N)] *= draw.choice([0.0, 1.0])
        x = [tf.constant(x) for x in inputs]
        examples = (x if len(x) > 1 else x[0], tf.constant(make_targets(2)))
        loss = ModelLoss(model, squared_error)
        sums = [_sum(loss, examples, engine) for engine in ("loop", "bookkeeping")]
    expected, actual = sums
    if expected is None or actual is None:
        return Outcome(None, expected is not None, parts)
    scale = max(np.abs(leaf).max() for leaf in expected) or 1.0
    difference = max(np.abs(a - e).max() for a, e in zip(actual, expected, strict=True))
    return Outcome(difference / scale, False, parts)


def _sum(loss, examples, engine):
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    try:
        return by_engine(loss, loss.model.trainable_variables, examples, query, engine)
    except Exception:  # Keras' layers raise all kinds of errors.
        return None


def random_model(draw):
    """Returns a model of random layers, and what it is made of.

    Args:
        draw: `random.Random`.
    """
    inputs = [keras.Input(draw.choice(INPUTS)) for _ in range(draw.randint(1, 3))]
    tensors = [L.Dense(N)(x) if len(x.shape) > 1 else x for x in inputs]
    parts = [f"inputs {[x.shape[1:] for x in inputs]}"]
    made, layers = [], []
    for _ in range(draw.randint(2, 5)):
        new, part = _next(draw, inputs, [*tensors, *made], layers)
        made.append(new)
        parts.append(part)
    # All have a part in the loss.
    flat = [L.Flatten()(x) for x in [*tensors, *made]]
    model = keras.Model(inputs, L.Dense(2)(L.Concatenate()(flat)))
    for layer in model.layers[:-1]:
        layer.trainable = draw.choice([True, True, True, False])
    return model, parts


def _next(draw, inputs, tensors, layers):
    """Returns what is made of some of the tensors, and what that is."""
    record = [np.ones((1, *x.shape[1:])) for x in inputs]
    while True:
        make, operands = draw.choice(_ways(draw, tensors, layers))
        try:
            new = make(*operands)
            # Keras finds some shapes wrong only now.
            is_of_record = keras.Model(inputs, new)(record).shape == (1, *new.shape[1:])
        except Exception:  # Not made for tensors of such shapes.
            continue
        if is_of_record and len(new.shape) < 6 and math.prod(new.shape[1:]) <= 256:
            operation = type(new._keras_history.operation).__name__
            return new, f"{operation} of {[tuple(x.shape[1:]) for x in operands]}"


def _ways(draw, tensors, layers):
    def layer(x):
        # Some are used again.
        layers.append(draw.choice([draw.choice(LAYERS)(draw.choice), *layers[-2:]]))
        return layers[-1](x)

    x, y, m = (draw.choice(tensors) for _ in range(3))
    return [
        (layer, [x]),
        (lambda x: draw.choice(OPERATIONS)(draw.choice, x), [x]),
        (lambda x, y: draw.choice(OF_TWO)(draw.choice, x, y), [x, y]),
        (lambda x, y, m: draw.choice(MASKED)(draw.choice, x, y, K.greater(m, 0.0)), [x, y, m]),
    ]
