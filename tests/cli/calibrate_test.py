"""`tfdp calibrate`: what it finds, in words and as JSON, and what it refuses."""

import json
import re

import pytest

from tests.cli.running import BUDGET, calibrate, run
from tfdp.accounting import RDPAccountant
from tfdp.cli.common import rounded_up
from tfdp.events import GaussianSumEvent
from tfdp.factorizations import (
    BinaryTree,
    banded_inverse_square_root,
    optimal_banded,
    optimal_buffered,
    optimal_one_step_back,
)


def test_calibrate_finds_every_quantity_and_they_agree(capsys):
    run = ("--batch-size", "256", "--epochs", "20")
    found = calibrate(capsys, "--epsilon", "2", *run)
    assert (found["steps"], found["batch_size"], found["delta"]) == (4680, 256, 1e-5)
    assert 0.998 < found["epsilon"] / 2 <= 1
    assert found["noise_batch_ratio"] == found["noise_multiplier"] / 256
    noise = ("--noise", str(found["noise_multiplier"]))
    assert calibrate(capsys, *noise, *run)["epsilon"] == found["epsilon"]
    # A little less noise than allowed was found: a few steps more fit.
    steps = calibrate(capsys, "--epsilon", "2", *noise, "--batch-size", "256")["steps"]
    assert 4680 <= steps <= 4720
    batch = calibrate(capsys, "--epsilon", "2", *noise, "--steps", "4680", "--solve", "batch")
    assert batch["batch_size"] == 256


def test_calibrate_in_words(capsys):
    flags = ["--epsilon", "2", "--batch-size", "256", "--steps", "1000"]
    status, out, err = run(capsys, "calibrate", *BUDGET, *flags)
    assert (status, err) == (0, "")
    found = calibrate(capsys, *flags)
    assert out.splitlines() == [
        f"noise multiplier {found['noise_multiplier']}",
        f"epsilon = {rounded_up(found['epsilon'])} at delta = 1e-05 (rdp)",
        "1000 steps (4.26666 epochs) on batches of 256 of 60000 (poisson, zero_out)",
        f"noise-batch ratio {rounded_up(found['noise_batch_ratio'])}",
    ]


def test_calibrate_other_samplings_and_relations(capsys):
    flags = ("--epsilon", "2", "--batch-size", "256", "--steps", "235")
    shuffled = calibrate(capsys, *flags, "--sampling", "shuffled")
    assert shuffled["neighboring_relation"] == "zero_out"
    replaced = calibrate(capsys, *flags, "--sampling", "shuffled", "--relation", "replace_one")
    # A pass is one Gaussian, of twice the sensitivity under replacement.
    ratio = replaced["noise_multiplier"] / shuffled["noise_multiplier"]
    assert ratio == pytest.approx(2, rel=1e-3)


def test_calibrate_warns_of_a_useless_delta(capsys):
    flags = ["--population", "1000", "--batch-size", "100", "--steps", "10", "--noise", "2"]
    common = ["--accountant", "rdp", *flags]
    for delta, large in (("1e-3", True), ("9e-4", False)):
        words = ["calibrate", "--delta", delta, *common]
        assert ("\ncareful: " in run(capsys, *words)[1]) == large
        assert bool(json.loads(run(capsys, *words, "--json")[1])["warnings"]) == large


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epsilon", "2", "--batch-size", "256"], "Leave out exactly one"),
        (["--epsilon", "2", "--batch-size", "256", "--epochs", "2", "--noise", "1"], "Leave out"),
        (
            ["--epsilon", "2", "--batch-size", "2", "--steps", "9", "--solve", "batch"],
            "--solve batch finds it: leave it out. Received: 2",
        ),
        (["--epsilon", "-2", "--batch-size", "256", "--steps", "9"], "--epsilon must be"),
        (["--epsilon", "2", "--noise", "1", "--epochs", "2"], "give steps"),
        (["--epsilon", "0.1", "--noise", "0.3", "--batch-size", "256"], "What reaches it: a noise"),
    ],
    ids=["two missing", "none missing", "given", "negative", "batch of epochs", "unreachable"],
)
def test_calibrate_says_what_is_wrong(capsys, flags, message):
    status, out, err = run(capsys, "calibrate", *BUDGET, *flags)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_calibrate_noise_that_remembers(capsys):
    flags = ("--mechanism", "bandmf", "--bands", "4", "--batch-size", "6000", "--epochs", "2")
    found = calibrate(capsys, *flags, "--epsilon", "2")
    assert (found["steps"], found["period"], found["sampling"]) == (20, 10, "fixed_order")
    assert 0.998 < found["epsilon"] / 2 <= 1
    noise = ("--noise", str(found["noise_multiplier"]))
    assert calibrate(capsys, *flags, *noise)["epsilon"] == found["epsilon"]
    status, out, err = run(capsys, "calibrate", *BUDGET, *flags, "--epsilon", "2")
    assert (status, err) == (0, "")
    assert out.splitlines()[2:] == [
        "20 steps, a unit in every 10th, on batches of 6000 of 60000 (fixed_order, zero_out)",
        "error of running sums of average gradients, in clip norms: "
        f"{rounded_up(found['root_mean_squared_error'])} root mean squared, "
        f"{rounded_up(found['max_error'])} at most",
    ]
    turns = calibrate(capsys, *flags, "--epsilon", "2", "--sampling", "cyclic_poisson")
    assert turns["period"] == 4
    apart = ("--sampling", "min_separation", *flags[:-2], "--steps", "20", "--noise", "3")
    unamplified = calibrate(capsys, *apart)
    assert unamplified["period"] == 4 and unamplified["epsilon"] > 3
    _, out, _ = run(capsys, "calibrate", *BUDGET, *apart, "--accountant", "monte_carlo")
    assert "(monte_carlo), an upper bound with probability 0.999999 only" in out


