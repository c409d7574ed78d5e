"""The vectorized engine: every example's gradient at once, by `tf.vectorized_map`."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.gradients import microbatches
from tfdp.gradients.onednn import corrupts_memory
from tfdp.query import norm_factors
from tfdp.query.dp_query import DPQuery


def vectorized_sum(
    gradient: Callable[[list[tf.Tensor]], Any],
    variables: Any,
    examples: list[tf.Tensor],
    query: DPQuery,
    params: Any,
    mask: tf.Tensor,
    ids: tf.Tensor | None,
    num_microbatches: int | tf.Tensor | None,
    physical_batch_size: int | None,
):
    """Returns (sample_state, losses [n], aux stacked over examples). See `clipped_gradient_sum`.

    `gradient` takes the leaves of a batch of one example and returns (loss, aux, gradients).
    """
    flat_variables = tf.nest.flatten(variables)

    gradients, outputs = _vectorize(gradient, examples, physical_batch_size)

    if num_microbatches is None:
        initial = query.initial_sample_state(variables)

        def add(state, records, mask, ids):
            return query.merge_sample_states(
                state, sum_records(query, params, variables, records, mask)
            )

        def finish(state):
            return state
    else:
        initial = microbatches.empty_sums(flat_variables, num_microbatches)

        def add(state, records, mask, ids):
            sums, counts = microbatches.segment_sums(records, mask, ids, num_microbatches)
            return [a + b for a, b in zip(state[0], sums, strict=True)], state[1] + counts

        def finish(state):
            sums, counts = state
            return sum_records(
                query, params, variables, microbatches.means(sums, counts), counts > 0
            )

    if ids is None:
        ids = tf.zeros_like(mask, tf.int32)
    inputs = (examples, mask, ids)
    if physical_batch_size is None:
        state, losses, aux = _fold_whole(gradients, add, initial, inputs)
    else:
        state, losses, aux = _fold_chunks(
            gradients, outputs, add, initial, inputs, physical_batch_size
        )
    return finish(state), losses, aux


def _vectorize(
    gradient: Callable[[list[tf.Tensor]], Any], examples: list[tf.Tensor], rows: int | None
):
    """Returns (function from leaves [rows, ...] to losses, aux and gradients over rows; specs of
    losses and aux).
    """

    def one(example):
        return gradient([leaf[None] for leaf in example])

    def stacked(*leaves):
        return tf.vectorized_map(one, list(leaves), warn=False)

    def mapped(*leaves):
        signature = tf.function(one, autograph=False).get_concrete_function(
            [leaf[0] for leaf in leaves]
        )
        spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), signature.structured_outputs
        )
        return tf.map_fn(one, list(leaves), fn_output_signature=spec)

    specs = [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in examples]
    try:
        with _without_notes_to_tensorflow():
            call = tf.function(stacked, autograph=False).get_concrete_function(*specs)
    except TypeError as error:
        # tf.vectorized_map cannot convert some operations, such as those of recurrent layers with a
        # mask. If the fault is the caller's, the same error comes again below.
        warnings.warn(
            "Gradients are computed one example at a time, because TensorFlow cannot vectorize: "
            f"{error}",
            stacklevel=2,
        )
        call = tf.function(mapped, autograph=False).get_concrete_function(*specs)
    outputs = call.structured_outputs[:2]
    if corrupts_memory(call.graph):
        call = tf.function(stacked, autograph=False, jit_compile=True)
    return call, outputs


@contextlib.contextmanager
def _without_notes_to_tensorflow() -> Iterator[None]:
    """Keeps from users what `tf.vectorized_map` logs for its own developers, at every trace."""

    def is_for_users(record: logging.LogRecord) -> bool:
        return not str(record.msg).endswith("uses a while_loop. Fix that!")

    logger = tf.get_logger()
    logger.addFilter(is_for_users)
    try:
        yield
    finally:
        logger.removeFilter(is_for_users)


def sum_records(
    query: DPQuery, params: Any, variables: Any, records: list[tf.Tensor], mask: tf.Tensor
):
    """Returns the sample state of the records (leaves [n, ...]) at which `mask` is true and that
    are finite.
    """
    squares = norm_factors.squared_norms(records, batched=True)
    keep = mask & tf.math.is_finite(tf.add_n([tf.cast(s, tf.float64) for s in squares]))
    for square in squares:
        keep &= tf.math.is_finite(square)
    records = [tf.where(_like(keep, r), r, tf.zeros_like(r)) for r in records]
    if query.num_norm_groups is not None:
        groups = query.norm_groups(variables)
        squares = [tf.where(keep, s, tf.zeros_like(s)) for s in squares]
        factors = query.scale_factors(
            params, norm_factors.group_norms(squares, groups, query.num_norm_groups)
        )
        factors = tf.where(keep[:, None], factors, tf.zeros_like(factors))
        sums = [contract(factors[:, g], r) for g, r in zip(groups, records, strict=True)]
        return tf.nest.pack_sequence_as(query.initial_sample_state(variables), sums)

    preprocessed = tf.vectorized_map(
        lambda leaves: query.preprocess_record(params, tf.nest.pack_sequence_as(variables, leaves)),
        records,
    )
    if query.is_sum:
        return tf.nest.map_structure(
            lambda r: tf.reduce_sum(tf.where(_like(keep, r), r, tf.zeros_like(r)), axis=0),
            preprocessed,
        )
    return _accumulate_one_by_one(query, query.initial_sample_state(variables), preprocessed, keep)


def contract(factors: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Returns sum_i factors[i] * record[i]."""
    total = tf.tensordot(tf.cast(factors, record.dtype), record, 1)
    return tf.ensure_shape(total, record.shape[1:])


