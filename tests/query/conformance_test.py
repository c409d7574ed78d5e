"""What every query promises, whatever it computes."""

import dataclasses
import re

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tests.query.conforming import (
    ALL_QUERIES,
    DP_QUERIES,
    PART_A,
    PART_B,
    accumulated,
    all_queries,
    as_float64,
    as_numpy,
    assert_close,
    dp_queries,
    few_examples,
    make_record,
    make_records,
    preprocess_one,
    structures,
    template_of_results,
)
from tfdp import query as tfdp_query
from tfdp.events import NonPrivateEvent
from tfdp.query import WeightedRecord
from tfdp.query.structure import flatten_up_to


@all_queries
@few_examples
@hypothesis.given(a=structures(), b=structures(), seed=st.integers(0, 10**6), cut=st.integers(0, 5))
def test_merge_equals_accumulate_for_any_split_and_order(build, a, b, seed, cut):
    query, template = build(0.0, a, b)
    records = make_records(template, seed)
    expected = accumulated(query, records, template)
    shuffled = [records[i] for i in np.random.default_rng(seed).permutation(len(records))]
    left = accumulated(query, shuffled[:cut], template)
    right = accumulated(query, shuffled[cut:], template)

    assert_close(accumulated(query, shuffled, template), expected)
    assert_close(query.merge_sample_states(left, right), expected)
    assert_close(query.merge_sample_states(right, left), expected)


@all_queries
@few_examples
@hypothesis.given(a=structures(), b=structures(), seed=st.integers(0, 10**6))
def test_state_of_a_sum_is_the_sum_of_preprocessed_records(build, a, b, seed):
    query, template = build(0.0, a, b)
    if not query.is_sum:
        assert query.num_norm_groups is None
        return
    records = make_records(template, seed)
    params = query.derive_sample_params(query.initial_global_state())
    preprocessed = [query.preprocess_record(params, record) for record in records]
    expected = tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *preprocessed)
    assert_close(accumulated(query, records, template), expected)


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
    state = accumulated(query, make_records(template, seed, 1), template)
    result, _, _ = query.get_noised_result(state, global_state)

    expected = template_of_results(query, template)
    tf.nest.assert_same_structure(result, expected)
    shapes = [leaf.shape for leaf in tf.nest.flatten(result)]
    assert shapes == [leaf.shape for leaf in tf.nest.flatten(expected)]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@all_queries
def test_keeps_dtype(build, dtype):
    query, template = build(1.0, PART_A, PART_B)
    record = make_record(template, np.random.default_rng(0), dtype)
    global_state = query.initial_global_state()
    state = query.initial_sample_state(record)
    state = query.accumulate_record(query.derive_sample_params(global_state), state, record)
    result, _, _ = query.get_noised_result(state, global_state)
    assert {leaf.dtype for leaf in tf.nest.flatten(preprocess_one(query, record))} == {dtype}
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
    assert_close(preprocess_one(query, half_weights), expected, rtol=1e-14)


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
    assert_close(query.initial_sample_state(specs), query.initial_sample_state(variables), 0)


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
    first, second = make_records(template, seed=3, count=2)
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
            assert_close(actual, expected, 1e-6)
    assert [event for _, event in seen] == [query.derive_event(global_state)] * 3
    if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(global_state)):
        assert [state for state, _ in seen] == [global_state] * 3


@pytest.mark.parametrize(
    "build",
    [
        build
        for build in ALL_QUERIES.values()
        if any(
            map(tf.is_tensor, tf.nest.flatten(build(0.0, PART_A, PART_B)[0].initial_global_state()))
        )
    ],
)
def test_step_from_a_state_that_was_written_down_is_the_next_step(build):
    query, template = build(0.0, PART_A, np.zeros(3))
    records = make_records(template, seed=3, count=2)
    sample = accumulated(query, records, template)
    _, state, _ = query.get_noised_result(sample, query.initial_global_state())
    leaves = tf.nest.flatten(state)
    tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
    # As an optimizer keeps them, and a file.
    variables = [keras.Variable(leaf.numpy(), dtype=leaf.dtype.name) for leaf in tensors]
    restored = [
        tf.constant(v.numpy(), leaf.dtype) for v, leaf in zip(variables, tensors, strict=True)
    ]

    def packed(values):
        remaining = iter(values)
        return tf.nest.pack_sequence_as(
            state, [next(remaining) if tf.is_tensor(leaf) else leaf for leaf in leaves]
        )

    def step(values):
        params = query.derive_sample_params(packed(values))
        sample = query.initial_sample_state(records[0])
        for record in records:
            sample = query.accumulate_record(params, sample, record)
        result, new_state, _ = query.get_noised_result(sample, packed(values))
        return result, [leaf for leaf in tf.nest.flatten(new_state) if tf.is_tensor(leaf)]

    assert query.derive_event(packed(restored)) == query.derive_event(state)
    expected = step(tensors)
    for run in (step, tf.function(step), tf.function(step, jit_compile=True)):
        assert_close(run(restored), expected, 1e-6)


