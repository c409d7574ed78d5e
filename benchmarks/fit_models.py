"""The models of `fit.py`, as people write them, with data for them. Keras' TensorFlow backend."""

from collections.abc import Callable
from typing import Any

import inputs
import keras
import more_fit_models
import numpy as np
import workloads
from fit_model import Data, FitModel, images, next_tokens, tokens
from keras import layers

import tfdp.keras


def two_layers() -> keras.Model:
    sizes = [keras.Input((784,)), layers.Dense(256, "relu"), layers.Dense(128, "relu")]
    return keras.Sequential([*sizes, layers.Dense(10)])


def tabular() -> keras.Model:
    categories, numbers = keras.Input((8,), dtype="int32"), keras.Input((13,))
    parts = [layers.Embedding(1000, 16)(categories[:, i]) for i in range(8)]
    x = layers.concatenate([*parts, layers.Dense(32, "relu")(numbers)])
    for width in (128, 64):
        x = layers.Dense(width, "relu")(x)
    return keras.Model([categories, numbers], layers.Dense(2)(x))


def tabular_rows(rng, n) -> Data:
    categories = rng.integers(0, 1000, (n, 8), dtype=np.int32)
    return (categories, rng.standard_normal((n, 13), np.float32)), rng.integers(0, 2, n)


def audio() -> keras.Model:
    x = sound = keras.Input((4000, 1))
    for channels, size, strides in ((32, 80, 4), (32, 3, 1), (64, 3, 1), (64, 3, 1)):
        x = layers.Conv1D(channels, size, strides=strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.MaxPooling1D(4)(x)
    return keras.Model(sound, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def two_grus() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
    grus = [layers.GRU(64, return_sequences=True), layers.GRU(64)]
    return keras.Sequential([*first, *grus, layers.Dense(2)])


def gru_with_dropout() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
    return keras.Sequential([*first, layers.GRU(64, dropout=0.2), layers.Dense(2)])


def gru_with_dropout_of_states() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
    gru = layers.GRU(64, dropout=0.2, recurrent_dropout=0.2)
    return keras.Sequential([*first, gru, layers.Dense(2)])


def gru_that_resets_first() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
    return keras.Sequential([*first, layers.GRU(64, reset_after=False), layers.Dense(2)])


def stacked_cells() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
    rnn = layers.RNN([layers.LSTMCell(64), layers.LSTMCell(64)])
    return keras.Sequential([*first, rnn, layers.Dense(2)])


def lstm_with(function: Any) -> Callable[[], keras.Model]:
    """Returns a maker of an LSTM with this activation function."""

    def build():
        first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64)]
        return keras.Sequential([*first, layers.LSTM(64, activation=function), layers.Dense(2)])

    return build


def of_ones_own(x):
    """Returns what no function of Keras returns."""
    return keras.ops.tanh(x) + 0.1 * x


