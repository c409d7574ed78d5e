"""`tfdp report`."""

import hashlib
import html
import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tfdp.cli import main
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger
from tfdp.report.numbers import round_up

STEP = SampledEvent(PoissonSampling(0.01, 4567), GaussianSumEvent(1.0, 2.0))


@pytest.fixture
def path(tmp_path):
    ledger = PrivacyLedger()
    ledger.append(STEP, 100)
    ledger.save(tmp_path / "run.ledger")
    return str(tmp_path / "run.ledger")


def _run(capsys, *arguments):
    status = main(["report", *arguments, "--accountant", "rdp"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("name", "flags", "start"),
    [
        ("report.html", [], "<!DOCTYPE html>"),
        ("report.HTM", [], "<!DOCTYPE html>"),
        ("report.md", [], "# Privacy report"),
        ("report.html", ["--format", "markdown"], "# Privacy report"),
        ("report", ["--format", "html"], "<!DOCTYPE html>"),
    ],
)
def test_writes_what_was_asked_for(path, tmp_path, capsys, name, flags, start):
    out = tmp_path / name
    status, printed, error = _run(capsys, path, "--out", str(out), *flags)
    assert (status, error) == (0, "")
    first, second = printed.splitlines()
    assert first == "not authenticated: without a key its digests show accidents only"
    assert second.startswith(f"wrote {out}: ε ≤ ")
    text = out.read_text(encoding="utf-8")
    assert first.capitalize() in text[: text.index("run.ledger")]
    assert text.startswith(start) and "run.ledger" in text and str(tmp_path) not in text


def test_json_says_what_was_written(path, tmp_path, capsys):
    out = tmp_path / "report.md"
    status, printed, error = _run(capsys, path, "--out", str(out), "--json")
    said = json.loads(printed)
    assert (status, error, said["wrote"]) == (0, "", str(out))
    assert said["verdict"] in out.read_text(encoding="utf-8")
    assert said["authentication"].startswith("not authenticated")


def test_export_has_the_same_report(path, tmp_path, capsys):
    PrivacyLedger.load(path).to_json_lines(tmp_path / "run.jsonl")
    for source in (path, str(tmp_path / "run.jsonl")):
        assert _run(capsys, source, "--out", f"{source}.md")[0] == 0
    first = (tmp_path / "run.ledger.md").read_text().splitlines()
    second = (tmp_path / "run.jsonl.md").read_text().replace("run.jsonl", "run.ledger")
    # An export has no need to be exported.
    others = [line for line in first if not line.endswith("| sha256sum")]
    assert others == [x for x in second.splitlines() if not x.endswith("| sha256sum")]
    assert len(others) == len(first) - 1


def test_delta_is_taken(path, tmp_path, capsys):
    out = tmp_path / "report.md"
    assert _run(capsys, path, "--out", str(out), "--delta", "3e-7")[0] == 0
    text = out.read_text()
    assert "at δ = 3e-7" in text and "δ was chosen by whoever made the report" in text


@pytest.mark.parametrize("delta", ["0", "1", "-1", "nan", "small"])
def test_bad_delta(path, tmp_path, capsys, delta):
    status, out, error = _run(capsys, path, "--out", str(tmp_path / "r.md"), f"--delta={delta}")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "delta" in error and not (tmp_path / "r.md").exists()


def test_unknown_kind_of_document(path, tmp_path, capsys):
    status, out, error = _run(capsys, path, "--out", str(tmp_path / "report.pdf"))
    assert (status, out) == (2, "") and ".html" in error


def test_ledger_is_not_overwritten(path, capsys):
    status, out, error = _run(capsys, path, "--out", path, "--format", "html")
    assert (status, out) == (2, "") and "overwrite the ledger" in error
    assert PrivacyLedger.load(path).total_count == 100


def test_missing_ledger(tmp_path, capsys):
    status, out, error = _run(capsys, str(tmp_path / "no"), "--out", str(tmp_path / "r.md"))
    assert (status, out, error.count("\n")) == (2, "", 1)


def test_without_the_packages(path, tmp_path):
    program = "import sys; sys.modules['jinja2'] = None; import tfdp.cli; sys.exit(tfdp.cli.main())"
    out = tmp_path / "report.html"
    result = subprocess.run(
        [sys.executable, "-c", program, "report", path, "--out", str(out), "--accountant", "rdp"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 2 and not out.exists()
    assert "pip install tfdp[report]" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_what_the_reader_is_told_beside_the_ledger(tmp_path, capsys, name):
    path, out = tmp_path / "my_run-2.sqlite", tmp_path / name
    with PrivacyLedger.open(path, create=True, dataset_id="patients 2026") as ledger:
        ledger.append(STEP, 10)
    arguments = ["--model", "a <b>net</b>", "--purpose", "triage", "--accountant", "zcdp"]
    arguments += ["--accountant", "gdp", "--accountant", "rdp"]
    assert main(["report", str(path), "--out", str(out), "--delta", "1e-5", *arguments]) == 0
    text = out.read_text(encoding="utf-8")
    assert "about the data set patients 2026" in text
    assert "not by the ledger" in text and "triage" in text and "<b>net" not in text
    assert "tfdp replay my_run-2.sqlite --delta 1e-5" in text
    assert "sums are those of its gradients" in " ".join(text.split())
    # Numbers and events as people write them.
    assert "1e-05" not in text and "1e-5" in text
    assert "SampledEvent(" not in text and "PoissonSampling(" not in text
    capsys.readouterr()


@pytest.fixture
def predictions(tmp_path):
    """Predictions of a model that knows the labels of its members by heart."""
    members = np.arange(600) % 2 == 0
    rng = np.random.default_rng(0)
    p = rng.dirichlet([5.0, 1.0], 600) * (1 - members[:, None]) + members[:, None] * [1.0, 0.0]
    path = tmp_path / "predictions.npz"
    np.savez(path, probabilities=p, labels=np.zeros(600, int), members=members)
    return path


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_attacks_stand_beside_the_bound(path, predictions, tmp_path, capsys, name):
    out = tmp_path / name
    flags = ["--predictions", str(predictions), "--score", "loss", "--confidence", "0.9"]
    status, printed, error = _run(capsys, path, "--out", str(out), *flags)
    assert (status, error) == (0, "")
    text = out.read_text(encoding="utf-8").replace("\\", "")
    digest = hashlib.sha256(predictions.read_bytes()).hexdigest()
    assert f"predictions.npz (SHA-256 {digest})" in text and str(tmp_path) not in text
    assert "all records: 300 members, 300 others" in text and "confidence of 0.9" in text
    # Among the caveats, and on the first page of a document in HTML.
    said = text.count("An attack achieved more than the ledger allows")
    assert said == (2 if name.endswith("html") else 1)
    assert "but for the attacks" in text
    assert "probability of at most 0.1 for all attacks together" in text
    assert text.count("above what is claimed") == 1
    status, _, _ = _run(capsys, path, "--out", str(out))
    assert status == 0 and "ttack achieved more" not in out.read_text(encoding="utf-8")


def test_predictions_that_say_nothing_are_no_finding(path, predictions, tmp_path, capsys):
    rng = np.random.default_rng(1)
    with np.load(predictions) as file:
        arrays = {**file, "probabilities": rng.dirichlet([5.0, 1.0], 600)}
    np.savez(predictions, **arrays)
    out = tmp_path / "report.md"
    assert _run(capsys, path, "--out", str(out), "--predictions", str(predictions))[0] == 0
    text = out.read_text(encoding="utf-8")
    assert "ttack achieved more" not in text and text.count("the ledger allows |") == 3
    assert text.count("| not above what is claimed |") == 5


def test_predictions_are_not_written_over(path, predictions, capsys):
    status, _, error = _run(
        capsys,
        path,
        "--predictions",
        str(predictions),
        "--out",
        str(predictions),
        "--format",
        "html",
    )
    assert status == 2 and "predictions.npz" in error


def _printed_commands(report):
    """Returns the lines that a report gives for checking it, as a reader copies them."""
    text = report.read_text(encoding="utf-8")
    (block,) = re.findall(r"(?:^```|<pre>)\n?(tfdp .*?|sed .*?)(?:^```|</pre>)", text, re.S | re.M)
    return (html.unescape(block) if report.suffix == ".html" else block).splitlines()


def _in_a_shell(line, folder):
    """Returns what a line prints where `tfdp` is this tfdp."""
    script = f'tfdp() {{ {shlex.quote(sys.executable)} -m tfdp "$@"; }}\n{line}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# The ledger's file, what is given beside it, and the report.
CHECKED = {
    "as it is": ("run.ledger", [], "report.md"),
    "export": ("run.jsonl", ["--accountant", "rdp", "--delta", "1.23456789e-5"], "report.md"),
    "everything": (
        "my run.ledger",
        [
            *["--delta", "3e-5", "--accountant", "zcdp", "--accountant", "rdp"],
            *["--group-size", "2", "--group-size", "3", "--predictions", "predictions.npz"],
            *["--score", "loss", "--score", "entropy", "--per-class", "--confidence", "0.9"],
            *["--model", "it's a <b>net</b>\n```\nof \\x", "--purpose=-1", "--key-file", "key"],
        ],
        "report.html",
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_printed_commands_check_the_report(predictions, tmp_path, monkeypatch, capsys, name):
    file, flags, out = CHECKED[name]
    monkeypatch.chdir(tmp_path)
    key = bytes(range(32)) if "--key-file" in flags else None
    (tmp_path / "key").write_bytes(bytes(range(32)))
    with PrivacyLedger.open("written", create=True, key=key) as ledger:
        ledger.append(STEP, 1000)
    if file.endswith(".jsonl"):
        PrivacyLedger.load("written").to_json_lines(file)
    else:
        os.rename("written", file)
    assert main(["report", file, "--out", out, *flags]) == 0
    verdict = capsys.readouterr().out
    fingerprint, replay, again = _printed_commands(tmp_path / out)
    text = (tmp_path / out).read_text(encoding="utf-8")
    assert _in_a_shell(fingerprint, tmp_path).split()[0] in text
    line = next(x for x in _in_a_shell(replay, tmp_path).splitlines() if x.startswith("epsilon"))
    assert f"ε ≤ {round_up(float(line.split()[2]))} at δ = " in verdict
    (accountant,) = re.findall(r"\((.*)\)", line)
    assert f"by the accountant “{accountant}”" in text.replace("\\", "")
    (tmp_path / "again.md").unlink(missing_ok=True)
    _in_a_shell(again, tmp_path)
    assert (tmp_path / f"again{out[6:]}").read_bytes() == (tmp_path / out).read_bytes()


def test_a_report_on_nothing_priced_prints_no_replay(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger()
    ledger.append(STEP)
    ledger.save("run.ledger")
    # zCDP has no price for Poisson samples.
    assert main(["report", "run.ledger", "--out", "r.md", "--accountant", "zcdp"]) == 0
    commands = _printed_commands(tmp_path / "r.md")
    assert [words.split()[1] for words in commands] == ["export", "report"]
    assert "The second prints" not in (tmp_path / "r.md").read_text(encoding="utf-8")


def test_neither_another_ledger_nor_the_key_is_overwritten(path, tmp_path, capsys):
    PrivacyLedger().save(tmp_path / "other.ledger")
    (tmp_path / "key").write_bytes(b"k" * 32)
    for name in ("other.ledger", "key"):
        before = (tmp_path / name).read_bytes()
        out = ["--out", str(tmp_path / name), "--key-file", str(tmp_path / "key")]
        status, printed, error = _run(capsys, path, *out, "--format", "markdown")
        assert (status, printed) == (2, "") and "would overwrite" in error
        assert (tmp_path / name).read_bytes() == before
