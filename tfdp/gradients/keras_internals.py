"""Everything in use here that Keras and TensorFlow do not promise to keep, in one place."""

from tensorflow.python.framework import op_def_registry


def is_stateful(kind: str) -> bool:
    """Returns whether TensorFlow says of a kind of operation that it does more than compute its
    outputs; True of kinds that it does not know.

    TensorFlow shows this of an operation in a graph, but not of one in a function's definition.
    """
    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful
