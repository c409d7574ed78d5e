"""Gradients of all records with respect to one variable, in forms from which norms and clipped sums
come cheaply.

Bu et al. 2022 (arXiv:2210.00038) call this book-keeping: the gradient of a record is rarely needed
itself. Where a layer multiplies its input by a matrix it is a product of two things that
backpropagation has at hand anyway. Both its norm and the clipped sum over records come from those.
"""

import abc
import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding
from tfdp.numerics.norms import drop_records as drop_records
from tfdp.numerics.norms import (
    not_negative,
    scale_records,
    segment_sum,
    weighted_sum,
)
from tfdp.numerics.norms import to_accumulate as to_accumulate
from tfdp.query import sparse_rows


class PerRecordGradient(abc.ABC):
    """The gradients of n records with respect to one variable.

    Edge cases:
        The norm of a record whose gradient is not finite is not finite. Such records get the factor
        zero, and then contribute exactly nothing to a sum.
    """

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Returns the squared l2 norm of every record's gradient, [n], float32 or float64.

        Guarantees:
            No less than, in exact arithmetic, the squared norm of what `weighted_sum` adds up for
            the record, divided by its factor. The rounding of each product with the factor is not
            included: `tfdp.numerics.rounding.down` allows for it.
        """

    @abc.abstractmethod
    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        """Returns sum_i factors[i] * gradient_i, of the variable's shape; `factors` is [n]."""

    @abc.abstractmethod
    def explicit(self) -> tf.Tensor:
        """Returns all gradients, [n, ...]: for small variables, or where there is no other way."""

    def scaled(self, scales: tf.Tensor) -> "PerRecordGradient":
        """Returns the gradients times numbers of the variable's shape, not negative."""
        return Explicit(self.explicit() * scales)

    def weighted_rows(
        self, factors: tf.Tensor, keep: tf.Tensor, contribution_clip: float
    ) -> tf.IndexedSlices:
        """Returns sum_i factors[i] * gradient_i of a table as rows with counts
        (`tfdp.query.sparse_rows`).

        Args:
            factors: As in `weighted_sum`.
            keep: bool [n]; a record at which it is false counts in no row.
            contribution_clip: Bound on the l2 norm of what a record adds to the counts.
        """
        gradients = self.explicit()
        used = tf.reduce_any(tf.not_equal(gradients, 0), axis=2)
        counts = sparse_rows.contributions(used, keep, contribution_clip, gradients.dtype)
        size, rows = gradients.shape[1], self.weighted_sum(factors)
        return sparse_rows.with_counts(tf.range(size), rows, tf.reduce_sum(counts, 0), size)

    def segment_squared_norms(
        self, mask: tf.Tensor, ids: tf.Tensor, num_segments: int | tf.Tensor
    ) -> tf.Tensor:
        """Returns, [num_segments], the squared norms of sums of gradients.

        Args:
            mask: bool [n]; false leaves a record out.
            ids: int32 [n]: the segment that a record adds to.
            num_segments: How many segments there are.
        """
        squares, magnitudes = self._explicit_segments(mask, ids, num_segments)
        return rounding.with_product_error(squares, magnitudes)

    def _explicit_segments(self, mask, ids, num_segments):
        """Returns squared norms of sums of gradients that are added as they are, and magnitudes."""
        sums = Explicit(segment_sum(self.explicit(), mask, ids, num_segments)).squared_norms()
        magnitudes = segment_sum(self.magnitudes(), mask, ids, num_segments)
        counts = segment_sum(tf.ones_like(ids, sums.dtype), mask, ids, num_segments)
        roundings = counts + rounding.additions(self.summands(), sums.dtype) + 4
        errors = roundings * rounding.unit(sums.dtype) * magnitudes
        return rounding.with_error(sums, errors), magnitudes

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        """Returns the gradients of groups of consecutive records, [n / size]: sums of factors[i] *
        gradient_i.

        Args:
            factors: [n]; where one is zero, the record takes no part in its group, whatever it is.
                None: all are one.
            size: How many records a group has; it divides n.
        """
        scaled = scale_records(self.explicit(), factors)
        return Explicit(tf.reduce_sum(tf.reshape(scaled, [-1, size, *scaled.shape[1:]]), 1))

    def magnitudes(self) -> tf.Tensor:
        """Returns [n]: no less than the sum of the norms of the products that each gradient
        consists of.

        Rounding errors of the gradient are in proportion to this sum. Where products cancel, it is
        larger than the gradient's norm.
        """
        return tf.sqrt(self.squared_norms())

    def summands(self) -> int | tf.Tensor:
        """Returns the largest number of products that are added up in a coordinate of a
        gradient.
        """
        return 1

    def inner(self, other: "PerRecordGradient") -> tf.Tensor:
        """Returns, [n], the inner product of each record's gradient here with that in `other`, or a
        little more: no less than the exact one.
        """
        left, right = self.explicit(), other.explicit()
        return self.enlarged_inner(other, *rounding.sums(left * right, range(1, left.shape.rank)))

    def enlarged_inner(
        self, other: "PerRecordGradient", product: tf.Tensor, error: float | tf.Tensor
    ) -> tf.Tensor:
        """Returns an inner product plus a bound on its error, `error` u of which are the sum's."""
        numbers = [rounding.as_number(x.summands(), product.dtype) for x in (self, other)]
        roundings = error + sum(numbers) + 8
        sizes = self.magnitudes() * other.magnitudes()
        return product + roundings * rounding.unit(product.dtype) * sizes

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        """Returns the sum with other gradients of the same variable, or None where it has no better
        form than `Sum`.
        """
        return None


