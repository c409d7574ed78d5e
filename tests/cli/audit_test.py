"""`tfdp audit`: attacks on predictions and bounds from canaries, beside what a ledger claims."""

import json
import pathlib
import re
import zipfile

import numpy as np
import pytest
from matplotlib import image

from tests.cli.running import run
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.registry import replayed
from tfdp.audit import attack, membership_scores, mu_lower_bound_of_independent_guesses
from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
)
from tfdp.ledger import PrivacyLedger


@pytest.fixture
def ledger(tmp_path):
    made = PrivacyLedger()
    made.append(GaussianSumEvent(1.0, noise_stddev=1.0))
    made.save(tmp_path / "run.ledger")
    return str(tmp_path / "run.ledger")


def _new(folder):
    """Returns the path of a file that there is not yet."""
    return folder / f"{len(list(folder.iterdir()))}.npz"


def predictions(tmp_path, confident=1.5, **changes):
    rng = np.random.default_rng(0)
    members = np.arange(600) < 300
    labels = rng.integers(0, 3, 600)
    logits = rng.normal(size=(600, 3))
    logits[np.arange(600), labels] += np.where(members, confident, 1.0)
    arrays = {"logits": logits, "labels": labels, "members": members, **changes}
    path = _new(tmp_path)
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return str(path), arrays


def damaged(tmp_path, labels):
    path, _ = predictions(tmp_path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("labels.npy", labels)
    return path


def header(length):
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({length},)}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def repacked(tmp_path, place, value):
    """Returns the path of compressed predictions, with a byte of the first entry changed in the
    list at the end and, if it is there, too, in front of the entry.
    """
    path, arrays = predictions(tmp_path)
    np.savez_compressed(path, **arrays)
    data = bytearray(pathlib.Path(path).read_bytes())
    data[data.index(b"PK\1\2") + place] = value
    data[place - 2] = value
    pathlib.Path(path).write_bytes(data)
    return path


def with_damaged_data(tmp_path):
    path, arrays = predictions(tmp_path)
    np.savez_compressed(path, **arrays)
    data = bytearray(pathlib.Path(path).read_bytes())
    begin = data.index(b"logits.npy") + len("logits.npy")
    data[begin + 20 : begin + 100] = bytes(80)  # Beyond the extra field of a large file.
    pathlib.Path(path).write_bytes(data)
    return path


def canaries(tmp_path, mu=1.0, **changes):
    rng = np.random.default_rng(1)
    inserted = rng.integers(0, 2, 1000) == 1
    scores = mu * inserted + rng.normal(size=1000)
    path = _new(tmp_path)
    arrays = {"scores": scores, "inserted": inserted, **changes}
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return str(path)


def test_attacks_are_those_of_the_library(tmp_path, capsys, ledger):
    path, arrays = predictions(tmp_path)
    status, out, err = run(
        capsys, "audit", "membership", path, "--ledger", ledger, "--delta", "1e-5", "--json"
    )
    assert (status, err) == (0, "")
    found = json.loads(out)
    p = np.exp(arrays["logits"])
    p /= p.sum(axis=1, keepdims=True)
    expected = attack("loss", membership_scores("loss", p, arrays["labels"]), arrays["members"])
    first = found["attacks"][0]
    assert first["score"] == "loss" and len(found["attacks"]) == 5
    assert first["auc"]["value"] == pytest.approx(expected.auc.value)
    assert first["advantage"] == pytest.approx(expected.advantage)
    # N(1, 1) against N(0, 1): epsilon, 2 Phi(1 / 2) - 1, and 1 - Phi(Phi^-1(0.99) - 1).
    assert found["claim"]["epsilon"] == pytest.approx(4.377, abs=0.01)
    assert found["claim"]["advantage"] == pytest.approx(0.3829, abs=0.005)
    assert first["claimed_true_positive_rate"]["0.01"] == pytest.approx(0.0924, abs=0.002)
    assert first["above_the_claim"] == [] and first["verdict"] == "not above what is claimed"
    assert first["advantage_interval"]["value"] == first["advantage"]


