"""The fingerprint of a ledger is what the report tells a reader to compute."""

import shutil
import subprocess
import sys

import pytest

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger, entry
from tfdp.report import gather
from tfdp.report.digest import canonical_json_lines, fingerprint

STEP = SampledEvent(PoissonSampling(0.1, 30), GaussianSumEvent(1.0, 2.0))
OTHER = SampledEvent(PoissonSampling(0.1, 30), GaussianSumEvent(1.0, 2.000000000000001))
EMPTY = PrivacyLedger().to_json_lines()


def ledger_of(*pairs):
    """Returns a ledger whose id is always the same."""
    ledger = PrivacyLedger.from_json_lines(EMPTY)
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


def test_copies_have_one_fingerprint(tmp_path):
    ledger = ledger_of((STEP, 3), (OTHER, 1))
    ledger.save(tmp_path / "run.ledger")
    copies = [
        PrivacyLedger.load(tmp_path / "run.ledger"),
        PrivacyLedger.from_json_lines(ledger.to_json_lines()),
        ledger_of((STEP, 1), (STEP, 2), (OTHER, 1)),
    ]
    assert {fingerprint(copy) for copy in copies} == {fingerprint(ledger)}


def test_every_difference_changes_it():
    ledgers = [
        ledger_of((STEP, 3), (OTHER, 1)),
        ledger_of((STEP, 2), (OTHER, 1)),
        ledger_of((OTHER, 1), (STEP, 3)),
        ledger_of((STEP, 3)),
        ledger_of((STEP, 4)),
        ledger_of(),
        PrivacyLedger(),
    ]
    assert len({fingerprint(ledger) for ledger in ledgers}) == len(ledgers)


def test_version_of_the_program_is_not_in_it(monkeypatch):
    ledger = ledger_of((STEP, 3))
    text, before = canonical_json_lines(ledger), fingerprint(ledger)
    monkeypatch.setattr(entry, "__version__", "99.0")
    assert "99.0" in ledger.to_json_lines()
    assert (canonical_json_lines(ledger), fingerprint(ledger)) == (text, before)


@pytest.mark.skipif(
    not (shutil.which("sed") and shutil.which("sha256sum")), reason="needs sed and sha256sum"
)
def test_command_of_the_report_prints_it(tmp_path):
    ledger = ledger_of((STEP, 3), (OTHER, 1))
    ledger.save(tmp_path / "run.ledger")
    pipeline = """sed '1s/"tfdp_version": "[^"]*", //; $d' | sha256sum"""
    result = subprocess.run(
        f"'{sys.executable}' -m tfdp export '{tmp_path}/run.ledger' | {pipeline}",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.split()[:1] == [fingerprint(ledger)]
    assert result.stderr.startswith("tfdp: not authenticated") and result.stderr.count("\n") == 1


@pytest.mark.skipif(
    not (shutil.which("sed") and shutil.which("sha256sum")), reason="needs sed and sha256sum"
)
@pytest.mark.parametrize("version", [1, 2])
def test_command_of_an_export_prints_it(tmp_path, version):
    header, *lines = ledger_of((STEP, 3), (OTHER, 1)).to_json_lines().splitlines(keepends=True)
    if version == 1:
        header, lines = header.replace('"version": 2', '"version": 1'), lines[:-1]
    (tmp_path / "run.jsonl").write_text("".join([header, *lines]), encoding="utf-8")
    ledger = PrivacyLedger.from_json_lines("".join([header, *lines]))
    command, *_ = gather(ledger, 1e-5, ["rdp"], "run.jsonl").commands("again.md")
    result = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.split()[:1] == [fingerprint(ledger)]
