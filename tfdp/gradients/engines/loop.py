"""The reference engine: one example at a time, one record at a time. Slow, and obviously what the
paper says.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.gradients import microbatches
from tfdp.query import norm_factors
from tfdp.query.dp_query import DPQuery


def is_finite(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether a record has a finite norm; see `norm_factors.squared_norms` for the edge
    cases.
    """
    squares = norm_factors.squared_norms(leaves, batched=False)
    return tf.reduce_all([tf.math.is_finite(square) for square in squares])


def loop_sum(
    gradient: Callable[[list[tf.Tensor]], Any],
    variables: Any,
    examples: list[tf.Tensor],
    query: DPQuery,
    params: Any,
    mask: tf.Tensor,
    ids: tf.Tensor | None,
    num_microbatches: int | tf.Tensor | None,
):
    """Returns (sample_state, losses [n], aux stacked over examples). See `clipped_gradient_sum`.

    `gradient` takes the leaves of a batch of one example and returns (loss, aux, gradients).
    """
    flat_variables = tf.nest.flatten(variables)
    size = tf.shape(mask)[0]

    if mask.shape[0] == 0:
        # No row is looked at, but a graph of one is built.
        examples = [tf.zeros([1, *leaf.shape[1:]], leaf.dtype) for leaf in examples]

    def gradient_of(i):
        return gradient([leaf[i][None] for leaf in examples])

    def accumulate(state, record, is_real):
        return tf.cond(
            is_real & is_finite(record),
            lambda: query.accumulate_record(
                params, state, tf.nest.pack_sequence_as(variables, record)
            ),
            lambda: tf.nest.map_structure(tf.identity, state),
        )

    initial = query.initial_sample_state(variables)
    if num_microbatches is None:
        fold = initial

        def add_example(state, i, record):
            return accumulate(state, record, mask[i])
    else:
        fold = microbatches.empty_sums(flat_variables, num_microbatches)

        def add_example(state, i, record):
            sums, counts = state

            def add():
                at = [[ids[i]]]
                new = [
                    tf.tensor_scatter_nd_add(s, at, g[None])
                    for s, g in zip(sums, record, strict=True)
                ]
                return new, tf.tensor_scatter_nd_add(counts, at, tf.ones([1], tf.float64))

            return tf.cond(
                mask[i], add, lambda: (list(map(tf.identity, sums)), tf.identity(counts))
            )

    state, losses, aux = _for_each_example(size, gradient_of, fold, add_example)
    if num_microbatches is None:
        return state, losses, aux
    sums, counts = state
    records = microbatches.means(sums, counts)
    _, result = tf.while_loop(
        lambda m, _: m < num_microbatches,
        lambda m, state: (m + 1, accumulate(state, [r[m] for r in records], counts[m] > 0)),
        (tf.constant(0), initial),
    )
    return result, losses, aux


def _for_each_example(size, gradient, state, add_example):
    """Folds `add_example` over the examples and stacks losses and aux in their order."""
    example_spec = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), _abstract(lambda: gradient(0)[:2])
    )
    arrays = tf.nest.map_structure(
        lambda spec: tf.TensorArray(spec.dtype, size=size, element_shape=spec.shape), example_spec
    )

    def body(i, state, arrays):
        loss, aux, record = gradient(i)
        written = [
            a.write(i, v)
            for a, v in zip(tf.nest.flatten(arrays), tf.nest.flatten((loss, aux)), strict=True)
        ]
        return i + 1, add_example(state, i, record), tf.nest.pack_sequence_as(arrays, written)

    _, state, arrays = tf.while_loop(lambda i, *_: i < size, body, (tf.constant(0), state, arrays))
    losses, aux = tf.nest.map_structure(lambda array: array.stack(), arrays)
    return state, losses, aux


def _abstract(fn):
    """Returns the symbolic outputs of `fn`, without running it."""
    return tf.function(fn, autograph=False).get_concrete_function().structured_outputs
