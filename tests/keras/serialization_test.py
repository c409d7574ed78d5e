"""A configuration brings back the same mechanism, and neither ledger nor less noise."""

import copy
import json
import pickle

import keras
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.keras import DPOptimizer
from tfdp.noise import SeededRandomSource
from tfdp.sampling import FullBatch

SUM = tfdp.GaussianSumQuery(0.1, 1 / 3)
QUERIES = [
    tfdp.GaussianAverageQuery(0.1, noise_multiplier=1.1, denominator=7, precision="exact"),
    tfdp.NormalizedQuery(SUM, 7),
    tfdp.query.WeightedAverageQuery(0.1, noise_multiplier=1.1, denominator=7, max_weight=0.3),
    tfdp.NormalizedQuery(tfdp.query.WeightedSumQuery(SUM, 0.3), 7),
    tfdp.NormalizedQuery(tfdp.JointClippingQuery([0.1, (3.0, 2.0)], 0.1, 0.7), 7),
    tfdp.NestedQuery([tfdp.NormalizedQuery(SUM, 7), {"b": (tfdp.NoPrivacyAverageQuery(),)}]),
    tfdp.NestedSumQuery([SUM, tfdp.NoPrivacySumQuery()]),
    tfdp.NormalizedQuery(tfdp.QuantileAdaptiveClipSumQuery(0.1, 1.1, 0.3, 0.2, 3.0, 60.0), 7),
    tfdp.QuantileEstimatorQuery(0.1, 0.3, 0.2, 3.0, 60.0, True),
    tfdp.query.AutomaticClippingSumQuery(0.1, 1 / 3, 0.3),
    tfdp.query.LaplaceSumQuery(0.1, 1 / 3),
    tfdp.DiscreteGaussianSumQuery(0.1, 1 / 3),
    tfdp.query.DiscretizedSumQuery(
        tfdp.DistributedDiscreteGaussianSumQuery(1 / 3, 0.7, 3, 5), 0.1, 1 / 3, 7, -11
    ),
    tfdp.query.AboveThresholdQuery(0.1, 0.7, 1 / 3, 2, numeric_epsilon=0.3),
    tfdp.query.ExponentialMechanismQuery(0.7, 1 / 3),
    tfdp.query.GaussianHistogramQuery(0.7, 2, 0.1),
    tfdp.query.HistogramQuery(0.7, 2, 0.1),
    tfdp.query.PartitionSelectionQuery(0.7, 0.1, 2),
    tfdp.query.SparseEmbeddingSumQuery(0.1, 1 / 3, 0.7, 0.3, 1.1),
    tfdp.query.TreeRangeSumQuery(tfdp.GaussianSumQuery(1 / 3, 0.7), 3),
    tfdp.query.ReportNoisyMaxQuery(0.7, 1 / 3, True),
    tfdp.query.QuantileSelectionQuery((0.1, 0.2), 0.3, 0.7),
    tfdp.query.ScheduledGaussianSumQuery(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.3), 1.1
    ),
]


@keras.saving.register_keras_serializable("serialization_test")
class OwnQuery(tfdp.GaussianSumQuery):
    pass


class UnknownQuery(tfdp.GaussianSumQuery):
    pass


def _through_json(optimizer):
    text = json.dumps(keras.optimizers.serialize(optimizer))
    return keras.optimizers.deserialize(json.loads(text))


def _optimizer(query, **arguments):
    return DPOptimizer(keras.optimizers.Adam(0.3, beta_1=0.7), query, **arguments)


def _event(query):
    return query.derive_event(query.initial_global_state())


@pytest.mark.parametrize("query", [*QUERIES, OwnQuery(0.1, 1 / 3)], ids=lambda q: type(q).__name__)
def test_query_is_the_same_to_the_last_bit(query):
    read = _through_json(_optimizer(query)).query
    assert type(read) is type(query)
    assert _event(read) == _event(query)
    again, first = (json.dumps(_optimizer(q).get_config()["query"]) for q in (read, query))
    assert again == first


def test_arguments_and_inner_optimizer_are_the_same():
    arguments = {
        "num_microbatches": 4,
        "privacy_unit": "microbatch",
        "physical_batch_size": 3,
        "engine": "loop",
        "loss_scale_factor": 8.0,
        "name": "mine",
    }
    read = _through_json(_optimizer(QUERIES[0], **arguments))
    assert {name: getattr(read, name) for name in arguments} == arguments
    assert type(read.inner_optimizer) is keras.optimizers.Adam
    assert read.inner_optimizer.beta_1 == 0.7
    assert float(read.learning_rate) == pytest.approx(0.3)


