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
    FullBatchSampling,
    NonPrivateEvent,
    ParallelComposition,
    PureEpsilonEvent,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger
from tfdp.noise import SeededRandomSource
from tfdp.statistics import PrivateData
from tfdp.statistics.noise import STEPS, Noise
from tfdp.statistics.table import first_of_each, is_first_in_group

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
    assert [event.event for event, _ in data.ledger] == [
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
    assert [event.event for event, _ in seeded.ledger] == [NonPrivateEvent()]


@pytest.mark.parametrize("person", [None, "city"])
def test_what_protects_a_row_is_no_part_of_what_protects_a_person(person):
    data = table(person=person, max_contributions=person and 2)
    data.count(epsilon=0.5)
    (entry,) = data.ledger
    assert entry.event.privacy_unit == ("example" if person is None else "user")
    # A person of several rows moves sums further than a row does.
    ledger = PrivacyLedger()
    other = "user" if person is None else "example"
    ledger.append(SampledEvent(FullBatchSampling(), PureEpsilonEvent(0.5), privacy_unit=other))
    data = table(ledger=ledger, person=person, max_contributions=person and 2)
    for ask in (data.count, data["age"].count, data.group_by("city", keys=["a"]).count):
        with pytest.raises(UnsupportedEventError, match="no common epsilon. Keep a ledger"):
            ask(epsilon=0.5)
    with pytest.raises(UnsupportedEventError, match="no common epsilon. Keep a ledger"):
        data.group_by("city", epsilon=0.5, delta=1e-6)
    assert ledger.total_count == 1 and ledger.epsilon(0.0) == pytest.approx(0.5)


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


def nasty(number):
    """Columns whose values set every flag of floating-point arithmetic."""
    signalling = np.zeros(number, np.float32)
    signalling.view(np.uint32)[::3] = 0x7FA00000
    short = np.zeros(number, np.float16)
    short.view(np.uint16)[::3] = 0x7D00
    tiny = np.resize([5e-324, 1e-160, 1.0, -1.7e308, np.nan], number)
    long = np.resize(np.array([np.finfo(np.longdouble).max, 1], np.longdouble), number)
    objects = np.empty(number, object)
    objects[:] = [(long[0], np.float32(1e-45), 10**5000, 5e-324)[i % 4] for i in range(number)]
    return {"f": signalling, "h": short, "t": tiny, "u": tiny[::-1], "g": long, "o": objects}


@pytest.mark.parametrize("person", [None, "t", "o"])
@pytest.mark.parametrize("setting", ["raise", "warn"])
def test_no_value_is_seen_in_the_state_of_floating_point_numbers(setting, person):
    columns = nasty(60)
    with np.errstate(all=setting):  # A warning is an error of every test.
        options = {} if person is None else {"person": person, "max_contributions": 20}
        data = PrivateData(columns, **options)
        for name in columns:
            groups = data.group_by(name, epsilon=1.0, delta=1e-6)
            keyed = data.group_by(name, keys=[1, 10**5000])
            assert set(groups.keys) <= set(groups.count(epsilon=1.0))
            for column in (data[name].clip(-3, 5), keyed[name].clip(-1e-30, 1e30)):
                for ask in (column.count, column.sum, column.mean):
                    ask(epsilon=1.0)
                    ask(noise_multiplier=1.0)
                column.quantile(0.5, epsilon=1.0)
                column.histogram([0, 5e-324, 1e-300, 1.0], epsilon=1.0)
            data.select_features(name, 2, epsilon=1.0)
        for center in (None, [1e308, -1.7e308, 0.0]):
            data[["f", "t", "u"]].principal_components(
                1, l2_norm_clip=1e-12, noise_multiplier=1.0, center=center
            )


def test_dates_are_refused_before_anything_is_paid():
    days = np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[s]")
    data = PrivateData({"day": days, "text": days.astype(str)})
    for arguments in ({"keys": ["2020-01-01"]}, {"epsilon": 1.0, "delta": 1e-6}):
        with pytest.raises(TypeError, match="Make texts of dates"):
            data.group_by("day", **arguments)
    assert data.ledger.total_count == 0
    with pytest.raises(TypeError, match="Make texts of dates"):
        PrivateData({"day": days}, person="day", max_contributions=1)
    key = str(days[0])
    assert data.group_by("text", keys=[key]).count(epsilon=LOUD)[key] == pytest.approx(1, abs=1e-3)


def test_number_of_candidates_may_be_numpys():
    for number in (np.int64(101), np.uint8(101), 101):
        age = table()["age"].clip(0, 100)
        assert age.quantile(0.5, epsilon=LOUD, candidates=number) in range(30, 51)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d[[]], "Name at least one column"),
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


