"""The commands that a report prints, and words that a shell takes for what they stand for."""

import subprocess

import pytest

from tfdp.events import FullBatchSampling, GaussianSumEvent, SampledEvent
from tfdp.ledger import PrivacyLedger
from tfdp.report import checking, gather

EVIL = "a\n```\n$(touch x) `b` 'c' \"d\" \\e <script> & \u2028 \x1b[2J é \U0001f600 ; #"


@pytest.mark.parametrize("text", [EVIL, "", "plain", "two words", "it's", "$HOME", "~", "*", "\\"])
def test_a_shell_reads_what_was_quoted(text):
    word = checking.quoted(text)
    assert len(word.splitlines()) == 1 and not set(word) & set("<>&`")
    ran = subprocess.run(
        ["bash", "-c", f"printf %s {word}"],
        capture_output=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    assert ran.stdout.decode() == text


def _commands(again="again.md", **arguments):
    ledger = PrivacyLedger()
    ledger.append(GaussianSumEvent(1.0, 2.0))
    return gather(ledger, **arguments).commands(again)


def test_what_was_not_given_is_not_printed():
    fingerprint, replay, again = _commands(accountants=None)
    assert fingerprint.startswith("tfdp export run.ledger | sed ")
    assert replay.startswith("tfdp replay run.ledger --delta 1e-5 --accountant ")
    assert again == "tfdp report run.ledger --out again.md"


def test_what_was_given_is_printed():
    *_, replay, again = _commands(
        "again.html",
        target_delta=1.23456789e-5,
        accountants=["rdp"],
        source="-x.ledger",
        group_sizes=[2, 3],
        options=[("--per-class", None), ("--model", "a net"), ("--data", "-1")],
    )
    assert replay == "tfdp replay ./-x.ledger --delta 1.23456789e-5 --accountant rdp"
    assert again == (
        "tfdp report ./-x.ledger --delta 1.23456789e-5 --accountant rdp --group-size 2 "
        "--group-size 3 --per-class --model 'a net' --data=-1 --out again.html"
    )


def test_the_fingerprint_of_an_export_needs_no_export():
    fingerprint, *_ = _commands(source="my run.jsonl", accountants=["rdp"])
    assert fingerprint.endswith("'my run.jsonl' | sha256sum") and "tfdp export" not in fingerprint


def test_no_number_is_replayed_where_the_report_has_none():
    ledger = PrivacyLedger()
    for unit in ("user", "example"):  # No epsilon is about both.
        ledger.append(
            SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 2.0), privacy_unit=unit)
        )
    fingerprint, again = gather(ledger, 1e-5, ["rdp"]).commands("again.md")
    assert fingerprint.startswith("tfdp export") and again.startswith("tfdp report")
