"""Traps about what is written down and what it costs.

`tests/traps/list_test.py` has the list of all traps.
"""

import ast
import dataclasses
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.keras import toy
from tfdp.accounting import PLDAccountant, PRVAccountant, RDPAccountant
from tfdp.factorizations import BinaryTree, banded_square_root
from tfdp.keras import NotPrivateError
from tfdp.sampling import FullBatch, Poisson, Shuffled

PACKAGE = pathlib.Path(tfdp.__file__).parent
X, Y = toy.data()
N = len(X)
DELTA = 1e-5


def epsilon(event, count=1, accountant=RDPAccountant):
    return accountant().compose(event, count).get_epsilon(DELTA)


def sampled(q, stddev, bound=1.0, population=None):
    return tfdp.SampledEvent(
        tfdp.events.PoissonSampling(q, population),
        tfdp.GaussianSumEvent(bound, stddev),
        tfdp.NeighboringRelation.ZERO_OUT,
    )


# What is written down.


@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 3}], ids=str)
def test_event_dropped(arguments):
    # In a graph: a side effect of Python would happen once, when it is traced.
    model = toy.private(toy.linear(), toy.dp(stddev=1.0), **arguments)
    model.fit(X, Y, batch_size=4, epochs=3, verbose=0)
    assert model.ledger.total_count == int(model.optimizer.iterations) == 9
    (entry,) = model.ledger
    assert entry.event == sampled(4 / N, 1.0, population=N)


@dataclasses.dataclass(frozen=True, eq=False)
class HidesAPart(tfdp.query.NestedQuery):
    """Releases everything, and says so of the first part only."""

    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        return result, state, None if event is None else event.events[0]


def test_adaptive_clip_whose_count_query_is_not_charged():
    # A second release beside the sum, such as a count that a clip follows, must be in the event: a
    # query that charges less than it reports, or reports nothing, is stopped.
    parts = [tfdp.GaussianSumQuery(1.0, 1.0), tfdp.GaussianSumQuery(0.5, 1.0)]
    variables = [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))]
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), HidesAPart(parts))
    loss = lambda x: tf.reduce_sum(x * (variables[0] + variables[1]))  # noqa: E731
    with pytest.raises(NotPrivateError, match="derive_event"):
        optimizer.private_gradients(loss, variables, tf.ones([3, 4]))
    honest = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), tfdp.query.NestedQuery(parts))
    honest.private_gradients(loss, variables, tf.ones([3, 4]))
    (entry,) = honest.ledger
    assert entry.event.event.events == tuple(
        p.derive_event(p.initial_global_state()) for p in parts
    )
    # What both cost together: 1 / z^2 = 1 + 0.5^2.
    joint = tfdp.GaussianSumEvent(1.0, 1.25**-0.5)
    assert epsilon(entry.event.event) == pytest.approx(epsilon(joint), rel=1e-9)


# What a query's tensors follow in its global state, and what its event must hold for it: the noise
# of each count, or nothing where the state follows a public schedule or remembers noise.
TREE = tfdp.query.TreeResidualSumQuery(
    1.0, 2.0, BinaryTree(), 100, 10, [tf.TensorSpec([2], tf.float32)]
)
STATEFUL = {
    "QuantileAdaptiveClipSumQuery": (
        tfdp.query.QuantileAdaptiveClipSumQuery(1.0, 1.0, 0.5, 0.2, 3.0, 60.0),
        [tfdp.GaussianSumEvent(0.5, 3.0)],
    ),
    "QuantileEstimatorQuery": (
        tfdp.query.QuantileEstimatorQuery(1.0, 0.5, 0.2, 3.0, 60.0),
        [tfdp.GaussianSumEvent(0.5, 3.0)],
    ),
    "NoPrivacyQuantileEstimatorQuery": (
        tfdp.query.NoPrivacyQuantileEstimatorQuery(1.0, 0.5, 0.2),
        [tfdp.NonPrivateEvent()],
    ),
    "CorrelatedGaussianSumQuery": (
        tfdp.query.CorrelatedGaussianSumQuery(
            1.0, 2.0, banded_square_root(3), 100, 10, [tf.TensorSpec([2], tf.float32)]
        ),
        [],
    ),
    "TreeResidualSumQuery": (TREE, []),
    "TreeCumulativeSumQuery": (tfdp.query.TreeCumulativeSumQuery(TREE), []),
    "RestartQuery": (
        tfdp.query.RestartQuery(TREE, tfdp.query.PeriodicRoundRestartIndicator(3)),
        [],
    ),
    "ScheduledGaussianSumQuery": (tfdp.query.ScheduledGaussianSumQuery(1.0, 1.0), []),
    "DiscretizedSumQuery": (
        tfdp.query.DiscretizedSumQuery(tfdp.DiscreteGaussianSumQuery(1.0, 1.0), 1.0, 1.0),
        [],
    ),
}


