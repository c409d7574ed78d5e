"""Convolutions along one, two or three axes, with low-rank adaptation, and transposed ones."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients.forms.convolution import ConvolutionGradient, channels_last, make_windows
from tfdp.gradients.forms.convolution_depthwise import convolve_by_channel, depthwise, is_direct
from tfdp.gradients.forms.convolution_windows import Windows, spatial_sizes
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.forms.products import Product
from tfdp.gradients.keras_internals import kernel_of
from tfdp.gradients.onednn import leaves_numbers_unwritten, of_two_channels
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import added_gradient, matrix_variables, times
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.norms import to_accumulate
from tfdp.numerics.shapes import reshape_records


def channel_bias_gradient(layer: Any, gradient: tf.Tensor) -> Explicit:
    """Returns the gradients of a vector that is added along the axis of channels."""
    shape = list(layer.bias.shape)
    if layer.data_format == "channels_last":
        return Explicit(added_gradient(gradient, shape))
    summed = added_gradient(gradient, [*shape, *[1] * (gradient.shape.rank - 2)])
    return Explicit(tf.reshape(summed, [-1, *shape]))


def padded_inputs(layer: Any, inputs: tf.Tensor) -> tuple[tf.Tensor, str]:
    """Returns the inputs and the padding with which the layer convolves them."""
    if layer.padding != "causal":
        return inputs, layer.padding
    left = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
    amounts = [[0, 0], [left, 0], [0, 0]]
    if layer.data_format == "channels_first":
        amounts = [[0, 0], [0, 0], [left, 0]]
    return tf.pad(inputs, amounts), "valid"


def _is_by_channel(layer: Any) -> bool:
    """Returns whether every channel is a group, along one or two axes."""
    shape = kernel_of(layer).shape
    return layer.groups > 1 and shape[-2] == 1 and len(shape) <= 4


def _depthwise_shape(layer: Any) -> list[int]:
    """Returns the shape of the kernel of the same depthwise convolution, whose numbers are in the
    same order.
    """
    *size, _, filters = kernel_of(layer).shape
    return [*size, layer.groups, filters // layer.groups]


def _convolve(layer: Any) -> Callable[..., tf.Tensor] | None:
    """Returns another way to convolve inputs, with channels last, and the kernel of a layer, where
    that is faster or safer, or None. A causal layer's inputs are padded already.

    On a CPU, Keras has XLA compile a grouped convolution anew for every number of records. It takes
    a hundred times as long as ordinary ones, or as a depthwise one. What TensorFlow leaves
    unwritten of ordinary ones could be other records'.
    """
    padding = "valid" if layer.padding == "causal" else layer.padding

    def own(inputs, kernel):
        return keras.ops.conv(
            inputs,
            kernel,
            strides=list(layer.strides),
            padding=padding,
            dilation_rate=layer.dilation_rate,
            data_format="channels_last",
        )

    def by_group(inputs, kernel):
        parts = zip(*(tf.split(t, layer.groups, -1) for t in (inputs, kernel)), strict=True)
        return tf.concat([own(*part) for part in parts], -1)

    def by_two_channels(inputs, kernel):
        return own(*of_two_channels(inputs, kernel))

    channels = kernel_of(layer).shape[-2]
    if layer.groups == 1:
        is_at_fault = leaves_numbers_unwritten(channels, layer.strides, None)
        return by_two_channels if is_at_fault else None
    by_channel = _by_channel(layer, padding) if _is_by_channel(layer) else None
    # Convolutions of one channel along several axes may be at fault.
    is_safe = channels > 1 or len(layer.kernel_size) == 1
    return by_channel or (by_group if is_safe else None)


def _by_channel(layer: Any, padding: str) -> Callable[..., tf.Tensor] | None:
    """Returns the depthwise convolution that a layer's is, if TensorFlow has it, else None."""
    rank, shape = len(layer.kernel_size), _depthwise_shape(layer)
    # A convolution along one axis is one of images of a single row.
    strides, row = [*layer.strides] * (3 - rank), [1] * (2 - rank)
    kernel_size, dilations = [*row, *layer.kernel_size], [*row, *layer.dilation_rate]
    windows = make_windows(kernel_size, strides, padding, dilations)

    def by_channel(inputs, kernel):
        kernel = tf.reshape(kernel, [*row, *shape])
        if rank == 2:
            return convolve_by_channel(inputs, kernel, windows)
        return tf.squeeze(convolve_by_channel(inputs[:, tf.newaxis], kernel, windows), 1)

    return by_channel if is_direct(windows) else None


def _called(
    recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
) -> tf.Tensor:
    """Returns what a layer returns, by another way to convolve where there is one."""
    convolve = _convolve(layer)
    if convolve is None:
        return call(inputs, **kwargs)

    def with_channels_last(inputs, kernel):
        inputs, kernel = map(keras.ops.convert_to_tensor, (inputs, kernel))
        if layer.data_format == "channels_last":
            return convolve(inputs, kernel)
        last = inputs.shape.rank - 1
        outputs = convolve(tf.transpose(inputs, [0, *range(2, last + 1), 1]), kernel)
        return tf.transpose(outputs, [0, last, *range(1, last)])

    with recording.replaced(layer, "convolution_op", with_channels_last):
        if len(layer.kernel_size) > 1:
            return call(inputs, **kwargs)
        # The code of Keras' Conv1D does without `convolution_op`; its base class' has it.
        padded, _ = padded_inputs(layer, inputs)
        return super(keras.layers.Conv1D, layer).call(padded, **kwargs)


def _windows_of(layer: Any, padding: str) -> Windows:
    return make_windows(layer.kernel_size, layer.strides, padding, layer.dilation_rate)


