"""KerasTuner over private models: what it may choose by, and the ledgers that come out."""

import keras
import pytest
import toy
from toy import L

import tfdp
from tfdp.keras import NotPrivateError

X, Y = toy.data()


class Objective:
    """As KerasTuner's: what a search looks for."""

    def __init__(self, name):
        self.name = name


class SaveBestEpoch(keras.callbacks.Callback):
    """As KerasTuner's: saves the weights of the epoch that is best by the objective."""

    def __init__(self, *names):
        super().__init__()
        self.objective = Objective(names[0])
        if len(names) > 1:
            self.objective = Objective("multi_objective")
            self.objective.objectives = [Objective(name) for name in names]


SaveBestEpoch.__module__ = "keras_tuner.src.engine.tuner_utils"


@pytest.mark.parametrize("names", [("accuracy",), ("val_loss", "loss")])
def test_best_epoch_by_a_raw_statistic_is_refused(names):
    model = toy.private(toy.linear(), metrics=["accuracy"])
    with pytest.raises(NotPrivateError, match=f"SaveBestEpoch decides by {names[-1]!r}"):
        model.fit(X, Y, batch_size=4, callbacks=[SaveBestEpoch(*names)], verbose=0)
    assert model.ledger.total_count == 0


def test_best_epoch_by_public_data_is_not():
    tfdp.keras.validation.check_callbacks([SaveBestEpoch("val_loss", "val_accuracy")])


def test_models_of_a_search_bring_the_ledgers_of_their_trials(tmp_path):
    tuner_of = pytest.importorskip("keras_tuner").RandomSearch

    def build(choices):
        units = choices.Choice("units", [2, 3])
        model = keras.Sequential([keras.Input((4,)), L.Dense(units), L.Dense(2)])
        return toy.private(model, toy.dp(stddev=1.0), metrics=["accuracy"])

    tuner = tuner_of(build, "val_accuracy", max_trials=2, directory=tmp_path, overwrite=True)
    tuner.search(X, Y, batch_size=4, epochs=2, validation_data=(X + 0, Y + 0), verbose=0)
    for model in tuner.get_best_models(2):
        # Three steps an epoch, up to the epoch whose weights these are.
        steps = model.ledger.total_count
        assert steps in (3, 6)
        model.fit(X, Y, batch_size=4, verbose=0)
        assert model.ledger.total_count == steps + 3
