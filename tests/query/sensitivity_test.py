"""No record moves an un-noised sum by more than the event says, and the noise is what it says."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tests.query.broken import (
    CLIP,
    ClipsEachLeaf,
    ClipsInL2,
    CountsByHowMuch,
    CountsInFull,
    DoesNotBoundTheWeight,
    DoublesTheClip,
    HalvesTheNoise,
    IgnoresTheWeightInItsEvent,
    JointlyClipsUnscaledNorms,
    LetsNaNThrough,
    NegativeWeights,
    NoisesOneLeaf,
    NormalisesTheLargestLeaf,
    RepeatsTheNoise,
    SkipsOneGroup,
    SkipsTheClip,
)
from tfdp import query as tfdp_query
from tfdp.events import LaplaceSumEvent
from tfdp.factorizations import BinaryTree, ToeplitzFactorization
from tfdp.query import WeightedRecord
from tfdp.query.adaptive_clip import AdaptiveClipSampleState
from tfdp.query.structure import flatten_up_to

TOLERANCE = 1e-5
PART = {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}
PAIR = [PART, np.zeros(2)]
VARIABLES = [tf.zeros([2, 2]), tf.zeros([2])]
WEIGHTED = WeightedRecord(PART, np.zeros(()))
WEIGHTED_PAIR = [WEIGHTED, np.zeros(2)]


def _gaussian(clip=CLIP, stddev=2.0):
    return tfdp_query.GaussianSumQuery(clip, stddev)


def _adaptive(clip=CLIP, z=2.0):
    return tfdp_query.QuantileAdaptiveClipSumQuery(clip, z, 0.5, 0.2, 0.75, 4.0)


def _correlated():
    factorization = ToeplitzFactorization((1.0, 0.5), (1.0, -0.25))
    return tfdp_query.CorrelatedGaussianSumQuery(CLIP, 2.0, factorization, 9, 3, PART)


def _tree():
    return tfdp_query.TreeResidualSumQuery(CLIP, 2.0, BinaryTree(), 9, 3, PART)


def _discretized():
    scale = 1e8
    bound = tfdp_query.rounded_norm_bound(scale * CLIP, 8)
    integers = tfdp_query.DiscreteGaussianSumQuery(bound, 2.0 * bound)
    return tfdp_query.DiscretizedSumQuery(integers, CLIP, scale)


QUERIES = {
    "discretized": (_discretized(), PART),
    "tree_residual": (_tree(), PART),
    "tree_cumulative": (tfdp_query.TreeCumulativeSumQuery(_tree()), PART),
    "restarted": (
        tfdp_query.RestartQuery(_tree(), tfdp_query.PeriodicTimeRestartIndicator(1e9)),
        PART,
    ),
    "correlated": (_correlated(), PART),
    "scaled": (tfdp_query.ScaleThenPrivatizeQuery(_gaussian(), PART), PART),
    "gaussian_sum": (_gaussian(), PART),
    "normalized": (tfdp_query.NormalizedQuery(_gaussian(), 4.0), PART),
    "gaussian_average": (
        tfdp_query.GaussianAverageQuery(CLIP, noise_multiplier=2.0, denominator=4.0),
        PART,
    ),
    "weighted_sum": (tfdp_query.WeightedSumQuery(_gaussian(), 2.0), WEIGHTED),
    "weighted_average": (
        tfdp_query.WeightedAverageQuery(
            CLIP, noise_multiplier=2.0, denominator=4.0, max_weight=0.5
        ),
        WEIGHTED,
    ),
    "nested": (tfdp_query.NestedQuery([_gaussian(), _gaussian(0.5)]), PAIR),
    "nested_sum": (tfdp_query.NestedSumQuery([_gaussian(), _gaussian(0.5)]), PAIR),
    "nested_weighted": (
        tfdp_query.NestedQuery([tfdp_query.WeightedSumQuery(_gaussian(), 3.0), _gaussian(0.5)]),
        WEIGHTED_PAIR,
    ),
    "nested_in_nested": (
        tfdp_query.NestedQuery(
            [tfdp_query.NestedQuery(dict.fromkeys(PART, _gaussian())), _gaussian(9.0)]
        ),
        PAIR,
    ),
    "normalized_of_nested": (
        tfdp_query.NormalizedQuery(tfdp_query.NestedQuery([_gaussian(), _gaussian(0.5)]), 4.0),
        PAIR,
    ),
    "arranged": (
        tfdp_query.ArrangedQuery(tfdp_query.NestedQuery([_gaussian(), _gaussian(0.5)]), [1, 0]),
        VARIABLES,
    ),
    "joint_clipping": (tfdp_query.JointClippingQuery([0.25, 4.0], CLIP, 2.0), PAIR),
    "weighted_joint_clipping": (
        tfdp_query.WeightedSumQuery(tfdp_query.JointClippingQuery([0.25, 4.0], CLIP, 2.0), 2.0),
        WeightedRecord(PAIR, np.zeros(())),
    ),
    "per_layer_uniform": (tfdp_query.per_layer(VARIABLES, CLIP, 2.0, 4.0), VARIABLES),
    "per_layer_dimension": (
        tfdp_query.per_layer(VARIABLES, CLIP, 2.0, 4.0, split="dimension"),
        VARIABLES,
    ),
    "adaptive_clip": (_adaptive(), PART),
    "nested_adaptive": (
        tfdp_query.NestedQuery([tfdp_query.NormalizedQuery(_adaptive(), 4.0), _adaptive(0.5)]),
        PAIR,
    ),
    "weighted_adaptive": (tfdp_query.WeightedSumQuery(_adaptive(), 2.0), WEIGHTED),
    "quantile_estimator": (
        tfdp_query.QuantileEstimatorQuery(1.0, 0.5, 0.2, 0.75, 4.0),
        np.zeros(()),
    ),
    "automatic_clipping": (tfdp_query.AutomaticClippingSumQuery(CLIP, 2.0, 1e-9), PART),
    "laplace": (tfdp_query.LaplaceSumQuery(CLIP, 2.0), PART),
    "scheduled": (tfdp_query.ScheduledGaussianSumQuery(CLIP, 2.0), PART),
}
BROKEN_BOUNDS = {
    "skips_the_clip": (SkipsTheClip(CLIP, 2.0), PART),
    "doubles_the_clip": (DoublesTheClip(CLIP, 2.0), PART),
    "clips_each_leaf": (ClipsEachLeaf(CLIP, 2.0), PART),
    "lets_nan_through": (LetsNaNThrough(CLIP, 2.0), PART),
    "does_not_bound_the_weight": (DoesNotBoundTheWeight(_gaussian(), 2.0), WEIGHTED),
    "negative_weights": (NegativeWeights(_gaussian(), 2.0), WEIGHTED),
    "ignores_the_weight_in_its_event": (IgnoresTheWeightInItsEvent(_gaussian(), 2.0), WEIGHTED),
    "skips_one_group": (SkipsOneGroup([_gaussian(), _gaussian(0.5)]), PAIR),
    "counts_in_full": (CountsInFull(CLIP, 2.0, 0.5, 0.2, 0.75, 4.0), PART),
    "counts_by_how_much": (CountsByHowMuch(CLIP, 2.0, 0.5, 0.2, 0.75, 4.0), PART),
    "clips_in_l2": (ClipsInL2(CLIP, 2.0), PART),
    "normalises_the_largest_leaf": (NormalisesTheLargestLeaf(CLIP, 2.0), PART),
    "joint_norm_not_scaled": (JointlyClipsUnscaledNorms([0.25, 4.0], CLIP, 2.0), PAIR),
    "broken_part": (tfdp_query.NestedQuery([_gaussian(), DoublesTheClip(0.5, 2.0)]), PAIR),
    "broken_numerator": (tfdp_query.NormalizedQuery(DoublesTheClip(CLIP, 2.0), 4.0), PART),
}
BROKEN_NOISE = {
    "noises_one_leaf": (NoisesOneLeaf(CLIP, 2.0), PART),
    "halves_the_noise": (HalvesTheNoise(CLIP, 2.0), PART),
    "repeats_the_noise": (RepeatsTheNoise(CLIP, 2.0), PART),
    "noises_one_leaf_of_a_part": (
        tfdp_query.NestedQuery([NoisesOneLeaf(CLIP, 2.0), _gaussian()]),
        PAIR,
    ),
}


def _parts(query, event, structure):
    """Yields (event, part of the sum) for every Gaussian sum in the query."""
    if isinstance(query, tfdp_query.NormalizedQuery):
        yield from _parts(query.numerator_query, event, structure)
    elif isinstance(query, tfdp_query.ArrangedQuery):
        yield from _parts(query.query, event, structure)
    elif isinstance(query, tfdp_query.NestedQuery):
        parts = flatten_up_to(query.queries, structure)
        queries = tf.nest.flatten(query.queries)
        for sub_query, sub_event, part in zip(queries, event.events, parts, strict=True):
            yield from _parts(sub_query, sub_event, part)
    elif isinstance(structure, AdaptiveClipSampleState):
        # The event counts the sum in units of the clip.
        clip = getattr(query, "sum_query", query).initial_l2_norm_clip
        yield event.events[0], tf.nest.map_structure(lambda leaf: leaf / clip, structure.sum)
        yield event.events[1], structure.unclipped
    elif isinstance(query, tfdp_query.ScheduledGaussianSumQuery):
        yield event, tf.nest.map_structure(lambda leaf: leaf / query.l2_norm_clip, structure)
    else:
        yield event, structure


def _moved(query, state, neighbor):
    """Returns, for every Gaussian sum, l2 distance / l2_norm_bound: at most one if all is well.

    The state of joint clipping holds scaled groups, and its bound is on those.
    """
    event = query.derive_event(query.initial_global_state())
    # Sums of a broken query may overflow; what is not a number has moved too far.
    with np.errstate(invalid="ignore", over="ignore"):
        difference = tf.nest.map_structure(
            lambda a, b: np.nan_to_num(
                np.float64(a) - np.float64(b), nan=1e100, posinf=1e100, neginf=1e100
            ),
            state,
            neighbor,
        )
    return [
        _distance(np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(part)]), bound_of)
        for bound_of, part in _parts(query, event, difference)
    ]


def _distance(difference, event):
    """Returns the distance in the norm that the event bounds, in units of the bound."""
    if isinstance(event, LaplaceSumEvent):
        return np.sum(np.abs(difference)) / event.l1_norm_bound
    return np.linalg.norm(difference) / event.l2_norm_bound


def _summation(query):
    """Returns the function from a list of flat float32 records to their un-noised sum."""

    @tf.function(autograph=False)
    def accumulate(state, record):
        return query.accumulate_record(params, state, record)

    params = query.derive_sample_params(query.initial_global_state())

    def total(template, records):
        state = query.initial_sample_state(_unflatten(template, np.zeros(_size(template))))
        for record in records:
            state = accumulate(state, _unflatten(template, record))
        return state

    return total


def _size(template):
    return sum(int(np.prod(leaf.shape)) for leaf in tf.nest.flatten(template))


def _unflatten(template, values):
    leaves, first = [], 0
    for leaf in tf.nest.flatten(template):
        size = int(np.prod(leaf.shape))
        leaves.append(tf.constant(np.reshape(values[first : first + size], leaf.shape), tf.float32))
        first += size
    return tf.nest.pack_sequence_as(template, leaves)


def _records(size):
    # Ordinary values, which reach the bound often, and any float32 at all.
    ordinary = st.sampled_from([0.0, 0.1, -1.0, 3.0, -20.0, 1e4])
    anything = st.floats(width=32, allow_nan=True, allow_infinity=True)
    return st.lists(st.one_of(ordinary, anything), min_size=size, max_size=size)


def check_sensitivity(query, template):
    """Raises an AssertionError if a data set is found where one record moves a sum too far."""
    total = _summation(query)
    records = _records(_size(template))

    @hypothesis.settings(
        max_examples=80,
        database=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(others=st.lists(records, max_size=2), record=records, first=st.booleans())
    def holds(others, record, first):
        with_record = [record, *others] if first else [*others, record]
        moved = _moved(query, total(template, with_record), total(template, others))
        assert np.all(np.less_equal(moved, 1 + TOLERANCE)), moved

    holds()


@pytest.mark.parametrize("query, template", QUERIES.values(), ids=QUERIES)
def test_one_record_moves_the_sum_by_at_most_the_bound(query, template):
    check_sensitivity(query, template)


@pytest.mark.parametrize("query, template", BROKEN_BOUNDS.values(), ids=BROKEN_BOUNDS)
def test_checker_finds_a_broken_bound(query, template):
    with pytest.raises(AssertionError):
        check_sensitivity(query, template)


@pytest.mark.parametrize("query, template", QUERIES.values(), ids=QUERIES)
def test_some_record_attains_every_bound(query, template):
    total = _summation(query)
    empty = total(template, [])
    # Joint clipping has one bound for all groups; every other group has its own.
    moved = _moved(query, total(template, [np.full(_size(template), 50.0)]), empty)
    np.testing.assert_allclose(moved, 1.0, rtol=TOLERANCE)


@pytest.mark.parametrize("query, template", QUERIES.values(), ids=QUERIES)
def test_opposite_records_move_the_sum_by_at_most_twice_the_bound(query, template):
    # The replace-one relation: |r - r'| <= |r| + |r'|, attained by r' = -r where weights allow it.
    total = _summation(query)
    record = np.full(_size(template), 50.0)
    moved = _moved(query, total(template, [record]), total(template, [-record]))
    assert np.all(np.less_equal(moved, 2 * (1 + TOLERANCE)))
    assert max(moved) > 1.9 or "Weighted" in repr(query)


DRAWS = 1000


def check_noise(query, template, check_stddev):
    """Raises an AssertionError unless every leaf of the result has the noise of the event.

    Noise is on the sum; the result is multiplied by the denominator to see it.
    """
    global_state = query.initial_global_state()
    event = query.derive_event(global_state)

    @tf.function(autograph=False)
    def draw():
        empty = query.initial_sample_state(_unflatten(template, np.zeros(_size(template))))
        return query.get_noised_result(empty, global_state)[0]

    draws = [draw() for _ in range(DRAWS)]
    results = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *draws)
    divisor = getattr(query, "denominator", 1.0)
    for part_event, part in _parts(query, event, results):
        leaves = [np.reshape(leaf, [DRAWS, -1]) for leaf in tf.nest.flatten(part)]
        columns = divisor * np.concatenate(leaves, axis=1)
        for column in columns.T:
            check_stddev(column, part_event.noise_stddev)
        correlations = np.corrcoef(columns.T) - np.eye(columns.shape[1])
        assert np.max(np.abs(correlations)) < 6.5 / np.sqrt(DRAWS)


NOISY = [
    "gaussian_sum",
    "gaussian_average",
    "weighted_sum",
    "weighted_average",
    "nested_sum",
    "nested_in_nested",
    "normalized_of_nested",
]


@pytest.mark.parametrize("query, template", [QUERIES[name] for name in NOISY], ids=NOISY)
def test_noise_is_that_of_the_event(query, template, check_stddev):
    check_noise(query, template, check_stddev)


@pytest.mark.parametrize("query, template", BROKEN_NOISE.values(), ids=BROKEN_NOISE)
def test_checker_finds_broken_noise(query, template, check_stddev):
    with pytest.raises(AssertionError):
        check_noise(query, template, check_stddev)
