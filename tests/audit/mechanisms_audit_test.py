"""Every query, by what it releases with a canary and without: no more than its event claims.

Each query is run many times on two neighbouring data sets, through all of its steps: the record is
preprocessed, accumulated and released with noise. With its noise the audit must not exceed the
claim; with a fraction of the noise, under the same claim, it must. A new query without a case
fails the first test.
"""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tfdp import query as q
from tfdp.accounting import PRVAccountant
from tfdp.audit import epsilon_lower_bound
from tfdp.events import (
    FixedOrderSampling,
    FullBatchSampling,
    NeighboringRelation,
    SampledEvent,
)
from tfdp.factorizations import BinaryTree, ToeplitzFactorization

ZERO = NeighboringRelation.ZERO_OUT
DRAWS, DELTA, CONFIDENCE = 200, 0.05, 1 - 1e-9
# Of the noise, in the variant that is to be found.
TOO_LITTLE = 1 / 40

FAR = np.full(2, 1e3, "float32")  # Much longer than any clip.
ONE, HERE = np.array([1, 0]), np.array([1.0, 0.0], "float32")
THERE, BACK = np.array([-0.5, 0.5], "float32"), np.array([1.0, -1.0], "float32")
GAUSSIAN, WEIGHT = q.GaussianSumQuery, np.float32(1e3)


def total(result, state):
    return tf.add_n([tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tf.nest.flatten(result)])


def correlated(z):
    factorization = ToeplitzFactorization((1.0, 0.5), (1.0, -0.25))
    return q.CorrelatedGaussianSumQuery(1.0, z, factorization, 9, 9, tf.zeros(2))


def tree(z):
    return q.TreeResidualSumQuery(1.0, 2 * z, BinaryTree(), 9, 9, tf.zeros(2))


def discretized(z):
    bound = q.rounded_norm_bound(1e4, 2)
    return q.DiscretizedSumQuery(q.DiscreteGaussianSumQuery(bound, z * bound), 1.0, 1e4)


