"""Attention, whose code treats every record separately if it is called on sequences."""

from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import mask_of
from tfdp.gradients.mapping import holds_records, meets_records
from tfdp.gradients.rules.rule import RecordWise, register_rule

_layers = keras.layers


def _attends_within_records(layer: Any) -> bool:
    """Returns whether a layer attends along axes other than that of records, and has no weights
    except those of the layers in it.
    """
    axes = getattr(layer, "attention_axes", None)
    # What a negative axis means depends on the rank of the input.
    within = axes is None or all(axis > 0 for axis in axes)
    own_weights = getattr(layer, "use_scale", False) or getattr(layer, "score_mode", "") == "concat"
    return within and not own_weights


def _gets_sequences(layer: Any, inputs: Any, mask: Any = None, *_: Any, **__: Any) -> bool:
    """Returns whether a layer gets [n, t, d] and masks [n, t].

    Where a record is one vector, [n, d], the layer takes records for positions.
    """
    return _are_sequences(inputs, tf.nest.flatten(mask))


def _gets_sequences_for_heads(
    layer: Any,
    query: Any,
    value: Any,
    key: Any = None,
    query_mask: Any = None,
    value_mask: Any = None,
    key_mask: Any = None,
    attention_mask: Any = None,
    *_: Any,
    **__: Any,
) -> bool:
    """Returns whether a layer gets [n, t, d], or with more axes of positions, and masks [n, t] and
    [n, t, s].
    """
    inputs = [query, value, *([] if key is None else [key])]
    # Keras uses the mask that is attached to the query.
    masks = [query_mask, value_mask, key_mask, *(mask_of(tensor) for tensor in inputs)]
    if not _are_sequences(inputs, masks):
        return False
    rank, axes = query.shape.rank, getattr(layer, "attention_axes", None)
    axes = range(1, rank - 1) if axes is None else axes
    if any(axis >= rank - 1 for axis in axes):
        return False  # Features, or what Keras makes of them: heads.
    if attention_mask is None:
        return True
    # Keras makes one mask of [n, t, 1], [n, 1, s] and this one, and lines up their last axes: in
    # [n, heads, t, s] their records would meet heads. Scores have so many axes.
    most = rank + len(axes) if all(mask is None for mask in masks) else 3
    # Keras inserts further axes behind the first one where the scores have more.
    needed = max(len(attention_mask.shape), 1 + 2 * len(axes))
    return len(attention_mask.shape) <= most and meets_records(attention_mask, needed)


def _are_sequences(inputs: list[Any], masks: list[Any]) -> bool:
    ranks = {tensor.shape.rank for tensor in inputs if holds_records(tensor)}
    present = [mask for mask in masks if mask is not None]
    if not present:
        return len(ranks) == 1 and None not in ranks and min(ranks) >= 3
    return ranks == {3} and all(meets_records(mask, 2) for mask in present)


for _layer in (_layers.AdditiveAttention, _layers.Attention):
    register_rule(_layer, RecordWise(when=_attends_within_records, called_on=_gets_sequences))
for _layer in (_layers.GroupQueryAttention, _layers.MultiHeadAttention):
    register_rule(
        _layer, RecordWise(when=_attends_within_records, called_on=_gets_sequences_for_heads)
    )
