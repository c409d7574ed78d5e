"""Every public query trains: beside another in a nested query, by fit, on the fast engine.

Its step is compared with the loop over the functions of the query, one record's gradient at a time.
A query that is new has to be put on one of the lists.
"""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp import query as q
from tfdp.accounting import RDPAccountant
from tfdp.factorizations import BinaryTree, ToeplitzFactorization
from tfdp.keras import DPOptimizer
from tfdp.sampling import FullBatch

CLIP, REST, STEPS = 0.3, 0.05, 2
TINY = 1e-9  # Noise that no comparison sees, and that an event can hold.
SPECS = [tf.TensorSpec([4, 3]), tf.TensorSpec([3])]  # The first layer of `toy.dense`.
WEIGHTS = np.float32([0.5, 1, 2, 3, 0, -1, 0.25, 1, 1.5, 1, 1, 1])


def gaussian(clip=CLIP):
    return q.GaussianSumQuery(clip, TINY)


def tree():
    return q.TreeResidualSumQuery(CLIP, TINY, BinaryTree(), 9, 1, SPECS)


def shares(noise):
    # So fine a grid that what is rounded cannot be seen.
    return q.secure_sum_query(CLIP, 1e-3, 15, 12, noise=noise, min_contributors=6, modulus_bits=40)


FACTORIZATION = ToeplitzFactorization((1.0, 0.5), (1.0, -0.25))
# Of the first layer's gradients.
GRADIENTS = {
    "AutomaticClippingSumQuery": lambda: q.AutomaticClippingSumQuery(CLIP, TINY, 0.1),
    "CorrelatedGaussianSumQuery": lambda: q.CorrelatedGaussianSumQuery(
        CLIP, TINY, FACTORIZATION, 9, 1, SPECS
    ),
    "ExactGaussianSumQuery": lambda: q.ExactGaussianSumQuery(CLIP, 1e-4),
    "GaussianAverageQuery": lambda: q.GaussianAverageQuery(CLIP, stddev=TINY, denominator=3.0),
    "GaussianSumQuery": gaussian,
    "JointClippingQuery": lambda: q.JointClippingQuery([0.5, 2.0], CLIP, TINY),
    "LaplaceSumQuery": lambda: q.LaplaceSumQuery(CLIP, TINY),
    "NestedQuery": lambda: q.NestedQuery([gaussian(), gaussian(0.1)]),
    "NestedSumQuery": lambda: q.NestedSumQuery([gaussian(), gaussian(0.1)]),
    "NoPrivacyAverageQuery": q.NoPrivacyAverageQuery,
    "NoPrivacySumQuery": q.NoPrivacySumQuery,
    "NormalizedQuery": lambda: q.NormalizedQuery(gaussian(), 3.0),
    "QuantileAdaptiveClipSumQuery": lambda: q.QuantileAdaptiveClipSumQuery(
        CLIP, TINY, 0.5, 0.4, 1e-6, 12.0
    ),
    "RestartQuery": lambda: q.RestartQuery(tree(), q.PeriodicRoundRestartIndicator(9)),
    "ScaleThenPrivatizeQuery": lambda: q.ScaleThenPrivatizeQuery(gaussian(), SPECS, 0.5, 1e-2),
    "ScheduledGaussianSumQuery": lambda: q.ScheduledGaussianSumQuery(
        keras.optimizers.schedules.ExponentialDecay(CLIP, 1, 0.5), TINY
    ),
    "TreeCumulativeSumQuery": lambda: q.TreeCumulativeSumQuery(tree()),
    "TreeResidualSumQuery": tree,
    "WeightedAverageQuery": lambda: q.WeightedAverageQuery(
        CLIP, stddev=TINY, denominator=3.0, max_weight=2.0
    ),
    "WeightedSumQuery": lambda: q.WeightedSumQuery(gaussian(), 2.0),
    # What is in shares is made of real numbers first.
    "DiscretizedSumQuery": lambda: shares("discrete_gaussian"),
    "DistributedDiscreteGaussianSumQuery": lambda: shares("discrete_gaussian"),
    "DistributedSkellamSumQuery": lambda: shares("skellam"),
}
# Queries that are no part of a nested query here, and why.
OTHERS = {
    "ArrangedQuery": "It is around the nested query of each case.",
    "SparseEmbeddingSumQuery": "sparse_embedding_test.py: a table's rows, on every engine.",
    "NoPrivacyQuantileEstimatorQuery": "Records are scalars.",
    "QuantileEstimatorQuery": "Records are scalars.",
    "QuantileSelectionQuery": "Records are scalars.",
    "DiscreteGaussianSumQuery": "Records are integers.",
    "DistributedSkellamAverageQuery": "Records are integers.",
}
# What releases no sum of gradients is refused before anything is charged.
REFUSED = {
    "AboveThresholdQuery": lambda: q.AboveThresholdQuery(1.0, 1.0, 1.0),
    "ExponentialMechanismQuery": lambda: q.ExponentialMechanismQuery(1.0, 1.0),
    "GaussianHistogramQuery": lambda: q.GaussianHistogramQuery(1.0),
    "HistogramQuery": lambda: q.HistogramQuery(1.0),
    "PartitionSelectionQuery": lambda: q.PartitionSelectionQuery(1.0, 1e-3),
    "ReportNoisyMaxQuery": lambda: q.ReportNoisyMaxQuery(1.0, 1.0),
    "TreeRangeSumQuery": lambda: q.TreeRangeSumQuery.build_central_gaussian_query(1.0, 1.0),
    "QuantileEstimatorQuery": lambda: q.QuantileEstimatorQuery(1.0, 0.5, 0.2, 1.0, 4.0),
    "NoPrivacyQuantileEstimatorQuery": lambda: q.NoPrivacyQuantileEstimatorQuery(1.0, 0.5, 0.2),
    "QuantileSelectionQuery": lambda: q.QuantileSelectionQuery((0.0, 1.0), 0.5, 1.0),
    "DiscreteGaussianSumQuery": lambda: q.DiscreteGaussianSumQuery(4.0, 8.0),
    "DistributedSkellamAverageQuery": lambda: q.DistributedSkellamAverageQuery(
        4, 4.0, 8.0, 4.0, min_contributors=4
    ),
}
# Their records are rounded one by one, or drawn for by the host: no XLA, and the engine "loop".
ONE_BY_ONE = {"ExactGaussianSumQuery", *(n for n in GRADIENTS if n.startswith("Di"))}
# Those whose steps XLA compiles here: one of each kind of noise and of state. That it gives the
# same for every query is tested one by one (tests/query/conformance_test.py).
BY_XLA = ("GaussianAverageQuery", "LaplaceSumQuery", "QuantileAdaptiveClipSumQuery", "RestartQuery")


