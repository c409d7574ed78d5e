"""tfdp.query.wrapping: queries around others take records as those do."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.factorizations import BinaryTree
from tfdp.query import (
    ArrangedQuery,
    CorrelatedGaussianSumQuery,
    DPQuery,
    GaussianSumQuery,
    HistogramQuery,
    NestedQuery,
    NormalizedQuery,
    PeriodicRoundRestartIndicator,
    QuantileAdaptiveClipSumQuery,
    RestartQuery,
    ScaleThenPrivatizeQuery,
    TreeCumulativeSumQuery,
    TreeRangeSumQuery,
    TreeResidualSumQuery,
    WeightedSumQuery,
)
from tfdp.query.wrapping import WrappingQuery

RECORD = [tf.constant([3.0, 4.0]), tf.constant([0.0])]
TREE = TreeResidualSumQuery(1.0, 0.0, BinaryTree(), 9, 3, RECORD)
ADAPTIVE = QuantileAdaptiveClipSumQuery(1.0, 0.0, 0.5, 0.2, 0.3, 4.0)
INDICATOR = PeriodicRoundRestartIndicator(2)
WRAPPED = {
    "normalized": NormalizedQuery(ADAPTIVE, 4.0),
    "arranged": ArrangedQuery(ADAPTIVE, [0, 1]),
    "running": TreeCumulativeSumQuery(TREE),
    "restarted": RestartQuery(TREE, INDICATOR),
}


RANGES = TreeRangeSumQuery(GaussianSumQuery(1.0, 1.0))


@pytest.mark.parametrize(
    "make",
    [lambda inner: ScaleThenPrivatizeQuery(inner, tf.zeros([2])), TreeRangeSumQuery],
    ids=["scaled", "tree"],
)
@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (RANGES, "nodes of a tree"),
        (NormalizedQuery(NormalizedQuery(RANGES, 2.0), 2.0), "nodes of a tree"),
        (ArrangedQuery(NestedQuery([RANGES, GaussianSumQuery(1.0, 1.0)]), [0, 1]), "nodes of a"),
        (WeightedSumQuery(RANGES, 1.0), "nodes of a tree"),
        (WeightedSumQuery(GaussianSumQuery(1.0, 1.0), 1.0), "no weights"),
        (HistogramQuery(1.0), "result of numbers"),
    ],
    ids=["tree", "averaged", "arranged", "weighted_tree", "weighted", "histogram"],
)
def test_what_cannot_be_undone_or_weighed_goes_outside(make, inner, message):
    # It failed when the result was made, or with the first record.
    with pytest.raises(TypeError, match=message):
        make(inner)


def test_results_of_other_queries_are_like_their_records():
    queries = [*WRAPPED.values(), NestedQuery([ADAPTIVE]), WeightedSumQuery(ADAPTIVE, 1.0)]
    assert all(query.has_results_like_records for query in queries)
    assert not HistogramQuery(1.0).has_results_like_records


@pytest.mark.parametrize("query", WRAPPED.values(), ids=WRAPPED)
def test_records_and_events_are_those_of_the_inner_query(query):
    assert isinstance(query, WrappingQuery)
    state = query.initial_global_state()
    inner, inner_state = query._inner, query._inner_state(state)
    params = query.derive_sample_params(state)
    norms = tf.constant([[5.0]])
    for mine, its in [
        (query.preprocess_record(params, RECORD), inner.preprocess_record(params, RECORD)),
        (query.scale_factors(params, norms), inner.scale_factors(params, norms)),
        (query.norm_statistics(params, norms), inner.norm_statistics(params, norms)),
    ]:
        for left, right in zip(tf.nest.flatten(mine), tf.nest.flatten(its), strict=True):
            np.testing.assert_array_equal(left, right)
    assert query.derive_event(state) == inner.derive_event(inner_state)
    assert list(query.derive_metrics(state)) == list(inner.derive_metrics(inner_state))
    for name, value in vars(WrappingQuery).items():
        # All that says what kind of query it is.
        if isinstance(value, property) and name != "_inner":
            assert getattr(query, name) == getattr(inner, name)
    assert query.norm_groups(RECORD) == inner.norm_groups(RECORD)


@pytest.mark.parametrize(
    ("query", "rebuilt"),
    [
        (NormalizedQuery(WeightedSumQuery(GaussianSumQuery(1.0, 1.0), 2.0), 4.0), NormalizedQuery),
        (ArrangedQuery(WeightedSumQuery(GaussianSumQuery(1.0, 1.0), 2.0), [0]), ArrangedQuery),
    ],
)
def test_weights_go_to_the_inner_query(query, rebuilt):
    weighed = query.weighed(0.5)
    assert type(weighed) is rebuilt and not weighed.takes_weights
    plain = query._with_inner(GaussianSumQuery(1.0, 1.0))
    assert plain.weighed(0.5) is plain


def test_a_restarted_query_stays_one_around_another():
    other = CorrelatedGaussianSumQuery(1.0, 1.0, BinaryTree(), 9, 3, RECORD)
    assert WRAPPED["restarted"]._with_inner(other) == RestartQuery(other, INDICATOR)
    assert WRAPPED["running"]._with_inner(TREE) == WRAPPED["running"]


def test_nothing_that_describes_a_query_is_left_out():
    described = {name for name, value in vars(DPQuery).items() if isinstance(value, property)}
    assert described <= set(vars(WrappingQuery))
