"""`tfdp replay`: what was done, what it costs, in words, as JSON and as a curve."""

import csv
import io
import json
import re

import pytest

from tests.cli.running import POISSON, STEP, UNKEYED, run
from tfdp.accounting import RDPAccountant
from tfdp.cli.common import rounded_up
from tfdp.events import (
    ComposedEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
)
from tfdp.ledger import PrivacyLedger


def test_replay_says_what_was_done_and_what_it_costs(save, capsys):
    groups = ComposedEvent((GaussianSumEvent(3.0, 6.0), GaussianSumEvent(0.5, 1.0)))
    fixed = SampledEvent(FixedSizeSampling(10, 60_000), groups, privacy_unit="example")
    ledger, path = save((STEP, 3), (fixed, 2), (STEP, 14_037))
    status, out, err = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
    assert (status, err) == (0, "")
    # Two groups of multiplier 2 are sqrt(2) together, halved since the sample's size is fixed.
    expected = f"""\
not authenticated: without a key its digests show accidents only
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
  effective noise multiplier: 0.707106

epsilon = """
    assert out.startswith(expected)
    assert out.endswith(" at delta = 1e-05 (rdp)\n")
    epsilon = ledger.epsilon(1e-5, RDPAccountant())
    shown = out[len(expected) :].split()[0]
    assert epsilon <= float(shown) < epsilon * (1 + 1e-5)


def test_replay_promises_no_less_than_was_shown(save, capsys):
    ledger, path = save((STEP, 40))
    flags = ["--delta", "1.23456789e-5", "--accountant", "rdp", "--every", "1"]
    _, out, _ = run(capsys, "replay", path, *flags)
    curve = re.findall(r"^after .*: epsilon = (\S+) \(rdp\)$", out, re.MULTILINE)
    assert len(curve) == 40
    for steps, shown in enumerate(curve, 1):
        exact = RDPAccountant().compose(STEP, steps).get_epsilon(1.23456789e-5)
        assert exact <= float(shown) < exact * (1 + 1e-5)
    assert f"epsilon = {curve[-1]} at delta = 1.23456789e-05 (rdp)" in out


def test_replay_as_json(save, capsys):
    ledger, path = save((STEP, 14_040))
    names = ["rdp", "pld", "dp_accounting.rdp"]
    flags = [part for name in names for part in ("--accountant", name)]
    status, out, err = run(capsys, "replay", path, "--delta", "1e-5", "--json", *flags)
    summary = json.loads(out)
    assert (status, err, list(summary["epsilon"])) == (0, "", names)
    # Reference numbers for q = 256/60000, z = 1.1, 14040 steps, delta 1e-5.
    assert summary["epsilon"]["rdp"] == pytest.approx(2.59436, rel=1e-5)
    assert summary["epsilon"]["pld"] == pytest.approx(2.37964, rel=1e-5)
    assert summary["epsilon"]["dp_accounting.rdp"] == pytest.approx(2.59436, rel=1e-5)
    assert summary["ledger_ids"] == [ledger.ledger_id]
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
    status, out, _ = run(capsys, "replay", path, "--delta", "1e-5")
    assert status == 0
    assert "epsilon = inf at delta = 1e-05 (prv)" in out
    assert reason in out.splitlines()[-1]
    _, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--json")
    summary = json.loads(out)
    assert summary["epsilon"] == {"prv": "inf"}
    assert reason in summary["not_private_because"][0]


def test_private_does_not_say_not_private(save, capsys):
    _, path = save((STEP, 10))
    assert "not private" not in run(capsys, "replay", path, "--delta", "1e-5")[1]


@pytest.mark.parametrize(("delta", "large"), [("0.01", True), ("1.6e-5", False)])
def test_delta_of_one_in_the_population_is_named(save, capsys, delta, large):
    _, path = save((STEP, 10))
    words = ["replay", path, "--delta", delta, "--accountant", "rdp"]
    assert ("careful: " in run(capsys, *words)[1].splitlines()[-1]) == large
    assert bool(json.loads(run(capsys, *words, "--json")[1])["warnings"]) == large
    _, path = save((GaussianSumEvent(1.0, 2.0), 1))
    assert "careful" not in run(capsys, "replay", path, "--delta", "0.01")[1]


