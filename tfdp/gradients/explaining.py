"""What the book-keeping engine does with every layer of a model, in words."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients import rules as rules  # Registers them.
from tfdp.gradients.blocks import ERRORS
from tfdp.gradients.keras_internals import FUNCTIONAL
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.plan import plan, why_no_block
from tfdp.gradients.promises import LENGTHS, check_promises
from tfdp.gradients.record_scope import SideEffectError
from tfdp.gradients.recording import Recording, Treatment, wanted_of
from tfdp.gradients.rules.rule import RecordWise, registered_rule
from tfdp.gradients.watching import BY_RECORD, ON_BATCH, watching


def explain(model: keras.Layer, inputs: Any = None) -> str:
    """Returns a line for every layer with weights of a built model, and for every one that runs
    record by record: how the book-keeping engine treats it, and why.

    The model's code is traced, as in the first step of training, and nothing is computed. "block,
    on the batch" is a layer whose code calls other layers; theirs follow.

    Args:
        model: A built model, or a layer.
        inputs: A batch of what the model is called on: arrays, tensors or `keras.Input`s, of which
            only shapes and dtypes count. By default what a functional or sequential model was made
            with; lengths that this leaves open are taken to be 64, or less where the model fails. A
            subclassed model without `inputs` is not traced, and its blocks are not tried out.

    Raises:
        ValueError: the model is not built.
        UnsupportedModelError: the engine cannot take the model; all of it runs record by record. So
            does a subclassed model whose code is not seen to keep the records apart.
        SideEffectError: a layer leaves something behind.

    Example:
        >>> gru = keras.layers.GRU(2, return_sequences=True, name="gru")
        >>> model = keras.Sequential([keras.Input((4, 3)), gru])
        >>> model.add(keras.layers.Lambda(lambda x: x[..., None], name="images"))
        >>> model.add(keras.layers.ConvLSTM1D(2, 1, data_format="channels_first", name="rows"))
        >>> print(explain(model))
        gru: RecurrentRule
        rows: record by record: the rule for ConvLSTM1D does not hold with these options
    """
    if not model.built:
        raise ValueError(
            f"explain takes a built model. Give {model.name!r} an Input, or call it once on a "
            "batch."
        )
    model = _functional(model)
    specs = _specs(model, inputs)
    if specs is not None:
        return "\n".join(_lines(_tried_at_some_length(model, specs)))
    wanted = {id(v) for v in model.trainable_variables}
    return "\n".join(
        f"{operation.name}: {_expected(operation, rule, wanted)}"
        for operation, rule in plan(model, wanted, inside_blocks=False)
        if not isinstance(rule, RecordWise)
    )


def all_run_by_rules(model: keras.Layer, layers: Sequence[keras.Layer]) -> bool:
    """Returns whether the book-keeping engine runs some layers of a model on the batch, each by a
    rule for its weights. False also where nobody knows, as in a model that is not built.

    Args:
        model: The model, which is traced as by `explain`.
        layers: Layers in it.
    """
    model = _functional(model)
    specs = _specs(model, None) if model.built else None
    if specs is None:
        return False
    try:
        treatments = _tried_at_some_length(model, specs)
    except (UnsupportedModelError, SideEffectError, *ERRORS):
        return False
    ways: dict[int, set[str]] = {}
    for treatment in treatments:
        ways.setdefault(id(treatment.operation), set()).add(treatment.words)
    return all(ways.get(id(layer)) == {type(registered_rule(layer)).__name__} for layer in layers)


def _functional(model: Any) -> Any:
    """Returns a task of KerasHub as the functional model that `make_private` makes of it."""
    owner = next(c for c in type(model).__mro__ if "__call__" in vars(c))
    if isinstance(model, FUNCTIONAL) and owner.__module__.startswith("keras_hub."):
        return keras.Model(model.input, model.output, name=model.name)
    return model


def _specs(model: Any, inputs: Any) -> Any:
    """Returns shapes and dtypes of a batch of any size, or None where nobody says them."""
    if inputs is None and isinstance(model, (keras.Sequential, FUNCTIONAL)):
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    if inputs is None:
        return None

    def spec(leaf):
        leaf = leaf if hasattr(leaf, "dtype") else tf.convert_to_tensor(leaf)
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        return tf.TensorSpec([None, *leaf.shape[1:]], dtype)

    return tf.nest.map_structure(spec, inputs)


def _tried_at_some_length(model: Any, specs: Any) -> list[Treatment]:
    """As `_tried`, with a length in the place of those that are open."""
    if all(spec.shape[1:].is_fully_defined() for spec in tf.nest.flatten(specs)):
        return _tried(model, specs)
    for length in LENGTHS:

        def closed(spec, length=length):
            sizes = [length if size is None else size for size in spec.shape[1:]]
            return tf.TensorSpec([None, *sizes], spec.dtype)

        try:
            return _tried(model, tf.nest.map_structure(closed, specs))
        except (UnsupportedModelError, SideEffectError):
            raise
        except ERRORS:
            continue  # The model takes no such length, which layers say in many ways.
    return _tried(model, specs)


def _tried(model: Any, specs: Any) -> list[Treatment]:
    """Returns what is done with each call of a layer when the model runs on a batch."""
    leaves, found = tf.nest.flatten(specs), []

    def forward(tensors, scope=None):
        return model(tf.nest.pack_sequence_as(specs, tensors), training=True)

    def run(of_batch, of_records, *tensors):
        tensors = [tf.compat.v1.placeholder_with_default(t, t.shape) for t in tensors]
        seeds = of_batch, tf.compat.v1.placeholder_with_default(of_records, [None, 2])
        with tf.name_scope("batch"), tf.GradientTape(watch_accessed_variables=False) as tape:
            metrics = getattr(model, "metrics_variables", ())
            wanted = {id(v) for v in model.trainable_variables}
            check_promises(model, wanted, forward, tensors, metrics)
            recording = Recording(tape, model.trainable_variables, seeds, metrics)
            with watching(recording, model):
                forward(tensors)
        found.extend(recording.treatments)

    seeds = tf.TensorSpec([2], tf.int64), tf.TensorSpec([None, 2], tf.int64)
    tf.function(run, autograph=False).get_concrete_function(*seeds, *leaves)
    return found


def _lines(treatments: list[Treatment]) -> list[str]:
    """Returns a line for every layer; one that is treated in several ways has all in its line."""
    words: dict[tuple[Any, ...], dict[str, None]] = {}
    for treatment in treatments:
        if treatment.words != ON_BATCH:
            key = (treatment.path, id(treatment.operation))
            words.setdefault(key, {})[treatment.words] = None
    return [f"{'/'.join(path)}: {'; '.join(ways)}" for (path, _), ways in words.items()]


def _expected(operation: Any, rule: Any, wanted: set[int]) -> str:
    if rule is not None:
        return type(rule).__name__
    reason = why_no_block(operation, wanted_of(operation, wanted))
    if reason is None:
        return f"{BY_RECORD}, unless its code is seen to keep the records apart"
    return f"{BY_RECORD}: {reason}"
