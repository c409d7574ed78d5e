"""A search whose winner alone is released: what it charges, and when."""

import collections
import math
import types

import keras
import numpy as np
import pytest

import tfdp
from tests.keras import toy
from tfdp.accounting import RDPAccountant
from tfdp.events import (
    GaussianSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    PoissonSelectedRunEvent,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
    ShuffledSampling,
    UnsupportedEventError,
)
from tfdp.noise import HostGenerator
from tfdp.noise.bits import SeededFill
from tfdp.tuning import NumberOfRuns, PoissonRuns, TruncatedNegativeBinomialRuns, private_search

STEP, DEARER = GaussianSumEvent(1.0, 10.0), GaussianSumEvent(1.0, 5.0)


class Runs(NumberOfRuns):
    """A fixed number of runs, which no event describes: for tests only."""

    def __init__(self, number):
        self.number = number

    def draw(self, generator):
        return self.number

    def event(self, runs):
        return SelectedRunEvent(runs, 1.0, 0.5)


def _run(candidate, ledger):
    ledger.append(STEP, count=5)
    return candidate, str(candidate)


def test_winner_is_the_best_of_what_was_drawn():
    ledger = tfdp.PrivacyLedger()
    best = private_search(_run, [1, 5, 3], [(STEP, 5)], PoissonRuns(300), ledger=ledger)
    assert (best.candidate, best.score, best.output) == (5, 5.0, "5")
    assert list(ledger) == [(PoissonSelectedRunEvent((RunEvent((STEP,), (5,)),), 300.0), 1)]


def test_candidates_are_drawn_uniformly():
    seen = collections.Counter()

    def run(candidate, ledger):
        seen[candidate] += 1
        return 0.0, None

    private_search(run, list("abcd"), [(STEP, 1)], Runs(4000), ledger=tfdp.PrivacyLedger())
    # Of 4000 draws each is drawn 1000 +- 27 times: six and a half deviations.
    assert all(abs(count - 1000) < 178 for count in seen.values()) and len(seen) == 4


def test_search_is_charged_before_the_first_run():
    ledger, found = tfdp.PrivacyLedger(), []

    def run(candidate, own):
        found.append(ledger.total_count)
        return _run(candidate, own)

    private_search(run, [1], [(STEP, 5)], Runs(2), ledger=ledger)
    assert found == [1, 1]


def test_every_plan_is_in_the_event():
    ledger = tfdp.PrivacyLedger()
    plans = {1: [(STEP, 5)], 2: [(STEP, 2), (DEARER, 1), (STEP, 3)], 3: [(STEP, 5)]}
    private_search(
        _run, [1, 2, 3], plans.__getitem__, TruncatedNegativeBinomialRuns(0.3), ledger=ledger
    )
    runs = (RunEvent((STEP,), (5,)), RunEvent((STEP, DEARER), (5, 1)))
    assert [event for event, _ in ledger] == [SelectedRunEvent(runs, 1.0, 0.3)]


@pytest.mark.parametrize("extra", [(STEP, 6), (DEARER, 1)])
def test_run_that_leaves_its_plan_is_charged_and_not_released(extra):
    ledger = tfdp.PrivacyLedger()

    def run(candidate, own):
        own.append(*extra[:1], count=extra[1])
        return 1.0, "secret"

    with pytest.raises(ValueError, match="its plan holds"):
        private_search(run, [1], [(STEP, 5)], Runs(1), ledger=ledger)
    charged = dict(ledger)
    assert charged[extra[0]] == extra[1] and charged[STEP] >= 5 and len(ledger) >= 2


def test_run_that_fails_is_charged_by_itself():
    ledger = tfdp.PrivacyLedger()

    def run(candidate, own):
        own.append(STEP)
        raise RuntimeError("a loss of 1234")

    with pytest.raises(RuntimeError, match="1234"):
        private_search(run, [1], [(STEP, 5)], Runs(3), ledger=ledger)
    assert [(event == STEP, count) for event, count in ledger] == [(False, 1), (True, 5)]


