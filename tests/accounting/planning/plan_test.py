"""tfdp.accounting.plan: tables of what a budget buys."""

import csv
import io
import json

import numpy as np
import pytest

from tfdp.accounting import calibrate, plan
from tfdp.accounting.planning.plan import default_batch_sizes
from tfdp.events.shown import shown_up

COMMON = {"target_delta": 1e-5, "population_size": 60_000, "accountant": "rdp"}


def _table(**changes):
    arguments = {"target_epsilons": [1.0, 8.0], "batch_sizes": [64, 1024], "epochs": [2, 20]}
    return plan(**{**arguments, **COMMON, **changes})


def test_every_combination_is_calibrated():
    table = _table()
    assert [(r.target_epsilon, r.length, r.batch_size) for r in table.rows] == [
        (epsilon, f"{epochs} epochs", size)
        for epsilon in (1.0, 8.0)
        for epochs in (2, 20)
        for size in (64, 1024)
    ]
    for row in table.rows:
        found = calibrate(
            target_epsilon=row.target_epsilon,
            batch_size=row.batch_size,
            epochs=int(row.length.split()[0]),
            **COMMON,
        )
        assert row.plan == found
        assert row.steps == found.steps
        assert row.plan.epsilon(1e-5, "rdp") <= row.target_epsilon


def test_progress_is_told_after_each_row():
    told = []
    changes = {"target_epsilons": [8.0], "epochs": [2], "batch_sizes": [64, 128, 256]}
    table = _table(**changes, progress=lambda *counts: told.append(counts))
    assert table == _table(**changes)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_ratio_falls_with_batch_and_budget_and_rises_with_steps():
    """At a number of steps the ratio gains from every larger batch: McKenna et al. 2025."""
    table = _table(epochs=(), steps=[100, 1000], batch_sizes=[64, 1024, 16_384, 60_000])
    ratio = {
        (r.target_epsilon, r.steps, r.batch_size): r.plan.noise_batch_ratio for r in table.rows
    }
    for (epsilon, steps, size), value in ratio.items():
        for other, smaller in [
            ((8.0, steps, size), epsilon != 8.0),
            ((epsilon, 100, size), steps != 100),
            ((epsilon, steps, 60_000), size != 60_000),
        ]:
            assert not smaller or ratio[other] < value


def test_text_csv_and_json_say_the_same():
    table = _table()
    from_csv = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert "\r" not in table.to_csv()
    from_json = json.loads(table.to_json())
    assert from_json["population_size"] == 60_000
    assert (from_json["delta"], from_json["accountant"]) == (1e-5, "rdp")
    lines = table.to_text().splitlines()
    assert lines[0] == "60000 units, delta = 1e-05, rdp"
    assert len(lines) == 3 + len(table.rows)
    for row, left, right, line in zip(
        table.rows, from_csv, from_json["rows"], lines[3:], strict=True
    ):
        assert {name: float(value) for name, value in left.items()} == {
            name: value for name, value in right.items() if name != "problem"
        }
        assert right["epochs"] == pytest.approx(row.steps * row.batch_size / 60_000, rel=1e-12)
        assert right["problem"] is None
        assert right["noise_multiplier"] == row.plan.noise_multiplier
        assert right["noise_batch_ratio"] == row.plan.noise_multiplier / row.batch_size
        assert line.split()[0] == f"{row.target_epsilon:g}"
        assert line.split()[-1] == shown_up(row.plan.noise_batch_ratio)


def test_a_budget_out_of_reach_is_a_row_that_says_why():
    class NeverBelow:
        def compose(self, event, count):
            pass

        def get_epsilon(self, target_delta):
            return 5.0 if not hasattr(self, "free") else 0.0

    table = _table(accountant=NeverBelow, batch_sizes=[64], epochs=[2], target_epsilons=[1.0])
    (row,) = table.rows
    assert row.plan is None
    assert "it is still 5" in row.problem
    assert "-" in table.to_text().splitlines()[3].split()
    assert table.to_text().endswith(row.problem)
    (found,) = json.loads(table.to_json())["rows"]
    assert (found["noise_batch_ratio"], found["problem"]) == (None, row.problem)
    assert list(csv.DictReader(io.StringIO(table.to_csv())))[0]["noise_multiplier"] == ""


def test_default_batch_sizes():
    assert default_batch_sizes(60_000) == (64, 256, 1024, 4096, 16_384, 60_000)
    assert default_batch_sizes(64) == (64,)
    assert default_batch_sizes(10) == (10,)
    sizes = [row.batch_size for row in _table(batch_sizes=None, epochs=[2]).rows]
    assert sizes == [*default_batch_sizes(60_000)] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": [10]}, "steps or epochs"),
        ({"epochs": ()}, "steps or epochs"),
        ({"batch_sizes": []}, "at least one"),
        ({"target_epsilons": []}, "at least one"),
        ({"batch_sizes": [60_001]}, "batch_size must be at most"),
        ({"target_epsilons": [-1.0]}, "target_epsilon must be"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        _table(**changes)


def test_the_table_shows_no_less_than_it_takes():
    table = plan(
        [1.0000001], 1.0000001e-5, population_size=60_000, batch_sizes=[256], steps=[10, 20, 30]
    )
    head, _, _, *lines = table.to_text().splitlines()
    assert "delta = 1.00001e-05" in head
    for row, line in zip(table.rows, lines, strict=True):
        epsilon, *_, noise, ratio = map(float, line.split())
        assert epsilon >= 1.0000001
        assert row.plan.noise_multiplier <= noise
        assert row.plan.noise_batch_ratio <= ratio


def test_whole_numbers_of_the_table_stand_in_full():
    rows = plan([2.0], 1e-5, population_size=60_000, batch_sizes=[64], steps=[1_234_561])
    assert " 1234561 " in rows.to_text()


def test_arrays_are_lists_of_numbers():
    kinds = {
        "target_epsilons": np.array([1.0, 8.0], "float32"),
        "batch_sizes": np.array([64, 1024], np.uint16),
        "epochs": None,
        "steps": np.array([100]),
    }
    arrays = _table(**{**kinds, "epochs": ()})
    lists = _table(target_epsilons=[1.0, 8.0], batch_sizes=[64, 1024], epochs=(), steps=[100])
    assert arrays == lists
    assert json.loads(arrays.to_json()) == json.loads(lists.to_json())


@pytest.mark.parametrize(
    ("name", "number"),
    [("target_epsilons", 1.0), ("batch_sizes", 64), ("epochs", 2), ("steps", 5), ("epochs", "2")],
)
def test_one_number_is_no_list(name, number):
    changes = {"epochs": (), name: number} if name == "steps" else {name: number}
    with pytest.raises(TypeError, match=f"{name} must be a list"):
        _table(**changes)
