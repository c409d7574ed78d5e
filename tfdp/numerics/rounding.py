"""Sums of squares that are never too small, so that rounding cannot break a bound on a norm.

The result of one operation in floating point is the exact one times a factor 1 + e, where |e| <= u,
and u is 2^-24 in float32 and 2^-53 in float64. A sum of k numbers that are not negative is the
exact sum times at most k - 1 such factors, in whatever order they are added (Higham 2002, Accuracy
and Stability of Numerical Algorithms, 2nd edition, sections 2.2 and 4.2). What is computed here is
enlarged by that much.

Matrix products and convolutions of float32 are off by more where TensorFlow may round their factors
first (`factor_error`).
"""

import math
import os
from collections.abc import Iterable
from typing import Any, TypeAlias

import tensorflow as tf

_UNIT = {tf.float32: 2.0**-24, tf.float64: 2.0**-53}
_SMALLEST = {tf.float32: 2.0**-126, tf.float64: 2.0**-1022}

# Each of these settings lets oneDNN round the factors of float32 products. Some values also take
# bits from the exponent.
ONEDNN_MODES = (
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
)
# The errors of rounding to 11 bits, which may be done by cutting off the others, and of rounding to
# the nearest number of 8 bits.
_TENSOR_FLOAT_32, _BFLOAT_16 = 2.0**-10, 2.0**-8
_MODE_ERRORS = {"": 0.0, "STRICT": 0.0, "TF32": _TENSOR_FLOAT_32, "BF16": _BFLOAT_16}

Count: TypeAlias = int | tf.Tensor  # A tensor where it is not known when the graph is built.


def factor_error() -> float:
    """Returns the largest relative error that a factor of a float32 product (of matrices, or in a
    convolution) may get before it is multiplied; 0.0 where there is none, infinity where no bound
    is known.

    GPUs since Ampere round to TensorFloat-32, by default. On a CPU oneDNN rounds where a variable
    of the environment allows it.
    """
    modes = [os.environ.get(name, "").upper() for name in ONEDNN_MODES]
    errors = [_MODE_ERRORS.get(mode, math.inf) for mode in modes]
    on_gpu = tf.config.get_visible_devices("GPU")
    if on_gpu and tf.config.experimental.tensor_float_32_execution_enabled():
        errors.append(_TENSOR_FLOAT_32)
    return max(errors)


def products_are_rounded(dtype: tf.DType) -> bool:
    """Returns whether products of the dtype, float32 or float64, may change their factors."""
    return dtype == tf.float32 and factor_error() > 0


def refuse_half_precision() -> None:
    """Refuses settings by which TensorFlow rewrites float32 operations of a graph, norms and noise
    among them, into half precision.

    Raises:
        RuntimeError: names the option and what to use in its place.
    """
    options = tf.config.optimizer.get_experimental_options()
    for name, is_on in options.items():
        if name.startswith("auto_mixed_precision") and is_on:
            raise RuntimeError(
                "TensorFlow is told to compute float32 in half precision, norms and noise "
                "included, so that no bound holds. Call "
                f"tf.config.optimizer.set_experimental_options({{{name!r}: False}}). For private "
                "training in mixed precision use keras.mixed_precision.set_global_policy."
            )


def unit(dtype: tf.DType) -> float:
    """Returns u."""
    return _UNIT[tf.as_dtype(dtype)]


def count_of(tensor: tf.Tensor, first_axis: int = 0) -> Count:
    """Returns how many numbers a tensor holds along the axes from `first_axis` on."""
    number = tensor.shape[first_axis:].num_elements()
    return tf.reduce_prod(tf.shape(tensor)[first_axis:]) if number is None else number


def as_number(count: Count, dtype: tf.DType) -> float | tf.Tensor:
    """Returns a count, for arithmetic with tensors of the dtype."""
    return tf.cast(count, dtype) if tf.is_tensor(count) else float(count)


def sum_error(count: Count, dtype: tf.DType) -> float | tf.Tensor:
    """Returns a bound, in units of u, on the relative error of sums by TensorFlow's kernels.

    It is `count`, which holds for every order of additions, up to 256 numbers and in float64. In
    float32 it would clip long records by too much, and is min(count, 256 + count / 128). Kernels do
    better: on a CPU TensorFlow adds up to 1024 numbers in four or more lanes, and such parts in
    pairs, so that 256 + log2(count) operations touch one number. It does not hold for XLA, whose
    loops may add up all numbers one after another: see `sums`.

    Args:
        count: Numbers that are added up.
        dtype: float32 or float64.
    """
    number = as_number(count, dtype)
    if dtype == tf.float64:
        return number
    return _least(number, 256.0 + number / 128.0)


