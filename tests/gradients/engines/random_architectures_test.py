"""The book-keeping engine against the explicit loop, over architectures that are drawn."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gradients.problems import (
    BATCH,
    Pair,
    Position,
    apply,
    assert_engines_agree,
    floatx,
    head,
    normal,
    norms_of,
    problem,
)

L = keras.layers


VECTOR_LAYERS = {
    "dense": lambda d: L.Dense(
        4, activation=d(["linear", "relu", "tanh"]), use_bias=d([True, False])
    ),
    "layer_norm": lambda d: L.LayerNormalization(center=d([True, False]), scale=d([True, False])),
    "prelu": lambda d: L.PReLU("uniform", shared_axes=d([None, 0, -1])),
    "rms": lambda d: L.RMSNormalization(),
}


SEQUENCE_LAYERS = VECTOR_LAYERS | {
    "attention": lambda d: Pair(L.MultiHeadAttention(d([1, 2]), 2, use_bias=d([True, False]))),
    "conv": lambda d: L.Conv1D(
        4, d([1, 2, 3]), padding=d(["same", "causal"]), dilation_rate=d([1, 2]), groups=d([1, 2])
    ),
    "depthwise": lambda d: L.DepthwiseConv1D(d([1, 2, 3]), padding="same", dilation_rate=d([1, 2])),
    "separable": lambda d: L.SeparableConv1D(
        4, d([1, 3]), padding="same", use_bias=d([True, False]), dilation_rate=d([1, 2])
    ),
    "custom": lambda d: Position(),
}


IMAGE_LAYERS = {
    "conv": lambda d: L.Conv2D(
        4,
        (d([1, 2, 3]), d([1, 3])),
        strides=d([1, 2]),
        padding="same",
        groups=d([1, 2]),
        use_bias=d([True, False]),
        activation=d(["linear", "relu"]),
    ),
    "dilated": lambda d: L.Conv2D(4, 3, padding="same", dilation_rate=(d([1, 2]), 2)),
    "transposed": lambda d: L.Conv2DTranspose(4, d([1, 2, 3]), strides=d([1, 2]), padding="same"),
    "depthwise": lambda d: L.DepthwiseConv2D(3, strides=d([1, 2]), padding="same"),
    "prelu": lambda d: L.PReLU("uniform", shared_axes=d([None, [1], [-1], [0, 2], [1, 2]])),
    "separable": lambda d: L.SeparableConv2D(
        4, (d([1, 2]), 2), padding="same", dilation_rate=d([1, 2])
    ),
    "group_norm": lambda d: L.GroupNormalization(d([1, 2, 4])),
    "dense": lambda d: L.Dense(4),
}


KINDS = {
    "vector": ((4,), VECTOR_LAYERS),
    "sequence": ((5, 4), SEQUENCE_LAYERS),
    "image": ((4, 5, 4), IMAGE_LAYERS),
}


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_random_architecture(data):
    def draw(choices):
        return data.draw(st.sampled_from(choices))

    shape, table = KINDS[draw(sorted(KINDS))]
    with floatx("float64"):
        keras.utils.set_random_seed(data.draw(st.integers(0, 1000)))
        x = h = keras.Input(shape)
        earlier = []
        for _ in range(data.draw(st.integers(1, 3))):
            reusable = [layer for layer, s in earlier if s == tuple(h.shape)]
            if reusable and draw([True, False]):
                layer = draw(reusable)
            else:
                layer = table[draw(sorted(table))](draw)
                earlier.append((layer, tuple(h.shape)))
            new = apply(layer, h)
            h = new + h if tuple(new.shape) == tuple(h.shape) and draw([True, False]) else new
        model = keras.Model(x, head(h))
        for layer, _ in earlier[1:]:
            layer.trainable = draw([True, True, False])
        loss, variables, examples = problem(model, normal(*shape))
        actual, expected = norms_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12 * expected.max())
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH)))
        mask[0] = True
        assert_engines_agree(loss, variables, examples, mask=mask, tolerance=1e-10)
