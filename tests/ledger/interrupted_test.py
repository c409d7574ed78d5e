"""A commit that is cut short, by a kill or by power that fails: what a file then says.

A commit of SQLite with a persistent journal is: the pages as they were are written to the journal,
and synced; the new ones are written to the file, and synced; the first bytes of the journal are
cleared, and synced. Here every state in between is made by hand, and states that no crash leaves:
journals that are cut, damaged, lost, older, or of another file.
"""

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import struct

import pytest

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import LedgerFormatError, PrivacyLedger, storage

PAGE = 4096
NONCE = 12345
EVENTS = [
    SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.0 + i)) for i in range(40)
]


def journal(before, after):
    """Returns the journal with which SQLite makes `before` of `after`."""
    pages = [i for i in range(len(before) // PAGE) if page(before, i) != page(after, i)]
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(
        ">5I", len(pages), NONCE, len(before) // PAGE, 512, PAGE
    )
    records = [
        struct.pack(">I", i + 1)
        + page(before, i)
        + struct.pack(">I", (NONCE + sum(page(before, i)[PAGE - 200 : 0 : -200])) % 2**32)
        for i in pages
    ]
    return header.ljust(512, b"\0") + b"".join(records)


def page(data, i):
    return data[i * PAGE : (i + 1) * PAGE]


def mixed(before, after, which):
    """Returns what is on the disk when `which` of the pages were written."""
    size = max(len(before), len(after)) // PAGE
    pages = [page(after if i in which else before, i).ljust(PAGE, b"\0") for i in range(size)]
    return b"".join(pages)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The file after 1, 2, ... events, one by one."""
    path = tmp_path_factory.mktemp("states") / "run.ledger"
    found = []
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        for event in EVENTS:
            ledger.append(event)
            found.append(path.read_bytes())
    return found


def put(folder, database, left_over=None):
    path = folder / "run.ledger"
    path.write_bytes(database)
    beside = folder / "run.ledger-journal"
    beside.unlink(missing_ok=True)
    if left_over is not None:
        beside.write_bytes(left_over)
    return path


def count(path):
    """Returns what a reader finds, or None where it is refused; neither changes a byte."""
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    try:
        return PrivacyLedger.load(path).total_count
    except LedgerFormatError:
        return None
    finally:
        assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


def count_of_writer(path):
    try:
        with PrivacyLedger.open(path) as ledger:
            return ledger.total_count
    except LedgerFormatError:
        return None


# A commit in one page, and two in which the tree of pages grows.
def commits(states):
    grown = [i for i in range(1, len(states)) if len(states[i]) > len(states[i - 1])]
    assert len(grown) >= 2
    return [3, *grown[:2]]


def test_journal_by_hand_is_what_sqlite_writes(tmp_path):
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        for event in EVENTS[:30]:
            ledger.append(event)
        before = path.read_bytes()
        ledger._file.connection.execute(
            "PRAGMA cache_size = 1"
        )  # Pages are written before the commit.
        ledger._file.connection.execute("BEGIN IMMEDIATE")
        ledger._file.connection.execute("UPDATE entries SET count = 2")
        after, written = path.read_bytes(), path.with_name("run.ledger-journal").read_bytes()
        ledger._file.connection.execute("ROLLBACK")
    assert after != before
    made = journal(before, after)
    assert (made[:8], made[16:28]) == (written[:8], written[16:28])
    (number,) = struct.unpack(">I", written[512:516])
    nonce = int.from_bytes(written[12:16], "big")
    checksum = (nonce + sum(page(before, number - 1)[PAGE - 200 : 0 : -200])) % 2**32
    assert written[516 : 516 + PAGE] == page(before, number - 1)
    assert written[516 + PAGE : 520 + PAGE] == struct.pack(">I", checksum)


def test_every_state_of_a_commit_is_read_and_continued(states, tmp_path):
    """The event of the commit was not released: it counts where all of it is in the file, and not
    where a part is. All before it count.
    """
    for i in commits(states):
        before, after = states[i - 1], states[i]
        size = max(len(before), len(after)) // PAGE
        changed = [k for k in range(size) if page(before, k) != page(after, k)]
        left_over = journal(before, after)
        for number in range(len(changed) + 1):
            for which in itertools.combinations(changed, number):
                database = mixed(before, after, which)
                alone = count(put(tmp_path, database))
                assert alone in (None, i, i + 1)
                assert database != after or alone == i + 1
                found = alone or i
                path = put(tmp_path, database, left_over)
                assert count(path) == found
                assert storage.verify(path).header.num_rows == found
                assert count_of_writer(path) == found
                assert count(path) == found
        for cleared in (b"", bytes(28) + left_over[28:]):
            assert count(put(tmp_path, after, cleared)) == i + 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "lost"])
def test_journal_that_is_damaged_or_lost_never_takes_an_event_away(states, tmp_path, damage):
    generator = random.Random(0)
    refused = 0
    for i in commits(states):
        before, after = states[i - 1], states[i]
        size = max(len(before), len(after)) // PAGE
        changed = [k for k in range(size) if page(before, k) != page(after, k)]
        left_over = journal(before, after)
        for _ in range(1 if damage == "lost" else 12):
            torn = mixed(before, after, generator.sample(changed, 1))
            damaged = bytearray(left_over)
            if damage == "cut":
                del damaged[generator.randrange(len(damaged)) :]
            else:
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            for database in (torn, before, after):
                path = put(tmp_path, database, None if damage == "lost" else bytes(damaged))
                found = count(path)
                refused += found is None
                assert found is None or found >= i
                found = count_of_writer(path)
                assert found is None or found >= i
    assert refused


def test_copy_without_what_is_beside_it_is_whole_after_every_commit(tmp_path):
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        for number in range(1, 6):
            ledger.append(EVENTS[number])
            shutil.copy(path, tmp_path / "copy.ledger")
            assert PrivacyLedger.load(tmp_path / "copy.ledger").total_count == number


@pytest.mark.parametrize("last", [3, 4])
def test_rows_that_were_added_where_the_journal_was_not_are_kept(states, tmp_path, last):
    """The file was moved away without its journal, continued, and moved back."""
    path = put(tmp_path, states[last], journal(states[2], states[3]))
    link = tmp_path / "link.ledger"
    link.symlink_to(path)
    assert count(path) == last + 1
    assert PrivacyLedger.load(link).total_count == last + 1
    assert count_of_writer(path) == last + 1
    with PrivacyLedger.open(path, lease=1) as ledger:
        ledger.append(EVENTS[0])
    assert count(path) == last + 2


def test_a_file_with_a_key_is_looked_at_with_the_key_before_its_journal_is_given_up(tmp_path):
    path, key = tmp_path / "run.ledger", bytes(range(32))
    found = []
    with PrivacyLedger.open(path, create=True, lease=1, key=key) as ledger:
        for event in EVENTS[:4]:
            ledger.append(event)
            found.append(path.read_bytes())
    left_over = journal(found[2], found[3])
    put(tmp_path, found[3], left_over)
    with pytest.raises(LedgerFormatError, match="was written with a key"):
        PrivacyLedger.open(path)
    with pytest.raises(FileExistsError, match="with a key|another ledger"):
        PrivacyLedger().save(path)
    assert path.with_name("run.ledger-journal").read_bytes() == left_over
    with PrivacyLedger.open(path, key=key) as ledger:
        assert ledger.total_count == 4


def test_a_journal_of_a_longer_copy_is_refused(states, tmp_path):
    path = put(tmp_path, states[3], journal(states[6], states[7]))
    with pytest.raises(LedgerFormatError, match="belongs to another copy. Move it away"):
        PrivacyLedger.load(path)
    assert count_of_writer(path) is None


@pytest.mark.parametrize("older", [1, 5, 20])
def test_journal_of_an_older_copy_is_refused_and_nothing_is_undone(states, tmp_path, older):
    path = put(tmp_path, states[39], journal(states[older - 1], states[older]))
    database = path.read_bytes()
    for read in (count, count_of_writer):
        assert read(path) is None
        assert path.read_bytes() == database
    path.with_name("run.ledger-journal").unlink()
    assert count(path) == 40


def test_journal_of_an_older_copy_says_so(states, tmp_path):
    # The commit of rows in one page: undoing it would make a smaller ledger of this one.
    path = put(tmp_path, states[8], journal(states[3], states[4]))
    with pytest.raises(LedgerFormatError, match="belongs to an older copy. Move it away"):
        PrivacyLedger.load(path)


def test_journal_that_names_another_file_is_refused(states, tmp_path):
    """SQLite would open that file, and remove it where it names no journal."""
    victim = tmp_path / "precious"
    victim.write_bytes(b"something")
    name = os.fsencode(victim)
    left_over = journal(states[2], states[3])
    left_over += struct.pack(">I", 1 + (2**30 // PAGE)) + name
    left_over += struct.pack(">2I", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    path = put(tmp_path, states[3], left_over)
    for read in (count, count_of_writer):
        assert read(path) is None
    with pytest.raises(LedgerFormatError, match="names another file"):
        PrivacyLedger.load(path)
    assert victim.read_bytes() == b"something"


def test_write_ahead_log_is_refused_by_name(states, tmp_path):
    """Logs hold what the file lacks; who lost one would read less."""
    path = put(tmp_path, states[3])
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("UPDATE meta SET value = value")
        assert path.with_name("run.ledger-wal").exists()
        alone = path.read_bytes()
        with pytest.raises(LedgerFormatError, match="write-ahead log"):
            PrivacyLedger.load(path)
        with pytest.raises(LedgerFormatError, match="write-ahead log"):
            PrivacyLedger.open(path)
    (tmp_path / "copy.ledger").write_bytes(alone)
    with pytest.raises(LedgerFormatError, match="write-ahead log"):
        PrivacyLedger.load(tmp_path / "copy.ledger")


def test_every_commit_is_synced(tmp_path):
    """No test can lose power: SQLite is asked what it will do. FULL is 2."""
    with PrivacyLedger.open(tmp_path / "run.ledger", create=True) as ledger:
        assert ledger._file.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._file.connection.execute("PRAGMA journal_mode").fetchone() == ("persist",)


def test_reader_does_not_hold_up_a_writer(tmp_path, monkeypatch):
    monkeypatch.setattr("tfdp.ledger.storage.files.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("tfdp.ledger.storage.rows._CHUNK", 2)
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        for event in EVENTS[:9]:
            ledger.append(event)
        with storage.open_entries(path) as stream:
            found = []
            for entry in stream.entries:
                found.append(entry.count)
                ledger.append(EVENTS[len(found)])
        assert found == [1] * 9
        assert ledger.total_count == 18