def test_attacks_in_words_and_by_class(tmp_path, capsys, ledger):
    path, _ = predictions(tmp_path, confident=20.0)
    flags = ["--score", "loss", "--per-class", "--ledger", ledger, "--delta", "1e-5"]
    status, out, err = run(capsys, "audit", "membership", path, *flags)
    assert (status, err) == (0, "")
    assert "loss, all records: 300 members, 300 others" in out
    assert "loss, class 2: " in out
    assert out.count("  verdict: above what is claimed\n    TPR ") == 4
    # 2 Phi(1 / 2) - 1 is 0.38292.
    assert "; at most 0.3830 is claimed" in out
    assert "  an advantage of 0.3830 at most" in out
    claimed = re.findall(r"; at most (\S+) is claimed", out)
    _, as_json, _ = run(capsys, "audit", "membership", path, *flags, "--json")
    found = json.loads(as_json)
    rates = [
        probability
        for attack in found["attacks"]
        for probability in (
            found["claim"]["advantage"],
            *attack["claimed_true_positive_rate"].values(),
        )
    ]
    assert len(claimed) == len(rates) > 8
    for shown, probability in zip(claimed, rates, strict=True):
        assert probability <= float(shown) < probability + 1e-4
    (epsilon,) = re.findall(r"epsilon = (\S+) at delta = 1e-05 \(prv\)", out)
    exact = found["claim"]["epsilon"]
    assert exact <= float(epsilon) < exact * (1 + 1e-5)
    assert "none is called so has a confidence of 0.95, for all 4 attacks together" in out
    assert "not authenticated" in out


def test_ends_of_intervals_in_words_are_outside_of_them(tmp_path, capsys):
    path, _ = predictions(tmp_path, confident=4.0)
    words = ["audit", "membership", path, "--confidence", "0.9"]
    _, out, _ = run(capsys, *words)
    found = json.loads(run(capsys, *words, "--json")[1])["attacks"]
    ends = [
        estimate
        for attack in found
        for estimate in (
            attack["auc"],
            attack["advantage_interval"],
            *attack["true_positive_rate"].values(),
        )
    ]
    shown = re.findall(r"(\S+) \((\S+) to (\S+)\)", out)
    assert len(shown) == len(ends) == 20
    for (value, lower, upper), estimate in zip(shown, ends, strict=True):
        assert abs(float(value) - estimate["value"]) <= 0.5001e-4
        assert estimate["lower"] - 1e-4 < float(lower) <= estimate["lower"]
        assert estimate["upper"] <= float(upper) < estimate["upper"] + 1e-4


def test_confidence_is_shown_as_it_is(tmp_path, capsys, ledger):
    flags = ["--confidence", "0.9999999", "--ledger", ledger, "--delta", "1e-5"]
    _, out, _ = run(capsys, "audit", "membership", predictions(tmp_path)[0], *flags)
    assert out.startswith("intervals hold the truth with a confidence of 0.9999999, each\n")
    assert "has a confidence of 0.9999999, for all" in out
    _, out, _ = run(capsys, "audit", "epsilon", canaries(tmp_path), *flags)
    assert "confidence 0.9999999 for each bound" in out


@pytest.mark.parametrize(("delta", "large"), [("1e-2", True), ("9e-4", False)])
def test_delta_of_one_in_the_population_is_named(tmp_path, capsys, delta, large):
    made = PrivacyLedger()
    made.append(SampledEvent(PoissonSampling(0.1, 1000), GaussianSumEvent(1.0, 2.0)))
    made.save(tmp_path / "run.ledger")
    flags = ["--ledger", str(tmp_path / "run.ledger"), "--delta", delta]
    for kind, path in (("membership", predictions(tmp_path)[0]), ("epsilon", canaries(tmp_path))):
        assert ("\ncareful: " in run(capsys, "audit", kind, path, *flags)[1]) == large
        found = json.loads(run(capsys, "audit", kind, path, *flags, "--json")[1])
        assert bool(found["claim"]["warnings"]) == large


def _uniform(folder, shift):
    """Predictions whose loss has this advantage, and says nothing at small false positive rates."""
    rng = np.random.default_rng(3)
    members, p = np.arange(4000) % 2 == 0, rng.random(4000)
    p = np.where(members, shift + (1 - shift) * p, p)
    np.savez(
        folder / "uniform.npz",
        probabilities=np.stack([p, 1 - p], 1),
        members=members,
        labels=np.zeros(4000, int),
    )
    return str(folder / "uniform.npz")