def test_every_clip_that_follows_the_data_charges_its_count():
    # A query with tensors in its global state can adapt. All others that the package has hold
    # numbers there, which never change.
    part = tfdp.GaussianSumQuery(1.0, 1.0)
    fixed = {
        "AboveThresholdQuery": tfdp.query.AboveThresholdQuery(0.0, 1.0, 1.0),
        "AutomaticClippingSumQuery": tfdp.query.AutomaticClippingSumQuery(1.0, 1.0),
        "DiscreteGaussianSumQuery": tfdp.query.DiscreteGaussianSumQuery(1.0, 1.0),
        "DistributedDiscreteGaussianSumQuery": tfdp.query.DistributedDiscreteGaussianSumQuery(
            1.0, 1.0
        ),
        "DistributedSkellamAverageQuery": tfdp.query.DistributedSkellamAverageQuery(
            1.0, 1.0, 1.0, 2.0
        ),
        "DistributedSkellamSumQuery": tfdp.query.DistributedSkellamSumQuery(1.0, 1.0, 1.0),
        "ExactGaussianSumQuery": tfdp.query.ExactGaussianSumQuery(1.0, 1.0),
        "ExponentialMechanismQuery": tfdp.query.ExponentialMechanismQuery(1.0, 1.0),
        "GaussianHistogramQuery": tfdp.query.GaussianHistogramQuery(1.0),
        "HistogramQuery": tfdp.query.HistogramQuery(1.0),
        "TreeRangeSumQuery": tfdp.query.TreeRangeSumQuery(tfdp.GaussianSumQuery(1.0, 1.0)),
        "PartitionSelectionQuery": tfdp.query.PartitionSelectionQuery(1.0, 1e-6),
        "GaussianAverageQuery": toy.query(1.0),
        "GaussianSumQuery": part,
        "JointClippingQuery": tfdp.query.JointClippingQuery([1.0], 1.0, 1.0),
        "LaplaceSumQuery": tfdp.query.LaplaceSumQuery(1.0, 1.0),
        "NoPrivacyAverageQuery": tfdp.query.NoPrivacyAverageQuery(),
        "NoPrivacySumQuery": tfdp.query.NoPrivacySumQuery(),
        "QuantileSelectionQuery": tfdp.query.QuantileSelectionQuery((1.0,), 0.5, 1.0),
        "ReportNoisyMaxQuery": tfdp.query.ReportNoisyMaxQuery(1.0, 1.0),
        "SparseEmbeddingSumQuery": tfdp.query.SparseEmbeddingSumQuery(1.0, 1.0, 1.0, 1.0, 1.0),
        "WeightedAverageQuery": tfdp.query.WeightedAverageQuery(
            1.0, noise_multiplier=1.0, denominator=4, max_weight=2.0
        ),
    }
    # Their state is that of the queries which they are made of; scales follow results alone.
    composed = {
        "ArrangedQuery",
        "DPQuery",
        "NestedQuery",
        "NestedSumQuery",
        "NormalizedQuery",
        "ScaleThenPrivatizeQuery",
        "SumAggregationDPQuery",
        "WeightedSumQuery",
    }
    names = {name for name in vars(tfdp.query) if name.endswith("Query")}
    assert names == {*fixed, *STATEFUL, *composed}
    for query in fixed.values():
        assert not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(query.initial_global_state()))
    for query, counts in STATEFUL.values():
        state = query.initial_global_state()
        assert any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(state))
        event = query.derive_event(state)
        parts = event.events if isinstance(event, tfdp.ComposedEvent) else (event,)
        assert all(count in parts for count in counts)


def test_raw_model_trained_by_mistake():
    model = toy.dense()
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    start = toy.weights(model)
    with pytest.raises(NotPrivateError, match="make_private"):
        model.fit(X, Y, verbose=0)
    toy.assert_weights(model, start, 0)
    assert model.optimizer.ledger.total_count == 0


