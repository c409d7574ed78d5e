"""Private data: answers, what they cost, what a row can move, and what is refused when."""

import math

import numpy as np
import pytest

from tests.statistics.table_test import VALUES, Frame
from tfdp.accounting import Budget, PrivacyBudgetExceededError
from tfdp.audit import epsilon_lower_bound
from tfdp.events import (
    ComposedEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    NonPrivateEvent,
    ParallelComposition,
    PureEpsilonEvent,
)
from tfdp.ledger import PrivacyLedger
from tfdp.noise import SeededRandomSource
from tfdp.statistics import PrivateData
from tfdp.statistics.noise import STEPS, Noise

LOUD = 1e6  # So much epsilon that noise is hardly seen.
AGES = np.array([30.0, 40.0, np.nan, 200.0, -5.0, 50.0])
CITIES = ["a", "b", "a", "b", None, "c"]


def table(**options):
    return PrivateData({"age": AGES, "city": np.array(CITIES, object)}, **options)


def test_answers_are_those_of_the_data():
    data = table()
    age = data["age"].clip(0, 100)
    assert data.count(epsilon=LOUD) == pytest.approx(6, abs=1e-3)
    assert age.count(epsilon=LOUD) == pytest.approx(5, abs=1e-3)
    assert age.sum(epsilon=LOUD) == pytest.approx(30 + 40 + 100 + 0 + 50, abs=0.1)
    assert age.mean(epsilon=LOUD) == pytest.approx(44, abs=0.1)
    assert age.sum(noise_multiplier=1e-3) == pytest.approx(220, abs=1.0)
    assert age.quantile(0.6, epsilon=LOUD, candidates=[35.0, 41.0, 60.0]) == 41.0
    assert age.quantile(0.5, epsilon=LOUD, candidates=101) in range(30, 51)
    counts = data["age"].histogram([0, 40, 50], epsilon=LOUD)
    assert counts == pytest.approx([1, 2], abs=1e-3)


def test_answers_of_groups_are_those_of_each():
    groups = table().group_by("city", keys=["b", "a", "never"])
    assert groups.keys == ("b", "a", "never")
    age = groups["age"].clip(0, 100)
    expected = {
        "count": {"b": 2, "a": 1, "never": 0},
        "sum": {"b": 140, "a": 30, "never": 0},
        "mean": {"b": 70, "a": 30, "never": 50},
    }
    for what, answer in expected.items():
        found = getattr(age, what)(epsilon=LOUD)
        assert list(found) == ["b", "a", "never"]
        if what == "mean":
            found["never"] = 50  # Noise divided by nothing: anything between the bounds.
        assert found == pytest.approx(answer, abs=0.1)
    assert groups.count(epsilon=LOUD) == pytest.approx({"b": 2, "a": 2, "never": 0}, abs=1e-3)
    tops = age.quantile(0.9, epsilon=LOUD, candidates=[20.0, 35.0])
    assert tops["a"] == 35.0
    bins = age.histogram([0, 35, 1000], epsilon=LOUD)
    assert bins["a"] == pytest.approx([1, 0], abs=1e-3)


def test_events_are_those_of_the_questions():
    data = table()
    age, groups = data["age"].clip(0, 100), data.group_by("city", keys=["a", "b"])
    half, whole = PureEpsilonEvent(0.25), PureEpsilonEvent(0.5)
    data.count(epsilon=0.5)
    age.mean(epsilon=0.5)
    age.quantile(0.5, epsilon=0.5)
    groups.count(epsilon=0.5)
    groups["age"].clip(0, 1).mean(epsilon=0.5)
    data.group_by("city", epsilon=0.5, delta=1e-6)
    assert [event for event, _ in data.ledger] == [
        whole,
        ComposedEvent((half, half)),
        ExponentialMechanismEvent(0.5),
        ParallelComposition((whole,)),
        ParallelComposition((ComposedEvent((half, half)),)),
        EpsilonDeltaEvent(0.5, 1e-6),
    ]
    assert data.ledger.epsilon(1e-6) == pytest.approx(3.0, rel=1e-6)
    seeded = table(random_source=SeededRandomSource(1))
    seeded.group_by("city", keys=["a"]).count(epsilon=1.0)
    assert [event for event, _ in seeded.ledger] == [NonPrivateEvent()]


def test_the_budget_refuses_what_it_does_not_cover_and_charges_nothing_for_it():
    data = table(budget=Budget(0.3, 1e-6))
    for _ in range(3):
        data.count(epsilon=0.1)
    assert data.left == pytest.approx(0, abs=1e-4)
    for ask in (
        lambda: data.count(epsilon=1e-3),
        lambda: data["age"].clip(0, 1).mean(epsilon=1e-3),
        lambda: data.group_by("city", epsilon=1e-3, delta=1e-9),
    ):
        with pytest.raises(PrivacyBudgetExceededError, match="What is left is epsilon .* Nothing"):
            ask()
    assert data.ledger.total_count == 3
    # Another object on the same ledger shares what was spent.
    other = table(ledger=data.ledger, budget=Budget(0.35, 1e-6))
    assert other.left == pytest.approx(0.05, rel=1e-2)


def test_groups_cost_what_one_group_costs():
    data = table(budget=Budget(1.0, 1e-6))
    groups = data.group_by("city", keys=[str(i) for i in range(100)])
    groups.count(epsilon=0.5)
    assert data.left == pytest.approx(0.5, rel=1e-4)
    groups["age"].clip(0, 1).sum(noise_multiplier=20.0)
    assert data.left > 0.2


