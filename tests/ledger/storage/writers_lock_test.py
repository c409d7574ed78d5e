"""Only one process writes at a time, also where another part of it opens and closes the file."""

import sqlite3
import subprocess
import sys
import threading

import pytest

import tfdp
from tfdp.events import GaussianSumEvent
from tfdp.ledger.storage import writers_lock
from tfdp.ledger.storage.writers_lock import WritersLock

needs_lock = pytest.mark.skipif(
    writers_lock._SET is None, reason="This system has no locks that belong to an open file."
)


@needs_lock
def test_one_holds_it_at_a_time_and_closing_the_file_elsewhere_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    first, second = WritersLock(path, 60), WritersLock(path, 0.05)
    with first.held():
        path.open("rb").close()
        with pytest.raises(sqlite3.OperationalError, match="locked"), second.held():
            pass
    with second.held():
        pass
    with first.held():
        first.close()
        with second.held():
            pass
    first.close()
    second.close()
    assert path.read_bytes() == b"as it was"


@needs_lock
def test_whoever_waits_gets_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    locks = [WritersLock(path, 60) for _ in range(2)]
    order = []

    def other():
        with locks[1].held():
            order.append("other")

    thread = threading.Thread(target=other)
    with locks[0].held():
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    for lock in locks:
        lock.close()


_APPENDS = """
import sys
from tfdp.events import GaussianSumEvent
from tfdp.ledger import PrivacyLedger

ledger = PrivacyLedger.open(sys.argv[1], lease=1)
print("ready", flush=True)
sys.stdin.readline()
print("begins", flush=True)
ledger.append(GaussianSumEvent(1.0, 3.0))
ledger.close()
print("done", flush=True)
"""


@needs_lock
def test_no_step_is_lost_where_a_process_reads_its_own_open_ledger(tmp_path):
    """Without the lock the last one to commit overwrites what the first one wrote."""
    path = tmp_path / "run.ledger"
    ledger = tfdp.PrivacyLedger.open(path, create=True, lease=1)
    other = subprocess.Popen(
        [sys.executable, "-c", _APPENDS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "ready\n"

    def copies_the_file(ledger, event):
        path.read_bytes()
        other.stdin.write("go\n")
        other.stdin.flush()
        assert other.stdout.readline() == "begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)  # Seconds in which it would begin and end its own transaction.

    ledger.append(GaussianSumEvent(1.0, 2.0), permit=copies_the_file)
    assert other.stdout.readline() == "done\n"
    other.stdin.close()
    assert other.wait(60) == 0
    other.stdout.close()
    ledger.close()
    found = tfdp.PrivacyLedger.load(path)
    assert [entry.event.noise_stddev for entry in found] == [2.0, 3.0]


@pytest.mark.parametrize("number", [None, 12345], ids=["system", "kernel"])
def test_systems_without_such_locks_have_those_of_sqlite(number, tmp_path, monkeypatch):
    monkeypatch.setattr(writers_lock, "_SET", number)
    ledger = tfdp.PrivacyLedger.open(tmp_path / "run.ledger", create=True)
    ledger.append(GaussianSumEvent(1.0, 2.0))
    ledger.close()
    assert tfdp.PrivacyLedger.load(tmp_path / "run.ledger").total_count == 1
