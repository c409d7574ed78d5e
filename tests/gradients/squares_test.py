"""tfdp.gradients.squares: sums of squares in one operation, and what XLA does in its place."""

import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.clip_bound_test import DTYPES, VECTORS, exact_sum_of_squares
from tests.numerics.exact import long, that_vanish
from tfdp.gradients.squares import sum_of_squares
from tfdp.numerics import rounding


@tf.function(autograph=False)
def in_a_graph(tensor):
    return sum_of_squares(tensor)


@tf.function(autograph=False, jit_compile=True)
def compiled(tensor):
    return sum_of_squares(tensor)


WAYS = {"eager": sum_of_squares, "graph": in_a_graph, "xla": compiled}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", VECTORS)
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 16), (1000,), (1021,), (3, 1400)])
def test_sums_are_never_too_small_and_hardly_too_large(shape, make, dtype, way):
    rng = np.random.default_rng(0)
    records = np.stack([make(np.prod(shape), rng).reshape(shape) for _ in range(5)]).astype(dtype)
    unit = rounding.unit(tf.as_dtype(dtype))
    for record, square in zip(records, WAYS[way](tf.constant(records)).numpy(), strict=True):
        exact = exact_sum_of_squares(record)
        assert exact <= square <= exact * (1 + (3 * np.prod(shape) + 30) * unit) + 1e-30


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(5003,), (16384, 1), (3, 3, 64, 64)])
def test_numbers_that_vanish_beside_others_count(shape, way):
    vectors = np.sqrt(that_vanish(np.prod(shape)))
    squares = WAYS[way](tf.constant(vectors.reshape([-1, *shape]))).numpy()
    exact = np.sum(long(vectors) ** 2, 1)
    assert (exact <= squares).all() and (squares <= exact * (1 + 1e-4)).all()


def test_plain_norms_of_such_records_are_too_small():
    rng = np.random.default_rng(0)
    records = np.stack([VECTORS[0](1000, rng) for _ in range(20)]).astype("float32")
    plain = tf.square(tf.math.reduce_euclidean_norm(records, 1)).numpy()
    assert any(s < exact_sum_of_squares(r) for r, s in zip(records, plain, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_numbers_without_a_finite_square_are_not_lost(way):
    rows = tf.constant([[1e30, 1.0], [np.inf, 0.0], [np.nan, 1.0], [1e-30, 0.0], [3.0, 4.0]])
    squares = WAYS[way](rows).numpy()
    assert squares[0] == squares[1] == np.inf and np.isnan(squares[2])
    assert 0 < squares[3] < 1e-36 and squares[4] == pytest.approx(25)
    assert WAYS[way](tf.zeros([0, 3])).shape == [0]


def test_each_way_has_the_operation_that_it_is_for():
    def kinds(function):
        graph = function.get_concrete_function(tf.TensorSpec([None, 70])).graph.as_graph_def()
        return {n.op for f in graph.library.function for n in f.node_def}

    assert "EuclideanNorm" in kinds(in_a_graph) and "EuclideanNorm" not in kinds(compiled)


def test_xla_refuses_a_graph_that_was_made_for_no_compiler():
    # Its sums would lose more than the bound of kernels allows.
    graph = tf.function(sum_of_squares, autograph=False).get_concrete_function(tf.ones([3, 5003]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="EuclideanNorm"):
        tf.function(graph, jit_compile=True)(tf.ones([3, 5003]))