@pytest.mark.parametrize(("shift", "above"), [(0.5, True), (0.1, False)])
def test_advantage_is_held_against_the_claim_of_0_3829(tmp_path, capsys, ledger, shift, above):
    words = ["audit", "membership", _uniform(tmp_path, shift), "--score", "loss"]
    words += ["--ledger", ledger, "--delta", "1e-5"]
    _, out, _ = run(capsys, *words)
    (line,) = [line.strip() for line in out.splitlines() if "verdict: " in line]
    assert line == f"verdict: {'above' if above else 'not above'} what is claimed"
    (found,) = json.loads(run(capsys, *words, "--json")[1])["attacks"]
    assert (found["verdict"] == "above what is claimed") == above
    # The rates that were looked at before show nothing.
    for rate, estimate in found["true_positive_rate"].items():
        assert estimate["lower"] < found["claimed_true_positive_rate"][rate]


def test_predictions_without_labels_have_two_scores(tmp_path, capsys):
    path, _ = predictions(tmp_path, labels=None)
    found = json.loads(run(capsys, "audit", "membership", path, "--json")[1])
    assert [a["score"] for a in found["attacks"]] == ["confidence", "entropy"]
    assert found["claim"] is None
    assert "claim" not in run(capsys, "audit", "membership", path)[1]


def test_plot_has_the_curves_and_the_bound(tmp_path, capsys, ledger):
    path, _ = predictions(tmp_path)
    plots = [tmp_path / "with.png", tmp_path / "without.png"]
    for plot, flags in zip(plots, (["--ledger", ledger, "--delta", "1e-5"], []), strict=True):
        run(capsys, "audit", "membership", path, "--plot", str(plot), *flags)
    with_bound, without = (image.imread(plot) for plot in plots)
    assert with_bound.shape == without.shape and not np.array_equal(with_bound, without)
    status, _, err = run(capsys, "audit", "membership", path, "--plot", str(tmp_path / "x.txt"))
    assert status == 2 and ".png" in err


