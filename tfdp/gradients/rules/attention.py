"""Layers made of other layers, whose own code treats every record separately."""

from typing import Any

import keras

from tfdp.gradients.rules.rule import RecordWise, register_rule


def _keeps_records_apart(layer: Any) -> bool:
    """Returns whether a layer attends along other axes than that of records, and has no weights
    beside those of the layers in it.
    """
    axes = getattr(layer, "attention_axes", None)
    # What a negative axis means depends on the rank of the input.
    apart = axes is None or all(axis > 0 for axis in axes)
    return apart and not getattr(layer, "use_scale", False)


for _layer in (
    keras.layers.AdditiveAttention,
    keras.layers.Attention,
    keras.layers.GroupQueryAttention,
    keras.layers.MultiHeadAttention,
):
    register_rule(_layer, RecordWise(when=_keeps_records_apart))
