"""The command line's own words: its version, its options in errors, one step that is no plural."""

import numpy as np
import pytest

import tfdp
from tests.cli.running import STEP, run
from tfdp.cli import make_parser
from tfdp.cli.budget import _OPTIONS
from tfdp.ledger import PrivacyLedger


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"tfdp {tfdp.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0", "--batch-size", "10", "--steps", "5"], "--epsilon must"),
        (["--epsilon", "1", "--batch-size", "0", "--steps", "5"], "--batch-size must"),
        (["--noise", "-1", "--batch-size", "10", "--steps", "5"], "--noise must"),
        (["--noise", "1", "--batch-size", "10", "--epochs", "-1"], "--epochs must"),
        (["--batch-size", "10", "--steps", "5"], "one of ['--epsilon', '--noise'"),
        (
            ["--batch-size", "10", "--steps", "5", "--tpr", "0.1"],
            "either --advantage, or --tpr and --fpr.",
        ),
        (
            ["--batch-size", "10", "--steps", "5", "--tpr", "0.1", "--fpr", "0.2"],
            "--tpr must be above --fpr,",
        ),
    ],
)
def test_errors_name_the_options(capsys, arguments, message):
    command = ["calibrate", "--delta", "1e-5", "--population", "1000"]
    status, _, err = run(capsys, *command, *arguments)
    assert status == 2
    assert message in err
    assert "_" not in err.partition("Received")[0]


def test_one_step_is_no_plural(tmp_path, capsys):
    ledger = PrivacyLedger()
    ledger.append(STEP)
    ledger.save(tmp_path / "run.ledger")
    _, out, _ = run(capsys, "replay", str(tmp_path / "run.ledger"), "--delta", "1e-5")
    assert ": 1 step\n" in out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["replay", "run.ledger", "--delta", "1e-5", "--steps", "0"], "--steps must"),
        (
            ["replay", "run.ledger", "--delta", "1e-5", "--every", "0", "--out", "x.csv"],
            "--every must",
        ),
        (["report", "run.ledger", "--out", "x.md", "--group-size", "0"], "--group-size must"),
        (
            [
                "report",
                "run.ledger",
                "--out",
                "x.md",
                "--predictions",
                "p.npz",
                "--confidence",
                "2",
            ],
            "--confidence must",
        ),
        (["audit", "epsilon", "c.npz", "--delta", "1e-5", "--guesses", "0"], "--guesses must"),
        (["audit", "membership", "p.npz", "--plot", "no/x.png"], "folder of --plot does not exist"),
        (
            ["audit", "epsilon", "objects.npz", "--delta", "1e-5"],
            "holds something else",
        ),
        (["plan", "--plot", "x.txt"], "--plot must end in one of .png, .svg, .pdf"),
        (["plan", "--plot", "."], "--plot must end in one of .png, .svg, .pdf"),
        (["calibrate", "--mechanism", "blt", "--bands", "50"], "--bands must be at most 10"),
        (["plan", "--batch-size", "2000"], "--batch-size must be at most --population."),
        (["calibrate", "--accountant", "zcdp"], "SampledEvent(sampling=PoissonSampling("),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_every_command_names_its_options(tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger()
    ledger.append(STEP)
    ledger.save("run.ledger")
    coins = np.arange(100) % 2 == 0
    np.savez("c.npz", scores=coins * 1.0, inserted=coins)
    np.savez("p.npz", probabilities=np.full((100, 2), 0.5), members=coins)
    np.savez("objects.npz", scores=np.array([{}] * 100), inserted=coins)
    if command[0] in ("plan", "calibrate"):
        command += ["--delta", "1e-5", "--population", "1000", "--epsilon", "1", "--steps", "9"]
        command += [] if "--batch-size" in command else ["--batch-size", "10"]
    status, out, err = run(capsys, *command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not {"x.csv", "x.md", "x.txt", ".png"} & {path.name for path in tmp_path.iterdir()}


def test_the_file_of_several_that_is_wrong_is_named(tmp_path, capsys):
    paths = []
    for name in ("good", "bad"):
        ledger = PrivacyLedger()
        ledger.append(STEP)
        ledger.to_json_lines(tmp_path / f"{name}.jsonl")
        paths.append(tmp_path / f"{name}.jsonl")
    paths[1].write_text(paths[1].read_text().replace('"noise_stddev": 1.1', '"noise_stddev": -1'))
    status, _, err = run(capsys, "replay", *map(str, paths), "--delta", "1e-5")
    assert status == 2
    assert err.startswith(f"tfdp: {paths[1]}, line 2: event") and "good.jsonl" not in err
    paths[1].write_text("")
    err = run(capsys, "replay", *map(str, paths), "--delta", "1e-5")[2]
    assert err.startswith(f"tfdp: {paths[1]} is empty")


# What functions call the options whose names differ: all of them are options, too.
ALIASES = {
    "calibrate": [
        *("target_epsilon", "target_delta", "noise_multiplier", "population_size", "batch_size"),
        *("neighboring_relation", "true_positive_rate", "false_positive_rate"),
    ],
    "plan": [
        *("target_epsilons", "target_delta", "population_size", "batch_sizes"),
        "neighboring_relation",
    ],
    "replay": ["target_delta"],
    "report": ["target_delta"],
    "audit membership": ["target_delta"],
    "audit epsilon": ["target_delta"],
}


@pytest.mark.parametrize("path", ALIASES)
def test_names_of_arguments_in_python_are_options(path):
    parser = make_parser()
    for word in path.split():
        (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
        parser = commands[word]
    for name in ALIASES[path]:
        action = parser._option_string_actions[f"--{name.replace('_', '-')}"]
        assert _OPTIONS[name] in action.option_strings
        assert action.dest == _OPTIONS[name].removeprefix("--").replace("-", "_")


def test_a_name_of_python_gives_the_same(capsys):
    run_of = ["--delta", "1e-5", "--batch-size", "10", "--steps", "5"]
    short = run(capsys, "calibrate", *run_of, "--population", "1000", "--noise", "2")
    long = run(capsys, "calibrate", *run_of, "--population-size", "1000", "--noise-multiplier", "2")
    assert short == long and short[0] == 0
