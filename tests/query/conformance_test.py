"""What every query promises, whatever it computes."""

import collections
import dataclasses
import re

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfdp import query as tfdp_query
from tfdp.events import NonPrivateEvent
from tfdp.factorizations import ToeplitzFactorization
from tfdp.query import WeightedRecord
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
few_examples = hypothesis.settings(max_examples=6)


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


def _random_record(template, rng, dtype=tf.float64):
    # Some records are below every clip norm, some above.
    size = rng.choice([0.01, 1.0, 100.0])
    return tf.nest.map_structure(
        lambda leaf: tf.constant(size * rng.normal(size=leaf.shape), dtype), template
    )


def _records(template, seed, count=5):
    rng = np.random.default_rng(seed)
    return [_random_record(template, rng) for _ in range(count)]


def _result_template(query, template):
    """Weights are not in results."""
    if isinstance(query, tfdp_query.NestedQuery):
        parts = flatten_up_to(query.queries, template)
        results = [
            _result_template(q, p)
            for q, p in zip(tf.nest.flatten(query.queries), parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(query.queries, results)
    return template.record if isinstance(template, WeightedRecord) else template


def _accumulate(query, records, template):
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(_float64(template))
    for record in records:
        state = query.accumulate_record(params, state, record)
    return state


def _float64(template):
    return tf.nest.map_structure(lambda leaf: tf.constant(leaf, tf.float64), template)


def _numpy(structure):
    return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(structure)]


def _assert_close(actual, expected, rtol=1e-9):
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(_numpy(actual), _numpy(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol)


def _preprocess(query, record):
    """Returns a preprocessed record with the structure of results."""
    params = query.derive_sample_params(query.initial_global_state())
    return _leaves_of(query, query.preprocess_record(params, record))


def _leaves_of(query, preprocessed):
    """Returns what of a preprocessed record has the structure of results: no counts."""
    if query.needs_separate_records:
        return query.get_noised_result(preprocessed, query.initial_global_state())[0]
    if isinstance(query, tfdp_query.NormalizedQuery):
        return _leaves_of(query.numerator_query, preprocessed)
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
    return preprocessed


@all_queries
@few_examples
@hypothesis.given(a=structures(), b=structures(), seed=st.integers(0, 10**6), cut=st.integers(0, 5))
def test_merge_equals_accumulate_for_any_split_and_order(build, a, b, seed, cut):
    query, template = build(0.0, a, b)
    records = _records(template, seed)
    expected = _accumulate(query, records, template)
    shuffled = [records[i] for i in np.random.default_rng(seed).permutation(len(records))]
    left = _accumulate(query, shuffled[:cut], template)
    right = _accumulate(query, shuffled[cut:], template)

    _assert_close(_accumulate(query, shuffled, template), expected)
    _assert_close(query.merge_sample_states(left, right), expected)
    _assert_close(query.merge_sample_states(right, left), expected)


@all_queries
@few_examples
@hypothesis.given(a=structures(), b=structures(), seed=st.integers(0, 10**6))
def test_state_of_a_sum_is_the_sum_of_preprocessed_records(build, a, b, seed):
    query, template = build(0.0, a, b)
    if not query.is_sum:
        assert query.num_norm_groups is None
        return
    records = _records(template, seed)
    params = query.derive_sample_params(query.initial_global_state())
    preprocessed = [query.preprocess_record(params, record) for record in records]
    expected = tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *preprocessed)
    _assert_close(_accumulate(query, records, template), expected)


def test_only_the_average_without_privacy_is_not_a_sum():
    not_sums = [
        name for name, build in ALL_QUERIES.items() if not build(0.0, PART_A, PART_B)[0].is_sum
    ]
    assert not_sums == ["no_privacy_average", "no_privacy_estimator"]


@all_queries
@few_examples
@hypothesis.given(a=structures(), b=structures(), seed=st.integers(0, 10**6))
def test_keeps_structure_and_shapes(build, a, b, seed):
    query, template = build(1.0, a, b)
    global_state = query.initial_global_state()
    state = _accumulate(query, _records(template, seed, 1), template)
    result, _, _ = query.get_noised_result(state, global_state)

    expected = _result_template(query, template)
    tf.nest.assert_same_structure(result, expected)
    shapes = [leaf.shape for leaf in tf.nest.flatten(result)]
    assert shapes == [leaf.shape for leaf in tf.nest.flatten(expected)]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@all_queries
def test_keeps_dtype(build, dtype):
    query, template = build(1.0, PART_A, PART_B)
    record = _random_record(template, np.random.default_rng(0), dtype)
    global_state = query.initial_global_state()
    state = query.initial_sample_state(record)
    state = query.accumulate_record(query.derive_sample_params(global_state), state, record)
    result, _, _ = query.get_noised_result(state, global_state)
    assert {leaf.dtype for leaf in tf.nest.flatten(_preprocess(query, record))} == {dtype}
    assert {leaf.dtype for leaf in tf.nest.flatten(result)} == {dtype}


# Joint clipping scales every record; the norm-factor test holds it to float64. Grids are coarser.
@pytest.mark.parametrize(
    "build",
    [
        build
        for name, build in DP_QUERIES.items()
        if not re.search("joint|exact|automatic|estimator", name)
    ],
)
def test_keeps_the_precision_of_float64(build):
    # Norm 10^-3, below every clip: only the weights change the record, and 0.5 is exact.
    query, template = build(0.0, PART_A, PART_B)
    rng = np.random.default_rng(1)
    record = tf.nest.map_structure(lambda leaf: 1e-4 * rng.normal(size=leaf.shape), template)
    half_weights = _map_weighted(lambda r: WeightedRecord(r.record, 0.5), record)
    expected = _map_weighted(
        lambda r: tf.nest.map_structure(lambda leaf: 0.5 * leaf, r.record), record
    )
    _assert_close(_preprocess(query, half_weights), expected, rtol=1e-14)


def _map_weighted(function, structure):
    if isinstance(structure, WeightedRecord):
        return function(structure)
    if isinstance(structure, list):
        return [_map_weighted(function, part) for part in structure]
    return structure


@all_queries
def test_accepts_specs_and_variables_as_template(build):
    query, template = build(0.0, PART_A, PART_B)
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), template)
    variables = tf.nest.map_structure(lambda leaf: tf.Variable(leaf, dtype=tf.float32), template)
    _assert_close(query.initial_sample_state(specs), query.initial_sample_state(variables), 0)


