"""Activation functions that are known to treat every record separately."""

import functools
from typing import Any

import keras
import tensorflow as tf

# These functions work elementwise, or along the last axis unless they are told otherwise.
_NAMES = (
    *("celu", "elu", "exp", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid"),
    *("hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax"),
    *("mish", "relu", "relu6", "selu", "sigmoid", "silu", "sin", "soft_shrink", "softmax"),
    *("softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "square", "squareplus"),
    *("swish", "tanh", "tanh_shrink", "threshold"),
)
_KNOWN = [
    getattr(module, name)
    for module in (keras.activations, keras.ops, tf.nn, tf.math)
    for name in _NAMES
    if hasattr(module, name)
]


def is_known(function: Any) -> bool:
    """Returns whether a function is Keras' or TensorFlow's own and treats records separately.

    Any other function could do anything with a batch, such as subtract the batch's mean.
    """
    if isinstance(function, functools.partial):
        own_arguments = function.args or "axis" in function.keywords
        return not own_arguments and is_known(function.func)
    return any(function is known for known in _KNOWN)
