"""No callback of Keras steers training by raw statistics of the private training data."""

import keras
import numpy as np
import pytest
import toy

import tfdp
from tfdp.keras import NotPrivateError
from tfdp.keras.validation import check_callbacks

C = keras.callbacks
X, Y = toy.data()

# class -> what `fit` of a private model does about it, and why.
OF_KERAS = {
    "BackupAndRestore": "accepted: saves weights and ledger at fixed times",
    "CSVLogger": "accepted: writes logs, which are for whoever trains",
    "Callback": "accepted: does nothing",
    "CallbackList": "its callbacks are looked at one by one",
    "EarlyStopping": "by its monitor",
    "History": "accepted: keeps logs, which are for whoever trains",
    "LambdaCallback": "accepted: the user's own code",
    "LearningRateScheduler": "accepted: sees the epoch and the rate, no logs",
    "ModelCheckpoint": "by its monitor, if it saves the best only, and by the names of its files",
    "OrbaxCheckpoint": "refused: it saves weights without their ledger",
    "ProgbarLogger": "accepted: shows logs to whoever trains",
    "ReduceLROnPlateau": "by its monitor",
    "RemoteMonitor": "accepted: sends logs to where the user says",
    "SwapEMAWeights": "accepted: averages weights, which are private",
    "TensorBoard": "accepted: writes logs, which are for whoever trains",
    "TerminateOnNaN": "refused: it ends training by a raw loss",
}


def test_every_callback_of_keras_was_looked_at():
    # OrbaxCheckpoint came later than the oldest Keras that is supported.
    found = {name for name in dir(C) if isinstance(getattr(C, name), type)}
    assert found | {"OrbaxCheckpoint"} == set(OF_KERAS)


def two_heads(name):
    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(2, name=each)(inputs) for each in (name, "other")]
    return toy.private(keras.Model(inputs, heads), loss=[toy.LOGITS_LOSS] * 2)


@pytest.mark.parametrize(
    ("model", "y", "named"),
    [
        (
            lambda: toy.private(
                toy.linear(), metrics=[keras.metrics.SparseCategoricalAccuracy(name="val_a")]
            ),
            Y,
            "val_a",
        ),
        (lambda: two_heads("val_a"), [Y, Y], "val_a_loss"),
    ],
    ids=["metric", "output"],
)
def test_raw_metrics_cannot_be_named_like_those_of_validation(model, y, named):
    model = model()
    stop = C.EarlyStopping(named, baseline=10.0, patience=1, mode="min")
    with pytest.raises(NotPrivateError, match=f"begin with val_.*{named}"):
        model.fit(X, y, batch_size=4, epochs=3, verbose=0, callbacks=[stop])
    assert model.ledger.total_count == 0


def made():
    return {
        "BackupAndRestore": C.BackupAndRestore("backup"),
        "CSVLogger": C.CSVLogger("log.csv"),
        "Callback": C.Callback(),
        "History": C.History(),
        "LambdaCallback": C.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        "LearningRateScheduler": C.LearningRateScheduler(lambda epoch, rate: rate),
        "ModelCheckpoint": C.ModelCheckpoint("{epoch:02d}.keras"),
        "ProgbarLogger": C.ProgbarLogger(),
        "RemoteMonitor": C.RemoteMonitor(),
        "SwapEMAWeights": C.SwapEMAWeights(),
        "TensorBoard": C.TensorBoard("logs"),
    }


def test_callbacks_that_do_not_act_on_logs_are_accepted():
    accepted = {name for name, what in OF_KERAS.items() if what.startswith("accepted")}
    assert accepted <= set(made())
    for callback in made().values():
        check_callbacks([callback])
        check_callbacks([callback], public_validation=False)


class Own(C.TerminateOnNaN):
    pass


class Patient(C.EarlyStopping):
    def __init__(self):
        super().__init__("val_loss")
        self.monitor = "loss"


class Monitors(C.Callback):
    monitor = "accuracy"


REFUSED = {
    "terminate": lambda: C.TerminateOnNaN(),
    "terminate_subclass": Own,
    "early": lambda: C.EarlyStopping("loss"),
    "early_subclass": Patient,
    "plateau": lambda: C.ReduceLROnPlateau("loss"),
    "best": lambda: C.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True),
    "named": lambda: C.ModelCheckpoint("{epoch}-{loss:.3f}.keras"),
    "own_monitor": Monitors,
}
BY_VALIDATION = {
    "early": lambda: C.EarlyStopping("val_loss"),
    "plateau": lambda: C.ReduceLROnPlateau("val_loss"),
    "best": lambda: C.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
    "named": lambda: C.ModelCheckpoint("{epoch}-{val_loss:.3f}.keras"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_callbacks_that_act_on_raw_statistics_are_refused(name):
    model = toy.private(toy.linear())
    with pytest.raises(NotPrivateError, match="private training data"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[REFUSED[name]()])
    assert model.ledger.total_count == 0


@pytest.mark.skipif(not hasattr(C, "OrbaxCheckpoint"), reason="Keras has none yet.")
def test_a_checkpoint_without_the_ledger_is_refused():
    # Its constructor needs the package of Orbax.
    checkpoint = C.OrbaxCheckpoint.__new__(C.OrbaxCheckpoint)
    checkpoint.save_best_only = False
    with pytest.raises(NotPrivateError, match="without their ledger.*BackupAndRestore"):
        check_callbacks([checkpoint])


@pytest.mark.parametrize("name", BY_VALIDATION)
@pytest.mark.parametrize(
    "validation",
    [{"validation_split": 0.25}, {"validation_data": (X, Y)}, {"validation_data": (X[8:], Y[8:])}],
    ids=["split", "same", "part"],
)
def test_validation_metrics_of_the_training_data_do_not_steer(name, validation):
    model = toy.private(toy.linear())
    with pytest.raises(NotPrivateError, match="private training data") as error:
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[BY_VALIDATION[name]()], **validation)
    assert name == "named" or "split off the private data by hand are not" in str(error.value)
    assert model.ledger.total_count == 0


def test_validation_metrics_of_other_data_and_the_epsilon_may_steer():
    for make in BY_VALIDATION.values():
        check_callbacks([make()])
    logger = tfdp.keras.EpsilonLogger(1e-5)
    stop = C.EarlyStopping("epsilon", baseline=1.0, mode="min")
    check_callbacks([logger, stop], public_validation=False)


def test_other_memory_is_other_data():
    from tfdp.keras.data import shares_memory

    x = np.zeros((10, 2))
    assert shares_memory(x, (x,)) and shares_memory({"a": x[2:]}, [x[:3]])
    assert not shares_memory(x[:5], (x[5:],)) and not shares_memory(x, None)
    assert not shares_memory(x, (x.copy(),))
