"""The kernels of ConvLSTM: convolutions at every step of a sequence."""

from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.convolution import ConvolutionGradient
from tfdp.gradients.forms.per_record import PerRecordGradient
from tfdp.gradients.onednn import leaves_numbers_unwritten, of_two_channels
from tfdp.gradients.recording import Recording, Tap
from tfdp.gradients.rules.dense import bias_gradient


def products(cell: Any, sequences: tf.Tensor) -> tf.Tensor:
    """Returns inputs convolved with the kernel, with the bias, [n, t, *spatial, gates * filters].

    Args:
        cell: Of a ConvLSTM.
        sequences: [n, t, *spatial, channels] or, for each gate, [n, gates, t, *spatial, channels].
    """
    kernel = tf.cast(cell.kernel.value, sequences.dtype)
    by_gate = [sequences]
    if sequences.shape.rank > cell.rank + 3:
        by_gate = tf.unstack(sequences, axis=1)
    operands = list(zip(map(_frames, by_gate), tf.split(kernel, len(by_gate), -1), strict=True))
    if leaves_numbers_unwritten(kernel.shape[-2], cell.strides, None):
        operands = [of_two_channels(*pair) for pair in operands]
    parts = [
        keras.ops.conv(
            *pair,
            strides=cell.strides,
            padding=cell.padding,
            data_format="channels_last",
            dilation_rate=cell.dilation_rate,
        )
        for pair in operands
    ]
    frames = parts[0] if len(parts) == 1 else tf.concat(parts, -1)
    if cell.use_bias:
        frames += tf.cast(cell.bias.value, frames.dtype)
    steps = by_gate[0].shape[1]
    lengths = tf.shape(by_gate[0])[:2]
    result = tf.reshape(frames, tf.concat([lengths, tf.shape(frames)[1:]], 0))
    return tf.ensure_shape(result, [sequences.shape[0], steps, *frames.shape[1:]])


def add(recording: Recording, cell: Any, tap: Tap, sequences: tf.Tensor, before: tf.Tensor) -> None:
    """Says what follows from a tap.

    Args:
        recording: Of the model.
        cell: Of a ConvLSTM.
        tap: At what `products` returns.
        sequences: What the kernel is convolved with, as for `products`.
        before: What the recurrent kernel is convolved with, likewise.
    """
    options = (cell.strides, cell.padding, cell.dilation_rate)
    recording.add(tap, cell.kernel, lambda g: _gradient(sequences, g, cell.kernel, *options))
    recording.add(tap, cell.recurrent_kernel, lambda g: _gradient(before, g, cell.recurrent_kernel))
    recording.add(tap, cell.bias, bias_gradient)


def _gradient(
    left: tf.Tensor,
    right: tf.Tensor,
    kernel: Any,
    strides: Any = 1,
    padding: str = "same",
    dilation_rate: Any = 1,
) -> PerRecordGradient:
    """Returns gradients of a kernel from what it is convolved with and gradients [n, t, *spatial,
    gates * filters].
    """
    gates = 1
    if left.shape.rank > right.shape.rank:
        # The inputs of the gates are groups of channels.
        gates = left.shape[1]
        rank = left.shape.rank
        left = tf.transpose(left, [0, *range(2, rank - 1), 1, rank - 1])
        shape = tf.concat([tf.shape(left)[:-2], [gates * left.shape[-1]]], 0)
        static = [*left.shape[:-2], gates * left.shape[-1]]
        left = tf.ensure_shape(tf.reshape(left, shape), static)
    frames = ConvolutionGradient(
        _frames(left), _frames(right), kernel.shape, strides, padding, dilation_rate, gates
    )
    steps = right.shape[1]
    return frames.grouped(None, tf.shape(right)[1] if steps is None else steps)


def _frames(sequences: tf.Tensor) -> tf.Tensor:
    """Returns [n * t, ...] from [n, t, ...]."""
    shape = tf.shape(sequences)
    frames = tf.reshape(sequences, tf.concat([[shape[0] * shape[1]], shape[2:]], 0))
    return tf.ensure_shape(frames, [None, *sequences.shape[2:]])
