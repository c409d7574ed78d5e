"""Normalization within a record: scale and offset of what has mean zero and variance one."""

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.norms import to_accumulate
from tfdp.numerics.shapes import reshape_records
from tfdp.numerics.shared_graphs import traced_once


class View(NamedTuple):
    """How a layer looks at its input.

    Attributes:
        inputs: The input, reshaped.
        reduced: Axes along which mean and variance are taken.
        kept: Axes that scale and offset have.
        parameter_shape: Shape in which they broadcast with the reshaped input.
        groups: Numbers of groups and of channels in each, where the last axis is that of channels
            and such means are to be replaced by their mean over a group; None otherwise.
    """

    inputs: tf.Tensor
    reduced: tuple[int, ...]
    kept: tuple[int, ...]
    parameter_shape: list[int]
    groups: tuple[int, int] | None = None


class NormalizationRule(LayerRule):
    """Mean and variance of a record turned into one product and one sum, as Keras does it.

        outputs = inputs * factor + shift
        factor = scale / (variance + epsilon)^(1/2)
        shift = offset - mean * factor

    Every record has a factor and a shift of its own, so backpropagation gives their gradients by
    record. (The gradient of the factor includes what reaches it through the shift.) From these
    follow the gradients of offset and scale. That of the offset is that of the shift. That of the
    scale is that of the factor divided by the standard deviation. Both are added up over the axes
    that offset and scale do not have.
    """

    def holds_for(self, layer: Any) -> bool:
        return super().holds_for(layer) and _is_within_records(layer)

    def variables(self, layer: Any) -> Iterable[Any]:
        if getattr(layer, "rms_scaling", False):
            return []
        return [v for v in (layer.gamma, layer.beta) if v is not None]

    @abc.abstractmethod
    def view(self, layer: Any, inputs: tf.Tensor) -> View:
        """Returns how the layer looks at its input."""

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        view = self.view(layer, to_accumulate(inputs))
        dtype = view.inputs.dtype

        def parameter(variable):
            value, ones = tf.cast(variable.value, dtype), [1] * (view.inputs.shape.rank - 1)
            if view.parameter_shape == [*ones, *value.shape]:
                return value  # Broadcasting does the rest.
            return tf.reshape(value, view.parameter_shape)

        def summed(variable, gradient, weights=None):
            sums = _sum_of_others(gradient, view.kept, weights)
            is_shaped = sums.shape[1:] == variable.shape
            return Explicit(sums if is_shaped else tf.reshape(sums, [-1, *variable.shape]))

        mean, variance = _moments(view)
        inverse = keras.ops.rsqrt(variance + layer.epsilon)
        factor = inverse
        if layer.gamma is not None:
            tap = recording.watch(inverse * parameter(layer.gamma))
            recording.add(tap, layer.gamma, lambda g: summed(layer.gamma, g, inverse))
            factor = tap.tensor
        shift = -mean * factor
        if layer.beta is not None:
            tap = recording.watch(shift + parameter(layer.beta))
            recording.add(tap, layer.beta, lambda g: summed(layer.beta, g))
            shift = tap.tensor
        outputs = tf.reshape(view.inputs * factor + shift, tf.shape(inputs))
        outputs = tf.cast(tf.cast(outputs, inputs.dtype), layer.compute_dtype)
        return tf.ensure_shape(outputs, inputs.shape)


