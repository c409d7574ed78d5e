"""Sums of gradients of a table of which few rows are released."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from tfdp.events import ComposedEvent, Event, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.noise.bits import Fill
from tfdp.noise.trials import successes, trials
from tfdp.numerics import rounding
from tfdp.query import norm_factors, sparse_rows
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.dp_query import DPQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, describe


@dataclasses.dataclass(frozen=True)
class SparseEmbeddingSumQuery(DPQuery):
    """Sum of clipped gradients of an embedding table, with noise in rows that are selected
    privately, and nothing in all others (DP-AdaFEST).

    Let u_i be the vector that has a one for every row of the table that is not zero in record r_i.
    With C_1 = `contribution_clip`, s_1 = `selection_stddev` and C = `l2_norm_clip`, row v is
    selected where

        sum_i u_iv min(1, C_1 / |u_i|) + N(0, s_1^2) > threshold,

    independently of other rows, and what is released are the selected rows of

        sum_i r_i min(1, C / |r_i|) + N(0, stddev^2).

    Rows that no record uses take part: they are selected with probability P(N(0, s_1^2) >
    threshold) each. They are not compared one by one. Places of successes of so many trials are
    drawn by their gaps, which is the same in distribution. The time follows the number of rows that
    are used or selected, not the size of the table.

    Guarantees:
        Adding or removing one record moves the counts by at most `contribution_clip` in the l2
        norm. It moves the sum, whatever rows are selected, by at most `l2_norm_clip`, because a
        record is clipped over all of its rows, before any selection. The event is the composition
        of both Gaussian sums, which is one with noise multiplier ((s_1 / C_1)^-2 + (stddev /
        C)^-2)^(-1/2). Which rows are in the result, and how many, is itself part of what was
        released; their order is that of the table.

    Edge cases:
        A record with a NaN or infinity contributes to neither sum. An empty sample selects rows,
        too. Without noise a row is selected where its count is above the threshold.

    Records are one leaf [rows, d], dense or `tf.IndexedSlices`. A sample state is a
    `tf.IndexedSlices` with a column for counts beside the d others, and so is no sum: rows of it
    may have the same place. Results are `tf.IndexedSlices` with distinct places. It works in
    `tf.function`, not under XLA, which needs shapes that no draw decides.

    Args:
        l2_norm_clip: C, bound on the l2 norm of a record's gradient of the table; positive.
        stddev: Of the noise on the sum of selected rows.
        contribution_clip: C_1. A record that uses more than C_1^2 rows counts less than one in
            each.
        selection_stddev: s_1, of the noise on counts.
        threshold: Counts above it are selected. Of n unused rows n P(N(0, s_1^2) > threshold) are,
            so that few standard deviations are enough.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = SparseEmbeddingSumQuery(1.0, 0.0, 1.0, 0.0, threshold=0.5)
        >>> state = query.initial_sample_state(tf.zeros([1000, 2]))
        >>> record = tf.scatter_nd([[7]], tf.constant([[3.0, 4.0]]), [1000, 2])
        >>> result = query.get_noised_result(query.accumulate_record((), state, record), ())[0]
        >>> print(result.indices.numpy(), result.values.numpy().round(3))
        [7] [[0.6 0.8]]

    References:
        Ghazi, Huang, Kamath, Kumar, Manurangsi, Sinha, Zhang 2023, "Sparsity-preserving
        differentially private training of large embedding models", arXiv:2311.08357, algorithm 1.
    """

    l2_norm_clip: float
    stddev: float
    contribution_clip: float
    selection_stddev: float
    threshold: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, check in (
            ("l2_norm_clip", clip_norm),
            ("contribution_clip", clip_norm),
            ("stddev", noise_stddev),
            ("selection_stddev", noise_stddev),
        ):
            object.__setattr__(self, name, check(name, getattr(self, name)))
        threshold = real_number(
            "threshold", self.threshold, minimum=-1e30, inclusive=True, maximum=1e30
        )
        object.__setattr__(self, "threshold", threshold)
        check_random_source(self.random_source)

    def initial_sample_state(self, template: Structure) -> Structure:
        return sparse_rows.empty(_table(template))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        table = _table(record)
        if isinstance(table, tf.IndexedSlices):
            table = tf.convert_to_tensor(table)
        norms = norm_factors.group_norms(norm_factors.squared_norms([table], batched=False), [0], 1)
        factor = self.scale_factors(params, norms)[0]
        used = tf.reduce_any(tf.not_equal(table, 0), axis=1)
        counts = sparse_rows.contributions(
            used[None], factor[None] > 0, self.contribution_clip, table.dtype
        )[0]
        scaled = norm_factors.scale(table, factor)
        rows = sparse_rows.with_counts(tf.range(tf.shape(table)[0]), scaled, counts, table.shape[0])
        return sparse_rows.where(rows, used)

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        return sparse_rows.concat(sample_state, preprocessed_record)

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        return sparse_rows.concat(sample_state_1, sample_state_2)

    @property
    def num_norm_groups(self) -> int | None:
        return 1

    def norm_groups(self, template: Structure) -> list[int]:
        return [0 for _ in tf.nest.flatten(template)]

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return norm_factors.clip_factors(self.l2_norm_clip, norms)

    def contribution_clips(self, template: Structure) -> list[float | None]:
        _table(template)
        return [self.contribution_clip]

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        (rows,) = tf.nest.flatten(scaled)
        if not isinstance(rows, tf.IndexedSlices):
            raise TypeError(
                "Sums for a SparseEmbeddingSumQuery must be rows with their counts, a "
                f"tf.IndexedSlices. Received: {describe(rows)}. What holds the query must pass on "
                "its contribution_clips, as NestedQuery, NormalizedQuery and ArrangedQuery do."
            )
        return rows

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        rows, source = sample_state, source_of(self)
        touched, place = tf.unique(rows.indices)
        # In float64: a float32 sum of more than 2^24 records is rounded by more than one of them.
        ones = tf.cast(rows.values[:, -1], tf.float64)
        counts = tf.math.unsorted_segment_sum(ones, place, tf.size(touched))
        selected, slots = source.on_host(
            self._select, [touched, counts, rows.dense_shape[0]], [tf.int64, tf.int64]
        )
        selected, slots = tf.reshape(selected, [-1]), tf.reshape(slots, [-1])
        width = rows.values.shape[1] - 1
        number = tf.size(selected)
        # Rows that are not selected have a negative slot, which TensorFlow documents as left out.
        sums = tf.math.unsorted_segment_sum(rows.values[:, :width], tf.gather(slots, place), number)
        if self.stddev:
            noise = source.normal(tf.stack([number, width]), sums.dtype)
            sums += noise * rounding.up(self.stddev, sums.dtype)
        shape = rows.dense_shape - tf.constant([0, 1], rows.dense_shape.dtype)
        result = tf.IndexedSlices(sums, selected, shape)
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        seeded = source_of(self).seeded
        return ComposedEvent(
            (
                GaussianSumEvent(self.contribution_clip, self.selection_stddev, seeded=seeded),
                GaussianSumEvent(self.l2_norm_clip, self.stddev, seeded=seeded),
            )
        )

    def _select(
        self, fill: Fill, touched: np.ndarray, counts: np.ndarray, num_rows: np.ndarray
    ) -> list[np.ndarray]:
        """Returns the selected rows, rising, and for each touched row its index in them or -1."""
        chosen = trials(fill, self._probabilities(counts))
        # Trials of all rows; those of touched rows, which have a probability of their own, are
        # dropped.
        others = successes(fill, int(num_rows), float(self._probabilities(np.zeros(1))[0]))
        # Rising: the order must not tell which rows a record has used.
        selected = np.sort(np.concatenate([touched[chosen], others[~np.isin(others, touched)]]))
        return [selected, np.where(chosen, np.searchsorted(selected, touched), -1)]

    def _probabilities(self, counts: np.ndarray) -> np.ndarray:
        """Returns the probabilities with which counts and their noise are above the threshold."""
        excess = counts.astype(np.float64) - self.threshold
        if self.selection_stddev == 0:
            return (excess > 0).astype(np.float64)
        return special.ndtr(excess / self.selection_stddev)


def _table(structure: Any) -> Any:
    """Returns the one leaf of a structure, a table.

    Raises:
        ValueError: there are several, or it has no rows.
        TypeError: it is neither float32 nor float64.
    """
    leaves = tf.nest.flatten(structure)
    if len(leaves) != 1 or len(leaves[0].shape) != 2 or None in tuple(leaves[0].shape):
        raise ValueError(
            "Records of a SparseEmbeddingSumQuery must be the gradient of one table, [rows, d]. "
            f"Received: {[tuple(getattr(leaf, 'shape', ())) for leaf in leaves]}. Give other "
            "variables a query of their own, with NestedQuery."
        )
    record_dtype(leaves[0])
    return leaves[0]
