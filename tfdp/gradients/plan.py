"""What the book-keeping engine does with every layer of a model."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import FUNCTIONAL, is_quantized, is_recomputed, layers_in
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.recording import wanted_of
from tfdp.gradients.rules.images import DRAW_ONCE
from tfdp.gradients.rules.rule import (
    LayerRule,
    RecordWise,
    has_own,
    innermost,
    is_patched,
    own_around_call,
    registered_rule,
    rule_for,
    runs_as_keras_functional,
)


def plan(model: keras.Layer, wanted: set[int], inside_blocks: bool = True) -> list[tuple[Any, Any]]:
    """Returns (operation, rule) for the operations of a model that must be watched. The rule is
    None where the operation runs record by record. One with the rule `RecordWise` is watched
    because that may not hold for every call; where it does not, it runs record by record, too.
    Layers in blocks are among them unless `inside_blocks` is False. A model with a `call` of its
    own is a block.

    Raises:
        UnsupportedModelError: the model, or a layer in it, cannot be watched.
    """
    model = innermost(model)
    if not (isinstance(rule_for(model), RecordWise) or _may_be_block(model, wanted)):
        reason = why_no_block(model, wanted_of(model, wanted))
        raise UnsupportedModelError(why_not_watched(model, f" ({reason})" if reason else ""))
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
            regularizes = has_regularizer(operation) and not layers_in(operation)
            if in_block or regularizes or rule.looks_at_calls(operation):
                watched[id(operation)] = (operation, rule)
            continue
        own = wanted_of(operation, wanted)
        if rule is not None and not own and not rule.records_when_frozen:
            if in_block or has_regularizer(operation):
                watched[id(operation)] = (operation, RecordWise())
            continue  # Frozen: it runs on the batch, and nothing is noted.
        if own:
            check_can_be_watched(operation)
        if rule is not None and not {id(v) for v in own} <= {
            id(v) for v in rule.variables(operation)
        }:
            rule = None
        around = None if rule is not None else own_around_call(operation)
        if around is not None:
            raise UnsupportedModelError(
                f"{type(operation).__name__} {operation.name!r} has its own {around}, which could "
                "do anything with a batch. Move what it does to `call`, or use "
                "engine='vectorized'."
            )
        watched[id(operation)] = (operation, rule)
        is_layer = isinstance(operation, keras.Layer)
        if inside_blocks and is_layer and rule is None and why_no_block(operation, own) is None:
            pending.extend((part, True) for part in layers_in(operation))
    return list(watched.values())


def has_regularizer(operation: Any) -> bool:
    """Returns whether a layer adds a loss that follows from what it returns."""
    return getattr(operation, "activity_regularizer", None) is not None


def why_not_watched(model: keras.Layer, reason: str = "") -> str:
    """Returns why the layers of a model cannot be watched, and what would help.

    Args:
        model: The model.
        reason: What its code does, in brackets, where that was looked at.
    """
    kind = type(model).__name__
    if runs_as_keras_functional(model):
        return (
            f"Operations of {kind} {model.name!r} are not known to keep its records apart{reason}, "
            "so its layers cannot be watched. Call layers on records, with their axis in front, or "
            "use engine='vectorized'."
        )
    return (
        f"The code of {kind} could do anything with a batch{reason}, so its layers cannot be "
        "watched. If it treats every record separately, and calls its layers on one row for each "
        "record, in front, promise it: "
        f"tfdp.gradients.register_rule({kind}, tfdp.gradients.RecordWise())."
    )


def _may_be_block(model: keras.Layer, wanted: set[int]) -> bool:
    """Returns whether a model has code of its own that may be looked at, as that of a layer is."""
    if isinstance(model, (keras.Sequential, FUNCTIONAL)) and not runs_as_keras_functional(model):
        return False
    if registered_rule(model) is not None or is_patched(model):
        return False
    return why_no_block(model, wanted_of(model, wanted)) is None


def treats_rows_alike(operation: Any, wanted: set[int]) -> bool:
    """Returns whether an operation, and everything in it, treats every row of a batch separately by
    a rule, so that a record may also be several rows.

    What draws once for each call would draw once for the rows of all records.
    """
    rule = rule_for(operation)
    if rule is None or isinstance(operation, DRAW_ONCE) or is_recomputed(operation):
        return False
    if isinstance(rule, RecordWise):
        return all(treats_rows_alike(part, wanted) for part in rule.parts(operation))
    own = wanted_of(operation, wanted)
    # A layer that is never called has not been built: it has no variables to be asked for.
    return not own or {id(v) for v in own} <= {id(v) for v in rule.variables(operation)}


def may_treat_rows_alike(operation: Any, wanted: set[int]) -> bool:
    """Returns whether `treats_rows_alike` holds for everything in a layer without a rule, so that
    it holds for the layer if its own code is seen to keep rows apart.
    """
    if rule_for(operation) is not None or why_no_block(operation, wanted_of(operation, wanted)):
        return False
    if has_own(operation, "compute_mask"):  # It is not looked at.
        return False
    parts = layers_in(operation) if isinstance(operation, keras.Layer) else []
    return all(treats_rows_alike(part, wanted) for part in parts)


def why_no_block(operation: Any, own: list[Any]) -> str | None:
    """Returns why a layer without a rule cannot be a block, and None if it may be one.

    Args:
        operation: The layer, or an operation.
        own: The weights in it whose gradients are wanted.
    """
    # Loops keep masks of dropout in their cells from one call to the next.
    if isinstance(operation, (keras.layers.RNN, keras.layers.Bidirectional)):
        return why_no_rule(operation, own)
    layers = layers_in(operation) if isinstance(operation, keras.Layer) else []
    for part in (part for layer in layers for part in layers_in(layer, deep=True)):
        around = own_around_call(part)
        if around is not None:
            return f"{part.name} in it has its own {around}"
        if has_regularizer(part):
            return f"{part.name} in it has an activity regularizer"
        if is_quantized(part) or is_recomputed(part):
            return f"{part.name} in it is quantized, or in a keras.RematScope"
    return None


def why_no_rule(operation: Any, own: list[Any]) -> str:
    """Returns why no rule says how a layer runs on the batch.

    Args:
        operation: A layer or operation without one.
        own: The weights in it whose gradients are wanted.
    """
    kind = type(operation).__name__
    if is_patched(operation):
        return "code of this one object has been replaced"
    rule = registered_rule(operation)
    if rule is None:
        return f"there is no rule for {kind}"
    if type(operation) is keras.layers.RNN:
        return f"there is no rule for {kind} of {type(operation.cell).__name__}"
    if not rule.holds_for(operation):
        return f"the rule for {kind} does not hold with these options"
    known = {id(v) for v in rule.variables(operation)} if isinstance(rule, LayerRule) else set()
    unknown = [v.path for v in own if id(v) not in known]
    return f"the rule for {kind} does not know these weights: {', '.join(unknown)}"


def check_records(
    layer: Any,
    args: Any,
    kwargs: Any,
    every: bool,
    holds: Callable[[Any], bool] = holds_records,
) -> None:
    """Refuses a call of a layer if its arguments do not hold records.

    Args:
        layer: The layer.
        args: What it is called with.
        kwargs: Likewise.
        every: Whether all tensors must hold records, or one of them.
        holds: Says of a tensor whether it does.

    Raises:
        UnsupportedModelError: they do not.
    """
    tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
    hold = [holds(tensor) for tensor in tensors]
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
