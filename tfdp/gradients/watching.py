"""Watching the layers of a model while it runs on a batch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.attached import records_of, tensors_of, with_logits, with_values
from tfdp.gradients.blocks import Trial
from tfdp.gradients.effects import refuse_side_effects_of_batch
from tfdp.gradients.functions_on_rows import OwnFunctions
from tfdp.gradients.keras_internals import forget_losses, layers_in, owner_of_loss, replaced
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapped_call import MappedCall
from tfdp.gradients.mapping import comes_from_records, holds_records, map_records
from tfdp.gradients.own_weights import OwnWeights
from tfdp.gradients.plan import (
    check_can_be_watched,
    check_records,
    has_regularizer,
    may_treat_rows_alike,
    plan,
    treats_rows_alike,
    why_no_block,
    why_not_watched,
)
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.recording import Recording, refuse_hidden
from tfdp.gradients.region import Region
from tfdp.gradients.rules.rule import (
    LayerRule,
    RecordWise,
    has_own,
    innermost,
    rule_but_for_activation,
)

# What is done with a call of a layer, where it is not what a rule says.
ON_BATCH = "on the batch"
BLOCK = "block, on the batch"
BY_RECORD = "record by record"
_OTHER_CALL = "its promise does not hold for what it is called on"
# The name scope of operations that run record by record. They are checked where they are mapped.
_BY_RECORD = "tfdp_record_by_record"


@contextlib.contextmanager
def watching(recording: Recording, model: keras.Layer) -> Iterator[None]:
    """Watches the layers of a model in the block, whose variables read as the recording's aliases.

    Every layer with a rule runs on the whole batch, and the rule notes what it needs. A layer
    without one runs record by record (`MappedCall`), so that nothing it does can mix records, and
    its weights' gradients are computed explicitly.

    Raises:
        UnsupportedModelError: a layer cannot be watched.
        SideEffectError: a layer leaves something behind.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with contextlib.ExitStack() as stack:
        computing, watched = innermost(model), plan(model, recording.wanted)
        of_rows = [_treatment_of_rows(o, recording.wanted) for o, _ in watched]
        for (operation, rule), treatment in zip(watched, of_rows, strict=True):
            call = _watched_call(recording, operation, rule, treatment, operation is computing)
            stack.enter_context(replaced(operation, "call", call))
            if rule is None and has_own(operation, "compute_mask"):
                mask = _mask_by_record(recording, operation)
                stack.enter_context(replaced(operation, "compute_mask", mask))
        for operation in [operation for operation, _ in watched if has_regularizer(operation)]:
            stack.enter_context(_activity_by_record(recording, operation))
        stack.enter_context(recording.scope)
        yield
    of_batch = [op for op in graph.get_operations()[before:] if f"/{_BY_RECORD}" not in op.name]
    refuse_side_effects_of_batch(graph, of_batch, recording.seeds_of_batch)
    recording.refuse_other_losses()


def _treatment_of_rows(operation: Any, wanted: set[int]) -> bool | None:
    """Returns whether a record may be several rows of what an operation is called on; None if it
    may, provided that the operation's code is seen to keep rows apart.
    """
    if treats_rows_alike(operation, wanted):
        return True
    return None if may_treat_rows_alike(operation, wanted) else False