def radar() -> keras.Model:
    film = keras.Input((8, 32, 32, 1))
    x = layers.ConvLSTM2D(16, 3, padding="same", return_sequences=True)(film)
    x = layers.ConvLSTM2D(16, 3, padding="same")(x)
    return keras.Model(film, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def film() -> keras.Model:
    convolutions = keras.Sequential([keras.Input((32, 32, 3))])
    for channels in (16, 32):
        convolutions.add(layers.Conv2D(channels, 3, padding="same", activation="relu"))
        convolutions.add(layers.MaxPooling2D(2))
    convolutions.add(layers.GlobalAveragePooling2D())
    frames = [keras.Input((8, 32, 32, 3)), layers.TimeDistributed(convolutions)]
    return keras.Sequential([*frames, layers.LSTM(32), layers.Dense(10)])


def masked_bidirectional() -> keras.Model:
    first = [keras.Input((64,), dtype="int32"), layers.Embedding(8000, 64, mask_zero=True)]
    return keras.Sequential([*first, layers.Bidirectional(layers.LSTM(64)), layers.Dense(2)])


def transformer_part(x, heads: int, width: int, causal: bool = False):
    """Returns x after pre-normalized attention and two dense layers."""
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
    x = layers.add([x, y])
    y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
    return layers.add([x, layers.Dense(width)(y)])


def decoder() -> keras.Model:
    ids = keras.Input((64,), dtype="int32")
    table = layers.ReversibleEmbedding(8000, 128)
    x = workloads.PositionTable()(table(ids))
    for _ in range(2):
        x = transformer_part(x, 4, 128, causal=True)
    return keras.Model(ids, table(layers.LayerNormalization()(x), reverse=True))


def separable() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(image)
    for channels, strides in ((64, 1), (128, 2), (128, 1), (256, 2)):
        x = layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.Conv2D(channels, 1, use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def unet() -> keras.Model:
    def twice(x, channels):
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        return x

    x = image = keras.Input((64, 64, 3))
    kept = []
    for channels in (16, 32, 64):
        kept.append(twice(x, channels))
        x = layers.MaxPooling2D(2)(kept[-1])
    x = twice(x, 128)
    for channels in (64, 32, 16):
        x = layers.Conv2DTranspose(channels, 2, strides=2, padding="same")(x)
        x = twice(layers.concatenate([x, kept.pop()]), channels)
    return keras.Model(image, layers.Conv2D(2, 1)(x))


def pixels(rng, n) -> Data:
    return rng.standard_normal((n, 64, 64, 3), np.float32), rng.integers(0, 2, (n, 64, 64))


def convnext() -> keras.Model:
    make = keras.applications.ConvNeXtTiny
    return make(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)


def resnet50() -> keras.Model:
    make = keras.applications.ResNet50
    model = make(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return tfdp.keras.convert_norm(model)[0]


def efficientnet() -> keras.Model:
    make = keras.applications.EfficientNetB0
    model = make(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return tfdp.keras.convert_norm(model)[0]


def bert() -> keras.Model:
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=8000,
        num_layers=2,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=1024,
        max_sequence_length=64,
    )
    return keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)


def bert_rows(rng, n) -> Data:
    ids, y = tokens(64, 8000)(rng, n)
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": ids > 0}, y


class Block(layers.Layer):
    """A transformer block with its own `call`, as tutorials have it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.attention = layers.MultiHeadAttention(4, 32)
        self.dense = [layers.Dense(512, "gelu"), layers.Dense(128)]

    def call(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y)
        return x + self.dense[1](self.dense[0](self.norms[1](x)))


def blocks() -> keras.Model:
    ids = keras.Input((64,), dtype="int32")
    x = Block()(Block()(layers.Embedding(8000, 128)(ids)))
    return keras.Model(ids, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


def flipped() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.RandomFlip("horizontal")(image)
    for channels in (32, 64):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def changed_images() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.RandomPerspective(1.0, 0.5)(image)
    x = layers.RandomColorJitter((-1, 1), 0.2, 0.2, (0.3, 0.7), 0.2)(x)
    x = layers.RandomGrayscale(0.5)(x)
    x = layers.RandomGaussianBlur(1.0, 3, 1.0, (0, 1))(x)
    for channels in (32, 64):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def groups() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(image)
    x = layers.Conv2D(32, 3, groups=4, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def spectrogram() -> keras.Model:
    sound = keras.Input((8000, 1))
    x = layers.STFTSpectrogram(frame_length=256, expand_dims=True)(sound)
    for channels in (16, 32):
        x = layers.Conv2D(channels, 3, strides=2, activation="relu")(x)
    return keras.Model(sound, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def workload(name: str) -> FitModel:
    """Returns a model of `workloads`."""
    size = inputs.sizes(name)

    def rows(_, n):
        return inputs.batch(name, {**size, "batch_size": n})

    steps = 50 if name in ("resnet", "transformer") else 200
    return FitModel(lambda: workloads.build(name, {}), rows, size["batch_size"], steps)


MODELS = {
    **{name: workload(name) for name in inputs.SIZES},
    "two_layers": FitModel(two_layers, images(784), 256, 200),
    "tabular": FitModel(tabular, tabular_rows, 256, 200),
    "audio": FitModel(audio, images(4000, 1), 64),
    "two_grus": FitModel(two_grus, tokens(64, 8000), 64),
    "gru_dropout": FitModel(gru_with_dropout, tokens(64, 8000), 64),
    "gru_recurrent_dropout": FitModel(gru_with_dropout_of_states, tokens(64, 8000), 64),
    "gru_reset_first": FitModel(gru_that_resets_first, tokens(64, 8000), 64),
    "stacked_cells": FitModel(stacked_cells, tokens(64, 8000), 64),
    "conv_lstm": FitModel(radar, images(8, 32, 32, 1), 16, 20),
    "time_distributed": FitModel(film, images(8, 32, 32, 3), 32),
    "lstm_softmax": FitModel(lstm_with("softmax"), tokens(64, 8000), 64),
    "lstm_own_function": FitModel(lstm_with(of_ones_own), tokens(64, 8000), 64),
    "bidirectional": FitModel(masked_bidirectional, tokens(64, 8000), 64),
    "decoder": FitModel(decoder, next_tokens(64, 8000), 32, 20),
    "separable": FitModel(separable, images(32, 32, 3), 64),
    "unet": FitModel(unet, pixels, 16),
    "blocks": FitModel(blocks, tokens(64, 8000), 64),
    "random_flip": FitModel(flipped, images(32, 32, 3), 64, 200),
    "changed_images": FitModel(changed_images, images(32, 32, 3), 64, 200),
    "groups": FitModel(groups, images(32, 32, 3), 64),
    "spectrogram": FitModel(spectrogram, images(8000, 1), 32, 200),
    "bert": FitModel(bert, bert_rows, 32, 20, "keras_hub"),
    "resnet50": FitModel(resnet50, images(64, 64, 3), 16, 20),
    "efficientnet_b0": FitModel(efficientnet, images(64, 64, 3), 16, 20),
    "convnext_tiny": FitModel(convnext, images(64, 64, 3), 8, 10),
    **more_fit_models.MODELS,
}