def test_delta_is_held_against_the_population_of_any_kind_of_step(save, capsys):
    others = [(GaussianSumEvent(1.0, 100.0 + i), 1) for i in range(120)]  # 100 kinds are listed.
    _, path = save(*others, (STEP, 1))
    words = ["replay", path, "--delta", "0.01", "--accountant", "rdp"]
    assert "careful: " in run(capsys, *words)[1].splitlines()[-1]


def test_bounds_that_are_drawn_say_so(save, capsys):
    _, path = save((GaussianSumEvent(1.0, 2.0), 1))
    options = ("--delta", "1e-3", "--accountant", "monte_carlo", "--accountant", "prv")
    _, out, _ = run(capsys, "replay", path, *options)
    drawn, proven = out.splitlines()[-2:]
    assert "(monte_carlo), an upper bound with probability 0.999999 only" in drawn
    assert proven.endswith("(prv)")
    summary = json.loads(run(capsys, "replay", path, *options, "--json")[1])
    assert summary["confidence"] == {"monte_carlo": 1 - 1e-6}


def test_empty_ledger_costs_nothing(save, capsys):
    _, path = save()
    status, out, _ = run(capsys, "replay", path, "--delta", "1e-5")
    assert status == 0
    epsilon, said = out.splitlines()[-2:]
    assert epsilon == "epsilon = 0 at delta = 1e-05 (prv)"
    assert said.startswith("no private step was taken: nothing is known of weights")
    assert json.loads(run(capsys, "replay", path, "--delta", "1e-5", "--json")[1])["warnings"] == [
        said
    ]
    _, path = save((STEP, 1))
    assert "no private step" not in run(capsys, "replay", path, "--delta", "1e-5")[1]