def _watched_call(
    recording: Recording,
    operation: Any,
    rule: Any,
    treats_rows_alike: bool | None,
    is_model: bool,
) -> Callable[..., Any]:
    call = operation.call
    # Asked before this layer's `call` is replaced.
    no_block = None if rule is not None else why_no_block(operation, recording.own(operation))
    partial = None if rule is not None else _rule_but_for_activation(recording, operation)
    functions = None if rule is not None else OwnFunctions.of(recording, operation)
    may_be_block = rule is None and partial is None and functions is None and no_block is None
    if treats_rows_alike is None and (partial is not None or functions is not None):
        treats_rows_alike = False  # A part of its code is tried, and not all.

    def watched(*args, **kwargs):
        if recording.inside_layer:  # Part of another layer's call.
            return call(*args, **kwargs)
        region = recording.blocks.region
        if region is None:
            return run(*args, **kwargs)
        with recording.blocks.within(None):
            trying = recording.blocks.trying

            def in_rows(rows):
                if treats_rows_alike is False:
                    raise MixesError(
                        f"{operation.name} is called on rows of records without a rule"
                    )
                if treats_rows_alike is None and trying:
                    trial = recording.blocks.tried(
                        operation, without_losses, args, kwargs, recording.value_of
                    )
                    if trial is None:
                        reason = recording.blocks.reasons[id(operation)]
                        raise MixesError(f"{operation.name} is called on rows of records: {reason}")
                return recording.rows_of_blocks(rows)

            def tried(*args, **kwargs):
                before = len(recording.scope.losses)
                outputs = None
                if may_be_block:
                    trial = recording.blocks.tried(
                        operation, without_losses, args, kwargs, recording.value_of
                    )
                    if trial is not None and trial.returned.are_records:
                        outputs = trial.returned.again(args, kwargs)
                if outputs is None:
                    outputs = with_values(code(*args, **kwargs))
                del recording.scope.losses[before:]  # It is tried out where it runs.
                # What is the same for all records is computed for each, or repeated.
                of_one = {id(t) for t in tensors_of(outputs)[0] if t.shape.rank and t.shape[0] == 1}
                return region.for_all_records(outputs, of_one) if of_one else outputs

            runs = tried if trying else run
            notes_inputs = not isinstance(rule, RecordWise)
            return region.call(operation, runs, code, args, kwargs, in_rows, notes_inputs)

    def code(*args, **kwargs):
        with recording.inside([]):
            return call(*args, **kwargs)

    def without_losses(*args, **kwargs):
        """Is tried out in the place of `call`: a loss is a mean over the batch, or a sum."""
        before = len(recording.scope.losses)
        outputs = call(*args, **kwargs)
        if len(recording.scope.losses) > before:
            raise MixesError("it adds a loss of its own")
        return outputs

    def run(*args, **kwargs):
        if isinstance(rule, RecordWise) and rule.holds_on(operation, *args, **kwargs):
            recording.note(operation, ON_BATCH)
            return rule.run(recording, operation, call, *args, **kwargs)
        has_rule = isinstance(rule, LayerRule)
        own = recording.own(operation)
        if own:
            check_can_be_watched(operation)
            check_records(operation, args, kwargs, every=has_rule)
        if partial is not None:
            return _with_activation(recording, partial, operation, call, args, kwargs)
        reason = no_block
        if functions is not None and args:
            try:
                graphs = functions.graphs(args[0])
            except MixesError as error:
                reason = str(error)
            else:
                return functions.record(graphs, call, args, kwargs)
        if rule is None and reason is None:
            blocks = recording.blocks
            with recording.unseen():
                trial = blocks.tried(operation, without_losses, args, kwargs, recording.value_of)
            if trial is not None:
                recording.note(operation, _block(operation, trial.weights, recording.wanted))
                with recording.inside_block(operation):
                    return _on_batch(recording, trial, operation, call, args, kwargs)
            reason = blocks.reasons[id(operation)]
        if is_model and rule is None:
            raise UnsupportedModelError(why_not_watched(operation, f" ({reason})"))
        with recording.inside(own):
            if has_rule:
                recording.note(operation, type(rule).__name__)
                return rule.record(recording, operation, call, *args, **kwargs)
            recording.note(operation, f"{BY_RECORD}: {reason or _OTHER_CALL}")
            return _record_by_record(recording, operation, call, args, kwargs)

    return watched


class _Function:
    """A function that a layer has, as an operation of its own."""

    def __init__(self, name: str, function: Callable[[tf.Tensor], Any]):
        self.name, self.call = name, function

    def __call__(self, tensor: tf.Tensor) -> Any:
        return self.call(tensor)


@contextlib.contextmanager
def _activity_by_record(recording: Recording, layer: Any) -> Iterator[None]:
    """Makes the regularizer of a layer's activity one of single records, in the block."""
    regularizer, add_loss, call = layer.activity_regularizer, layer.add_loss, layer.call
    added: list[tf.Tensor] = []
    running: list[Any] = []

    def noted(*args, **kwargs):
        running.append(None)
        try:
            return call(*args, **kwargs)
        finally:
            running.pop()

    def of_records(output):
        if recording.inside_layer or running:  # Part of another layer's call, or used in its own.
            return regularizer(output)
        added.append(_losses_of_activity(recording, layer, regularizer, output))
        return tf.zeros([])

    def add(loss):
        if added:  # What Keras makes of the zero.
            recording.add_loss(layer, added.pop())
        else:
            add_loss(loss)

    with (
        replaced(layer, "call", noted),
        replaced(layer, "activity_regularizer", of_records),
        replaced(layer, "add_loss", add),
    ):
        yield


