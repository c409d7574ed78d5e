"""Gradients of all records with respect to the kernel of a convolution."""

import math
from collections.abc import Sequence

import tensorflow as tf

from tfdp.gradients.forms import convolution_cost as cost
from tfdp.gradients.forms.convolution_layout import (
    Layout,
    gradients,
    squared_norms,
    sum_of_gradients,
)
from tfdp.gradients.forms.convolution_windows import Windows, spatial_sizes
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.keras_internals import is_compiled_by_xla
from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding
from tfdp.numerics.norms import drop_records, scale_records, to_accumulate

# Along how many axes TensorFlow convolves.
_MOST_AXES = 3


def channels_last(tensor: tf.Tensor, data_format: str) -> tf.Tensor:
    """Returns the tensor in float32 at least, with channels last."""
    tensor = to_accumulate(tensor)
    if data_format == "channels_last":
        return tensor
    return tf.transpose(tensor, [0, *range(2, tensor.shape.rank), 1])


def _along_an_axis(tensor: tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
    """Returns [n / size, size, *spatial, channels] from [n, *spatial, channels]."""
    known = size if isinstance(size, int) else None
    shape = [-1, size, *spatial_sizes(tensor), tensor.shape[-1]]
    return tf.ensure_shape(tf.reshape(tensor, shape), [None, known, *tensor.shape[1:]])


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

    It is computed in one of four ways, the cheapest for the shapes by `convolution_cost`. Either
    it is made, as such a product or as the filter gradient of one record, and norm and sum come
    from it; or the norm comes from Gram matrices of patches and of output gradients, as in
    `Product`, and the sum is the ordinary filter gradient of factors[i] * output_gradient_i.

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
        windows = make_windows(kernel_shape[:-2], strides, padding, dilation_rate)
        way = self._cheapest(windows, groups) if way is None else way
        if way not in cost.WAYS:
            raise ValueError(f"way must be one of {cost.WAYS}. Received: way={way!r}.")
        if way == cost.PIXEL_GRAM and (groups > 1 or set(windows.strides) != {1}):
            raise ValueError(
                f"way={way!r} is for strides of 1 and one group. Received: "
                f"strides={windows.strides}, groups={groups}."
            )
        if way == cost.ONE_BY_ONE and groups > 1:
            raise ValueError(f"way={way!r} is for one group. Received: groups={groups}.")
        self._layout = Layout(tuple(kernel_shape), windows, groups, way)
        self._gradients: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None] | None = None

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

    def _cheapest(self, windows: Windows, groups: int) -> str:
        ways = set(cost.WAYS)
        if is_compiled_by_xla() or tf.config.get_visible_devices("GPU"):
            # XLA takes a hundred times as long for a turn on a CPU, and a GPU waits between turns.
            ways.remove(cost.ONE_BY_ONE)
        return cost.cheapest(
            windows.kernel,
            windows.strides,
            windows.dilations,
            self._positions.shape.as_list()[1:-1],
            self._source.shape[-1],
            self._positions.shape[-1],
            groups,
            ways,
        )

    def _number_of_parts(self) -> int:
        """Returns in how many parts to handle the records.

        Patches and other intermediate results then take less memory, and are still in the cache
        when they are used, which saves a quarter of the time of large layers.
        """
        n, counts = self._source.shape[0], self._positions.shape[1:-1]
        layout, numbers = self._layout, None
        if layout.way == cost.ONE_BY_ONE:
            return 1
        if None not in counts:
            positions = math.prod(counts)
            p, q = layout.sizes
            made = p * q * layout.groups if layout.way == cost.PATCHES else positions**2
            numbers = positions * p * layout.groups + made
        return cost.number_of_parts(n, numbers)

    def _parts(self) -> tuple[Layout, tf.Tensor, tf.Tensor, int, bool]:
        """Returns the arguments of `gradients` and `squared_norms`."""
        number = self._number_of_parts()
        return self._layout, self._source, self._positions, number, is_compiled_by_xla()

    def _made(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns `gradients`; the same tensors each time."""
        if self._gradients is None:
            self._gradients = gradients(*self._parts())
        return self._gradients

    def squared_norms(self) -> tf.Tensor:
        if not self._layout.makes_gradients:
            return squared_norms(*self._parts())
        # The sum is computed as a product with clipping factors.
        return rounding.with_product_error(self._made()[1])

    def magnitudes(self) -> tf.Tensor:
        # Each number is in at most as many patches as a window has places.
        patches = math.prod(self._layout.windows.kernel) * sum_of_squares(self._source)
        return tf.sqrt(patches * sum_of_squares(self._positions))

    def summands(self) -> int | tf.Tensor:
        return math.prod(spatial_sizes(self._positions))

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        if self._layout.makes_gradients:
            masks_factors = self._layout.masks_factors(self._source, self._positions)
            total = sum_of_gradients(factors, self._made()[0], masks_factors)
            return tf.squeeze(self._layout.restored(total), 0)
        return self._filter_gradient(
            drop_records(self._source, factors), scale_records(self._positions, factors)
        )

    def _filter_gradient(self, source: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        windows = self._layout.windows
        if self._layout.groups == 1:
            return tf.reshape(windows.filter_gradient(source, positions), self._layout.kernel_shape)
        # TensorFlow has no grouped convolutions on a CPU.
        by_group = [tf.split(tensor, self._layout.groups, -1) for tensor in (source, positions)]
        sums = [windows.filter_gradient(*g) for g in zip(*by_group, strict=True)]
        return tf.reshape(tf.concat(sums, -1), self._layout.kernel_shape)

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        layout, windows = self._layout, self._layout.windows
        if windows.rank == _MOST_AXES:
            return super().grouped(factors, size)
        # The records of a group lie along one more axis, along which windows have length one.
        kernel_shape = (1, *windows.kernel, *layout.kernel_shape[-2:])
        source = _along_an_axis(drop_records(self._source, factors), size)
        positions = _along_an_axis(scale_records(self._positions, factors), size)
        result = ConvolutionGradient(
            source,
            positions,
            kernel_shape,
            (1, *windows.strides),
            windows.padding,
            (1, *windows.dilations),
            layout.groups,
        )
        result._layout = result._layout._replace(kernel_shape=layout.kernel_shape)
        return result

    def explicit(self) -> tf.Tensor:
        # A record with numbers that are not finite must be visible as such in its norm.
        products, _, kept = self._made()
        if kept is not None:
            products = tf.where(kept[:, None], products, tf.constant(math.nan, products.dtype))
        return self._layout.restored(products)

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        if not isinstance(other, ConvolutionGradient):
            return None
        return Explicit(self.explicit() + other.explicit())
