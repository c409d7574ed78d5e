"""Blocks of random code, with weights of their own, in which no mistake about axes goes unseen.

Every axis is as long as the batch, or 1, as in `random_graphs`.
"""

import keras

from tests.gradients.problems import BATCH

L, K, N = keras.layers, keras.ops, BATCH

INPUTS = [(N,), (N, N), (1, N), (N, N, N)]
SHAPES = [(), (1,), (N,), (N, N), (1, N), (N, 1), (1, N, N), (N, N, N)]


class Pair(L.Layer):
    """A layer of two inputs, one of which may be no record's."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(N)

    def call(self, first, second):
        return self.dense(first) * second


LAYERS = [
    lambda: L.Dense(N, activation="tanh"),
    lambda: L.LayerNormalization(),
    lambda: L.GRU(N, return_sequences=True),
]
# Of a tensor; each takes a function that chooses, when the block is made.
OF_ONE = [
    lambda d: K.tanh,
    lambda d: lambda x: K.softmax(x, axis=-1),
    lambda d: (lambda axis: lambda x: K.mean(x, axis, keepdims=True))(d([0, 1, -1])),
    lambda d: (lambda axis: lambda x: K.sum(x, axis))(d([0, 1, -1])),
    lambda d: (lambda axis: lambda x: K.flip(x, axis))(d([0, 1, -1])),
    lambda d: (lambda axis: lambda x: K.concatenate([x, x], axis))(d([1, -1])),
    lambda d: lambda x: K.swapaxes(x, 1, -1),
    lambda d: lambda x: K.swapaxes(x, 0, 1),
    lambda d: lambda x: K.reshape(x, (-1, N)),
    lambda d: lambda x: K.reshape(x, (K.shape(x)[0], -1)),
    lambda d: lambda x: x[:, :1],
    lambda d: lambda x: K.where(x > 0, x, 0.1 * x),
]
# Of a tensor and a weight.
WITH_WEIGHT = [
    lambda x, w: x + w,
    lambda x, w: x * w,
    lambda x, w: x * K.exp(w),
    lambda x, w: x * K.rsqrt(K.mean(K.square(x), -1, keepdims=True) + 1e-2) * (1 + w),
    lambda x, w: K.matmul(x, w),
    lambda x, w: K.matmul(w, x),
    lambda x, w: K.einsum("b...d,de->b...e", x, w),
    lambda x, w: K.einsum("btd,te->bed", x, w),
    lambda x, w: K.concatenate([x, K.broadcast_to(w, K.shape(x))], 1),
    lambda x, w: K.concatenate([K.tile(w[None], (K.shape(x)[0], 1, 1)), x], 1),
    lambda x, w: x + K.take(w, K.cast(K.clip(K.abs(x), 0, 1), "int32"), axis=0),
    lambda x, w: x + w[: x.shape[1]],
    lambda x, w: K.where(w > 0, x, w),
    lambda x, w: K.matmul(K.softmax(K.matmul(x, w)), w),
]


class RandomBlock(L.Layer):
    """A block whose code is drawn once.

    Args:
        draw: `random.Random`, from which the code is.
    """

    def __init__(self, draw):
        super().__init__()
        self.shapes = [draw.choice(SHAPES) for _ in range(draw.randint(1, 3))]
        self.inner = [draw.choice(LAYERS)() for _ in range(draw.randint(0, 2))]
        self.pair = Pair() if draw.random() < 0.4 else None
        self.steps = [self._step(draw) for _ in range(draw.randint(2, 6))]
        self.uses_all = draw.random() < 0.7

    def _step(self, draw):
        kind = draw.choice(["one", "weight", "weight", "weight", "layer", "pair", "earlier"])
        index = draw.randrange(len(self.shapes))
        if kind == "one":
            make = draw.choice(OF_ONE)(draw.choice)
            return lambda values: make(values[-1])
        if kind == "layer" and self.inner:
            layer = draw.choice(self.inner)
            return lambda values: layer(values[-1])
        if kind == "pair" and self.pair:
            # Also a weight in the place of a record's tensor, and a tensor twice.
            of = draw.choice(
                [lambda v: (v[-1], v[0]), lambda v: (v[-1], self.own[index]), lambda v: v[-1:] * 2]
            )
            return lambda values: self.pair(*of(values))
        if kind == "earlier":
            return lambda values: values[-1] * values[0]
        make = draw.choice(WITH_WEIGHT)
        return lambda values: make(values[-1], self.own[index])

    def build(self, shape):
        self.own = [
            self.add_weight(shape=own_shape, initializer="uniform", name=f"own_{i}")
            for i, own_shape in enumerate(self.shapes)
        ]

    def call(self, inputs):
        values = [inputs]
        for step in self.steps:
            values.append(step(values))
        if self.uses_all:
            values.append(values[-1] + sum(K.mean(w) for w in self.own))
        return values[-1]


def random_model(draw):
    """Returns a model with a random block between two dense layers, and what it is made of.

    Args:
        draw: `random.Random`.
    """
    while True:
        shape = draw.choice(INPUTS)
        x = keras.Input(shape)
        block = RandomBlock(draw)
        try:
            h = block(L.Dense(N)(x))
            if h.shape[0] is not None or len(h.shape) < 2 or None in h.shape[1:]:
                continue
            model = keras.Model(x, L.Dense(2)(L.Flatten()(h)))
        except Exception:  # Not made for such shapes.
            continue
        return model, [f"input {shape}", f"weights {block.shapes}"]