def _losses_of_activity(
    recording: Recording, layer: Any, regularizer: Any, output: tf.Tensor
) -> tf.Tensor:
    """Returns what the regularizer gives for the output of each record, [n, ...]."""
    if recording.blocks.region is not None or not holds_records(output):
        raise UnsupportedModelError(
            f"{layer.name!r} has an activity regularizer, and returns something else than one row "
            "for each record. Use engine='vectorized'."
        )
    if type(layer).add_loss is not keras.Layer.add_loss:
        raise UnsupportedModelError(
            f"{layer.name!r} has an activity regularizer, and an add_loss of its own. Use "
            "engine='vectorized'."
        )
    function = _Function(
        f"{layer.name}/activity_regularizer",
        lambda tensor: tf.expand_dims(tf.convert_to_tensor(regularizer(tensor)), 0),
    )
    return _record_by_record(recording, function, function.call, (output,), {})


def _rule_but_for_activation(recording: Recording, layer: Any) -> tuple[Any, _Function] | None:
    rule = rule_but_for_activation(layer)
    known = set() if rule is None else {id(v) for v in rule.variables(layer)}
    if rule is None or not {id(v) for v in recording.own(layer)} <= known:
        return None
    return rule, _Function(f"{layer.name}/activation", layer.activation)


def _with_activation(
    recording: Recording, partial: Any, layer: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    """Runs a layer by its rule, and its activation on the batch if that is seen to keep the records
    apart, or record by record.
    """
    rule, function = partial
    if recording.own(layer):
        check_records(layer, args, kwargs, every=True)
        recording.note(layer, type(rule).__name__)

    def activation(tensor):
        blocks = recording.blocks
        with recording.unseen():
            trial = blocks.tried(function, function.call, (tensor,), {}, recording.value_of)
        if trial is not None:
            return _on_batch(recording, trial, function, function.call, (tensor,), {})
        recording.note(function, f"{BY_RECORD}: {blocks.reasons[id(function)]}")
        return _record_by_record(recording, function, function.call, (tensor,), {})

    with recording.inside(recording.own(layer)), replaced(layer, "activation", activation):
        return rule.record(recording, layer, call, *args, **kwargs)


def _block(operation: Any, weights: list[Any], wanted: set[int]) -> str:
    """Returns in words how a block runs, given the weights that its own code reads."""
    names = [v.name for v in weights if id(v) in wanted]
    has_layers = isinstance(operation, keras.Layer) and bool(layers_in(operation))
    if not names:
        return BLOCK if has_layers else ON_BATCH
    return f"{BLOCK if has_layers else ON_BATCH}, with weights of its own: {', '.join(names)}"


def _on_batch(
    recording: Recording, trial: Trial, operation: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    """Runs a block that has been tried out, and looks at whether it does the same once more."""
    values = [recording.value_of(v) for v in trial.weights]
    pairs = list(zip(trial.weights, values, strict=True))
    try:
        if not any(id(v) in recording.wanted for v in trial.weights):
            secret = recording.seeds_of_batch
            region = Region((args, kwargs), values, trial.parts, secret=secret)
            outputs = recording.blocks.run(region, pairs, call, args, kwargs)
            _check_same(region, trial)
            return outputs
        own = OwnWeights(recording, trial, call, args, kwargs)
        region = Region((args, kwargs), values, trial.parts, runner=own.run_layer)
        outputs = recording.blocks.run(region, pairs, call, args, kwargs)
        _check_same(region, trial)
        return own.finish(outputs)
    except MixesError as error:
        raise UnsupportedModelError(
            f"{type(operation).__name__} {operation.name!r} does something else each time it is "
            f"called, or than another of its configuration: {error}. Use engine='vectorized'."
        ) from error


def _check_same(region: Region, trial: Trial) -> None:
    if not region.steps.same_as(trial.steps):
        raise MixesError("its operations are others")


def _record_by_record(
    recording: Recording, operation: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    if recording.in_rows_of_blocks:
        # In Keras it sees all rows of a record at once.
        raise UnsupportedModelError(
            f"{operation.name!r} runs record by record, and is called on rows of records in a "
            "block. Use engine='vectorized'."
        )
    leaves, rebuild = records_of((args, kwargs))
    if not leaves:
        if any(map(comes_from_records, tf.nest.flatten((args, kwargs)))):
            check_records(operation, args, kwargs, every=False)
        return call(*args, **kwargs)
    seeds = [] if recording.seeds_of_records is None else [recording.seeds_of_records]
    make_scope = recording.record_scopes()
    variables = recording.own(operation)
    own, summed = {id(v) for v in variables}, recording.summed()
    others = [(v, alias) for v, alias in recording.aliases if id(v) not in own]
    read = [*variables, *(v for v, _ in others)]
    is_layer = isinstance(operation, keras.Layer)
    layout: list[Any] = []
    places: list[Any] = []
    owners: list[Any] = []  # Of the losses that it adds.

    def run(layer, again):
        def run_on(record, values):
            record, record_seeds = record[: len(leaves)], record[len(leaves) :]
            record_args, record_kwargs = rebuild(record)
            weights = list(zip(read, values, strict=True))
            with make_scope(record_seeds[0][0] if record_seeds else None, weights) as scope:
                if is_layer:
                    forget_losses(operation)
                outputs = with_values(layer(*record_args, **record_kwargs))
            recording.refuse_lost_gradients(values, repr(operation.name))
            found, of_found = with_logits(outputs)
            losses = scope.losses
            if not is_layer:
                recording.scope.losses.extend(losses)  # Nobody knows whose they are.
            elif not again:
                owners[:] = [owner_of_loss(operation, loss) for loss in losses]
            if not again:
                layout[:] = [of_found]
                places[:] = found
            if not set(places) <= found.keys() or is_layer and len(losses) != len(owners):
                raise UnsupportedModelError(
                    f"{operation.name!r} returns other tensors when it is called again. Use "
                    "engine='vectorized'."
                )
            # When Keras calls the layer, it attaches the mask, too.
            results = [found[place] for place in places]
            return results + [tf.expand_dims(loss, 0) for loss in losses] if is_layer else results

        return run_on

    def whole(*args, **kwargs):
        # What a regularizer of its activity adds follows from what it returns here.
        with replaced(operation, "activity_regularizer", None):
            return operation(*args, **kwargs)

    def found(of_variables, of_others):
        refuse_hidden([v for v, _ in others], of_others)
        for variable, gradient in zip(variables, of_variables, strict=True):
            if gradient is not None:
                recording.add_found(variable, gradient, leaves[0], summed)

    mapped = MappedCall(
        # Keras is calling the layer already, so here only its `call` is missing. When gradients are
        # computed, nobody is calling it, so the layer must be called as a whole.
        run(call, again=False),
        run(whole, again=True),
        [tf.convert_to_tensor(v.value) for v in variables],
        [alias for _, alias in others],
        found,
    )
    start = tf.zeros([])
    if variables:
        start = recording.watch(start).tensor
    with tf.name_scope(_BY_RECORD):
        outputs = mapped(start, [*leaves, *seeds])
    for owner, losses in zip(owners, outputs[len(places) :], strict=True):
        recording.add_loss(owner, losses)
    return layout[0](outputs[: len(places)])


def _mask_by_record(recording: Recording, operation: Any) -> Callable[..., Any]:
    """Returns a layer's `compute_mask`, run on every record by itself."""
    compute_mask = operation.compute_mask

    def mapped(inputs, previous_mask=None):
        leaves, rebuild = records_of((inputs, previous_mask))
        if not leaves:
            return compute_mask(inputs, previous_mask)
        layout: list[Any] = []

        def one(record):
            masks = compute_mask(*rebuild(record))
            aliases = [alias for _, alias in recording.aliases]
            recording.refuse_lost_gradients(aliases, f"The mask of {operation.name!r}")
            layout[:] = [masks]
            present = [mask for mask in tf.nest.flatten(masks) if mask is not None]
            # TensorFlow needs at least one tensor to map over.
            return [tf.squeeze(mask, 0) for mask in present] or [tf.zeros([])]

        with tf.name_scope(_BY_RECORD):
            masks = iter(map_records(one, leaves)[0](*leaves))
        return tf.nest.map_structure(lambda m: None if m is None else next(masks), layout[0])

    def watched(inputs, previous_mask=None):
        region = recording.blocks.region
        if region is None or recording.inside_layer:
            return mapped(inputs, previous_mask)
        arguments = (inputs, previous_mask)
        return region.mask(operation, lambda: mapped(*arguments), arguments)

    return watched
