"""Gradients that are products of what a layer received and the gradient at its output."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.forms.rows import Rows
from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding
from tfdp.numerics.norms import (
    drop_records,
    not_negative,
    scale_records,
    segment_sum,
    squares_from_grams,
    to_accumulate,
    vanished,
)
from tfdp.numerics.shapes import reshape_records

# Cost, in multiply-adds of a large matrix product, of reading or writing one number, and of a
# multiply-add in batched products (benchmarks/cost_model.py).
_TRAFFIC = 12.0
_BATCHED = 1.3
# Taken as the number of positions if that is not known when the graph is built.
_USUAL_POSITIONS = 128
# From this ratio of rows to columns on, a product of many rows is faster if its result is turned.
_TALL = 8


def gram_is_cheaper(positions: int | None, rows: int, columns: int) -> bool:
    """Returns whether norms of products are cheaper from Gram matrices than from gradients.

    Explicit gradients of rows x columns numbers are written once and read twice, for norm and sum,
    at the arithmetic of the sum. Gram matrices cost two products and three passes over positions x
    positions numbers, and the sum comes on top.
    """
    t = _USUAL_POSITIONS if positions is None else positions
    explicit = _BATCHED * t * rows * columns + 3 * _TRAFFIC * rows * columns
    gram = _BATCHED * t * t * (rows + columns) + 3 * _TRAFFIC * t * t + t * rows * columns
    return gram < explicit


def matrix_gradient(
    left: tf.Tensor, right: tf.Tensor, gram: bool | None = None
) -> "Outer | Product":
    """Returns the gradients of a matrix [p, q] from inputs [n, ..., p] and gradients [n, ..., q].

    Args:
        left: float16, bfloat16, float32 or float64.
        right: Likewise.
        gram: As for `Product`, where there are several positions.
    """
    left, right = to_accumulate(left), to_accumulate(right)
    if left.shape.rank == 2:
        return Outer(left, right)
    return Product(
        _as_positions(left), _as_positions(right), [left.shape[-1], right.shape[-1]], gram=gram
    )


def _as_positions(tensor: tf.Tensor) -> tf.Tensor:
    """Returns [n, 1, t, p] from [n, ..., p]."""
    number = tensor.shape[1:-1].num_elements()
    positions = tf.reduce_prod(tf.shape(tensor)[1:-1]) if number is None else number
    return reshape_records(tensor, [1, positions, tensor.shape[-1]])


def _joined(tensor: tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
    """Returns [n / size, h, size * t, p] from [n, h, t, p]."""
    _, h, t, p = tensor.shape
    positions = tf.shape(tensor)[2] if t is None else t
    groups = tf.reshape(tensor, tf.stack([-1, size, h, positions, p]))
    flat = tf.reshape(tf.transpose(groups, [0, 2, 1, 3, 4]), tf.stack([-1, h, size * positions, p]))
    known = t is not None and isinstance(size, int)
    return tf.ensure_shape(flat, [None, h, size * t if known else None, p])


class Outer(PerRecordGradient):
    """Gradients of a matrix that are outer products, whose norm is |left| |right|.

    Args:
        left: [n, p], float32 or float64.
        right: [n, q].
    """

    def __init__(self, left: tf.Tensor, right: tf.Tensor):
        self._left, self._right = left, right

    def as_product(self) -> "Product":
        """Returns the same gradients as sums over one position."""
        left, right = self._left, self._right
        return Product(left[:, None, None], right[:, None, None], [left.shape[1], right.shape[1]])

    def squared_norms(self) -> tf.Tensor:
        left, right = (sum_of_squares(x) for x in (self._left, self._right))
        # One of the two factors is multiplied by a clipping factor, and this product is rounded.
        return rounding.with_product_error(rounding.enlarged(left * right, 3))

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        left, right = drop_records(self._left, factors), scale_records(self._right, factors)
        return tf.matmul(left, right, transpose_a=True)

    def explicit(self) -> tf.Tensor:
        return self._left[:, :, None] * self._right[:, None, :]

    def segment_squared_norms(
        self, mask: tf.Tensor, ids: tf.Tensor, num_segments: int | tf.Tensor
    ) -> tf.Tensor:
        left, right = (tf.matmul(x, x, transpose_b=True) for x in (self._left, self._right))
        together = (ids[:, None] == ids[None]) & mask[:, None] & mask[None]
        rows = tf.reduce_sum(tf.where(together, left * right, tf.zeros_like(left)), 1)
        squares = segment_sum(rows, mask, ids, num_segments)
        # As in `squares_from_grams`, with |a_t| |a_s| |b_t| |b_s| as a bound on all terms.
        magnitudes = segment_sum(self.magnitudes(), mask, ids, num_segments)
        numbers = rounding.count_of(self._left, 1) + rounding.count_of(self._right, 1)
        error = rounding.additions(numbers + 3 * tf.shape(ids)[0] + 8, squares.dtype)
        squares += error * rounding.unit(squares.dtype) * tf.square(magnitudes)
        squares = rounding.enlarged(not_negative(squares), 4)
        return rounding.with_product_error(squares, magnitudes)

    def scaled(self, scales: tf.Tensor) -> "PerRecordGradient":
        return ScaledOuter(self._left, self._right, scales)

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        return self.as_product().grouped(factors, size)

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        return self.as_product().merged(other)

    def inner(self, other: "PerRecordGradient") -> tf.Tensor:
        return self.as_product().inner(other)


class ScaledOuter(PerRecordGradient):
    """Outer products times numbers s_pq, whose squared norm is sum_pq left_p^2 s_pq^2 right_q^2.

    Args:
        left: [n, p], float32 or float64.
        right: [n, q].
        scales: s, [p, q], not negative.
    """

    def __init__(self, left: tf.Tensor, right: tf.Tensor, scales: tf.Tensor):
        self._outer, self._scales = Outer(left, right), scales
        self._left, self._right = left, right

    def squared_norms(self) -> tf.Tensor:
        dtype = self._left.dtype
        # No square of a largest number overflows or vanishes after the division by it.
        (left, of_left), (right, of_right) = _over_largest(self._left), _over_largest(self._right)
        scales, of_scales = _over_largest(tf.reshape(self._scales, [1, -1]))
        left, right, scales = (tf.square(x) for x in (left, right, scales))
        p, q = rounding.count_of(left, 1), rounding.count_of(right, 1)
        # Squares and products may still vanish beside the largest.
        columns = tf.matmul(left, tf.reshape(scales, tf.shape(self._scales)))
        columns += rounding.vanished(3 * p, dtype)
        squares, error = rounding.sums(columns * (right + rounding.vanished(1, dtype)), [1])
        # All terms are positive: the relative error is the sum of those of the roundings. 32 are
        # for quotients and squares, and for the product of the sum with the scales.
        error += rounding.additions(p, dtype) + 32
        squares = rounding.enlarged(squares + rounding.vanished(q, dtype), error)
        # The largest number times the smallest can only overflow, or vanish, if all three do.
        largest = tf.stack([of_left, of_right, of_scales * tf.ones_like(of_left)])
        least, middle, most = tf.unstack(tf.sort(largest, axis=0))
        norms = tf.sqrt(squares) * (least * most * middle)
        squares = rounding.enlarged(tf.square(norms), 8) + rounding.vanished(1, dtype)
        return rounding.with_product_error(squares)

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        return self._outer.weighted_sum(factors) * self._scales

    def explicit(self) -> tf.Tensor:
        return self._outer.explicit() * self._scales


def _over_largest(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rows divided by their largest magnitudes, [n, k], and these, [n], never 0."""
    largest = tf.reduce_max(tf.abs(rows), 1) + rounding.vanished(1, rows.dtype)
    return rows / largest[:, None], largest