def in_pass(sampling, number):
    zero_out = NeighboringRelation.ZERO_OUT
    return SampledEvent(sampling.in_pass(number), GaussianSumEvent(1.0, 1.0), zero_out)


SHUFFLED = ShuffledSampling(10, 100)
PASSES = [SHUFFLED, RandomAllocationSampling(10, 1, 100), MinSeparationSampling(0.01, 3, 10, 100)]


def passes_in(ledger):
    steps = [(event.sampling, count) for event, count in ledger if isinstance(event, SampledEvent)]
    return [(sampling.pass_number, count) for sampling, count in steps]


def search_that_fails(sampling, ledger):
    """A run of two passes that does one step beyond its plan."""

    def run(candidate, own):
        own.append(in_pass(sampling, 0), count=10)
        own.append(in_pass(sampling, 1), count=4)
        return 0.0, None

    plan = [(in_pass(sampling, 0), 10), (in_pass(sampling, 1), 3)]
    with pytest.raises(ValueError, match="its plan holds 3"):
        private_search(run, [1], plan, Runs(1), ledger=ledger)


@pytest.mark.parametrize("sampling", PASSES, ids=lambda sampling: type(sampling).__name__)
def test_passes_of_runs_that_fail_are_those_of_no_other_run(sampling):
    ledger = tfdp.PrivacyLedger()
    ledger.append(in_pass(sampling, 0), count=3)  # A training that ended in its first pass.
    for _ in range(2):
        search_that_fails(sampling, ledger)
    assert passes_in(ledger) == [(0, 3), (1, 10), (2, 4), (3, 10), (4, 4)]
    assert ledger.next_pass == 5


def test_runs_that_fail_cost_what_their_ledgers_do():
    ledger, apart = tfdp.PrivacyLedger(), RDPAccountant()
    for _ in range(4):

        def run(candidate, own):
            own.append(in_pass(SHUFFLED, 0))
            raise RuntimeError("no memory")

        plan = [(in_pass(SHUFFLED, 0), 1)]
        with pytest.raises(RuntimeError, match="no memory"):
            private_search(run, [1], plan, Runs(1), ledger=ledger)
        apart.compose_entries([(Runs(1).event((RunEvent(*zip(*plan, strict=True)),)), 1)])
        apart.compose_entries(plan)
    assert ledger.epsilon(1e-5, "rdp") == pytest.approx(apart.get_epsilon(1e-5), rel=1e-12)


def test_passes_of_other_processes_are_not_those_of_a_run(tmp_path):
    path = tmp_path / "search.ledger"
    with (
        tfdp.PrivacyLedger.open(path, create=True, lease=1) as ledger,
        tfdp.PrivacyLedger.open(path, lease=1) as other,
    ):

        def run(candidate, own):
            own.append(in_pass(SHUFFLED, 0), count=10)
            own.append(in_pass(SHUFFLED, 1), count=2)
            # Meanwhile another process trains.
            other.append(in_pass(SHUFFLED, 0), count=5)
            raise RuntimeError("no memory")

        with pytest.raises(RuntimeError, match="no memory"):
            private_search(run, [1], [(in_pass(SHUFFLED, 0), 10)], Runs(1), ledger=ledger)
        assert passes_in(ledger) == [(0, 5), (1, 10), (2, 2)]


def search_with(output, ledger):
    """Returns the winner of two runs, whose ledgers are put into what `output` returns."""
    ledgers = []

    def run(candidate, own):
        own.append(STEP, count=5)
        ledgers.append(own)
        return -float(len(ledgers)), output(own)

    best = private_search(run, [1], [(STEP, 5)], Runs(2), ledger=ledger)
    return best, *ledgers


