"""Calls of a graph to the host, whose operation says what to do where XLA refuses it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# XLA fails where it meets a draw, and its message holds the name of the operation. So the name says
# what to do.
_OPERATION = "host_draw__use_tfdp.noise.staged"
# XLA does not know the host's clock either.
_HOST_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "Timestamp")


def on_host(
    function: Callable[..., Any], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Returns what the host computes each time the graph runs, by an operation that says so."""
    return tf.numpy_function(function, inputs, list(types), stateful=True, name=_OPERATION)


def calls_host(graph: tf.Graph) -> bool:
    """Returns whether a graph, or a function that it calls, calls the host or asks for its time."""
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    return any(node.op in _HOST_OPERATIONS for node in nodes)
