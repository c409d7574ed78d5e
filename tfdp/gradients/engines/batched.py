"""From the gradients of a batch to the sum of clipped records, for all engines but the loop."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tfdp.gradients import microbatches
from tfdp.gradients.forms.joined import Joined
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.mapping import map_records
from tfdp.gradients.microbatches import Consecutive
from tfdp.numerics.norms import segment_sum
from tfdp.query import norm_factors
from tfdp.query.dp_query import DPQuery

# A function from the leaves of examples, [n, ...], to losses [n], aux [n, ...] and one gradient for
# each variable.
BatchGradients = Callable[..., tuple[tf.Tensor, Any, list[PerRecordGradient]]]


# Weights of records, [n], or () where the query takes none.
Weights: TypeAlias = tf.Tensor | tuple[()]


class Clipping(NamedTuple):
    """What becomes of gradients: the query, its parameters, and the records' structure."""

    query: DPQuery
    params: Any
    variables: Any

    def weighed(self, weights: Weights) -> "Clipping":
        """Returns the same with the query of records that have these weights."""
        if isinstance(weights, tuple):
            return self
        return self._replace(query=self.query.weighed(weights))


class Microbatches(NamedTuple):
    """Which record every example is part of: int32 [n] in 0 .. number - 1."""

    ids: tf.Tensor
    number: int | tf.Tensor


def batched_sum(
    gradients: BatchGradients,
    clipping: Clipping,
    examples: list[tf.Tensor],
    mask: tf.Tensor,
    weights: Weights,
    groups: Microbatches | Consecutive | None,
    physical_batch_size: int | None,
) -> tuple[Any, tf.Tensor, Any]:
    """Returns (sample_state, losses [n], aux stacked over examples).

    Args:
        gradients: How an engine computes the gradients of a batch.
        clipping: What becomes of them.
        examples: The leaves of the examples, each [n, ...].
        mask: bool [n]; false marks padding.
        weights: Of the records; () where the query takes none.
        groups: Examples that are records together; None: every example is one.
        physical_batch_size: As in `clipped_gradient_sum`; a number of whole records.
    """
    query, variables = clipping.weighed(weights).query, clipping.variables
    whole = physical_batch_size is None
    # Which rows a microbatch uses is seen in its mean alone.
    has_counts = _has_counts(query, variables)
    if groups is None:
        initial = _start(query, variables, whole)

        def add(state, records, mask, ids, weights):
            return _merged(query, state, sum_records(clipping, records, mask, weights))

        def finish(state):
            return state
    elif isinstance(groups, Consecutive):
        initial = _start(query, variables, whole)

        def add(state, records, mask, ids, weights):
            return _merged(query, state, sum_consecutive(clipping, records, mask, groups))

        def finish(state):
            return state
    elif whole and query.num_norm_groups is not None and not has_counts:
        # The norms of microbatches come from the book-kept form of their examples' gradients.
        initial = query.initial_sample_state(variables)

        def add(state, records, mask, ids, weights):
            return sum_microbatches(clipping, records, mask, Microbatches(ids, groups.number))

        def finish(state):
            return state
    else:
        initial = microbatches.empty_sums(tf.nest.flatten(variables), groups.number)

        def add(state, records, mask, ids, weights):
            explicit = [record.explicit() for record in records]
            sums, counts = microbatches.segment_sums(explicit, mask, ids, groups.number)
            return [a + b for a, b in zip(state[0], sums, strict=True)], state[1] + counts

        def finish(state):
            records = [Explicit(mean) for mean in microbatches.means(*state)]
            return sum_records(clipping, records, state[1] > 0, ())

    ids = groups.ids if isinstance(groups, Microbatches) else ()
    inputs = (examples, mask, ids, weights)
    together = groups.size if isinstance(groups, Consecutive) else 1
    if whole:
        state, losses, aux = _fold_whole(gradients, add, initial, inputs, together)
    else:
        state, losses, aux = _fold_chunks(gradients, add, initial, inputs, physical_batch_size)
    return finish(state), losses, aux


def _start(query: DPQuery, variables: Any, whole: bool) -> Any:
    """Returns the sample state of no records; None where no addition of zeros is needed, since a
    sum of all records follows.
    """
    if whole and query.is_sum and query.num_norm_groups is not None:
        return None
    return query.initial_sample_state(variables)


def _merged(query: DPQuery, state: Any, more: Any) -> Any:
    return more if state is None else query.merge_sample_states(state, more)


