"""TensorFlow's vectorization, of which nothing is promised but `tf.vectorized_map`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tfdp.gradients.dependence import known_branch
from tfdp.gradients.graphs import (
    CALLS,
    CASES,
    CONDITIONALS,
    LOOPS,
    functions_called,
    in_order,
    names_called,
)
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
    except (AssertionError, TypeError, ValueError, NotImplementedError) as error:
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
        converter = _CONVERTERS.get(op.type)
        if converter is not None:
            op.pfor_converter = converter
        for name in names_called(op):
            if knows_function(graph, name):
                _note_converters(function_in(graph, name))


def _by_tensorflow(inputs: Any) -> Any:
    return pfor._pfor_converter_registry[inputs.op_type](inputs)


def _convert_squeeze(inputs: Any) -> Any:
    """Converts an operation that drops axes of length 1.

    Where it drops every such axis, TensorFlow's conversion drops that of records, too, if there is
    one: a sample of one record ended the run.
    """
    if inputs.get_attr("squeeze_dims"):
        return _by_tensorflow(inputs)
    shape, tensor = inputs.op.inputs[0].shape, inputs.stacked_input(0)
    if not shape.is_fully_defined():
        records, lengths = tf.split(tf.shape(tensor), [1, -1])
        kept = tf.concat([records, tf.boolean_mask(lengths, lengths != 1)], 0)
        return pfor.wrap(tf.reshape(tensor, kept), True)
    axes = [i + 1 for i, length in enumerate(shape) if length == 1]
    return pfor.wrap(tf.squeeze(tensor, axes) if axes else tensor, True)


def _convert_roll(inputs: Any) -> Any:
    """Converts what rolls along axes: TensorFlow's conversion takes those that are counted from the
    end for others.
    """
    axes = inputs.unstacked_input(2)
    rank = tf.rank(inputs.stacked_input(0)) - 1
    axes = tf.math.floormod(axes, tf.cast(rank, axes.dtype))
    return _by_tensorflow(_with_input(inputs, 2, axes))


def _convert_transpose(inputs: Any) -> Any:
    """Converts what puts axes in another order: likewise."""
    order = tf.get_static_value(inputs.op.inputs[1])
    if order is None or min(order, default=0) >= 0:
        return _by_tensorflow(inputs)
    return _by_tensorflow(_with_input(inputs, 1, tf.constant(order % len(order))))


def _convert_segments(inputs: Any) -> Any:
    """Converts what adds up segments.

    A number of a segment that there is none of is left out by XLA, and on a GPU. TensorFlow's
    conversion made it one of the next record.
    """
    ids, number = inputs.input(1), inputs.unstacked_input(2)
    exist = ids.t < tf.cast(number, ids.t.dtype)
    ids = pfor.wrap(tf.where(exist, ids.t, -tf.ones_like(ids.t)), ids.is_stacked)
    return _by_tensorflow(
        type(inputs)(inputs.pfor, inputs.op, [inputs.input(0), ids, inputs.input(2)])
    )


def _convert_where_alike(inputs: Any) -> Any:
    """Converts what TensorFlow's conversion is right about where all operands have one shape."""
    first, *others = (tensor.shape for tensor in inputs.op.inputs)
    if not first.is_fully_defined() or any(list(first) != list(other) for other in others):
        raise VectorizingError(f"{inputs.op_type} ({inputs.op.name}) broadcasts its operands.")
    return _by_tensorflow(inputs)


def _convert_bias(inputs: Any) -> Any:
    """Converts what adds a bias: TensorFlow's conversion of one that follows a record, along the
    second axis, is made for four axes.
    """
    rank = inputs.op.inputs[0].shape.rank
    if inputs.get_attr("data_format") == b"NHWC" or not inputs.input(1).is_stacked or rank is None:
        return _by_tensorflow(inputs)
    inputs.stack_inputs()
    tensor, bias = (value.t for value in inputs.inputs)
    records, channels = tf.unstack(tf.shape(bias))
    along = tf.stack([records, 1, channels, *[1] * (rank - 2)])
    return pfor.wrap(tensor + tf.reshape(bias, along), True)


