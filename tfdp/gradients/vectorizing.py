"""TensorFlow's vectorization, of which nothing is promised but `tf.vectorized_map`."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tfdp.gradients.graphs import LOOPS, functions_called, in_order, names_called
from tfdp.gradients.keras_internals import function_in, knows_function


class VectorizingError(TypeError):
    """TensorFlow cannot vectorize a function."""


# What these give is the same for all records, whatever they are called on.
_OF_ALL = ("Rank", "Shape", "Size", "TensorListElementShape", "TensorListLength")

# TensorFlow's operations take tensors of at most eight axes, and some of fewer. With more, some of
# those that are vectorized raise when they run, and others give wrong numbers. A few take any.
_MOST_AXES = {"ArgMax": 7, "ArgMin": 7, "Pad": 6, "PadV2": 6}
_ANY_AXES = {
    *("AddV2", "Cast", "ExpandDims", "Fill", "Identity", "Mul", "Neg", "OnesLike", "Prod"),
    *("Reshape", "Shape", "Squeeze", "Sum", "Tile", "Transpose", "ZerosLike"),
}


def vectorized_outputs(
    graph: Any, outputs: list[tf.Tensor], leaves: list[tf.Tensor], rows: Any
) -> list[tf.Tensor]:
    """Returns what tensors of a record's graph are for all records, [n, ...], in the current graph.

    As `tf.vectorized_map`, which has no way to begin with a graph, and builds one of its own.

    Args:
        graph: That of a concrete function of a record's tensors.
        outputs: Tensors in it.
        leaves: The tensors of all records, [n, ...], where a record has [...].
        rows: n.

    Raises:
        VectorizingError: TensorFlow cannot vectorize an operation.
    """
    _note_converters(graph)
    with graph.as_default():
        index = tf.compat.v1.placeholder_with_default(0, [])
    converter = pfor.PFor(index, rows, graph.get_operations(), fallback_to_while_loop=True)
    for inside, leaf in zip(graph.inputs[: len(leaves)], leaves, strict=True):
        converter._add_conversion(inside, pfor.wrap(leaf, True))
    for outside, inside in graph.captures:
        converter._add_conversion(inside, pfor.wrap(outside, False))
    try:
        return [converter.convert(output) for output in outputs]
    except (
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:  # Of a list of lists, for example.
        raise VectorizingError(str(error)) from error


def _note_converters(graph: Any) -> None:
    """Notes at operations of a graph, and of the functions it calls, what converts them in the
    place of TensorFlow's own converters.

    Raises:
        VectorizingError: With the axis of records there would be too many axes.
    """
    for op in graph.get_operations():
        rank = max((t.shape.rank or 0 for t in (*op.inputs, *op.outputs)), default=0)
        if rank >= _MOST_AXES.get(op.type, 8) and op.type not in _ANY_AXES:
            raise VectorizingError(f"{op.type} ({op.name}) takes no axis of records beside {rank}.")
        if op.type in LOOPS:
            op.pfor_converter = _convert_loop
        elif op.type == "Squeeze" and not op.get_attr("squeeze_dims"):
            if op.inputs[0].shape.is_fully_defined():
                op.pfor_converter = _convert_squeeze
        elif op.type == "Softmax":
            op.pfor_converter = _convert_softmax
        elif op.type == "ZerosLike" and op.inputs[0].dtype == tf.variant:
            op.pfor_converter = _convert_list_of_zeros
        elif op.type == "TensorListElementShape":
            op.pfor_converter = _convert_element_shape
        elif op.type == "TensorListGather":
            op.pfor_converter = _convert_gather
        for name in names_called(op):
            if knows_function(graph, name):
                _note_converters(function_in(graph, name))


def _convert_squeeze(inputs: Any) -> Any:
    """Converts an operation that drops every axis of length 1.

    TensorFlow's conversion drops that of records, too, if there is one: a sample of one record
    ended the run.
    """
    shape = inputs.op.inputs[0].shape
    axes = [i + 1 for i, length in enumerate(shape) if length == 1]
    tensor = inputs.stacked_input(0)
    return pfor.wrap(tf.squeeze(tensor, axes) if axes else tensor, True)


def _convert_softmax(inputs: Any) -> Any:
    """Converts a softmax: of rows, as TensorFlow's takes at most five axes."""
    tensor = inputs.stacked_input(0)
    shape = tf.shape(tensor)
    rows = tf.nn.softmax(tf.reshape(tensor, tf.stack([-1, shape[-1]])))
    return pfor.wrap(tf.reshape(rows, shape), True)


