"""Weights, the optimizer's state and the ledger are saved, restored and resumed together."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.events.step import releases
from tfdp.keras import LedgerMismatchError, charges
from tfdp.sampling import Shuffled

X, Y = toy.data()


def private(inner=None, ledger=None, build=True):
    inner = keras.optimizers.SGD(0.1, momentum=0.9) if inner is None else inner
    model = toy.private(toy.linear(), toy.dp(inner, stddev=1.0, ledger=ledger))
    if build:
        model.optimizer.build(model.trainable_variables)
    return model


def train(model, steps, **kwargs):
    """Shuffled batches of 4 of 12 examples: 3 steps a pass."""
    return model.fit(
        X, Y, batch_size=4, sampling=Shuffled(), steps_per_epoch=steps, verbose=0, **kwargs
    )


def state(model):
    return [v.numpy() for v in (*model.trainable_variables, *model.optimizer.variables)]


@pytest.fixture
def saved(tmp_path):
    """(model after four steps, path of its weights)."""
    model = private()
    train(model, 4)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    return model, path


def test_weights_slots_iterations_and_ledger_come_back_together(saved):
    model, path = saved
    restored = private()
    restored.load_weights(path)
    for a, b in zip(state(model), state(restored), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(
        np.abs(v.numpy()).max() > 0 for v in restored.optimizer.variables if "momentum" in v.path
    )
    assert int(restored.optimizer.iterations) == restored.ledger.total_count == 4
    assert restored.ledger == model.ledger


def test_resumed_run_counts_on(saved):
    model, path = saved
    restored = private()
    restored.load_weights(path)
    train(restored, 2)
    assert int(restored.optimizer.iterations) == restored.ledger.total_count == 6
    assert model.ledger.is_prefix_of(restored.ledger)
    assert model.ledger.total_count == 4  # The first run's ledger is its own.
    passes = [event.sampling.pass_index for event in toy.events(restored)]
    assert passes == [0, 0, 0, 1, 2, 2]  # A pass that was interrupted is not continued.


def test_going_back_in_one_run_forgets_no_step(saved):
    model, path = saved
    train(model, 1)
    model.load_weights(path)
    assert int(model.optimizer.iterations) == 4
    assert model.ledger.total_count == 5
    train(model, 1)
    assert model.ledger.total_count == 6


def test_unrelated_ledger_is_refused(saved):
    model, path = saved
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.NonPrivateEvent())
    other = private(ledger=ledger)
    with pytest.raises(ValueError, match="does not continue the checkpoint's"):
        other.load_weights(path)
    trained = private()
    train(trained, 5)
    with pytest.raises(ValueError, match="does not continue the checkpoint's"):
        trained.load_weights(path)
    assert trained.ledger.total_count == 5


def test_ledger_loaded_from_its_file_fits_the_checkpoint(saved, tmp_path):
    model, path = saved
    model.ledger.save(tmp_path / "run.ledger")
    resumed = private(ledger=tfdp.PrivacyLedger.load(tmp_path / "run.ledger"))
    resumed.load_weights(path)
    train(resumed, 1)
    assert resumed.ledger.total_count == 5


def test_shorter_ledger_of_the_same_run_is_refused(saved, tmp_path):
    model, _ = saved
    model.ledger.save(tmp_path / "run.ledger")
    train(model, 1)
    model.save_weights(tmp_path / "later.weights.h5")
    behind = private(ledger=tfdp.PrivacyLedger.load(tmp_path / "run.ledger"))
    with pytest.raises(ValueError, match="does not continue the checkpoint's"):
        behind.load_weights(tmp_path / "later.weights.h5")


def test_optimizer_need_not_be_built_before_the_load(saved):
    model, path = saved
    restored = private(build=False)
    restored.load_weights(path)
    for a, b in zip(state(model), state(restored), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.RMSprop(
            0.1
        ),  # As many variables, of the same shapes, as SGD with momentum.
    ],
    ids=["Adam", "SGD", "RMSprop"],
)
def test_other_inner_optimizer_is_an_error_at_load(saved, inner):
    _, path = saved
    other = private(inner())
    with pytest.raises(ValueError, match="does not match"):
        other.load_weights(path)
    assert other.ledger.total_count == 0


def test_other_clip_and_noise_are_charged_as_such_from_the_load_on(saved):
    model, path = saved
    other = toy.private(
        toy.linear(),
        tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), toy.query(stddev=3.0, clip=2.0)
        ),
    )
    other.load_weights(path)
    train(other, 1)
    *before, last = toy.events(other)
    assert before == toy.events(model)
    old, new = (releases(event)[0].noise_multiplier for event in (before[0], last))
    assert new == pytest.approx(1.5) and new != old


class Crash(Exception):
    pass


class CrashIn(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.current == self.epoch and batch == 1:
            raise Crash

    def on_epoch_begin(self, epoch, logs=None):
        self.current = epoch


@pytest.mark.parametrize("same_process", [False, True])
def test_backup_and_restore_resumes_and_forgets_no_step(tmp_path, same_process):
    backup = keras.callbacks.BackupAndRestore
    model = private()
    with pytest.raises(Crash):
        train(model, 3, epochs=4, callbacks=[backup(tmp_path), CrashIn(2)])
    assert model.ledger.total_count == 2 * 3 + 2
    resumed = model if same_process else private()
    epochs = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    train(resumed, 3, epochs=4, callbacks=[backup(tmp_path), note])
    assert epochs == [2, 3]
    assert int(resumed.optimizer.iterations) == 4 * 3
    # What a process did after its last backup is lost with it; in the same one the ledger lives on.
    assert resumed.ledger.total_count == (8 + 6 if same_process else 12)


def test_tensorflow_checkpoint_without_its_ledger_is_refused_until_it_is_there(
    tmp_path, monkeypatch
):
    def checkpoint(model):
        variables = [v.value for v in (*model.trainable_variables, *model.optimizer.variables)]
        return tf.train.Checkpoint(variables=variables)

    model = private()
    train(model, 4)
    path = checkpoint(model).write(str(tmp_path / "checkpoint"))
    model.ledger.save(tmp_path / "run.ledger")

    monkeypatch.setattr(charges, "_known", {})  # As in another process.
    restored = private()
    checkpoint(restored).read(path).assert_consumed()
    weights = toy.weights(restored)
    toy.assert_weights(model, weights, 0)
    with pytest.raises(LedgerMismatchError, match=r"model\.ledger.*PrivacyLedger\.load"):
        train(restored, 1)
    toy.assert_weights(restored, weights, 0)
    assert restored.ledger.total_count == 0
    restored.ledger = tfdp.PrivacyLedger.load(tmp_path / "run.ledger")
    train(restored, 1)
    assert restored.ledger.total_count == int(restored.optimizer.iterations) == 5
