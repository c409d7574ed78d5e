"""Operations that read or write at places that integers of a record name.

TensorFlow leaves it to the device what happens where such an integer is out of range. A kernel may
stop the run, XLA clamps or skips, and where records have been put into one tensor the place may
be another record's. So every such operation that a record's own integers reach is replaced by one
that gives the same where they are in range, and else NaN. A record with a NaN contributes nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# Inputs of an operation that are in range, and whether the given ones were.
Safe = tuple[list[tf.Tensor], tf.Tensor]


class Check(NamedTuple):
    """How the integers that an operation takes as places are checked.

    Attributes:
        places: Which of its inputs they are.
        safe: From the operation and its inputs to inputs that are in range, and whether the given
            ones were.
        instead: From the operation and inputs that are in range to outputs; None makes it anew.
    """

    places: tuple[int, ...]
    safe: Callable[[tf.Operation, list[tf.Tensor]], Safe]
    instead: Callable[[tf.Operation, list[tf.Tensor]], list[tf.Tensor]] | None = None


# What takes integers of any value, and of names of arguments those that nothing depends on but what
# is drawn.
_OF_ANY_INTEGERS = (
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert", "LeftShift", "RightShift"),
    *("Case", "InTopK", "InTopKV2", "MaxPoolGradWithArgmax", "PopulationCount", "StatelessCase"),
)
_INTEGERS = {t.as_datatype_enum for t in (tf.int8, tf.int16, tf.int32, tf.int64)}
_OF_DRAWS = ("alg", "algorithm", "counter", "key", "seed", "seed2")
SELECTIONS = ("ListDiff", "Unique", "UniqueWithCounts", "Where")
# Further operations whose results are of a size that follows the numbers in all of their inputs.
_SIZED = (*SELECTIONS, "RaggedRange", "Range", "UniqueV2", "UniqueWithCountsV2")


class RecordDependentShapeError(ValueError):
    """The shape of a result depends on the numbers of a record."""


def in_range(
    ids: tf.Tensor, size: Any, lowest: Any = 0, axis: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids, with `lowest` in the place of those out of range, and whether all were in
    range.

    Args:
        ids: Integers of any shape.
        size: The lowest integer that is too large; broadcast with `ids`.
        lowest: The lowest that is not too small.
        axis: As for `tf.reduce_all`: the axes along which all must be; by default all axes.
    """
    fit = all(isinstance(b, int) and ids.dtype.min <= b <= ids.dtype.max for b in (lowest, size))
    wide = ids if fit else tf.cast(ids, tf.int64)
    good = (wide >= tf.cast(lowest, wide.dtype)) & (wide < tf.cast(size, wide.dtype))
    return tf.where(good, ids, tf.cast(lowest, ids.dtype)), tf.reduce_all(good, axis)


