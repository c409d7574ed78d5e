"""The queries of the conformance tests, their records, and what is compared."""

import collections

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfdp import query as tfdp_query
from tfdp.factorizations import BinaryTree, ToeplitzFactorization
from tfdp.query import WeightedRecord
from tfdp.query.quantile_estimator import QuantileEstimatorSampleState
from tfdp.query.structure import flatten_up_to

CLIP = 1.5
Pair = collections.namedtuple("Pair", ["left", "right"])


def _gaussian(z, clip=CLIP):
    return tfdp_query.GaussianSumQuery(clip, z * clip)


def _exact(z):
    return tfdp_query.GaussianSumQuery(CLIP, z * CLIP, precision="exact")


def _nested_in_nested(z, a, b):
    inner = tfdp_query.NestedQuery({"x": _gaussian(z), "y": _gaussian(z, 0.5)})
    return tfdp_query.NestedQuery((inner, _gaussian(z, 3.0))), ({"x": a, "y": b}, a)


def _normalized_of_nested(z, a, b):
    nested = tfdp_query.NestedQuery({"x": _gaussian(z), "y": _gaussian(z, 0.5)})
    return tfdp_query.NormalizedQuery(nested, 4.0), {"x": a, "y": b}


def _per_layer(z, a, b):
    flat = tf.nest.flatten([a, b])
    return tfdp_query.per_layer(flat, CLIP, z, 4.0, split="dimension"), flat


def _arranged(z, a, b):
    flat = tf.nest.flatten([a, b])
    last = len(flat) - 1
    arrangement = {"y": [last, *range(1, last)], "x": 0}
    nested = tfdp_query.NestedQuery({"x": _gaussian(z), "y": _gaussian(z, 0.5)})
    return tfdp_query.ArrangedQuery(tfdp_query.NormalizedQuery(nested, 4.0), arrangement), flat


def _nested_weighted(z, a, b):
    weighted = tfdp_query.WeightedSumQuery(_gaussian(z), 2.0)
    return tfdp_query.NestedQuery([weighted, _gaussian(z)]), [_weighted_record(a), b]


def _weighted_record(part):
    return WeightedRecord(part, np.zeros(()))


def _adaptive(z, clip=CLIP):
    return tfdp_query.QuantileAdaptiveClipSumQuery(clip, z, 0.5, 0.2, z * 0.3, 4.0)


def _estimator(z, geometric=True):
    return tfdp_query.QuantileEstimatorQuery(CLIP, 0.5, 0.2, z * 0.3, 4.0, geometric)


def _arranged_adaptive(z, a, b):
    flat = tf.nest.flatten([a, b])
    last = len(flat) - 1
    arrangement = {"y": [last, *range(1, last)], "x": 0}
    nested = tfdp_query.NestedQuery({"x": _adaptive(z), "y": _adaptive(z, 0.5)})
    return tfdp_query.ArrangedQuery(tfdp_query.NormalizedQuery(nested, 4.0), arrangement), flat


def _scheduled(z):
    clips = keras.optimizers.schedules.ExponentialDecay(CLIP, 10, 0.5)
    return tfdp_query.ScheduledGaussianSumQuery(clips, z)


def _correlated(z, template):
    factorization = ToeplitzFactorization((1.0, 0.5), (1.0, -0.25, 0.125))
    return tfdp_query.CorrelatedGaussianSumQuery(CLIP, z * CLIP, factorization, 9, 3, template)


def _tree(z, template):
    return tfdp_query.TreeResidualSumQuery(CLIP, z * CLIP, BinaryTree(), 9, 3, template)


def _restarted(z, template):
    indicator = tfdp_query.PeriodicRoundRestartIndicator(2)
    return tfdp_query.RestartQuery(_tree(z, template), indicator)


