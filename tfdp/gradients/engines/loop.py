"""The reference engine: one example at a time, one record at a time. Slow, and obviously what the
paper says.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.gradients import microbatches
from tfdp.gradients.effects import refuse_side_effects
from tfdp.gradients.engines.batched import Clipping, Microbatches, Weights
from tfdp.gradients.microbatches import Consecutive
from tfdp.gradients.rewriting import checked
from tfdp.query import norm_factors


def is_finite(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether a record has a finite norm; see `norm_factors.squared_norms` for the edge
    cases.
    """
    squares = norm_factors.squared_norms(leaves, batched=False)
    return tf.reduce_all([tf.math.is_finite(square) for square in squares])


def loop_sum(
    gradient: Callable[[list[tf.Tensor]], Any],
    clipping: Clipping,
    examples: list[tf.Tensor],
    mask: tf.Tensor,
    weights: Weights,
    groups: Microbatches | Consecutive | None,
) -> tuple[Any, tf.Tensor, Any]:
    """Returns (sample_state, losses [n], aux stacked over examples).

    Args:
        gradient: Takes the leaves of a batch of one example; returns (loss, aux, gradients).
        clipping: What becomes of gradients.
        examples: The leaves of the examples, each [n, ...].
        mask: bool [n]; false marks padding.
        weights: Of the records; () where the query takes none.
        groups: Examples that are records together; None: every example is one.
    """
    if mask.shape[0] == 0:
        # The loop will not run, but its graph is built from the shapes of one row.
        examples = [tf.zeros([1, *leaf.shape[1:]], leaf.dtype) for leaf in examples]
    if groups is not None:
        return _sum_of_microbatches(gradient, clipping, examples, mask, groups)

    def add(state, i, gradient):
        of_record = tf.nest.map_structure(lambda w: w[i], weights)
        return _accumulate(clipping.weighed(of_record), state, gradient, mask[i])

    initial = clipping.weighed(weights).query.initial_sample_state(clipping.variables)
    return _fold_examples(gradient, examples, tf.shape(mask)[0], initial, add)


def _sum_of_microbatches(gradient, clipping, examples, mask, groups):
    """As `loop_sum`, where a record is the mean or the sum of the gradients of several examples."""
    averaged = True
    if isinstance(groups, Consecutive):
        size, averaged = groups
        rows = tf.shape(mask)[0]
        # Of no rows there is one record without any: the loop will not run, but has a graph.
        number = tf.maximum(-(-rows // size), 1)
        groups = Microbatches(microbatches.consecutive_microbatches(rows, size), number)

    def add_to_microbatch(state, i, gradient):
        return tf.cond(
            mask[i],
            lambda: _added_at(state, groups.ids[i], gradient),
            lambda: tf.nest.map_structure(tf.identity, state),
        )

    empty = microbatches.empty_sums(tf.nest.flatten(clipping.variables), groups.number)
    (sums, counts), losses, aux = _fold_examples(
        gradient, examples, tf.shape(mask)[0], empty, add_to_microbatch
    )
    records = microbatches.means(sums, counts) if averaged else sums
    _, state = tf.while_loop(
        lambda m, _: m < groups.number,
        lambda m, state: (
            m + 1,
            _accumulate(clipping, state, [r[m] for r in records], counts[m] > 0),
        ),
        (tf.constant(0), clipping.query.initial_sample_state(clipping.variables)),
    )
    return state, losses, aux


def _accumulate(clipping, state, record, is_real):
    """Returns the sample state with one record more, if that is real and finite.

    Where something is drawn for every record, those that are not finite are the query's to make
    zeros of.
    """
    query, params, variables = clipping
    return tf.cond(
        is_real if query.draws_for_records else is_real & is_finite(record),
        lambda: query.accumulate_record(params, state, tf.nest.pack_sequence_as(variables, record)),
        lambda: tf.nest.map_structure(tf.identity, state),
    )


def _added_at(state, index, gradient):
    """Returns the sums and counts of microbatches with one example more in one of them."""
    (sums, counts), at = state, [[index]]
    new = [tf.tensor_scatter_nd_add(s, at, g[None]) for s, g in zip(sums, gradient, strict=True)]
    return new, tf.tensor_scatter_nd_add(counts, at, tf.ones([1], tf.float64))


def _fold_examples(gradient, examples, size, state, add):
    """Folds `add` over the gradients of examples and stacks losses and aux in their order."""
    gradient = _traced(gradient, examples)
    arrays = tf.nest.map_structure(
        lambda t: tf.TensorArray(t.dtype, size=size, element_shape=t.shape),
        gradient.structured_outputs[:2],
    )

    def body(i, state, arrays):
        loss, aux, record = gradient(*(leaf[i][None] for leaf in examples))
        written = [
            a.write(i, v)
            for a, v in zip(tf.nest.flatten(arrays), tf.nest.flatten((loss, aux)), strict=True)
        ]
        return i + 1, add(state, i, record), tf.nest.pack_sequence_as(arrays, written)

    _, state, arrays = tf.while_loop(lambda i, *_: i < size, body, (tf.constant(0), state, arrays))
    losses, aux = tf.nest.map_structure(lambda array: array.stack(), arrays)
    return state, losses, aux


def _traced(gradient, examples):
    """Returns a graph of one example's gradient, which does nothing but compute it."""
    specs = [tf.TensorSpec([1, *leaf.shape[1:]], leaf.dtype) for leaf in examples]

    def graph_of(fn):
        call = tf.function(lambda *leaves: fn(list(leaves)), autograph=False)
        return call.get_concrete_function(*specs)

    call = graph_of(gradient)
    refuse_side_effects(call.graph)
    safe = checked(call)
    return call if safe is None else graph_of(safe)
