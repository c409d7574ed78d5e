"""Norms of sums of products in extended precision, against which computed ones are held."""

import numpy as np
import tensorflow as tf


def long(vector):
    """Returns an array in extended precision, in which products of float32 are exact."""
    return np.asarray(vector, np.longdouble)


def exact_products(left, right):
    """Returns sum_t outer(left_t, right_t), [n, p, q], in extended precision."""
    return np.stack([long(a).T @ long(b) for a, b in zip(left, right, strict=True)])


def check_squares(squares, exact, magnitude, loosest=None):
    """Asserts that squared norms are no less than those of gradients, plus what rounding adds."""
    u = 2.0**-24 if squares.dtype == tf.float32 else 2.0**-53
    exact_norms = np.sqrt(np.sum(long(exact) ** 2, axis=tuple(range(1, exact.ndim))))
    norms = np.sqrt(long(squares))
    # Half an u less for the square root here, and for extended precision.
    least = exact_norms + u * long(magnitude)
    assert (norms >= least * (1 - 1e-17)).all(), (norms / least, exact_norms)
    if loosest is not None:
        assert (norms <= exact_norms * (1 + loosest)).all(), norms / exact_norms


def magnitude_of(left, right):
    return np.sum(np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1), axis=-1)


def that_vanish(size):
    """Returns float32 vectors, not negative, of which a loop with one or 16 totals loses all that
    is less than 1.
    """
    few, many, apart = (np.full(size, 0.99 * 2.0**-24, np.float32) for _ in range(3))
    few[:1] = many[:16] = apart[:: size // 16] = 1
    return [few, many, apart]
