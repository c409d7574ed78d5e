"""Operations that end the run, crash or do not come back for some numbers that they are called on.

A record with such numbers would be told by that. So where a record's numbers reach one of these
operations, it is called on others that it takes, and gives NaN. A record with a NaN contributes
nothing. What cannot be known before the operation runs is refused by its name.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp.gradients import indices
from tfdp.gradients.indices import Check, Safe, in_range

# Boxes of images are at most so many images wide: beyond, kernels compute with places that they
# cannot hold.
_LARGEST_BOX = 1e3
# Rotations of a hue go around by turns, one at a time.
_LARGEST_HUE = 1e3
_LARGEST_COUNT = 1e6
# Operations that take all numbers, or safe ones, and whose gradients have an inverse, a solution or
# another check.
WITH_UNSAFE_GRADIENTS = (
    *("CheckNumerics", "CheckNumericsV2", "CropAndResize"),
    *("ImageProjectiveTransformV2", "ImageProjectiveTransformV3"),
    *("LogMatrixDeterminant", "MatrixDeterminant", "MatrixSquareRoot"),
)


class RefusedKernelError(ValueError):
    """An operation may end the run for some numbers of a record, which cannot be known before."""


def _or_eye(matrix: tf.Tensor, good: tf.Tensor) -> tf.Tensor:
    """Returns a matrix, or of matrices those that are good, and the identity for the others."""
    rows, columns = (tf.shape(matrix)[axis] for axis in (-2, -1))
    eye = tf.eye(rows, columns, dtype=matrix.dtype)
    return tf.where(good[..., tf.newaxis, tf.newaxis], matrix, eye)


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_complex:
        tensor = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
        return tf.reduce_all(tf.math.is_finite(tensor), 0)
    return tf.math.is_finite(tensor)


def _finite_matrix(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    matrix, *others = inputs
    good = tf.reduce_all(_is_finite(matrix), [-2, -1])
    return [_or_eye(matrix, good), *others], tf.reduce_all(good)


# The kernels for inverses and solutions end the run where a pivot is zero, and no others round as
# they do, so nothing tells before. A product of an orthogonal and a triangular matrix has no
# pivots, and where the triangular one is singular, what it is solved for is not finite.


def _inverse(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    orthogonal, triangular = tf.linalg.qr(inputs[0])
    inverse = tf.linalg.triangular_solve(triangular, tf.linalg.adjoint(orthogonal), lower=False)
    return [tf.linalg.adjoint(inverse) if op.get_attr("adjoint") else inverse]


def _solution(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    matrix, right = inputs
    q, r = tf.linalg.qr(matrix)
    if op.get_attr("adjoint"):
        return [q @ tf.linalg.triangular_solve(r, right, lower=False, adjoint=True)]
    return [tf.linalg.triangular_solve(r, tf.matmul(q, right, adjoint_a=True), lower=False)]


def _banded(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    bands, right = inputs
    diagonal = bands[..., 0 if op.get_attr("lower") else -1, :]
    tiny = np.finfo(diagonal.dtype.as_numpy_dtype).tiny
    good = tf.reduce_all(_is_finite(diagonal) & (tf.abs(diagonal) >= tiny))
    return [tf.where(good, bands, tf.ones_like(bands)), right], good


def _finite(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    good = tf.reduce_all(_is_finite(inputs[0]))
    return [tf.where(good, inputs[0], tf.zeros_like(inputs[0]))], good


def _bounds_of_draws(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    *others, lowest, end = inputs
    good = lowest < end
    zero, one = tf.zeros_like(lowest), tf.ones_like(end)
    return [*others, tf.where(good, lowest, zero), tf.where(good, end, one)], good


def _permutation(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    order = inputs[0]
    places = tf.range(tf.size(order, order.dtype))
    good = tf.reduce_all(tf.equal(tf.sort(order), places))
    return [tf.where(good, order, places)], good


def _unravelled(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    if tf.get_static_value(op.inputs[1]) is None:
        raise RefusedKernelError(f"{op.type} ({op.name}) takes lengths that are not fixed.")
    places, lengths = inputs
    safe, good = in_range(places, tf.reduce_prod(tf.cast(lengths, tf.int64)))
    return [safe, lengths], good


def _boxes(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # What is not a number is not at most anything.
    good = tf.reduce_all(tf.abs(boxes) <= _LARGEST_BOX)
    return tf.where(good, boxes, tf.zeros_like(boxes)), good


def _crops(at: int, number: Callable[[list[tf.Tensor]], tf.Tensor]) -> Check:
    """Returns the check of boxes, the input `at`, and of whose they are, the next one.

    Args:
        at: Which input the boxes are.
        number: From all inputs to how many images there are.
    """

    def safe(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
        boxes, good = _boxes(inputs[at])
        owners, exist = in_range(inputs[at + 1], number(inputs))
        return [*inputs[:at], boxes, owners, *inputs[at + 2 :]], good & exist

    return Check((at, at + 1), safe)


def _rows(tensor: tf.Tensor) -> tf.Tensor:
    return tf.shape(tensor, out_type=tf.int64)[0]


def _hue(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    images, delta = inputs
    good = tf.abs(delta) <= _LARGEST_HUE
    return [images, tf.where(good, delta, tf.zeros_like(delta))], good


def _small_counts(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    shape, seed, *numbers = inputs
    # What is not a number is not at most anything.
    good = tf.reduce_all([tf.reduce_all((n >= 0) & (n <= _LARGEST_COUNT)) for n in numbers])
    return [shape, seed, *(tf.where(good, n, tf.zeros_like(n)) for n in numbers)], good


def _histogram(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    numbers, ends, bins = inputs
    good = ends[0] < ends[1]
    if numbers.dtype.is_floating:
        good &= tf.reduce_all(_is_finite(numbers)) & tf.reduce_all(_is_finite(ends))
    ends = tf.where(good, ends, tf.constant([0, 1], ends.dtype))
    # A record may have one that is so far out that its place is no integer.
    clipped = tf.clip_by_value(numbers, ends[0], ends[1])
    return [tf.where(good, clipped, tf.zeros_like(numbers)), ends, bins], good


def _left_out(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    return []


def _refused(instead: str, places: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Check:
    """Returns the check of what is refused where one of some inputs follows a record."""

    def refuse(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
        raise RefusedKernelError(
            f"{op.type} ({op.name}) is called on numbers of a record. For some it ends the run, "
            f"which would tell of the record, and tfdp puts no others in their place. {instead}"
        )

    return Check(places, refuse)


def check_of(op: tf.Operation) -> Check | None:
    """Returns how an operation is made safe for any numbers of a record; None where it is."""
    return KERNELS.get(op.type) or indices.check_of(op)


def _all(names: str, check: Check) -> dict[str, Check]:
    return {name: check for name in names.split()}


def _least_squares(op: tf.Operation, inputs: list[tf.Tensor]) -> Safe:
    if op.get_attr("fast"):
        return _FAST.safe(op, inputs)
    return inputs, tf.constant(True)


_FAST = _refused("Use tf.linalg.lstsq(..., fast=False).")
_SHAPE = "What it returns is of a size that follows the record."
KERNELS: dict[str, Check] = {
    "MatrixInverse": Check((0,), _finite_matrix, _inverse),
    "MatrixSolve": Check((0,), _finite_matrix, _solution),
    "Lu": _refused("Use keras.ops.qr or keras.ops.solve."),
    "SelfAdjointEigV2": Check((0,), _finite_matrix),
    "BandedTriangularSolve": Check((0,), _banded),
    "MatrixSolveLs": Check((0, 2), _least_squares),
    **_all("CheckNumerics CheckNumericsV2", Check((0,), _finite)),
    # What it is about may be in a function that calls it, so that no result could be NaN.
    "Assert": Check((0,), lambda op, inputs: (inputs, tf.constant(True)), _left_out),
    "StatelessRandomUniformInt": Check((2, 3), _bounds_of_draws),
    "StatelessRandomUniformIntV2": Check((4, 5), _bounds_of_draws),
    "InvertPermutation": Check((0,), _permutation),
    "CropAndResize": _crops(1, lambda inputs: _rows(inputs[0])),
    "CropAndResizeGradImage": _crops(1, lambda inputs: inputs[3][0]),
    "CropAndResizeGradBoxes": _crops(2, lambda inputs: _rows(inputs[1])),
    "AdjustHue": Check((1,), _hue),
    "Eig": _refused("Use keras.ops.eigh, for symmetric matrices, or keras.ops.svd."),
    "MatrixLogarithm": _refused("Use keras.ops.eigh and the logarithms of eigenvalues."),
    "StatelessRandomBinomial": Check((2, 3), _small_counts),
    "StatelessRandomPoisson": Check((2,), _small_counts),
    "StatelessParameterizedTruncatedNormal": _refused(
        "Draw with keras.random.truncated_normal, then scale and shift.", (2, 3, 4, 5)
    ),
    "RandomIndexShuffle": _refused("Use keras.random.shuffle."),
    "SobolSample": _refused("Use numbers that are fixed."),
    "UnravelIndex": Check((0, 1), _unravelled),
    "HistogramFixedWidth": Check((0, 1), _histogram),
    # They draw by themselves, and the gradient of the one ends the run for NaN.
    **_all(
        "FractionalAvgPool FractionalMaxPool",
        _refused("Use windows that are fixed: keras.layers.MaxPooling2D, AveragePooling2D."),
    ),
    **_all("MirrorPad MirrorPadGrad", _refused("Use tf.pad with zeros.", (1,))),
    **_all(
        "QuantizeV2 QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4",
        _refused("Give it a range that is fixed.", (1, 2, 3)),
    ),
    **_all(
        "ScaleAndTranslate ScaleAndTranslateGrad",
        _refused("Give it a scale that is fixed.", (2,)),
    ),
    **_all(
        "SampleDistortedBoundingBoxV2 StatelessSampleDistortedBoundingBox",
        _refused("Draw a box with keras.random.uniform."),
    ),
    **_all(
        "NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 "
        "NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps",
        _refused(_SHAPE),
    ),
    **_all("CTCBeamSearchDecoder CTCGreedyDecoder", _refused(_SHAPE)),
    **_all(
        "DecodeBmp DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJpeg DecodeAndCropJpeg "
        "DecodePaddedRaw DecodePng DecodeProtoV2 DecodeRaw DecodeWav DecodeWebP DecodeBase64 "
        "DecodeJSONExample ParseTensor ParseExample ParseExampleV2 ParseSingleExample "
        "StringToNumber StringNGrams Substr UnicodeDecode UnicodeDecodeWithOffsets "
        "UnicodeTranscode ExtractJpegShape",
        _refused("Decode texts and files where data are read, before they are sampled."),
    ),
}