# Sampling.


def test_poisson_accounting_over_shuffled_batches():
    model = toy.private(toy.linear(), toy.dp(stddev=2.0), run_eagerly=True)
    model.fit(X, Y, batch_size=4, sampling=Shuffled(), verbose=0)
    (entry,) = model.ledger
    assert isinstance(entry.event.sampling, tfdp.events.ShuffledSampling)
    shuffled = epsilon(entry.event, entry.count)
    # A pass is one Gaussian, without amplification: dearer than the same steps on Poisson samples.
    assert shuffled == pytest.approx(epsilon(tfdp.GaussianSumEvent(1.0, 2.0)), rel=1e-9)
    assert shuffled > 1.2 * epsilon(sampled(1 / 3, 2.0), 1)


def test_batches_that_nobody_declared_are_not_amplified():
    model = toy.private(toy.linear(), toy.dp(stddev=2.0), run_eagerly=True)
    with pytest.warns(UserWarning, match="no amplification"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(N).batch(4), verbose=0)
    (entry,) = model.ledger
    assert entry.event.sampling == tfdp.events.UnknownSampling()
    assert epsilon(entry.event, 3) == pytest.approx(epsilon(tfdp.GaussianSumEvent(1.0, 2.0), 3))


def test_drop_last():
    # 10 records in batches of 4: the last batch holds 2, and is a step, charged like others.
    query = tfdp.GaussianAverageQuery(100.0, noise_multiplier=0.0, denominator=1)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query)
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0])
    start = toy.weights(model)[0]
    model.fit(X[:10], Y[:10], batch_size=4, sampling=Shuffled(), verbose=0)
    assert model.ledger.total_count == 3
    moved = (start - toy.weights(model)[0])[:, 0]
    np.testing.assert_allclose(moved, X[:10].sum(0), rtol=1e-4, atol=1e-5)  # Every record, once.
    sampling = next(iter(model.ledger)).event.sampling
    assert sampling.steps_per_pass == 3


# Between and after steps.


def test_gradient_accumulation_tail():
    # Keras' accumulation would keep what is left of an epoch, un-noised, for the next one.
    inner = keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="physical_batch_size"):
        toy.dp(inner)
    # Micro-batches of 5 of 12 records: the tail of 2 is in the same step.
    whole, parts = (toy.private(optimizer=toy.dp(physical_batch_size=size)) for size in (None, 5))
    for model in (whole, parts):
        model.fit(X, Y, sampling=FullBatch(), verbose=0)
        assert model.ledger.total_count == 1
    toy.assert_weights(parts, toy.weights(whole))


def test_checkpoint_in_mid_accumulation(tmp_path):
    # A step is all of its micro-batches: whatever is saved between two steps is whole.
    model = toy.private(toy.linear(), toy.dp(stddev=1.0, physical_batch_size=5))
    paths = []

    def save(batch, logs):
        paths.append(tmp_path / f"{batch}.weights.h5")
        model.save_weights(paths[-1])

    note = keras.callbacks.LambdaCallback(on_train_batch_end=save)
    model.fit(X, Y, batch_size=6, steps_per_epoch=3, verbose=0, callbacks=[note])
    for steps, path in enumerate(paths, start=1):
        restored = toy.private(toy.linear(), toy.dp(stddev=1.0, physical_batch_size=5))
        restored.optimizer.build(restored.trainable_variables)
        restored.load_weights(path)
        assert restored.ledger.total_count == int(restored.optimizer.iterations) == steps
    names = " ".join(v.path for v in model.optimizer.variables)
    assert "accum" not in names  # Nothing un-noised is a variable.


def test_early_stopping_on_raw_training_loss():
    model = toy.private()
    with pytest.raises(NotPrivateError, match="monitor='val_loss'"):
        model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.EarlyStopping(monitor="loss")])
    assert model.ledger.total_count == 0


def test_batch_norm_moving_averages_ship_raw_statistics():
    layers = [keras.Input((4,)), keras.layers.BatchNormalization(name="culprit")]
    model = tfdp.keras.make_private(keras.Sequential([*layers, keras.layers.Dense(2)]))
    with pytest.raises(NotPrivateError, match="culprit.*raw statistics"):
        model.compile(toy.dp(), loss=toy.LOGITS_LOSS)