def test_configuration_holds_no_ledger_and_cannot_be_given_one():
    model = toy.private(toy.linear(), toy.dp(stddev=1.0, engine="loop"), run_eagerly=True)
    model.train_on_batch(*toy.data())
    config = model.optimizer.get_config()
    assert model.ledger.total_count == 1
    assert "ledger" not in str(config).lower()
    assert DPOptimizer.from_config(config).ledger.total_count == 0
    for name in ("ledger", "sampling"):
        with pytest.raises(TypeError, match=f"Unknown: {name}"):
            DPOptimizer.from_config({**config, name: model.ledger})


COPIES = [copy.copy, copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))]


@pytest.mark.parametrize("way", COPIES)
def test_new_optimizer_is_copied_and_pickled_as_its_configuration(way):
    optimizer = _optimizer(QUERIES[0], engine="loop")
    other = way(optimizer)
    assert type(other) is DPOptimizer
    assert json.dumps(other.get_config()) == json.dumps(optimizer.get_config())
    model = toy.private(toy.linear(), other, run_eagerly=True)
    model.train_on_batch(*toy.data())
    assert (other.ledger.total_count, optimizer.ledger.total_count) == (1, 0)
    assert not optimizer.inner_optimizer.built


def _build(optimizer):
    optimizer.build(toy.linear().trainable_variables)


def _build_inner(optimizer):
    optimizer.inner_optimizer.build(toy.linear().trainable_variables)


def _choose_ledger(optimizer):
    optimizer.ledger = tfdp.PrivacyLedger()


def _declare_sampling(optimizer):
    optimizer.sampling = FullBatch()


def _guard(optimizer):
    optimizer.charging.add_guard(lambda ledger, event: None)


def _charge(optimizer):
    optimizer.ledger.append(_event(SUM))


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize(
    "change", [_build, _build_inner, _choose_ledger, _declare_sampling, _guard, _charge]
)
def test_what_a_configuration_does_not_hold_is_not_lost_by_a_copy(change, way):
    optimizer = _optimizer(QUERIES[0])
    change(optimizer)
    with pytest.raises(TypeError, match="while it is new.*from_config"):
        way(optimizer)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: type(q).__name__)
def test_nothing_is_filled_in_by_a_default(query):
    # A configuration without its precision would be read as one of less.
    for name in query.get_config():
        config = {key: value for key, value in query.get_config().items() if key != name}
        with pytest.raises(TypeError, match=f"Missing: {name}"):
            type(query).from_config(config)
    with pytest.raises(TypeError, match="Unknown: noise"):
        type(query).from_config({**query.get_config(), "noise": 1.0})
    config = _optimizer(query).get_config()
    for name in config:
        with pytest.raises(TypeError, match=f"Missing: {name}"):
            DPOptimizer.from_config({k: v for k, v in config.items() if k != name})


@pytest.mark.parametrize("stddev", [float("nan"), -1.0, float("inf"), "1", None, True, [1.0]])
def test_numbers_that_are_read_are_checked(stddev):
    config = _optimizer(SUM).get_config()
    config["query"]["config"]["stddev"] = stddev
    with pytest.raises((TypeError, ValueError), match="stddev must be"):
        DPOptimizer.from_config(config)


def test_query_that_could_not_be_read_again_is_refused():
    with pytest.raises(TypeError, match="does not know UnknownQuery.*register_keras_serializable"):
        _optimizer(tfdp.NestedQuery([SUM, UnknownQuery(1.0, 1.0)])).get_config()


def test_random_source_is_no_configuration():
    seeded = tfdp.GaussianSumQuery(1.0, 1.0, SeededRandomSource(0))
    for query in (seeded, tfdp.NormalizedQuery(seeded, 4), tfdp.NestedQuery([SUM, seeded])):
        with pytest.raises(TypeError, match="random source is not written"):
            _optimizer(query).get_config()


def test_query_with_arguments_of_its_own_says_what_it_needs():
    @keras.saving.register_keras_serializable("serialization_test")
    class Own(tfdp.SumAggregationDPQuery):
        def __init__(self, clip):
            self._clip = clip

        def derive_event(self, global_state):
            return tfdp.NonPrivateEvent()

        def get_noised_result(self, sample_state, global_state):
            return sample_state, global_state, tfdp.NonPrivateEvent()

    with pytest.raises(TypeError, match="Own needs get_config and from_config"):
        _optimizer(Own(tf.constant(1.0))).get_config()
