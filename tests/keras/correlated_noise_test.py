"""Correlated noise, from fit to the ledger: which steps of a run saw which data."""

import math

import numpy as np
import pytest

import tfdp
from tests.keras.toy import X, Y, dense
from tfdp.accounting import PRVAccountant
from tfdp.factorizations import BinaryTree, banded_square_root
from tfdp.keras import DPFTRLTreeAggregationOptimizer, DPOptimizer, NotPrivateError
from tfdp.query import CorrelatedGaussianSumQuery, NormalizedQuery
from tfdp.sampling import BallsInBins, CyclicPoisson, FixedOrder, MinSeparationPoisson

import keras  # isort: skip

BATCH, PERIOD, STEPS = 3, 4, 12
FACTORIZATION = banded_square_root(3)


def _model(ledger=None, num_steps=STEPS, **kwargs):
    model = dense()
    model.build((None, 4))
    query = CorrelatedGaussianSumQuery(
        1.0, 3.0, FACTORIZATION, num_steps, PERIOD, model.trainable_variables
    )
    model = tfdp.keras.make_private(model)
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), NormalizedQuery(query, BATCH), ledger=ledger)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), **kwargs)
    return model


def _fit(model, epochs=1, sampling=None, **kwargs):
    sampling = FixedOrder() if sampling is None else sampling
    model.fit(X, Y, batch_size=BATCH, epochs=epochs, sampling=sampling, verbose=0, **kwargs)


def _places(model):
    return [(e.event.step_of_run(), e.event.sampling.place[0]) for e in model.ledger]


def _epsilon(ledger):
    return ledger.replay(PRVAccountant()).get_epsilon(1e-5)


RUN = tfdp.GaussianSumEvent(FACTORIZATION.sensitivity(STEPS, PERIOD), 3.0)


def _runs(count):
    return PRVAccountant().compose(RUN, count).get_epsilon(1e-5)


def test_fits_go_on_where_the_run_is():
    model = _model()
    _fit(model, 2)
    _fit(model, 1)
    assert _places(model) == [(t, t % PERIOD) for t in range(STEPS)]
    assert _epsilon(model.ledger) == pytest.approx(_runs(1))
    _fit(model, 1)  # Beyond the planned steps a new run begins.
    assert _epsilon(model.ledger) == pytest.approx(_runs(2))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_groups_take_turns(jit_compile):
    model = _model(jit_compile=jit_compile)
    _fit(model, 3, CyclicPoisson(PERIOD))
    assert _places(model) == [(t, t % PERIOD) for t in range(STEPS)]
    norm = FACTORIZATION.column_norm(STEPS)
    probability = BATCH * PERIOD / len(X)
    assert probability == 1.0
    assert _epsilon(model.ledger) == pytest.approx(
        PRVAccountant().compose(tfdp.GaussianSumEvent(norm * math.sqrt(3), 3.0)).get_epsilon(1e-5)
    )