class Explicit(PerRecordGradient):
    """Gradients that have been computed, [n, ...].

    Args:
        gradients: Tensor of float32 or float64.
    """

    def __init__(self, gradients: tf.Tensor):
        self._gradients = gradients

    def squared_norms(self) -> tf.Tensor:
        return sum_of_squares(self._gradients)

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        # A matrix product: XLA's reductions of broadcast products are many times slower.
        scaled = scale_records(self._gradients, factors)
        return weighted_sum(tf.ones_like(factors, scaled.dtype), scaled)

    def explicit(self) -> tf.Tensor:
        return self._gradients

    def segment_squared_norms(
        self, mask: tf.Tensor, ids: tf.Tensor, num_segments: int | tf.Tensor
    ) -> tf.Tensor:
        return self._explicit_segments(mask, ids, num_segments)[0]

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        return Explicit(self._gradients + other.explicit())


class Sum(PerRecordGradient):
    """Sums of gradients of different forms, for a weight that is used in several ways.

    Args:
        parts: The forms; cross terms are computed from pairs.
    """

    def __init__(self, parts: Sequence[PerRecordGradient]):
        self._parts = list(parts)

    def squared_norms(self) -> tf.Tensor:
        by_part = [part.squared_norms() for part in self._parts]
        if rounding.products_are_rounded(by_part[0].dtype):
            # Where parts cancel, inner products of rounded factors do not show how much is left.
            norm = tf.add_n([tf.sqrt(squares) for squares in by_part])
            return rounding.enlarged(tf.square(norm), 2 * len(by_part) + 2)
        squares = tf.add_n(by_part)
        pairs = [a.inner(b) for a, b in itertools.combinations(self._parts, 2)]
        squares = not_negative(squares + 2 * tf.add_n(pairs))
        # Parts may cancel, but the rounding errors of adding them up, here and in the sum, do not.
        magnitudes, u = self.magnitudes(), rounding.unit(squares.dtype)
        squares += len(self._parts) ** 2 * u * tf.square(magnitudes)
        return rounding.with_error(squares, u * magnitudes)

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        return combine([part.grouped(factors, size) for part in self._parts])

    def magnitudes(self) -> tf.Tensor:
        return tf.add_n([part.magnitudes() for part in self._parts])

    def summands(self) -> int | tf.Tensor:
        return sum(part.summands() for part in self._parts)

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        return tf.add_n([part.weighted_sum(factors) for part in self._parts])

    def explicit(self) -> tf.Tensor:
        return tf.add_n([part.explicit() for part in self._parts])


def combine(parts: Sequence[PerRecordGradient]) -> PerRecordGradient:
    """Returns the gradient with respect to a variable that is used several times."""
    explicit = [part for part in parts if isinstance(part, Explicit)]
    remaining = [*explicit[:1], *(part for part in parts if part not in explicit[:1])]
    result: list[PerRecordGradient] = []
    for part in remaining:
        for index, earlier in enumerate(result):
            merged = earlier.merged(part)
            if merged is not None:
                result[index] = merged
                break
        else:
            result.append(part)
    return result[0] if len(result) == 1 else Sum(result)
