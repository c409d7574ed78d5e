"""Graphs of functions that a model calls many times with the same shapes."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdp.numerics import rounding

Function = TypeVar("Function", bound=Callable[..., Any])


def traced_once(function: Function, inlined: bool = True, any_shapes: bool = False) -> Function:
    """Makes a function of tensors trace its operations once for each kind of arguments.

    The first step of a deep model is slow because each of its layers adds hundreds of operations
    to the graph, one by one. Calls of such a function whose arguments have the same shapes and
    dtypes, and are otherwise equal, share one graph. TensorFlow puts it in the place of each call
    before it optimizes the step. Where it is not inlined, the graph is optimized once as well, and
    each call takes some 50 microseconds more.

    Guarantees:
        Bounds on rounding follow settings that may change (`rounding.factor_error`). After such a
        change nothing is shared with graphs from before it. Outside of graphs the function runs as
        it is.

    Args:
        function: Its results follow from its arguments and from `rounding.factor_error()` alone.
            Tensors are float or int; what else it takes can be hashed.
        inlined: Whether calls are replaced by what they do.
        any_shapes: Whether arguments of other shapes share a graph, too, in which shapes are not
            known.
    """
    attributes = None if inlined else {"_noinline": True}

    @functools.partial(tf.function, autograph=False, experimental_attributes=attributes)
    def shared(factor_error, args, kwargs):
        del factor_error  # A part of what decides whether there is a graph already.
        return function(*args, **kwargs)

    kinds: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if tf.executing_eagerly():
            return function(*args, **kwargs)
        error = rounding.factor_error()
        if any_shapes:
            # TensorFlow takes a graph for arguments of any shape, where there is one, before it
            # makes one for the shapes at hand.
            general = tf.nest.map_structure(_of_any_shape, (args, kwargs))
            kind = (error, *tf.nest.flatten(general))
            if kind not in kinds:
                shared.get_concrete_function(error, *general)
                kinds.add(kind)
        return shared(error, args, kwargs)

    return wrapper  # type: ignore[return-value]


def _of_any_shape(leaf: Any) -> Any:
    return tf.TensorSpec(None, leaf.dtype) if tf.is_tensor(leaf) else leaf
