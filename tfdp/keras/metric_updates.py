"""Metrics of a step, which see raw data and must not hand them on to the next step."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients import SideEffectError, refuse_other_writes
from tfdp.keras.errors import NotPrivateError


def watched(update: Callable[[], Any], variables: Sequence[Any]) -> Any:
    """Returns `update()`, which may change these variables and nothing else.

    Eagerly it becomes a graph as well: a Python attribute that a metric or a loss sets then holds a
    symbol, not data.

    Args:
        update: Updates metrics from raw data, and returns tensors.
        variables: Of the metrics.

    Raises:
        NotPrivateError: it changes something else.
    """
    try:
        if tf.executing_eagerly():
            call = tf.function(update, autograph=False).get_concrete_function()
            refuse_other_writes(call.graph, call.graph.get_operations(), variables)
            return call()
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        logs = update()
        refuse_other_writes(graph, graph.get_operations()[before:], variables)
        return logs
    except SideEffectError as error:
        raise NotPrivateError(str(error)) from error