@all_queries
def test_refuses_integer_records(build):
    query, template = build(0.0, PART_A, PART_B)
    if isinstance(query, tfdp_query.NoPrivacySumQuery):
        return  # It has nothing to protect: tests/query/bad_input_test.py.
    integers = tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, tf.int32), template)
    with pytest.raises(TypeError, match="float32 or float64.*int32"):
        query.initial_sample_state(integers)


@all_queries
def test_eager_equals_graph_equals_xla(build):
    query, template = build(0.0, PART_A, np.zeros(3))
    first, second = _records(template, seed=3, count=2)
    global_state = query.initial_global_state()
    seen = []

    def step(first, second):
        params = query.derive_sample_params(global_state)
        empty = query.initial_sample_state(first)
        preprocessed = query.preprocess_record(params, first)
        left = query.accumulate_preprocessed_record(empty, preprocessed)
        right = query.accumulate_record(params, empty, second)
        merged = query.merge_sample_states(left, right)
        result, new_state, event = query.get_noised_result(merged, global_state)
        seen.append((new_state, event))
        tensors = [leaf for leaf in tf.nest.flatten(new_state) if tf.is_tensor(leaf)]
        return preprocessed, left, merged, result, tensors

    eager = step(first, second)
    for jit_compile in (False, True):
        traced = tf.function(step, jit_compile=jit_compile)(first, second)
        for actual, expected in zip(traced, eager, strict=True):
            # An estimate is float32, and XLA has an exponential of its own.
            _assert_close(actual, expected, 1e-6)
    assert [event for _, event in seen] == [query.derive_event(global_state)] * 3
    if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(global_state)):
        assert [state for state, _ in seen] == [global_state] * 3