def _moments(view: View) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance, which broadcast with the reshaped input.

    TensorFlow's own gradient of a mean is first made as large as the input and then divided, which
    takes more time.
    """

    @tf.custom_gradient
    def moments(x):
        mean, variance = _mean_and_variance(x, view.reduced, view.groups)

        def gradient(of_mean, of_variance):
            return _gradient_of_moments(x, mean, of_mean, of_variance, view.reduced, view.groups)

        return (mean, variance), gradient

    return moments(view.inputs)


@traced_once
def _mean_and_variance(
    x: tf.Tensor, axes: tuple[int, ...], groups: tuple[int, int] | None
) -> tuple[tf.Tensor, tf.Tensor]:
    mean = _pooled(tf.reduce_mean(x, axes, keepdims=True), groups)
    squares = tf.math.squared_difference(x, mean)
    return mean, _pooled(tf.reduce_mean(squares, axes, keepdims=True), groups)


@traced_once
def _gradient_of_moments(
    x: tf.Tensor,
    mean: tf.Tensor,
    of_mean: tf.Tensor,
    of_variance: tf.Tensor,
    axes: tuple[int, ...],
    groups: tuple[int, int] | None,
) -> tf.Tensor:
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), x.dtype)
    # Pooling is a symmetric linear map, so its gradient is the same pooling.
    slope = _pooled(of_variance, groups) * (2 / count)
    return (x - mean) * slope + _pooled(of_mean, groups) / count


def _pooled(means: tf.Tensor, groups: tuple[int, int] | None) -> tf.Tensor:
    """Returns [n, 1, channels] with the mean over the channels of a group in the place of each."""
    if groups is None:
        return means
    by_group = tf.reduce_mean(tf.reshape(means, [-1, 1, *groups]), 3, keepdims=True)
    return tf.reshape(tf.tile(by_group, [1, 1, 1, groups[1]]), [-1, 1, math.prod(groups)])


def _sum_of_others(
    tensor: tf.Tensor, kept: tuple[int, ...], weights: tf.Tensor | None
) -> tf.Tensor:
    """Returns the sum of tensor * weights over all axes but those of records and `kept`."""
    rank = tensor.shape.rank
    others = [axis for axis in range(1, rank) if axis not in kept]
    if weights is None:
        return tf.reduce_sum(tensor, others)
    if kept == (rank - 1,) and others and weights.shape[-1] == 1:
        # As a matrix product this reads the tensor only once.
        features, positions = tensor.shape[-1], tensor.shape[1:-1].num_elements()
        positions = -1 if positions is None else positions
        columns = reshape_records(weights, [positions, 1])
        rows = reshape_records(tensor, [positions, features])
        return tf.squeeze(tf.matmul(columns, rows, transpose_a=True), 1)
    return tf.reduce_sum(tensor * weights, others)


class LayerNormalizationRule(NormalizationRule):
    """Mean and variance are taken along the axes that scale and offset have."""

    def view(self, layer: Any, inputs: tf.Tensor) -> View:
        rank = inputs.shape.rank
        axes = tuple(axis % rank for axis in _axes(layer))
        shape = [inputs.shape[axis] if axis in axes else 1 for axis in range(rank)]
        return View(inputs, axes, axes, shape)


class GroupNormalizationRule(NormalizationRule):
    """The axis of channels is split into groups, each with its own mean and variance."""

    def view(self, layer: Any, inputs: tf.Tensor) -> View:
        sizes, axis = list(inputs.shape), layer.axis % inputs.shape.rank
        channels = (layer.groups, sizes[axis] // layer.groups)
        if None in sizes[1:]:
            dynamic = tf.shape(inputs)
            sizes = [dynamic[i] if size is None else size for i, size in enumerate(sizes)]
        if axis == len(sizes) - 1:
            return _channels_last(inputs, sizes, channels)
        grouped = reshape_records(inputs, [*sizes[1:axis], *channels, *sizes[axis + 1 :]])
        shape = [1] * grouped.shape.rank
        shape[axis : axis + 2] = channels
        reduced = tuple(a for a in range(1, len(shape)) if a != axis)
        return View(grouped, reduced, (axis, axis + 1), shape)


def _channels_last(inputs: tf.Tensor, sizes: list[Any], channels: tuple[int, int]) -> View:
    """Returns a view of [n, positions, channels]: rows of all channels have fast loops, rows of one
    group's have not.
    """
    number = math.prod(channels)
    flat = reshape_records(inputs, [math.prod(sizes[1:-1]), number])
    return View(flat, (1,), (2,), [1, 1, number], channels)


class RMSNormalizationRule(LayerRule):
    """With outputs = normalized * scale, the scale's gradient is gradient * normalized.

    Keras lines up the axes of the scale with the last ones of the input, whatever axes they are of.
    """

    def holds_for(self, layer: Any) -> bool:
        axes = _axes(layer)
        # Axes that are the same could be more than a record has.
        distinct = len(set(axes)) == len(axes) and (-1 not in axes or len(axes) == 1)
        return super().holds_for(layer) and _is_within_records(layer) and distinct

    def variables(self, layer: Any) -> Iterable[Any]:
        return [layer.scale]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.values([(layer.scale, tf.ones(layer.scale.shape, layer.scale.dtype))]):
            normalized = call(inputs, **kwargs)
        outputs = tf.cast(normalized, layer.scale.dtype) * layer.scale.value
        tap = recording.watch(tf.cast(outputs, normalized.dtype))
        shape = layer.scale.shape

        def gradients(g):
            others = range(1, g.shape.rank - len(shape))
            sums = tf.reduce_sum(g * tf.cast(normalized, g.dtype), others)
            single = [axis for axis, size in enumerate(shape, 1) if size == 1]
            return Explicit(tf.reduce_sum(sums, single, keepdims=True))

        recording.add(tap, layer.scale, gradients)
        return tap.tensor


def _is_within_records(layer: Any) -> bool:
    # A negative axis other than -1 could be that of records: the rank is not known before the layer
    # has seen an input.
    return all(axis > 0 or axis == -1 for axis in _axes(layer))


def _axes(layer: Any) -> Sequence[int]:
    return [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)


register_rule(keras.layers.LayerNormalization, LayerNormalizationRule())
register_rule(keras.layers.GroupNormalization, GroupNormalizationRule())
register_rule(keras.layers.RMSNormalization, RMSNormalizationRule())
