"""What is computed from the inputs and output gradients of some records of a convolution.

Layers of the same shapes share the graphs of these functions (`traced_once`): tracing a deep model
is mostly tracing its convolutions.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdp.gradients.forms import convolution_cost as cost
from tfdp.gradients.forms.convolution_windows import Windows, flatten_positions, spatial_sizes
from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding
from tfdp.numerics.norms import (
    drop_records,
    scale_records,
    squares_from_grams,
    weighted_sum,
)
from tfdp.numerics.shared_graphs import traced_once

# These functions take long enough for calls of their own.
_kept_apart = functools.partial(traced_once, inlined=False)

# The product of two numbers is finite if the square of each is below this.
_LARGEST_SQUARE = {tf.float32: 1e37, tf.float64: 1e300}


class Layout(NamedTuple):
    """Everything about a convolution but its tensors.

    Attributes:
        kernel_shape: (*kernel size, channels / groups, filters).
        windows: Where the windows lie.
        groups: Groups of channels.
        way: One of `convolution_cost.WAYS`.
    """

    kernel_shape: tuple[int, ...]
    windows: Windows
    groups: int
    way: str

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns of a gradient as a matrix, of each group of channels."""
        return math.prod(self.kernel_shape[:-1]), self.kernel_shape[-1] // self.groups

    @property
    def makes_gradients(self) -> bool:
        """Whether norms and sums come from the gradients of all records."""
        return self.way in (cost.PATCHES, cost.ONE_BY_ONE)

    @property
    def is_turned(self) -> bool:
        """Whether gradients are made as matrices of [columns, rows]."""
        rows, columns = self.sizes
        return self.way != cost.ONE_BY_ONE and cost.is_narrow(columns, rows)

    def masks_factors(self, source: tf.Tensor, positions: tf.Tensor) -> bool:
        """Returns whether inputs and output gradients are masked, not the gradients."""
        numbers = [tensor.shape[1:].num_elements() for tensor in (source, positions)]
        return None not in numbers and sum(numbers) < math.prod(self.kernel_shape)

    def patches(self, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns [n * groups, positions, rows]."""
        counts, windows = spatial_sizes(positions), self.windows
        columns = positions.shape[-2]
        if self.groups == 1 and cost.long_runs_make_patches(
            windows.kernel, windows.strides, windows.dilations, source.shape[-1], columns
        ):
            return windows.patches_in_long_runs(source, counts)
        return windows.patches(source, counts, self.groups)

    def by_group(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns [n * groups, positions, columns] from the output gradients."""
        flat = flatten_positions(positions)
        if self.groups == 1:
            return flat
        q = flat.shape[2] // self.groups
        n, number = tf.shape(flat)[0], math.prod(spatial_sizes(positions))
        split = tf.transpose(tf.reshape(flat, [n, number, self.groups, q]), [0, 2, 1, 3])
        return tf.reshape(split, [n * self.groups, number, q])

    def restored(self, products: tf.Tensor) -> tf.Tensor:
        """Returns [m, *kernel_shape] from [m, groups * rows * columns], or from one such row."""
        p, q = self.sizes
        if self.is_turned:
            products = tf.transpose(tf.reshape(products, [-1, self.groups, q, p]), [0, 3, 1, 2])
        elif self.groups > 1:
            products = tf.transpose(tf.reshape(products, [-1, self.groups, p, q]), [0, 2, 1, 3])
        return tf.reshape(products, [-1, *self.kernel_shape])


@_kept_apart
def gradients(
    layout: Layout, source: tf.Tensor, positions: tf.Tensor, number: int, unrolled: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns gradients and their squared norms.

    Args:
        layout: Of the convolution.
        source: Its inputs, [n, *spatial, channels].
        positions: Its output gradients, [n, *windows, filters].
        number: Of parts, as for `_in_turn`.
        unrolled: Likewise.

    Returns:
        [n, groups * rows * columns]; [n], infinity where a record is left out; which records are
        not left out, bool [n], or None where none is.
    """
    masked = layout.masks_factors(source, positions)

    def part(source, positions):
        if masked:
            source, keep_source = _finite_part(source)
            positions, keep_positions = _finite_part(positions)
        if layout.way == cost.ONE_BY_ONE:
            products = _filter_gradients(layout.windows, source, positions)
        else:
            left, right = layout.patches(source, positions), layout.by_group(positions)
            if layout.is_turned:
                left, right = right, left
            products = tf.matmul(left, right, transpose_a=True)
        products = tf.reshape(products, [-1, math.prod(layout.kernel_shape)])
        squares = sum_of_squares(products)
        if not masked:
            return products, squares
        kept = keep_source & keep_positions
        return products, _infinite_unless(kept, squares), kept

    dtype, numbers = source.dtype, math.prod(layout.kernel_shape)
    results = [tf.TensorSpec([None, numbers], dtype), tf.TensorSpec([None], dtype)]
    if masked:
        results.append(tf.TensorSpec([None], tf.bool))
    products, squares, *kept = _in_turn(part, [source, positions], results, number, unrolled)
    return products, squares, kept[0] if masked else None


@traced_once
def sum_of_gradients(factors: tf.Tensor, products: tf.Tensor, masks_factors: bool) -> tf.Tensor:
    """Returns the sum of factors[i] * products[i]; of some a factor is zero, whatever they are.

    Args:
        factors: [m].
        products: From `gradients`.
        masks_factors: Whether they have been made finite there.
    """
    if not masks_factors:
        products = drop_records(products, factors)
    return weighted_sum(tf.cast(factors, products.dtype), products)


@_kept_apart
def squared_norms(
    layout: Layout, source: tf.Tensor, positions: tf.Tensor, number: int, unrolled: bool
) -> tf.Tensor:
    """Returns the squared norms from Gram matrices, [n].

    Args:
        layout: Of the convolution.
        source: Its inputs, [n, *spatial, channels].
        positions: Its output gradients, [n, *windows, filters].
        number: Of parts, as for `_in_turn`.
        unrolled: Likewise.
    """

    def part(source, positions):
        return [squares_of_grams(layout, source, positions)]

    results = [tf.TensorSpec([None], source.dtype)]
    return _in_turn(part, [source, positions], results, number, unrolled)[0]


def _filter_gradients(windows: Windows, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the gradients of records, [n, *kernel, channels, filters], one after the other.

    Args:
        windows: Of a convolution.
        source: Its inputs, [n, *spatial, channels].
        positions: Its output gradients, [n, *windows, filters].
    """
    shape = [*windows.kernel, source.shape[-1], positions.shape[-1]]
    n = tf.shape(source)[0]
    results = tf.TensorArray(source.dtype, n, element_shape=shape)

    def body(i, results):
        record = slice(i, i + 1)
        return i + 1, results.write(i, windows.filter_gradient(source[record], positions[record]))

    _, results = tf.while_loop(
        lambda i, _: i < n, body, (tf.constant(0), results), parallel_iterations=1
    )
    return results.stack()


def _in_turn(
    function: Callable[..., Sequence[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    number: int,
    unrolled: bool,
) -> Sequence[tf.Tensor]:
    """Returns what a function makes of records, which are handled in so many parts.

    The parts are turns of a loop, so that the operations for one of them are traced, and not those
    for each. XLA, to which all turns of a loop have the same shapes, needs them one after another.

    Args:
        function: Of tensors [m, ...], for any m.
        tensors: Its arguments, each [n, ...].
        results: What it returns, each [None, ...].
        number: Of parts, where there are as many records.
        unrolled: Whether they stand one after another in the graph.

    Returns:
        Its results for all records, [n, ...].
    """
    if number == 1:
        return function(*tensors)
    n = tf.shape(tensors[0])[0]

    def part(i: int | tf.Tensor, of: int | tf.Tensor) -> Sequence[tf.Tensor]:
        rows = slice(n * i // of, n * (i + 1) // of)
        return function(*(tensor[rows] for tensor in tensors))

    if unrolled:
        parts = [part(i, number) for i in range(number)]
        return [tf.concat(result, 0) for result in zip(*parts, strict=True)]
    # No part is of no records, of which oneDNN's convolutions have wrong shapes.
    turns = tf.maximum(tf.minimum(n, number), 1)
    arrays = [
        tf.TensorArray(spec.dtype, turns, infer_shape=False, element_shape=spec.shape)
        for spec in results
    ]

    def body(i, *arrays):
        results = part(i, turns)
        return i + 1, *(a.write(i, result) for a, result in zip(arrays, results, strict=True))

    _, *arrays = tf.while_loop(
        lambda i, *_: i < turns, body, (tf.constant(0), *arrays), parallel_iterations=1
    )
    return [array.concat() for array in arrays]


def squares_of_grams(layout: Layout, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the squared norms from Gram matrices, [m]."""
    if layout.way == cost.PIXEL_GRAM:
        grams = layout.windows.gram_of_patches(source, positions)
    else:
        tall = layout.patches(source, positions), layout.by_group(positions)
        grams = tuple(tf.matmul(matrix, matrix, transpose_b=True) for matrix in tall)
    squares = squares_from_grams(*grams, *layout.sizes)
    if layout.groups == 1:
        return squares
    return rounding.enlarged(*rounding.sums(tf.reshape(squares, [-1, layout.groups]), [1]))


def _finite_part(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tensor with zeros for the records whose products might not be finite, and which
    records are kept, bool [n].

    Masking two factors is cheaper than masking their product where the product is larger. Float32
    records with a norm above 3e18 are treated as if they were not finite.
    """
    kept = sum_of_squares(tensor) <= tf.constant(_LARGEST_SQUARE[tensor.dtype], tensor.dtype)
    return scale_records(tensor, tf.cast(kept, tensor.dtype)), kept


def _infinite_unless(kept: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
    """Returns the squares of the records that are kept, infinity for others."""
    return tf.where(kept, squares, squares + tf.constant(math.inf, squares.dtype))