def test_ledger_of_the_winner_holds_the_search():
    ledger = tfdp.PrivacyLedger()
    _, winner, loser = search_with(lambda own: "a file", ledger)
    ((search, _),) = ledger
    assert list(winner) == [(STEP, 5), (search, 1)]
    assert list(loser) == [(STEP, 5)]
    assert winner.epsilon(1e-5, "rdp") > ledger.epsilon(1e-5, "rdp")
    with pytest.raises(UnsupportedEventError, match="SelectedRunEvent"):
        winner.epsilon(1e-5, "gdp")


@pytest.mark.parametrize(
    "put",
    [
        lambda model, ledger: model,
        lambda model, ledger: ledger,
        lambda model, ledger: (0.9, [model, model, ledger]),
        lambda model, ledger: {"model": {"of a run": model}},
    ],
    ids=["model", "ledger", "list", "dictionary"],
)
def test_other_ledgers_of_the_winner_hold_the_search_once(put):
    ledger, copies = tfdp.PrivacyLedger(), []

    def output(own):
        copies.append(tfdp.PrivacyLedger())
        for event, count in own:
            copies[-1].append(event, count)
        return put(types.SimpleNamespace(ledger=copies[-1]), copies[-1])

    search_with(output, ledger)
    assert list(copies[0]) == [(STEP, 5), *ledger]
    assert list(copies[1]) == [(STEP, 5)]


def test_an_output_that_holds_itself_is_looked_through_once():
    ledger = tfdp.PrivacyLedger()

    def output(own):
        holds = [{"ledger": own}]
        holds[0]["self"] = holds
        return holds

    best, winner, _ = search_with(output, ledger)
    ((search, _),) = ledger
    assert best.output[0]["ledger"] is winner
    assert list(winner) == [(STEP, 5), (search, 1)]


def test_ledger_of_the_search_is_charged_once_where_the_winner_has_it():
    ledger = tfdp.PrivacyLedger()
    search_with(lambda own: types.SimpleNamespace(ledger=ledger), ledger)
    assert ledger.total_count == 1


def test_winner_without_a_ledger_is_released():
    def output(own):
        return tfdp.keras.make_private(toy.linear())  # Never compiled: nothing was paid.

    best, winner, _ = search_with(output, tfdp.PrivacyLedger())
    assert isinstance(best.output, keras.Model) and winner.total_count == 6


def fit(model, **kwargs):
    full = tfdp.sampling.FullBatch()
    model.fit(toy.X, toy.Y, sampling=full, verbose=0, batch_size=toy.N, **kwargs)
    return model


def test_winner_that_trains_on_goes_on_from_the_search(tmp_path, monkeypatch):
    def run(rate, own):
        model = toy.private(toy.linear(), toy.dp(keras.optimizers.SGD(rate), 4.0, ledger=own))
        return -rate, fit(model, epochs=2)

    ledger, rehearsal = tfdp.PrivacyLedger(), tfdp.PrivacyLedger()
    run(0.1, rehearsal)
    model = private_search(run, [0.1], list(rehearsal), Runs(2), ledger=ledger).output
    searched = ledger.epsilon(1e-5, "rdp")
    assert rehearsal.epsilon(1e-5, "rdp") < searched < model.ledger.epsilon(1e-5, "rdp")
    model.save(tmp_path / "winner.keras")
    monkeypatch.setattr("tfdp.keras.charges._known", {})  # As in another process.
    loaded = toy.private(keras.models.load_model(tmp_path / "winner.keras"), toy.dp(stddev=4.0))
    for each in (model, loaded):
        budget = tfdp.keras.PrivacyBudget(searched, 1e-5, accountant="rdp")
        with pytest.raises(tfdp.keras.PrivacyBudgetExceededError, match="3 steps are spent"):
            fit(each, callbacks=[budget])
        fit(each)
        assert each.ledger.total_count == 4
    with pytest.raises(UnsupportedEventError):
        loaded.ledger.epsilon(1e-5)