ONE_COLUMN = "must be the name of one column"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d["age"].histogram(10, epsilon=1.0), "edges must be increasing.*edges=10"),
        (lambda d: d["age"].histogram(None, epsilon=1.0), "edges must be increasing.*edges=None"),
        (lambda d: d["age"].quantile(0.5, epsilon=1.0, candidates=10.0), "how many.*=10.0"),
        (lambda d: d["age"].quantile(0.5, epsilon=1.0, candidates=None), "how many.*=None"),
        (lambda d: d.group_by(["city"], keys=["a"]), f"name {ONE_COLUMN}.*type list"),
        (lambda d: d.group_by(["city"], epsilon=1.0, delta=1e-6), f"name {ONE_COLUMN}"),
        (lambda d: d.group_by("city", keys=["a"])[["age"]], f"name {ONE_COLUMN}.*type list"),
        (lambda d: d.select_features(["age"], 1, epsilon=1.0), f"target {ONE_COLUMN}.*type list"),
        (lambda d: d.select_features(AGES, 1, epsilon=1.0), f"target {ONE_COLUMN}.*type ndarray"),
        (lambda d: d[AGES > 30], f"name {ONE_COLUMN}.*type ndarray"),
        (lambda d: d[0:3], "rows cannot be chosen.*type slice"),
        (lambda d: d[["age", ["city"]]], f"name {ONE_COLUMN}.*type list"),
        (lambda d: d.group_by("city", keys=3), "keys must be a sequence.*keys=3"),
        (lambda d: d.group_by("city", keys="ab"), "keys must be a sequence.*keys='ab'"),
        (lambda d: d.group_by("city", keys=b"ab"), "keys must be a sequence.*keys=b'ab'"),
    ],
)
def test_arguments_of_other_types_are_refused_before_they_cost_anything(ask, message):
    data = table()
    with pytest.raises(TypeError, match=message):
        ask(data)
    assert data.ledger.total_count == 0


def test_keys_may_come_one_after_another():
    groups = table().group_by("city", keys=(key for key in "ab"))
    assert groups.keys == ("a", "b")
    assert groups.count(epsilon=LOUD) == pytest.approx({"a": 2, "b": 2}, abs=1e-3)


@pytest.mark.parametrize("source", [np.random.default_rng(0), 3], ids=["generator", "seed"])
def test_what_is_no_random_source_is_refused(source):
    with pytest.raises(TypeError, match="random_source must be a tfdp.noise.RandomSource or None"):
        table(random_source=source)


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
    assert [event.event for event, _ in one.ledger][1:] == [
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


# Rows of persons.

PEOPLE = np.array(["ann", "bob", "ann", "ann", None, "bob", "eve", 3.5, float("nan")], object)
WAGES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.nan, 7.0, 8.0, 9.0])
TOWNS = np.array(["x", "x", "y", "x", "x", "y", "y", "x", "x"], object)


def persons(most=2, **options):
    columns = {"who": PEOPLE, "wage": WAGES, "town": TOWNS}
    return PrivateData(columns, person="who", max_contributions=most, **options)


def test_the_first_rows_of_every_person_take_part():
    wage = persons()["wage"].clip(0, 10)
    assert wage.sum(epsilon=LOUD) == pytest.approx(1 + 2 + 3 + 7 + 8, abs=0.1)
    assert wage.count(epsilon=LOUD) == pytest.approx(5, abs=1e-3)
    assert persons().count(epsilon=LOUD) == pytest.approx(6, abs=1e-3)
    assert persons(1)["wage"].clip(0, 10).sum(epsilon=LOUD) == pytest.approx(18, abs=0.1)
    assert persons(99).count(epsilon=LOUD) == pytest.approx(7, abs=1e-3)
    towns = persons().group_by("town", keys=["x", "y"])
    assert towns.count(epsilon=LOUD) == pytest.approx({"x": 3, "y": 3}, abs=1e-3)
    found = towns["wage"].clip(0, 10).quantile(1, epsilon=LOUD, candidates=[2.5, 7.5, 8.5])
    assert found["x"] == 8.5 and found["y"] in (7.5, 8.5)


