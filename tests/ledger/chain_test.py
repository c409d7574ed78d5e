"""The chain of digests: any change to a ledger file is found, and the first entry is named."""

import hashlib
import hmac
import shutil
import sqlite3

import pytest

from tests.ledger.reseal import reseal
from tfdp.cli import main
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import LedgerFormatError, PrivacyLedger, storage
from tfdp.ledger.chain import Chain, Row

KEY = bytes(range(32))
EVENTS = [
    SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.0 + i)) for i in range(6)
]


def write(path, key, events=EVENTS):
    """Writes an entry for each event, and leaves the file as a crash would: its last lease open."""
    ledger = PrivacyLedger.open(path, create=True, key=key, lease=1)
    for event in events:
        ledger.append(event)
    ledger._file.close("crashed")
    return ledger.head


def edit(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.fixture(params=[None, KEY], ids=["plain", "keyed"])
def key(request):
    return request.param


@pytest.fixture
def path(tmp_path, key):
    write(tmp_path / "run.ledger", key)
    return tmp_path / "run.ledger"


def test_digests_by_hand(key):
    """The format, written out: who checks a ledger need not trust this package."""

    def digest(message):
        if key is None:
            return hashlib.sha256(message).digest()
        return hmac.new(key, message, hashlib.sha256).digest()

    chain = Chain("ab" * 16, "d", key)
    first = digest(b'tfdp ledger\n["' + b"ab" * 16 + b'", "d"]')
    second = digest(first + b'0 s None 7 {"x": 1}')
    third = digest(second + b"1 s 0 3 ")
    assert chain.next(chain.first, Row(0, "s", None, 7, '{"x": 1}')) == second
    assert chain.next(second, Row(1, "s", 0, 3, None)) == third
    assert chain.head(third, 2, 4) == digest(b"head 2 4 " + third).hex()


def test_untouched(path, key):
    verified = storage.verify(path, key)
    assert verified.checked
    assert (verified.header.num_rows, verified.header.total_count) == (6, 6)


SWAP = (
    "UPDATE entries SET position = 100 WHERE position = 2",
    "UPDATE entries SET position = 2 WHERE position = 4",
    "UPDATE entries SET position = 4 WHERE position = 100",
)
CLOSE_GAP = (
    "DELETE FROM entries WHERE position = 3",
    "UPDATE entries SET position = 3 WHERE position = 4",
    "UPDATE entries SET position = 4 WHERE position = 5",
    "UPDATE meta SET value = '5' WHERE key IN ('entry_count', 'total_count')",
)
TRUNCATE = (
    "DELETE FROM entries WHERE position = 5",
    "UPDATE meta SET value = '5' WHERE key IN ('entry_count', 'total_count')",
)
CHANGES = {
    "edited": (("UPDATE entries SET event = replace(event, '4.0', '9.0') WHERE position = 3",), 3),
    "count": (("UPDATE entries SET count = 2 WHERE position = 4",), 4),
    "session": (("UPDATE entries SET session = '' WHERE position = 1",), 1),
    "dropped": (("DELETE FROM entries WHERE position = 3",), 3),
    "dropped and renumbered": (CLOSE_GAP, 3),
    "reordered": (SWAP, 2),
    "truncated": (TRUNCATE, "truncated after entry 4"),
    "appended": (
        (
            "INSERT INTO entries SELECT 6, session, NULL, count, event, digest FROM entries "
            "WHERE position = 5",
        ),
        6,
    ),
    "taken back": (
        (
            "INSERT INTO entries SELECT 6, session, 5, 1, NULL, digest FROM entries "
            "WHERE position = 5",
        ),
        6,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_first_bad_entry_is_named(path, key, change):
    statements, where = CHANGES[change]
    edit(path, *statements)
    message = where if isinstance(where, str) else f"entry {where} "
    with pytest.raises(LedgerFormatError, match=message):
        storage.verify(path, key)
    with pytest.raises(LedgerFormatError, match=message):
        PrivacyLedger.load(path, key=key)
    with pytest.raises(LedgerFormatError, match=message):
        PrivacyLedger.open(path, create=True, key=key)


def test_spliced_from_another_run(path, key, tmp_path):
    write(tmp_path / "other", key)
    edit(
        path,
        f"ATTACH '{tmp_path / 'other'}' AS other",
        "DELETE FROM entries WHERE position >= 2",
        "INSERT INTO entries SELECT * FROM other.entries WHERE position >= 2",
    )
    with pytest.raises(LedgerFormatError, match="entry 2 .*taken from another ledger"):
        storage.verify(path, key)


def test_header_of_another_run(path, key, tmp_path):
    write(tmp_path / "other", key)
    edit(
        path,
        f"ATTACH '{tmp_path / 'other'}' AS other",
        "UPDATE meta SET value = (SELECT value FROM other.meta WHERE key = 'ledger_id') "
        "WHERE key = 'ledger_id'",
    )
    with pytest.raises(LedgerFormatError, match="entry 0 "):
        storage.verify(path, key)


@pytest.mark.parametrize("change", CHANGES)
def test_without_a_key_all_can_be_computed_anew_but_not_to_the_old_head(tmp_path, change):
    """What the chain alone promises, and what it does not."""
    path = tmp_path / "run.ledger"
    head = write(path, None)
    edit(path, *CHANGES[change][0])
    if change == "dropped":
        edit(path, *CLOSE_GAP[1:3])
    reseal(path, counts=True)
    if change in ("session", "taken back"):  # No tfdp writes that.
        with pytest.raises(LedgerFormatError, match="without a session|more than there was"):
            storage.verify(path)
        return
    assert storage.verify(path).checked
    if change != "appended":
        with pytest.raises(LedgerFormatError, match="never had the head"):
            storage.verify(path, head=head)
    else:
        storage.verify(path, head=head)


@pytest.mark.parametrize("change", CHANGES)
def test_with_a_key_nobody_can(tmp_path, change):
    path = tmp_path / "run.ledger"
    write(path, KEY)
    edit(path, *CHANGES[change][0])
    if change == "dropped":
        edit(path, *CLOSE_GAP[1:3])
    for guess in (None, b"another key of some length"):
        shutil.copy(path, tmp_path / "forged")
        reseal(tmp_path / "forged", counts=True, key=guess)
        with pytest.raises(LedgerFormatError, match="entry 0 "):
            storage.verify(tmp_path / "forged", KEY)
    edit(path, "UPDATE meta SET value = 'sha256' WHERE key = 'chain'")
    reseal(path, counts=True)
    with pytest.raises(LedgerFormatError, match="without a key"):
        storage.verify(path, KEY)


def test_wrong_key(tmp_path):
    path = tmp_path / "run.ledger"
    write(path, KEY)
    with pytest.raises(LedgerFormatError, match="the key is another one"):
        PrivacyLedger.open(path, create=True, key=KEY[::-1])
    with pytest.raises(LedgerFormatError, match="was written with a key"):
        PrivacyLedger.open(path, create=True)
    assert PrivacyLedger.load(path).total_count == 6  # Readable, not checkable.
    assert not storage.verify(path).checked
    with pytest.raises(ValueError, match="head is checked with it"):
        storage.verify(path, head="0" * 64)


def test_head_of_every_earlier_state(tmp_path, key):
    path, heads = tmp_path / "run.ledger", []
    for event in EVENTS:
        with PrivacyLedger.open(path, create=True, key=key, lease=2) as ledger:
            heads.append(ledger.head)
            ledger.append(event)
            heads.append(ledger.head)
    for head in heads:
        storage.verify(path, key, head)
    shutil.copy(path, tmp_path / "old")
    with PrivacyLedger.open(path, create=True, key=key) as ledger:
        ledger.append(EVENTS[0])
    with pytest.raises(LedgerFormatError, match="rolled back"):
        storage.verify(tmp_path / "old", key, ledger.head)


# The command.


def test_verify_says_what_it_checked(path, key, capsys, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    arguments = ["verify", str(path), *(["--key-file", str(key_file)] if key else [])]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    head = out.split("head ")[-1].strip()
    assert "6 entries, 6 steps" in out
    assert ("as it was written by who has the key" in out) == (key is not None)
    assert ("whoever rewrites all" in out) == (key is None)
    assert main([*arguments, "--head", head]) == 0
    assert "after the given head, at which it held 6 steps" in capsys.readouterr().out
    assert main([*arguments, "--head", "00" * 32]) == 2
    assert "never had the head 00" in capsys.readouterr().err
    assert main([*arguments, "--head", "00"]) == 2
    assert "A head is the 64 hexadecimal digits" in capsys.readouterr().err
    edit(path, *CHANGES["edited"][0])
    assert main(arguments) == 2
    assert "entry 3 does not follow" in capsys.readouterr().err


def test_verify_without_the_key_says_so(tmp_path, capsys):
    write(tmp_path / "run.ledger", KEY)
    assert main(["verify", str(tmp_path / "run.ledger")]) == 2
    said = capsys.readouterr()
    assert "not authenticated" in said.out and "was not checked" in said.err


@pytest.mark.parametrize(("key", "error"), [(bytes(15), ValueError), ("x" * 32, TypeError)])
def test_a_key_that_could_be_guessed_is_refused(key, error):
    with pytest.raises(error, match="key must"):
        Chain("0" * 32, None, key)
