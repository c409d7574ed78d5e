"""Whether XLA compiles the steps of a model, where Keras or the user asks for it."""

import logging

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import layers_in

_logger = logging.getLogger("tfdp")


def can_compile(model: keras.Model) -> bool:
    """Returns whether XLA can compile a model's steps. The log says where it cannot, and where it
    makes them slower.
    """
    if _has_loops(model):
        _logger.warning(
            "XLA cannot compile the loop of a recurrent layer where it runs record by record: "
            "proceeding with jit_compile=False. With unroll=True the layer has no loop."
        )
        return False
    if _is_slow(model):
        _logger.warning(
            "XLA's convolutions on a CPU are several times slower than TensorFlow's own. Leave "
            "jit_compile out: Keras then chooses by device."
        )
    return True


def _is_slow(model: keras.Model) -> bool:
    """Returns whether XLA is known to make this model's steps slower here."""
    if tf.config.list_physical_devices("GPU"):
        return False
    # Keras does not export the base class of its convolutions.
    return any(hasattr(layer, "dilation_rate") for layer in layers_in(model, deep=True))


def _has_loops(model: keras.Model) -> bool:
    """Returns whether layers run loops, which XLA cannot compile record by record."""
    return any(
        isinstance(layer, keras.layers.RNN) and not layer.unroll
        for layer in layers_in(model, deep=True)
    )