def test_which_rows_are_kept_follows_ids_alone():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.integers(-1, 4, size=12)
        kept = first_of_each(ids, 2)
        # The slow, obvious twin.
        expected = [i for i, who in enumerate(ids) if who >= 0 and sum(ids[:i] == who) < 2]
        assert kept.tolist() == expected
        # Without one person, the rows of all others are the same.
        for who in range(4):
            rest = np.flatnonzero(ids != who)
            others = rest[first_of_each(ids[rest], 2)]
            assert others.tolist() == [i for i in expected if ids[i] != who]


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_questions_about_persons_cost_what_they_say(most, grouped):
    def data():
        made = persons(most)
        keyed = made.group_by("town", keys=["x", "y"]) if grouped else made
        return made.ledger, keyed, keyed["wage"].clip(0, 10)

    for ask in (
        lambda keyed, wage: keyed.count(epsilon=0.5),
        lambda keyed, wage: wage.mean(epsilon=0.5),
        lambda keyed, wage: wage.histogram([0, 5, 10], epsilon=0.5),
        lambda keyed, wage: wage.quantile(0.5, epsilon=0.5),
    ):
        ledger, keyed, wage = data()
        ask(keyed, wage)
        assert ledger.epsilon(0.0) == pytest.approx(0.5, rel=1e-9)
        (entry,) = ledger
        assert entry.event.privacy_unit == "user"
    ledger, keyed, wage = data()
    wage.sum(noise_multiplier=8.0)
    plain = PrivateData(WAGES)
    plain[0].clip(0, 10).sum(noise_multiplier=8.0)
    assert ledger.epsilon(1e-6) == pytest.approx(plain.ledger.epsilon(1e-6), rel=1e-3)


def test_features_and_components_of_persons_cost_what_they_say():
    columns = {"who": PEOPLE, "a": WAGES / 9, "b": -WAGES / 9}
    data = PrivateData(columns, person="who", max_contributions=3)
    data.select_features("a", 1, epsilon=0.25)
    assert data.ledger.epsilon(0.0) == pytest.approx(0.25)
    data = PrivateData(columns, person="who", max_contributions=3)[["a", "b"]]
    data.principal_components(1, l2_norm_clip=1.0, noise_multiplier=6.0)
    one = PrivateData(np.stack([WAGES, WAGES], 1))
    one.principal_components(1, l2_norm_clip=1.0, noise_multiplier=6.0)
    assert data.ledger.epsilon(1e-6) == pytest.approx(one.ledger.epsilon(1e-6), rel=1e-3)


def test_noise_of_rows_is_larger_by_their_number(monkeypatch):
    released = []

    def add(noise, sums, source):
        released.append(noise)
        return sums / STEPS

    monkeypatch.setattr(Noise, "add", add)
    data = persons(4)
    data.count(epsilon=2.0)
    data.count(noise_multiplier=3.0)
    assert released == [Noise(0.5, None), Noise(None, 12.0)]
    epsilon, gaussian = (entry.event.event for entry in data.ledger)
    assert epsilon == PureEpsilonEvent(2.0)
    assert (gaussian.l2_norm_bound, gaussian.noise_stddev) == (4.0, 12.0)


def test_keys_are_selected_by_numbers_of_persons():
    # One person with many rows of one town is one person there.
    people = np.array(["one"] * 200 + [f"p{i}" for i in range(200)], object)
    towns = np.array(["rare"] * 200 + ["common"] * 200, object)
    data = PrivateData({"who": people, "town": towns}, person="who", max_contributions=200)
    same_group = np.zeros(200, np.int64)
    assert is_first_in_group(data._persons[:200], same_group).sum() == 1
    # A group of one person is found with probability delta / 200, whatever epsilon is.
    assert data.group_by("town", epsilon=1e5, delta=1e-9).keys == ("common",)
    data = PrivateData({"who": people, "town": towns}, person="who", max_contributions=1)
    assert data.group_by("town", epsilon=2.0, delta=1e-9).keys == ("common",)
    (entry,) = data.ledger
    assert entry.event.event == EpsilonDeltaEvent(2.0, 1e-9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"person": "who"}, ValueError, "together"),
        ({"max_contributions": 2}, ValueError, "together"),
        ({"person": "name", "max_contributions": 2}, KeyError, "There is no column 'name'"),
        ({"person": "who", "max_contributions": 0}, ValueError, "max_contributions"),
        ({"person": ["who"], "max_contributions": 2}, TypeError, f"person {ONE_COLUMN}.*list"),
        # Values of a column, which no message shows.
        ({"person": PEOPLE}, TypeError, f"person {ONE_COLUMN}.*person of type ndarray.$"),
    ],
)
def test_bounds_of_persons_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivateData({"who": PEOPLE, "wage": WAGES}, **arguments)


@pytest.mark.parametrize("name", ["sum", "groups"])
def test_audit_of_persons(name):
    """All three rows of a person are taken away at once."""
    who = np.array(["a", "b", "c", "c", "c"], object)
    values = np.array([0.0, 0.0, 5.0, 5.0, 5.0])

    def bound(epsilon):
        parts = []
        for rows in (slice(None), slice(2)):
            columns = {0: values[rows], "who": who[rows]}
            data = PrivateData(columns, person="who", max_contributions=3)
            parts.append([QUESTIONS[name](data, epsilon) for _ in range(400)])
        return epsilon_lower_bound(*parts, 1e-5, confidence=1 - 1e-7)

    assert bound(0.3) <= 0.3
    assert bound(40.0) > 0.3
