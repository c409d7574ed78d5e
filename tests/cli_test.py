"""The command line: `tfdp replay` and `tfdp export`."""

import json
import os
import subprocess
import sys

import pytest

from tfdp.cli import main
from tfdp.ledger import (
    ComposedEvent,
    FixedSizeSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PrivacyLedger,
    SampledEvent,
)

POISSON = PoissonSampling(256 / 60_000, 60_000)
STEP = SampledEvent(POISSON, ComposedEvent((GaussianSumEvent(1.0, 1.1),)))


@pytest.fixture
def save(tmp_path):
    def save(*pairs):
        ledger = PrivacyLedger()
        for event, count in pairs:
            ledger.append(event, count)
        ledger.save(tmp_path / "run.ledger")
        return ledger, str(tmp_path / "run.ledger")

    return save


def _run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_replay_says_what_was_done_and_what_it_costs(save, capsys):
    groups = ComposedEvent((GaussianSumEvent(3.0, 6.0), GaussianSumEvent(0.5, 1.0)))
    fixed = SampledEvent(FixedSizeSampling(10, 60_000), groups, privacy_unit="example")
    ledger, path = save((STEP, 3), (fixed, 2), (STEP, 14_037))
    status, out, err = _run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
    assert (status, err) == (0, "")
    # Two groups of multiplier 2 are sqrt(2) together, halved since the sample's size is fixed.
    expected = f"""\
ledger {ledger.ledger_id}: 14042 steps

14040 x
  sampling: PoissonSampling (sampling_probability 0.004266666666666667, population_size 60000)
  neighbours: add_or_remove_one, unit: example
  sum: l2 norm bound 1, noise stddev 1.1
  effective noise multiplier: 1.1

2 x
  sampling: FixedSizeSampling (sample_size 10, population_size 60000)
  neighbours: add_or_remove_one, unit: example
  sum: l2 norm bound 3, noise stddev 6
  sum: l2 norm bound 0.5, noise stddev 1
  effective noise multiplier: 0.707107

epsilon = """
    assert out.startswith(expected)
    assert out.endswith(" at delta = 1e-05 (rdp)\n")


def test_replay_as_json(save, capsys):
    ledger, path = save((STEP, 14_040))
    names = ["rdp", "pld", "dp_accounting.rdp"]
    flags = [part for name in names for part in ("--accountant", name)]
    status, out, err = _run(capsys, "replay", path, "--delta", "1e-5", "--json", *flags)
    summary = json.loads(out)
    assert (status, err, list(summary["epsilon"])) == (0, "", names)
    # Reference numbers for q = 256/60000, z = 1.1, 14040 steps, delta 1e-5.
    assert summary["epsilon"]["rdp"] == pytest.approx(2.59436, rel=1e-5)
    assert summary["epsilon"]["pld"] == pytest.approx(2.37964, rel=1e-5)
    assert summary["epsilon"]["dp_accounting.rdp"] == pytest.approx(2.59436, rel=1e-5)
    assert summary["ledger_id"] == ledger.ledger_id
    assert (summary["steps"], summary["delta"]) == (14_040, 1e-5)
    assert summary["mechanisms"][0]["noise_multiplier"] == 1.1
    assert summary["not_private_because"] == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (GaussianSumEvent(1.0, 1.0, seeded=True), "seed"),
        (GaussianSumEvent(1.0, 0.0), "noise was zero"),
        (NonPrivateEvent(), "NonPrivateEvent"),
        (SampledEvent(POISSON, ComposedEvent((NonPrivateEvent(),))), "NonPrivateEvent"),
    ],
)
def test_not_private_is_inf_and_says_why(save, capsys, event, reason):
    _, path = save((STEP, 10), (event, 1))
    status, out, _ = _run(capsys, "replay", path, "--delta", "1e-5")
    assert status == 0
    assert "epsilon = inf at delta = 1e-05 (rdp)" in out
    assert "epsilon = inf at delta = 1e-05 (pld)" in out
    assert reason in out.splitlines()[-1]
    _, out, _ = _run(capsys, "replay", path, "--delta", "1e-5", "--json")
    summary = json.loads(out)
    assert summary["epsilon"] == {"rdp": "inf", "pld": "inf"}
    assert reason in summary["not_private_because"][0]


def test_private_does_not_say_not_private(save, capsys):
    _, path = save((STEP, 10))
    assert "not private" not in _run(capsys, "replay", path, "--delta", "1e-5")[1]


def test_empty_ledger_costs_nothing(save, capsys):
    _, path = save()
    status, out, _ = _run(capsys, "replay", path, "--delta", "1e-5")
    assert status == 0
    assert "epsilon = 0 at delta = 1e-05 (pld)" in out


def test_export_prints_json_lines_that_replay_reads(save, capsys, tmp_path):
    ledger, path = save((STEP, 3))
    status, out, err = _run(capsys, "export", path)
    assert (status, err) == (0, "")
    assert PrivacyLedger.from_json_lines(out) == ledger
    (tmp_path / "run.jsonl").write_text(out)
    from_file = _run(capsys, "replay", path, "--delta", "1e-5")
    assert _run(capsys, "replay", str(tmp_path / "run.jsonl"), "--delta", "1e-5") == from_file


@pytest.mark.parametrize("delta", ["0", "1", "-1", "nan", "inf", "small"])
def test_bad_delta(save, capsys, delta):
    _, path = save((STEP, 3))
    status, out, err = _run(capsys, "replay", path, f"--delta={delta}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--delta must be a number between 0 and 1. Received: --delta {delta}" in err


@pytest.mark.parametrize("name", ["run.ledger", "run.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"text\n", b"SQLite format 3\x00" + bytes(2000)])
def test_bad_ledger(tmp_path, capsys, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    status, out, err = _run(capsys, "replay", str(path), "--delta", "1e-5")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfdp: ")


def test_unsupported_event_is_an_error_not_a_number(save, capsys):
    step = SampledEvent(POISSON, GaussianSumEvent(1.0, 1.1), NeighboringRelation.REPLACE_ONE)
    _, path = save((step, 3))
    status, out, err = _run(capsys, "replay", path, "--delta", "1e-5")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "PoissonSampling" in err


@pytest.mark.parametrize(
    "arguments", [[], ["replay"], ["replay", "x", "--delta", "1e-5", "--accountant", "magic"]]
)
def test_bad_usage(capsys, arguments):
    status, out, err = _run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "usage" in err


def test_fast_and_without_tensorflow(save):
    _, path = save((STEP, 14_040))
    program = (
        "import sys, tfdp.cli; status = tfdp.cli.main(); "
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules]); sys.exit(status)"
    )
    before = os.times()
    result = subprocess.run(
        [sys.executable, "-c", program, "replay", path, "--delta", "1e-5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "[]"
    # Processor time of the child, which other processes do not add to. The aim is two seconds, and
    # machines differ.
    assert seconds < 4


def test_module_is_the_command_line():
    result = subprocess.run(
        [sys.executable, "-m", "tfdp", "replay", "/nonexistent", "--delta", "1e-5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 2
    assert result.stderr.startswith("tfdp: There is no ledger at")
