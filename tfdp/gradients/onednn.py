"""Faults of TensorFlow to stay clear of."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.graphs import has, knows_functions
from tfdp.gradients.keras_internals import shape_in_definition

_MATMULS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def corrupts_memory(graph: tf.Graph) -> bool:
    """Returns whether a graph may hit a heap corruption in oneDNN's batched matrix product.

    TensorFlow 2.21 (and, as reported, 2.20) on a CPU writes out of bounds in some products of rank
    4 or more (github.com/tensorflow/tensorflow/issues/117700). They are those whose operands differ
    in their batch dimensions, one of which is 1. A Dense layer over a sequence becomes just that
    under `tf.vectorized_map` over batches of one. XLA does not use the faulty kernel. Of functions
    whose graphs are not known the shapes of results are: there, any product of rank 4 counts.
    """

    def may_be(op):
        return is_faulty_product(op) or is_open_product(op)

    if knows_functions(graph):
        return has(graph, may_be)
    functions = graph.as_graph_def(add_shapes=True).library.function
    return any(map(may_be, graph.get_operations())) or any(
        _may_be_faulty(node) for f in functions for node in f.node_def if node.op in _MATMULS
    )


def needs_compiling(graph: tf.Graph) -> bool:
    """Returns whether a graph calls a function that XLA compiles because TensorFlow has no other
    kernel for it on a CPU, which `tf.vectorized_map` does not know.

    Keras has XLA compile convolutions of groups. Without it TensorFlow 2.21 computes only those
    along one or two axes, and all of their gradients in float32 only.
    """
    compiled = [f for f in graph.as_graph_def().library.function if f.attr["_XlaMustCompile"].b]
    return any(
        node.op.startswith("Conv3D")
        or (node.op.startswith("Conv2D") and tf.as_dtype(node.attr["T"].type) != tf.float32)
        for f in compiled
        for node in f.node_def
    )


def is_open_product(op: tf.Operation) -> bool:
    """Returns whether an operation is a product of operands of which a rank is not known."""
    return op.type in _MATMULS and any(t.shape.rank is None for t in op.inputs)


def is_faulty_product(op: tf.Operation) -> bool:
    """Returns whether an operation is a product that may be written out of bounds
    (`corrupts_memory`), of operands of known ranks.
    """
    if op.type not in _MATMULS or any(t.shape.rank is None for t in op.inputs):
        return False
    left, right = (t.shape.as_list()[:-2] for t in op.inputs)
    return max(len(left), len(right)) >= 2 and left != right


def is_faulty_on_batch(op: tf.Operation) -> bool:
    """Returns whether a product of records with constants, [n, 1, m, k] and [k, l], may be one of
    those that were seen to be written out of bounds in TensorFlow 2.21. Others, of operands that
    both have several matrices, were not.
    """
    if not is_faulty_product(op):
        return False
    left, right = (t.shape for t in op.inputs)
    return left.rank == 4 and left[1] in (1, None) and set(right[:-2]) <= {1}


def safe_product(
    op: tf.Operation,
    operands: Sequence[tf.Tensor],
    make: Callable[[list[tf.Tensor]], list[tf.Tensor]],
) -> tf.Tensor:
    """Returns the result of a product that may be written out of bounds, by one that is not.

    Args:
        op: The operation.
        operands: What it is to be called on.
        make: Makes the operation anew, on other operands.
    """
    shapes = [tf.shape(t) for t in operands]
    batch = tf.broadcast_dynamic_shape(*(shape[:-2] for shape in shapes))
    # One matrix is multiplied with many as it is.
    single = [set(t.shape[:-2]) <= {1} for t in op.inputs]
    single[1] = single[1] and not single[0]
    pair = [
        _merged(t, 2)
        if is_one
        else _merged(tf.broadcast_to(t, tf.concat([batch, shape[-2:]], 0)), 3)
        for t, shape, is_one in zip(operands, shapes, single, strict=True)
    ]
    (product,) = make(pair)
    return tf.reshape(product, tf.concat([batch, tf.shape(product)[-2:]], 0))


def _merged(tensor: tf.Tensor, rank: int) -> tf.Tensor:
    """Returns a batch of matrices as one matrix, or as a batch along one axis."""
    leading = [-1] if rank > 2 else []
    return tf.reshape(tensor, tf.concat([leading, tf.shape(tensor)[-2:]], 0))


def _may_be_faulty(node: Any) -> bool:
    shape = shape_in_definition(node)
    return shape is None or shape.unknown_rank or len(shape.dim) >= 4


def corrupts_filter_gradient(kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether the gradient of a convolution's kernel may be written out of bounds.

    TensorFlow 2.21 on a CPU does so, or fails, where windows are single places, a stride is more
    than 1, less than 16 channels come in, and the last places are in no window.

    Args:
        kernel: Size of a window along every axis.
        strides: Likewise.
    """
    return set(kernel) == {1} and set(strides) != {1}


def leaves_numbers_unwritten(channels: int, strides: Sequence[int], windows: int | None) -> bool:
    """Returns whether a convolution may leave some of its results as they were in the memory, where
    numbers of other records may have been.

    TensorFlow 2.21 on a CPU does so in single precision, along two or three axes, if there is one
    channel, and one window along the last axis with a stride of more than 1, and the stride along
    the axis before is 1.

    Args:
        channels: Of the inputs.
        strides: Along every axis.
        windows: Number of windows along the last axis; None where it is not known.
    """
    is_along = len(strides) > 1 and strides[-2] == 1 and strides[-1] > 1
    return channels == 1 and is_along and windows in (None, 1)


def axis_of_one_channel(op: tf.Operation) -> int | None:
    """Returns the axis of the channel that such a convolution is called on; None of any other
    operation.

    Args:
        op: In a graph.
    """
    if op.type not in ("Conv2D", "Conv3D"):
        return None
    # With channels first, TensorFlow transposes, and does the same.
    axis = 1 if op.get_attr("data_format").startswith(b"NC") else -1
    kernel, outputs, strides = op.inputs[1].shape, op.outputs[0].shape, op.get_attr("strides")
    channels = 1 if kernel.rank is None or kernel[-2] is None else kernel[-2]
    windows = None if outputs.rank is None else outputs[-1 if axis == 1 else -2]
    along = strides[2:] if axis == 1 else strides[1:-1]
    return axis if leaves_numbers_unwritten(channels, along, windows) else None


def of_two_channels(source: tf.Tensor, kernel: tf.Tensor, axis: int = -1) -> list[tf.Tensor]:
    """Returns the inputs and the kernel of a convolution of two channels, with zeros for the second
    one, whose results are all written.

    Args:
        source: [n, *spatial, 1].
        kernel: [*kernel, 1, filters].
        axis: That of the channels of `source`.
    """
    # TensorFlow would lose channels of `tf.pad`.
    return [tf.concat([t, tf.zeros_like(t)], at) for t, at in ((source, axis), (kernel, -2))]
