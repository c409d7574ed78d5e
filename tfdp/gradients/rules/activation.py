"""Activation functions that are known to treat every record separately."""

import functools
from collections.abc import Iterable
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
_OVER_UNITS = ("log_softmax", "softmax", "sparsemax")
_NOT_ELEMENTWISE = ("glu", *_OVER_UNITS)


def _functions(names: Iterable[str]) -> list[Any]:
    modules = (keras.activations, keras.ops, tf.nn, tf.math)
    return [getattr(m, name) for name in names for m in modules if hasattr(m, name)]


_KNOWN = _functions(_NAMES)
_ALONG_LAST_AXIS = _functions(_OVER_UNITS)
_ELEMENTWISE = _functions(name for name in _NAMES if name not in _NOT_ELEMENTWISE)


def is_known(function: Any) -> bool:
    """Returns whether a function is Keras' or TensorFlow's own and treats records separately.

    Any other function could do anything with a batch, such as subtract the batch's mean.
    """
    return _is_among(_KNOWN, function)


def is_elementwise(function: Any) -> bool:
    """Returns whether a function is known, and each of its results follows from one number."""
    return _is_among(_ELEMENTWISE, function)


def is_over_units(function: Any) -> bool:
    """Returns whether a function is known, and its results follow from as many numbers along the
    last axis.
    """
    return _is_among(_ALONG_LAST_AXIS, function)


def _is_among(known: list[Any], function: Any) -> bool:
    if isinstance(function, functools.partial):
        own_arguments = function.args or "axis" in function.keywords
        return not own_arguments and _is_among(known, function.func)
    return any(function is k for k in known)
