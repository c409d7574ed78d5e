"""Optuna and KerasTuner draw the candidates of a private search, where they are installed."""

import sys
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


def suggest(trial):
    trial.suggest_float("rate", 1e-3, 1.0, log=True)
    if trial.suggest_categorical("layers", [1, 2]) == 2:
        trial.suggest_int("units", 2, 3)


def test_optuna_draws_the_candidates():
    pytest.importorskip("optuna", reason="Optuna is not installed: tfdp[tuning].")
    rates, ledger = [], tfdp.PrivacyLedger()

    def run(values, own):
        rates.append(values["rate"])
        model = model_of(rates[-1])
        return fit(model, own), model

    best = private_search(run, optuna_trials(suggest), plan(), NUMBERS, ledger=ledger)
    assert best.candidate["rate"] in rates and len(set(rates)) == len(rates)
    ((event, count),) = ledger
    assert [count for _, count in best.output.ledger] == [2, 1]
    assert list(best.output.ledger)[-1] == (event, 1)
    assert isinstance(event, SelectedRunEvent) and count == 1
    assert np.isfinite(ledger.epsilon(1e-5, accountant="rdp"))


def test_nothing_of_optuna_tells_which_draw_a_candidate_was(caplog, capsys):
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: tfdp[tuning].")
    numbers = []
    draw = optuna_trials(lambda trial: (suggest(trial), numbers.append(trial.number)))
    optuna.logging.enable_propagation()
    caplog.clear()
    capsys.readouterr()
    drawn = [draw() for _ in range(20)]
    optuna.logging.disable_propagation()
    for values in drawn:
        assert type(values) is dict
        assert set(values) - {"units"} == {"rate", "layers"}
        assert ("units" in values) == (values["layers"] == 2)
        assert all(type(value) in (int, float) for value in values.values())
    assert numbers == [0] * 20
    assert not caplog.records and capsys.readouterr() == ("", "")
    # Nor is the sequence one that another draws again.
    np.random.seed(0)
    first = optuna_trials(suggest)()
    np.random.seed(0)
    assert optuna_trials(suggest)()["rate"] != first["rate"]


class StudyByHand:
    """What has the form of a study of Optuna, which need not be installed."""

    def __init__(self, sampler=None):
        self.sampler, self.trials = sampler, []

    def ask(self):
        self.trials.append(TrialByHand(len(self.trials), self))
        return self.trials[-1]


class TrialByHand:
    def __init__(self, number, study):
        self.number, self.study, self.params = number, study, {}


@pytest.fixture
def optuna_by_hand(monkeypatch):
    """Stands in for Optuna; returns the seeds of the samplers and the studies that were made."""
    seeds, studies = [], []

    def create_study(sampler):
        studies.append(StudyByHand(sampler))
        return studies[-1]

    module = types.ModuleType("optuna")
    module.create_study = create_study
    module.samplers = types.SimpleNamespace(RandomSampler=lambda seed=None: seeds.append(seed))
    monkeypatch.setitem(sys.modules, "optuna", module)
    return seeds, studies


def test_every_candidate_has_a_study_of_its_own(optuna_by_hand):
    seeds, studies = optuna_by_hand
    trials = []

    def name(trial):
        trials.append(trial)
        trial.params["rate"] = len(trials)

    draw = optuna_trials(name)
    assert [draw() for _ in range(3)] == [{"rate": 1}, {"rate": 2}, {"rate": 3}]
    assert [trial.number for trial in trials] == [0, 0, 0]
    assert all(trial.study.trials == [trial] for trial in trials)
    # One study was made, and logged: that of no candidate.
    assert len(studies) == 1 and not studies[0].trials
    assert seeds == [None] * 4


def test_a_study_is_refused():
    with pytest.raises(TypeError, match="A study is not taken"):
        optuna_trials(StudyByHand())


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
    # There may be no run, and only then there is no best one.
    assert dict(best.candidate.values) in built if built else best is None
    drawn = [draw().values for _ in range(12)]
    assert len({values["rate"] for values in drawn}) == 12
    for values in drawn:
        assert 1e-3 <= values["rate"] <= 1.0
        assert ("more" in values) == (values["units"] == 3)
        assert values["units"] in (2, 3)


class NumbersByHand:
    """Stands in for KerasTuner's `HyperParameters`; `draws` are the values to come, by name."""

    def __init__(self, draws):
        self.draws, self.space, self.values = draws, [], {}

    def copy(self):
        copied = NumbersByHand(self.draws)
        copied.space, copied.values = list(self.space), dict(self.values)
        return copied

    def is_active(self, one):
        return one.condition is None or self.values[one.condition[0]] == one.condition[1]

    def ask(self, name, default, condition=None):
        if name not in [one.name for one in self.space]:
            sample = self.draws[name].pop
            self.space.append(
                types.SimpleNamespace(name=name, condition=condition, random_sample=sample)
            )
            if self.is_active(self.space[-1]):
                self.values[name] = default


def test_each_number_that_is_asked_for_is_drawn_once():
    numbers = NumbersByHand({"units": [2, 3, 2], "more": [True, False], "rate": [0.2, 0.1]})

    def build(hp):
        hp.ask("units", 2)
        hp.ask("more", None, ("units", 3))
        if hp.values["units"] == 3:
            hp.ask("rate", None)

    draw = keras_tuner_values(numbers, build)
    # The last of a list comes first.
    assert draw().values == {"units": 2}
    assert draw().values == {"units": 3, "more": False, "rate": 0.1}
    assert draw().values == {"units": 2}
    assert numbers.draws == {"units": [], "more": [True], "rate": [0.2]}
    assert numbers.values == {"units": 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna_trials(object()),
        lambda: keras_tuner_values(object(), int),
        lambda: keras_tuner_values(types.SimpleNamespace(is_active=int), None),
    ],
)
def test_what_is_of_another_kind_is_refused(make):
    with pytest.raises(TypeError, match="Give a function|Give keras_tuner"):
        make()
