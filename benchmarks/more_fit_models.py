"""Further models of `fit.py`. None of them was measured while the engines were written.

They are small forms of what is published, with group normalization for batch normalization.
"""

import keras
import numpy as np
import tensorflow as tf
from fit_model import Data, FitModel, images, next_tokens, tokens
from keras import layers, ops

CLASSES = 10


def logistic_regression() -> keras.Model:
    return keras.Sequential([keras.Input((100,)), layers.Dense(CLASSES)])


def self_normalizing() -> keras.Model:
    model = keras.Sequential([keras.Input((200,))])
    for _ in range(4):
        model.add(layers.Dense(128, "selu", kernel_initializer="lecun_normal"))
        model.add(layers.AlphaDropout(0.1))
    model.add(layers.Dense(CLASSES))
    return model


def recommender() -> keras.Model:
    """Products of all pairs of 26 embeddings and a network of numbers (DLRM)."""
    numbers, categories = keras.Input((13,)), keras.Input((26,), dtype="int32")
    parts = [layers.Embedding(1000, 16)(categories[:, i]) for i in range(26)]
    x = layers.Dense(16, "relu")(layers.Dense(64, "relu")(numbers))
    rows = ops.stack([x, *parts], axis=1)
    pairs = layers.Flatten()(ops.matmul(rows, ops.transpose(rows, (0, 2, 1))))
    x = layers.Dense(64, "relu")(layers.concatenate([x, pairs]))
    return keras.Model([numbers, categories], layers.Dense(CLASSES)(x))


def clicks(rng, n) -> Data:
    categories = rng.integers(0, 1000, (n, 26), dtype=np.int32)
    return (rng.standard_normal((n, 13), np.float32), categories), rng.integers(0, CLASSES, n)


def columns() -> keras.Model:
    """Columns of a table as they come: words, ids, numbers, lists of ids and pairs of words."""
    words = [keras.Input((1,), dtype="string") for _ in range(6)]
    ids, numbers = keras.Input((4,), dtype="int64"), keras.Input((6,))
    several = keras.Input((5,), dtype="int64")
    vocabulary = [f"word {i}" for i in range(200)]
    flat = layers.Flatten()
    parts = [layers.Embedding(201, 8)(layers.StringLookup(vocabulary=vocabulary)(w)) for w in words]
    known = layers.IntegerLookup(vocabulary=list(range(50)))(ids)
    hashed = layers.Hashing(100)(words[0])
    parts += [layers.Embedding(51, 8)(known), layers.Embedding(100, 8)(hashed)]
    bins = layers.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")(numbers)
    parts = [flat(part) for part in (*parts, bins)]
    parts += [numbers, layers.CategoryEncoding(20, output_mode="multi_hot")(several)]
    parts.append(layers.HashedCrossing(50, output_mode="one_hot")(words[1:3]))
    x = layers.Dense(64, "relu")(layers.concatenate(parts))
    return keras.Model([*words, ids, numbers, several], layers.Dense(2)(x))


def rows_of_columns(rng, n) -> Data:
    # Keras takes texts as tensors only.
    words = [tf.constant([f"word {i}" for i in rng.integers(0, 210, n)])[:, None] for _ in range(6)]
    ids, several = rng.integers(0, 60, (n, 4)), rng.integers(0, 20, (n, 5))
    numbers = rng.standard_normal((n, 6), np.float32)
    return (*words, ids, numbers, several), rng.integers(0, 2, n)


def siamese() -> keras.Model:
    tower = keras.Sequential(
        [
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64),
        ]
    )
    one, other = keras.Input((28, 28, 1)), keras.Input((28, 28, 1))
    return keras.Model([one, other], layers.Dense(2)(ops.abs(tower(one) - tower(other))))


def pairs_of_images(rng, n) -> Data:
    x = rng.standard_normal((2, n, 28, 28, 1), np.float32)
    return (x[0], x[1]), rng.integers(0, 2, n)


def vgg() -> keras.Model:
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters in (32, 64, 128):
        for _ in range(2):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
        model.add(layers.Dropout(0.2))
    model.add(layers.Flatten())
    model.add(layers.Dense(256, "relu"))
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(CLASSES))
    return model