def _norms_in(gram: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the norms of vectors of so many numbers, no less than the exact ones, [n, t], from
    their inner products, [n, t, t].
    """
    squares = rounding.enlarged(tf.linalg.diag_part(gram), rounding.additions(count, gram.dtype))
    # One more rounding is that of the root.
    return rounding.enlarged(tf.sqrt(squares + vanished(count, gram.dtype)), 1)


class Product(PerRecordGradient):
    """Gradients that are sums over positions of outer products.

        gradient_i[h] = sum_t outer(left[i, h, t], right[i, h, t])

    A dense layer has one h (it stands for axes of the kernel that input and output share) and as
    many positions t as its input has beside records and features. Either the gradients are made, or
    the norm comes from Gram matrices (Li et al. 2021, arXiv:2110.05679, section 4):

        |gradient|^2 = sum_{t,s} (left_t . left_s) (right_t . right_s).

    Args:
        left: [n, h, t, p], float32 or float64.
        right: [n, h, t, q].
        kernel_axes: Sizes of the variable's axes in the order of h, p and q.
        permutation: From that order to the variable's, as for `tf.transpose`.
        shape: Of the variable, where some of these axes are one in it.
        gram: Whether to use Gram matrices; by default where `gram_is_cheaper`.
    """

    def __init__(
        self,
        left: tf.Tensor,
        right: tf.Tensor,
        kernel_axes: Sequence[int],
        permutation: Sequence[int] | None = None,
        gram: bool | None = None,
        shape: Sequence[int] | None = None,
    ):
        self._shape = None if shape is None else tuple(shape)
        self._left, self._right = left, right
        self._axes = tuple(kernel_axes)
        self._permutation = tuple(range(len(self._axes)) if permutation is None else permutation)
        _, self._h, self._positions, self._p = left.shape
        self._q = right.shape[-1]
        self._gram = gram_is_cheaper(self._positions, self._p, self._q) if gram is None else gram
        self._products: Explicit | None = None
        self._grams: list[tf.Tensor] | None = None

    def _restore(self, products: tf.Tensor) -> tf.Tensor:
        """Returns [m, *variable.shape] from [m, h * p * q] or [m, h, p, q]."""
        products = tf.reshape(products, [-1, *self._axes])
        if self._permutation != tuple(range(len(self._axes))):
            products = tf.transpose(products, [0, *(1 + axis for axis in self._permutation)])
        return products if self._shape is None else tf.reshape(products, [-1, *self._shape])

    def _restored(self, product: tf.Tensor) -> tf.Tensor:
        """Returns [*variable.shape] from [h * p * q] or [h, p, q], likewise."""
        if product.shape != self._axes:
            product = tf.reshape(product, self._axes)
        if self._permutation != tuple(range(len(self._axes))):
            product = tf.transpose(product, self._permutation)
        return product if self._shape is None else tf.reshape(product, self._shape)

    @staticmethod
    def _flat(tensor: tf.Tensor) -> tf.Tensor:
        # TensorFlow's batched products of higher rank are slower, and some are faulty
        # (`tfdp.gradients.onednn`).
        _, h, *matrix = tensor.shape
        if h == 1:
            return tf.squeeze(tensor, 1)
        if None not in matrix and 0 not in matrix:
            return tf.reshape(tensor, [-1, *matrix])
        shape = tf.shape(tensor)
        return tf.reshape(tensor, [shape[0] * shape[1], shape[2], tensor.shape[3]])

    def _made(self) -> Explicit:
        """Returns the gradients, [n, h * p * q]; the same tensor each time."""
        if self._products is None:
            products = tf.matmul(self._flat(self._left), self._flat(self._right), transpose_a=True)
            self._products = Explicit(tf.reshape(products, [-1, self._h * self._p * self._q]))
        return self._products

    def _made_grams(self) -> list[tf.Tensor]:
        """Returns the Gram matrices of both factors, [n * h, t, t]; the same tensors each time."""
        if self._grams is None:
            factors = self._flat(self._left), self._flat(self._right)
            self._grams = [tf.matmul(x, x, transpose_b=True) for x in factors]
        return self._grams

    def squared_norms(self) -> tf.Tensor:
        if not self._gram:
            return self._made().squared_norms()
        squares = squares_from_grams(*self._made_grams(), self._p, self._q)
        if self._h == 1:
            return squares
        return rounding.enlarged(*rounding.sums(tf.reshape(squares, [-1, self._h]), [1]))

    def grouped(self, factors: tf.Tensor | None, size: int | tf.Tensor) -> "PerRecordGradient":
        # The positions of a group are those of its records, one after another.
        left = _joined(drop_records(self._left, factors), size)
        right = _joined(scale_records(self._right, factors), size)
        return self._like(left, right)

    def magnitudes(self) -> tf.Tensor:
        if not self._gram or rounding.products_are_rounded(self._left.dtype):
            # sum_t |left_t| |right_t| <= |left| |right|
            return tf.sqrt(sum_of_squares(self._left) * sum_of_squares(self._right))
        # The norms are at hand, on the diagonals. A factor may be as wide as a vocabulary.
        numbers = zip(self._made_grams(), (self._p, self._q), strict=True)
        left, right = (_norms_in(gram, count) for gram, count in numbers)
        count = rounding.count_of(self._left[..., 0], 1)
        terms = tf.reshape(left * right, tf.stack([tf.shape(self._left)[0], count]))
        return rounding.enlarged(*rounding.sums(terms, [1]))

    def summands(self) -> int | tf.Tensor:
        return rounding.count_of(self._left[..., 0], -1)

    def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
        if not self._gram:
            return self._restored(self._made().weighted_sum(factors))
        left, right = drop_records(self._left, factors), scale_records(self._right, factors)
        if self._h == 1:
            left, right = tf.reshape(left, [-1, self._p]), tf.reshape(right, [-1, self._q])
            if self._p >= _TALL * self._q:
                product = tf.transpose(tf.matmul(right, left, transpose_a=True))
                return self._restored(product)
        else:
            left = tf.reshape(tf.transpose(left, [1, 0, 2, 3]), [self._h, -1, self._p])
            right = tf.reshape(tf.transpose(right, [1, 0, 2, 3]), [self._h, -1, self._q])
        return self._restored(tf.matmul(left, right, transpose_a=True))

    def explicit(self) -> tf.Tensor:
        return self._restore(self._made().explicit())

    def merged(self, other: "PerRecordGradient") -> "PerRecordGradient | None":
        if isinstance(other, Outer):
            other = other.as_product()
        if not isinstance(other, Product) or self._layout() != other._layout():
            return None
        left = tf.concat([self._left, other._left], 2)
        right = tf.concat([self._right, other._right], 2)
        return self._like(left, right)

    def _like(self, left: tf.Tensor, right: tf.Tensor) -> "Product":
        return Product(left, right, self._axes, self._permutation, shape=self._shape)

    def _layout(self):
        return self._axes, self._permutation, self._shape, self._h, self._p, self._q

    def inner(self, other: "PerRecordGradient") -> tf.Tensor:
        if not isinstance(other, Rows) or len(self._axes) != 2 or self._permutation != (0, 1):
            return super().inner(other)
        # <outer(left_s, right_s), row r in place id> = left_s[id] (right_s . r)
        left, right = self._left[:, 0], self._right[:, 0]
        at_ids = tf.gather(left, other.ids, axis=2, batch_dims=1)
        terms = at_ids * tf.matmul(right, other.rows, transpose_b=True)
        products, error = rounding.sums(terms, [1, 2])
        return self.enlarged_inner(other, products, error + self._q)
