"""Several runs on one ledger: none loses another's events, and together they do not overspend."""

import contextlib
import sqlite3
import subprocess
import sys

import pytest

from tests.ledger.making import A, B, entries, on_disk
from tfdp.events import GaussianSumEvent, SampledEvent, ShuffledSampling
from tfdp.ledger import LedgerWriteError, PrivacyLedger
from tfdp.ledger.durable import DurableLedger
from tfdp.ledger.errors import PassTakenError


def shuffled(pass_index):
    return SampledEvent(ShuffledSampling(10, 100, pass_index), GaussianSumEvent(1.0, 1.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


def test_writers_see_each_other_when_they_reserve(path):
    with (
        PrivacyLedger.open(path, create=True, lease=4) as one,
        PrivacyLedger.open(path, create=True, lease=4) as two,
    ):
        one.append(A)
        two.append(B)
        assert entries(two) == [(A, 4), (B, 1)]
        assert entries(one) == [(A, 1)]
        one.append(B)
        assert entries(one) == [(A, 1), (B, 5)]
        two.append(A)  # One gave three back.
        assert entries(two) == [(A, 1), (B, 5), (A, 1)]
        assert (one.revision, two.revision) == (0, 1)
        assert on_disk(path).total_count == 1 + 1 + 4 + 4
    assert on_disk(path).total_count == 4


def test_readers_never_see_less_while_all_is_read_anew(path, monkeypatch):
    with PrivacyLedger.open(path, create=True, lease=1) as first:
        for event in (A, B, A, B):
            first.append(event)
        with PrivacyLedger.open(path) as second:
            second.append(A)  # And gives back what it reserved, which makes `first` read anew.
        found, read = [], DurableLedger._read

        def look(self, *arguments):
            found.append((first.total_count, len(list(first)), first.next_pass, first.revision))
            read(self, *arguments)

        monkeypatch.setattr(DurableLedger, "_read", look)
        first.append(B)
        monkeypatch.undo()
        assert len(found) > 4 and set(found) == {(4, 4, 0, 0)}
        assert (first.total_count, first.revision) == (6, 1)


def test_processes_lose_no_event(path):
    code = (
        "import sys\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import PrivacyLedger\n"
        "ledger = PrivacyLedger.open(sys.argv[1], create=True, lease=3, dataset_id='d')\n"
        "for _ in range(50):\n"
        "    ledger.append(GaussianSumEvent(1.0, float(sys.argv[2])))\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(stddev)])
        for stddev in (1, 2, 3)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    counts = {}
    for event, count in on_disk(path):
        counts[event.noise_stddev] = counts.get(event.noise_stddev, 0) + count
    assert counts == {1.0: 50, 2.0: 50, 3.0: 50}


def test_processes_together_do_not_overspend(path):
    code = (
        "import sys\n"
        "from tfdp.accounting.planning.budget import affordable_events\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import PrivacyLedger\n"
        "class Spent(Exception): pass\n"
        "def permit(ledger, event):\n"
        "    left = affordable_events(ledger, event, 3.0, 1e-5)\n"
        "    if not left:\n"
        "        raise Spent\n"
        "    return left\n"
        "with PrivacyLedger.open(sys.argv[1], create=True, lease=4) as ledger:\n"
        "    try:\n"
        "        while True:\n"
        "            ledger.append(GaussianSumEvent(1.0, 12.0), permit=permit)\n"
        "    except Spent:\n"
        "        pass\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    found = on_disk(path)
    event = GaussianSumEvent(1.0, 12.0)
    afresh = PrivacyLedger().remaining(3.0, 1e-5, event=event).events
    assert afresh > 30
    assert found.total_count == afresh
    assert found.remaining(3.0, 1e-5).events == 0


def test_two_processes_cannot_count_two_passes_as_one(path):
    with PrivacyLedger.open(path, create=True) as one, PrivacyLedger.open(path, create=True) as two:
        one.append(shuffled(0))
        with pytest.raises(PassTakenError, match="pass 0"):
            two.append(shuffled(0))
        two.append(shuffled(1))
        one.append(shuffled(0))
        assert entries(on_disk(path))[0][0] != entries(on_disk(path))[1][0]


def test_writer_that_does_not_let_go_is_an_error_in_time(path, monkeypatch):
    monkeypatch.setattr("tfdp.ledger.storage.files.PATIENCE_SECONDS", 0.1)
    with PrivacyLedger.open(path, create=True) as ledger:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerWriteError, match="locked"):
                ledger.append(A)
        with pytest.raises(LedgerWriteError, match="not open any more"):
            ledger.append(A)
    assert on_disk(path).total_count == 0