def test_every_query_is_on_a_list():
    public = {
        name
        for name in q.__all__
        if inspect.isclass(found := getattr(q, name))
        and issubclass(found, q.DPQuery)
        and not inspect.isabstract(found)
    }
    assert {*GRADIENTS, *OTHERS, *REFUSED} == public, "Say how a new query trains, or why not."


def nested(name):
    """Returns the query beside a Gaussian sum over the second layer, as one of all variables."""
    part = GRADIENTS[name]()
    inner = [[0, 1], [2, 3]] if not name.startswith("Nested") else [[[0], [1]], [2, 3]]
    if name.startswith("Nested"):
        part = type(part)([q.NestedQuery([one]) for one in part.queries])
    return q.ArrangedQuery(q.NestedQuery([part, q.GaussianSumQuery(REST, TINY)]), inner)


def by_loop(query, x):
    """Returns the weights after the steps, by the functions of the query, and its events."""
    model, state, events = toy.dense(), query.initial_global_state(), []
    for _ in range(STEPS):
        values = [v.value for v in model.trainable_variables]
        params = query.derive_sample_params(state)
        sample = query.weighed(1.0).initial_sample_state(values)
        for i, weight in enumerate(WEIGHTS[: len(x)]):
            with tf.GradientTape() as tape:
                loss = toy.LOGITS_LOSS(toy.Y[i : i + 1], model(x[i : i + 1]))
            record = tape.gradient(loss, [v.value for v in model.trainable_variables])
            # What engines do for a query that takes weights.
            one = query.weighed(float(np.clip(weight, 0, 2))) if query.takes_weights else query
            sample = one.accumulate_record(params, sample, record)
        events.append(query.derive_event(state))
        result, state, _ = query.get_noised_result(sample, state)
        for variable, part in zip(model.trainable_variables, result, strict=True):
            variable.assign_sub(0.1 * part)
    return toy.weights(model), events


def trained(query, is_fast, x, by_xla=False):
    engine = "bookkeeping" if is_fast else "loop"
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), query, engine=engine)
    model = toy.private(toy.dense(), optimizer, jit_compile=by_xla)
    weights = WEIGHTS[: len(x)] if query.takes_weights else None
    model.fit(
        x, toy.Y[: len(x)], epochs=STEPS, sample_weight=weights, sampling=FullBatch(), verbose=0
    )
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_query_trains_within_a_nested_one_as_a_loop_does(name):
    query, is_fast = nested(name), name not in ONE_BY_ONE
    assert is_fast == (not query.needs_separate_records and not query.draws_for_records)
    model = trained(query, is_fast, toy.X, by_xla=name in BY_XLA)
    expected, events = by_loop(query, toy.X)
    start = toy.weights(toy.dense())
    assert max(np.abs(e - s).max() for e, s in zip(expected, start, strict=True)) > 1e-3
    toy.assert_weights(model, expected, 2e-6 if is_fast else 2e-3)
    charged = [entry.event for entry in model.ledger for _ in range(entry.count)]
    assert len(charged) == STEPS
    for event, wanted in zip(charged, events, strict=True):
        assert type(event.event) is type(wanted)
        assert tf.nest.map_structure(type, list(event.event.events)) == [
            type(part) for part in wanted.events
        ]
    assert model.ledger.replay(RDPAccountant()).get_epsilon(1e-5) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_releases_no_sum_of_gradients_is_refused_before_it_is_charged(name, monkeypatch):
    def unknown(variable):
        raise NotImplementedError("Keras 3.12 does not write variables in graphs.")

    monkeypatch.setattr(keras.Variable, "__repr__", unknown)
    ledger = tfdp.PrivacyLedger()
    with pytest.raises((TypeError, ValueError), match="must|not a sum|Records|structure"):
        optimizer = DPOptimizer(keras.optimizers.SGD(0.1), REFUSED[name](), ledger=ledger)
        model = toy.private(toy.dense(), optimizer)
        model.fit(toy.X, toy.Y, sampling=FullBatch(), verbose=0)
    assert ledger.total_count == 0