@all_queries
def test_emits_the_event_of_its_global_state(build):
    query, template = build(1.25, PART_A, PART_B)
    global_state = query.initial_global_state()
    state = _accumulate(query, _records(template, seed=0), template)
    _, new_state, event = query.get_noised_result(state, global_state)
    assert event is not None
    assert event == query.derive_event(global_state)
    # Of steps of a run, but for their place in it.
    following = query.derive_event(new_state)
    assert (event.run_start() or event) == (following.run_start() or following)
    tf.nest.assert_same_structure(new_state, global_state)
    if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(global_state)):
        assert new_state == global_state


@all_queries
def test_empty_sample_gives_an_event_and_noise(build):
    query, template = build(1.0, PART_A, PART_B)
    global_state = query.initial_global_state()
    empty = query.initial_sample_state(_float64(template))
    assert all(np.all(leaf == 0) for leaf in _numpy(empty))

    result, _, event = query.get_noised_result(empty, global_state)
    assert event == query.derive_event(global_state)
    private = event != NonPrivateEvent()
    assert all(np.all(np.isfinite(leaf)) for leaf in _numpy(result))
    if "NoPrivacyQuantile" not in repr(query):
        assert all(np.all((leaf != 0) == private) for leaf in _numpy(result))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@dp_queries
def test_norm_factor_protocol_agrees_with_preprocess_record(build, dtype):
    query, template = build(0.0, PART_A, PART_B)
    if query.num_norm_groups is None:
        assert re.search("Weighted|Estimator|Laplace", repr(query)) or query.needs_separate_records
        with pytest.raises(TypeError, match="not a norm-factor query"):
            query.norm_groups(template)
        return
    rng = np.random.default_rng(5)
    records = [_random_record(template, rng, dtype) for _ in range(6)]
    params = query.derive_sample_params(query.initial_global_state())
    groups = query.norm_groups(template)
    flat = [[leaf.numpy() for leaf in tf.nest.flatten(record)] for record in records]
    assert sorted(set(groups)) == list(range(query.num_norm_groups))
    assert len(groups) == len(flat[0])

    squares = np.zeros((len(records), query.num_norm_groups))
    for row, leaves in enumerate(flat):
        for group, leaf in zip(groups, leaves, strict=True):
            squares[row, group] += np.sum(np.square(leaf.astype(np.float64)))
    factors = query.scale_factors(params, tf.constant(np.sqrt(squares), dtype))
    assert factors.shape == squares.shape
    assert factors.dtype == dtype
    expected = [
        tf.nest.pack_sequence_as(
            template, [leaf * row[g] for g, leaf in zip(groups, leaves, strict=True)]
        )
        for leaves, row in zip(flat, factors.numpy(), strict=True)
    ]

    tolerance = 1e-5 if dtype == tf.float32 else 1e-12
    for record, scaled in zip(records, expected, strict=True):
        _assert_close(_preprocess(query, record), scaled, tolerance)
        np.testing.assert_allclose(  # One record at a time as well: [G] in, [G] out.
            query.scale_factors(params, tf.constant(np.sqrt(squares[0]), dtype)),
            factors[0],
            rtol=1e-6,
        )
    stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *records)
    mapped = tf.vectorized_map(lambda record: _preprocess(query, record), stacked)
    _assert_close(
        mapped, tf.nest.map_structure(lambda *leaves: np.stack(leaves), *expected), tolerance
    )


@dp_queries
def test_scale_factors_are_zero_where_a_norm_is_not_finite(build):
    query, template = build(0.0, PART_A, PART_B)
    if query.num_norm_groups is None:
        return
    params = query.derive_sample_params(query.initial_global_state())
    for group in range(query.num_norm_groups):
        for bad in (np.nan, np.inf):
            norms = np.ones(query.num_norm_groups, np.float32)
            norms[group] = bad
            factors = query.scale_factors(params, tf.constant(norms)).numpy()
            assert factors[group] == 0
            assert np.all(np.isfinite(factors))


def _clipped_together(query, template):
    """Returns, for every leaf of a preprocessed record, the number of the query that clips it."""
    if isinstance(query, tfdp_query.NormalizedQuery):
        return _clipped_together(query.numerator_query, template)
    if isinstance(query, tfdp_query.ArrangedQuery):
        return query.norm_groups(template)
    if not isinstance(query, tfdp_query.NestedQuery):
        return [0] * len(tf.nest.flatten(_result_template(query, template)))
    numbers = []
    parts = flatten_up_to(query.queries, template)
    for sub_query, part in zip(tf.nest.flatten(query.queries), parts, strict=True):
        first = 1 + max(numbers, default=-1)
        numbers += [first + number for number in _clipped_together(sub_query, part)]
    return numbers


