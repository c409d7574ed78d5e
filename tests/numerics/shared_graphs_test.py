"""Functions whose calls share graphs."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.numerics import norms, rounding
from tfdp.numerics.shared_graphs import traced_once


@pytest.fixture
def doubled():
    """Returns a function that multiplies by the error of factors plus two, and what it traced."""
    traced = []

    @traced_once
    def function(tensor, more=0):
        traced.append(tensor.shape)
        return tensor * (2 + more + rounding.factor_error())

    return function, traced


def graph_of(function):
    return tf.function(function, autograph=False)


def test_calls_of_one_kind_are_traced_once(doubled):
    function, traced = doubled
    total = graph_of(lambda x: function(x) + function(x + 1) + function(x[:1]))
    np.testing.assert_allclose(total(tf.constant([1.0, 2.0])), [8, 12])
    assert traced == [(2,), (1,)]
    other = graph_of(lambda x: function(x))
    assert float(other(tf.constant([3.0, 3.0]))[0]) == 6 and len(traced) == 2


def test_other_arguments_are_not_shared(doubled):
    function, traced = doubled
    both = graph_of(lambda x: (function(x), function(x, more=1), function(tf.cast(x, tf.float64))))
    assert [float(y) for y in both(tf.constant(1.0))] == [2, 3, 2]
    assert len(traced) == 3


def test_eagerly_nothing_is_kept(doubled):
    function, traced = doubled
    assert float(function(tf.constant(1.0))) == 2
    assert float(function(tf.constant(1.0))) == 2
    assert len(traced) == 2


def test_another_bound_on_rounding_is_another_graph(doubled, monkeypatch):
    function, traced = doubled
    graph_of(lambda: function(tf.constant(1.0)))()
    monkeypatch.setattr(rounding, "factor_error", lambda: 0.5)
    assert float(graph_of(lambda: function(tf.constant(1.0)))()) == 2.5
    assert len(traced) == 2


@pytest.mark.usefixtures("onednn_has_begun")
def test_norms_from_factors_follow_the_setting(monkeypatch):
    """The bound of a graph from before a change must not be used after it."""
    gram = tf.constant(np.eye(3, dtype=np.float32)[None])

    def squared():
        return float(graph_of(lambda: norms.squares_from_grams(gram, gram, 4, 4))()[0])

    before = squared()
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert squared() > before * 1.005


def test_weighted_sums():
    tensor = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    factors = np.array([0.5, 0.0, 2.0], np.float32)
    actual = norms.weighted_sum(tf.constant(factors), tf.constant(tensor))
    np.testing.assert_allclose(actual, np.tensordot(factors, tensor, 1), rtol=1e-6)
    assert norms.weighted_sum(tf.ones([2]), tf.ones([2])).shape == ()
    assert norms.weighted_sum(tf.ones([2]), tf.ones([2, 0, 3])).shape == (0, 3)
    assert float(norms.weighted_sum(tf.ones([0]), tf.ones([0, 1]))[0]) == 0


def test_a_call_is_kept_where_its_graph_is_not_inlined():
    function = traced_once(lambda tensor: tensor * 2, inlined=False)
    total = graph_of(lambda x: function(x) + function(x + 1))
    assert float(total(tf.constant(1.0))) == 6
    [shared] = total.get_concrete_function(tf.constant(1.0)).graph.as_graph_def().library.function
    assert shared.attr["_noinline"].b


def test_arguments_of_any_rank_and_size_share_a_graph():
    traced = []

    def function(tensors, offset):
        traced.append([t.shape.rank for t in tensors])
        return tf.add_n([tf.reduce_sum(t) for t in tensors]) + offset

    function = traced_once(function, any_shapes=True)
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    total = graph_of(lambda: function([x], 0.0) + function([x[:1]], 0.0) + function([x[0]], 0.0))
    assert float(total()) == 10 + 3 + 3
    assert traced == [[None]]
    assert float(graph_of(lambda: function([x], 1.0))()) == 11 and len(traced) == 2


def test_arguments_of_unknown_rank():
    function = traced_once(lambda tensor: tensor + 1, any_shapes=True)
    graph = tf.function(function, autograph=False, input_signature=[tf.TensorSpec(None)])
    np.testing.assert_array_equal(graph(tf.ones([2, 1])), [[2], [2]])
    np.testing.assert_array_equal(graph(tf.ones([3])), [2, 2, 2])
