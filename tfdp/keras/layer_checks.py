"""Which layers can be trained privately."""

import keras
import numpy as np

from tfdp.gradients.keras_internals import layers_in
from tfdp.keras.batch_statistics import PrivateBatchNormalization
from tfdp.keras.errors import NotPrivateError


def check_layers(model: keras.Model) -> None:
    """Refuses layers that mix the records of a batch, or keep statistics of them, and those that
    have been adapted to data.

    Raises:
        NotPrivateError: names every such layer and what to do about it.
    """
    layers = layers_in(model, deep=True)
    problems = [problem for layer in layers if (problem := _problem(layer))]
    norms = [
        layer.name
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization)
        and not isinstance(layer, PrivateBatchNormalization)
        and layer.trainable
    ]
    if norms:
        problems.insert(0, _batch_normalization(norms))
    if problems:
        raise NotPrivateError(
            "This model cannot be trained privately:\n" + "\n".join(f"  - {p}" for p in problems)
        )


def _batch_normalization(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"BatchNormalization ({shown}{more}) normalizes each record by the others of its batch, "
        "and its moving averages publish raw statistics. tfdp.keras.convert_norm(model), or "
        'make_private(model, batch_norm="group"), makes a model with GroupNormalization in its '
        'place, gamma and beta kept. make_private(model, batch_norm="private") estimates those '
        "averages with noise. Or freeze it: layer.trainable = False."
    )


def _problem(layer: keras.Layer) -> str | None:
    kind = type(layer).__name__
    if isinstance(layer, keras.layers.SpectralNormalization) and layer.trainable:
        return (
            f"{kind} {layer.name!r} updates state in training. Use the wrapped layer itself, "
            "with a kernel constraint."
        )
    if isinstance(layer, keras.layers.RNN) and layer.stateful:
        return f"{kind} {layer.name!r} carries state from batch to batch. Set stateful=False."
    if isinstance(layer, keras.layers.TextVectorization) and _splits(layer):
        return (
            f"{kind} {layer.name!r} splits texts by operations that may end the run for some "
            "of them, which would tell of a record. Vectorize before the training: take the layer "
            "out of the model, and call fit on x = layer(texts). Its vocabulary must be public, or "
            "one that tfdp.statistics has released."
        )
    if layer.trainable and _is_adapted(layer):
        return (
            f"{kind} {layer.name!r} holds raw statistics of the data that it was adapted to, which "
            "are published with the model. Give its constructor public ones, or some that "
            "tfdp.statistics has released (mean and variance, bin_boundaries, vocabulary; not by "
            "set_vocabulary, which does not say whose they are). If those data were public, as a "
            "pretrained model's, say so: layer.trainable = False."
        )
    return None


def _splits(layer: keras.layers.TextVectorization) -> bool:
    """Returns whether a layer does more than to look up whole texts, by Keras' own code."""
    config = layer.get_config()
    return isinstance(config["split"], str) or config["ngrams"] is not None


def _is_adapted(layer: keras.Layer) -> bool:
    """Returns whether a layer of Keras has statistics that its constructor was not given."""
    if isinstance(layer, keras.layers.Normalization):
        if not layer.built or layer.get_config()["mean"] is not None:
            return False
        mean, variance, *_ = layer.get_weights()
        return bool(np.any(mean != 0) or np.any(variance != 1))
    if isinstance(layer, keras.layers.Discretization):
        config = layer.get_config()
        return config["num_bins"] is not None and bool(config["bin_boundaries"])
    if isinstance(layer, _WITH_VOCABULARY):
        given = layer.get_config()["vocabulary"] is not None
        return not given and len(layer.get_vocabulary(include_special_tokens=False)) > 0
    return False


_WITH_VOCABULARY = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