# From noise in units of the sensitivity to a query, the record that is more, and what is looked at.
SUMS = {
    "GaussianSumQuery": (lambda z: GAUSSIAN(1.0, z), FAR),
    "ExactGaussianSumQuery": (lambda z: q.ExactGaussianSumQuery(1.0, z), FAR),
    "GaussianAverageQuery": (lambda z: q.GaussianAverageQuery(1.0, stddev=z, denominator=4.0), FAR),
    "ScaleThenPrivatizeQuery": (
        lambda z: q.ScaleThenPrivatizeQuery(GAUSSIAN(1.0, z), tf.zeros(2)),
        FAR,
    ),
    "NormalizedQuery": (lambda z: q.NormalizedQuery(GAUSSIAN(1.0, z), 4.0), FAR),
    "WeightedSumQuery": (
        lambda z: q.WeightedSumQuery(GAUSSIAN(1.0, 2 * z), 2.0),
        q.WeightedRecord(FAR, WEIGHT),
    ),
    "WeightedAverageQuery": (
        lambda z: q.WeightedAverageQuery(1.0, stddev=2 * z, denominator=4.0, max_weight=2.0),
        q.WeightedRecord(FAR, WEIGHT),
    ),
    "NestedQuery": (lambda z: q.NestedQuery([GAUSSIAN(1.0, z), GAUSSIAN(3.0, 3 * z)]), [FAR, FAR]),
    "NestedSumQuery": (
        lambda z: q.NestedSumQuery([GAUSSIAN(1.0, z), GAUSSIAN(3.0, 3 * z)]),
        [FAR, FAR],
    ),
    "ArrangedQuery": (
        lambda z: q.ArrangedQuery(q.NestedQuery([GAUSSIAN(1.0, z), GAUSSIAN(3.0, 3 * z)]), [1, 0]),
        [FAR, FAR],
    ),
    "JointClippingQuery": (lambda z: q.JointClippingQuery([0.5, 1.0], 1.0, z), [FAR, FAR]),
    "QuantileAdaptiveClipSumQuery": (
        lambda z: q.QuantileAdaptiveClipSumQuery(1.0, z, 0.5, 0.2, 3 * z, 4.0),
        FAR,
    ),
    "AutomaticClippingSumQuery": (lambda z: q.AutomaticClippingSumQuery(1.0, z, 1e-9), FAR),
    "ScheduledGaussianSumQuery": (lambda z: q.ScheduledGaussianSumQuery(1.0, z), FAR),
    "CorrelatedGaussianSumQuery": (correlated, FAR),
    "TreeResidualSumQuery": (tree, FAR),
    "TreeCumulativeSumQuery": (lambda z: q.TreeCumulativeSumQuery(tree(z)), FAR),
    "RestartQuery": (
        lambda z: q.RestartQuery(tree(z), q.PeriodicTimeRestartIndicator(1e9)),
        FAR,
    ),
    "DiscretizedSumQuery": (discretized, FAR),
    "DiscreteGaussianSumQuery": (lambda z: q.DiscreteGaussianSumQuery(40.0, 40 * z), 40 * ONE),
    "LaplaceSumQuery": (lambda z: q.LaplaceSumQuery(1.0, z), FAR),
    "TreeRangeSumQuery": (
        # A record of norm 1 has a tree of norm sqrt(2) over its two levels.
        lambda z: q.TreeRangeSumQuery.build_central_gaussian_query(np.sqrt(2), np.sqrt(2) * z),
        HERE,
    ),
}
SELECTIONS = {
    "QuantileEstimatorQuery": (
        lambda z: q.QuantileEstimatorQuery(1.0, 0.5, 0.2, z / 2, 4.0),
        np.float32(9.0),
        lambda result, state: state.current_estimate,
    ),
    # Its one row is always selected.
    "SparseEmbeddingSumQuery": (
        lambda z: q.SparseEmbeddingSumQuery(1.0, 1.5 * z, 1.0, 1.5 * z, threshold=-1e9),
        FAR[None],
        lambda result, state: tf.reduce_sum(result.values),
    ),
    "AboveThresholdQuery": (
        lambda z: q.AboveThresholdQuery(0.5, 1 / z, 1.0),
        HERE,
        lambda result, state: tf.cast(result.above[0], tf.float32),
    ),
}
# Where the data set is not just the record or nothing: (make, records with it, without).
NEIGHBOURS = {
    "ExponentialMechanismQuery": (
        lambda z: q.ExponentialMechanismQuery(1 / z, 1.0),
        [THERE, BACK],
        [THERE],
    ),
    "ReportNoisyMaxQuery": (
        lambda z: q.ReportNoisyMaxQuery(1 / z, 1.0),
        [THERE, BACK],
        [THERE],
    ),
    "PartitionSelectionQuery": (
        lambda z: q.PartitionSelectionQuery(1 / z, 0.01),
        [HERE, HERE],
        [HERE],
    ),
    # So many records that the count is hardly ever left out.
    "HistogramQuery": (lambda z: q.HistogramQuery(1 / z, 1, 0.01), [HERE] * 21, [HERE] * 20),
    "GaussianHistogramQuery": (
        lambda z: q.GaussianHistogramQuery(z, 1, 0.01),
        [HERE] * 21,
        [HERE] * 20,
    ),
    "QuantileSelectionQuery": (
        lambda z: q.QuantileSelectionQuery((0.0, 2.0), 0.5, 0.6 / z),
        [np.float32(v) for v in (3.0, 1.0, 1.0)],
        [np.float32(1.0)] * 2,
    ),
    "DistributedDiscreteGaussianSumQuery": (
        lambda z: q.DistributedDiscreteGaussianSumQuery(40.0, 40 * z / np.sqrt(2), 2),
        [40 * ONE, 0 * ONE],
        [0 * ONE, 0 * ONE],
    ),
    "DistributedSkellamSumQuery": (
        lambda z: q.DistributedSkellamSumQuery(40.0, 40.0, 40 * z / np.sqrt(2), 2),
        [40 * ONE, 0 * ONE],
        [0 * ONE, 0 * ONE],
    ),
    "DistributedSkellamAverageQuery": (
        lambda z: q.DistributedSkellamAverageQuery(40.0, 40.0, 40 * z / np.sqrt(2), 2.0, 2),
        [40 * ONE, 0 * ONE],
        [0 * ONE, 0 * ONE],
    ),
}
NOT_PRIVATE = {"NoPrivacySumQuery", "NoPrivacyAverageQuery", "NoPrivacyQuantileEstimatorQuery"}
# Twice the sensitivity: epsilon is below 1.1 at DELTA for every one of them, and what 200 draws
# prove where nothing hides the record is 1.37.
NOISE = 2.0
SAMPLED = {
    **dict.fromkeys(
        ("CorrelatedGaussianSumQuery", "TreeResidualSumQuery", "TreeCumulativeSumQuery"),
        FixedOrderSampling(1, 9, 0),
    ),
    "RestartQuery": FixedOrderSampling(1, 9, 0),
    **{name: FullBatchSampling() for name in NEIGHBOURS if name.startswith("Distributed")},
}
CASES = [*SUMS, *SELECTIONS, *NEIGHBOURS]


