"""Suggestions for per-layer clips, from data that are not private."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.keras.records import loss_in_training
from tfdp.query.allocation import clips_from_public_gradients
from tfdp.query.layers import GroupBy, Groups


def clips_from_public_data(
    model: keras.Model,
    x_public: Any,
    y_public: Any,
    quantile: float = 0.5,
    *,
    group_by: GroupBy = "layer",
) -> list[float]:
    """Returns, for every layer, a quantile of its gradient norms on PUBLIC records.

    The result is not private: `x_public` and `y_public` must be data that nobody needs to protect,
    never the training data. Norms change while a model trains, so this is a place to begin at.

    Args:
        model: A built and compiled model: its own loss is used, without weight regularizers.
        x_public: Structure of arrays, [records, ...]. A few hundred records are enough.
        y_public: As `x_public`.
        quantile: Share of the public records that the clip leaves as they are, in (0, 1].
        group_by: As in `tfdp.query.per_layer`: "layer" (default), "variable" or a function.

    Returns:
        A clip for every group of trainable variables, for `tfdp.query.per_layer` and its relatives.

    Raises:
        ValueError: the model has no loss or no variables, there are no gradients to measure, or a
            strategy has the scope.
        TypeError: `quantile` is not a number.
    """
    if tf.distribute.has_strategy():
        raise ValueError(
            "Gradients of single records are not taken on replicas. Call clips_from_public_data "
            "after the `with strategy.scope():` block, or on a model made without a strategy."
        )
    if not model.built or not model.trainable_variables:
        raise ValueError("The model has no variables yet. Give it an Input or call it once.")
    if not getattr(model, "compiled", False):
        raise ValueError("The model has no loss yet. Compile it first.")
    sources = [variable.value for variable in model.trainable_variables]

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_in_training(model, x, y, model(x, training=True), None)
            for variable in model.trainable_variables:
                if variable.regularizer is not None:
                    loss -= variable.regularizer(variable.value)
        found = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in found]

    number = len(tf.nest.flatten(x_public)[0])
    records = []
    for i in range(number):
        x, y = tf.nest.map_structure(
            lambda leaf, i=i: tf.convert_to_tensor(leaf[i : i + 1]), (x_public, y_public)
        )
        records.append([gradient.numpy() for gradient in gradients(x, y)])
    if not records:
        raise ValueError("x_public must hold at least one record.")
    stacks = [np.stack(g).reshape(len(records), -1) for g in zip(*records, strict=True)]
    groups = Groups(model, group_by)
    together = [np.concatenate([stacks[i] for i in places], 1) for places in groups.places]
    return clips_from_public_gradients(together, quantile)