class _StopsAfter(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_fit_that_was_interrupted_goes_on_with_the_next_batch():
    model = _model()
    with pytest.raises(KeyboardInterrupt):
        _fit(model, 2, callbacks=[_StopsAfter(6)])
    assert model.optimizer.step_of_run() == 6
    _fit(model, 1)
    assert _places(model) == [(t, t % PERIOD) for t in range(10)]
    assert _epsilon(model.ledger) == pytest.approx(_runs(1))


def test_a_resumed_run_goes_on_and_one_that_is_repeated_costs_two(tmp_path):
    path = tmp_path / "run.weights.h5"
    first = _model()
    _fit(first, 1)
    first.save_weights(path)
    _fit(first, 1)

    second = _model()
    second.load_weights(path)
    assert second.optimizer.step_of_run() == PERIOD
    memory = [np.array(v) for v in second.optimizer.own_variables if v.name == "query_state"]
    assert any(np.any(value != 0) for value in memory[2:])
    _fit(second, 2)
    assert _places(second) == [(t, t % PERIOD) for t in range(STEPS)]
    assert _epsilon(second.ledger) == pytest.approx(_runs(1))

    # In the ledger that went further the older checkpoint is a second run of the same name.
    first.load_weights(path)
    _fit(first, 2)
    assert _epsilon(first.ledger) == pytest.approx(_runs(2))


def test_refuses_samples_in_no_order_before_anything_is_charged():
    model = _model()
    for sampling in (tfdp.sampling.Poisson(), tfdp.sampling.Shuffled(), FixedOrder()):
        with pytest.raises((ValueError, NotPrivateError), match="FixedOrder|part 0 of 6"):
            model.fit(X, Y, batch_size=2, sampling=sampling, verbose=0)
    assert model.ledger.total_count == 0


def test_refuses_epochs_that_are_no_whole_passes_and_data_sets():
    import tensorflow as tf

    model = _model()
    with pytest.raises(ValueError, match="steps_per_epoch must be a multiple"):
        _fit(model, 1, steps_per_epoch=3)
    _fit(model, 1, steps_per_epoch=2 * PERIOD)
    assert _places(model) == [(t, t % PERIOD) for t in range(2 * PERIOD)]
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    with pytest.raises(ValueError, match="Pass arrays"):
        model.fit(data, sampling=FixedOrder(BATCH, len(X)), verbose=0)


def test_samples_that_are_apart_make_one_run_of_a_pass():
    model = _model()
    sampling = MinSeparationPoisson(PERIOD, STEPS)
    _fit(model, 2, sampling)
    entries = [entry.event for entry in model.ledger]
    assert [event.event.step_of_run() for event in entries] == [*range(STEPS)] * 2
    assert [event.sampling.pass_index for event in entries] == [0] * STEPS + [1] * STEPS
    assert _epsilon(model.ledger) == pytest.approx(_runs(2))
    with pytest.raises(ValueError, match="steps_per_epoch must be a multiple"):
        _fit(model, 1, sampling, steps_per_epoch=PERIOD)
    for wrong in (MinSeparationPoisson(2, STEPS), MinSeparationPoisson(PERIOD, PERIOD)):
        with pytest.raises((ValueError, NotPrivateError), match="min_separation|of as many steps"):
            _fit(model, 1, wrong)
    assert model.ledger.total_count == 2 * STEPS


def test_a_run_on_samples_that_are_apart_is_not_taken_up_again():
    model = _model()
    sampling = MinSeparationPoisson(PERIOD, STEPS)
    with pytest.raises(KeyboardInterrupt):
        _fit(model, 1, sampling, callbacks=[_StopsAfter(5)])
    with pytest.raises(ValueError, match="left at its step 5.*Begin a new run"):
        _fit(model, 1, sampling)
    assert model.ledger.total_count == 5
    assert _epsilon(model.ledger) == pytest.approx(_runs(1))


def test_bins_stay_over_fits_and_processes(tmp_path):
    path = tmp_path / "run.weights.h5"
    first, sampling = _model(), BallsInBins()
    _fit(first, 1, sampling)
    first.save_weights(path)
    _fit(first, 1, sampling)
    assert _places(first) == [(t, t % PERIOD) for t in range(2 * PERIOD)]
    assert len({entry.event.sampling.assignment for entry in first.ledger}) == 1

    # As in another process: weights, and the key that was kept.
    second = _model()
    second.load_weights(path)
    with pytest.raises((ValueError, NotPrivateError), match="differ in more than their position"):
        _fit(second, 1, BallsInBins(), callbacks=[tfdp.keras.PrivacyBudget(1e6, 1e-5)])
    assert second.ledger.total_count == PERIOD
    _fit(second, 2, BallsInBins(key=sampling.key))
    assert _places(second) == [(t, t % PERIOD) for t in range(STEPS)]
    # With so few bins for its bands it is charged as if they were known.
    assert _epsilon(second.ledger) == pytest.approx(_runs(1))
    # An older checkpoint makes a second run of the same name, and of the same bins.
    first.load_weights(path)
    _fit(first, 2, sampling)
    assert _epsilon(first.ledger) == pytest.approx(_runs(2))


def test_a_fit_in_bins_that_was_interrupted_goes_on_with_the_next_bin():
    model, sampling = _model(), BallsInBins()
    with pytest.raises(KeyboardInterrupt):
        _fit(model, 2, sampling, callbacks=[_StopsAfter(6)])
    _fit(model, 1, sampling)
    assert _places(model) == [(t, t % PERIOD) for t in range(10)]
    # A further run in the same bins is charged as if bins were known.
    _fit(model, 2, sampling)
    assert model.ledger.total_count == 18
    assert _epsilon(model.ledger) == pytest.approx(_runs(2))


def test_steps_on_a_file_are_each_of_them_kept(tmp_path):
    ledger = tfdp.PrivacyLedger.open(tmp_path / "ledger.sqlite", create=True)
    model = _model(ledger)
    _fit(model, 1)
    assert [entry.count for entry in ledger] == [1] * PERIOD
    ledger.close()


def test_a_loop_of_ones_own_declares_the_order():
    import tensorflow as tf

    model = _model()
    optimizer = model.optimizer
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")

    def step(start):
        examples = tf.constant(X[start : start + BATCH]), tf.constant(Y[start : start + BATCH])
        optimizer.private_step(
            lambda e: tf.reduce_sum(loss(e[1], model(e[0]))), model.trainable_variables, examples
        )

    optimizer.sampling = FixedOrder(BATCH, len(X))
    for start in (0, 3, 6, 9, 0):
        step(start)
    assert _places(model) == [(t, t % PERIOD) for t in range(5)]
    optimizer.sampling = FixedOrder(BATCH, len(X))  # Begins anew, which the run does not.
    with pytest.raises((ValueError, NotPrivateError), match="part 1 of 4 in step 5"):
        step(0)
    assert model.ledger.total_count == 5


def test_trees_train_as_other_noise_does():
    model = dense()
    model.build((None, 4))
    model = tfdp.keras.make_private(model)
    optimizer = DPFTRLTreeAggregationOptimizer(
        1.0, 3.0, model, BATCH, restart_period=2 * PERIOD, period=PERIOD, learning_rate=0.1
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    _fit(model, 3)
    assert _places(model) == [(t % (2 * PERIOD), t % PERIOD) for t in range(STEPS)]
    size = BinaryTree().sensitivity(2 * PERIOD, PERIOD)
    two = PRVAccountant().compose(tfdp.GaussianSumEvent(size, 3.0), 2).get_epsilon(1e-5)
    assert _epsilon(model.ledger) == pytest.approx(two)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"period": 4}, TypeError, "num_steps or restart_period"),
        ({"num_steps": 8}, TypeError, "period"),
        ({"num_steps": 8, "period": 4, "restart_warmup": 3}, ValueError, "needs restart_period"),
    ],
)
def test_a_tree_needs_to_be_known(arguments, error, message):
    with pytest.raises(error, match=message):
        DPFTRLTreeAggregationOptimizer(1.0, 3.0, [np.zeros(3)], BATCH, **arguments)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("policy", [FixedOrder, BallsInBins], ids=lambda made: made.__name__)
