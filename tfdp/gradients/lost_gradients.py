"""Uses of weights that would be given no gradient while weights are read as tensors.

Nobody would say so: the loss depends on the weight, and a part of its gradient is missing.
"""

from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tfdp.gradients.graphs import names_called
from tfdp.gradients.keras_internals import (
    CUSTOM_GRADIENT,
    function_in,
    knows_function,
    results_of_own_gradient,
)
from tfdp.gradients.layered_loss import UnsupportedModelError


def refuse_lost_gradients(
    values: Sequence[tf.Tensor], handles: Mapping[int, str], name: str
) -> None:
    """Refuses what the code of a layer or loss has done with weights in the current graph, if
    gradients would be missing.

    Args:
        values: What the weights were read as.
        handles: Names of weights by the identities of TensorFlow's handles of their variables.
        name: Of the layer or loss.

    Raises:
        UnsupportedModelError: a variable itself was read, or a function with a gradient of its own
            (`tf.custom_gradient`) has read a value. TensorFlow would ask such a function for the
            gradients of variables that it reads, but does not know that the value is one.
    """
    graph = tf.compat.v1.get_default_graph()
    inside = {id(outer): inner.name for outer, inner in graph.captures}
    past_keras = [handles[outer] for outer in inside if outer in handles]
    if past_keras:
        raise UnsupportedModelError(
            f"{name} reads {past_keras[0]} past Keras, by an attribute that is private or "
            "TensorFlow's own. Read the weight itself, or use engine='vectorized'."
        )
    read = {inside.get(id(value), getattr(value, "name", None)) for value in values}
    if _loses(graph.get_operations(), read):
        raise UnsupportedModelError(
            f"{name} reads weights in a function with a gradient of its own (tf.custom_gradient, "
            "tf.recompute_grad), which would leave their gradients out. Pass them to the function "
            "as arguments, or use engine='vectorized'."
        )


def _loses(operations: Sequence[tf.Operation], read: Collection[str | None]) -> bool:
    for op in operations:
        own = op.type == "IdentityN" and CUSTOM_GRADIENT in op.node_def.attr
        if own and _depends(op, read):
            return True
        for name in names_called(op):
            if not knows_function(op.graph, name):
                continue  # One of an older kind, in which Python says nothing of gradients.
            # Of what a function in the graph is given, anything may come from a weight.
            inner = function_in(op.graph, name)
            if _loses(inner.get_operations(), {tensor.name for tensor in inner.inputs}):
                return True
    return False


def _depends(op: tf.Operation, read: Collection[str | None]) -> bool:
    """Returns whether results of a function with a gradient of its own depend on some tensors, but
    for its arguments.
    """
    number = results_of_own_gradient(op)
    if number is None:
        return False
    arguments = {tensor.name for tensor in op.inputs[number:]}
    seen, pending = set(), list(op.inputs[:number])
    while pending:
        tensor = pending.pop()
        if tensor.name in seen or tensor.name in arguments:
            continue
        if tensor.name in read:
            return True
        seen.add(tensor.name)
        pending += tensor.op.inputs
    return False
