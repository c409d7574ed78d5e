"""The sum of clipped per-record gradients, by any engine."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.gradients.blocks import in_words
from tfdp.gradients.engines.batched import Clipping, Microbatches, Weights, batched_sum
from tfdp.gradients.engines.bookkeeping import bookkeeping_gradients
from tfdp.gradients.engines.loop import loop_sum
from tfdp.gradients.engines.vectorized import vectorized_gradients
from tfdp.gradients.example import LossFn, example_gradient
from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.indices import in_range
from tfdp.gradients.inputs import check_call
from tfdp.gradients.keras_internals import (
    draws_when_called,
    is_compiled_by_xla,
    loops_in,
    refuse_unknown_versions,
)
from tfdp.gradients.layered_loss import LayeredLoss, LoopsByRecordError, UnsupportedModelError
from tfdp.gradients.microbatches import Consecutive, consecutive_records
from tfdp.gradients.notices import say_that_it_may_mix
from tfdp.gradients.record_scope import with_seeds
from tfdp.noise.attempts import attempt
from tfdp.numerics import rounding
from tfdp.query.dp_query import DPQuery

ENGINES = ("auto", "bookkeeping", "loop", "vectorized")
"""The names of the ways to compute a sum of clipped gradients."""


class _RoundedProductsError(UnsupportedModelError):
    """Norms of products cannot be bounded by what is known of their factors."""


_logger = logging.getLogger("tfdp")


class ClippedSum(NamedTuple):
    """What `clipped_gradient_sum` returns. Not yet private: no noise has been added.

    Attributes:
        sample_state: The query's sample state, for `query.get_noised_result`.
        losses: Loss of every example, [n]; padding included.
        aux: What `loss_fn` returned beside the loss, stacked over the examples; `()` without
            `has_aux`.
    """

    sample_state: Any
    losses: tf.Tensor
    aux: Any


@tf.autograph.experimental.do_not_convert
def clipped_gradient_sum(
    loss_fn: LossFn,
    variables: Any,
    examples: Any,
    query: DPQuery,
    params: Any = None,
    *,
    mask: tf.Tensor | None = None,
    num_microbatches: int | tf.Tensor | None = None,
    microbatch_ids: tf.Tensor | None = None,
    examples_per_record: int | None = None,
    record_gradient: str = "mean",
    weights: tf.Tensor | None = None,
    physical_batch_size: int | None = None,
    engine: str = "auto",
    has_aux: bool = False,
    loss_scale: float = 1.0,
    seeds: tf.Tensor | None = None,
    statistics: Sequence[tf.TensorSpec] = (),
) -> ClippedSum:
    """Returns the sum, over records, of the preprocessed (clipped) gradient of the record's loss.

    A record is one example. With `num_microbatches` it is the mean gradient of the examples of one
    microbatch. With `examples_per_record` it is the mean or sum of the gradients of so many
    consecutive examples, which are all of one user, or are views of one example. Works eagerly, in
    `tf.function` and under XLA; every engine gives the same result.

    Guarantees:
        With one example a record, adding or removing one example moves the sum by at most the
        query's bound. In a microbatch of several, one example changes the mean that it is part of,
        from one vector within the bound to another. So the sum moves by at most twice the bound
        (`tfdp.events.scale_sensitivity`). With `examples_per_record`, adding or removing a record,
        with all of its rows, moves the sum by at most the bound.

    Edge cases:
        A record with a NaN or infinity contributes zero, in all of its groups. Rows with a false
        mask contribute exactly nothing. An empty batch gives the initial sample state. Microbatches
        may be of any size, empty included.

    Args:
        loss_fn: Called with `examples` cut down to a batch of one example (leading axes of size 1);
            returns the loss, one number, or `(loss, aux)` with `has_aux`. It must not depend on
            anything else that varies with the data.
        variables: Structure of variables; records have this structure, and so must the query.
        examples: Structure of tensors that share their first axis, n. None leaves are passed on as
            None.
        query: Any `DPQuery`.
        params: From `query.derive_sample_params`; by default those of the initial global state.
        mask: bool [n]; false marks padding.
        num_microbatches: M, or None where each example is a record.
        microbatch_ids: int32 [n] in 0 .. M - 1, needed with `num_microbatches`; an example with
            another is left out, as by `mask`. An example's must not depend on which other examples
            there are; `tfdp.gradients.assign_microbatches` draws them independently.
        examples_per_record: K: rows i K to (i + 1) K - 1 are record i, without those that the mask
            leaves out; a record without rows is none.
        record_gradient: With `examples_per_record`: "mean" of the record's examples, or "sum".
        weights: [n]: what each record's clipped gradient is multiplied by, for a query that takes
            weights (`WeightedAverageQuery`), which bounds them; 1 by default.
        physical_batch_size: Most examples whose gradients are in memory at once. Changes the
            memory, not the result. The "loop" engine always holds one.
        engine: "bookkeeping": one forward and one backward pass over the batch, for a `LayeredLoss`
            of a model that it supports. "vectorized": every example's gradient at once, for any
            loss. "loop": the slow reference. "auto": "bookkeeping" where that is possible, else
            "vectorized", with a line in the log of "tfdp" that says why; and "loop" where the query
            has precision="exact", which the other two do not take.
        has_aux: Whether `loss_fn` returns a pair.
        loss_scale: The loss is multiplied by this and the gradient divided, before clipping, so
            that small float16 gradients survive the backward pass. A constant: it must not follow
            the data.
        seeds: int64 [n, 2], from `tfdp.gradients.draw_seeds(n)`: the randomness of each example.
            By default it is drawn here if the loss draws random numbers, which a function that XLA
            compiles as a whole cannot do.
        statistics: The forms of what a record has beside its gradient. Where there are any, a
            record is `[gradient, *statistics]`, which the query takes; and `loss_fn`, with
            `has_aux`, returns `(loss, (aux, statistics))`. Of a microbatch they are means, too.

    Returns:
        A `ClippedSum`.

    Raises:
        ValueError: lengths differ, a variable gets no gradient, or an argument is out of range.
        UnsupportedModelError: engine="bookkeeping" cannot take this model.
        SideEffectError: the loss leaves something behind, or draws from what records share.
        TypeError: an argument is of the wrong type.
        RuntimeError: TensorFlow is told to rewrite graphs into half precision.
        UnknownVersionError: this version of Keras or TensorFlow could mix records unseen.

    References:
        Abadi et al. 2016, arXiv:1607.00133, algorithm 1; McMahan et al. 2018, arXiv:1812.06210,
        section 2.
    """
    refuse_unknown_versions()
    _check_arguments(query, variables, engine)
    check_call(loss_fn, variables, examples, mask, microbatch_ids, loss_scale, weights)
    _check_sizes(physical_batch_size, num_microbatches, microbatch_ids)
    consecutive = consecutive_records(
        examples_per_record, record_gradient, microbatch_ids, physical_batch_size
    )
    several = microbatch_ids is not None or consecutive is not None
    check_weights(query, weights is not None, several)
    if params is None:
        params = query.derive_sample_params(query.initial_global_state())
    leaves, rebuild = _without_none(examples)
    mask = tf.ones(tf.shape(leaves[0])[:1], tf.bool) if mask is None else tf.cast(mask, tf.bool)
    ids = None if microbatch_ids is None else tf.convert_to_tensor(microbatch_ids)
    aligned = [leaf for leaf in (*leaves, mask, ids, weights, seeds) if leaf is not None]
    _check_lengths(list(map(tf.convert_to_tensor, aligned)))
    of_records = _weights_for(query, weights, mask)
    mask, groups = _microbatches(mask, ids, num_microbatches)
    groups = groups or consecutive
    width = len(leaves)

    def example_of(leaves):
        return rebuild(leaves[:width]), leaves[width] if len(leaves) > width else None

    task = _Task(
        loss_fn,
        variables,
        Clipping(query, params, [variables, *statistics] if statistics else variables),
        example_of,
        has_aux,
        loss_scale,
        _in_whole_records(physical_batch_size, consecutive),
    )
    engine = _engine_for(query, engine)

    def total(seeds):
        rows = leaves if seeds is None else [*leaves, seeds]
        return ClippedSum(*task.sum(engine, rows, mask, of_records, groups))

    if seeds is not None:
        return total(seeds)
    draws = isinstance(loss_fn, LayeredLoss) and draws_when_called(loss_fn.model)
    return with_seeds(total, tf.size(mask), likely=draws)


class _Task(NamedTuple):
    """What is computed, by whatever engine.

    Attributes:
        loss_fn: As in `clipped_gradient_sum`.
        differentiated: The variables.
        clipping: What becomes of gradients.
        example_of: From leaves to the structure of examples, and their seeds, where there are any.
        has_aux: As in `clipped_gradient_sum`.
        loss_scale: Likewise.
        physical_batch_size: Likewise.
    """

    loss_fn: Any
    differentiated: Any
    clipping: Clipping
    example_of: Callable[[list[tf.Tensor]], tuple[Any, tf.Tensor | None]]
    has_aux: bool
    loss_scale: float
    physical_batch_size: int | None

    @property
    def variables(self) -> list[Any]:
        return tf.nest.flatten(self.differentiated)

    @property
    def has_statistics(self) -> bool:
        return self.clipping.variables is not self.differentiated

    def sum(self, engine, leaves, mask, weights, groups):
        """Returns (sample_state, losses [n], aux stacked over examples).

        Args:
            engine: A name in `ENGINES`.
            leaves: Of the examples, and of their seeds where there are any.
            mask: bool [n]; false marks padding.
            weights: Of the records; () where the query takes none.
            groups: Examples that are records together; None: every example is one.
        """
        if engine == "loop":
            return loop_sum(self.gradient, self.clipping, leaves, mask, weights, groups)
        if engine == "bookkeeping" or (engine == "auto" and isinstance(self.loss_fn, LayeredLoss)):
            try:
                with attempt():
                    return self.book_kept(leaves, mask, weights, groups)
            except UnsupportedModelError as error:
                if engine == "bookkeeping":
                    raise
                if is_compiled_by_xla() and loops_in(self.loss_fn.model):
                    raise LoopsByRecordError(
                        f"XLA cannot compile loops of recurrent layers record by record. {error}"
                    ) from error
                rounded = isinstance(error, _RoundedProductsError)
                level = logging.WARNING if rounded else logging.INFO
                reason = in_words(error)
                say_that_it_may_mix(self.loss_fn.model, reason)
                _logger.log(level, "Gradients are computed by the vectorized engine. %s", reason)
        gradients = vectorized_gradients(self.gradient, leaves, self.physical_batch_size)
        return self.batched(gradients, leaves, mask, weights, groups)

    def gradient(self, leaves):
        """Returns (loss, aux, gradients) of a batch of one example, with its statistics."""
        loss, aux, gradients = example_gradient(
            self.loss_fn, self.variables, *self.example_of(leaves), self.has_aux, self.loss_scale
        )
        if self.has_statistics:
            aux, statistics = aux
            gradients = [*gradients, *statistics]
        return loss, aux, gradients

    def book_kept(self, leaves, mask, weights, groups):
        if not isinstance(self.loss_fn, LayeredLoss):
            raise TypeError(
                "engine='bookkeeping' needs a tfdp.gradients.LayeredLoss, which tells the model "
                f"from the loss. Received: loss_fn={self.loss_fn!r}."
            )
        _refuse_rounded_products()
        of_variables = bookkeeping_gradients(
            self.loss_fn, self.variables, self.example_of, self.has_aux, self.loss_scale
        )

        def gradients(*leaves):
            losses, aux, records = of_variables(*leaves)
            if self.has_statistics:
                aux, statistics = aux
                records = [*records, *map(Explicit, statistics)]
            return losses, aux, records

        def run(leaves, mask, weights, groups):
            return self.batched(gradients, leaves, mask, weights, groups)

        # The engine watches the layers while a graph is built, so in eager mode one is built here.
        run = tf.function(run, autograph=False) if tf.executing_eagerly() else run
        return run(leaves, mask, weights, groups)

    def batched(self, gradients, leaves, mask, weights, groups):
        size = self.physical_batch_size
        return batched_sum(gradients, self.clipping, leaves, mask, weights, groups, size)


def _check_arguments(query: Any, variables: Any, engine: Any) -> None:
    if not isinstance(query, DPQuery):
        raise TypeError(f"query must be a DPQuery. Received: query={query!r}.")
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {ENGINES}. Received: engine={engine!r}.")
    if variables is None or not tf.nest.flatten(variables):
        raise ValueError("There are no variables to differentiate with respect to.")


def _check_sizes(physical_batch_size: Any, num_microbatches: Any, microbatch_ids: Any) -> None:
    if physical_batch_size is not None:
        positive_integer("physical_batch_size", physical_batch_size)
    if (num_microbatches is None) != (microbatch_ids is None):
        raise ValueError(
            "num_microbatches and microbatch_ids go together; tfdp.gradients.assign_microbatches "
            f"makes the ids. Received: num_microbatches={num_microbatches!r}, "
            f"microbatch_ids={microbatch_ids!r}."
        )
    if num_microbatches is not None and not tf.is_tensor(num_microbatches):
        positive_integer("num_microbatches", num_microbatches)


def _in_whole_records(physical_batch_size: int | None, records: Consecutive | None) -> int | None:
    if physical_batch_size is None or records is None:
        return None if physical_batch_size is None else int(physical_batch_size)
    return int(physical_batch_size) // records.size * records.size


def _microbatches(mask: Any, ids: Any, number: Any) -> tuple[tf.Tensor, Microbatches | None]:
    """Returns the mask without examples whose microbatch does not exist, which nothing would bound,
    and the microbatches; None where every example is a record.
    """
    if ids is None:
        return mask, None
    number = number if tf.is_tensor(number) else int(number)
    ids, exist = in_range(ids, number, axis=[])
    return mask & exist, Microbatches(tf.cast(ids, tf.int32), number)


def check_weights(query: DPQuery, given: bool, in_microbatches: bool) -> None:
    """Refuses weights of records that mean nothing.

    Args:
        query: The mechanism.
        given: Whether there are weights.
        in_microbatches: Whether records are microbatches.

    Raises:
        ValueError: the query takes none, or records are means of examples.
    """
    if given and not query.takes_weights:
        raise ValueError(
            "weights are for a query that bounds them, such as tfdp.WeightedAverageQuery. "
            f"Received: query={query!r}."
        )
    if query.takes_weights and in_microbatches:
        raise ValueError(
            f"{type(query).__name__} weights each example, and a microbatch of several examples "
            "has no weight; nor have all rows of a user, or all views of an example. Leave out "
            "what makes a record of several: num_microbatches, examples_per_record, or in fit "
            "privacy_unit and views."
        )


def _weights_for(query: DPQuery, weights: Any, mask: tf.Tensor) -> Weights:
    if not query.takes_weights:
        return ()
    return tf.ones(tf.shape(mask), tf.float64) if weights is None else tf.cast(weights, tf.float64)


def _engine_for(query: DPQuery, engine: str) -> str:
    if not query.needs_separate_records or engine == "loop":
        return engine
    if engine != "auto":
        raise ValueError(
            f"engine={engine!r} computes the gradients of a batch together, and other records "
            "in it may change the last bits of one. A query with precision='exact', or with noise "
            "of every record, needs engine='loop' (or 'auto', which takes it)."
        )
    _logger.info(
        "Gradients are computed by the loop engine, one example at a time: the query has "
        "precision='exact' or noise of every record."
    )
    return "loop"


def _refuse_rounded_products() -> None:
    if math.isinf(rounding.factor_error()):
        raise _RoundedProductsError(
            "oneDNN is allowed to round factors of matrix products in a way that norms computed "
            f"from factors have no bound for. Unset {', '.join(rounding.ONEDNN_MODES)}. Then the "
            "book-keeping engine, which is many times faster, computes them."
        )


def _without_none(examples: Any) -> Any:
    """Returns the tensors of a structure, and a function that puts others in their places."""
    flat = tf.nest.flatten(examples)
    present = [i for i, leaf in enumerate(flat) if leaf is not None]

    def rebuild(leaves):
        values: list[Any] = [None] * len(flat)
        for i, leaf in zip(present, leaves, strict=True):
            values[i] = leaf
        return tf.nest.pack_sequence_as(examples, values)

    return [tf.convert_to_tensor(flat[i]) for i in present], rebuild


def _check_lengths(leaves: list[tf.Tensor]) -> None:
    lengths = {leaf.shape[0] for leaf in leaves if leaf.shape.rank is not None} - {None}
    if len(lengths) > 1:
        raise ValueError(
            "examples, mask and microbatch_ids must have the same length. "
            f"Received leading dimensions {[leaf.shape[0] for leaf in leaves]}."
        )