def case(name):
    """Returns (make, records with the canary, without it, what is looked at)."""
    if name in NEIGHBOURS:
        make, inside, outside = NEIGHBOURS[name]
        return make, inside, outside, total
    make, record, look = (*SUMS[name], total) if name in SUMS else SELECTIONS[name]
    return make, [record], [], look


def test_every_query_has_a_case():
    found = {
        name
        for name in q.__all__
        if inspect.isclass(getattr(q, name))
        and issubclass(getattr(q, name), q.DPQuery)
        and not inspect.isabstract(getattr(q, name))
    }
    assert found == {*CASES, *NOT_PRIVATE}, "Say how a new query is audited."
    for name in NOT_PRIVATE - {"NoPrivacyQuantileEstimatorQuery"}:
        event = getattr(q, name)().derive_event(())
        assert PRVAccountant().compose(event).get_epsilon(DELTA) == np.inf


def scores(query, records, template, look, draws):
    """Returns what is looked at in independent runs."""
    start = query.initial_global_state()

    def draw(_):
        params = query.derive_sample_params(start)
        state = query.initial_sample_state(template)
        for record in records:
            state = query.accumulate_record(params, state, record)
        result, after, _ = query.get_noised_result(state, start)
        return look(result, after)

    @tf.function(autograph=False)
    def drawn():
        return tf.map_fn(draw, tf.range(draws), fn_output_signature=tf.float32)

    return drawn().numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_query_releases_no_more_than_it_claims_and_less_noise_is_found(name):
    make, inside, outside, look = case(name)
    inside, outside = (
        [tf.nest.map_structure(tf.constant, record) for record in part]
        for part in (inside, outside)
    )
    template = tf.nest.map_structure(tf.zeros_like, inside[0])
    event = make(NOISE).derive_event(make(NOISE).initial_global_state())
    if name in SAMPLED:
        event = SampledEvent(SAMPLED[name], event, ZERO)
    claim = PRVAccountant().compose(event).get_epsilon(DELTA)
    assert 0 < claim < 1.1
    # Without noise, one data set has either answer: the other's is only twice as likely.
    draws = 3 * DRAWS if name == "QuantileSelectionQuery" else DRAWS

    def bound(query):
        runs = (scores(query, records, template, look, draws) for records in (inside, outside))
        return epsilon_lower_bound(*runs, DELTA, CONFIDENCE)

    assert bound(make(NOISE)) <= claim
    assert bound(make(NOISE * TOO_LITTLE)) > claim
