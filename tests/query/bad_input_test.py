"""Records and numbers that a query cannot take are refused with a sentence of ours."""

import decimal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.query import WeightedRecord, WeightedSumQuery

SUM = tfdp.GaussianSumQuery(1.0, 0.0)
QUERIES = {
    "sum": (SUM, lambda record: record),
    "average": (tfdp.NormalizedQuery(SUM, 4), lambda record: record),
    "joint": (tfdp.JointClippingQuery(1.0, 1.0, 0.0), lambda record: record),
    "nested": (tfdp.NestedQuery([SUM]), lambda record: [record]),
    "no privacy": (tfdp.NoPrivacySumQuery(), lambda record: record),
    "no privacy average": (tfdp.NoPrivacyAverageQuery(), lambda record: record),
    "weighted": (WeightedSumQuery(SUM, 2.0), lambda record: WeightedRecord(record, 1.0)),
}


def _accumulate(query, template, record):
    state = query.initial_sample_state(template)
    params = query.derive_sample_params(query.initial_global_state())
    return query.accumulate_record(params, state, record)


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize(
    ("template", "record"),
    [([4], [1]), ([4], []), ([2], [2, 2]), ([2, 1], [1, 2]), ([2, 3], [3])],
)
def test_record_of_another_shape_is_not_repeated(name, template, record):
    # A one would be added to four coordinates: the sum moves by 2, the bound is 1.
    query, pack = QUERIES[name]
    with pytest.raises(ValueError, match="(?s)Shapes or dtypes differ.*Expected.*Received"):
        _accumulate(query, pack(tf.zeros(template)), pack(tf.ones(record)))


def test_shapes_that_a_graph_knows_later_are_checked_then():
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def accumulate(template, record):
        return SUM.accumulate_record(1.0, SUM.initial_sample_state(template), record)

    assert accumulate(tf.zeros([2]), tf.ones([2])).shape == [2]

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def fixed(record):
        return SUM.accumulate_preprocessed_record(tf.zeros([4]), record)

    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        fixed(tf.ones([1]))


@pytest.mark.parametrize("name", [n for n in QUERIES if n != "no privacy"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.bool, tf.complex64, tf.string, tf.float16])
def test_records_of_another_dtype_are_refused(name, dtype):
    query, pack = QUERIES[name]
    with pytest.raises(TypeError, match=f"float32 or float64.*dtype {dtype.name}"):
        query.initial_sample_state(pack(tf.TensorSpec([2], dtype)))


def test_sum_without_privacy_takes_integers():
    total = _accumulate(tfdp.NoPrivacySumQuery(), tf.constant([0, 0]), tf.constant([3, -4]))
    np.testing.assert_array_equal(total, [3, -4])
    assert total.dtype == tf.int32
    for dtype in (tf.bool, tf.string, tf.complex64):
        with pytest.raises(TypeError, match="must hold numbers"):
            tfdp.NoPrivacySumQuery().initial_sample_state(tf.TensorSpec([2], dtype))


@pytest.mark.parametrize("name", QUERIES)
def test_template_must_say_a_shape(name):
    query, pack = QUERIES[name]
    with pytest.raises(TypeError, match="holds None"):
        query.initial_sample_state(pack(None))
    for shape in (None, [None], [2, None]):
        with pytest.raises(ValueError, match="what shape records have"):
            query.initial_sample_state(pack(tf.TensorSpec(shape)))


SECRET = [1234.5, 6789.25]
INTEGERS = tfdp.query.DiscreteGaussianSumQuery(1.0, 1.0)
ROWS = tfdp.query.SparseEmbeddingSumQuery(1.0, 1.0, 1.0, 1.0, 1.0)
TAKING_A_VECTOR = {
    **{name: query for name, (query, _) in QUERIES.items() if name in ("sum", "average", "joint")},
    "exact": tfdp.GaussianSumQuery(1.0, 1.0, precision="exact"),
    "laplace": tfdp.query.LaplaceSumQuery(1.0, 1.0),
    "scaled": tfdp.query.ScaleThenPrivatizeQuery(SUM, tf.zeros([2])),
    "integers": INTEGERS,
    "discretized": tfdp.query.DiscretizedSumQuery(
        tfdp.query.DiscreteGaussianSumQuery(2002.0, 1.0), 1.0, 2000.0
    ),
    "histogram": tfdp.query.HistogramQuery(1.0),
    "selection": tfdp.query.ReportNoisyMaxQuery(1.0, 1.0),
    "tree": tfdp.query.TreeRangeSumQuery(SUM),
}


def _error_of(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    "record",
    [
        tf.constant(SECRET, tf.float16),
        tf.sparse.from_dense(SECRET),
        tf.ragged.constant([SECRET]),
        decimal.Decimal("1234.5"),
        np.array([decimal.Decimal("1234.5"), None]),
    ],
    ids=["half", "sparse", "ragged", "decimal", "objects"],
)
@pytest.mark.parametrize("name", TAKING_A_VECTOR)
def test_an_error_shows_no_number_of_a_record(name, record):
    query = TAKING_A_VECTOR[name]
    params = query.derive_sample_params(query.initial_global_state())
    message = _error_of(lambda: query.preprocess_record(params, record))
    assert "1234" not in message and "6789" not in message


