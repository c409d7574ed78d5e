"""Optuna and KerasTuner draw the candidates of a private search, where they are installed."""

import types

import keras
import numpy as np
import pytest

import tfdp
from tests.keras import toy
from tfdp.events import SelectedRunEvent
from tfdp.tuning import (
    PoissonRuns,
    TruncatedNegativeBinomialRuns,
    keras_tuner_values,
    optuna_trials,
    private_search,
)

NUMBERS = TruncatedNegativeBinomialRuns(0.5)


def fit(model, ledger):
    """Trains for two steps on the search's ledger, and returns a score by public data."""
    model.fit(
        toy.X, toy.Y, sampling=tfdp.sampling.FullBatch(), epochs=2, verbose=0, batch_size=toy.N
    )
    for entry in model.ledger:
        ledger.append(entry.event, count=entry.count)
    return -float(model.evaluate(toy.X + 1, toy.Y, verbose=0))


def model_of(rate, units=2):
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(2)])
    return toy.private(plain, toy.dp(keras.optimizers.SGD(rate), stddev=1.0))


def plan():
    """A rehearsal on made-up data: what a run writes."""
    ledger = tfdp.PrivacyLedger()
    fit(model_of(0.1), ledger)
    return [(entry.event, entry.count) for entry in ledger]


def test_optuna_draws_the_candidates():
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: tfdp[tuning].")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    rates, ledger = [], tfdp.PrivacyLedger()

    def run(trial, own):
        rates.append(trial.suggest_float("rate", 1e-3, 1.0, log=True))
        model = model_of(rates[-1])
        return fit(model, own), model

    best = private_search(run, optuna_trials(study), plan(), NUMBERS, ledger=ledger)
    assert best.candidate.params["rate"] in rates
    assert len(set(rates)) == len(rates) == len(study.trials)
    ((event, count),) = ledger
    assert [count for _, count in best.output.ledger] == [2, 1]
    assert list(best.output.ledger)[-1] == (event, 1)
    assert isinstance(event, SelectedRunEvent) and count == 1
    assert np.isfinite(ledger.epsilon(1e-5, accountant="rdp"))


def test_samplers_of_optuna_that_look_at_earlier_trials_are_refused():
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: tfdp[tuning].")
    for sampler in (None, optuna.samplers.TPESampler(), optuna.samplers.GridSampler({"a": [1]})):
        with pytest.raises(TypeError, match="RandomSampler"):
            optuna_trials(optuna.create_study(sampler=sampler))


@pytest.mark.parametrize("way", ["tell", "report"])
def test_scores_that_the_study_was_told_end_the_search(way):
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: tfdp[tuning].")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    draw = optuna_trials(study)
    trial = draw()
    draw()  # Nothing was told yet.
    if way == "tell":
        study.tell(trial, 1.0)
    else:
        trial.report(1.0, step=0)
    with pytest.raises(ValueError, match="told how a trial went"):
        draw()


def study_by_hand(kind, trials):
    """Returns what has the form of a study of Optuna, which need not be installed."""
    sampler = type(kind, (), {"__module__": "optuna.samplers"})()

    def ask():
        trials.append(types.SimpleNamespace(intermediate_values={}, state=RUNNING))
        return trials[-1]

    return types.SimpleNamespace(ask=ask, sampler=sampler, get_trials=lambda deepcopy: trials)


RUNNING = types.SimpleNamespace(is_finished=lambda: False)
DONE = types.SimpleNamespace(is_finished=lambda: True)


@pytest.mark.parametrize("kind", ["TPESampler", "GPSampler", "CmaEsSampler", "MySampler"])
def test_other_samplers_are_refused_by_their_names(kind):
    with pytest.raises(TypeError, match=f"sampler={kind}"):
        optuna_trials(study_by_hand(kind, []))


@pytest.mark.parametrize(
    "told", [{"state": DONE}, {"intermediate_values": {0: 1.0}}], ids=["told", "reported"]
)
def test_nothing_is_drawn_once_a_trial_was_told(told):
    before = [types.SimpleNamespace(intermediate_values={}, state=DONE)]  # Of another search.
    draw = optuna_trials(study_by_hand("RandomSampler", before))
    trial = draw()
    assert draw() is not trial
    vars(trial).update(told)
    with pytest.raises(ValueError, match="told how a trial went"):
        draw()


def test_keras_tuner_draws_the_candidates():
    kt = pytest.importorskip("keras_tuner", reason="KerasTuner is not installed: tfdp[tuning].")
    built = []

    def build(hp):
        units = hp.Choice("units", [2, 3])
        with hp.conditional_scope("units", [3]):
            if units == 3:
                hp.Boolean("more")
        return model_of(hp.Float("rate", 1e-3, 1.0, sampling="log"), units)

    def run(hp, own):
        model = build(hp)
        built.append(dict(hp.values))
        return fit(model, own), model

    ledger = tfdp.PrivacyLedger()
    draw = keras_tuner_values(kt.HyperParameters(), build)
    best = private_search(run, draw, plan(), PoissonRuns(1.0), ledger=ledger)
    assert best is None or dict(best.candidate.values) in built
    drawn = [draw().values for _ in range(12)]
    assert len({values["rate"] for values in drawn}) == 12
    for values in drawn:
        assert 1e-3 <= values["rate"] <= 1.0
        assert ("more" in values) == (values["units"] == 3)
        assert values["units"] in (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna_trials(object()),
        lambda: optuna_trials(types.SimpleNamespace(ask=int, sampler=object())),
        lambda: keras_tuner_values(object(), int),
        lambda: keras_tuner_values(types.SimpleNamespace(is_active=int), None),
    ],
)
def test_what_is_of_another_kind_is_refused(make):
    with pytest.raises(TypeError, match="RandomSampler|must be an optuna|Give keras_tuner"):
        make()
