"""Convolutions along one, two or three axes, with low-rank adaptation, and transposed ones."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.forms.convolution import ConvolutionGradient, channels_last, make_windows
from tfdp.gradients.forms.convolution_depthwise import convolve_by_channel, depthwise, is_direct
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.forms.products import matrix_gradient
from tfdp.gradients.keras_internals import kernel_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import matrix_variables, times
from tfdp.gradients.rules.rule import LayerRule, register_rule


def channel_bias_gradient(layer: Any, gradient: tf.Tensor) -> Explicit:
    """Returns the gradients of a vector that is added along the axis of channels."""
    last = gradient.shape.rank - 1
    channels = last if layer.data_format == "channels_last" else 1
    return Explicit(tf.reduce_sum(gradient, [a for a in range(1, last + 1) if a != channels]))


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


def _faster_by_channel(recording: Recording, layer: Any) -> contextlib.AbstractContextManager[None]:
    """Makes a layer convolve every channel by itself in the block, where it does so anyway.

    On a CPU, Keras has XLA compile a grouped convolution anew for every number of records. It takes
    a hundred times as long as a depthwise one.
    """
    is_2d = _is_by_channel(layer) and len(layer.kernel_size) == 2
    if not (is_2d and layer.data_format == "channels_last"):
        return contextlib.nullcontext()
    windows = make_windows(layer.kernel_size, layer.strides, layer.padding, layer.dilation_rate)
    if not is_direct(windows):
        return contextlib.nullcontext()

    def convolve(inputs, kernel):
        kernel = tf.reshape(keras.ops.convert_to_tensor(kernel), _depthwise_shape(layer))
        return convolve_by_channel(inputs, kernel, windows)

    return recording.replaced(layer, "convolution_op", convolve)


def _is_adapted(layer: Any) -> bool:
    """Returns whether a layer has a low-rank adaptation that the rule knows."""
    return layer.lora_enabled and layer.groups == 1


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
        a, b = self.layer.lora_kernel_a, self.layer.lora_kernel_b
        at_rank = self._scale * times(self.positions, b, True)
        return ConvolutionGradient(self.source, at_rank, a.shape, *self.options)

    def second_factor_gradient(self) -> PerRecordGradient:
        windows = make_windows(self.layer.kernel_size, *self.options)
        a = tf.cast(self.layer.lora_kernel_a.value, self.source.dtype)
        return matrix_gradient(self._scale * windows.convolve(self.source, a), self.positions)

    @property
    def _scale(self) -> float:
        return self.layer.lora_alpha / self.layer.lora_rank


class ConvolutionRule(LayerRule):
    """The kernel's gradient is the filter gradient of one record (`ConvolutionGradient`).

    With low-rank adaptation the kernel is W + s A B. A is the kernel of a convolution with as many
    filters as the rank, and s B gradient_t is the gradient at its outputs. B has the gradient sum_t
    outer(s outputs_t, gradient_t), with the outputs of that convolution. Where there are groups,
    each uses other columns of B, and the layer runs record by record.
    """

    taps_activation = True

    def variables(self, layer: Any) -> Iterable[Any]:
        if _is_adapted(layer):
            return matrix_variables(layer)
        return [v for v in (kernel_of(layer), layer.bias) if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap, _faster_by_channel(recording, layer):
            outputs = call(inputs, **kwargs)

        def of(gradient):
            return _Operands.of(layer, inputs, gradient)

        recording.add(tap, layer.bias, lambda g: channel_bias_gradient(layer, g))
        recording.add(tap, kernel_of(layer), lambda g: of(g).kernel_gradient())
        if _is_adapted(layer):
            recording.add(tap, layer.lora_kernel_a, lambda g: of(g).first_factor_gradient())
            recording.add(tap, layer.lora_kernel_b, lambda g: of(g).second_factor_gradient())
        return outputs


class TransposedConvolutionRule(LayerRule):
    """As of the convolution that goes the other way, with input and output gradient exchanged."""

    taps_activation = True

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
