"""Exports: the digests of their lines, their key, and what speaks for them."""

import hashlib
import hmac
import json

import pytest

from tests.ledger import reading
from tfdp.events import (
    ComposedEvent,
    GaussianSumEvent,
    PoissonSampling,
    SampledEvent,
)
from tfdp.ledger import LedgerFormatError, PrivacyLedger, json_lines
from tfdp.ledger.entry import Evidence

_STEP = SampledEvent(
    PoissonSampling(0.25, 40),
    ComposedEvent((GaussianSumEvent(1.0, 2.0), GaussianSumEvent(3.0, 4.0))),
)


_KEY = bytes(range(32))


def _text(*entries):
    ledger = PrivacyLedger()
    for event, count in entries:
        ledger.append(event, count)
    return ledger.to_json_lines()


_TEXT = _text((_STEP, 3), (GaussianSumEvent(1.0, 1.0), 1), (_STEP, 2**40))


def test_digests_by_hand():
    """The format, written out: who checks an export need not trust this package."""
    *lines, last = _TEXT.splitlines(keepends=True)
    plain = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert json.loads(last) == {"sha256": plain}
    *lines, last = PrivacyLedger.from_json_lines(_TEXT).to_json_lines(key=_KEY).splitlines(True)
    keyed = hmac.new(_KEY, "".join(lines).encode(), hashlib.sha256).hexdigest()
    assert json.loads(last)["hmac-sha256"] == keyed


def test_key_of_an_export_is_checked():
    ledger = PrivacyLedger.from_json_lines(_TEXT)
    text = ledger.to_json_lines(key=_KEY)
    assert PrivacyLedger.from_json_lines(text, key=_KEY) == ledger
    assert PrivacyLedger.from_json_lines(text) == ledger
    with pytest.raises(LedgerFormatError, match="the key is another one"):
        PrivacyLedger.from_json_lines(text, key=_KEY[::-1])
    with pytest.raises(LedgerFormatError, match="written without a key"):
        PrivacyLedger.from_json_lines(_TEXT, key=_KEY)
    with pytest.raises(LedgerFormatError, match="version 1, which has no digests"):
        PrivacyLedger.from_json_lines(reading.of_version_1(text), key=_KEY)
    forged = text.replace('"noise_stddev": 2.0', '"noise_stddev": 9.0')
    with pytest.raises(LedgerFormatError, match="its sha256 is not that of its lines"):
        PrivacyLedger.from_json_lines(forged)
    sha, mac = (
        json.loads(reading.resealed(forged).splitlines()[-1]),
        json.loads(text.splitlines()[-1]),
    )
    lines = forged.splitlines()[:-1] + [json.dumps({**mac, **sha})]
    with pytest.raises(LedgerFormatError, match="its hmac-sha256 is not that of its lines"):
        PrivacyLedger.from_json_lines("\n".join(lines), key=_KEY)


@pytest.mark.parametrize(
    "last", ["{}", '{"sha256": 1}', '{"sha256": null}', '{"sha512": ""}', "[]", '{"event": 1}']
)
def test_malformed_line_of_digests_is_refused(last):
    text = "".join([*_TEXT.splitlines(keepends=True)[:-1], last])
    assert reading.read(text) is None


@pytest.mark.parametrize("text", [None, 3, b"{}", ["{}"]])
def test_what_is_no_text_is_refused_as_such(text):
    with pytest.raises(TypeError, match="what to_json_lines returned"):
        json_lines.loads(text)


def test_evidence_of_a_file(tmp_path):
    ledger = PrivacyLedger.from_json_lines(_TEXT)
    path = tmp_path / "a.jsonl"
    ledger.to_json_lines(path, key=_KEY)
    for key, evidence in ((_KEY, Evidence.KEY), (None, Evidence.DIGESTS)):
        with json_lines.open_entries(path, key) as stream:
            assert stream.evidence is evidence
            assert list(stream.entries) == list(ledger)
    path.write_text(reading.of_version_1(_TEXT))
    with json_lines.open_entries(path) as stream:
        assert stream.evidence is Evidence.NONE
        assert list(stream.entries) == list(ledger)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("\ufeff" + _TEXT, "byte order mark"),
        (_TEXT.replace("\n", "\r\n"), "CRLF"),
    ],
    ids=["mark", "ends"],
)
def test_what_an_editor_has_changed_is_named(tmp_path, changed, words):
    with pytest.raises(LedgerFormatError, match=words):
        PrivacyLedger.from_json_lines(changed)
    path = tmp_path / "a.jsonl"
    path.write_bytes(changed.encode())
    with pytest.raises(LedgerFormatError, match=f"a.jsonl.*{words}"), json_lines.open_entries(path):
        pass