def dense_net() -> keras.Model:
    def grown(x, filters, size):
        x = layers.Activation("relu")(layers.GroupNormalization(8)(x))
        return layers.Conv2D(filters, size, padding="same")(x)

    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same")(image)
    for stage in range(3):
        if stage:
            x = layers.AveragePooling2D(2)(layers.Conv2D(x.shape[-1] // 16 * 8, 1)(x))
        for _ in range(4):
            x = layers.concatenate([x, grown(grown(x, 64, 1), 16, 3)])
    return keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def mobile_net() -> keras.Model:
    """Inverted residuals with squeeze and excitation (MobileNetV3)."""

    def wide(x, layer, activation=None):
        x = layers.GroupNormalization(8)(layer(x))
        return layers.Activation(activation)(x)

    image = keras.Input((64, 64, 3))
    x = wide(image, layers.Conv2D(16, 3, strides=2, padding="same"), "hard_swish")
    for filters, strides in ((16, 2), (24, 2), (40, 2), (40, 1), (96, 1)):
        y = wide(x, layers.Conv2D(4 * filters, 1), "hard_swish")
        y = wide(y, layers.DepthwiseConv2D(5, strides, padding="same"), "hard_swish")
        scale = layers.GlobalAveragePooling2D(keepdims=True)(y)
        scale = layers.Conv2D(filters, 1, activation="relu")(scale)
        scale = layers.Conv2D(4 * filters, 1, activation="hard_sigmoid")(scale)
        y = wide(layers.multiply([y, scale]), layers.Conv2D(filters, 1))
        x = layers.add([x, y]) if x.shape == y.shape else y
    return keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def autoencoder() -> keras.Model:
    """Of images of ten tones, each pixel's tone from a code of 64 numbers."""
    x = image = keras.Input((32, 32, 1))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(4 * 4 * 128)(layers.Dense(64)(layers.Flatten()(x)))
    x = layers.Reshape((4, 4, 128))(x)
    for filters in (64, 32, 16):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Conv2D(CLASSES, 3, padding="same")(x))


def tones(rng, n) -> Data:
    tone = rng.integers(0, CLASSES, (n, 32, 32))
    return tone[..., None].astype(np.float32) / CLASSES, tone


def films() -> keras.Model:
    model = keras.Sequential([keras.Input((8, 32, 32, 1))])
    for filters in (16, 32):
        model.add(layers.Conv3D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling3D())
    model.add(layers.Flatten())
    model.add(layers.Dense(64, "relu"))
    model.add(layers.Dense(CLASSES))
    return model


def wave_net() -> keras.Model:
    sound = keras.Input((1024, 1))
    x, kept = layers.Conv1D(32, 2, padding="causal")(sound), []
    for dilation in (1, 2, 4, 8, 16, 32):
        gates = [
            layers.Conv1D(32, 2, padding="causal", dilation_rate=dilation, activation=name)(x)
            for name in ("tanh", "sigmoid")
        ]
        kept.append(layers.Conv1D(32, 1)(layers.multiply(gates)))
        x = layers.add([x, kept[-1]])
    return keras.Model(
        sound, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(layers.add(kept)))
    )


def text_cnn() -> keras.Model:
    ids = keras.Input((128,), dtype="int32")
    x = layers.Embedding(5000, 64)(ids)
    parts = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(64, size, activation="relu")(x))
        for size in (3, 4, 5)
    ]
    return keras.Model(ids, layers.Dense(CLASSES)(layers.Dropout(0.5)(layers.concatenate(parts))))


def translation() -> keras.Model:
    """An LSTM that reads, and one that writes and attends to what was read."""
    source, target = keras.Input((24,), dtype="int32"), keras.Input((24,), dtype="int32")
    table = layers.Embedding(2000, 64, mask_zero=True)
    read, *state = layers.LSTM(64, return_sequences=True, return_state=True)(table(source))
    written = layers.LSTM(64, return_sequences=True)(table(target), initial_state=state)
    x = layers.concatenate([written, layers.Attention()([written, read])])
    return keras.Model([source, target], layers.Dense(2000)(x))


def sentences(rng, n) -> Data:
    source, target, y = rng.integers(1, 2000, (3, n, 24), dtype=np.int32)
    return (source, target), y


def mixer() -> keras.Model:
    def dense(x, width):
        return layers.Dense(x.shape[-1])(layers.Dense(width, "gelu")(x))

    image = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 4, strides=4)(image))
    for _ in range(3):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Permute((2, 1))(dense(y, 64))])
        x = layers.add([x, dense(layers.LayerNormalization()(x), 256)])
    return keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def vision_transformer() -> keras.Model:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 3),
        patch_size=4,
        num_layers=2,
        num_heads=4,
        hidden_dim=128,
        mlp_dim=256,
    )
    image = keras.Input((32, 32, 3))
    return keras.Model(image, layers.Dense(CLASSES)(backbone(image)[:, 0]))


def language_model(name: str, **options):
    """Returns a maker of a model of KerasHub that says which token comes next."""

    def build() -> keras.Model:
        import keras_hub

        backbone = getattr(keras_hub.models, name)(
            vocabulary_size=2000, num_layers=2, hidden_dim=128, intermediate_dim=512, **options
        )
        ids = keras.Input((64,), dtype="int32")
        x = backbone({"token_ids": ids, "padding_mask": ops.ones_like(ids)})
        return keras.Model(ids, backbone.token_embedding(x, reverse=True))

    return build


gpt2 = language_model("GPT2Backbone", num_heads=4, max_sequence_length=64)
llama = language_model("LlamaBackbone", num_query_heads=4, num_key_value_heads=2)


class StochasticDepth(layers.Layer):
    """Leaves a branch out for some images (Huang et al. 2016)."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, inputs, training=None):
        if not training:
            return inputs
        shape = (ops.shape(inputs)[0], *(1,) * (len(inputs.shape) - 1))
        return inputs / 0.8 * ops.floor(0.8 + keras.random.uniform(shape, seed=self.generator))


class Sampling(layers.Layer):
    """Draws from a normal distribution of the mean and the log-variance that it is given."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        draw = keras.random.normal(ops.shape(mean), seed=self.generator)
        return mean + ops.exp(0.5 * log_variance) * draw


