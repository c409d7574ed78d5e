"""Metrics of a step, which see raw data and must not hand them on to the next step."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients import (
    MetricScope,
    RecordDependentShapeError,
    RefusedKernelError,
    SideEffectError,
    refuse_other_writes,
    refuse_reads,
    safe_update,
)
from tfdp.gradients.keras_internals import attach_mask, mask_of
from tfdp.keras import distribution
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.inputs import has_own_loss, has_own_metrics
from tfdp.keras.records import RecordLoss, loss_in_training
from tfdp.sampling import PaddedBatch


def variables_of_metrics(model: keras.Model) -> list[Any]:
    """Returns the variables in which a model's metrics keep raw statistics of the training data,
    and the states of what they draw from.

    Raises:
        NotPrivateError: one of them is also a variable of a layer or of the optimizer.
    """
    others = {id(v) for v in (*model.variables, *model.optimizer.variables)}
    of_metrics = [*model.metrics_variables, *_seeds(model.metrics)]
    shared = [v.path for v in of_metrics if id(v) in others]
    if shared:
        raise NotPrivateError(
            "A metric would write raw statistics of the training data into what is trained or "
            f"released: {', '.join(shared)} is its variable and the model's or optimizer's, too. "
            "Give the metric variables of its own, by self.add_variable(...)."
        )
    return of_metrics


def _seeds(metrics: Sequence[Any]) -> list[Any]:
    """Returns the states of the generators of seeds that metrics hold, and metrics in them do."""
    found = []
    for metric in metrics:
        for value in vars(metric).values():
            if isinstance(value, keras.random.SeedGenerator):
                found.append(value.state)
        found += _seeds(getattr(metric, "metrics", ()))
    return found


@contextlib.contextmanager
def unread(variables: Sequence[Any]) -> Iterator[None]:
    """Keeps what is in the variables of metrics from a step of training.

    In a graph it is refused to read them. In eager mode they hold zeros meanwhile, as they do for
    the loss of a record.

    Args:
        variables: Of the metrics.

    Raises:
        NotPrivateError: the block made operations that read one of them.
    """
    if tf.executing_eagerly():
        values = [tf.identity(v.value) for v in variables]
        try:
            for variable, value in zip(variables, values, strict=True):
                variable.value.assign(tf.zeros_like(value))
            yield
        finally:
            for variable, value in zip(variables, values, strict=True):
                variable.value.assign(value)
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    # Where there are several replicas, others may update their metrics before they end the block.
    if distribution.is_first_replica():
        try:
            refuse_reads(graph, graph.get_operations()[before:], variables)
        except SideEffectError as error:
            raise NotPrivateError(str(error)) from error


def watched(update: Callable[..., Any], of_records: Any, variables: Sequence[Any]) -> Any:
    """Returns `update(*of_records)`, which may change these variables and nothing else, and which
    no numbers of a record end.

    TensorFlow's errors show numbers: labels that a kernel does not take, or what an assertion is
    about. So where what follows a record reaches such a kernel, the metric is NaN instead, and
    assertions are left out.

    In eager mode a graph is built, too. So a Python attribute that a metric or a loss sets holds a
    symbol, not data.

    Args:
        update: Updates metrics from raw data, and returns tensors.
        of_records: The data: a list of structures of tensors.
        variables: Of the metrics.

    Raises:
        NotPrivateError: it changes something else, or calls a kernel that could end the run for
            some numbers and is given no others.
    """
    function = tf.function(lambda *data: update(*data), autograph=False)
    call = function.get_concrete_function(*of_records)
    try:
        refuse_other_writes(call.graph, call.graph.get_operations(), variables)
    except SideEffectError as error:
        raise NotPrivateError(str(error)) from error
    safe = safe_update(call)
    if safe is None:
        return call(*of_records)
    data = [t for t in tf.nest.flatten(of_records, expand_composites=True) if t is not None]
    try:
        return tf.function(lambda *tensors: safe(tensors), autograph=False)(*data)
    except (RecordDependentShapeError, RefusedKernelError) as error:
        raise NotPrivateError(
            f"An error of a metric would show raw training data. {error} Or show private_metrics "
            "in its place."
        ) from error


def update(
    model: keras.Model,
    record_loss: RecordLoss,
    data: PaddedBatch,
    of_step: tuple[tf.Tensor, Any],
    variables: Sequence[Any],
) -> dict[str, Any]:
    """Updates the metrics of a model with a batch, and returns the logs.

    Args:
        model: The model.
        record_loss: Its loss of one record.
        data: The batch, with its mask: bool [n]; false marks padding.
        of_step: Losses [n] and outputs of the records, from the step.
        variables: Of the metrics, as `variables_of_metrics` gave them before the step, which was
            kept from reading these. No others may change.

    Raises:
        NotPrivateError: see `watched`.
    """
    losses, y_pred = of_step
    # A record that is not finite is left out like padding: logs must not tell that there was one.
    kept = tf.squeeze(tf.where(data.mask & tf.math.is_finite(losses)), 1)

    def select(structure):
        return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, kept), structure)

    y_pred = record_loss.unbatch(y_pred)
    masks = [mask_of(t) for t in tf.nest.flatten(y_pred)]

    def of_kept(x, y, sample_weight, losses, y_pred, masks):
        for output, mask in zip(tf.nest.flatten(y_pred), masks, strict=True):
            if mask is not None:
                attach_mask(output, mask)
        if record_loss.has_penalty:
            losses += tf.cast(record_loss.penalty(), losses.dtype)
        for metric in model.metrics:
            if metric.name == "loss":
                metric.update_state(losses)
        if has_own_loss(model) or (len(masks) > 1 and model.loss is not None):
            # `compute_loss` also updates metrics: the losses of single outputs, and any of its own.
            weights = [(v, tf.convert_to_tensor(v.value)) for v in model.trainable_variables]
            with MetricScope(variables, weights) as scope:
                # Losses that layers have added are not there; Keras' own asks for at least one.
                scope.losses.extend(model.losses or [tf.zeros([])])
                with model.losses_of_record(scope):
                    loss_in_training(model, x, y, y_pred, sample_weight)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # Keras looks at no inputs here.
    x = data.x if has_own_loss(model) or has_own_metrics(model) else None
    of_records = select([x, data.y, data.sample_weight, losses, y_pred, masks])
    return watched(of_kept, of_records, variables)


def creating(model: keras.Model) -> keras.StatelessScope:
    """Returns a context in which metrics create variables, but do not update them: what is given
    to them then is no record, and only replicas may.
    """
    # In a StatelessScope, Keras computes weight penalties from weights that the scope holds only.
    return keras.StatelessScope(
        [(v, tf.convert_to_tensor(v.value)) for v in model.trainable_variables]
    )