def sum_records(
    clipping: Clipping, records: list[PerRecordGradient], mask: tf.Tensor, weights: Weights
) -> Any:
    """Returns the sample state of the records at which `mask` is true and that are finite.

    Args:
        clipping: What becomes of gradients.
        records: Gradients of the records with respect to every variable.
        mask: bool [n]; false marks padding.
        weights: The weights of the records, where the query has them.
    """
    weighed = clipping.weighed(weights)
    query = weighed.query
    joined = _as_clipped(weighed, records) if query.num_norm_groups is not None else None
    squares = [record.squared_norms() for record in (joined.records if joined else records)]
    keep = mask & _all_finite(squares)
    if query.num_norm_groups is not None:
        return _scaled_sum(weighed, joined, squares, keep, lambda factors: factors)

    explicit = [record.explicit() for record in records]
    explicit = [tf.where(_like(keep, r), r, tf.zeros_like(r)) for r in explicit]
    leaves = [*explicit, *tf.nest.flatten(weights)]

    def preprocess(record):
        gradients = [leaf[0] for leaf in record]
        weight = tf.nest.pack_sequence_as(weights, gradients[len(explicit) :])
        return clipping.weighed(weight).query.preprocess_record(
            clipping.params,
            tf.nest.pack_sequence_as(clipping.variables, gradients[: len(explicit)]),
        )

    preprocessed = map_records(preprocess, leaves)[0](*leaves)
    if query.is_sum:
        return tf.nest.map_structure(
            lambda r: tf.reduce_sum(tf.where(_like(keep, r), r, tf.zeros_like(r)), axis=0),
            preprocessed,
        )
    initial = query.initial_sample_state(clipping.variables)
    return _accumulate_one_by_one(query, initial, preprocessed, keep)


def sum_microbatches(
    clipping: Clipping, records: list[PerRecordGradient], mask: tf.Tensor, groups: Microbatches
) -> Any:
    """Returns the sample state of the microbatches' means, for a query that scales records by
    functions of their norms.

    Args:
        clipping: The query, which must be of that kind.
        records: Gradients of the examples with respect to every variable.
        mask: bool [n]; false marks padding.
        groups: The microbatch of every example.
    """
    ids, number = groups
    joined = _as_clipped(clipping, records)
    counts = segment_sum(tf.ones_like(ids, tf.float64), mask, ids, number)

    def over_counts(values):
        return values / tf.cast(tf.maximum(counts, 1), values.dtype)

    squares = [record.segment_squared_norms(mask, ids, number) for record in joined.records]
    squares = [over_counts(over_counts(square)) for square in squares]
    keep = (counts > 0) & _all_finite(squares)

    def of_examples(factors):
        factors = tf.gather(over_counts(factors), ids)
        return tf.where(mask, factors, tf.zeros_like(factors))

    return _scaled_sum(clipping, joined, squares, keep, of_examples)


def _as_clipped(clipping: Clipping, records: list[PerRecordGradient]) -> Joined:
    """Returns the records times the numbers by which the query multiplies their coordinates. What
    is joined has the same norm group; rows that are counted are a variable's own.
    """
    query, variables = clipping.query, clipping.variables
    scaled = [
        record if scale is None else record.scaled(scale)
        for record, scale in zip(
            records, query.coordinate_scales(clipping.params, variables), strict=True
        )
    ]
    clips = query.contribution_clips(variables)
    groups = query.norm_groups(variables)
    return Joined(
        scaled,
        [
            (group, clip, None if clip is None else i)
            for i, (group, clip) in enumerate(zip(groups, clips, strict=True))
        ],
    )


def sum_consecutive(
    clipping: Clipping, records: list[PerRecordGradient], mask: tf.Tensor, groups: Consecutive
) -> Any:
    """Returns the sample state of records that are several consecutive examples each.

    Args:
        clipping: What becomes of gradients.
        records: Gradients of the examples with respect to every variable.
        mask: bool [n]; false leaves an example out.
        groups: Which examples are one record; their number divides n.
    """
    members = tf.reshape(mask, [-1, groups.size])
    counts = tf.reduce_sum(tf.cast(members, tf.float64), 1)
    shares = 1 / tf.maximum(counts, 1) if groups.averaged else tf.ones_like(counts)
    shares = tf.repeat(shares, groups.size)
    factors = tf.where(mask, shares, tf.zeros_like(shares))
    joined = [record.grouped(factors, groups.size) for record in records]
    return sum_records(clipping, joined, counts > 0, ())


