"""Which models can be trained privately."""

from typing import Any

import keras
import tensorflow as tf

from tfdp.keras.callbacks import LogsEpsilon
from tfdp.keras.errors import NotPrivateError


def check_layers(model: keras.Model) -> None:
    """Refuses layers that mix the records of a batch, or keep statistics of them.

    Raises:
        NotPrivateError: names every such layer and what to do about it.
    """
    # Keras has no public way to the layers inside custom layers.
    problems = [problem for layer in model._flatten_layers() if (problem := _problem(layer))]
    if problems:
        raise NotPrivateError(
            "This model cannot be trained privately:\n" + "\n".join(f"  - {p}" for p in problems)
        )


def _problem(layer: keras.Layer) -> str | None:
    kind = type(layer).__name__
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
        return (
            f"{kind} {layer.name!r} normalizes each record by the others of its batch, and its "
            "moving averages publish raw statistics. Use GroupNormalization or "
            "LayerNormalization, or freeze it: layer.trainable = False."
        )
    if isinstance(layer, keras.layers.SpectralNormalization) and layer.trainable:
        return (
            f"{kind} {layer.name!r} updates state in training. Use the wrapped layer itself, "
            "with a kernel constraint."
        )
    if isinstance(layer, keras.layers.RNN) and layer.stateful:
        return f"{kind} {layer.name!r} carries state from batch to batch. Set stateful=False."
    return None


def xla_is_slow(model: keras.Model) -> bool:
    """Returns whether XLA is known to make this model's steps slower here."""
    if tf.config.list_physical_devices("GPU"):
        return False
    # Keras does not export the base class of its convolutions.
    return any(hasattr(layer, "dilation_rate") for layer in model._flatten_layers())


def has_loops(model: keras.Model) -> bool:
    """Returns whether layers run loops, which XLA cannot compile record by record."""
    return any(
        isinstance(layer, keras.layers.RNN) and not layer.unroll
        for layer in model._flatten_layers()
    )


def check_callbacks(callbacks: Any) -> None:
    """Refuses callbacks that would steer training by raw statistics of the training data.

    An epsilon that an `EpsilonLogger` or a `PrivacyBudget` among them writes is public: it is a
    function of the ledger.

    Raises:
        NotPrivateError: a callback monitors a training metric.
    """
    callbacks = getattr(callbacks, "callbacks", None) or keras.tree.flatten(callbacks)
    public = {callback.log_name for callback in callbacks if isinstance(callback, LogsEpsilon)}
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        steers = (
            not isinstance(callback, keras.callbacks.ModelCheckpoint) or callback.save_best_only
        )
        allowed = monitor in public or str(monitor).startswith("val_")
        if isinstance(monitor, str) and steers and not allowed:
            raise NotPrivateError(
                f"{type(callback).__name__} decides by {monitor!r}, a raw statistic of the private "
                "training data: when it acts, it publishes something that no event covers. "
                f"Monitor a metric of public validation data, monitor='val_{monitor}', or the "
                "epsilon of an EpsilonLogger among the callbacks."
            )


def check_plain_training(model: keras.Model) -> None:
    """Refuses models whose own training code would be bypassed.

    Raises:
        NotPrivateError: the model's class overrides `train_step` or `compute_loss`.
    """
    for name in ("train_step", "compute_loss", "fit"):
        defined = next(c for c in type(model).__mro__ if name in vars(c))
        if not defined.__module__.startswith("keras."):
            raise NotPrivateError(
                f"{type(model).__name__} has its own {name}, which a private step would bypass. "
                "Derive it from tfdp.keras.DPModel (which calls your compute_loss), or write the "
                "loop with tfdp.clipped_gradient_sum."
            )
