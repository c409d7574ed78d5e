"""What the book-keeping engine does with every layer of a model."""

from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.blocks import weights_outside_of_layers
from tfdp.gradients.keras_internals import is_quantized, is_recomputed, layers_in
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.recording import wanted_of
from tfdp.gradients.rules.rule import LayerRule, RecordWise, has_own, rule_for


def plan(model: keras.Layer, wanted: set[int], inside_blocks: bool = True) -> list[tuple[Any, Any]]:
    """Returns (operation, rule) for the operations of a model that must be watched. The rule is
    None where the operation runs record by record. One with the rule `RecordWise` is watched
    because that may not hold for every call; where it does not, it runs record by record, too.
    Layers in blocks are among them unless `inside_blocks` is False.

    Raises:
        UnsupportedModelError: the model, or a layer in it, cannot be watched.
    """
    if not isinstance(rule_for(model), RecordWise):
        raise UnsupportedModelError(
            f"The code of {type(model).__name__} could do anything with a batch, so its layers "
            "cannot be watched. If it treats every record separately, say so: "
            f"tfdp.gradients.register_rule({type(model).__name__}, tfdp.gradients.RecordWise())."
        )
    watched: dict[int, tuple[Any, Any]] = {}
    # Every layer in a block is watched, because its own rule answers for what it does there.
    pending, seen = [(model, False)], set()
    while pending:
        operation, in_block = pending.pop()
        if (id(operation), in_block) in seen:
            continue
        seen.add((id(operation), in_block))
        rule = rule_for(operation)
        if isinstance(rule, LayerRule) and not operation.weights:
            rule = RecordWise()  # There is nothing to note.
        if isinstance(rule, RecordWise):
            pending.extend((part, False) for part in rule.parts(operation))
            if in_block or rule.looks_at_calls(operation):
                watched[id(operation)] = (operation, rule)
            continue
        own = wanted_of(operation, wanted)
        if rule is not None and not own and not rule.records_when_frozen:
            if in_block:
                watched[id(operation)] = (operation, RecordWise())
            continue  # Frozen: it runs on the batch, and nothing is noted.
        if own:
            check_can_be_watched(operation)
        if rule is not None and not {id(v) for v in own} <= {
            id(v) for v in rule.variables(operation)
        }:
            rule = None
        if rule is None and has_own(operation, "__call__"):
            raise UnsupportedModelError(
                f"{type(operation).__name__} {operation.name!r} has its own __call__, which could "
                "do anything with a batch. Move what it does to `call`, or use "
                "engine='vectorized'."
            )
        watched[id(operation)] = (operation, rule)
        if inside_blocks and rule is None and may_be_block(operation, own):
            pending.extend((part, True) for part in layers_in(operation))
    return list(watched.values())


def may_be_block(operation: Any, own: list[Any]) -> bool:
    """Returns whether a layer without a rule may be one whose code only calls other layers.

    Args:
        operation: The layer.
        own: The weights in it whose gradients are wanted.
    """
    # Loops keep masks of dropout in their cells from one call to the next.
    loops = (keras.layers.RNN, keras.layers.Bidirectional)
    is_layer = isinstance(operation, keras.Layer) and not isinstance(operation, loops)
    parts = layers_in(operation) if is_layer else []
    return bool(parts) and _can_be_watched(parts) and not weights_outside_of_layers(operation, own)


def _can_be_watched(layers: list[Any]) -> bool:
    every = [part for layer in layers for part in layers_in(layer, deep=True)]
    return not any(
        has_own(layer, "__call__") or is_quantized(layer) or is_recomputed(layer) for layer in every
    )


def explain(model: keras.Layer) -> str:
    """Returns a line for every layer of a built model: how the book-keeping engine treats it.

    Raises:
        UnsupportedModelError: the engine cannot take the model.

    Example:
        >>> model = keras.Sequential([keras.Input((4, 3)), keras.layers.GRU(2, name="gru")])
        >>> model.add(keras.layers.Lambda(lambda x: 2 * x, name="double"))
        >>> print(explain(model))
        double: record by record
        gru: RecurrentRule
    """
    wanted = {id(v) for v in model.trainable_variables}
    return "\n".join(
        f"{operation.name}: {_treatment(operation, rule, wanted)}"
        for operation, rule in plan(model, wanted, inside_blocks=False)
        if not isinstance(rule, RecordWise)
    )


def _treatment(operation: Any, rule: Any, wanted: set[int]) -> str:
    if rule is not None:
        return type(rule).__name__
    if may_be_block(operation, wanted_of(operation, wanted)):
        return "record by record, unless its code is seen to keep the records apart"
    return "record by record"


def check_records(layer: Any, args: Any, kwargs: Any, every: bool) -> None:
    """Refuses a call of a layer if its arguments do not hold records.

    Args:
        layer: The layer.
        args: What it is called with.
        kwargs: Likewise.
        every: Whether all tensors must hold records, or one of them.

    Raises:
        UnsupportedModelError: they do not.
    """
    tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
    hold = [holds_records(tensor) for tensor in tensors]
    if not any(hold) or (every and not all(hold)):
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is called on something that has no axis of "
            "records in front. Use engine='vectorized'."
        )


def check_can_be_watched(layer: Any) -> None:
    """Refuses a layer whose weights are used in a way that watching its calls does not show.

    Raises:
        UnsupportedModelError: the layer is of that kind.
    """
    if is_quantized(layer):
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is quantized. Use engine='vectorized'."
        )
    if is_recomputed(layer):
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is in a keras.RematScope, which recomputes it "
            "out of sight. Use engine='vectorized'."
        )