def _convert_text(inputs: Any) -> Any:
    """Converts what writes a text: TensorFlow's conversion writes one of all records, which is only
    fit to be printed.
    """
    if {op.type for op in inputs.op.outputs[0].consumers()} <= {"PrintV2"}:
        return _by_tensorflow(inputs)
    raise VectorizingError(f"{inputs.op_type} ({inputs.op.name}) writes a text of a record.")


def _convert_written(inputs: Any) -> Any:
    """Converts what writes to a list: TensorFlow's conversion forgets that the list may grow."""
    if inputs.get_attr("resize_if_index_out_of_bounds"):
        raise VectorizingError(f"{inputs.op_type} ({inputs.op.name}) writes to a list that grows.")
    return _by_tensorflow(inputs)


def _refuse(inputs: Any) -> Any:
    raise VectorizingError(f"{inputs.op_type} ({inputs.op.name}) reads places of other records.")


def _with_input(inputs: Any, place: int, tensor: tf.Tensor) -> Any:
    """Returns inputs with another one, the same for all records, in a place."""
    values = list(inputs.inputs)
    values[place] = pfor.wrap(tensor, False)
    return type(inputs)(inputs.pfor, inputs.op, values)


def _convert_softmax(inputs: Any) -> Any:
    """Converts a softmax: of rows, as TensorFlow's takes at most five axes."""
    tensor = inputs.stacked_input(0)
    if tensor.shape.rank is not None and tensor.shape.rank < 6:
        return _by_tensorflow(inputs)
    shape = tf.shape(tensor)
    rows = tf.nn.softmax(tf.reshape(tensor, tf.stack([-1, shape[-1]])))
    return pfor.wrap(tf.reshape(rows, shape), True)


def _convert_zeros(inputs: Any) -> Any:
    """Converts what makes zeros: of a list TensorFlow's conversion would make a number."""
    if inputs.op.inputs[0].dtype != tf.variant:
        return _by_tensorflow(inputs)
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
    found = _by_tensorflow(inputs).t
    if of_records and not by_record:
        found = tf.transpose(found, tf.concat([[1, 0], tf.range(2, tf.rank(found))], 0))
    return _of_known_shapes(inputs, [pfor.wrap(found, True)])


def _convert_read(inputs: Any) -> Any:
    """Converts what reads lists: those of all records do not know the shapes of their elements."""
    found = _by_tensorflow(inputs)
    return _of_known_shapes(inputs, [found] if hasattr(found, "is_stacked") else found)


def _of_known_shapes(inputs: Any, found: Sequence[Any]) -> list[Any]:
    """Notes the shapes of what an operation gives for all records, as far as those for one are
    known.
    """
    for tensor, value in zip(inputs.op.outputs, found, strict=True):
        value.t.set_shape(_shape(tensor, value.is_stacked))
    return list(found)


def _convert_loop(inputs: Any) -> Any:
    """Converts a loop.

    TensorFlow's conversion is made for loops that end earlier for some records than for others:
    there is a branch in every turn, and the turn is traced several times. Where records do not
    decide when it ends, a loop of the turns of all records does.
    """
    op = inputs.op
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
        return _converted(graph, list(map(pfor.wrap, state, stacked)), inputs.pfor)

    def turn(*state):
        values = of_all_records(body, state)
        if any(value.is_stacked and not is_ for value, is_ in zip(values, stacked, strict=True)):
            raise VectorizingError(
                f"{op.type} ({op.name}) is not seen to follow records in every turn."
            )
        # What is the same for all records may differ in the next turn.
        found = type(inputs)(inputs.pfor, op, values)
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


