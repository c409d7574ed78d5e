"""Depthwise and separable convolutions along one or two axes."""

from collections.abc import Callable, Iterable
from typing import Any

import keras

from tfdp.gradients.forms.convolution_depthwise import depthwise, separable
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.convolution import channel_bias_gradient, padded_inputs
from tfdp.gradients.rules.rule import LayerRule, register_rule


class DepthwiseConvolutionRule(LayerRule):
    """The kernel's gradient is the filter gradient of every channel of one record."""

    taps_activation = True

    def variables(self, layer: Any) -> Iterable[Any]:
        return [v for v in (layer.kernel, layer.bias) if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap:
            outputs = call(inputs, **kwargs)

        def kernel_gradient(g):
            return depthwise(
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


class SeparableConvolutionRule(LayerRule):
    """A depthwise convolution, and then one of size one."""

    taps_activation = True

    def variables(self, layer: Any) -> Iterable[Any]:
        kernels = [layer.depthwise_kernel, layer.pointwise_kernel]
        return kernels if layer.bias is None else [*kernels, layer.bias]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap:
            outputs = call(inputs, **kwargs)

        def kernel_gradients(g):
            padded, padding = padded_inputs(layer, inputs)
            return separable(
                padded,
                g,
                layer.depthwise_kernel.value,
                layer.pointwise_kernel.value,
                layer.strides,
                padding,
                layer.dilation_rate,
                layer.data_format,
            )

        recording.add(tap, layer.bias, lambda g: channel_bias_gradient(layer, g))
        recording.add(tap, layer.depthwise_kernel, lambda g: kernel_gradients(g)[0])
        recording.add(tap, layer.pointwise_kernel, lambda g: kernel_gradients(g)[1])
        return outputs


for _rank in "12":
    register_rule(getattr(keras.layers, f"DepthwiseConv{_rank}D"), DepthwiseConvolutionRule())
    register_rule(getattr(keras.layers, f"SeparableConv{_rank}D"), SeparableConvolutionRule())