def test_an_error_about_another_kind_of_sum_shows_no_number():
    messages = [
        _error_of(lambda: INTEGERS.preprocess_record((), tf.constant(SECRET))),
        _error_of(lambda: ROWS.pack_scaled(tf.constant([SECRET]), tf.zeros([0]))),
        _error_of(
            lambda: ROWS.accumulate_record(
                (), ROWS.initial_sample_state(tf.zeros([2, 3])), tf.constant([SECRET])
            )
        ),
    ]
    assert not any("1234" in message or "6789" in message for message in messages)
    assert all("float32" in message for message in messages)


def test_dtypes_of_records_are_not_mixed():
    with pytest.raises(ValueError, match="Shapes or dtypes differ"):
        _accumulate(SUM, tf.zeros([2]), tf.zeros([2], tf.float64))


@pytest.mark.parametrize("weight", [[1.0], [[1.0], [1.0]], "a", True, 1j])
def test_weight_is_one_number(weight):
    query = WeightedSumQuery(SUM, 2.0)
    with pytest.raises(TypeError, match="weight of a record must be one number"):
        query.preprocess_record(1.0, WeightedRecord(tf.ones([2]), weight))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: tfdp.GaussianSumQuery(1.0, 1e39), "stddev"),
        (lambda: tfdp.GaussianAverageQuery(1.0, noise_multiplier=1e39, denominator=4), "stddev"),
        (lambda: tfdp.JointClippingQuery([1.0], 1.0, 1e39), "noise_multiplier"),
        (lambda: tfdp.JointClippingQuery([1e18, 1.0], 1.0, 1e18), "noise_multiplier"),
        (lambda: tfdp.query.per_layer([np.zeros(2)], 1.0, 1e39, 4), "stddev"),
        (lambda: tfdp.NormalizedQuery(SUM, 1e-45), "denominator"),
        (lambda: tfdp.NormalizedQuery(SUM, 1e39), "denominator"),
        (lambda: WeightedSumQuery(SUM, 1e39), "max_weight"),
        (lambda: WeightedSumQuery(SUM, 1e-45), "max_weight"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(make, name):
    with pytest.raises(ValueError, match=f"{name}.* must be finite, at least .* and at most"):
        make()


TINY = 1e-31
_SCHEDULE = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.0, 1e-20])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdp.GaussianSumQuery(1e-12, TINY),
        lambda: tfdp.GaussianAverageQuery(1e-12, noise_multiplier=1e-20, denominator=4),
        lambda: tfdp.query.LaplaceSumQuery(1e-12, TINY),
        lambda: tfdp.query.AutomaticClippingSumQuery(1e-12, TINY),
        lambda: tfdp.JointClippingQuery([1e10], 1e-12, 1e-20),
        lambda: tfdp.query.QuantileAdaptiveClipSumQuery(1e-6, 1e-20, 0.5, 0.2, 1.0, 4.0),
        lambda: tfdp.query.QuantileEstimatorQuery(1.0, 0.5, 0.2, TINY, 4.0),
        lambda: tfdp.query.SparseEmbeddingSumQuery(1.0, TINY, 1.0, 1.0, 1.0),
        lambda: tfdp.query.TreeResidualSumQuery.build_l2_gaussian_query(
            1e-12, 1e-20, tf.zeros([2]), num_steps=9, period=3
        ),
        lambda: tfdp.query.ScheduledGaussianSumQuery(1e-12, 1e-20),
    ],
)
def test_noise_that_float32_rounds_to_none_is_refused(make):
    # The event would say that there is some.
    with pytest.raises(ValueError, match="must be zero, or at least 1e-30"):
        make()


def test_a_schedule_stops_before_noise_that_is_none():
    query = tfdp.query.ScheduledGaussianSumQuery(1e-12, _SCHEDULE)
    state = query.initial_global_state()
    assert query.derive_event(state).noise_stddev == 0.0
    with pytest.raises(ValueError, match="of step 11 must be zero, or at least 1e-30"):
        query.derive_event(query._state_of(tf.constant(11, tf.int64)))


def test_the_least_noise_is_there():
    query = tfdp.GaussianSumQuery(1.0, 1e-30)

    def release(total):
        return query.get_noised_result(total, query.initial_global_state())[0]

    for run in (release, tf.function(release)):
        drawn = run(tf.zeros([20_000])).numpy().astype(np.float64)
        assert np.std(drawn) == pytest.approx(1e-30, rel=6.5 / np.sqrt(2 * 20_000))


def test_largest_numbers_give_finite_results():
    query = tfdp.NormalizedQuery(tfdp.GaussianSumQuery(1e18, 1e30), 1e-12 * 1e5)
    state = query.initial_sample_state(tf.zeros([1000]))
    result, _, _ = query.get_noised_result(state, query.initial_global_state())
    assert np.isfinite(result).all()
