"""STFTSpectrogram, whose kernels convolve every channel of a sound by itself."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.convolution import ConvolutionGradient
from tfdp.gradients.forms.per_record import PerRecordGradient
from tfdp.gradients.keras_internals import SPECTROGRAM_CONVOLUTION, frame_step_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.rule import LayerRule, register_rule


def _as_rows(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """Returns [n * channels, *shape] from [n, channels, *rest]; None: as in `tensor`."""
    sizes = tf.shape(tensor)
    known = [sizes[2 + i] if size is None else size for i, size in enumerate(shape)]
    return tf.ensure_shape(tf.reshape(tensor, [-1, *known]), [None, *shape])


def _kernel_gradient(layer: Any, inputs: tf.Tensor, gradient: tf.Tensor) -> PerRecordGradient:
    """Returns the gradients of a kernel.

    Args:
        layer: The layer.
        inputs: What it is called on.
        gradient: That at the convolution's output, [n, channels, frequencies, frames].
    """
    if layer.data_format == "channels_last":
        inputs = tf.transpose(inputs, [0, 2, 1])
    channels, length = inputs.shape[1:]
    frequencies, frames = gradient.shape[2:]
    gradients = ConvolutionGradient(
        _as_rows(inputs, [length, 1]),
        _as_rows(tf.transpose(gradient, [0, 1, 3, 2]), [frames, frequencies]),
        (layer.frame_length, 1, frequencies),
        frame_step_of(layer),
        layer.padding,
    )
    if channels == 1:
        return gradients
    return gradients.grouped(None, tf.shape(inputs)[1] if channels is None else channels)


class SpectrogramRule(LayerRule):
    """The gradient of a kernel is the filter gradient of one channel (`ConvolutionGradient`), added
    up over the channels of a record.
    """

    def variables(self, layer: Any) -> Iterable[Any]:
        kernels = [getattr(layer, name, None) for name in ("real_kernel", "imag_kernel")]
        return [kernel for kernel in kernels if kernel is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        own = getattr(layer, SPECTROGRAM_CONVOLUTION)

        def convolve(inputs, kernel):
            tap = recording.watch(own(inputs, kernel))
            recording.add(tap, kernel, lambda g: _kernel_gradient(layer, inputs, g))
            return tap.tensor

        with recording.replaced(layer, SPECTROGRAM_CONVOLUTION, convolve):
            return call(inputs, **kwargs)


# `MelSpectrogram` has no rule: it takes the largest number of a batch for zero decibels.
register_rule(keras.layers.STFTSpectrogram, SpectrogramRule())
