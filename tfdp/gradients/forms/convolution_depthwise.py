"""Gradients of all records with respect to the kernels of depthwise and separable convolutions."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.gradients.forms.convolution import ConvolutionGradient, channels_last, make_windows
from tfdp.gradients.forms.convolution_windows import Windows, spatial_sizes
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient, to_accumulate
from tfdp.numerics.shapes import reshape_records

# Up to this size oneDNN has fast depthwise filter gradients.
_SMALL_KERNEL = 3


def _has_fast_filter_gradient(windows: Windows, positions: tf.Tensor) -> bool:
    """Returns whether TensorFlow's filter gradient is at least about as fast as a correlation.

    Where there are fewer windows than places in a window, padding reaches over the whole image, and
    oneDNN falls back to loops that take a hundred times as long. A correlation then has little to
    do.
    """
    counts = zip(positions.shape[1:-1], windows.kernel, strict=True)
    few = any(count is not None and count < size for count, size in counts)
    return max(windows.kernel) <= _SMALL_KERNEL and is_direct(windows) and not few


def _as_2d(windows: Windows, *tensors: tf.Tensor) -> tuple[Windows, list[tf.Tensor]]:
    """Returns the same with two spatial axes, the first of size one if it was not there."""
    if windows.rank == 2:
        return windows, list(tensors)
    # TensorFlow requires equal strides. Along an axis of size one any stride gives the same.
    stride, dilation = windows.strides[0], windows.dilations[0]
    flat = Windows((1, *windows.kernel), (stride, stride), (1, dilation), windows.padding)
    return flat, [tensor[:, None] for tensor in tensors]


def is_direct(windows: Windows) -> bool:
    """Returns whether TensorFlow has a depthwise convolution with these windows."""
    rows, columns = windows.strides
    return rows == columns and (rows == 1 or max(windows.dilations) == 1)


def convolve_by_channel(source: tf.Tensor, kernel: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Returns the depthwise convolution along two axes, [n, *windows, channels * multiplier]."""
    if is_direct(windows):
        strides = [1, *windows.strides, 1]
        if windows.padding == "SAME" and max(windows.dilations) > 1:
            # Here all strides are 1. TensorFlow needs the number of channels to pad by itself.
            source = windows.padded(source, spatial_sizes(source))
            windows = windows._replace(padding="VALID")
        return tf.nn.depthwise_conv2d(
            source, kernel, strides, windows.padding, dilations=windows.dilations
        )
    counts = [
        -(-size // stride) if windows.padding == "SAME" else (size - extent) // stride + 1
        for size, stride, extent in zip(
            spatial_sizes(source), windows.strides, windows.extents(), strict=True
        )
    ]
    output = tf.nn.depthwise_conv2d(
        windows.covered(source, counts), kernel, [1] * 4, "VALID", dilations=windows.dilations
    )
    return output[:, :: windows.strides[0], :: windows.strides[1]]


def _records_as_channels(tensor: tf.Tensor, multiplier: int = 1) -> list[tf.Tensor]:
    """Returns `multiplier` tensors [1, rows, columns, n * channels].

    They come from [n, rows, columns, channels * multiplier].
    """
    rows, columns = spatial_sizes(tensor)
    # The number of channels is n times that of one record, and n need not be known.
    if multiplier == 1:
        moved = tf.transpose(tensor, [1, 2, 0, 3])
        return [tf.reshape(moved, [1, rows, columns, -1])]
    channels = tensor.shape[-1] // multiplier
    split = reshape_records(tensor, [rows, columns, channels, multiplier])
    moved = tf.transpose(split, [4, 1, 2, 0, 3])
    return tf.split(tf.reshape(moved, [multiplier, rows, columns, -1]), multiplier)


def _by_filter_gradient(source: tf.Tensor, gradient: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Returns [rows, columns, channels] from tensors whose records are channels."""
    kernel = tf.zeros([*windows.kernel, tf.shape(source)[-1], 1], source.dtype)
    # Only the gradient's operation stays in the graph; the convolution is not run.
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(kernel)
        output = convolve_by_channel(source, kernel, windows)
    return tf.squeeze(tape.gradient(output, kernel, output_gradients=gradient), 3)


def _by_correlation(source: tf.Tensor, gradient: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Returns the same, as the convolution of the source with the gradient as its kernel.

    In it strides and dilations change places.
    """
    source = windows.covered(source, spatial_sizes(gradient))
    kernel = tf.transpose(gradient, [1, 2, 3, 0])
    swapped = Windows(tuple(spatial_sizes(gradient)), windows.dilations, windows.strides, "VALID")
    return tf.squeeze(convolve_by_channel(source, kernel, swapped), 0)


def depthwise(
    inputs: tf.Tensor,
    output_gradient: tf.Tensor,
    kernel_shape: Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation_rate: int | Sequence[int] = 1,
    data_format: str = "channels_last",
) -> Explicit:
    """Returns the gradients of the kernel of a depthwise convolution along one or two axes.

    Every channel is convolved by itself, so those of all records may be the channels of one
    record: then the ordinary filter gradient of that is the gradients of all records. For large
    kernels, and for images smaller than theirs, the convolution of the input with the output
    gradient is faster.

    Args:
        inputs: [n, *spatial, channels], or [n, channels, *spatial] with channels first.
        output_gradient: The loss's gradient with respect to the convolution's output, before bias
            and activation: [n, *windows, channels * multiplier], or channels first.
        kernel_shape: (*kernel size, channels, multiplier).
        strides: One number, or one for each axis.
        padding: "valid" or "same".
        dilation_rate: One number, or one for each axis.
        data_format: "channels_last" or "channels_first", of inputs and output gradient.

    Example:
        >>> gradient = depthwise(tf.ones([2, 4, 3]), tf.ones([2, 3, 3]), (2, 3, 1))
        >>> gradient.squared_norms().numpy().round(2).tolist()  # Six numbers: sums of three ones.
        [54.0, 54.0]
    """
    source = channels_last(inputs, data_format)
    positions = channels_last(output_gradient, data_format)
    *kernel, channels, multiplier = kernel_shape
    windows = make_windows(kernel, strides, padding, dilation_rate)
    windows, (source, positions) = _as_2d(windows, source, positions)
    is_fast = _has_fast_filter_gradient(windows, positions)
    gradients_of = _by_filter_gradient if is_fast else _by_correlation
    (folded,) = _records_as_channels(source)
    # oneDNN is fast with one filter for each channel only.
    parts = [
        gradients_of(folded, part, windows) for part in _records_as_channels(positions, multiplier)
    ]
    gradients = tf.reshape(tf.stack(parts, -1), [*windows.kernel, -1, channels, multiplier])
    return Explicit(tf.reshape(tf.transpose(gradients, [2, 0, 1, 3, 4]), [-1, *kernel_shape]))


def separable(
    inputs: tf.Tensor,
    output_gradient: tf.Tensor,
    depthwise_kernel: tf.Tensor,
    pointwise_kernel: tf.Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation_rate: int | Sequence[int] = 1,
    data_format: str = "channels_last",
) -> tuple[PerRecordGradient, PerRecordGradient]:
    """Returns the gradients of the depthwise and the pointwise kernel of a separable convolution.

    What lies between the two convolutions is computed again.

    Args:
        inputs: [n, *spatial, channels], or channels first.
        output_gradient: [n, *windows, filters], or channels first, before bias and activation.
        depthwise_kernel: [*kernel size, channels, multiplier].
        pointwise_kernel: [*ones, channels * multiplier, filters].
        strides: One number, or one for each axis.
        padding: "valid" or "same".
        dilation_rate: One number, or one for each axis.
        data_format: "channels_last" or "channels_first", of inputs and output gradient.
    """
    source = channels_last(inputs, data_format)
    positions = channels_last(output_gradient, data_format)
    *kernel, channels, multiplier = depthwise_kernel.shape
    windows = make_windows(kernel, strides, padding, dilation_rate)
    rank = windows.rank
    flat, (source_2d,) = _as_2d(windows, source)
    depthwise_kernel = tf.cast(depthwise_kernel, source.dtype)
    kernel_2d = tf.reshape(depthwise_kernel, [*flat.kernel, channels, multiplier])
    middle = convolve_by_channel(source_2d, kernel_2d, flat)
    middle = middle[:, 0] if rank == 1 else middle
    pointwise = tf.reshape(
        to_accumulate(pointwise_kernel), [channels * multiplier, pointwise_kernel.shape[-1]]
    )
    middle_gradient = tf.tensordot(positions, tf.cast(pointwise, positions.dtype), [[-1], [-1]])
    return (
        depthwise(source, middle_gradient, depthwise_kernel.shape, strides, padding, dilation_rate),
        ConvolutionGradient(middle, positions, pointwise_kernel.shape),
    )
