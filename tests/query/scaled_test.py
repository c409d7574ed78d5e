"""Scaled records, against the definition written out in NumPy."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp.keras
from tfdp.query import (
    DiscreteGaussianSumQuery,
    GaussianSumQuery,
    HistogramQuery,
    QuantileAdaptiveClipSumQuery,
    ScaleThenPrivatizeQuery,
    SparseEmbeddingSumQuery,
    TreeRangeSumQuery,
    WeightedSumQuery,
)

SPECS = {"a": tf.TensorSpec([3], tf.float64), "b": tf.TensorSpec([2, 1], tf.float64)}
SIZES = np.array([1e-3, 0.1, 1.0, 3.0, 30.0])


def as_record(vector):
    return {"a": tf.constant(vector[:3]), "b": tf.constant(vector[3:, None])}


def as_vector(record):
    return np.concatenate([record["a"].numpy(), record["b"].numpy()[:, 0]])


def sampled(query, state, vectors):
    """Returns the sample state of records that are vectors of five numbers."""
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state(SPECS)
    for vector in vectors:
        sample = query.accumulate_record(params, sample, as_record(vector))
    return sample


def run(query, samples):
    """Yields the result of each sample and the state after it."""
    state = query.initial_global_state()
    for vectors in samples:
        result, state, _ = query.get_noised_result(sampled(query, state, vectors), state)
        yield as_vector(result), state


def by_definition(samples, clip, beta, floor):
    """Yields the results without noise."""
    v = None
    for vectors in samples:
        scales = np.ones(5)
        if v is not None:
            scales = np.sqrt((1 + floor) * v.mean() / (v + floor * v.mean()))
        total = np.zeros(5)
        for vector in vectors:
            scaled = scales * vector
            total += scaled * min(1, clip / np.linalg.norm(scaled))
        result = total / scales
        square = result**2
        v = np.full(5, square.mean()) if v is None else beta * v + (1 - beta) * square
        yield result


def random_samples(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4, 5)) * SIZES


@pytest.mark.parametrize(("beta", "floor"), [(0.9, 0.1), (0.0, 1e-4), (0.999, 1.0)])
def test_results_are_those_of_the_definition(beta, floor):
    samples = random_samples(25)
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(2.0, 0.0), SPECS, beta, floor)
    expected = by_definition(samples, 2.0, beta, floor)
    for (result, _), wanted in zip(run(query, samples), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-12)


def after_some_steps(query):
    *_, (_, state) = run(query, random_samples(20))
    return state


def test_metrics_are_the_range_of_the_scales():
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(2.0, 0.0), SPECS, 0.5, 1e-6)
    state = after_some_steps(query)
    scales = np.concatenate([np.ravel(s) for s in query.derive_sample_params(state)[0]])
    metrics = query.derive_metrics(state)
    np.testing.assert_array_equal(list(metrics.values()), [scales.min(), scales.max()])
    assert list(metrics) == ["smallest_scale", "largest_scale"]


def test_a_record_moves_the_scaled_sum_by_at_most_the_clip_wherever_scales_are():
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(2.0, 0.0), SPECS, 0.5, 1e-6)
    state = after_some_steps(query)
    scales = np.concatenate([np.ravel(s) for s in query.derive_sample_params(state)[0]])
    assert scales.max() / scales.min() > 100
    rng = np.random.default_rng(3)
    for _ in range(50):
        vector = rng.normal(size=5) * 10.0 ** rng.uniform(-6, 6, 5)
        moved = as_vector(sampled(query, state, [vector]))
        expected = scales * vector * min(1, 2 / np.linalg.norm(scales * vector))
        np.testing.assert_allclose(moved, expected, rtol=1e-9)
        assert np.linalg.norm(moved) <= 2 * (1 + 1e-12)


def test_noise_of_a_coordinate_is_in_proportion_to_its_earlier_results(check_stddev):
    wide = {"small": tf.TensorSpec([20_000], tf.float32), "large": tf.TensorSpec([20_000])}
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(1.0, 2.0), wide, floor=1e-3)
    state = query.initial_global_state()
    moments = (tf.fill([20_000], 0.01), tf.fill([20_000], 4.0))
    flat = dict(zip(sorted(wide), reversed(moments), strict=True))
    state = state._replace(step=state.step + 9, second_moments=tuple(tf.nest.flatten(flat)))
    empty = query.initial_sample_state(wide)
    result, _, event = query.get_noised_result(empty, state)
    mean = (0.01 + 4.0) / 2
    for name, moment in (("small", 0.01), ("large", 4.0)):
        scale = np.sqrt(1.001 * mean / (moment + 0.001 * mean))
        check_stddev(result[name].numpy(), 2.0 / scale)
    assert event == tfdp.events.GaussianSumEvent(1.0, 2.0)


def test_moments_are_those_of_the_gradients_up_to_a_factor_though_noise_is_larger():
    # Two halves whose gradients are 1 and 4, in noise of 3 for coordinates of mean size. The
    # noise follows the scales, so that v, noise included, keeps the proportion of the squares.
    half = 2000
    specs = tf.TensorSpec([2 * half], tf.float64)
    noise = 3 * np.sqrt((1 + 16) / 2)
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(1e6, noise), specs, 0.9, 1e-6)
    gradient = tf.constant(np.repeat([1.0, 4.0], half))

    @tf.function(autograph=False)
    def step(state):
        sample = query.preprocess_record(query.derive_sample_params(state), gradient)
        return query.get_noised_result(sample, state)[1]

    state = query.initial_global_state()
    for _ in range(600):
        state = step(state)
    small, large = np.split(state.second_moments[0].numpy(), 2)
    assert 10 < large.mean() / small.mean() < 26
    # Noise that were the same for all would have made it (16 + 76) / (1 + 76) = 1.2.


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_result_that_is_not_finite_leaves_the_scales(value):
    query = ScaleThenPrivatizeQuery(tfdp.query.NoPrivacySumQuery(), SPECS)
    state = after_some_steps(query)
    bad = as_record(np.array([1.0, value, 0, 0, 0]))
    _, after, _ = query.get_noised_result(bad, state)
    for left, right in zip(after.second_moments, state.second_moments, strict=True):
        np.testing.assert_array_equal(left, right)
    assert after.step == state.step + 1


def test_the_inner_state_goes_on():
    query = ScaleThenPrivatizeQuery(QuantileAdaptiveClipSumQuery(1, 0, 0.5, 1, 0, 4), SPECS)
    state = after_some_steps(query)
    assert state.inner_state.l2_norm_clip > 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.0, SPECS), TypeError, "inner_query must be a DPQuery"),
        ((WeightedSumQuery(GaussianSumQuery(1.0, 1.0), 1.0), SPECS), TypeError, "no weights"),
        (
            (SparseEmbeddingSumQuery(1.0, 1.0, 1.0, 1.0, 1.0), tf.zeros([4, 2])),
            TypeError,
            "selected privately",
        ),
        ((HistogramQuery(1.0), tf.zeros([2])), TypeError, "result of numbers"),
        ((TreeRangeSumQuery(GaussianSumQuery(1.0, 1.0)), tf.zeros([2])), TypeError, "nodes of a"),
        ((GaussianSumQuery(1.0, 1.0), []), ValueError, "at least one leaf"),
        ((GaussianSumQuery(1.0, 1.0), tf.TensorSpec([None])), ValueError, "shape"),
        ((GaussianSumQuery(1.0, 1.0), SPECS, 1.0), ValueError, "beta_2"),
        ((GaussianSumQuery(1.0, 1.0), SPECS, 0.9, 0.0), ValueError, "floor"),
        ((GaussianSumQuery(1.0, 1.0), SPECS, 0.9, 1.1e6), ValueError, "floor"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        ScaleThenPrivatizeQuery(*arguments)


def test_records_of_other_shapes_are_refused():
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(1.0, 1.0), SPECS)
    other = {"a": tf.zeros([1], tf.float64), "b": tf.zeros([2, 1], tf.float64)}
    with pytest.raises(ValueError, match="shapes of record_specs"):
        query.initial_sample_state(other)
    with pytest.raises(ValueError, match="shapes of record_specs"):
        query.preprocess_record(query.derive_sample_params(query.initial_global_state()), other)


def test_configuration_round_trip():
    assert tfdp.keras.DPOptimizer  # Which registers the classes of queries.
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(1.0, 2.0), SPECS, 0.9, 0.5)
    config = keras.saving.serialize_keras_object(query)
    assert keras.saving.deserialize_keras_object(config) == query


def compiled():
    model = tfdp.keras.make_private(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    )
    inner = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=8)
    query = ScaleThenPrivatizeQuery(inner, model.trainable_variables, beta_2=0.5)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.Adam(0.01), query), "mse")
    return model


INNER = {
    "nested": tfdp.query.NestedQuery(
        {"a": GaussianSumQuery(2.0, 0.0), "b": GaussianSumQuery(9, 0)}
    ),
    "normalized": tfdp.NormalizedQuery(GaussianSumQuery(2.0, 0.0), 4.0),
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_protocol_of_norms_is_that_of_scaled_records(inner):
    query = ScaleThenPrivatizeQuery(inner, SPECS, 0.5, 1e-3)
    params = query.derive_sample_params(after_some_steps(query))
    scales = query.coordinate_scales(params, SPECS)
    assert max(float(tf.reduce_max(s)) for s in scales) > 2
    record = as_record(np.random.default_rng(5).normal(size=5) * 100)
    leaves = [r * s for r, s in zip(tf.nest.flatten(record), scales, strict=True)]
    groups = query.norm_groups(SPECS)
    squares = np.zeros(query.num_norm_groups)
    for group, leaf in zip(groups, leaves, strict=True):
        squares[group] += np.sum(np.square(leaf))
    factors = query.scale_factors(params, tf.constant(np.sqrt(squares)))
    expected = [leaf * factors[g] for leaf, g in zip(leaves, groups, strict=True)]
    found = tf.nest.flatten(query.preprocess_record(params, record))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def network(engine, **options):
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Embedding(11, 4),
        keras.layers.Conv1D(3, 2),
        keras.layers.Flatten(),
        keras.layers.Dense(4, "tanh"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(1),
    ]
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((5,), dtype="int32"), *layers]))
    clips = tfdp.query.per_layer(model.trainable_variables, 0.3, 0.0, 6.0)
    query = ScaleThenPrivatizeQuery(clips, model.trainable_variables, beta_2=0.3, floor=1e-2)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.5), query, engine=engine, **options)
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 11, (6, 5)).astype("int32"), rng.normal(size=(6, 1)).astype("float32")
    everybody = tfdp.sampling.FullBatch()
    model.fit(x, y, epochs=6, verbose=0, sampling=everybody)
    return [w.numpy() for w in model.trainable_variables]


@pytest.fixture(scope="module")
def by_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return network("loop")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("bookkeeping", {}),
        ("vectorized", {}),
        ("bookkeeping", {"physical_batch_size": 4}),
    ],
)
def test_engines_scale_as_a_loop_does(engine, options, by_loop):
    for left, right in zip(network(engine, **options), by_loop, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-5)


def test_fit_trains_and_a_restored_model_goes_on_with_its_scales(tmp_path):
    model, x, y = compiled(), np.ones([32, 4], "float32"), np.ones([32, 1], "float32")
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert model.ledger.total_count == 8
    event = next(iter(model.ledger))[0]
    assert event.event == tfdp.events.GaussianSumEvent(1.0, 1.0)
    model.save_weights(tmp_path / "m.weights.h5")
    restored = compiled()
    restored.load_weights(tmp_path / "m.weights.h5")
    moments = [
        [v.numpy() for v in m.optimizer.own_variables if v.name == "query_state"]
        for m in (model, restored)
    ]
    assert len(moments[0]) >= 4 and any(np.any(v > 0) for v in moments[0])
    for left, right in zip(*moments, strict=True):
        np.testing.assert_array_equal(left, right)
    restored.fit(x, y, batch_size=8, verbose=0)
    assert restored.ledger.total_count == 12


def test_records_of_other_dtypes_are_refused():
    # Scales would be cut to integers, most of them to zero.
    query = ScaleThenPrivatizeQuery(DiscreteGaussianSumQuery(10.0, 1.0), tf.zeros([2]))
    integers = tf.constant([3, 4])
    params = query.derive_sample_params(query.initial_global_state())
    for call in (query.initial_sample_state, lambda r: query.preprocess_record(params, r)):
        with pytest.raises(TypeError, match="float32 or float64"):
            call(integers)
    query = ScaleThenPrivatizeQuery(GaussianSumQuery(1.0, 1.0), tf.zeros([2]))
    with pytest.raises(TypeError, match="not be wider"):
        query.preprocess_record(params, tf.zeros([2], tf.float64))
