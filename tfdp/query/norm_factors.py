"""Clipping as scaling by functions of norms: one definition for queries and for engines."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.numerics import rounding
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, tensor_of


def squared_norms(leaves: Sequence[tf.Tensor], *, batched: bool) -> list[tf.Tensor]:
    """Returns the squared l2 norm of every leaf: a scalar, or [batch] where leaves are batched.

    Guarantees:
        It is no less than the exact one (`tfdp.numerics.rounding`).

    Edge cases: a NaN or infinity anywhere makes the norm of its record non-finite. So does a finite
    float32 gradient whose square overflows (norm above 1.8e19): it is treated as not finite.
    """
    result = []
    for leaf in leaves:
        record_dtype(leaf)
        axes = range(1, leaf.shape.rank) if batched else None
        result.append(rounding.sum_of_squares(leaf, axes))
    return result


def group_norms(squares: Sequence[tf.Tensor], groups: Sequence[int], num_groups: int) -> tf.Tensor:
    """Returns l2 norms of groups, [..., G], from squared norms and groups of leaves.

    Guarantees:
        Up to the rounding of the square root they are no less than the squares say.
    """
    dtype = tf.float64 if all(s.dtype == tf.float64 for s in squares) else tf.float32
    totals = []
    for group in range(num_groups):
        members = [tf.cast(s, dtype) for s, g in zip(squares, groups, strict=True) if g == group]
        total = tf.add_n(members) if members else tf.zeros_like(squares[0], dtype)
        totals.append(rounding.enlarged(total, len(members)))
    return tf.sqrt(tf.stack(totals, axis=-1))


def clip_factors(l2_norm_clip: float | tf.Tensor, norms: tf.Tensor) -> tf.Tensor:
    """Returns min(1, l2_norm_clip / norm), rounded down, and zero where the norm is not finite.

    Guarantees:
        What is within `norms` is, times its factor, within `l2_norm_clip`: exactly, and also once
        every product with the factor has been rounded. The factor is exactly one for norms up to
        l2_norm_clip (1 - 6e-7); in float64, (1 - 2e-15).
    """
    clip = rounding.down(l2_norm_clip, norms.dtype)
    factors = clip / tf.maximum(norms, clip)
    return tf.where(tf.math.is_finite(norms), factors, tf.zeros([], norms.dtype))


def scale(leaf: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns factor * leaf, and exactly zero where the factor is zero, whatever the leaf holds."""
    dtype = tf.float64 if tf.float64 in (leaf.dtype, factor.dtype) else factor.dtype
    scaled = tf.cast(tf.cast(leaf, dtype) * tf.cast(factor, dtype), leaf.dtype)
    return tf.where(factor > 0, scaled, tf.zeros([], leaf.dtype))


def scale_record(
    query: DPQuery, num_groups: int, params: Structure, record: Structure
) -> Structure:
    """Returns the preprocessed record of a norm-factor query (`DPQuery.norm_groups`).

    Args:
        query: Which it is.
        num_groups: G; a class that is derived from the query's may tell engines that there is none.
        params: From `derive_sample_params`.
        record: A record.
    """
    leaves = [tensor_of(leaf) for leaf in tf.nest.flatten(record)]
    groups = query.norm_groups(record)
    norms = group_norms(squared_norms(leaves, batched=False), groups, num_groups)
    factors = query.scale_factors(params, norms)
    scaled = [scale(leaf, factors[group]) for leaf, group in zip(leaves, groups, strict=True)]
    statistics = query.norm_statistics(params, norms)
    return query.pack_scaled(tf.nest.pack_sequence_as(record, scaled), statistics)


class OneGroupQuery(SumAggregationDPQuery):
    """A query that scales a record, as a whole, by a function of its norm."""

    @property
    def num_norm_groups(self) -> int | None:
        return 1

    def norm_groups(self, template: Structure) -> list[int]:
        return [0] * len(tf.nest.flatten(template))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        return scale_record(self, 1, params, record)