def _scaled_sum(clipping, joined, squares, keep, of_examples):
    """Returns the sum of records times the query's factors, which are functions of their norms."""
    query, variables = clipping.query, clipping.variables
    groups = [group for group, *_ in joined.keys]
    norms = norm_factors.group_norms(squares, groups, query.num_norm_groups)
    kept = tf.expand_dims(keep, 1)
    norms = tf.where(kept, norms, tf.zeros([], norms.dtype))
    factors = query.scale_factors(clipping.params, norms)
    factors = tf.where(kept, factors, tf.zeros([], factors.dtype))
    by_group = [of_examples(f) for f in tf.unstack(factors, query.num_norm_groups, axis=1)]
    sums = [
        record.weighted_sum(by_group[g])
        if clip is None
        else record.weighted_rows(by_group[g], keep, clip)
        for record, (g, clip, _) in zip(joined.records, joined.keys, strict=True)
    ]
    scaled = tf.nest.pack_sequence_as(variables, joined.by_variable(sums))
    if not query.num_norm_statistics:
        return query.pack_scaled(scaled, tf.zeros([0], tf.float64))
    statistics = query.norm_statistics(clipping.params, norms)
    statistics = tf.where(kept, statistics, tf.zeros([], statistics.dtype))
    return query.pack_scaled(scaled, tf.reduce_sum(statistics, 0))


def _has_counts(query: DPQuery, variables: Any) -> bool:
    return any(clip is not None for clip in query.contribution_clips(variables))


def _all_finite(squares: list[tf.Tensor]) -> tf.Tensor:
    # None is negative, so a sum is finite only where all of them are.
    return tf.math.is_finite(tf.add_n([tf.cast(s, tf.float64) for s in squares]))


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


def _fold_whole(gradients: Any, add: Any, state: Any, inputs: Any, together: int) -> Any:
    """Adds all rows at once. An empty sample is padded to one record, so that it has shapes, and
    the last record to as many rows as it has.
    """
    size = tf.size(inputs[1])
    missing = tf.maximum(1 - size, 0) if together == 1 else _missing(size, together)
    examples, *of_records = _pad(inputs, missing)
    losses, aux, records = gradients(*examples)
    state = add(state, records, *of_records)
    first, end, one = tf.constant([0]), tf.expand_dims(size, 0), tf.constant([1])

    def of_sample(tensor):
        return tf.strided_slice(tensor, first, end, one)

    return state, of_sample(losses), tf.nest.map_structure(of_sample, aux)


def _fold_chunks(gradients: Any, add: Any, state: Any, inputs: Any, rows: int) -> Any:
    """Folds `add` over chunks of `rows` rows; what is missing in the last is padded with rows that
    the mask leaves out.
    """
    size = tf.shape(inputs[1])[0]
    num_chunks = tf.maximum(-(-size // rows), 1)
    inputs = _pad(inputs, num_chunks * rows - size)
    chunked = tf.nest.map_structure(lambda t: tf.reshape(t, [-1, rows, *t.shape[1:]]), inputs)

    def shapes(*leaves):
        return gradients(*leaves)[:2]

    specs = [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in inputs[0]]
    outputs = tf.function(shapes, autograph=False).get_concrete_function(*specs).structured_outputs
    arrays = tf.nest.map_structure(
        lambda t: tf.TensorArray(
            t.dtype, size=num_chunks, element_shape=tf.TensorShape([rows]) + t.shape[1:]
        ),
        outputs,
    )

    def body(i, state, arrays):
        examples, *of_records = tf.nest.map_structure(lambda t: t[i], chunked)
        losses, aux, records = gradients(*examples)
        pairs = zip(tf.nest.flatten(arrays), tf.nest.flatten((losses, aux)), strict=True)
        written = tf.nest.pack_sequence_as(
            arrays, [array.write(i, value) for array, value in pairs]
        )
        return i + 1, add(state, records, *of_records), written

    _, state, arrays = tf.while_loop(
        lambda i, *_: i < num_chunks, body, (tf.constant(0), state, arrays), parallel_iterations=1
    )
    losses, aux = tf.nest.map_structure(lambda array: array.concat()[:size], arrays)
    return state, losses, aux


def _missing(size: tf.Tensor, together: int) -> tf.Tensor:
    """Returns how many rows the last record lacks, or the only one."""
    return tf.maximum(-(-size // together), 1) * together - size


def _pad(inputs: Any, rows: tf.Tensor) -> Any:
    """Returns inputs with so many rows of zeros behind theirs."""
    of_rows = tf.reshape(tf.stack([0, rows]), [1, 2])

    def padded(tensor):
        others = tensor.shape.rank - 1
        paddings = tf.pad(of_rows, [[0, others], [0, 0]]) if others else of_rows
        more = tf.pad(tensor, paddings)
        more.set_shape([None, *tensor.shape[1:]])
        return more

    return tf.nest.map_structure(padded, inputs)