def test_a_backup_from_the_middle_of_a_turn_says_so_and_goes_on_at_a_second_call(
    policy, jit_compile, tmp_path
):
    sampling = policy()

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=PERIOD - 1)

    with pytest.raises(KeyboardInterrupt):
        _fit(_model(jit_compile=jit_compile), 2, sampling, callbacks=[backup(), _StopsAfter(4)])
    model = _model(jit_compile=jit_compile)
    with pytest.raises(NotPrivateError, match=r"about part 3: keras.callbacks.BackupAndRestore"):
        _fit(model, 2, sampling, callbacks=[backup()])
    assert model.ledger.total_count == model.optimizer.step_of_run() == PERIOD - 1
    _fit(model, 2, sampling, callbacks=[backup()])
    assert _places(model) == [(t, t % PERIOD) for t in range(len(model.ledger))]
    assert model.ledger.total_count == PERIOD - 1 + 2 * PERIOD
    assert _epsilon(model.ledger) == pytest.approx(_runs(1))


@pytest.mark.parametrize("how", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str)
def test_a_step_that_is_refused_moves_no_run(how):
    model = _model(num_steps=12, **how)

    def refuses_the_third(ledger, event):
        if ledger.total_count == 2:
            raise RuntimeError("no third step")

    model.optimizer.charging.add_guard(refuses_the_third)
    with pytest.raises(RuntimeError, match="no third step"):
        _fit(model, 2)
    assert model.optimizer.step_of_run() == model.ledger.total_count == 2
    model.optimizer.charging.remove_guard(refuses_the_third)
    _fit(model)
    assert _places(model) == [(t, t % PERIOD) for t in range(len(model.ledger))]