# Noise multiplier and two structures of arrays -> query, and a template of its records.
DP_QUERIES = {
    "gaussian_sum": lambda z, a, b: (_gaussian(z), a),
    "nested_exact": lambda z, a, b: (
        tfdp_query.NestedQuery([_exact(z), tfdp_query.NormalizedQuery(_exact(z), 4.0)]),
        [a, b],
    ),
    "normalized": lambda z, a, b: (tfdp_query.NormalizedQuery(_gaussian(z), 4.0), a),
    "gaussian_average": lambda z, a, b: (
        tfdp_query.GaussianAverageQuery(CLIP, noise_multiplier=z, denominator=4.0),
        a,
    ),
    "weighted_sum": lambda z, a, b: (
        tfdp_query.WeightedSumQuery(_gaussian(z), 2.0),
        _weighted_record(a),
    ),
    "weighted_average": lambda z, a, b: (
        tfdp_query.WeightedAverageQuery(CLIP, noise_multiplier=z, denominator=4.0, max_weight=2.0),
        _weighted_record(a),
    ),
    "nested": lambda z, a, b: (
        tfdp_query.NestedQuery([_gaussian(z), tfdp_query.NormalizedQuery(_gaussian(z, 0.5), 4.0)]),
        [a, b],
    ),
    "nested_sum": lambda z, a, b: (
        tfdp_query.NestedSumQuery(Pair(_gaussian(z), _gaussian(z, 0.5))),
        Pair(a, b),
    ),
    "nested_of_one": lambda z, a, b: (tfdp_query.NestedQuery(_gaussian(z)), a),
    "nested_in_nested": _nested_in_nested,
    "nested_weighted": _nested_weighted,
    "normalized_of_nested": _normalized_of_nested,
    "joint_clipping": lambda z, a, b: (
        tfdp_query.JointClippingQuery({"x": 0.5, "y": 4.0}, CLIP, z),
        {"x": a, "y": b},
    ),
    "normalized_joint_clipping": lambda z, a, b: (
        tfdp_query.NormalizedQuery(tfdp_query.JointClippingQuery([2.0, 1.0], CLIP, z), 4.0),
        [a, b],
    ),
    "per_layer": _per_layer,
    "arranged": _arranged,
    "adaptive_clip": lambda z, a, b: (_adaptive(z), a),
    "nested_adaptive": lambda z, a, b: (
        tfdp_query.NestedQuery([_adaptive(z), tfdp_query.NormalizedQuery(_gaussian(z), 4.0)]),
        [a, b],
    ),
    "normalized_adaptive": lambda z, a, b: (tfdp_query.NormalizedQuery(_adaptive(z), 4.0), a),
    "arranged_adaptive": _arranged_adaptive,
    "quantile_estimator": lambda z, a, b: (_estimator(z), np.zeros(())),
    "nested_estimator": lambda z, a, b: (
        tfdp_query.NestedQuery([_estimator(z, False), _gaussian(z)]),
        [np.zeros(()), a],
    ),
    "automatic_clipping": lambda z, a, b: (
        tfdp_query.AutomaticClippingSumQuery(CLIP, z * CLIP, 0.3),
        a,
    ),
    "scheduled": lambda z, a, b: (_scheduled(z), a),
    "correlated": lambda z, a, b: (_correlated(z, a), a),
    "nested_correlated": lambda z, a, b: (
        tfdp_query.NestedQuery([_correlated(z, a), tfdp_query.NormalizedQuery(_gaussian(z), 4.0)]),
        [a, b],
    ),
    "normalized_correlated": lambda z, a, b: (
        tfdp_query.NormalizedQuery(_correlated(z, [a, b]), 4.0),
        [a, b],
    ),
    "tree_residual": lambda z, a, b: (_tree(z, a), a),
    "tree_cumulative": lambda z, a, b: (tfdp_query.TreeCumulativeSumQuery(_tree(z, a)), a),
    "nested_restarted": lambda z, a, b: (
        tfdp_query.NestedQuery([_restarted(z, a), _gaussian(z)]),
        [a, b],
    ),
    "scaled": lambda z, a, b: (tfdp_query.ScaleThenPrivatizeQuery(_gaussian(z), a), a),
    "nested_scaled": lambda z, a, b: (
        tfdp_query.NestedQuery([tfdp_query.ScaleThenPrivatizeQuery(_adaptive(z), a), _gaussian(z)]),
        [a, b],
    ),
    "laplace": lambda z, a, b: (tfdp_query.LaplaceSumQuery(CLIP, z * CLIP), a),
    "nested_laplace": lambda z, a, b: (
        tfdp_query.NestedQuery([tfdp_query.LaplaceSumQuery(CLIP, z), _gaussian(z)]),
        [a, b],
    ),
}
PLAIN_QUERIES = {
    "no_privacy_sum": lambda z, a, b: (tfdp_query.NoPrivacySumQuery(), a),
    "no_privacy_average": lambda z, a, b: (tfdp_query.NoPrivacyAverageQuery(), a),
    "no_privacy_estimator": lambda z, a, b: (
        tfdp_query.NoPrivacyQuantileEstimatorQuery(CLIP, 0.5, 0.2),
        np.zeros(()),
    ),
}
ALL_QUERIES = DP_QUERIES | PLAIN_QUERIES