def _convert_branches(inputs: Any) -> Any:
    """Converts branches.

    Where records decide, TensorFlow's conversion runs each branch on the records that take it. One
    that none of a sample takes could end the run, and how long it takes tells how many do. All
    branches run on all records instead.
    """
    chosen, *arguments = inputs.inputs
    op, number, results = inputs.op, len(inputs.op.outputs), []
    branch = known_branch(op)
    if branch is not None:
        return _converted(functions_called(op)[branch], arguments, inputs.pfor)[:number]
    if not chosen.is_stacked:
        return _by_tensorflow(inputs)
    if any(tensor.dtype == tf.variant for tensor in op.outputs):
        raise VectorizingError(f"{op.type} ({op.name}) gives lists.")
    graphs = functions_called(op)
    for shapes in zip(
        *([t.shape for t in graph.outputs[:number]] for graph in graphs), strict=True
    ):
        # Others would be broadcast to each other.
        if not shapes[0].is_fully_defined() or any(shape != shapes[0] for shape in shapes):
            raise VectorizingError(f"{op.type} ({op.name}) may give results of other sizes.")
    for graph in graphs:
        values = _converted(graph, arguments, inputs.pfor)[:number]
        found = type(inputs)(inputs.pfor, op, values)
        found.stack_inputs()
        results.append([value.t for value in found.inputs])
    if op.type in CONDITIONALS:
        first = [chosen.t]
    else:  # A number of none of them is that of the last one.
        first = [chosen.t == i for i in range(len(results) - 1)]
    outputs = results[-1]
    for is_chosen, values in zip(first, results[:-1], strict=True):
        outputs = [
            tf.where(tf.reshape(is_chosen, [-1] + [1] * len(of_one.shape)), a, b)
            for of_one, a, b in zip(op.outputs, values, outputs, strict=True)
        ]
    return [pfor.wrap(tensor, True) for tensor in outputs]


def _convert_call(inputs: Any) -> Any:
    """Converts what calls a function: TensorFlow's conversion traces it by AutoGraph, which raises
    an error of its own in the place of a `VectorizingError`.
    """
    (graph,) = functions_called(inputs.op)
    return _converted(graph, inputs.inputs, inputs.pfor)[: len(inputs.op.outputs)]


def _converted(graph: Any, arguments: list[Any], records: Any) -> list[Any]:
    """Returns what a function gives for all records, given its arguments, and whether they follow
    records.
    """
    converter = pfor.PFor(
        records.loop_var,
        records.loop_len_vector[0],
        graph.get_operations(),
        records.fallback_to_while_loop,
        records.all_indices,
        records.all_indices_partitioned,
        records.pfor_config,
    )
    for inside, value in zip(graph.inputs, arguments, strict=True):
        converter._add_conversion(inside, value)
    return [converter._convert_helper(output) for output in graph.outputs]


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


_CONVERTERS = {
    **dict.fromkeys(CALLS, _convert_call),
    **dict.fromkeys(LOOPS, _convert_loop),
    **dict.fromkeys((*CONDITIONALS, *CASES), _convert_branches),
    **dict.fromkeys(
        [f"UnsortedSegment{kind}" for kind in ("Max", "Min", "Prod", "Sum")], _convert_segments
    ),
    **dict.fromkeys(
        [
            f"SparseSegment{kind}{end}"
            for kind in ("Mean", "SqrtN", "Sum")
            for end in ("", "Grad", "GradV2", "WithNumSegments")
        ],
        _refuse,
    ),
    "BiasAdd": _convert_bias,
    "Roll": _convert_roll,
    "Softmax": _convert_softmax,
    "SoftmaxCrossEntropyWithLogits": _convert_where_alike,
    "Squeeze": _convert_squeeze,
    "StringFormat": _convert_text,
    "TensorListElementShape": _convert_element_shape,
    "TensorListGather": _convert_gather,
    "TensorListGetItem": _convert_read,
    "TensorListPopBack": _convert_read,
    "TensorListSetItem": _convert_written,
    "TensorListStack": _convert_read,
    "Transpose": _convert_transpose,
    "ZerosLike": _convert_zeros,
}
