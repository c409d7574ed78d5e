"""Gradients of tables of which every record uses a few rows."""

import tensorflow as tf

from tfdp.gradients.forms.per_record import PerRecordGradient
from tfdp.gradients.indices import in_range, nowhere
from tfdp.gradients.keras_internals import is_compiled_by_xla
from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding
from tfdp.numerics.norms import not_negative, scale_records, vanished
from tfdp.query import sparse_rows

# Up to this number of positions, computing all their inner products is faster than sorting.
_FEW_POSITIONS = 64


class Rows(PerRecordGradient):
    """Gradients of a table that add rows[i, t] to its row ids[i, t]: of an embedding.

    No [n, num_rows, d] tensor exists, unless `explicit` is asked for.

    Edge cases:
        A record with an id that the table does not have has no finite norm, whatever its rows are.

    Args:
        ids: Integers [n, t]; negative ones count from the end, as in `keras.ops.take`.
        rows: [n, t, d], float32 or float64.
        num_rows: Rows of the table.
        good: bool [n], whether a record's ids were in range, where they are by now (`in_range`).
            None: that is found out here.
    """

    def __init__(
        self, ids: tf.Tensor, rows: tf.Tensor, num_rows: int, good: tf.Tensor | None = None
    ):
        # Numbers of rows and of records are multiplied below, where ids out of range would be
        # those of another record.
        if good is None:
            ids, good = in_range(ids, num_rows, -num_rows, axis=1)
        self.ids = tf.where(ids < 0, ids + num_rows, ids)
        self._given, self._good = rows, good
        self._num_rows = num_rows

    @property
    def rows(self) -> tf.Tensor:
        """The rows, [n, t, d], and NaN those of a record with an id that the table lacks."""
        return tf.where(self._good[:, None, None], self._given, nowhere(self._given))

    def squared_norms(self) -> tf.Tensor:
        n, t = tf.shape(self.ids)[0], self.ids.shape[1]
        if t is None or t > _FEW_POSITIONS:
            return self._squared_norms_of(tf.range(n), tf.ones([n], tf.bool), n)
        squares = sum_of_squares(self._given) if t == 1 else self._squares_from_products()
        # Before the sums, this would take a pass over all rows.
        return tf.where(self._good, squares, nowhere(squares))

    def _squares_from_products(self) -> tf.Tensor:
        """Returns squared norms, [n], from the inner products of all rows of a record."""
        rows, t = self._given, self.ids.shape[1]
        products = tf.matmul(rows, rows, transpose_b=True)
        same = self.ids[:, :, None] == self.ids[:, None, :]
        squares = tf.where(same, products, tf.zeros_like(products))
        squares = tf.cast(tf.reduce_sum(tf.cast(squares, tf.float64), [1, 2]), products.dtype)
        # As in `squares_from_grams`: an inner product is off by at most d u |row_t| |row_s|, and in
        # float64 their sum by as many u as it has terms. Three more are for the rounding of scaled
        # rows.
        norms = tf.sqrt(tf.linalg.diag_part(products))
        magnitudes = norms * tf.linalg.matvec(tf.cast(same, norms.dtype), norms)
        terms = 1 if norms.dtype == tf.float32 else t * t
        error = rounding.additions(rows.shape[-1] + terms + t + 8, norms.dtype)
        magnitudes = tf.reduce_sum(magnitudes, 1)
        squares += error * rounding.unit(norms.dtype) * magnitudes
        squares = rounding.enlarged(not_negative(squares), 4) + vanished(t * t, norms.dtype)
        # Only rows of the same place can cancel, so the norm of all errors is at most this root.
        return rounding.with_product_error(squares, tf.sqrt(magnitudes))

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        d, t = self._given.shape[-1], self.ids.shape[1]
        positions = size * tf.shape(self.ids)[1] if t is None else size * t
        ids = tf.reshape(self.ids, tf.stack([-1, positions]))
        rows = tf.reshape(scale_records(self.rows, factors), tf.stack([-1, positions, d]))
        return Rows(ids, rows, self._num_rows)

    def magnitudes(self) -> tf.Tensor:
        return tf.reduce_sum(tf.norm(self.rows, axis=-1), 1)

    def summands(self) -> int | tf.Tensor:
        return rounding.count_of(self.ids, 1)

    def segment_squared_norms(
        self, mask: tf.Tensor, ids: tf.Tensor, num_segments: int | tf.Tensor
    ) -> tf.Tensor:
        return self._squared_norms_of(ids, mask, num_segments)

    def _squared_norms_of(
        self, owners: tf.Tensor, mask: tf.Tensor, num_owners: int | tf.Tensor
    ) -> tf.Tensor:
        """Returns squared norms of the gradients of owners; several records may have one."""
        n, t, d = tf.shape(self.ids)[0], tf.shape(self.ids)[1], self._given.shape[-1]
        owners = tf.where(mask, owners, num_owners)
        # Rows that go to the same row of the table, for the same owner, are added first.
        keys = tf.cast(owners, tf.int64)[:, None] * self._num_rows + tf.cast(self.ids, tf.int64)
        order = tf.argsort(tf.reshape(keys, [-1]))
        keys = tf.gather(tf.reshape(keys, [-1]), order)
        first = tf.concat(
            [tf.zeros_like(keys[:1], tf.int32), tf.cast(keys[1:] != keys[:-1], tf.int32)], 0
        )
        rows = tf.gather(tf.reshape(self._given, [-1, d]), order)
        places = tf.cumsum(first)
        totals = _sums(rows, places, n * t)
        squares = sum_of_squares(totals)
        # The sum of k rows is off by at most k u sum |row|.
        norms = tf.norm(rows, axis=1)
        norms = tf.where(tf.gather(self._good, order // t), norms, nowhere(norms))
        parts = tf.stack([norms, tf.ones_like(norms)], 1)
        sizes = _sums(parts, places, n * t)
        roundings = (sizes[:, 1] + 4) * rounding.unit(sizes.dtype)
        squares = rounding.with_error(squares, roundings * sizes[:, 0])
        # All rows of a total have the same owner, so the owner of any of them is that of the total.
        owner = tf.math.unsorted_segment_max(
            tf.cast(keys // self._num_rows, tf.int32), places, n * t
        )
        owner = tf.where(owner < 0, num_owners, owner)
        squares = tf.stack([squares, tf.ones_like(squares)], 1)
        squares, counts = tf.unstack(_sums(squares, owner, num_owners + 1)[:-1], axis=1)
        return rounding.enlarged(squares, counts)

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        # The factor of a record without a finite norm is zero.
        rows = tf.reshape(scale_records(self._given, factors), [-1, self._given.shape[-1]])
        return tf.math.unsorted_segment_sum(rows, tf.reshape(self.ids, [-1]), self._num_rows)

    def scaled(self, scales: tf.Tensor) -> "PerRecordGradient":
        return Rows(self.ids, self.rows * tf.gather(scales, self.ids), self._num_rows)

    def weighted_rows(
        self, factors: tf.Tensor, keep: tf.Tensor, contribution_clip: float
    ) -> tf.IndexedSlices:
        d, size = self._given.shape[-1], tf.size(self.ids)
        used = tf.reduce_any(tf.not_equal(self.rows, 0), axis=2)
        # A record counts once in a row, at the first of its positions that use it.
        owners = tf.range(tf.cast(tf.shape(self.ids)[0], tf.int64))[:, None]
        keys = tf.where(used, owners * self._num_rows + tf.cast(self.ids, tf.int64), -1)
        _, group = tf.unique(tf.reshape(keys, [-1]))
        first = tf.math.unsorted_segment_min(tf.range(size), group, size)
        is_first = tf.gather(first, group) == tf.range(size)
        used &= tf.reshape(is_first, tf.shape(used))
        counts = sparse_rows.contributions(used, keep, contribution_clip, self.rows.dtype)
        rows = tf.reshape(scale_records(self.rows, factors), [-1, d])
        places, counts = tf.reshape(self.ids, [-1]), tf.reshape(counts, [-1])
        return sparse_rows.with_counts(places, rows, counts, self._num_rows)

    def explicit(self) -> tf.Tensor:
        n, d = tf.shape(self.ids)[0], self._given.shape[-1]
        ids = tf.cast(self.ids, tf.int64)
        ids += tf.range(tf.cast(n, tf.int64))[:, None] * self._num_rows
        table = tf.math.unsorted_segment_sum(
            tf.reshape(self.rows, [-1, d]),
            tf.reshape(ids, [-1]),
            tf.cast(n, tf.int64) * self._num_rows,
        )
        return tf.reshape(table, [-1, self._num_rows, d])

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        if not isinstance(other, Rows):
            return None
        ids = tf.concat([self.ids, tf.cast(other.ids, self.ids.dtype)], 1)
        return Rows(ids, tf.concat([self.rows, other.rows], 1), self._num_rows)

    def inner(self, other: "PerRecordGradient") -> tf.Tensor:
        # A product knows its inner product with rows. Two forms of one kind are merged instead.
        return super().inner(other) if isinstance(other, Rows) else other.inner(self)


def _sums(rows: tf.Tensor, places: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Returns [number, d], the sums of the rows [m, d] of each place.

    Args:
        rows: In the order of their places.
        places: int32 [m], in 0 .. number - 1, none less than the one before.
        number: How many places there are.
    """
    if is_compiled_by_xla() or tf.config.get_visible_devices("GPU"):
        return tf.math.unsorted_segment_sum(rows, places, number)
    # The result ends with the last place that has a row, so one behind all others gets zeros.
    rows = tf.concat([rows, tf.zeros([1, rows.shape[-1]], rows.dtype)], 0)
    return tf.math.segment_sum(rows, tf.concat([places, [number]], 0))[:-1]