@all_queries
def test_emits_the_event_of_its_global_state(build):
    query, template = build(1.25, PART_A, PART_B)
    global_state = query.initial_global_state()
    state = accumulated(query, make_records(template, seed=0), template)
    _, new_state, event = query.get_noised_result(state, global_state)
    assert event is not None
    assert event == query.derive_event(global_state)
    # Of steps of a run, but for their place in it.
    following = query.derive_event(new_state)
    assert (event.run_start() or event) == (following.run_start() or following)
    tf.nest.assert_same_structure(new_state, global_state)
    if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(global_state)):
        assert new_state == global_state


# A layer's share of the clip is in proportion to its coordinates there, and a clip of zero is none.
@pytest.mark.parametrize("build", [b for n, b in ALL_QUERIES.items() if n != "per_layer"])
def test_leaf_without_coordinates_is_released_as_it_is(build):
    query, template = build(1.0, np.zeros((0, 2)), PART_B)
    global_state = query.initial_global_state()
    sample = accumulated(query, make_records(template, seed=3), template)
    result, _, event = query.get_noised_result(sample, global_state)
    shapes = [leaf.shape for leaf in tf.nest.flatten(template_of_results(query, template))]
    assert [leaf.shape for leaf in tf.nest.flatten(result)] == shapes
    assert all(np.all(np.isfinite(leaf)) for leaf in tf.nest.flatten(result))
    assert event == query.derive_event(global_state)


@all_queries
def test_empty_sample_gives_an_event_and_noise(build):
    query, template = build(1.0, PART_A, PART_B)
    global_state = query.initial_global_state()
    empty = query.initial_sample_state(as_float64(template))
    assert all(np.all(leaf == 0) for leaf in as_numpy(empty))

    result, _, event = query.get_noised_result(empty, global_state)
    assert event == query.derive_event(global_state)
    private = event != NonPrivateEvent()
    assert all(np.all(np.isfinite(leaf)) for leaf in as_numpy(result))
    if "NoPrivacyQuantile" not in repr(query):
        assert all(np.all((leaf != 0) == private) for leaf in as_numpy(result))


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
    records = [make_record(template, rng, dtype) for _ in range(6)]
    params = query.derive_sample_params(query.initial_global_state())
    groups = query.norm_groups(template)
    flat = [[leaf.numpy() for leaf in tf.nest.flatten(record)] for record in records]
    scales = query.coordinate_scales(params, template)
    scales = [1.0 if scale is None else scale.numpy().astype(dtype.name) for scale in scales]
    flat = [[leaf * s for leaf, s in zip(leaves, scales, strict=True)] for leaves in flat]
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
        assert_close(preprocess_one(query, record), scaled, tolerance)
        np.testing.assert_allclose(  # One record at a time as well: [G] in, [G] out.
            query.scale_factors(params, tf.constant(np.sqrt(squares[0]), dtype)),
            factors[0],
            rtol=1e-6,
        )
    stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *records)
    mapped = tf.vectorized_map(lambda record: preprocess_one(query, record), stacked)
    assert_close(
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
        return [0] * len(tf.nest.flatten(template_of_results(query, template)))
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
    good = make_record(template, rng, tf.float32)
    expected = as_numpy(preprocess_one(query, good))
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
            as_numpy(preprocess_one(query, record)), expected, together, strict=True
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
    good, other = make_records(template, seed=2, count=2)
    bad = tf.nest.map_structure(lambda leaf: leaf * np.nan, other)
    expected = accumulated(query, [good], template)
    assert_close(accumulated(query, [bad, good, bad], template), expected, rtol=0)


@dp_queries
def test_zero_record_stays_zero(build):
    query, template = build(0.0, PART_A, PART_B)
    if "Estimator" in repr(query):
        return  # It counts zero among other numbers.
    assert all(np.all(leaf == 0) for leaf in as_numpy(preprocess_one(query, as_float64(template))))


def _start(query):
    """Returns the values of the initial state, without the number that names a run."""
    state = query.initial_global_state()
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    return [leaf.tolist() for leaf in leaves if leaf.dtype != np.int64]


@all_queries
def test_is_unchanged_by_use(build):
    query, template = build(1.0, PART_A, PART_B)
    before = repr(query), _start(query), dict(vars(query))
    state = accumulated(query, make_records(template, seed=0), template)
    query.get_noised_result(state, query.initial_global_state())
    assert before == (repr(query), _start(query), dict(vars(query)))


@all_queries
def test_does_not_change_what_it_is_given(build):
    query, template = build(0.0, PART_A, PART_B)
    record = tf.nest.map_structure(lambda leaf: np.full(leaf.shape, 2.0), template)
    state = query.initial_sample_state(record)
    query.accumulate_record(query.derive_sample_params(query.initial_global_state()), state, record)
    assert all(np.all(leaf == 2) for leaf in as_numpy(record))
    assert all(np.all(leaf == 0) for leaf in as_numpy(state))


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