def stochastic_depth() -> keras.Model:
    inputs = keras.Input((16, 16, 16))
    x = inputs
    for _ in range(4):
        branch = layers.Conv2D(16, 3, padding="same", activation="relu")
        x = x + StochasticDepth()(branch(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def variational() -> keras.Model:
    """The encoder of a variational autoencoder, and a decoder to classes (Kingma, Welling 2014)."""
    inputs = keras.Input((784,))
    x = layers.Dense(256, "relu")(inputs)
    code = Sampling()([layers.Dense(16)(x), layers.Dense(16)(x)])
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Dense(256, "relu")(code)))


class OwnBlock(layers.Layer):
    """Attention whose heads are made by hand, and a network of two layers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.projections = [layers.Dense(width) for _ in range(4)]
        self.network = [layers.Dense(2 * width, "relu"), layers.Dense(width)]
        self.norms = [layers.LayerNormalization() for _ in range(2)]

    def build(self, shape):
        for layer in (*self.projections, *self.norms, self.network[0]):
            layer.build(shape)
        self.network[1].build((*shape[:-1], self.network[0].units))

    def call(self, inputs):
        batch, length, width = ops.shape(inputs)
        parts = (batch, length, self.heads, width // self.heads)
        *projections, last = self.projections
        q, k, v = (
            ops.transpose(ops.reshape(projection(inputs), parts), (0, 2, 1, 3))
            for projection in projections
        )
        weights = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / parts[-1] ** 0.5)
        seen = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        x = self.norms[0](inputs + last(ops.reshape(seen, (batch, length, -1))))
        return self.norms[1](x + self.network[1](self.network[0](x)))


class OwnModel(keras.Model):
    """Classes of texts, by a model with code of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.places = layers.Embedding(2000, 64), layers.Embedding(64, 64)
        self.blocks = [OwnBlock(64, 4) for _ in range(2)]
        self.head = layers.Dense(CLASSES)

    def call(self, inputs):
        x = self.words(inputs) + self.places(ops.arange(ops.shape(inputs)[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(ops.mean(x, axis=1))


def subclassed() -> keras.Model:
    model = OwnModel()
    model(np.zeros((1, 64), np.int32))
    return model


class Forecast(layers.Layer):
    """An LSTM cell, step by step, on what was measured, and then on what it says will be."""

    def __init__(self, units: int, steps: int):
        super().__init__()
        self.cell, self.steps = layers.LSTMCell(units), steps

    def build(self, shape):
        self.cell.build((shape[0], shape[-1]))
        self.head = layers.Dense(shape[-1])
        self.head.build((shape[0], self.cell.units))

    def call(self, inputs):
        states = self.cell.get_initial_state(ops.shape(inputs)[0])
        for step in range(inputs.shape[1]):
            h, states = self.cell(inputs[:, step], states)
        said = []
        for _ in range(self.steps):
            said.append(self.head(h))
            h, states = self.cell(said[-1], states)
        return ops.stack(said, axis=1)


def forecast() -> keras.Model:
    inputs = keras.Input((16, 8))
    x = layers.Flatten()(Forecast(32, 8)(inputs))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


MODELS = {
    "logistic_regression": FitModel(logistic_regression, images(100), 64, 200),
    "self_normalizing": FitModel(self_normalizing, images(200), 128, 200),
    "recommender": FitModel(recommender, clicks, 256, 200),
    "columns": FitModel(columns, rows_of_columns, 64, 200),
    "siamese": FitModel(siamese, pairs_of_images, 64, 200),
    "vgg": FitModel(vgg, images(32, 32, 3), 64),
    "dense_net": FitModel(dense_net, images(32, 32, 3), 32, 20),
    "mobile_net": FitModel(mobile_net, images(64, 64, 3), 16),
    "autoencoder": FitModel(autoencoder, tones, 32, 200),
    "stochastic_depth": FitModel(stochastic_depth, images(16, 16, 16), 64, 100),
    "variational": FitModel(variational, images(784), 64, 200),
    "subclassed": FitModel(subclassed, tokens(64, 2000), 32, 100),
    "forecast": FitModel(forecast, images(16, 8), 64, 200),
    "films": FitModel(films, images(8, 32, 32, 1), 16, 200),
    "wave_net": FitModel(wave_net, images(1024, 1), 16),
    "text_cnn": FitModel(text_cnn, tokens(128, 5000), 64, 200),
    "translation": FitModel(translation, sentences, 32),
    "mixer": FitModel(mixer, images(32, 32, 3), 32),
    "vision_transformer": FitModel(vision_transformer, images(32, 32, 3), 32, needs="keras_hub"),
    "gpt2": FitModel(gpt2, next_tokens(64, 2000), 8, needs="keras_hub"),
    "llama": FitModel(llama, next_tokens(64, 2000), 8, needs="keras_hub"),
}
