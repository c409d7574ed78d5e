"""`fit` on a ledger that is on the disk: before every update, after every crash, for every run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from killing import kill

from tfdp.keras import (
    LedgerMismatchError,
    PrivacyBudget,
    PrivacyBudgetExceededError,
    charges,
    make_private,
)
from tfdp.ledger import LedgerWriteError, PrivacyLedger
from tfdp.sampling import Shuffled

X, Y = toy.data()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


def private(ledger, inner=None):
    inner = keras.optimizers.SGD(0.1) if inner is None else inner
    model = toy.private(toy.linear(), toy.dp(inner, stddev=1.0, ledger=ledger))
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, steps, **kwargs):
    return model.fit(X, Y, batch_size=4, steps_per_epoch=steps, verbose=0, **kwargs)


def crash(ledger):
    ledger._file.close("crashed")


class Watching(keras.optimizers.SGD):
    """Reads the file just before an update reaches the weights."""

    def __init__(self, path):
        super().__init__(0.1)
        self.path, self.found = path, []

    def update_step(self, gradient, variable, learning_rate):
        def look():
            self.found.append(PrivacyLedger.load(self.path).total_count)
            return np.int64(0)

        with tf.control_dependencies([tf.numpy_function(look, [], tf.int64)]):
            super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_step_is_on_the_disk_before_its_update(path, steps_per_execution):
    watching = Watching(path)
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        model = private(ledger, watching)
        model.steps_per_execution = steps_per_execution
        train(model, 6)
    assert watching.found == [1, 2, 3, 4, 5, 6]


def test_file_is_exact_after_fit(path):
    with PrivacyLedger.open(path, create=True) as ledger:
        train(private(ledger), 5)
        assert PrivacyLedger.load(path).total_count == 5


def test_resumed_after_a_crash(path, tmp_path):
    """The steps since the checkpoint are repeated with other noise, and charged again."""
    ledger = PrivacyLedger.open(path, create=True, lease=4)
    model = private(ledger)
    train(model, 3)
    model.save_weights(tmp_path / "run.weights.h5")
    train(model, 2)
    lost = toy.weights(model)[0]
    model.optimizer.ledger.append(model.optimizer.next_event())
    crash(ledger)  # Reserved four.

    with PrivacyLedger.open(path, create=True) as again:
        assert again.total_count == 3 + 2 + 4
        resumed = private(again)
        resumed.load_weights(tmp_path / "run.weights.h5")
        train(resumed, 2)
        assert again.total_count == 9 + 2
        assert np.abs(toy.weights(resumed)[0] - lost).max() > 1e-3
    # A ledger in memory could not tell what happens to the file meanwhile.
    behind = private(PrivacyLedger.load(path))
    with pytest.raises(ValueError, match="to the ledger of that run|does not continue"):
        behind.load_weights(tmp_path / "run.weights.h5")
        train(behind, 1)


def test_weights_are_loaded_before_it_is_known_which_ledger_goes_on(path, tmp_path):
    file = tmp_path / "run.weights.h5"
    with PrivacyLedger.open(path, create=True) as ledger:
        model = private(ledger)
        train(model, 3)
        model.save_weights(file)
    charges._known.clear()  # As in another process.

    def read():
        found = make_private(toy.linear())
        found.load_weights(file)
        toy.assert_weights(found, toy.weights(model), 0)
        return found

    assert read().predict(X, verbose=0).shape == (len(X), 2)
    with PrivacyLedger.open(path) as ledger:
        resumed = toy.private(read(), toy.dp(stddev=1.0, ledger=ledger))
        train(resumed, 1)
        assert ledger.total_count == 4
    for other in ({}, {"ledger": PrivacyLedger()}, {"ledger": PrivacyLedger.load(path)}):
        with pytest.raises(LedgerMismatchError, match="not this one") as refused:
            toy.private(read(), toy.dp(stddev=1.0, **other))
        # The copy in the file is not continued, whether a ledger is given or not.
        assert "or only a copy of it is" in str(refused.value)
        assert "leave `ledger` out" not in str(refused.value)
    # What is here already comes from somewhere else.
    other = private(PrivacyLedger())
    train(other, 1)
    with pytest.raises(ValueError, match="not this one|does not continue"):
        other.load_weights(file)


def test_weights_of_another_process_are_loaded_whoever_reserved_last(path, tmp_path):
    file = tmp_path / "run.weights.h5"
    with PrivacyLedger.open(path, create=True) as ledger, PrivacyLedger.open(path) as other:
        model, waiting = private(other), private(ledger)
        train(model, 3)
        model.save_weights(file)
        charges._known.clear()  # As in another process.
        assert ledger.total_count == 0
        waiting.load_weights(file)
        assert ledger.total_count == 3
        train(waiting, 1)
        assert ledger.total_count == 4
    # A closed ledger is not read again, and says so as before.
    with PrivacyLedger.open(tmp_path / "another.ledger", create=True) as another:
        model = private(another)
        train(model, 1)
        model.save_weights(file)
    with pytest.raises(LedgerMismatchError, match="does not continue"):
        private(ledger).load_weights(file)


def test_weights_of_one_copy_do_not_go_on_with_another(path, tmp_path):
    with PrivacyLedger.open(path, create=True) as ledger:
        model = private(ledger)
        train(model, 3)
    (tmp_path / "copy.ledger").write_bytes(path.read_bytes())
    with PrivacyLedger.open(path, create=True) as ledger:
        model.ledger = ledger
        train(model, 1)
        model.save_weights(tmp_path / "run.weights.h5")
    with PrivacyLedger.open(tmp_path / "copy.ledger", create=True) as copy:
        copy.append(model.optimizer.next_event(), 5)  # Longer by now, but not with these steps.
        model.ledger = copy
        with pytest.raises(LedgerMismatchError, match="not this one"):
            train(model, 1)
        with pytest.raises(ValueError, match="does not continue"):
            private(copy).load_weights(tmp_path / "run.weights.h5")


def test_new_file_does_not_take_over_a_checkpoint(path, tmp_path):
    model = private(PrivacyLedger())
    train(model, 2)
    model.save_weights(tmp_path / "run.weights.h5")
    with PrivacyLedger.open(path, create=True) as ledger:
        with pytest.raises(ValueError, match="does not continue"):
            private(ledger).load_weights(tmp_path / "run.weights.h5")


def test_write_error_stops_the_step(path):
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        model = private(ledger)
        train(model, 2)
        before = toy.weights(model)[0]
        path.unlink()
        with pytest.raises(LedgerWriteError, match="is gone"):
            train(model, 1)
        np.testing.assert_array_equal(toy.weights(model)[0], before)
        crash(ledger)


@pytest.fixture(scope="module")
def budget():
    """What ten steps cost, and a little more."""
    model = private(PrivacyLedger())
    train(model, 10)
    epsilon = model.ledger.epsilon(1e-5)
    return {"target_epsilon": 1.0001 * epsilon, "target_delta": 1e-5}


def test_budget_is_shared_by_all_runs_on_one_data_set(path, budget):
    with (
        PrivacyLedger.open(path, create=True, dataset_id="d", lease=3) as one,
        PrivacyLedger.open(path, create=True, dataset_id="d", lease=3) as two,
    ):
        train(private(one), 4, callbacks=[PrivacyBudget(**budget)])
        train(private(two), 50, callbacks=[PrivacyBudget(**budget)])
        assert PrivacyLedger.load(path).total_count == 10
        with pytest.raises(PrivacyBudgetExceededError):
            train(private(two), 1, callbacks=[PrivacyBudget(**budget)])
        assert two.remaining(**budget).events == 0
    assert PrivacyLedger.load(path).remaining(**budget).events == 0


def test_what_another_run_spends_meanwhile_counts(path, budget):
    class OtherRun(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            two.append(next(iter(one)).event)

    with (
        PrivacyLedger.open(path, create=True, lease=1) as one,
        PrivacyLedger.open(path, create=True, lease=1) as two,
    ):
        with pytest.raises(PrivacyBudgetExceededError):
            train(private(one), 50, callbacks=[PrivacyBudget(**budget), OtherRun()])
    assert PrivacyLedger.load(path).total_count == 10


def test_passes_of_two_runs_are_two_passes(path):
    with PrivacyLedger.open(path, create=True) as one, PrivacyLedger.open(path, create=True) as two:
        for ledger in (one, two):
            private(ledger).fit(X, Y, batch_size=4, sampling=Shuffled(), verbose=0)
        both = [private(one), private(two)]
        for model in both:
            model.fit(X, Y, batch_size=4, sampling=Shuffled(), verbose=0)
    passes = [entry.event.sampling.pass_index for entry in PrivacyLedger.load(path)]
    assert sorted(set(passes)) == [0, 1, 2, 3]


def test_killed_runs(tmp_path):
    updates, steps = kill(tmp_path, kills=8, longest=0.3)
    assert 8 < updates <= steps