def sums(
    tensor: tf.Tensor, axes: Iterable[int] | None = None
) -> tuple[tf.Tensor, float | tf.Tensor]:
    """Returns sums along axes, and a bound on their error: in units of u, relative to the sums of
    absolute values.

    In a graph, which XLA may compile sooner or later, the bound holds for every order of additions.
    In float32 up to 256 numbers are added up at a time, and these parts in float64. (XLA would join
    sums of sums in one dtype into one.)

    Args:
        tensor: float32 or float64.
        axes: The last axes; by default all.
    """
    axes = list(range(tensor.shape.rank) if axes is None else axes)
    kept, dtype = tensor.shape.rank - len(axes), tensor.dtype
    count = count_of(tensor, kept)
    few = not tf.is_tensor(count) and count <= 32
    # Outside of graphs there are only kernels.
    if tf.executing_eagerly() or dtype == tf.float64 or few:
        return tf.reduce_sum(tensor, axes), sum_error(count, dtype)
    part = _LARGEST_PART if tf.is_tensor(count) else _part(count)
    in_parts = count // part * part
    has_rest = tf.is_tensor(count) or in_parts < count

    def shape(length: Count) -> Any:
        """Returns the shape in which each sum is one of so many numbers."""
        if kept > 1 or tf.is_tensor(length):
            return tf.concat([tf.shape(tensor)[:kept], [length]], 0)
        return [-1] * kept + [length]

    numbers = tf.reshape(tensor, shape(count)) if has_rest else tensor
    rows = tf.reshape(numbers[..., :in_parts] if has_rest else numbers, [-1, part])
    if products_are_rounded(dtype):
        totals = tf.reduce_sum(rows, 1)
    else:  # On a CPU, XLA's products are several times faster than its sums.
        totals = tf.matmul(rows, tf.ones([part, 1], dtype))
    totals = tf.reshape(totals, shape(count // part))
    if has_rest:
        totals = tf.concat([totals, numbers[..., in_parts:]], -1)
    elif part == count:
        return tf.squeeze(totals, -1), float(count)
    result = tf.cast(tf.reduce_sum(tf.cast(totals, tf.float64), -1), dtype)
    number = as_number(count, dtype)
    return result, _least(number, float(part)) + 1.0 + number * _UNIT[tf.float64] / _UNIT[dtype]


_LARGEST_PART = 256


def _part(count: int) -> int:
    """Returns how many numbers are added up at a time: if possible so that none are left over."""
    part = max(k for k in range(1, _LARGEST_PART + 1) if count % k == 0)
    return part if part > 32 else min(count, _LARGEST_PART)


def _least(number: float | tf.Tensor, other: float | tf.Tensor) -> float | tf.Tensor:
    return tf.minimum(number, other) if tf.is_tensor(number) else min(number, other)


def enlarged(squares: tf.Tensor, error: float | tf.Tensor) -> tf.Tensor:
    """Returns squares that are no less than the exact ones, given that these are off by at most
    `error` u.
    """
    relative = (error + 3) * unit(squares.dtype)
    return squares * (1.0 + relative / (1.0 - relative))


def vanished(count: Count, dtype: tf.DType) -> tf.Tensor:
    """Returns how much can be missing from a sum of so many squares, because each vanished.

    The product of a huge norm with one that vanished would be too small. If this is added to both,
    the product never is.
    """
    missing = _SMALLEST[tf.as_dtype(dtype)] * as_number(count, dtype)
    return missing if tf.is_tensor(missing) else tf.constant(missing, dtype)


def sum_of_squares(tensor: tf.Tensor, axes: Iterable[int] | None = None) -> tf.Tensor:
    """Returns sums of squares along axes, no less than the exact ones.

    Args:
        tensor: float32 or float64.
        axes: The last axes; by default all.
    """
    axes = list(range(tensor.shape.rank) if axes is None else axes)
    count = count_of(tensor, tensor.shape.rank - len(axes))
    return enlarged(*sums(tf.square(tensor), axes)) + vanished(count, tensor.dtype)


def with_error(squares: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
    """Returns the squares of norms that are larger by an error: (norm + error)^2.

    Args:
        squares: Squares of norms.
        error: A bound on the norm of what rounding added to the vectors.
    """
    return enlarged(tf.square(tf.sqrt(squares) + error), 4)


def with_product_error(squares: tf.Tensor, magnitudes: tf.Tensor | None = None) -> tf.Tensor:
    """Returns squares of norms that are larger by what rounded factors can make of products.

    Let a gradient be a sum of products a_t b_t, m = sum_t |a_t| |b_t|, and r = `factor_error()`.
    Rounded factors change the gradient by (2 r + r^2) m at most. That is so where the norm comes
    from rounded factors, and again in the sum, where one of them has been scaled before. 8 r more
    are for the rounding of m itself.

    Args:
        squares: [n], of the norms of sums of products, whose factors are rounded everywhere alike.
        magnitudes: m, [n]; by default the norms.
    """
    if not products_are_rounded(squares.dtype):
        return squares
    error = factor_error()
    magnitudes = tf.sqrt(squares) if magnitudes is None else magnitudes
    return with_error(squares, 4 * error * (1 + 8 * error) * magnitudes)


def additions(count: Count, dtype: tf.DType) -> float | tf.Tensor:
    """Returns a bound on the error of an inner product of so many numbers, as a multiple of u
    and of the norms of its (rounded) factors.

    Hardware that rounds factors may also cut off, in place of rounding, when it adds up. Four times
    as much leaves room for that, and for a bound that is itself made of such products.
    """
    more = 4.0 if products_are_rounded(dtype) else 1.0
    return more * as_number(count, dtype)


def down(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns a bound on norms less the ten roundings that may lie between it and a clipped record.

    Two are its own, in the dtype (0.1 is 0.10000000149 in float32), and that of this product. Then
    come the square root and the quotient of a clipping factor, and factor times coordinate. Where
    there is a weight, scale or number of examples, there are two quotients and two products more.
    The sum over records may be a matrix product that may round the records first, to the 8 digits
    of bfloat16 at worst. Then they become larger by 2^-8 / (1 + 2^-8) at most, which 1 - 2^-8 takes
    away.
    """
    refuse_half_precision()
    less = 1 - 10 * unit(dtype) - (_BFLOAT_16 if products_are_rounded(dtype) else 0)
    # tf.cast would make a Python number float32 first.
    return tf.cast(value, dtype) * less if tf.is_tensor(value) else tf.constant(value * less, dtype)


def up(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns a standard deviation that is no less than `value` for its own rounding."""
    refuse_half_precision()
    more = 1 + 4 * unit(dtype)
    return tf.cast(value, dtype) * more if tf.is_tensor(value) else tf.constant(value * more, dtype)