def test_canaries_prove_what_the_library_proves(tmp_path, capsys, ledger):
    path = canaries(tmp_path)
    flags = ["--ledger", ledger, "--delta", "1e-5"]
    status, out, err = run(capsys, "audit", "epsilon", path, *flags, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    independent = found["independent_canaries"]
    assert (independent["guesses"], found["any_canaries"]["guesses"]) == (700, 100)
    mu = mu_lower_bound_of_independent_guesses(independent["correct"], 700, 1000)
    assert independent["gaussian"]["mu"] == mu and 0.7 < mu < 1
    assert len(independent["assumptions"]) == 3
    assert not found["claim_refuted_if_independent"] and not found["epsilon_above_the_claim"]
    # Of one Gaussian sum, the ledger with other noise is the Gaussian with that mu.
    assert independent["measured"]["sensitivity_factor"] == pytest.approx(mu, rel=0.02)
    epsilon = independent["gaussian"]["epsilon"]
    assert independent["measured"]["epsilon"] == pytest.approx(epsilon, rel=0.03)
    bounds = found["any_canaries"]
    assert 0 < bounds["epsilon"] < bounds["gaussian"]["epsilon"]
    assert bounds["gaussian"]["epsilon"] < independent["gaussian"]["epsilon"] < 4.377
    # In words what is proven is rounded down, and what is claimed up.
    _, out, _ = run(capsys, "audit", "epsilon", path, *flags)
    proven = [
        *(bounds["epsilon"], bounds["gaussian"]["mu"], bounds["gaussian"]["epsilon"]),
        *(mu, epsilon, independent["measured"]["epsilon"]),
    ]
    said = [float(number) for number in re.findall(r"(?:mu|epsilon) >= ([\d.]+)\b", out)]
    for shown, number in zip(said, proven, strict=True):
        assert number * (1 - 1e-3) < shown <= number
    (p,) = re.findall(r"have a probability of (\S+) at most", out)
    assert independent["p_value_of_the_claim"] <= float(p)


def test_what_is_measured_is_no_loose_bound(tmp_path, capsys, ledger):
    flags = ["--ledger", ledger, "--delta", "1e-5", "--accountant", "rdp", "--json"]
    found = json.loads(run(capsys, "audit", "epsilon", canaries(tmp_path), *flags)[1])
    measured = found["independent_canaries"]["measured"]
    # Of one Gaussian sum, what the ledger costs with that noise.
    epsilon = gaussian_epsilon(measured["sensitivity_factor"], 1e-5)
    assert 0.99 * epsilon < measured["epsilon"] <= epsilon


@pytest.mark.parametrize(("kinds", "known"), [(50, True), (300, False)])
def test_many_kinds_of_steps_are_measured_by_few(tmp_path, capsys, monkeypatch, kinds, known):
    made = PrivacyLedger()
    for kind in range(kinds):
        made.append(GaussianSumEvent(1.0, (1.5 + kind / kinds) * kinds**0.5))
    made.save(tmp_path / "many.ledger")
    asked = []

    def counting(entries, accountant):
        asked.append(len({event for event, _ in entries}))
        return replayed(entries, accountant)

    monkeypatch.setattr("tfdp.cli.audit.replayed", counting)
    flags = ["--ledger", str(tmp_path / "many.ledger"), "--delta", "1e-5", "--accountant", "gdp"]
    found = json.loads(run(capsys, "audit", "epsilon", canaries(tmp_path), *flags, "--json")[1])
    independent = found["independent_canaries"]
    # Each of them would take seconds; all are asked once, and not too many.
    assert max(asked[:-1]) <= 12 and (asked[-1] == kinds) == known
    # No more than of the ledger itself, whose noise is a Gaussian's.
    mu = sum((kinds**0.5 * (1.5 + kind / kinds)) ** -2 for kind in range(kinds)) ** 0.5
    most = independent["gaussian"]["mu"]
    factor, epsilon = (independent["measured"][k] for k in ("sensitivity_factor", "epsilon"))
    assert 0.8 * most < factor * mu <= most * (1 + 1e-6)
    assert epsilon == (pytest.approx(gaussian_epsilon(factor * mu, 1e-5), rel=0.02) if known else 0)


def test_canaries_beside_a_claim_about_replaced_records(tmp_path, capsys):
    made, relation = PrivacyLedger(), NeighboringRelation.REPLACE_ONE
    made.append(SampledEvent(FullBatchSampling(1000), GaussianSumEvent(1.0, 2.0), relation))
    made.save(tmp_path / "replaced.ledger")
    flags = ["--ledger", str(tmp_path / "replaced.ledger"), "--delta", "1e-5"]
    _, out, _ = run(capsys, "audit", "epsilon", canaries(tmp_path), *flags)
    assert "careful: neighbours are of one size (replace_one)" in out


def test_no_epsilon_is_measured_where_none_is_known_to_be_reached(
    tmp_path, capsys, ledger, monkeypatch
):
    # As of samples of a fixed size, of whose price no neighbours are known that attain it.
    found = {"sensitivity_factor": 0.87654, "epsilon": 0.0}
    monkeypatch.setattr("tfdp.cli.audit._measured", lambda *_: found)
    flags = ["--ledger", ledger, "--delta", "1e-5"]
    _, out, _ = run(capsys, "audit", "epsilon", canaries(tmp_path), *flags)
    assert "noise divided by 0.876, of which no least epsilon is known\n" in out


def test_claim_that_is_refuted_is_said(tmp_path, capsys, ledger):
    flags = ["--ledger", ledger, "--delta", "1e-5"]
    _, out, _ = run(capsys, "audit", "epsilon", canaries(tmp_path, mu=2.0), *flags)
    assert "independent: refuted" in out
    assert "measured, if canaries are independent: epsilon >= " in out
    assert "scores of different canaries are independent" in out
    assert "refuted, whatever" not in out
    told = canaries(tmp_path, mu=100.0)
    _, out, _ = run(capsys, "audit", "epsilon", told, *flags, "--guesses", "900")
    assert "900 of 900 guesses are right" in out
    assert "refuted, whatever the canaries have to do with each other" in out


def test_canaries_without_a_ledger(tmp_path, capsys):
    status, out, _ = run(capsys, "audit", "epsilon", canaries(tmp_path), "--delta", "1e-5")
    assert status == 0 and "claim" not in out


def test_files_that_say_something_else_are_refused(tmp_path, capsys):
    (tmp_path / "text.npz").write_text("no array")
    np.save(tmp_path / "one.npy", np.zeros(3))
    ones = np.ones(600, int)
    epsilon, membership = ["audit", "epsilon"], ["audit", "membership"]
    cases = [
        ([*membership, str(tmp_path / "nothing.npz")], "no file of arrays"),
        ([*membership, str(tmp_path / "text.npz")], "no *.npz"),
        ([*membership, str(tmp_path / "one.npy")], "no *.npz"),
        ([*membership, predictions(tmp_path, logits=None)[0]], "either probabilities or logits"),
        ([*membership, predictions(tmp_path, members=None)[0]], "lacks members"),
        ([*membership, predictions(tmp_path, members=ones)[0]], "booleans"),
        ([*membership, predictions(tmp_path, labels=ones * 0.5)[0]], "integers"),
        ([*membership, predictions(tmp_path, labels=ones * 7)[0]], "0 to 2"),
        ([*membership, predictions(tmp_path)[0], "--score", "luck"], "loss, confidence, entropy"),
        ([*membership, damaged(tmp_path, b"no array")], "labels is no array"),
        ([*membership, damaged(tmp_path, header(10**12))], "too large for the memory"),
        ([*membership, damaged(tmp_path, header(10**30))], "is damaged"),
        ([*membership, damaged(tmp_path, header("7").replace(b"}", b" "))], "is damaged"),
        ([*membership, with_damaged_data(tmp_path)], "is damaged"),
        ([*membership, repacked(tmp_path, 8, 1)], "is damaged"),  # Encrypted, it says.
        ([*membership, repacked(tmp_path, 10, 12)], "packed as NumPy packs nothing"),
        ([*membership, repacked(tmp_path, 10, 99)], "packed as NumPy packs nothing"),
        ([*membership, predictions(tmp_path, labels=None)[0], "--per-class"], "needs labels"),
        ([*membership, predictions(tmp_path)[0], "--confidence", "1"], "confidence"),
        ([*epsilon, canaries(tmp_path, inserted=None), "--delta", "1e-5"], "lacks inserted"),
        ([*epsilon, canaries(tmp_path, scores=ones), "--delta", "1e-5"], "same length"),
        ([*epsilon, canaries(tmp_path, scores=ones > 0), "--delta", "1e-5"], "numbers"),
        ([*epsilon, canaries(tmp_path), "--delta", "2"], "--delta"),
        ([*epsilon, canaries(tmp_path), "--delta", "1e-5", "--guesses", "1001"], "guesses=1001"),
    ]
    for arguments, text in cases:
        status, out, err = run(capsys, *arguments)
        assert (status, out) == (2, ""), arguments
        assert text in err


@pytest.mark.parametrize(
    "changes",
    [
        {"logits": None, "probabilities": np.full((600, 1), 0.3)},
        {"logits": None, "probabilities": np.full(600, 0.3)},
        {"logits": np.zeros((600, 1))},
    ],
)
def test_one_sigmoid_output_is_told_what_to_store(tmp_path, capsys, changes):
    path, arrays = predictions(tmp_path, **changes)
    status, out, err = run(capsys, "audit", "membership", path)
    assert (status, out) == (2, "")
    assert "[records, classes]" in err and "stack([1 - p, p], axis=-1)" in err
    p = np.full(600, 0.3)
    stacked = {"probabilities": np.stack([1 - p, p], axis=-1), "labels": arrays["labels"] % 2}
    path, _ = predictions(tmp_path, logits=None, **stacked)
    assert run(capsys, "audit", "membership", path)[0] == 0


def test_events_whose_noise_has_no_other_size_are_named(tmp_path, capsys):
    made = PrivacyLedger()
    made.append(PureEpsilonEvent(3.0))
    made.save(tmp_path / "pure.ledger")
    flags = ["--ledger", str(tmp_path / "pure.ledger"), "--delta", "1e-5"]
    status, out, err = run(capsys, "audit", "epsilon", canaries(tmp_path), *flags)
    assert (status, err) == (0, "")
    assert "no epsilon of this ledger with other noise: " in out and "PureEpsilonEvent" in out


def test_sampled_steps_are_measured_by_their_own_curve(tmp_path, capsys):
    made = PrivacyLedger()
    made.append(SampledEvent(PoissonSampling(0.5), GaussianSumEvent(1.0, noise_stddev=1.0)))
    made.save(tmp_path / "sampled.ledger")
    flags = ["--ledger", str(tmp_path / "sampled.ledger"), "--delta", "1e-5"]
    rng = np.random.default_rng(2)
    moved = rng.random(1000) < 0.5
    inserted = rng.integers(0, 2, 1000) == 1
    path = canaries(tmp_path, scores=moved * inserted + rng.normal(size=1000), inserted=inserted)
    found = json.loads(run(capsys, "audit", "epsilon", path, *flags, "--json")[1])
    independent = found["independent_canaries"]
    assert 0.5 < independent["measured"]["sensitivity_factor"] < 1.1
    assert 0 < independent["measured"]["epsilon"] < 1.1 * found["claim"]["epsilon"]
    assert (
        "measured, if canaries are independent: epsilon >= "
        in run(capsys, "audit", "epsilon", path, *flags)[1]
    )