@pytest.mark.parametrize(
    ("mechanism", "bands"),
    [("bandmf", 4), ("bisr", 4), ("blt", 2), ("lambda_cgd", None), ("tree", None)],
)
def test_calibrate_every_noise_that_remembers(capsys, mechanism, bands):
    flags = ["--mechanism", mechanism, "--batch-size", "6000", "--epochs", "2", "--epsilon", "2"]
    if bands is not None:
        flags += ["--bands", str(bands)]
    found = calibrate(capsys, *flags)
    factorization = {
        "bandmf": lambda: optimal_banded(20, 4, 10),
        "bisr": lambda: banded_inverse_square_root(4),
        "blt": lambda: optimal_buffered(20, 2, 10),
        "lambda_cgd": lambda: optimal_one_step_back(20, 10),
        "tree": BinaryTree,
    }[mechanism]()
    assert (found["mechanism"], found["bands"], found["steps"]) == (mechanism, bands, 20)
    sensitivity = factorization.sensitivity(20, 10)
    gaussian = GaussianSumEvent(sensitivity, found["noise_multiplier"])
    expected = RDPAccountant().compose(gaussian).get_epsilon(found["delta"])
    assert found["epsilon"] == pytest.approx(expected)
    error = factorization.root_mean_squared_error(20) / factorization.sensitivity(20)
    assert found["root_mean_squared_error"] == pytest.approx(
        error * found["noise_multiplier"] / 6000
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bands", "4", "--steps", "3"], "--bands is for noise that remembers"),
        (["--sampling", "fixed_order", "--steps", "3"], "--sampling fixed_order is for noise"),
        (["--accountant", "monte_carlo", "--steps", "3"], "need proven bounds"),
        (["--mechanism", "bandmf", "--steps", "3"], "needs bands"),
        (["--mechanism", "tree"], "either steps or epochs"),
        (["--mechanism", "tree", "--steps", "3", "--solve", "steps"], "--solve steps"),
    ],
)
def test_calibrate_refuses_what_has_no_meaning_for_the_mechanism(capsys, flags, message):
    status, out, err = run(
        capsys, "calibrate", *BUDGET, "--epsilon", "2", "--batch-size", "256", *flags
    )
    assert (status, out) == (2, "")
    assert message in err


def test_calibrate_to_a_risk(capsys):
    run_of = ["--batch-size", "600", "--steps", "2000", "--relation", "add_or_remove_one"]
    found = calibrate(capsys, "--accountant", "prv", "--advantage", "0.2", *run_of)
    # riskcal 1.5.1 finds 1.0902.
    assert found["noise_multiplier"] == pytest.approx(1.0902, rel=0.01)
    assert 0.198 < found["advantage"] <= 0.2
    flags = [*BUDGET, "--accountant", "prv", "--tpr", "0.05", "--fpr", "0.01", *run_of]
    status, out, err = run(capsys, "calibrate", *flags)
    assert (status, err) == (0, "")
    assert "no attack has a TPR above 0.0" in out
    assert "at FPR 0.01" in out


@pytest.mark.parametrize(
    ("flags", "name", "line"),
    [
        # Numbers whose seventh digit is below five.
        (["--tpr", "0.05", "--fpr", "0.01", "--steps", "1999"], "true_positive_rate", "TPR above"),
        (["--advantage", "0.2", "--steps", "1998"], "advantage", "advantage above"),
        (["--noise", "1.0000004", "--steps", "20"], "noise_multiplier", "noise multiplier"),
        (["--noise", "1.0000004", "--steps", "20"], "epsilon", "epsilon ="),
    ],
)
def test_what_may_happen_is_rounded_up(capsys, flags, name, line):
    words = [*BUDGET, "--accountant", "prv", "--batch-size", "600", *flags]
    _, out, _ = run(capsys, "calibrate", *words, "--relation", "add_or_remove_one")
    (shown,) = re.findall(rf"{line} ([\d.]+)", out)
    _, as_json, _ = run(capsys, "calibrate", *words, "--relation", "add_or_remove_one", "--json")
    exact = json.loads(as_json)[name]
    assert exact <= float(shown) < exact * (1 + 1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--advantage", "0.2", "--epsilon", "2"], "leave out --epsilon"),
        (["--advantage", "0.2", "--noise", "2"], "leave out --noise"),
        (["--advantage", "0.2", "--solve", "steps"], "leave out --solve"),
        (["--advantage", "0.2", "--mechanism", "bandmf"], "independent noise"),
        (["--advantage", "0.2", "--sampling", "fixed_order"], "independent noise"),
        (["--advantage", "0.2", "--tpr", "0.1", "--fpr", "0.01"], "Give either"),
        (["--tpr", "0.1"], "--fpr"),
        (["--advantage", "1.5"], "--advantage must"),
        (["--fpr", "0.1", "--tpr", "0.1"], "guessing"),
    ],
)
def test_calibrate_refuses_a_risk_that_it_cannot_keep(capsys, flags, message):
    run_of = ["--batch-size", "600", "--steps", "20"]
    status, _, err = run(capsys, "calibrate", *BUDGET, *run_of, *flags)
    assert status == 2
    assert message in err
    status, _, err = run(capsys, "calibrate", *BUDGET, "--steps", "20", "--advantage", "0.2")
    assert status == 2
    assert "--batch-size" in err