def nowhere(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a scalar for results at places that do not exist. It is NaN, or for integers a number
    that is out of every range, and so leads to NaN where it is used as an index.
    """
    dtype = tensor.dtype
    if dtype.is_floating or dtype.is_complex:
        return tf.constant(float("nan"), dtype)
    if dtype.is_integer:
        return tf.constant(dtype.max, dtype)
    return tf.zeros([], dtype)


def check_of(op: tf.Operation) -> Check | None:
    """Returns how an operation's places are checked, or None where it takes none."""
    if op.type in OF_INTEGERS and not op.inputs[0].dtype.is_integer:
        return None
    return CHECKS.get(op.type)


def sizes_of(op: tf.Operation) -> dict[int, str]:
    """Returns which inputs of an operation are sizes, axes or places, or whatever else can only be
    integers, and their names. Some may have checks.
    """
    if op.type not in _ARGUMENTS:
        _ARGUMENTS[op.type] = _arguments(op.op_def)
    arguments = _ARGUMENTS[op.type]
    if not any(is_size for _, is_size in arguments):
        return {}
    found: dict[int, str] = {}
    place = 0
    for argument, is_size in arguments:
        count = 1
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        if is_size:
            found |= dict.fromkeys(range(place, place + count), argument.name)
        place += count
    return found


_ARGUMENTS: dict[str, list[tuple[Any, bool]]] = {}


def _arguments(definition: Any) -> list[tuple[Any, bool]]:
    """Returns the arguments of a kind of operation, and whether each is a size or the like."""
    of_attributes = {a.name: set(a.allowed_values.list.type) for a in definition.attr}

    def is_size(argument: Any) -> bool:
        if definition.name in _OF_ANY_INTEGERS or argument.name in _OF_DRAWS:
            return False
        types = of_attributes.get(argument.type_attr or argument.type_list_attr, {argument.type})
        return definition.name in _SIZED or bool(types) and types <= _INTEGERS

    return [(argument, is_size(argument)) for argument in definition.input_arg]


def checked(
    check: Check,
    op: tf.Operation,
    inputs: list[tf.Tensor],
    create: Callable[[list[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Returns the outputs of an operation that has a check, on inputs of whatever value.

    Args:
        check: The operation's.
        op: The operation, in any graph.
        inputs: What it is to be called on.
        create: Makes the operation anew, on other inputs.

    Raises:
        RecordDependentShapeError: the shape of a result depends on the inputs' values.
    """
    safe, good = check.safe(op, inputs)
    outputs = create(safe) if check.instead is None else check.instead(op, safe)
    return [o if o.dtype == tf.variant else tf.where(good, o, nowhere(o)) for o in outputs]


def _gather(op, inputs):
    params, indices, *axis = inputs
    at = 0
    if axis:
        at = tf.get_static_value(op.inputs[2])
        if at is None:
            raise RecordDependentShapeError(f"{op.name} gathers along an axis that is not fixed.")
    safe, good = in_range(indices, tf.shape(params, out_type=tf.int64)[int(at)])
    return [params, safe, *axis], good


def _resource_gather(op, inputs):
    if op.get_attr("batch_dims") != 0:
        raise RecordDependentShapeError(f"{op.name} gathers from a variable with batch_dims.")
    size = tf.raw_ops.VariableShape(input=inputs[0], out_type=tf.int64)[0]
    safe, good = in_range(inputs[1], size)
    return [inputs[0], safe], good


def _coordinates(shape: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return in_range(indices, shape[: tf.shape(indices)[-1]])


def _gather_nd(op, inputs):
    params, indices = inputs
    safe, good = _coordinates(tf.shape(params, out_type=tf.int64), indices)
    return [params, safe], good


def _resource_gather_nd(op, inputs):
    shape = tf.raw_ops.VariableShape(input=inputs[0], out_type=tf.int64)
    safe, good = _coordinates(shape, inputs[1])
    return [inputs[0], safe], good


def _scatter_nd(op, inputs):
    indices, updates, shape = inputs
    safe, good = _coordinates(shape, indices)
    return [safe, updates, shape], good


def _scatter_into(op, inputs):
    tensor, indices, updates = inputs
    safe, good = _coordinates(tf.shape(tensor, out_type=tf.int64), indices)
    return [tensor, safe, updates], good


def _segments(op, inputs):
    data, ids, number = inputs
    # Where many records are put into one tensor, the numbers of their segments are made one range,
    # which could be too long for 32 bits.
    ids, number = tf.cast(ids, tf.int64), tf.cast(number, tf.int64)
    # TensorFlow documents that negative ids are left out.
    good = ids < number
    return [data, tf.where(good, ids, -tf.ones_like(ids)), number], tf.reduce_all(good)


def _labels(op, inputs):
    safe, good = in_range(inputs[1], tf.shape(inputs[0], out_type=tf.int64)[-1])
    return [inputs[0], safe], good


def _sequence_lengths(op, inputs):
    size = tf.shape(inputs[0], out_type=tf.int64)[op.get_attr("seq_dim")]
    safe, good = in_range(inputs[1], size + 1)
    return [inputs[0], safe], good


def _slice(op, inputs):
    tensor, begin, size = inputs
    sizes = tf.get_static_value(op.inputs[2])
    if sizes is None or (sizes < 0).any():
        raise RecordDependentShapeError(
            f"{op.name} takes a slice whose length follows the record, or is not fixed."
        )
    last = tf.shape(tensor, out_type=tf.int64) - tf.cast(size, tf.int64)
    safe, good = in_range(begin, last + 1)
    return [tensor, safe, size], good


def _update_slice(op, inputs):
    tensor, update, begin = inputs
    last = tf.shape(tensor, out_type=tf.int64) - tf.shape(update, out_type=tf.int64)
    safe, good = in_range(begin, last + 1)
    return [tensor, update, safe], good


def _starts(op, shape, rank, begin):
    """Returns in-range starts of a strided slice that takes one place along some axes, flags of
    these in the order of `begin`, and whether all places were in range.
    """
    count = begin.shape[0]
    if rank is None or count is None:
        raise RecordDependentShapeError(f"{op.name} slices a tensor of unknown rank.")

    def has(mask, i):
        return bool(op.get_attr(f"{mask}_mask") >> i & 1)

    fixed = [tf.get_static_value(op.inputs[i], partial=True) for i in (1, 2)]
    named = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(count))
    axis, good, starts = 0, tf.constant(True), []
    for i in range(count):
        start = begin[i]
        if has("ellipsis", i):
            axis += rank - named
        elif not has("new_axis", i):
            if has("shrink_axis", i):
                size = tf.cast(shape[axis], tf.int64)
                start, is_good = in_range(start, size, -size)
                good &= is_good
            elif not all(
                has(mask, i) or (values is not None and values[i] is not None)
                for mask, values in zip(("begin", "end"), fixed, strict=True)
            ):
                raise RecordDependentShapeError(
                    f"{op.name} takes a slice whose length follows the record, or could. Use "
                    "tf.slice(x, begin, size) with a fixed size, or a mask."
                )
            axis += 1
        starts.append(start)
    shrinks = tf.constant([has("shrink_axis", i) for i in range(count)])
    return tf.stack(starts), shrinks, good


def _strided_slice(op, inputs):
    tensor, begin, end, strides = inputs
    starts, shrinks, good = _starts(op, tf.shape(tensor), tensor.shape.rank, begin)
    return [tensor, starts, tf.where(shrinks, starts + 1, end), strides], good


def _strided_slice_grad(op, inputs):
    shape, begin, end, strides, gradient = inputs
    starts, shrinks, good = _starts(op, shape, shape.shape[0], begin)
    return [shape, starts, tf.where(shrinks, starts + 1, end), strides, gradient], good


def _paddings(op, inputs):
    # This is the gradient of a slice. The numbers of zeros before and after it add up to the same
    # total for every record.
    tensor, paddings, *value = inputs
    total = tf.maximum(tf.reduce_sum(paddings, 1, keepdims=True), 0)
    good = tf.reduce_all(paddings >= 0)
    after = tf.concat([tf.zeros_like(total), total], 1)
    return [tensor, tf.where(good, paddings, after), *value], good


def _paddings_around_a_number(op, inputs):
    if tf.get_static_value(op.inputs[1]) is not None:
        return inputs, tf.constant(True)
    return _paddings(op, inputs)


def _number_around(op, inputs):
    # `tf.vectorized_map` would pad with zeros. TensorFlow has no gradient for the number, either.
    tensor, paddings, number = inputs
    inside = tf.pad(tf.ones_like(tensor, tf.bool), paddings)
    return [tf.where(inside, tf.pad(tensor, paddings), tf.stop_gradient(number))]


def _divisor(op, inputs):
    left, right = inputs
    good = tf.not_equal(right, tf.zeros_like(right))
    return [left, tf.where(good, right, tf.ones_like(right))], tf.reduce_all(good)


def _item(op, inputs):
    items, place, *others = inputs
    safe, good = in_range(place, tf.raw_ops.TensorListLength(input_handle=items))
    return [items, safe, *others], good


def _written_item(op, inputs):
    if op.get_attr("resize_if_index_out_of_bounds"):
        raise RecordDependentShapeError(
            f"{op.name} writes to an array without a fixed size at a place that follows a record."
        )
    (items, safe, item), good = _item(op, inputs)
    return [items, safe, tf.where(good, item, nowhere(item))], good


def _any_shift(op, inputs):
    return inputs, tf.constant(True)


def _exponent(op, inputs):
    left, right = inputs
    good = right >= tf.zeros_like(right)
    return [left, tf.where(good, right, tf.zeros_like(right))], tf.reduce_all(good)


def _bins(op, inputs):
    numbers, size, weights = inputs
    bound = op.inputs[1].op
    limits = bound.inputs if bound.type == "Minimum" else [op.inputs[1]]
    if all(tf.get_static_value(limit) is None for limit in limits):
        raise RecordDependentShapeError(
            f"{op.name} counts into as many bins as the largest integer asks for. Use "
            "tf.math.bincount(..., minlength=k, maxlength=k)."
        )
    # TensorFlow documents that integers which are too large are not counted.
    good = numbers >= 0
    return [tf.where(good, numbers, tf.zeros_like(numbers)), size, weights], tf.reduce_all(good)


def _refused(op, inputs):
    raise RecordDependentShapeError(
        f"{op.type} ({op.name}) makes a result whose shape follows the integers of a record, so "
        "that one record could exhaust the memory. Use an operation that is told the size: for "
        "segments tf.math.unsorted_segment_sum(..., num_segments)."
    )


def _all(names: str, check: Check) -> dict[str, Check]:
    return {name: check for name in names.split()}


OF_INTEGERS = ("Div", "FloorDiv", "FloorMod", "Mod", "Pow", "TruncateDiv", "TruncateMod")
CHECKS: dict[str, Check] = {
    **_all("Gather GatherV2", Check((1,), _gather)),
    "ResourceGather": Check((1,), _resource_gather),
    "GatherNd": Check((1,), _gather_nd),
    "ResourceGatherNd": Check((1,), _resource_gather_nd),
    "ScatterNd": Check((0,), _scatter_nd),
    **_all(
        "ScatterNdNonAliasingAdd TensorScatterAdd TensorScatterMax TensorScatterMin "
        "TensorScatterSub TensorScatterUpdate",
        Check((1,), _scatter_into),
    ),
    **_all(
        "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum",
        Check((1,), _segments),
    ),
    "SparseSoftmaxCrossEntropyWithLogits": Check((1,), _labels),
    "ReverseSequence": Check((1,), _sequence_lengths),
    "TensorListGetItem": Check((1,), _item),
    "TensorListSetItem": Check((1,), _written_item),
    "Roll": Check((0, 1), _any_shift),
    "Slice": Check((1, 2), _slice),
    "XlaDynamicUpdateSlice": Check((2,), _update_slice),
    "StridedSlice": Check((1, 2), _strided_slice),
    "StridedSliceGrad": Check((1, 2), _strided_slice_grad),
    "Pad": Check((1,), _paddings),
    "PadV2": Check((0, 1, 2), _paddings_around_a_number, _number_around),
    "DenseBincount": Check((0, 1), _bins),
    **_all("Div FloorDiv FloorMod Mod TruncateDiv TruncateMod", Check((1,), _divisor)),
    "Pow": Check((1,), _exponent),
    "Bincount": Check((0, 1), _refused),
    **_all(
        "DynamicPartition SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum",
        Check((1,), _refused),
    ),
    **_all("SegmentMaxV2 SegmentMinV2 SegmentProdV2 SegmentSumV2", Check((1, 2), _refused)),
    **_all("SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum", Check((1, 2), _refused)),
    **_all(
        "SparseSegmentMeanGrad SparseSegmentMeanWithNumSegments SparseSegmentSqrtNGrad "
        "SparseSegmentSqrtNWithNumSegments SparseSegmentSumGrad SparseSegmentSumWithNumSegments",
        Check((1, 2, 3), _refused),
    ),
    **_all("RaggedGather SparseToDense SparseTensorDenseMatMul", Check((0,), _refused)),
}