def _convert_list_of_zeros(inputs: Any) -> Any:
    """Converts what makes a list of zeros, of which TensorFlow's conversion would make a number."""
    return pfor.wrap(tf.zeros_like(inputs.stacked_input(0)), True)


def _convert_element_shape(inputs: Any) -> Any:
    """Converts what gives the shape of a list's elements. Those of lists of all records do not know
    theirs.
    """
    (of_elements,) = pfor._parse_variant_shapes_and_types(inputs.op.inputs[0])
    shape = tf.TensorShape(of_elements.shape)
    if not shape.is_fully_defined():
        raise VectorizingError("A list's elements have an unknown shape.")
    return pfor.wrap(tf.constant(shape.as_list(), inputs.op.outputs[0].dtype), False)


def _convert_gather(inputs: Any) -> Any:
    """Converts what stacks some elements of a list.

    TensorFlow's conversion leaves records behind the axis of the elements: of as many elements as
    records it gave each record numbers of others.
    """
    (_, of_records, _), (_, by_record, _), _ = inputs.inputs
    found = pfor._pfor_converter_registry["TensorListGather"](inputs)
    if by_record or not of_records:
        return found
    rank = tf.rank(found.t)
    return pfor.wrap(tf.transpose(found.t, tf.concat([[1, 0], tf.range(2, rank)], 0)), True)


def _convert_loop(inputs: Any) -> Any:
    """Converts a loop.

    TensorFlow's conversion is made for loops that end earlier for some records than for others:
    there is a branch in every turn, and the turn is traced several times. Where records do not
    decide when it ends, a loop of the turns of all records does.
    """
    op, records = inputs.op, inputs.pfor
    condition, body = functions_called(op)
    stacked = [value.is_stacked for value in inputs.inputs]
    known: list[bool] = []
    while stacked != known:  # What one turn gives is what the next one takes.
        known = stacked
        stacked = [was or is_ for was, is_ in zip(known, _stacked(body, known), strict=True)]
    if _stacked(condition, stacked)[0]:
        return pfor.WhileV2(inputs)()
    missing = [i for i, value in enumerate(inputs.inputs) if stacked[i] and not value.is_stacked]
    inputs.stack_inputs(missing, tile_variants=True)

    def of_all_records(graph, state):
        converter = pfor.PFor(
            records.loop_var,
            records.loop_len_vector[0],
            graph.get_operations(),
            records.fallback_to_while_loop,
            records.all_indices,
            records.all_indices_partitioned,
            records.pfor_config,
        )
        for inside, tensor, is_stacked in zip(graph.inputs, state, stacked, strict=True):
            converter._add_conversion(inside, pfor.wrap(tensor, is_stacked))
        return [converter._convert_helper(output) for output in graph.outputs]

    def turn(*state):
        values = of_all_records(body, state)
        if any(value.is_stacked and not is_ for value, is_ in zip(values, stacked, strict=True)):
            raise VectorizingError(
                f"{op.type} ({op.name}) is not seen to follow records in every turn."
            )
        # What is the same for all records may differ in the next turn.
        found = type(inputs)(records, op, values)
        missing = [i for i, value in enumerate(values) if stacked[i] and not value.is_stacked]
        found.stack_inputs(missing, tile_variants=True)
        return [value.t for value in found.inputs]

    outputs = tf.while_loop(
        lambda *state: tf.reshape(of_all_records(condition, state)[0].t, []),
        turn,
        [value.t for value in inputs.inputs],
        shape_invariants=list(map(_shape, op.outputs, stacked)),
        parallel_iterations=op.get_attr("parallel_iterations"),
    )
    return list(map(pfor.wrap, outputs, stacked))


def _stacked(graph: Any, inputs: list[bool]) -> list[bool]:
    """Returns for every output of a function whether it may differ between records.

    Args:
        graph: Of the function.
        inputs: Whether each of its inputs may.
    """
    names = {tensor.name for tensor, is_ in zip(graph.inputs, inputs, strict=True) if is_}
    for op in in_order(tensor.op for tensor in graph.outputs):
        if op.type == "Placeholder" or op.type in _OF_ALL:
            continue
        # What draws numbers, or makes lists, gives others to every record.
        gives_others = pfor._is_stateful_pfor_op(op)
        if gives_others or any(tensor.name in names for tensor in op.inputs):
            names |= {tensor.name for tensor in op.outputs}
    return [tensor.name in names for tensor in graph.outputs]


def _shape(tensor: tf.Tensor, is_stacked: bool) -> tf.TensorShape:
    """Returns the shape of a tensor of a record for all records. A list has all records in each of
    its elements.
    """
    of_records = is_stacked and tensor.dtype != tf.variant
    return tf.TensorShape([None] if of_records else []).concatenate(tensor.shape)
