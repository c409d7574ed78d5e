"""The book-keeping engine: norms and clipped sums from one forward and one backward pass.

The backward pass goes to the outputs of the layers only. What a layer received and the gradient at
its output give the norm of every record's gradient, by a rule for the layer. Once the norms have
given the clipping factors, they give the sum of clipped gradients as well (Bu et al. 2022,
arXiv:2210.00038, algorithm 1).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients import rules as rules  # Registers them.
from tfdp.gradients.attached import flatten_with_logits
from tfdp.gradients.engines.batched import BatchGradients
from tfdp.gradients.example import one_number
from tfdp.gradients.keras_internals import forget_losses
from tfdp.gradients.layered_loss import LayeredLoss, UnsupportedModelError
from tfdp.gradients.mapping import holds_records, map_records
from tfdp.gradients.notices import say_what_may_mix
from tfdp.gradients.promises import check_promises
from tfdp.gradients.record_scope import metrics_of
from tfdp.gradients.recording import Recording, copies
from tfdp.gradients.watching import watching


def bookkeeping_gradients(
    loss_fn: LayeredLoss,
    variables: list[Any],
    rebuild: Callable[[list[tf.Tensor]], tuple[Any, tf.Tensor | None]],
    has_aux: bool,
    loss_scale: float,
) -> BatchGradients:
    """Returns what computes the gradients of a batch inside a graph.

    Args:
        loss_fn: The loss, in two stages.
        variables: Variables of its model.
        rebuild: From leaves to the structure of examples, and the seeds, [n, 2], where there are
            any.
        has_aux: Whether aux is wanted.
        loss_scale: As in `clipped_gradient_sum`.
    """

    def gradients(*leaves):
        of_batch = _first(rebuild(leaves)[1])
        # A tensor whose first axis has an unknown length holds records. Any other is a constant.
        leaves = [
            tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]]) for leaf in leaves
        ]
        # Outside of a name scope TensorFlow refuses some of the names that Keras gives to models.
        with tf.name_scope("batch"), tf.GradientTape(watch_accessed_variables=False) as tape:
            check_promises(
                loss_fn.model,
                {id(v) for v in variables},
                lambda given, scope: loss_fn.forward(rebuild(given)[0], scope),
                leaves,
                metrics_of(loss_fn),
                own_forward=not _is_ours(type(loss_fn).forward),
            )
            examples, seeds = rebuild(leaves)
            both = None if seeds is None else (of_batch, seeds)
            recording = Recording(tape, variables, both, metrics_of(loss_fn))
            with watching(recording, loss_fn.model):
                outputs = loss_fn.forward(examples, recording.scope)
        say_what_may_mix(loss_fn.model, recording.treatments)
        record = _record_losses(loss_fn, recording, leaves, rebuild, outputs, loss_scale)
        gradients = recording.gradients(record.outputs, record.gradients, loss_scale)
        return record.losses, record.aux if has_aux else (), gradients

    return gradients


def _is_ours(function: Any) -> bool:
    return getattr(function, "__module__", "").startswith("tfdp.")


def _first(seeds: tf.Tensor | None) -> tf.Tensor | None:
    return None if seeds is None else seeds[0]


class _Losses(NamedTuple):
    """What the second stage of a loss gives.

    Attributes:
        losses: [n].
        aux: [n, ...].
        outputs: Of the first stage, those on which losses depend, each [n, ...].
        gradients: Of the scaled losses, with respect to these.
    """

    losses: tf.Tensor
    aux: Any
    outputs: list[tf.Tensor]
    gradients: list[tf.Tensor]


def _record_losses(
    loss_fn: Any, recording: Recording, leaves: Any, rebuild: Any, outputs: Any, loss_scale: Any
) -> _Losses:
    """Computes the loss of each record, and its gradients, from the model's outputs for it.

    Gradients are taken record by record, too: XLA cannot tell which numbers are shapes in the
    backward pass of a function that it does not see as a whole, and would compile every step anew.
    """
    flat, reattach = flatten_with_logits(outputs)
    if not all(map(holds_records, flat)):
        raise UnsupportedModelError(
            "The model returns a tensor without an axis of records in front. Use "
            "engine='vectorized'."
        )
    of_batch = _losses_of_records(loss_fn, recording, leaves, rebuild, flat, reattach, loss_scale)
    if of_batch is not None:
        return of_batch
    added = recording.added_losses
    flat, returned = [*flat, *(losses for _, losses in added)], len(flat)
    connected: list[int] = []
    make_scope = recording.record_scopes()

    def one(record):
        (example, seeds), values = rebuild(record[: len(leaves)]), record[len(leaves) :]
        # These are copies, so that a use of a weight in the loss is seen here, even if something
        # else has used the weight before.
        variables, aliases = zip(*recording.aliases, strict=True)
        weights = list(zip(variables, copies(aliases), strict=True))
        at = [i for i, value in enumerate(values) if value.dtype.is_floating]
        sources = [*(values[i] for i in at), *(weight for _, weight in weights)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            with make_scope(_first(seeds), weights) as scope:
                forget_losses(loss_fn.model)
                for (layer, _), of_record in zip(added, values[returned:], strict=True):
                    keras.Layer.add_loss(layer, tf.squeeze(of_record, 0))
                loss, aux = loss_fn.loss(example, reattach(values[:returned]), scope)
            loss, scaled = one_number(loss, loss_scale)
        recording.refuse_lost_gradients([weight for _, weight in weights], "The loss")
        found = tape.gradient(scaled, sources)
        recording.refuse_hidden_uses(found[len(at) :])
        at_values = [(i, g) for i, g in zip(at, found[: len(at)], strict=True) if g is not None]
        connected[:] = [i for i, _ in at_values]
        return loss, aux, [tf.squeeze(tf.convert_to_tensor(g), 0) for _, g in at_values]

    losses, aux, gradients = map_records(one, [*leaves, *flat])[0](*leaves, *flat)
    return _Losses(losses, aux, [flat[i] for i in connected], gradients)


def _losses_of_records(
    loss_fn: Any,
    recording: Recording,
    leaves: Any,
    rebuild: Any,
    flat: list[tf.Tensor],
    reattach: Any,
    loss_scale: float,
) -> _Losses | None:
    """As `_record_losses`, by what a loss of Keras gives for all records at once; None where none
    is known to keep them apart.
    """
    if not _is_ours(type(loss_fn).loss) or recording.scope.losses:
        return None
    outputs = [tf.identity(tensor) for tensor in flat]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(outputs)
        found = loss_fn.losses_of_records(rebuild(leaves)[0], reattach(outputs), recording.scope)
        if found is None:
            return None
    (losses, values, factors), aux = found
    if loss_scale != 1.0:
        factors *= tf.cast(loss_scale, factors.dtype)
    gradients = tape.gradient(values, outputs, output_gradients=factors)
    connected = [i for i, gradient in enumerate(gradients) if gradient is not None]
    return _Losses(losses, aux, [flat[i] for i in connected], [gradients[i] for i in connected])
