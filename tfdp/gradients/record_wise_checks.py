"""Of every operation of TensorFlow that may be used in a block: when it keeps the records apart.

A check is asked about an operation of which at least one operand holds records and every other one
is a constant. It answers True only if row i of every result is a function of row i of the operands
that hold records. Axes and shapes that are not known when the graph is built are refused.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.gradients.bounds import are_places
from tfdp.gradients.mapping import meets_records
from tfdp.gradients.onednn import axis_of_one_channel, is_faulty_on_batch
from tfdp.gradients.static_values import static_value

Check = Callable[[tf.Operation, Sequence[tf.Tensor], Callable[[tf.Tensor], bool]], bool]


def _elementwise(op, inputs, is_records):
    rank = next(t.shape.rank for t in inputs if is_records(t))
    return all(t.shape.rank == rank if is_records(t) else meets_records(t, rank) for t in inputs)


def _of_as_many_bits(op, inputs, is_records):
    # Other sizes add an axis, or take the last one away.
    return inputs[0].dtype.size == op.outputs[0].dtype.size


def _remainder(op, inputs, is_records):
    # A whole number that is divided by zero ends the run.
    if not inputs[1].dtype.is_floating:
        divisor = static_value(inputs[1])
        if divisor is None or not divisor.all():
            return False
    return _elementwise(op, inputs, is_records)


def _power(op, inputs, is_records):
    # A whole number with a negative exponent ends the run.
    if inputs[1].dtype.is_integer:
        exponent = static_value(inputs[1])
        if exponent is None or (exponent < 0).any():
            return False
    return _elementwise(op, inputs, is_records)


def _constants(inputs, is_records):
    return not any(map(is_records, inputs))


def _axes(tensor, rank):
    axes = static_value(tensor)
    if axes is None:
        return [0]
    return [int(axis) % rank for axis in axes.reshape(-1)]


def _reduction(op, inputs, is_records):
    rank = inputs[0].shape.rank
    return _constants(inputs[1:], is_records) and rank > 1 and 0 not in _axes(inputs[1], rank)


def _last_axis(op, inputs, is_records):
    return inputs[0].shape.rank > 1


def _matmul(op, inputs, is_records):
    if is_faulty_on_batch(op):
        return False
    first, second = inputs
    a, b = first.shape.rank, second.shape.rank
    if is_records(first) and is_records(second):
        return a == b and a > 2
    if is_records(first):
        flipped = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return (a > 2 and meets_records(second, a)) or (a == b == 2 and not flipped)
    return b > 2 and meets_records(first, b)


def _bias(op, inputs, is_records):
    return inputs[0].shape.rank > 1 and is_records(inputs[0]) and not is_records(inputs[1])


def _concatenation(op, inputs, is_records):
    *tensors, axis = inputs
    ranks = {t.shape.rank for t in tensors}
    return all(map(is_records, tensors)) and len(ranks) == 1 and 0 not in _axes(axis, ranks.pop())


def _squeeze(op, inputs, is_records):
    axes = op.get_attr("squeeze_dims")
    return bool(axes) and all(axis % inputs[0].shape.rank for axis in axes)


def _slice(op, inputs, is_records):
    masks = {m: op.get_attr(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis")}
    shrinks, strides = op.get_attr("shrink_axis_mask"), static_value(inputs[3])
    if strides is None or not _constants(inputs[1:], is_records):
        return False
    if (masks["new_axis"] | shrinks) & 1:
        return False
    if masks["ellipsis"] & 1:
        # The axis of records is among those that the dots stand for, if there are any.
        indices = [i for i in range(1, len(strides)) if not masks["new_axis"] >> i & 1]
        return len(indices) < inputs[0].shape.rank
    return bool(masks["begin"] & 1 and masks["end"] & 1) and strides[0] == 1


def _parts(op, inputs, is_records):
    """A split: of records, into parts of each."""
    tensor, axis = (inputs[1], inputs[0]) if op.type == "Split" else (inputs[0], inputs[2])
    others = [t for t in inputs if t is not tensor]
    return _constants(others, is_records) and 0 not in _axes(axis, tensor.shape.rank)


def _unstacked(op, inputs, is_records):
    return op.get_attr("axis") % inputs[0].shape.rank != 0


def _stacked(op, inputs, is_records):
    ranks = {t.shape.rank for t in inputs}
    if len(ranks) > 1 or not all(map(is_records, inputs)):
        return False
    return op.get_attr("axis") % (ranks.pop() + 1) != 0


def _part(op, inputs, is_records):
    begin, size = (static_value(t) for t in inputs[1:])
    return begin is not None and size is not None and begin[0] == 0 and size[0] == -1


def _along_axes(op, inputs, is_records):
    """One tensor, and the axes along which it is rolled, reversed or added up."""
    axes = _axes(inputs[-1], inputs[0].shape.rank)
    return _constants(inputs[1:], is_records) and 0 not in axes


def _tiled(op, inputs, is_records):
    multiples = static_value(inputs[1])
    return multiples is not None and multiples[0] == 1 and is_records(inputs[0])


def _gathered(op, inputs, is_records):
    tensor, places, axis = inputs
    if is_records(axis):
        return False
    (along,), own = _axes(axis, tensor.shape.rank), op.get_attr("batch_dims")
    own += places.shape.rank if own < 0 else 0
    if not is_records(places):
        return own == 0 and along != 0
    # Places that come from records must exist, and a record's be its own.
    if not are_places(places, tensor.shape[along]):
        return False
    return own > 0 if is_records(tensor) else own == along == 0


def _padded(op, inputs, is_records):
    paddings = static_value(inputs[1])
    around = paddings is not None and not paddings[0].any()
    return around and _constants(inputs[1:], is_records)


def _band(op, inputs, is_records):
    return inputs[0].shape.rank > 2 and _constants(inputs[1:], is_records)


def _pooled(op, inputs, is_records):
    return op.get_attr("ksize")[0] == op.get_attr("strides")[0] == 1


def _convolved(op, inputs, is_records):
    # One of a single channel may leave numbers of other records in its results.
    own = all(op.get_attr(name)[0] == 1 for name in ("strides", "dilations"))
    return own and _constants(inputs[1:], is_records) and axis_of_one_channel(op) is None


def _windows(op, inputs, is_records):
    return all(op.get_attr(name)[0] == 1 for name in ("ksizes", "rates", "strides"))


def _whole(op, inputs, is_records):
    """What goes over the axes behind that of records only."""
    return _constants(inputs[1:], is_records)


def _of_any_number(op, inputs, is_records):
    shape = op.get_attr("shape")
    return shape.unknown_rank or shape.dim[0].size == -1


def _diagonals(op, inputs, is_records):
    """Diagonals of matrices: of one or of several, which then are along an axis of their own."""
    number = {"MatrixSetDiagV3": 2}.get(op.type, 1)
    tensors, which = inputs[:number], static_value(inputs[number])
    if which is None or not _constants(inputs[number:], is_records):
        return False
    several = which.size > 1 and which.min() != which.max()
    last = {"MatrixDiagPartV3": 2}.get(op.type, 2 if several else 1)
    return all(map(is_records, tensors)) and tensors[-1].shape.rank > last


def _spectrum(op, inputs, is_records):
    axes = next((number for number in (3, 2) if f"{number}D" in op.type), 1)
    return inputs[0].shape.rank > axes and _constants(inputs[1:], is_records)


def _largest(op, inputs, is_records):
    return inputs[0].shape.rank > 1 and _constants(inputs[1:], is_records)


def _one_hot(op, inputs, is_records):
    return op.get_attr("axis") != 0 and _constants(inputs[1:], is_records)


def _einsum(op, inputs, is_records):
    left, arrow, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(inputs):
        return False
    pairs = list(zip(terms, inputs, strict=True))
    mine = [(term, t.shape.rank) for term, t in pairs if is_records(t)]
    others = [term for term, t in pairs if not is_records(t)]
    if any(term.startswith("...") for term, _ in mine):
        # The axes that stand for the dots begin with that of records, if there are any, and as many
        # in all operands.
        dots = {rank - len(term) + 3 for term, rank in mine}
        same = all(term.startswith("...") for term in (*(term for term, _ in mine), result))
        return same and len(dots) == 1 and min(dots) > 0 and not any("." in t for t in others)
    axis = mine[0][0][:1]
    own = [*(term for term, _ in mine), result]
    apart = all(term[:1] == axis and term.count(axis) == 1 for term in own)
    return axis.isalpha() and apart and not any(axis in term for term in others)


ELEMENTWISE = frozenset(
    """
    Abs Acos Acosh Add AddV2 Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Bucketize
    Cast Ceil Complex ComplexAbs Conj Cos Cosh DivNoNan Elu Equal Erf Erfc Exp Expm1 Floor Greater
    GreaterEqual Identity Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p
    LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul Neg NotEqual OnesLike Real RealDiv
    Reciprocal Relu Relu6 Rint Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign
    Sqrt Square SquaredDifference StopGradient Sub Tan Tanh Xdivy Xlogy ZerosLike
    """.split()
)
CHECKS: dict[str, Check] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _reduction),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _last_axis),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), _matmul),
    **dict.fromkeys(("ArgMax", "ArgMin", "ReverseV2", "Roll"), _along_axes),
    **dict.fromkeys(("CumulativeLogsumexp", "Cumprod", "Cumsum"), _along_axes),
    **dict.fromkeys(("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D"), _spectrum),
    **dict.fromkeys(("IRFFT", "IRFFT2D", "IRFFT3D", "RFFT", "RFFT2D", "RFFT3D"), _spectrum),
    **dict.fromkeys(("MatrixDiagPartV3", "MatrixDiagV3", "MatrixSetDiagV3"), _diagonals),
    **dict.fromkeys(("FloorDiv", "FloorMod"), _remainder),
    **dict.fromkeys(("ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"), _whole),
    **dict.fromkeys(("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"), _pooled),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _whole),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), _padded),
    **dict.fromkeys(("Split", "SplitV"), _parts),
    "BiasAdd": _bias,
    "Bitcast": _of_as_many_bits,
    "ConcatV2": _concatenation,
    "Conv2D": _convolved,
    "Conv3D": _convolved,
    "Einsum": _einsum,
    "EnsureShape": _of_any_number,
    "ExtractImagePatches": _windows,
    "GatherV2": _gathered,
    "MatrixBandPart": _band,
    "OneHot": _one_hot,
    "Pack": _stacked,
    "Pow": _power,
    "Slice": _part,
    "Squeeze": _squeeze,
    "StridedSlice": _slice,
    "Tile": _tiled,
    "TopKV2": _largest,
    "Unpack": _unstacked,
}