# Both have two leaves or more, and leaves of rank 0, 1 and 2.
PART_A = {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}
PART_B = (np.zeros(3), [np.zeros(()), Pair(np.zeros(1), np.zeros(2))])

all_queries = pytest.mark.parametrize("build", ALL_QUERIES.values(), ids=ALL_QUERIES)
dp_queries = pytest.mark.parametrize("build", DP_QUERIES.values(), ids=DP_QUERIES)
few_examples = hypothesis.settings(max_examples=4)


def structures():
    leaves = st.sampled_from([(), (1,), (3,), (2, 2)]).map(np.zeros)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.sampled_from("cab"), inner, min_size=1, max_size=3),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=4,
    )


def make_record(template, rng, dtype=tf.float64):
    # Some records are below every clip norm, some above.
    size = rng.choice([0.01, 1.0, 100.0])
    return tf.nest.map_structure(
        lambda leaf: tf.constant(size * rng.normal(size=leaf.shape), dtype), template
    )


def make_records(template, seed, count=5):
    rng = np.random.default_rng(seed)
    return [make_record(template, rng) for _ in range(count)]


def template_of_results(query, template):
    """Weights are not in results."""
    if isinstance(query, tfdp_query.NestedQuery):
        parts = flatten_up_to(query.queries, template)
        results = [
            template_of_results(q, p)
            for q, p in zip(tf.nest.flatten(query.queries), parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(query.queries, results)
    return template.record if isinstance(template, WeightedRecord) else template


def accumulated(query, records, template):
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(as_float64(template))
    for record in records:
        state = query.accumulate_record(params, state, record)
    return state


def as_float64(template):
    return tf.nest.map_structure(lambda leaf: tf.constant(leaf, tf.float64), template)


def as_numpy(structure):
    return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(structure)]


def assert_close(actual, expected, rtol=1e-9):
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(as_numpy(actual), as_numpy(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol)


def preprocess_one(query, record):
    """Returns a preprocessed record with the structure of results."""
    params = query.derive_sample_params(query.initial_global_state())
    return _leaves_of(query, query.preprocess_record(params, record))


def _leaves_of(query, preprocessed):
    """Returns what of a preprocessed record has the structure of results: no counts."""
    if query.needs_separate_records:
        return query.get_noised_result(preprocessed, query.initial_global_state())[0]
    if isinstance(query, tfdp_query.NormalizedQuery):
        return _leaves_of(query.numerator_query, preprocessed)
    if isinstance(query, tfdp_query.ScaleThenPrivatizeQuery):
        return _leaves_of(query.inner_query, preprocessed)
    if isinstance(query, tfdp_query.ArrangedQuery):
        leaves = tf.nest.flatten(_leaves_of(query.query, preprocessed))
        places = tf.nest.flatten(query.arrangement)
        return [leaves[places.index(place)] for place in range(len(places))]
    if isinstance(query, tfdp_query.NestedQuery):
        parts = flatten_up_to(query.queries, preprocessed)
        queries = tf.nest.flatten(query.queries)
        parts = [_leaves_of(q, part) for q, part in zip(queries, parts, strict=True)]
        return tf.nest.pack_sequence_as(query.queries, parts)
    if isinstance(query, tfdp_query.QuantileAdaptiveClipSumQuery):
        return preprocessed.sum
    if isinstance(preprocessed, QuantileEstimatorSampleState):
        return tf.cast(preprocessed.below, preprocessed.zero.dtype)
    return preprocessed
