"""A search whose winner alone is released: what it charges, and when."""

import collections
import math

import pytest

import tfdp
from tfdp.events import GaussianSumEvent, PoissonSelectedRunEvent, RunEvent, SelectedRunEvent
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