def _accumulate_one_by_one(query, state, preprocessed, keep):
    def body(i, state):
        record = tf.nest.map_structure(lambda r: r[i], preprocessed)
        return i + 1, tf.cond(
            keep[i],
            lambda: query.accumulate_preprocessed_record(state, record),
            lambda: tf.nest.map_structure(tf.identity, state),
        )

    size = tf.shape(keep)[0]
    return tf.while_loop(lambda i, _: i < size, body, (tf.constant(0), state))[1]


def _like(keep: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    return tf.reshape(keep, [-1] + [1] * (record.shape.rank - 1))


def _fold_whole(gradients, add, state, inputs):
    """Adds all rows at once; at least one, so that an empty sample has a shape."""
    size = tf.shape(inputs[1])[0]
    examples, mask, ids = _pad(inputs, tf.maximum(size, 1) - size)
    losses, aux, records = gradients(*examples)
    state = add(state, records, mask, ids)
    return state, losses[:size], tf.nest.map_structure(lambda a: a[:size], aux)


def _fold_chunks(gradients, outputs, add, state, inputs, rows: int):
    """Folds `add` over chunks of `rows` rows; what is missing in the last is padded with rows that
    the mask leaves out.
    """
    size = tf.shape(inputs[1])[0]
    num_chunks = tf.maximum(-(-size // rows), 1)
    inputs = _pad(inputs, num_chunks * rows - size)
    chunked = tf.nest.map_structure(lambda t: tf.reshape(t, [-1, rows, *t.shape[1:]]), inputs)
    arrays = tf.nest.map_structure(
        lambda t: tf.TensorArray(t.dtype, size=num_chunks, element_shape=t.shape), outputs
    )

    def body(i, state, arrays):
        examples, mask, ids = tf.nest.map_structure(lambda t: t[i], chunked)
        losses, aux, records = gradients(*examples)
        pairs = zip(tf.nest.flatten(arrays), tf.nest.flatten((losses, aux)), strict=True)
        written = tf.nest.pack_sequence_as(
            arrays, [array.write(i, value) for array, value in pairs]
        )
        return i + 1, add(state, records, mask, ids), written

    _, state, arrays = tf.while_loop(
        lambda i, *_: i < num_chunks, body, (tf.constant(0), state, arrays), parallel_iterations=1
    )
    losses, aux = tf.nest.map_structure(lambda array: array.concat()[:size], arrays)
    return state, losses, aux


def _pad(inputs, rows):
    return tf.nest.map_structure(
        lambda t: tf.ensure_shape(
            tf.pad(t, [[0, rows]] + [[0, 0]] * (t.shape.rank - 1)), [None, *t.shape[1:]]
        ),
        inputs,
    )
