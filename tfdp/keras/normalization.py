"""Batch normalization replaced by normalization of every record by itself."""

from collections.abc import Callable
from typing import Any

import keras

from tfdp.gradients.keras_internals import layers_in
from tfdp.keras.batch_statistics import PrivateBatchNormalization

_KEPT = ("name", "dtype", "axis", "epsilon", "center", "scale") + tuple(
    f"{weight}_{part}"
    for weight in ("gamma", "beta")
    for part in ("initializer", "regularizer", "constraint")
)


def convert_norm(model: keras.Model, groups: int = 32) -> tuple[keras.Model, list[str]]:
    """Returns a copy of a model in which group normalization stands for batch normalization.

    Every trainable `BatchNormalization` becomes a `GroupNormalization` of the same name and axis;
    one that is frozen normalizes by constants, mixes nothing, and stays. The copy has weights of
    its own, equal to those of `model`: of a replaced layer gamma and beta are kept, the moving
    averages are dropped. The function that the model computes is another one, so train it further.

    Args:
        model: A built functional or sequential model, whose parts may be such models too.
        groups: Most groups of channels. A layer gets the largest number up to this that divides its
            channels. One on vectors [n, channels] gets one group, since of a single number in a
            group nothing would be left.

    Returns:
        (the copy, a line for every layer that was replaced).

    Raises:
        TypeError: the model is not made of layers that Keras can copy.
        ValueError: `groups` is not positive, or the model is not built; or a trainable
            `BatchNormalization` is inside a layer, where it cannot be replaced.

    Example:
        >>> model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(6, 3)])
        >>> model.add(keras.layers.BatchNormalization(name="norm"))
        >>> model, replaced = convert_norm(model)
        >>> replaced
        ['norm: GroupNormalization(groups=6) for 6 channels']
    """
    if not _is_copied_by_keras(model):
        raise TypeError(
            "convert_norm needs a functional or sequential model, which it can make anew with "
            f"other layers. Received: {type(model).__name__}. Use GroupNormalization in its class."
        )
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ValueError(f"groups must be a positive integer. Received: groups={groups!r}.")
    if not model.built:
        raise ValueError("The model must be built, so that its layers have weights to keep.")
    replaced: list[str] = []

    def grouped(layer):
        channels = layer.moving_mean.shape[0]
        number = 1 if layer.input_spec.ndim == 2 else _divisor(channels, groups)
        replaced.append(
            f"{layer.name}: GroupNormalization(groups={number}) for {channels} channels"
        )
        config = layer.get_config()
        kept = {name: config[name] for name in _KEPT}
        return keras.layers.GroupNormalization.from_config({**kept, "groups": number})

    def kept_weights(layer):
        # Without the moving averages, which come last.
        return [weight.numpy() for weight in (layer.gamma, layer.beta) if weight is not None]

    return _copied(model, _mixes, grouped, kept_weights), replaced


def with_private_norms(model: keras.Model) -> tuple[keras.Model, list[str]]:
    """Returns a copy of a model with `PrivateBatchNormalization` in the place of every trainable
    `BatchNormalization`, all weights kept, and the names of those layers.

    Raises:
        TypeError: the model is not made of layers that Keras can copy.
        ValueError: the model is not built, or a layer cannot be replaced.
    """
    if not _is_copied_by_keras(model):
        raise TypeError(
            'batch_norm="private" needs a functional or sequential model, which can be made anew '
            f"with other layers. Received: {type(model).__name__}."
        )
    if not model.built:
        raise ValueError("The model must be built, so that its layers have weights to keep.")
    names: list[str] = []

    def private(layer):
        if getattr(layer, "renorm", False):  # Older versions of Keras have no such option.
            raise ValueError(
                f"BatchNormalization {layer.name!r} renormalizes by its batch (renorm=True), which "
                "cannot be done privately. Set renorm=False."
            )
        names.append(layer.name)
        return PrivateBatchNormalization.from_config(layer.get_config())

    return _copied(model, _mixes, private, lambda layer: layer.get_weights()), names


def with_plain_norms(model: keras.Model) -> keras.Model:
    """Returns the model, or a copy with Keras' own layers in the place of its
    `PrivateBatchNormalization`, where it has any, all weights kept.
    """

    def is_private(layer):
        return isinstance(layer, PrivateBatchNormalization)

    if not any(map(is_private, layers_in(model, deep=True))):
        return model

    def plain(layer):
        return keras.layers.BatchNormalization.from_config(layer.get_config())

    return _copied(model, is_private, plain, lambda layer: layer.get_weights())


def _copied(
    model: keras.Model,
    is_replaced: Callable[[Any], bool],
    replacement: Callable[[Any], Any],
    weights: Callable[[Any], list[Any]],
) -> keras.Model:
    """Returns a copy of a model with other layers in the place of some.

    Args:
        model: A built functional or sequential model.
        is_replaced: Of a layer.
        replacement: From a layer to the one that takes its place.
        weights: From a layer to the weights of the other one.
    """

    def copy(layer):
        if not is_replaced(layer):
            return type(layer).from_config(layer.get_config())
        return replacement(layer)

    def call(layer, *args, **kwargs):
        if isinstance(layer, keras.layers.GroupNormalization):
            kwargs.pop("mask", None)  # Which positions count is for batch normalization to know.
        return layer(*args, **kwargs)

    # For a sequential model, whose layers are called on one tensor, Keras takes no such function.
    calling = {} if isinstance(model, keras.Sequential) else {"call_function": call}
    result = keras.models.clone_model(model, clone_function=copy, recursive=True, **calling)
    _copy_weights(model, result, is_replaced, weights)
    return result


def _is_copied_by_keras(layer: Any) -> bool:
    functional = type(layer).__name__ == "Functional" and type(layer).__module__[:6] == "keras."
    return functional or type(layer) is keras.Sequential


def _mixes(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _divisor(channels: int, most: int) -> int:
    return max(number for number in range(1, min(channels, most) + 1) if channels % number == 0)


def _copy_weights(
    model: keras.Model,
    result: keras.Model,
    is_replaced: Callable[[Any], bool],
    weights: Callable[[Any], list[Any]],
) -> None:
    for old, new in zip(model.layers, result.layers, strict=True):
        if _is_copied_by_keras(old):
            _copy_weights(old, new, is_replaced, weights)
        elif is_replaced(old):
            new.set_weights(weights(old))
        else:
            inside = [part.name for part in layers_in(old, deep=True) if is_replaced(part)]
            if inside:
                raise ValueError(
                    f"{type(old).__name__} {old.name!r} holds batch normalization inside, which "
                    f"cannot be replaced there: {', '.join(inside)}. Write it with "
                    "GroupNormalization."
                )
            new.set_weights(old.get_weights())
            new.trainable = old.trainable