def test_a_durable_ledger_is_charged_before_the_answer(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with PrivacyLedger.open(path, create=True) as ledger:
        data = table(ledger=ledger, budget=Budget(1.0, 1e-6))
        data.count(epsilon=0.5)
        data.group_by("city", keys=["a"]).count(epsilon=0.25)
    # Nothing was reserved ahead: a question is not asked again and again, as a step is.
    again = PrivacyLedger.load(path)
    assert again.total_count == 2 and again.epsilon(1e-6) == pytest.approx(0.75, rel=1e-4)
    assert PrivacyLedger.from_json_lines(again.to_json_lines()) == again


def test_keys_that_are_selected_have_enough_rows():
    cities = np.array(["big"] * 60 + ["small"] + ["bigger"] * 80 + [None] * 99, object)
    data = PrivateData({"city": cities})
    groups = data.group_by("city", epsilon=1.0, delta=1e-9)
    assert groups.keys == ("big", "bigger")
    assert groups.count(epsilon=10.0)["big"] == pytest.approx(60, abs=10)


def test_no_value_decides_what_is_refused():
    column = np.empty(len(VALUES), object)
    column[:] = VALUES
    for data in (
        PrivateData({"x": column}),
        PrivateData(Frame({"x": column})),
        PrivateData(column),
    ):
        name = "x" if "x" in data._columns else 0
        x = data[name].clip(-1, 1)
        for ask in (x.count, x.sum, x.mean):
            assert math.isfinite(ask(epsilon=1.0)) and math.isfinite(ask(noise_multiplier=1.0))
        x.quantile(0.5, epsilon=1.0)
        x.histogram([0, 1, 2], epsilon=1.0)
        data.group_by(name, keys=[1, "7"]).count(epsilon=1.0)
        data.group_by(name, epsilon=1.0, delta=1e-6)
        data.principal_components(1, l2_norm_clip=1.0, noise_multiplier=1.0)
    empty = PrivateData(np.zeros((0, 2)))
    assert math.isfinite(empty[0].clip(0, 1).mean(epsilon=1.0))
    assert empty.group_by(1, epsilon=1.0, delta=1e-6).count(epsilon=1.0) == {}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d["age"].sum(epsilon=1.0), "must be clipped first"),
        (lambda d: d["age"].clip(1, 1), "high must be above low"),
        (lambda d: d["city"].clip(0, 1).sum(), "Give either epsilon"),
        (lambda d: d.group_by("city"), "Give either keys"),
        (lambda d: d.group_by("city", epsilon=1.0), "Give either keys"),
        (lambda d: d["age"].histogram([1, 0], epsilon=1.0), "edges must be at least two"),
        (lambda d: d["age"].clip(0, 1).quantile(2.0, epsilon=1.0), "quantile must be"),
        (lambda d: d["wages"], "There is no column 'wages'"),
    ],
)
def test_questions_that_make_no_sense_are_refused_before_they_cost_anything(ask, message):
    data = table()
    with pytest.raises((ValueError, KeyError), match=message):
        ask(data)
    assert data.ledger.total_count == 0


def test_noise_of_answers_is_that_of_their_events(monkeypatch):
    """What a row moves in steps, and what noise each release of a question has."""
    released = []

    def add(noise, sums, source):
        released.append((noise, sums.tolist()))
        return sums / STEPS

    monkeypatch.setattr(Noise, "add", add)
    one = PrivateData(np.array([7.0]))
    assert one[0].clip(-2, 5).sum(epsilon=0.5) == 5.0
    assert one[0].clip(-2, 1).sum(epsilon=0.5) == 1.0
    assert one[0].clip(-2, 5).mean(epsilon=0.5) == 5.0
    assert one[0].clip(-2, 5).mean(noise_multiplier=2.0) == 5.0
    half, whole = Noise.of(0.25, None), Noise.of(0.5, None)
    each = Noise.of(None, 2.0).shared(2)
    assert released == [
        (whole, [STEPS]),
        (whole, [STEPS // 2]),  # Of a bound of 2.
        (half, [STEPS]),
        (half, [STEPS]),
        (each, [STEPS]),
        (each, [STEPS]),
    ]
    assert [event for event, _ in one.ledger][1:] == [
        ComposedEvent((noise.event(), noise.event())) for noise in (half, each)
    ]


# What is asked of two data sets that differ by the last row.
QUESTIONS = {
    "count": lambda d, e: d.count(epsilon=e),
    "sum": lambda d, e: d[0].clip(-2, 5).sum(epsilon=e),
    "mean": lambda d, e: d[0].clip(-2, 5).mean(epsilon=e),
    "quantile": lambda d, e: d[0].quantile(0.5, epsilon=e, candidates=[-1.0, 0.0]),
    "histogram": lambda d, e: d[0].histogram([-9, 0, 9], epsilon=e)[1],
    "groups": lambda d, e: d.group_by(0, keys=[0, 5])[0].clip(0, 5).sum(epsilon=e)[5],
    "gaussian": lambda d, e: d[0].clip(-2, 5).sum(noise_multiplier=2.0 / e),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_audit_finds_no_more_than_the_claim_and_finds_noise_that_is_too_small(name):
    rows = np.array([0.0, 0.0, 5.0])

    def bound(epsilon):
        runs = [
            [QUESTIONS[name](PrivateData(part), epsilon) for _ in range(400)]
            for part in (rows, rows[:-1])
        ]
        return epsilon_lower_bound(*runs, 1e-5, confidence=1 - 1e-7)

    data = PrivateData(rows)
    QUESTIONS[name](data, 0.3)
    claim = data.ledger.epsilon(1e-5)
    assert bound(0.3) <= claim
    # Noise that is far too small for the claim would be found out.
    assert bound(40.0) > claim
