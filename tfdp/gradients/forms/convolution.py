"""Gradients of all records with respect to the kernel of a convolution."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.forms import convolution_cost as cost
from tfdp.gradients.forms.convolution_windows import Windows, flatten_positions, spatial_sizes
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.numerics import rounding
from tfdp.numerics.norms import (
    drop_records,
    scale_records,
    squares_from_grams,
    sum_of_squares,
    to_accumulate,
    weighted_sum,
)

# The product of two numbers is finite if the square of each is below this.
_LARGEST_SQUARE = {tf.float32: 1e37, tf.float64: 1e300}


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


def channels_last(tensor: tf.Tensor, data_format: str) -> tf.Tensor:
    """Returns the tensor in float32 at least, with channels last."""
    tensor = to_accumulate(tensor)
    if data_format == "channels_last":
        return tensor
    return tf.transpose(tensor, [0, *range(2, tensor.shape.rank), 1])


def _per_axis(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def make_windows(
    kernel_size: Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    dilation_rate: int | Sequence[int],
) -> Windows:
    """Returns the windows of a convolution, from what a Keras layer calls its parts.

    Args:
        kernel_size: Length of a window along every axis.
        strides: Steps between windows; one number stands for all axes.
        padding: "valid" or "same".
        dilation_rate: Steps between the places in a window; likewise.

    Raises:
        ValueError: `padding` is something else.
    """
    rank = len(kernel_size)
    if padding.upper() not in ("VALID", "SAME"):
        raise ValueError(
            f"padding must be 'valid' or 'same'. Received: padding={padding!r}. Pad the inputs of "
            "a causal convolution beforehand."
        )
    return Windows(
        tuple(kernel_size),
        _per_axis(strides, rank),
        _per_axis(dilation_rate, rank),
        padding.upper(),
    )


class ConvolutionGradient(PerRecordGradient):
    """Gradients of the kernel of a convolution along one, two or three axes.

    The gradient of record i is the product of its patches (rows are windows of its input) with its
    output gradient,

        gradient_i = patches_i^T output_gradient_i.

    It is computed in one of three ways, the cheapest for the shapes by `convolution_cost`. Either
    it is made, and norm and sum come from it; or the norm comes from Gram matrices of patches and
    of output gradients, as in `Product`, and the sum is the ordinary filter gradient of
    factors[i] * output_gradient_i.

    Edge cases:
        Half precision is accumulated in float32. The gradient of a record that is not finite makes
        its norm not finite, and is exactly absent from sums in which its factor is zero.

    Args:
        inputs: [n, *spatial, channels], or [n, channels, *spatial] with channels first.
        output_gradient: The loss's gradient with respect to the convolution's output, before bias
            and activation.
        kernel_shape: (*kernel size, channels / groups, filters).
        strides: One number, or one for each axis.
        padding: "valid" or "same". For "causal", pad the inputs beforehand.
        dilation_rate: One number, or one for each axis.
        groups: Groups of channels.
        data_format: "channels_last" or "channels_first", of inputs and output gradient.
        way: One of `convolution_cost.WAYS`; by default the cheapest.

    Example:
        >>> inputs = tf.ones([2, 5, 5, 1])
        >>> output_gradient = tf.ones([2, 3, 3, 1])
        >>> gradient = ConvolutionGradient(inputs, output_gradient, (3, 3, 1, 1))
        >>> gradient.squared_norms().numpy().round(2).tolist()  # Nine numbers: sums of nine ones.
        [729.0, 729.0]

    References:
        Bu et al. 2022 (arXiv:2205.10683), Scalable and Efficient Training of Large Convolutional
        Neural Networks with Differential Privacy.
    """

    def __init__(
        self,
        inputs: tf.Tensor,
        output_gradient: tf.Tensor,
        kernel_shape: Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        data_format: str = "channels_last",
        way: str | None = None,
    ):
        self._source = channels_last(inputs, data_format)
        self._positions = channels_last(output_gradient, data_format)
        self._kernel_shape = tuple(kernel_shape)
        self._groups = groups
        self._windows = make_windows(self._kernel_shape[:-2], strides, padding, dilation_rate)
        self._way = self._choose() if way is None else way
        if self._way not in cost.WAYS:
            raise ValueError(f"way must be one of {cost.WAYS}. Received: way={way!r}.")
        if self._way == cost.PIXEL_GRAM and (groups > 1 or set(self._windows.strides) != {1}):
            raise ValueError(
                f"way={way!r} is for strides of 1 and one group. Received: "
                f"strides={self._windows.strides}, groups={groups}."
            )
        p, q = math.prod(self._kernel_shape[:-1]), self._kernel_shape[-1] // groups
        self._turned = cost.is_narrow(q, p)
        self._products: list[tuple[tf.Tensor, tf.Tensor]] | None = None

    @classmethod
    def transposed(
        cls,
        inputs: tf.Tensor,
        output_gradient: tf.Tensor,
        kernel_shape: Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        dilation_rate: int | Sequence[int] = 1,
        data_format: str = "channels_last",
        way: str | None = None,
    ) -> "ConvolutionGradient":
        """Returns the gradients of the kernel of a transposed convolution.

        That is the convolution from its output's shape to its input's, backwards, so input and
        output gradient change places. Output padding shows in the shape of the output gradient.

        Args:
            inputs: [n, *spatial, channels], or channels first.
            output_gradient: [n, *output spatial, filters], or channels first.
            kernel_shape: (*kernel size, filters, channels), as in Keras.
            strides: As for the layer.
            padding: "valid" or "same".
            dilation_rate: As for the layer.
            data_format: "channels_last" or "channels_first".
            way: One of `convolution_cost.WAYS`; by default the cheapest.
        """
        return cls(
            output_gradient,
            inputs,
            kernel_shape,
            strides,
            padding,
            dilation_rate,
            data_format=data_format,
            way=way,
        )

    def _choose(self) -> str:
        return cost.cheapest(
            self._windows.kernel,
            self._windows.strides,
            self._windows.dilations,
            self._positions.shape.as_list()[1:-1],
            self._source.shape[-1],
            self._positions.shape[-1],
            self._groups,
        )

    def _patches(self, source: tf.Tensor) -> tf.Tensor:
        """Returns [n * groups, positions, p]."""
        counts = spatial_sizes(self._positions)
        windows = self._windows
        if self._groups == 1 and cost.convolution_makes_patches(
            windows.kernel, windows.strides, source.shape[-1]
        ):
            return windows.patches_by_convolution(source, counts)
        return windows.patches(source, counts, self._groups)

    def _by_group(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns [n * groups, positions, q] from the output gradients."""
        flat = flatten_positions(positions)
        if self._groups == 1:
            return flat
        q = flat.shape[2] // self._groups
        n, number = tf.shape(flat)[0], math.prod(spatial_sizes(positions))
        split = tf.transpose(tf.reshape(flat, [n, number, self._groups, q]), [0, 2, 1, 3])
        return tf.reshape(split, [n * self._groups, number, q])

    def _number_of_parts(self) -> int:
        """Returns in how many parts to handle the records."""
        n, counts = self._source.shape[0], self._positions.shape[1:-1]
        numbers = None
        if None not in counts:
            positions = math.prod(counts)
            p, q = math.prod(self._kernel_shape[:-1]), self._kernel_shape[-1]
            made = p * q if self._way == cost.PATCHES else positions**2
            numbers = positions * p * self._groups + made
        return cost.number_of_parts(n, numbers)

    def _parts(self) -> list[slice]:
        """Returns which records to handle together."""
        n, number = self._source.shape[0], self._number_of_parts()
        n = tf.shape(self._source)[0] if n is None else n
        bounds = [n * i // number for i in range(number + 1)]
        return [slice(*pair) for pair in itertools.pairwise(bounds)]

    def _in_parts(self, function: Callable[..., Any]) -> list[Any]:
        """Returns the function's results for inputs and output gradients of some records each.

        Patches and other intermediate results then take less memory, and are still in the cache
        when they are used, which saves a quarter of the time of large layers.
        """
        results: list[Any] = []
        for part in self._parts():
            with tf.control_dependencies(tf.nest.flatten(results[-1:])):
                tensors = tf.identity(self._source[part]), tf.identity(self._positions[part])
                results.append(function(*tensors))
        return results

    def _concatenated(self, function: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Returns the function's results [m], in parts as in `_in_parts`, as one tensor [n].

        If the number of records is not known, the parts are the turns of a loop, so that the
        operations for one of them are traced, and not those for each.
        """
        number = self._number_of_parts()
        if number == 1 or self._source.shape[0] is not None:
            return tf.concat(self._in_parts(function), 0)
        n = tf.shape(self._source)[0]
        results = tf.TensorArray(
            self._source.dtype, number, infer_shape=False, element_shape=[None]
        )

        def body(i, results):
            part = slice(n * i // number, n * (i + 1) // number)
            return i + 1, results.write(i, function(self._source[part], self._positions[part]))

        _, results = tf.while_loop(
            lambda i, _: i < number, body, (tf.constant(0), results), parallel_iterations=1
        )
        return results.concat()

    def _masks_factors(self) -> bool:
        """Returns whether inputs and output gradients are masked, not the gradients."""
        shapes = [self._source.shape[1:], self._positions.shape[1:]]
        numbers = [shape.num_elements() for shape in shapes]
        return None not in numbers and sum(numbers) < math.prod(self._kernel_shape)

    def _made(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns, by parts, the gradients [m, groups * p * q] and which records are not left out,
        bool [m]; the same tensors each time.
        """

        def products(source, positions):
            kept = tf.ones([tf.shape(source)[0]], tf.bool)
            if self._masks_factors():
                source, keep_source = _finite_part(source)
                positions, keep_positions = _finite_part(positions)
                kept = keep_source & keep_positions
            left, right = self._patches(source), self._by_group(positions)
            if self._turned:
                left, right = right, left
            product = tf.matmul(left, right, transpose_a=True)
            product = tf.reshape(product, [-1, math.prod(self._kernel_shape)])
            return product, kept

        if self._products is None:
            self._products = self._in_parts(products)
        return self._products

    def _restore(self, products: tf.Tensor) -> tf.Tensor:
        """Returns [m, *kernel_shape] from [m, groups * p * q]."""
        *kernel, c, filters = self._kernel_shape
        p, q = math.prod(kernel) * c, filters // self._groups
        if self._turned:
            products = tf.transpose(tf.reshape(products, [-1, self._groups, q, p]), [0, 3, 1, 2])
        elif self._groups > 1:
            products = tf.transpose(tf.reshape(products, [-1, self._groups, p, q]), [0, 2, 1, 3])
        return tf.reshape(products, [-1, *self._kernel_shape])

    def squared_norms(self) -> tf.Tensor:
        if self._way == cost.PATCHES:
            squares = [_infinite_unless(kept, sum_of_squares(x)) for x, kept in self._made()]
            # The sum is computed as a product with clipping factors.
            return rounding.with_product_error(tf.concat(squares, 0))
        return self._concatenated(self._squares_from_grams)

    def _squares_from_grams(self, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        if self._way == cost.PIXEL_GRAM:
            grams = self._windows.gram_of_patches(source, positions)
        else:
            tall = self._patches(source), self._by_group(positions)
            grams = tuple(tf.matmul(matrix, matrix, transpose_b=True) for matrix in tall)
        p, q = math.prod(self._kernel_shape[:-1]), self._kernel_shape[-1] // self._groups
        squares = squares_from_grams(*grams, p, q)
        if self._groups == 1:
            return squares
        totals = tf.reduce_sum(tf.reshape(squares, [-1, self._groups]), 1)
        return rounding.enlarged(totals, rounding.sum_error(self._groups, totals.dtype))

    def magnitudes(self) -> tf.Tensor:
        # Each number is in at most as many patches as a window has places.
        patches = math.prod(self._windows.kernel) * sum_of_squares(self._source)
        return tf.sqrt(patches * sum_of_squares(self._positions))

    def summands(self) -> int | tf.Tensor:
        return math.prod(spatial_sizes(self._positions))

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        if self._way == cost.PATCHES:
            parts = zip(self._made(), self._parts(), strict=True)
            sums = []
            for (products, _), at in parts:
                if not self._masks_factors():
                    products = drop_records(products, factors[at])
                sums.append(weighted_sum(tf.cast(factors[at], products.dtype), products))
            return self._restore(tf.add_n(sums)[None])[0]
        return self._filter_gradient(
            drop_records(self._source, factors), scale_records(self._positions, factors)
        )

    def _filter_gradient(self, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        # TensorFlow has no grouped convolutions on a CPU.
        by_group = [tf.split(tensor, self._groups, -1) for tensor in (source, positions)]
        gradients = [self._windows.filter_gradient(*g) for g in zip(*by_group, strict=True)]
        return tf.concat(gradients, -1)

    def explicit(self) -> tf.Tensor:
        # A record with numbers that are not finite must be visible as such in its norm.
        products = [
            tf.where(kept[:, None], x, tf.constant(math.nan, x.dtype)) for x, kept in self._made()
        ]
        return self._restore(tf.concat(products, 0))

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        if not isinstance(other, ConvolutionGradient):
            return None
        return Explicit(self.explicit() + other.explicit())