@pytest.mark.parametrize(
    ("generator", "error"),
    [
        (np.random.default_rng(5), TypeError),
        (HostGenerator(SeededFill(5)), ValueError),
        (HostGenerator(lambda bits: bits.fill(0)), ValueError),
    ],
)
def test_number_of_runs_that_can_be_known_is_refused(generator, error):
    ledger = tfdp.PrivacyLedger()
    with pytest.raises(error, match="generator must be a HostGenerator"):
        private_search(_run, [1], [(STEP, 5)], Runs(1), ledger=ledger, generator=generator)
    assert ledger.total_count == 0


def test_secret_generator_may_be_given():
    best = private_search(
        _run,
        [1],
        [(STEP, 5)],
        Runs(1),
        ledger=tfdp.PrivacyLedger(),
        generator=HostGenerator(),
    )
    assert best.candidate == 1


def test_refused_charge_ends_the_search_before_it_begins():
    calls = []

    class Full(tfdp.PrivacyLedger):
        def append(self, *args, **kwargs):
            raise RuntimeError("no budget")

    with pytest.raises(RuntimeError, match="no budget"):
        private_search(lambda *a: calls.append(a), [1], [(STEP, 5)], Runs(3), ledger=Full())
    assert not calls


def test_not_a_number_never_wins():
    scores = iter([math.nan, -3.0, math.nan])
    best = private_search(
        lambda c, ledger: (next(scores), None),
        [1],
        [(STEP, 1)],
        Runs(3),
        ledger=tfdp.PrivacyLedger(),
    )
    assert best.score == -3.0


def test_no_run_no_winner():
    assert private_search(_run, [1], [(STEP, 5)], Runs(0), ledger=tfdp.PrivacyLedger()) is None


def test_place_of_the_winner_costs_more_than_the_search():
    """Why no candidate has a number: a score is 1 or 0, and a record moves its probability."""
    gamma, place = 0.01, np.arange(5000)
    ledger = tfdp.PrivacyLedger()
    runs = (RunEvent((PureEpsilonEvent(0.1),), (1,)),)
    ledger.append(TruncatedNegativeBinomialRuns(gamma).event(runs))
    assert ledger.epsilon(1e-5, "rdp") == pytest.approx(0.3, abs=1e-3)

    def seen(one):
        first = one * (1 - one) ** place * (1 - gamma) ** place  # The first run of score 1.
        return np.append(first, 1 - first.sum())

    with_record, without = seen(0.4 * math.exp(0.1)), seen(0.4)
    assert 1 - 0.4 * math.exp(0.1) > math.exp(-0.1) * 0.6  # One run costs no more than 0.1.
    delta = np.maximum(with_record - math.exp(1.17) * without, 0).sum()
    back = np.maximum(without - math.exp(1.17) * with_record, 0).sum()
    assert max(delta, back) > 1e-5


def test_candidates_by_a_function_have_one_plan():
    ledger = tfdp.PrivacyLedger()
    numbers = iter(range(10))
    best = private_search(_run, lambda: next(numbers), [(STEP, 5)], Runs(4), ledger=ledger)
    assert best.candidate == 3
    with pytest.raises(TypeError, match="one for all"):
        private_search(_run, lambda: 1, lambda c: [(STEP, 5)], Runs(4), ledger=ledger)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"candidates": []}, ValueError),
        ({"candidates": "abc"}, TypeError),
        ({"plan": []}, ValueError),
        ({"number_of_runs": 10}, TypeError),
        ({"ledger": "search.ledger"}, TypeError),
    ],
)
def test_bad_arguments(change, error):
    arguments = {
        "run": _run,
        "candidates": [1],
        "plan": [(STEP, 5)],
        "number_of_runs": Runs(1),
        "ledger": tfdp.PrivacyLedger(),
    }
    with pytest.raises(error):
        private_search(**{**arguments, **change})
