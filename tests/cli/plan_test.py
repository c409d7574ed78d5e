"""`tfdp plan`: one table as text, CSV, JSON and a plot."""

import csv
import io
import json
import math

import pytest

from tests.cli.running import BUDGET, calibrate, run
from tfdp.cli.common import rounded_up


def test_plan_as_text_csv_json_and_plot(capsys, tmp_path):
    flags = [*BUDGET, "--epsilon", "1", "8", "--batch-size", "64", "1024", "--epochs", "20"]
    plot = tmp_path / "plan.png"
    status, out, err = run(capsys, "plan", *flags, "--plot", str(plot))
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 3 + 4
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO(run(capsys, "plan", *flags, "--format", "csv")[1])))
    records = json.loads(run(capsys, "plan", *flags, "--format", "json")[1])["rows"]
    assert json.loads(run(capsys, "plan", *flags, "--json")[1])["rows"] == records
    for row, record, line in zip(rows, records, out.splitlines()[3:], strict=True):
        assert float(row["noise_multiplier"]) == record["noise_multiplier"]
        assert rounded_up(record["noise_multiplier"]) in line
        assert record["noise_batch_ratio"] == record["noise_multiplier"] / record["batch_size"]
    found = calibrate(capsys, "--epsilon", "8", "--batch-size", "1024", "--epochs", "20")
    assert records[-1]["noise_multiplier"] == found["noise_multiplier"]


def test_plan_over_steps_with_default_batch_sizes(capsys):
    flags = [*BUDGET, "--epsilon", "1", "--steps", "10", "100", "--format", "json"]
    rows = json.loads(run(capsys, "plan", *flags)[1])["rows"]
    assert [row["steps"] for row in rows] == [10] * 6 + [100] * 6
    assert all(math.isfinite(row["noise_multiplier"]) for row in rows)


@pytest.mark.parametrize(("delta", "large"), [("1e-2", True), ("1e-3", True), ("9e-4", False)])
def test_plan_warns_of_a_useless_delta(capsys, delta, large):
    words = ["plan", "--delta", delta, "--population", "1000", "--accountant", "rdp"]
    words += ["--epsilon", "1", "--steps", "10", "--batch-size", "100"]
    status, out, err = run(capsys, *words)
    assert (status, err, "\ncareful: delta = " in out) == (0, "", large)
    assert bool(json.loads(run(capsys, *words, "--json")[1])["warnings"]) == large
    _, out, err = run(capsys, *words, "--format", "csv")
    assert len(out.splitlines()) == 2 and err.startswith("tfdp: careful: ") == large


def test_the_table_shows_no_less_than_it_takes(capsys):
    words = ["plan", "--delta", "1.0000001e-5", "--population", "60000", "--accountant", "rdp"]
    words += ["--epsilon", "1.0000001", "--steps", "10", "20", "30", "40", "--batch-size", "256"]
    rows = json.loads(run(capsys, *words, "--json")[1])["rows"]
    head, _, _, *lines = run(capsys, *words)[1].splitlines()
    assert "delta = 1.00001e-05" in head
    for row, line in zip(rows, lines, strict=True):
        epsilon, *_, noise, _ = map(float, line.split())
        assert epsilon >= row["target_epsilon"] == 1.0000001
        assert row["noise_multiplier"] <= noise <= row["noise_multiplier"] * (1 + 1e-5)