def test_batch_dependent_metrics():
    # Of records, not of batches: neither padding nor a record that is not finite is seen in them.
    x, kwargs = X.copy(), {"batch_size": 6, "sampling": Shuffled(), "verbose": 0}
    x[4] = np.nan
    model = toy.private(optimizer=toy.dp(keras.optimizers.SGD(0.0)), metrics=["accuracy"])
    others = np.arange(N) != 4
    right = model.predict(X, verbose=0).argmax(1) == Y
    logs = model.fit(x, Y, **kwargs).history
    assert logs["accuracy"] == [pytest.approx(right[others].mean())]
    assert np.isfinite(logs["loss"]).all()


# Numbers.


@pytest.mark.parametrize("accountant", [RDPAccountant, PLDAccountant])
def test_int_and_float_parameters(accountant):
    for ints, floats in (
        (sampled(1, 4, 2), sampled(1.0, 4.0, 2.0)),
        (sampled(0.25, 3, 1), sampled(0.25, 3.0, 1.0)),
    ):
        assert ints == floats
        assert epsilon(ints, 5, accountant) == epsilon(floats, 5, accountant) > 0
        twice = epsilon(ints, 10, accountant)
        assert twice > epsilon(ints, 5, accountant)


@pytest.mark.parametrize("accountant", [RDPAccountant, PLDAccountant])
def test_count_ignored(accountant):
    event = sampled(0.1, 2.0)
    ledger, one_by_one = tfdp.PrivacyLedger(), accountant()
    ledger.append(event, 40)
    for _ in range(40):
        one_by_one.compose(event)
    by_count = ledger.replay(accountant()).get_epsilon(DELTA)
    assert by_count == pytest.approx(one_by_one.get_epsilon(DELTA), rel=1e-9)
    assert by_count > 2 * epsilon(event, 1, accountant)


def test_float32_counters_saturate_at_2_24():
    # 2^24 + 1 is no float32.
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.NonPrivateEvent(), 2**24)
    model = toy.private(toy.linear(), toy.dp(ledger=ledger))
    model.fit(X, Y, batch_size=4, epochs=2, steps_per_epoch=3, verbose=0)
    assert ledger.total_count == 2**24 + 6
    (position,) = (v for v in model.optimizer.variables if "ledger_position" in v.path)
    assert position.numpy() == 2**24 + 6
    # Nor is this one a float64.
    assert tfdp.PrivacyLedger.from_json_lines(_ledger_of(2**53 + 1)).total_count == 2**53 + 1
    average = tfdp.query.NoPrivacyAverageQuery()
    state = average.initial_sample_state(tf.zeros([]))
    state = tf.nest.map_structure(lambda t: t + tf.cast(2**24, t.dtype), state)
    state = average.accumulate_record((), state, tf.constant(0.0))
    assert [float(t) for t in tf.nest.flatten(state)][-1] == 2**24 + 1


def _ledger_of(count):
    ledger = tfdp.PrivacyLedger()
    ledger.append(sampled(0.5, 1.0), count)
    return ledger.to_json_lines()


def test_validation_by_assert():
    asserts = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []
    # And so nothing is different without them.
    program = """
from tfdp.events import GaussianSumEvent, PoissonSampling
from tfdp.ledger import LedgerFormatError, PrivacyLedger
assert False, "stripped"
wrong = [
    lambda: GaussianSumEvent(-1.0, 1.0),
    lambda: PoissonSampling(1.5),
    lambda: PrivacyLedger().append(GaussianSumEvent(1.0, 1.0), 0),
    lambda: PrivacyLedger.from_json_lines("{}"),
]
for call in wrong:
    try:
        call()
    except ValueError as error:
        print(type(error).__name__)
"""
    run = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["ValueError", "ValueError", "ValueError", "LedgerFormatError"]


# Budgets.


def test_guard_of_a_budget_is_one_step_exact():
    # The budget is what 5 steps cost: the sixth is not taken.
    model = toy.private(toy.linear(), toy.dp(stddev=2.0))
    step = sampled(1 / 3, 2.0, population=N)
    cost = epsilon(step, 5, PRVAccountant)
    budget = tfdp.keras.PrivacyBudget(cost * (1 + 1e-7), DELTA)
    model.fit(X, Y, batch_size=4, epochs=4, sampling=Poisson(), verbose=0, callbacks=[budget])
    assert model.ledger.total_count == 5
