"""Trees of sums: their nodes, ranges, what a record can move, TensorFlow Privacy's values."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.audit import mu_lower_bound
from tfdp.events import GaussianSharesSumEvent, GaussianSumEvent
from tfdp.query import (
    GaussianSumQuery,
    LaplaceSumQuery,
    NoPrivacyAverageQuery,
    TreeRangeSumQuery,
)


def _tree(query, leaves):
    global_state = query.initial_global_state()
    state = query.preprocess_record(
        query.derive_sample_params(global_state), tf.constant(leaves, tf.float32)
    )
    return query.get_noised_result(state, global_state)[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 27, 243, 256])
@pytest.mark.parametrize("arity", [2, 3, 5])
def test_every_node_is_the_sum_of_the_leaves_below_it(size, arity):
    leaves = np.arange(1.0, size + 1)
    tree = _tree(TreeRangeSumQuery(GaussianSumQuery(1e9, 0.0), arity), leaves)
    depth = tree.shape[0]
    assert arity ** (depth - 1) >= size > arity ** (depth - 2)
    for level in range(depth):
        span = arity ** (depth - 1 - level)
        sums = [leaves[i * span : (i + 1) * span].sum() for i in range(arity**level)]
        assert tree[level].numpy() == pytest.approx(np.array(sums))


@pytest.mark.parametrize(("size", "arity"), [(1, 2), (8, 2), (7, 3), (16, 4), (10, 9)])
def test_ranges_are_the_sums_of_few_nodes(size, arity):
    query = TreeRangeSumQuery(GaussianSumQuery(1e9, 0.0), arity)
    leaves = 2.0 ** np.arange(size)
    tree = _tree(query, leaves)
    # A tree of ones counts the nodes that a range is made of.
    ones = tf.RaggedTensor.from_row_lengths(tf.ones_like(tree.flat_values), tree.row_lengths())
    for start in range(size + 1):
        for stop in range(start, size + 1):
            assert float(query.range_sum(tree, start, stop)) == leaves[start:stop].sum()
            most = 2 * (arity - 1) * max(1, tree.shape[0] - 1)
            assert float(query.range_sum(ones, start, stop)) <= most
    with pytest.raises(ValueError, match="must be within"):
        query.range_sum(tree, 0, 10**6)


@pytest.mark.parametrize(
    ("arity", "expected"),
    [(2, [1, 1, 0, 1, 0, 0, 0]), (3, [1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])],
)
def test_values_of_tensorflow_privacy(arity, expected):
    query = TreeRangeSumQuery.build_central_gaussian_query(10.0, 0.0, arity)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    assert params == (arity, 10.0)
    record = query.preprocess_record(params, tf.constant([1.0, 0.0, 0.0, 0.0]))
    assert record.numpy().tolist() == expected
    levels = query.get_noised_result(record, state)[0].to_list()
    assert [x for level in levels for x in level] == expected
    assert [len(level) for level in levels] == [arity**i for i in range(len(levels))]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_a_record_moves_all_levels_together_by_at_most_the_bound(scale):
    rng = np.random.default_rng(0)
    gaussian = TreeRangeSumQuery.build_central_gaussian_query(1.5, 1.0)
    laplace = TreeRangeSumQuery(LaplaceSumQuery(1.5, 1.0))
    for _ in range(20):
        record = tf.constant(scale * rng.normal(size=5), tf.float32)
        params = gaussian.derive_sample_params(gaussian.initial_global_state())
        assert np.linalg.norm(np.float64(gaussian.preprocess_record(params, record))) <= 1.5
        params = laplace.derive_sample_params(laplace.initial_global_state())
        assert np.abs(np.float64(laplace.preprocess_record(params, record))).sum() <= 1.5
    assert gaussian.derive_event(gaussian.initial_global_state()) == GaussianSumEvent(1.5, 1.0)


def test_noise_is_on_every_node_and_fresh_in_a_graph(check_stddev):
    query = TreeRangeSumQuery.build_central_gaussian_query(1.0, 2.0)
    state, sample = query.initial_global_state(), query.initial_sample_state(tf.zeros([512]))
    graph = tf.function(lambda: query.get_noised_result(sample, state)[0].flat_values)
    one, other = graph().numpy(), graph().numpy()
    assert len(one) == 1023 and not np.any(one == other)
    check_stddev(one, 2.0)
    for level in np.split(one, [127, 255, 511])[1:]:
        assert np.std(level) == pytest.approx(2.0, rel=7 / np.sqrt(2 * len(level)))


def test_audit_finds_no_more_than_the_claim_and_finds_noise_that_is_too_small():
    """A record of norm 1 has a tree of norm 2 over four levels: mu = 2 / stddev."""

    def bound(stddev):
        query = TreeRangeSumQuery.build_central_gaussian_query(2.0, stddev)
        state = query.initial_global_state()
        record = query.preprocess_record(
            query.derive_sample_params(state), tf.constant([1.0] + [0.0] * 7)
        )
        draw = tf.function(lambda s: query.get_noised_result(s, state)[0].flat_values)
        runs = [
            [float(np.sum(draw(s).numpy() * record.numpy())) for _ in range(1000)]
            for s in (record, tf.zeros_like(record))
        ]
        return mu_lower_bound(*runs, confidence=1 - 1e-7)

    assert bound(2.0) <= 1.0
    assert bound(0.8) > 1.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TreeRangeSumQuery(GaussianSumQuery(1.0, 1.0), 1), ValueError, "at least 2"),
        (lambda: TreeRangeSumQuery(3), TypeError, "must be a DPQuery"),
        (lambda: TreeRangeSumQuery(NoPrivacyAverageQuery()), ValueError, "must be a sum"),
        (
            lambda: TreeRangeSumQuery.build_central_gaussian_query(0.0, 1.0),
            ValueError,
            "l2_norm_clip",
        ),
        (
            lambda: TreeRangeSumQuery.build_central_gaussian_query(1.0, -1.0),
            ValueError,
            "stddev",
        ),
    ],
)
def test_arguments_are_checked(make, error, message):
    with pytest.raises(error, match=message):
        make()


def _integer_tree(query, records):
    state = query.initial_sample_state(tf.zeros([len(records[0])], tf.int32))
    params = query.derive_sample_params(query.initial_global_state())
    for record in records:
        state = query.accumulate_record(params, state, tf.constant(record, tf.int32))
    return query.get_noised_result(state, query.initial_global_state())


@pytest.mark.parametrize(
    ("arity", "expected"),
    [(2, [1, 1, 0, 1, 0, 0, 0]), (3, [1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])],
)
def test_values_of_tensorflow_privacy_for_shares_of_noise(arity, expected):
    build = TreeRangeSumQuery.build_distributed_discrete_gaussian_query
    query = build(10.0, 0.0, arity)
    params = query.derive_sample_params(query.initial_global_state())
    record = query.preprocess_record(params, tf.constant([1, 0, 0, 0], tf.int32))
    np.testing.assert_array_equal(record.sum, expected)
    tree, _, _ = _integer_tree(query, [[0, 0, 0, 0]])
    assert tree.to_list() == [[0]] + [[0] * arity**level for level in range(1, tree.shape[0])]


@pytest.mark.parametrize("arguments", [(0.0, 1.0, 2), (1.0, -1.0, 2), (1.0, 1.0, 1)])
def test_shares_of_noise_are_refused_as_by_tensorflow_privacy(arguments):
    with pytest.raises(ValueError, match="must be"):
        TreeRangeSumQuery.build_distributed_discrete_gaussian_query(*arguments)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "7", None])
def test_a_number_of_leaves_that_is_none_is_refused(bad):
    build = TreeRangeSumQuery.build_distributed_discrete_gaussian_query
    with pytest.raises((TypeError, ValueError), match="max_leaves must be"):
        build(1.0, 1.0, max_leaves=bad)


def test_shares_of_noise_on_every_node_are_charged(check_stddev):
    # 300 leaves, 16 records of nothing: noise of 16 shares on each of 1023 nodes.
    query = TreeRangeSumQuery.build_distributed_discrete_gaussian_query(
        4.0, 3.0, min_contributors=16, max_leaves=300
    )
    tree, _, event = _integer_tree(query, [[0] * 300] * 16)
    check_stddev(tree.flat_values.numpy(), 3.0 * 4)
    assert event == GaussianSharesSumEvent(4.0, 3.0, 16, 1023)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Fewer records"):
        _integer_tree(query, [[0] * 300] * 15)
    # A record is one in ten levels of the tree, so its norm is the root of ten.
    assert _integer_tree(query, [[1] + [0] * 299] * 16)[0].shape[0] == 10
    with pytest.raises(tf.errors.InvalidArgumentError, match="exceeds l2_norm_bound"):
        _integer_tree(query, [[2] + [0] * 299] * 16)
