"""Batch normalization whose moving statistics are estimated privately."""

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.events.arguments import real_number
from tfdp.gradients import Explicit, LayerRule, register_rule
from tfdp.gradients.keras_internals import layers_in
from tfdp.gradients.recording import Recording
from tfdp.keras import distribution
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.private_metrics import PrivateMetric


@keras.saving.register_keras_serializable("tfdp")
class PrivateBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` that normalizes by its moving statistics in training, too.

    `make_private(model, batch_norm="private")` puts it in the place of Keras' layer. What it does
    to a record depends on no other record. Training of the private model estimates the statistics
    by a mechanism of their own (`BatchMoments`), and nothing else updates them.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        outputs = super().call(inputs, training=False, mask=mask)
        found = getattr(_collecting, "found", None)
        if found is not None and self.trainable:
            found.setdefault(self.name, []).append(moments_of_records(self, inputs, mask))
        return outputs


_collecting = threading.local()


@contextlib.contextmanager
def collecting() -> Iterator[dict[str, list[tf.Tensor]]]:
    """Collects, in the block, what every call of a layer found out about its records.

    Yields:
        From the name of a layer to the results of `moments_of_records`.
    """
    before = getattr(_collecting, "found", None)
    _collecting.found = {}
    try:
        yield _collecting.found
    finally:
        _collecting.found = before


def moments_of_records(layer: Any, inputs: tf.Tensor, mask: Any = None) -> tf.Tensor:
    """Returns the means of u and of u^2 - 1 over the positions of each record, [n, 2 channels].

    u is what the layer makes of its inputs before scale and offset. Both are zero on average where
    the moving statistics are those of the inputs.

    Args:
        layer: A `PrivateBatchNormalization` that is built.
        inputs: [n, ...].
        mask: bool [n, ...], of one axis less: positions that count.
    """
    rank = inputs.shape.rank
    axis = layer.axis % rank
    shape = [inputs.shape[axis] if i == axis else 1 for i in range(rank)]

    def broadcast(values):
        return tf.reshape(tf.cast(tf.convert_to_tensor(values), tf.float32), shape)

    inverse = tf.math.rsqrt(broadcast(layer.moving_variance) + layer.epsilon)
    u = (tf.cast(inputs, tf.float32) - broadcast(layer.moving_mean)) * inverse
    others = [i for i in range(1, rank) if i != axis]
    if mask is None:
        means = [tf.reduce_mean(u, others), tf.reduce_mean(u * u, others)]
        filled = tf.ones_like(means[0])
    else:
        kept = tf.cast(tf.expand_dims(mask, axis), tf.float32)
        count = tf.reduce_sum(kept, others)
        means = [tf.math.divide_no_nan(tf.reduce_sum(v * kept, others), count) for v in (u, u * u)]
        filled = tf.ones_like(means[0]) * tf.cast(count > 0, tf.float32)
    return tf.stop_gradient(tf.concat([means[0], means[1] - filled], axis=-1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchMoments(PrivateMetric):
    """What a step releases about the inputs of one layer, beside its gradients.

        (sum_i s_i min(1, c / |s_i|) + N(0, (noise_multiplier c)^2 I)) / d

    with s_i of a record as in `moments_of_records` and c = (2 channels)^(1/2), a bound that records
    with u of about 1 reach.

    Attributes:
        channels: Of the layer.
    """

    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (2 * self.channels,)

    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        raise NotImplementedError("Moments are found while the model runs.")


def moments(layers: Sequence[Any], noise_multiplier: float) -> tuple[BatchMoments, ...]:
    """Returns what is released about layers, which together cost what one release of this noise
    multiplier does.

    Args:
        layers: Built `PrivateBatchNormalization` layers.
        noise_multiplier: Noise, relative to the bound, of all of them together.
    """
    each = real_number(
        "batch_norm_noise_multiplier", noise_multiplier, minimum=0, inclusive=False
    ) * math.sqrt(len(layers))
    return tuple(
        BatchMoments(
            name=layer.name,
            noise_multiplier=each,
            channels=(channels := int(layer.moving_mean.shape[0])),
            l2_norm_clip=math.sqrt(2 * channels),
        )
        for layer in layers
    )


def private_norms(model: keras.Model) -> list[PrivateBatchNormalization]:
    """Returns the layers of a model whose statistics its training estimates, by their names.

    Raises:
        NotPrivateError: one is not built, or two have one name.
    """
    found = {
        id(layer): layer
        for layer in layers_in(model, deep=True)
        if isinstance(layer, PrivateBatchNormalization) and layer.trainable
    }
    layers = sorted(found.values(), key=lambda layer: layer.name)
    if not all(layer.built for layer in layers):
        raise NotPrivateError(
            "Private batch normalization needs a built model: give it an Input, or call it once."
        )
    if len({layer.name for layer in layers}) < len(layers):
        raise NotPrivateError(
            "Layers of private batch normalization need names of their own. Received: "
            f"{[layer.name for layer in layers]}."
        )
    return layers


def values_of_record(
    released: Sequence[BatchMoments], found: dict[str, list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns the moments of a batch of one record, by layer; zeros where they are not finite.

    Args:
        released: What is released about the layers.
        found: What `collecting` gave, of a batch of one.

    Raises:
        NotPrivateError: a layer was not called.
    """
    result = []
    for one in released:
        calls = found.get(one.name)
        if not calls:
            raise NotPrivateError(f"The model did not call its layer {one.name!r} in training.")
        value = tf.reshape(tf.add_n(calls) / len(calls), one.shape)
        is_finite = tf.reduce_all(tf.math.is_finite(value))
        result.append(tf.where(is_finite, value, tf.zeros_like(value)))
    return result


def update_moving(layer: Any, released: tf.Tensor, noise_stddev: float) -> None:
    """Moves a layer's statistics towards those that a step released.

    The variance of a batch is E u^2 - (E u)^2 in units of the moving one. The square of the noise
    in E u is taken off on average, and what is below zero counts as zero.

    Args:
        layer: A `PrivateBatchNormalization`.
        released: The noised means, [2 channels].
        noise_stddev: Standard deviation of the noise in them.
    """
    moving_mean = tf.cast(tf.convert_to_tensor(layer.moving_mean), tf.float32)
    moving_variance = tf.cast(tf.convert_to_tensor(layer.moving_variance), tf.float32)
    first, second = tf.split(released, 2)
    unit = moving_variance + layer.epsilon
    mean = moving_mean + tf.sqrt(unit) * first
    variance = unit * (1 + second - first * first + noise_stddev**2)
    for variable, old, new in (
        (layer.moving_mean, moving_mean, mean),
        (layer.moving_variance, moving_variance, tf.maximum(variance, 0.0)),
    ):
        value = old * layer.momentum + new * (1 - layer.momentum)
        # What is not finite would stay so for ever.
        variable.assign(tf.cast(tf.where(tf.math.is_finite(value), value, old), variable.dtype))


class _Rule(LayerRule):
    """The layer is the product of normalized inputs and scale, plus offset, with constants."""

    records_when_frozen = True  # Its statistics are wanted even where it has no scale and offset.

    def holds_for(self, layer: Any) -> bool:
        return super().holds_for(layer) and (layer.axis > 0 or layer.axis == -1)

    def variables(self, layer: Any) -> Iterable[Any]:
        own = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
        return [v for v in own if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        tap = recording.watch(call(inputs, **kwargs))
        rank = inputs.shape.rank
        axis = layer.axis % rank
        others = [i for i in range(1, rank) if i != axis]
        shape = [inputs.shape[axis] if i == axis else 1 for i in range(rank)]

        def normalized(dtype):
            mean, variance = (
                tf.reshape(tf.cast(v.value, dtype), shape)
                for v in (layer.moving_mean, layer.moving_variance)
            )
            return (tf.cast(inputs, dtype) - mean) * tf.math.rsqrt(variance + layer.epsilon)

        recording.add(
            tap,
            layer.gamma,
            lambda g: Explicit(tf.reduce_sum(g * normalized(g.dtype), others)),
        )
        recording.add(tap, layer.beta, lambda g: Explicit(tf.reduce_sum(g, others)))
        return tap.tensor


register_rule(PrivateBatchNormalization, _Rule())


def check_moments(layers: Sequence[Any], noise_multiplier: float | None) -> None:
    """Refuses layers without noise, and noise without layers.

    Raises:
        NotPrivateError: says what to write.
    """
    if layers and noise_multiplier is None:
        raise NotPrivateError(
            "The model has private batch normalization, whose statistics need noise of their own: "
            "DPOptimizer(..., batch_norm_noise_multiplier=10.0), several times the noise "
            "multiplier of the gradients."
        )
    if noise_multiplier is not None and not layers:
        raise NotPrivateError(
            "batch_norm_noise_multiplier is for a model with private batch normalization "
            '(make_private(model, batch_norm="private")), trained by fit or train_on_batch. Leave '
            f"it out. Received: batch_norm_noise_multiplier={noise_multiplier!r}."
        )


def check_replicas() -> None:
    """Refuses several replicas, of which each has moving statistics of its own.

    Raises:
        NotPrivateError: there are several.
    """
    if distribution.num_replicas() > 1:
        raise NotPrivateError(
            "Private batch normalization trains on one device: on several replicas every one of "
            "them would have moving statistics of its own."
        )