@pytest.mark.parametrize("delta", ["0", "1", "-1", "nan", "inf", "small"])
def test_bad_delta(save, capsys, delta):
    _, path = save((STEP, 3))
    status, out, err = run(capsys, "replay", path, f"--delta={delta}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--delta must be a number between 0 and 1. Received: --delta {delta}" in err


@pytest.mark.parametrize("name", ["run.ledger", "run.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"text\n", b"SQLite format 3\x00" + bytes(2000)])
def test_bad_ledger(tmp_path, capsys, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    status, out, err = run(capsys, "replay", str(path), "--delta", "1e-5")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfdp: ")


def test_unsupported_event_is_an_error_not_a_number(save, capsys):
    step = SampledEvent(
        POISSON, ComposedEvent((GaussianSumEvent(1.0, 1.1), LaplaceSumEvent(1.0, 1.1)))
    )
    _, path = save((step, 3))
    status, out, err = run(capsys, "replay", path, "--delta", "1e-5")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "LaplaceSumEvent" in err


def test_other_mechanisms_are_shown_too(save, capsys):
    laplace = SampledEvent(POISSON, LaplaceSumEvent(1.0, 3.0))
    _, path = save((laplace, 3))
    status, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
    assert status == 0
    assert "  release: LaplaceSumEvent(l1_norm_bound=1.0, noise_scale=3.0, seeded=False)" in out
    assert "effective noise multiplier" not in out
    summary = json.loads(run(capsys, "replay", path, "--delta", "1e-5", "--json")[1])
    assert summary["mechanisms"][0]["noise_multiplier"] is None


OTHER = SampledEvent(POISSON, GaussianSumEvent(1.0, 2.0))


def _epsilon(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger.replay(RDPAccountant()).get_epsilon(1e-5)


def _shown(out):
    return float(out.splitlines()[-1].split()[2])


def test_several_ledgers_are_composed(save, capsys):
    (first, path), (second, other) = save((STEP, 300)), save((OTHER, 40))
    flags = ("--delta", "1e-5", "--accountant", "rdp")
    status, out, err = run(capsys, "replay", path, other, *flags)
    assert (status, err) == (0, "")
    assert out.startswith(f"{UNKEYED}\nledgers {first.ledger_id}, {second.ledger_id}: 340 steps\n")
    assert _shown(out) == pytest.approx(_epsilon((STEP, 300), (OTHER, 40)), rel=1e-5)
    status, out, err = run(capsys, "replay", path, path, *flags)
    assert (status, out) == (2, "")
    assert "copies of one ledger" in err


def test_partial_replay(save, capsys):
    ledger, path = save((STEP, 300), (OTHER, 40))
    flags = ("--delta", "1e-5", "--accountant", "rdp")
    _, out, _ = run(capsys, "replay", path, *flags, "--steps", "310")
    assert out.startswith(
        f"{UNKEYED}\nledger {ledger.ledger_id}: first 310 of 340 steps\n\n300 x\n"
    )
    assert "\n10 x\n" in out
    assert _shown(out) == pytest.approx(_epsilon((STEP, 300), (OTHER, 10)), rel=1e-5)
    status, _, err = run(capsys, "replay", path, *flags, "--steps", "341")
    assert status == 2
    assert "hold 340 steps" in err


def test_curve_as_csv_and_as_plot(save, capsys, tmp_path):
    _, path = save((STEP, 300), (OTHER, 40))
    flags = ("--delta", "1e-5", "--accountant", "rdp", "--accountant", "dp_accounting.rdp")
    out = tmp_path / "curve.csv"
    status, whole, err = run(capsys, "replay", path, *flags, "--every", "100", "--out", str(out))
    assert (status, err) == (0, "")
    said = f"wrote {out}: epsilon over the steps\n"
    assert whole == run(capsys, "replay", path, *flags)[1] + said
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [int(row["steps"]) for row in rows] == [100, 200, 300, 340]
    for row, pairs in zip(
        rows, [[(STEP, 100)], [(STEP, 200)], [(STEP, 300)], [(STEP, 300), (OTHER, 40)]], strict=True
    ):
        assert float(row["rdp"]) == pytest.approx(_epsilon(*pairs), rel=1e-9)
        assert float(row["dp_accounting.rdp"]) == pytest.approx(_epsilon(*pairs), rel=0.3)
    # Without a file the curve is printed.
    status, printed, err = run(capsys, "replay", path, *flags, "--every", "100")
    points = [line for line in printed.splitlines() if line.startswith("after ")]
    assert (status, err, len(points)) == (0, "", 4) and "wrote" not in printed
    shown = rounded_up(float(rows[0]["rdp"]))
    assert points[0].startswith(f"after 100 steps: epsilon = {shown} (rdp), ")
    found = json.loads(run(capsys, "replay", path, *flags, "--every", "100", "--json")[1])
    assert [point["steps"] for point in found["curve"]] == [100, 200, 300, 340]
    assert found["curve"][3]["epsilon"] == found["epsilon"]
    plot = tmp_path / "curve.png"
    assert run(capsys, "replay", path, *flags, "--every", "100", "--out", str(plot))[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "flags",
    [["--every", "0"], ["--out", "x.csv"], ["--every", "0", "--out", "x.csv"], ["--steps", "0"]],
    ids="-".join,
)
def test_bad_parts_of_a_replay(save, capsys, tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    _, path = save((STEP, 3))
    status, out, err = run(capsys, "replay", path, "--delta", "1e-5", *flags)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "x.csv").exists()


def test_many_kinds_of_steps_are_summed_up(save, capsys):
    steps = [SampledEvent(POISSON, GaussianSumEvent(1.0, 1.0 + i)) for i in range(150)]
    _, path = save(*[(step, 2) for step in steps])
    _, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
    assert out.count("\n2 x\n") == 20
    assert "\n260 x\n  others\n" in out
    _, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp", "--json")
    summary = json.loads(out)
    assert len(summary["mechanisms"]) == 100
    assert summary["steps_of_other_mechanisms"] == 100
    assert summary["rounded_to_digits"] is None


def test_a_search_is_not_said_to_declare_no_sampling(save, capsys):
    run_of = RunEvent((SampledEvent(POISSON, GaussianSumEvent(1.0, 2.0)),), (10,))
    for event, expected in (
        (SelectedRunEvent((run_of,), 1.0, 0.1), "that of the steps of each run"),
        (GaussianSumEvent(1.0, 2.0), "none declared, every unit in every step"),
    ):
        _, path = save((event, 1))
        _, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
        (line,) = [line for line in out.splitlines() if "sampling: " in line]
        assert line.split("sampling: ")[1].startswith(f"{expected} (add_or_remove_one")


def test_steps_of_different_neighbours_say_what_epsilon_is_about(save, capsys):
    """None of the entries names it."""
    replaced = SampledEvent(FullBatchSampling(), STEP.event, NeighboringRelation.REPLACE_ONE)
    words = "epsilon is about zero_out, which all of them cover"
    for entries, differ in (([(replaced, 2), (STEP, 3)], True), ([(replaced, 2)], False)):
        _, path = save(*entries)
        status, out, _ = run(capsys, "replay", path, "--delta", "1e-5", "--accountant", "rdp")
        assert status == 0 and (words in out) == differ
