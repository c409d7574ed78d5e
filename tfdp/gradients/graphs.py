"""What TensorFlow's graphs hold: arguments, operations in an order in which they can be made, and
the functions that these call.
"""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdp.gradients import kernels
from tfdp.gradients.keras_internals import (
    COLOCATION,
    CUSTOM_GRADIENT,
    function_in,
    knows_function,
)

# Operations that call functions, by how they do.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS = ("While", "StatelessWhile")
CONDITIONALS = ("If", "StatelessIf")
CASES = ("Case", "StatelessCase")


def leaves_of(graph: Any) -> list[tf.Tensor]:
    """Returns the arguments of a concrete function, in its graph."""
    return graph.inputs[: len(graph.inputs) - len(graph.captures)]


def functions_called(op: tf.Operation) -> list[Any]:
    """Returns the graphs of the functions that an operation calls."""
    return [function_in(op.graph, name) for name in names_called(op)]


def names_called(op: tf.Operation) -> list[str]:
    """Returns the names of the functions that an operation calls."""
    kind = op.type
    if kind not in _CALLING:
        attributes = op.op_def.attr
        _CALLING[kind] = [a.name for a in attributes if a.type in ("func", "list(func)")]
    return [name for attr in _CALLING[kind] for name in _names(op.get_attr(attr))]


# The attributes of a kind of operation that name functions. To ask each operation takes longer.
_CALLING: dict[str, list[str]] = {}


def _names(value: Any) -> list[str]:
    return [f.name for f in (value if isinstance(value, list) else [value])]


def in_order(ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns operations and all that they need, each after what it needs.

    The order in which they were made is another one: the gradient of a loop gives it more inputs.
    """
    done: dict[str, tf.Operation] = {}
    pending = list(ops)[::-1]
    while pending:
        op = pending[-1]
        before = [*(t.op for t in op.inputs), *op.control_inputs]
        missing = [needed for needed in before if needed.name not in done]
        if missing and op.name not in done:
            pending += missing
        else:
            done[pending.pop().name] = op
    return list(done.values())


def has(graph: Any, says: Callable[[tf.Operation], bool]) -> bool:
    """Returns whether something is true of an operation of a graph, or of a function it calls."""
    return any(
        says(op) or any(has(called, says) for called in functions_called(op))
        for op in graph.get_operations()
    )


def knows_functions(graph: Any) -> bool:
    """Returns whether the graphs of all functions are known that a graph calls, and these call: of
    some of those that TensorFlow makes by itself they are not.
    """
    return all(
        knows_function(graph, name) and knows_functions(function_in(graph, name))
        for op in graph.get_operations()
        for name in names_called(op)
    )


def has_own_gradients(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, has a `tf.custom_gradient`."""
    return has(graph, lambda op: CUSTOM_GRADIENT in op.node_def.attr)


def has_unsafe_gradients(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, has an operation whose gradient is
    safe only where the graph that holds the gradient is checked.
    """
    return has(graph, lambda op: op.type in kernels.WITH_UNSAFE_GRADIENTS)


def create(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Makes an operation anew, with other inputs, in the current graph."""
    attributes = {
        name: value for name, value in op.node_def.attr.items() if not name.startswith(COLOCATION)
    }
    arguments = op.op_def.input_arg
    if not any(argument.number_attr or argument.type_list_attr for argument in arguments):
        # A check may have made an integer input wider than it was, so the types of the new inputs
        # count.
        for argument, tensor in zip(arguments, inputs, strict=True):
            if argument.type_attr:
                dtype = tensor.dtype.as_datatype_enum
                attributes[argument.type_attr] = tf.compat.v1.AttrValue(type=dtype)
    graph = tf.compat.v1.get_default_graph()
    dtypes = [t.dtype for t in op.outputs]
    return list(graph.create_op(op.type, inputs, dtypes, attrs=attributes).outputs)
