"""Files of ledgers in memory: saved whole or not at all, and loaded as they are or refused."""

import os
import pickle
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ledger.making import A, B, ledger_of
from tests.ledger.reseal import reseal
from tests.ledger.strategies import ledger_events
from tfdp.ledger import (
    LedgerFormatError,
    LedgerWriteError,
    PrivacyLedger,
    storage,
)

ledgers = st.lists(st.tuples(ledger_events, st.integers(1, 10**6)), max_size=6)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.ledger"
    ledger_of((A, 3), (B, 2), (A, 1)).save(path)
    return path


def _edit(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=ledgers)
def test_save_and_load_round_trip(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("ledger") / "run.ledger"
    ledger = ledger_of(*pairs)
    ledger.save(path)
    assert PrivacyLedger.load(path) == ledger
    assert [p.name for p in path.parent.iterdir()] == ["run.ledger"]


def test_save_replaces_an_earlier_state_of_the_same_ledger(saved):
    ledger = PrivacyLedger.load(saved)
    ledger.save(saved)
    ledger.append(A, 4)
    ledger.save(saved)
    assert PrivacyLedger.load(saved) == ledger


def test_equal_steps_of_another_copy_are_not_this_ones(saved, tmp_path):
    first, second = PrivacyLedger.load(saved), PrivacyLedger.load(saved)
    third = pickle.loads(pickle.dumps(second))
    for ledger in (first, second, third):
        ledger.append(A, 100)
    second.append(A)
    first.save(saved)
    for later in (second, third):
        with pytest.raises(FileExistsError, match="steps that are not in this one"):
            later.save(saved)
        later.save(tmp_path / "other.ledger", overwrite=True)
    assert PrivacyLedger.load(saved) == first
    first.append(A)
    first.save(saved)  # Whoever saved there, and whoever read that, goes on.
    read = PrivacyLedger.load(saved)
    read.append(A)
    read.save(saved)
    assert PrivacyLedger.load(saved) == read


@pytest.mark.skipif(os.name != "posix", reason="elsewhere there is no such lock")
@pytest.mark.parametrize("are_copies", [True, False])
def test_of_two_that_save_at_once_one_is_refused(saved, monkeypatch, are_copies):
    first, second = PrivacyLedger.load(saved), PrivacyLedger.load(saved)
    first.append(A, 2)
    second.append(A, 3)
    if not are_copies:
        saved.unlink()
        second = ledger_of((B, 7))
    refused = []

    def save_second():
        with pytest.raises(FileExistsError, match="would be lost") as error:
            second.save(saved)
        refused.append(error)

    other, write = threading.Thread(target=save_second), storage.write

    def slowly(*arguments):
        if threading.current_thread() is threading.main_thread():
            other.start()
            other.join(0.3)
        write(*arguments)

    monkeypatch.setattr(storage, "write", slowly)
    first.save(saved)
    other.join()
    assert len(refused) == 1
    assert PrivacyLedger.load(saved) == first


@pytest.mark.skipif(os.name != "posix", reason="elsewhere no open file can be replaced")
def test_nobody_appends_to_a_file_that_is_about_to_be_replaced(saved, monkeypatch):
    ledger, write, told = PrivacyLedger.load(saved), storage.write, []
    with PrivacyLedger.open(saved, lease=1) as opened:

        def append():
            try:
                opened.append(B)
                told.append("written")
            except LedgerWriteError as error:
                told.append(str(error))

        other = threading.Thread(target=append)

        def slowly(*arguments):
            other.start()
            other.join(0.3)
            write(*arguments)

        monkeypatch.setattr(storage, "write", slowly)
        ledger.save(saved)
        other.join()
    assert "was replaced while it was open" in told[0]
    assert PrivacyLedger.load(saved) == ledger


def test_copy_on_the_disk_that_went_on_is_not_replaced(saved, tmp_path):
    path = tmp_path / "open.ledger"
    with PrivacyLedger.open(saved, lease=1) as ledger:
        ledger.save(path)
        ledger.append(A)
        ledger.save(path)
        with PrivacyLedger.open(path, lease=1) as copy:
            copy.append(A)
        ledger.append(A, 2)
        with pytest.raises(FileExistsError, match="steps that are not in this one"):
            ledger.save(path)


@pytest.mark.parametrize(
    "what", ["another", "newer", "diverged", "keyed", "text", "folder", "link"]
)
def test_save_does_not_replace_anything_else_unless_told_to(saved, tmp_path, what):
    ledger = ledger_of((B, 7))
    if what in ("newer", "diverged"):
        ledger = PrivacyLedger.load(saved)
        longer = PrivacyLedger.load(saved)
        longer.append(B)
        longer.save(saved)
        if what == "diverged":
            ledger.append(A, 100)
    elif what == "keyed":
        saved.unlink()
        PrivacyLedger.open(saved, create=True, key=bytes(32)).close()
    elif what == "text":
        saved.write_text("something else")
    elif what == "folder":
        saved.unlink()
        saved.mkdir()
    elif what == "link":
        saved.unlink()
        saved.symlink_to(tmp_path / "nowhere")
    before = saved.read_bytes() if saved.is_file() else None
    with pytest.raises(FileExistsError, match="would be lost.*overwrite=True"):
        ledger.save(saved)
    assert before is None or saved.read_bytes() == before
    if what == "folder":
        with pytest.raises(LedgerWriteError, match="cannot be written to"):
            ledger.save(saved, overwrite=True)
        return
    ledger.save(saved, overwrite=True)
    assert PrivacyLedger.load(saved) == ledger


def test_failed_save_keeps_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        ledger_of((B, 7)).save(saved, overwrite=True)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["run.ledger"]


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
@pytest.mark.parametrize("what", ["save", "open", "export"])
def test_full_disk_is_an_error_of_ours_and_leaves_what_was_there(saved, tmp_path, what):
    code = (
        "import resource, signal, sys\n"
        "from tfdp.ledger import LedgerWriteError, PrivacyLedger\n"
        "ledger = PrivacyLedger.load(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        f"    {{'save': ledger.save, 'export': ledger.to_json_lines, 'open': lambda path: "
        f"PrivacyLedger.open(path + '2', create=True)}}[{what!r}](sys.argv[2])\n"
        "except LedgerWriteError as error:\n"
        "    print('ours', error)\n"
    )
    target = saved if what == "save" else tmp_path / "new"
    before = saved.read_bytes()
    child = subprocess.run(
        [sys.executable, "-c", code, str(saved), str(target)], capture_output=True, text=True
    )
    assert child.stdout.startswith("ours") and "free the disk" in child.stdout, child.stderr
    assert saved.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.ledger"]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere processes are not asked for")
def test_what_a_killed_process_left_is_removed(tmp_path):
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    gone = tmp_path / f".run.ledger.{int(child.stdout)}.{'0' * 32}.tmp"
    mine = tmp_path / f".run.ledger.{os.getpid()}.{'0' * 32}.tmp"
    others = [tmp_path / ".run.ledger.tmp", tmp_path / ".run.ledger.x.tmp"]
    for path in (gone, mine, *others):
        path.write_bytes(b"")
    ledger_of((A, 1)).save(tmp_path / "run.ledger")
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"run.ledger", mine.name, *(path.name for path in others)}


def test_save_into_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it"):
        PrivacyLedger().save(tmp_path / "no" / "run.ledger")


def test_load_of_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no ledger at"):
        PrivacyLedger.load(tmp_path / "run.ledger")


def test_load_opens_the_file_read_only(saved):
    before = saved.read_bytes()
    PrivacyLedger.load(saved)
    with storage.files.open_read_only(saved) as (connection, _):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM meta")
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["run.ledger"]


@pytest.mark.parametrize("name", ["a b?c#d%20.ledger", "-x'\"é.ledger"])
def test_file_names_with_special_characters(tmp_path, name):
    ledger = ledger_of((A, 1))
    ledger.save(tmp_path / name)
    assert PrivacyLedger.load(tmp_path / name) == ledger


@pytest.mark.parametrize("content", [b"", b"SQLite", b"{}\n", b"hello\n" * 1000, bytes(5000)])
def test_load_of_something_else(tmp_path, content):
    path = tmp_path / "run.ledger"
    path.write_bytes(content)
    with pytest.raises(LedgerFormatError, match="is not a ledger"):
        PrivacyLedger.load(path)


def test_load_of_truncated_file_at_every_length(saved):
    content = saved.read_bytes()
    for length in [*range(0, len(content), 97), len(content) - 1]:
        saved.write_bytes(content[:length])
        with pytest.raises(LedgerFormatError):
            PrivacyLedger.load(saved)


def test_load_of_file_with_a_flipped_byte_is_refused_or_well_formed(saved):
    content = saved.read_bytes()
    rng = np.random.default_rng(0)
    used = [i for i, byte in enumerate(content) if byte]
    refused = 0
    for position in rng.choice(used, 150):
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            assert isinstance(PrivacyLedger.load(saved), PrivacyLedger)
        except LedgerFormatError:
            refused += 1
    assert refused > 75


def test_load_of_another_applications_file(tmp_path):
    path = tmp_path / "other.db"
    _edit(path, "CREATE TABLE entries (position INTEGER PRIMARY KEY, event TEXT, count INTEGER)")
    with pytest.raises(LedgerFormatError, match="another application"):
        PrivacyLedger.load(path)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 4", "schema version 4.*newer"),
        ("PRAGMA user_version = 1", "schema version 1.*newer"),
        ("PRAGMA application_id = 1", "another application"),
        ("DROP TABLE entries", "no such table"),
        ("DROP TABLE meta", "no such table"),
        ("DELETE FROM entries WHERE position = 2", "truncated or edited"),
        ("DELETE FROM entries WHERE position = 1", "entry 1 is missing"),
        ("DELETE FROM entries", "truncated or edited"),
        ("UPDATE entries SET count = 30 WHERE position = 0", "entry 0 does not follow"),
        ("UPDATE entries SET event = '{}' WHERE position = 1", "entry 1 does not follow"),
        ("UPDATE entries SET event = CAST(x'ff' AS TEXT) WHERE position = 1", "UTF-8"),
        ("UPDATE entries SET digest = 'x' WHERE position = 1", "entry 1 does not follow"),
        ("DELETE FROM meta WHERE key = 'ledger_id'", "malformed header"),
        ("UPDATE meta SET value = 'x' WHERE key = 'ledger_id'", "malformed ledger_id"),
        ("UPDATE meta SET value = 'x' WHERE key = 'total_count'", "total_count='x'"),
        (
            "UPDATE meta SET value = '30' WHERE key = 'total_count'",
            "total_count=30, but it holds 6",
        ),
        ("UPDATE meta SET value = 'x' WHERE key = 'chain'", "unknown kind of chain"),
        ("UPDATE meta SET value = 'x' WHERE key = 'dataset_id'", "not valid JSON"),
        ("UPDATE meta SET value = '7' WHERE key = 'dataset_id'", "malformed dataset_id"),
        ("UPDATE meta SET value = 'x' WHERE key = 'head'", "its head was edited"),
        ("INSERT INTO meta VALUES ('x', 'y')", "malformed header"),
    ],
)
def test_load_of_edited_file_says_where(saved, statement, message):
    _edit(saved, statement)
    with pytest.raises(LedgerFormatError, match=message):
        PrivacyLedger.load(saved)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET count = 30 WHERE position = 0", "total_count=6, but it holds 33"),
        ("UPDATE entries SET count = 0 WHERE position = 1", "entry 1: count must be"),
        ("UPDATE entries SET count = 'x' WHERE position = 1", "entry 1: count must be"),
        ("UPDATE entries SET count = 1.5 WHERE position = 1", "entry 1: count must be"),
        ("UPDATE entries SET event = '{}' WHERE position = 1", "entry 1: event.type must be"),
        ("UPDATE entries SET event = '{' WHERE position = 1", "entry 1 is not valid JSON"),
        ("UPDATE entries SET event = x'00ff' WHERE position = 1", "entry 1: event must be text"),
        ("UPDATE entries SET session = x'00' WHERE position = 1", "entry 1 is malformed"),
        ("UPDATE entries SET target = 0 WHERE position = 1", "entry 1 gives back what was not"),
        ("UPDATE entries SET target = 5, event = NULL WHERE position = 1", "entry 1 gives back"),
        ("UPDATE entries SET target = 0, event = NULL WHERE position = 2", "entry 2 gives back"),
    ],
)
def test_edited_file_whose_digests_were_computed_anew(saved, statement, message):
    _edit(saved, statement)
    reseal(saved)
    with pytest.raises(LedgerFormatError, match=message):
        PrivacyLedger.load(saved)