def _by_group(tensor: tf.Tensor, groups: int) -> tf.Tensor:
    """Returns [n * groups, *spatial, channels / groups] from [n, *spatial, channels]."""
    if groups == 1:
        return tensor
    sizes, channels = spatial_sizes(tensor), tensor.shape[-1] // groups
    last = len(sizes) + 1
    apart = reshape_records(tensor, [*sizes, groups, channels])
    rows = tf.reshape(
        tf.transpose(apart, [0, last, *range(1, last), last + 1]), [-1, *sizes, channels]
    )
    return tf.ensure_shape(rows, [None, *tensor.shape[1:-1], channels])


class _Operands(NamedTuple):
    """What gradients of a layer's weights are made of, with channels last.

    Attributes:
        layer: The layer.
        source: What it convolves.
        positions: The gradient at its outputs, before the activation.
        options: Strides, padding and dilations.
    """

    layer: Any
    source: tf.Tensor
    positions: tf.Tensor
    options: tuple[Any, str, Any]

    @classmethod
    def of(cls, layer: Any, inputs: tf.Tensor, gradient: tf.Tensor) -> "_Operands":
        padded, padding = padded_inputs(layer, inputs)
        source, positions = (channels_last(x, layer.data_format) for x in (padded, gradient))
        return cls(layer, source, positions, (layer.strides, padding, layer.dilation_rate))

    def kernel_gradient(self) -> PerRecordGradient:
        shape, groups = kernel_of(self.layer).shape, self.layer.groups
        if not _is_by_channel(self.layer):
            return ConvolutionGradient(self.source, self.positions, shape, *self.options, groups)
        by_channel = _depthwise_shape(self.layer)
        gradients = depthwise(self.source, self.positions, by_channel, *self.options).explicit()
        return Explicit(tf.reshape(gradients, [-1, *shape]))

    def first_factor_gradient(self) -> PerRecordGradient:
        a, b, groups = self.layer.lora_kernel_a, self.layer.lora_kernel_b, self.layer.groups
        # [groups * rank, filters]: in the rows of a group are its own columns of B, and zeros.
        rank, filters = b.shape
        own = np.kron(np.eye(groups), np.ones([rank, filters // groups]))
        columns = tf.tile(to_accumulate(b.value), [groups, 1]) * own
        at_rank = self._scale * times(self.positions, columns, True)
        gradients = ConvolutionGradient(
            _by_group(self.source, groups), _by_group(at_rank, groups), a.shape, *self.options
        )
        return gradients if groups == 1 else gradients.grouped(None, groups)

    def second_factor_gradient(self) -> PerRecordGradient:
        b, groups = self.layer.lora_kernel_b, self.layer.groups
        a = tf.cast(self.layer.lora_kernel_a.value, self.source.dtype)
        windows = _windows_of(self.layer, self.options[1])
        at_rank = self._scale * windows.convolve(_by_group(self.source, groups), a)
        positions = _by_group(self.positions, groups)
        # [n, groups, positions, numbers]: each group has columns of B to itself.
        left, right = (
            tf.reshape(x, [-1, groups, math.prod(spatial_sizes(positions)), x.shape[-1]])
            for x in (at_rank, positions)
        )
        axes = [groups, left.shape[-1], right.shape[-1]]
        return Product(left, right, axes, (1, 0, 2), shape=b.shape)

    @property
    def _scale(self) -> float:
        return self.layer.lora_alpha / self.layer.lora_rank


class ConvolutionRule(LayerRule):
    """The kernel's gradient is the filter gradient of one record (`ConvolutionGradient`).

    With low-rank adaptation the kernel is W + s A B. A is the kernel of a convolution with as many
    filters as the rank, and s B gradient_t is the gradient at its outputs. B has the gradient sum_t
    outer(s outputs_t, gradient_t), with the outputs of that convolution. Groups share A, and each
    has columns of B to itself.
    """

    taps_activation = True

    def variables(self, layer: Any) -> Iterable[Any]:
        if layer.lora_enabled:
            return matrix_variables(layer)
        return [v for v in (kernel_of(layer), layer.bias) if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap:
            outputs = _called(recording, layer, call, inputs, **kwargs)

        def of(gradient):
            return _Operands.of(layer, inputs, gradient)

        recording.add(tap, layer.bias, lambda g: channel_bias_gradient(layer, g))
        recording.add(tap, kernel_of(layer), lambda g: of(g).kernel_gradient())
        if layer.lora_enabled:
            recording.add(tap, layer.lora_kernel_a, lambda g: of(g).first_factor_gradient())
            recording.add(tap, layer.lora_kernel_b, lambda g: of(g).second_factor_gradient())
        return outputs


class TransposedConvolutionRule(LayerRule):
    """As of the convolution that goes the other way, with input and output gradient exchanged."""

    taps_activation = True

    def holds_for(self, layer: Any) -> bool:
        # Going back, TensorFlow convolves the output gradient. Record by record that is written.
        is_written = not leaves_numbers_unwritten(layer.filters, layer.strides, None)
        return is_written and super().holds_for(layer)

    def variables(self, layer: Any) -> Iterable[Any]:
        return [v for v in (layer.kernel, layer.bias) if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap:
            outputs = call(inputs, **kwargs)

        def kernel_gradient(g):
            return ConvolutionGradient.transposed(
                inputs,
                g,
                layer.kernel.shape,
                layer.strides,
                layer.padding,
                layer.dilation_rate,
                layer.data_format,
            )

        recording.add(tap, layer.bias, lambda g: channel_bias_gradient(layer, g))
        recording.add(tap, layer.kernel, kernel_gradient)
        return outputs


for _rank in "123":
    register_rule(getattr(keras.layers, f"Conv{_rank}D"), ConvolutionRule())
    register_rule(getattr(keras.layers, f"Conv{_rank}DTranspose"), TransposedConvolutionRule())