# 1e30 is a finite float32 whose square is not.
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@dp_queries
def test_record_that_is_not_finite_contributes_exactly_zero(build, bad):
    query, template = build(0.0, PART_A, PART_B)
    if re.search("Estimator|Laplace", repr(query)) and bad == 1e30:
        return  # They take no squares.
    rng = np.random.default_rng(7)
    good = _random_record(template, rng, tf.float32)
    expected = _numpy(_preprocess(query, good))
    together = _clipped_together(query, template)
    leaves = tf.nest.flatten(good)
    weights = _weight_positions(query, template)
    positions = [i for i in range(len(leaves)) if i not in weights]

    for number, position in enumerate(positions):
        values = np.array(leaves[position])
        values[(0,) * values.ndim] = bad
        record = tf.nest.pack_sequence_as(
            good, [tf.constant(values) if i == position else leaf for i, leaf in enumerate(leaves)]
        )
        for leaf, whole, query_number in zip(
            _numpy(_preprocess(query, record)), expected, together, strict=True
        ):
            if query_number == together[number]:
                assert np.all(leaf == 0)
            else:
                np.testing.assert_array_equal(leaf, whole)


def _weight_positions(query, template):
    marked = tf.nest.map_structure(lambda _: False, template)
    marked = _map_weighted(
        lambda r: WeightedRecord(tf.nest.map_structure(lambda _: False, r.record), True), marked
    )
    return {i for i, is_weight in enumerate(tf.nest.flatten(marked)) if is_weight}


@dp_queries
def test_record_that_is_not_finite_leaves_its_neighbours_alone(build):
    query, template = build(0.0, PART_A, PART_B)
    good, other = _records(template, seed=2, count=2)
    bad = tf.nest.map_structure(lambda leaf: leaf * np.nan, other)
    expected = _accumulate(query, [good], template)
    _assert_close(_accumulate(query, [bad, good, bad], template), expected, rtol=0)


@dp_queries
def test_zero_record_stays_zero(build):
    query, template = build(0.0, PART_A, PART_B)
    if "Estimator" in repr(query):
        return  # It counts zero among other numbers.
    assert all(np.all(leaf == 0) for leaf in _numpy(_preprocess(query, _float64(template))))


def _start(query):
    """Returns the values of the initial state, without the number that names a run."""
    state = query.initial_global_state()
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    return [leaf.tolist() for leaf in leaves if leaf.dtype != np.int64]


@all_queries
def test_is_unchanged_by_use(build):
    query, template = build(1.0, PART_A, PART_B)
    before = repr(query), _start(query), dict(vars(query))
    state = _accumulate(query, _records(template, seed=0), template)
    query.get_noised_result(state, query.initial_global_state())
    assert before == (repr(query), _start(query), dict(vars(query)))


@all_queries
def test_does_not_change_what_it_is_given(build):
    query, template = build(0.0, PART_A, PART_B)
    record = tf.nest.map_structure(lambda leaf: np.full(leaf.shape, 2.0), template)
    state = query.initial_sample_state(record)
    query.accumulate_record(query.derive_sample_params(query.initial_global_state()), state, record)
    assert all(np.all(leaf == 2) for leaf in _numpy(record))
    assert all(np.all(leaf == 0) for leaf in _numpy(state))


@all_queries
def test_configuration_is_frozen(build):
    query, _ = build(1.0, PART_A, PART_B)
    if dataclasses.is_dataclass(query):
        for field in dataclasses.fields(query):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(query, field.name, 1.0)
    if isinstance(query, tfdp_query.NestedQuery):
        with pytest.raises(AttributeError):
            query.queries = []


@all_queries
def test_metrics_are_a_mapping(build):
    query, _ = build(1.0, PART_A, PART_B)
    state = query.initial_global_state()
    changes = any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(state))
    metrics = dict(query.derive_metrics(state))
    assert bool(metrics) == changes
    assert all(np.isfinite(value) for value in metrics.values())
