"""tfdp.query.restart: when noise begins anew, and what the ledger then says."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp.keras
from tests.query.tree_sums_test import Ones
from tfdp.factorizations import BinaryTree
from tfdp.query import (
    PeriodicRoundRestartIndicator,
    PeriodicTimeRestartIndicator,
    RestartQuery,
    TreeCumulativeSumQuery,
    TreeResidualSumQuery,
)

SPEC = tf.TensorSpec([], tf.float32)


def _flags(indicator, steps):
    state, flags = indicator.initialize(), []
    for _ in range(steps):
        flag, state = indicator.next(state)
        flags.append(bool(flag))
    return flags


@pytest.mark.parametrize("period", [1, 2, 4, 5])
def test_rounds(period):
    assert _flags(PeriodicRoundRestartIndicator(period), 20) == [
        step % period == period - 1 for step in range(20)
    ]


@pytest.mark.parametrize(("period", "warmup"), [(2, 1), (4, 3), (5, 2)])
def test_rounds_after_a_warmup(period, warmup):
    assert _flags(PeriodicRoundRestartIndicator(period, warmup), 20) == [
        step % period == warmup - 1 for step in range(20)
    ]


def test_times_of_tensorflow_privacy():
    indicator = PeriodicTimeRestartIndicator(period_seconds=3600 * 23.5)
    hours = [0.0, 1.0, 24.0, 26.0, 47.4, 47.51]
    with mock.patch.object(tf, "timestamp") as clock:
        clock.side_effect = [tf.constant(3600 * hour, tf.float64) for hour in hours]
        assert _flags(indicator, 5) == [False, True, False, False, True]


def test_times_are_those_of_the_step_in_a_graph():
    indicator = PeriodicTimeRestartIndicator(1e-6)
    step = tf.function(indicator.next)
    state, found = indicator.initialize(), []
    for _ in range(3):
        flag, state = step(state)
        found.append((bool(flag), float(state)))
    assert all(flag for flag, _ in found) and len({time for _, time in found}) == 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PeriodicRoundRestartIndicator(0), ValueError, "period must be at least 1"),
        (lambda: PeriodicRoundRestartIndicator(2.0), TypeError, "period"),
        (lambda: PeriodicRoundRestartIndicator(2, 2), ValueError, "from 1 to period - 1 = 1"),
        (lambda: PeriodicRoundRestartIndicator(2, 0), ValueError, "warmup"),
        (lambda: PeriodicTimeRestartIndicator(0), ValueError, "period_seconds"),
        (lambda: PeriodicTimeRestartIndicator(float("inf")), ValueError, "period_seconds"),
        (lambda: RestartQuery(_tree(), 3), TypeError, "must be a RestartIndicator"),
        (
            lambda: RestartQuery(tfdp.GaussianSumQuery(1.0, 1.0), PeriodicRoundRestartIndicator(2)),
            TypeError,
            "no reset_state",
        ),
        (lambda: RestartQuery(3, PeriodicRoundRestartIndicator(2)), TypeError, "DPQuery"),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()


def _tree(node=1.0, num_steps=32):
    return TreeResidualSumQuery(1.0, node, BinaryTree(False), num_steps, 1, SPEC, Ones())


def _released(query, value, steps):
    state, released, events = query.initial_global_state(), [], []
    step = tf.function(lambda state: query.get_noised_result(tf.constant(value), state)[:2])
    for _ in range(steps):
        events.append(query.derive_event(state))
        result, state = step(state)
        released.append(float(result))
    return released, events


CASES = [(0.0, 1.0, 1), (0.0, 1.0, 2), (0.0, 1.0, 5), (1.0, 1.0, 5), (1.0, 2.0, 2), (1.0, 5.0, 6)]


@pytest.mark.parametrize(("value", "node", "period"), CASES)
def test_values_of_tensorflow_privacy(value, node, period):
    indicator = PeriodicRoundRestartIndicator(period)
    running, events = _released(
        RestartQuery(TreeCumulativeSumQuery(_tree(node)), indicator), value, 20
    )
    residuals, _ = _released(RestartQuery(_tree(node), indicator), value, 20)
    expected = [
        value * (i + 1)
        + i // period * node * period.bit_count()
        + node * (i % period + 1).bit_count()
        for i in range(20)
    ]
    # Noise is rounded up, in its seventh digit.
    np.testing.assert_allclose(running, expected, rtol=1e-6)
    steps = [((i % period + 1).bit_count(), (i % period).bit_count()) for i in range(20)]
    expected = [value + node * (new - old) for new, old in steps]
    np.testing.assert_allclose(residuals, expected, atol=2e-5)
    # The ledger has a run for every tree.
    first = events[0].run_id
    assert [(e.run_id - first, e.position) for e in events] == [
        divmod(i, period) for i in range(20)
    ]


def test_a_tree_that_ends_as_it_is_restarted_is_followed_by_one_new_run():
    query = RestartQuery(_tree(num_steps=4), PeriodicRoundRestartIndicator(4))
    _, events = _released(query, 0.0, 12)
    first = events[0].run_id
    assert [(e.run_id - first, e.position) for e in events] == [divmod(i, 4) for i in range(12)]


@pytest.mark.parametrize(
    "indicator", [PeriodicRoundRestartIndicator(5, 2), PeriodicTimeRestartIndicator(60.0)]
)
def test_configuration_comes_back(indicator):
    assert tfdp.keras.DPOptimizer  # Which registers the classes.
    tree = TreeResidualSumQuery(1.0, 2.0, BinaryTree(), 9, 3, [SPEC])
    query = RestartQuery(tree, indicator)
    config = keras.saving.serialize_keras_object(query)
    assert keras.saving.deserialize_keras_object(config) == query


def test_states_of_indicators_stay_small():
    state = PeriodicRoundRestartIndicator(3).initialize()
    for _ in range(10):
        _, state = PeriodicRoundRestartIndicator(3).next(state)
        assert 0 <= int(state) < 3
    assert np.asarray(state).dtype == np.int64
