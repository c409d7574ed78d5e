"""The command line's own words: its version, its options in errors, one step that is no plural."""

import pytest

import tfdp
from tests.cli.running import STEP, run
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
