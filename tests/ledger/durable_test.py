"""tfdp.ledger.DurableLedger: the file is never behind, whoever writes and whatever stops."""

import collections
import contextlib
import copy
import datetime
import os
import pathlib
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from tests.ledger.making import A, B, crash, entries, on_disk
from tfdp.accounting import RDPAccountant
from tfdp.events import GaussianSumEvent
from tfdp.ledger import LedgerEntry, LedgerFormatError, LedgerWriteError, PrivacyLedger

KEY = bytes(range(32))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


@pytest.mark.parametrize("lease", [1, 3, 64])
def test_file_is_never_behind(path, lease):
    with PrivacyLedger.open(path, create=True, lease=lease) as ledger:
        for step in range(1, 11):
            ledger.append(A)
            assert ledger.total_count == step
            assert on_disk(path).total_count == -(-step // lease) * lease
    assert entries(on_disk(path)) == entries(ledger) == [(A, 10)]


def test_another_event_gives_back_what_is_left(path):
    with PrivacyLedger.open(path, create=True, lease=5) as ledger:
        for event in (A, A, B, A):
            ledger.append(event)
        assert entries(ledger) == [(A, 2), (B, 1), (A, 1)]
        assert entries(on_disk(path)) == [(A, 2), (B, 1), (A, 5)]
    assert entries(on_disk(path)) == [(A, 2), (B, 1), (A, 1)]


def test_count_larger_than_the_lease_is_reserved_exactly(path):
    with PrivacyLedger.open(path, create=True, lease=5) as ledger:
        ledger.append(A, 100)
        assert on_disk(path).total_count == 100
        ledger.append(A, 3)
        assert on_disk(path).total_count == 105
        ledger.append(A, 3)  # Two are left: they are given back.
        assert (ledger.total_count, on_disk(path).total_count) == (106, 108)


def test_settle_between_steps(path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)
        ledger.settle()
        assert on_disk(path).total_count == 1
        ledger.settle()
        ledger.append(A)
        assert (ledger.total_count, on_disk(path).total_count) == (2, 65)


def test_after_a_crash_the_lease_counts_as_used(path):
    ledger = PrivacyLedger.open(path, create=True, lease=7)
    ledger.append(A, 2)
    crash(ledger)
    with PrivacyLedger.open(path, create=True, lease=7) as again:
        assert entries(again) == [(A, 7)]
        again.append(A)
        assert again.total_count == 8
    assert entries(on_disk(path)) == [(A, 8)]


def test_end_of_the_process_gives_back_and_a_kill_does_not(path):
    code = (
        "import os, sys\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import PrivacyLedger\n"
        f"ledger = PrivacyLedger.open({str(path)!r}, create=True, lease=10)\n"
        "ledger.append(GaussianSumEvent(1.0, 1.1), 3)\n"
        "{end}\n"
    )
    for end, total in (("sys.exit(1)", 3), ("os.kill(os.getpid(), 9)", 13)):
        subprocess.run([sys.executable, "-c", code.format(end=end)], timeout=60)
        assert on_disk(path).total_count == total


def test_one_file_is_left(path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)
    assert [p.name for p in path.parent.iterdir()] == ["run.ledger"]
    with pytest.raises(LedgerWriteError, match="it was closed"):
        ledger.append(A)
    ledger.close()


def test_closed_ledger_can_be_read(path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A, 100)
    assert ledger.replay(RDPAccountant()).get_epsilon(1e-5) > 0
    assert ledger.to_json_lines() == on_disk(path).to_json_lines()


def test_saved_ledger_is_continued(path):
    saved = PrivacyLedger()
    saved.append(A, 3)
    place = saved.watermark()
    saved.append(B)
    saved.save(path)
    with PrivacyLedger.open(path, create=True) as ledger:
        assert ledger.ledger_id == saved.ledger_id
        assert ledger.holds(*place) and ledger.holds(*saved.watermark())
        ledger.append(B)
        assert not ledger.holds(ledger.total_count, saved.watermark()[1])
    assert entries(on_disk(path)) == [(A, 3), (B, 2)]


def test_own_file_is_not_saved_over(path, tmp_path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)
        with pytest.raises(ValueError, match="own file"):
            ledger.save(path)
        ledger.save(tmp_path / "copy")
        assert entries(PrivacyLedger.load(tmp_path / "copy")) == [(A, 1)]


def test_permit_is_asked_before_every_event_and_limits_what_is_reserved(path):
    asked = []

    def permit(ledger, event):
        asked.append(ledger.total_count)
        return 5 - ledger.total_count

    with PrivacyLedger.open(path, create=True, lease=3) as ledger:
        for _ in range(5):
            ledger.append(A, permit=permit)
        assert asked == [0, 1, 2, 3, 4]
        assert on_disk(path).total_count == 5


def test_refusal_leaves_everything_as_it_was(path):
    def refuse(ledger, event):
        raise RuntimeError("no")

    with PrivacyLedger.open(path, create=True, lease=2) as ledger:
        ledger.append(A)
        for event in (A, B):  # Reserved already, and not.
            with pytest.raises(RuntimeError, match="no"):
                ledger.append(event, permit=refuse)
        assert entries(ledger) == [(A, 1)]
        assert entries(on_disk(path)) == [(A, 2)]
        ledger.append(B)
    assert entries(on_disk(path)) == [(A, 1), (B, 1)]


def test_data_set_is_checked(path):
    PrivacyLedger.open(path, create=True, dataset_id="a").close()
    with pytest.raises(ValueError, match="about the data set 'a'"):
        PrivacyLedger.open(path, create=True, dataset_id="b")
    with PrivacyLedger.open(path, create=True) as ledger:
        assert ledger.dataset_id == "a"


@pytest.mark.parametrize("arguments", [{"dataset_id": ""}, {"lease": 1.0}, {"key": "secret" * 9}])
def test_arguments_of_another_type(path, arguments):
    with pytest.raises(TypeError):
        PrivacyLedger.open(path, create=True, **arguments)
    assert not path.exists()


@pytest.mark.parametrize("arguments", [{"lease": 0}, {"key": b"short"}])
def test_arguments_out_of_range(path, arguments):
    with pytest.raises(ValueError):
        PrivacyLedger.open(path, create=True, **arguments)
    assert not path.exists()


def test_rollback_while_open_is_noticed(path):
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        ledger.append(A)
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("DELETE FROM entries")
        with pytest.raises(LedgerFormatError, match="rolled back"):
            ledger.append(A)


@pytest.mark.parametrize("replace", [True, False])
def test_file_replaced_or_removed_while_open_is_noticed(path, tmp_path, replace):
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        ledger.append(A)
        PrivacyLedger().save(tmp_path / "new")
        if replace:
            os.replace(tmp_path / "new", path)
        else:
            path.unlink()
        with pytest.raises(LedgerWriteError, match="replaced" if replace else "is gone"):
            ledger.append(A)
        crash(ledger)


def test_clock_is_never_read(path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a clock was read")

    for name in ("time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, fail)
    monkeypatch.setattr(datetime, "datetime", None)
    with PrivacyLedger.open(path, create=True, lease=2) as ledger:
        for _ in range(5):
            ledger.append(A)
    assert entries(on_disk(path)) == [(A, 5)]


@pytest.mark.parametrize("content", [b"", b"SQLite", b"hello\n" * 1000])
def test_something_else_is_not_overwritten(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerFormatError, match="is not a ledger"):
        PrivacyLedger.open(path, create=True)
    assert path.read_bytes() == content


def test_path_without_a_file_makes_none_unless_told_to(path):
    with pytest.raises(FileNotFoundError, match="no ledger at .*create=True"):
        PrivacyLedger.open(path)
    assert list(path.parent.iterdir()) == []
    PrivacyLedger.open(path, create=True).close()
    PrivacyLedger.open(path).close()


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it"):
        PrivacyLedger.open(tmp_path / "no" / "run.ledger", create=True)


def test_forked_process_must_open_it_again(path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)
        ledger._file.process += 1  # As a child sees it.
        with pytest.raises(LedgerWriteError, match="Open it again here"):
            ledger.append(A)
        ledger.close()  # Does nothing: the file is the parent's.
        ledger._file.process -= 1
        ledger.append(A)
    assert entries(on_disk(path)) == [(A, 2)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_process_that_is_forked_while_a_thread_writes_ends(path):
    code = (
        "import os, signal, sys, threading\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import LedgerWriteError, PrivacyLedger\n"
        "ledger = PrivacyLedger.open(sys.argv[1], create=True)\n"
        "event = GaussianSumEvent(1.0, 1.1)\n"
        "asked, forked = threading.Event(), threading.Event()\n"
        "def permit(*_):\n"
        "    asked.set()\n"
        "    forked.wait()\n"
        "write = lambda: ledger.append(event, permit=permit)\n"
        "thread = threading.Thread(target=write)\n"
        "thread.start()\n"
        "asked.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(30)\n"
        "    try:\n"
        "        ledger.append(event)\n"
        "    except LedgerWriteError as error:\n"
        "        assert 'Open it again here' in str(error)\n"
        "        sys.exit(7)\n"
        "    sys.exit(8)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "forked.set()\n"
        "thread.join()\n"
        "ledger.close()\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert (parent.returncode, parent.stdout) == (0, "7\n"), parent.stderr
    assert on_disk(path).total_count == 1


def test_full_disk_stops_the_step_and_harms_nothing(path):
    code = (
        "import resource, signal, sys\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import LedgerWriteError, PrivacyLedger\n"
        "ledger = PrivacyLedger.open(sys.argv[1], create=True, lease=1)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "done = 0\n"
        "try:\n"
        "    while done < 10_000:\n"
        "        ledger.append(GaussianSumEvent(1.0, 1.1))\n"
        "        done += 1\n"
        "except LedgerWriteError as error:\n"
        "    print(done)\n"
        "    print(error, file=sys.stderr)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    done = int(child.stdout)
    assert done > 5
    assert "cannot be written to" in child.stderr and "free the disk" in child.stderr
    assert done <= on_disk(path).total_count <= done + 1
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)


def test_read_only_file_is_noticed_at_once():
    # The folders of pytest are closed to others, which the child may become.
    path = pathlib.Path(tempfile.mkdtemp(dir=tempfile.gettempdir())) / "run.ledger"
    PrivacyLedger.open(path, create=True).close()
    code = (
        # Python 3.13 imports urllib late, when the child may no longer read what root installed.
        "import os, sys, urllib.parse\n"
        "from tfdp.ledger import LedgerWriteError, PrivacyLedger\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"  # Nothing is read-only to root.
        "try:\n"
        "    PrivacyLedger.open(sys.argv[1], create=True)\n"
        "except LedgerWriteError as error:\n"
        "    print(error)\n"
    )
    path.chmod(0o444)
    path.parent.chmod(0o555)
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    path.parent.chmod(0o755)
    shutil.rmtree(path.parent)
    assert "cannot be written to" in child.stdout, child.stderr
    assert "make file and folder writable" in child.stdout


@pytest.mark.parametrize("pause", [0.0, 0.003, 0.01, 0.03])
def test_killed_writer(path, pause):
    """The child says what it has done on a pipe, after each event."""
    code = (
        "import os, sys\n"
        "from tfdp.events import GaussianSumEvent\n"
        "from tfdp.ledger import PrivacyLedger\n"
        "ledger = PrivacyLedger.open(sys.argv[1], create=True, lease=2)\n"
        "while True:\n"
        "    ledger.append(GaussianSumEvent(1.0, 1.1))\n"
        "    os.write(1, b'x')\n"
    )
    done = 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        done += len(child.stdout.read(1))
        time.sleep(pause)
        child.kill()
        done += len(child.stdout.read())
        child.wait()
        child.stdout.close()
        total = on_disk(path).total_count
        assert done <= total <= done + 3 * 2
    assert on_disk(path)
    with PrivacyLedger.open(path, create=True) as ledger:
        assert ledger.total_count == total
    assert list(ledger) == [LedgerEntry(GaussianSumEvent(1.0, 1.1), total)]


class Interrupts:
    """Raises KeyboardInterrupt before the line number `at` of tfdp's and of contextlib's code."""

    def __init__(self, at):
        self._left = at

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _enter(self, frame, kind, argument):
        name = frame.f_code.co_filename.replace(os.sep, "/")
        return self._line if "/tfdp/ledger/" in name or "contextlib" in name else None

    def _line(self, frame, kind, argument):
        self._left -= kind == "line"
        if not self._left:
            raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("on_the_disk", [True, False])
# An append that needs a lease, one that gives another back, and the end of a lease.
@pytest.mark.parametrize("interrupted", [0, 2, 4])
def test_interruption_anywhere_harms_nothing(path, interrupted, on_the_disk, monkeypatch):
    # A trace may interrupt the end of a `with`, before its lock is given back: that of all ledgers
    # would stay with this thread, and other tests would wait for it.
    monkeypatch.setattr(sys.modules["tfdp.ledger.ledger"], "_APPENDING", threading.RLock())
    at, was_interrupted = -2, True
    while was_interrupted:
        at, was_interrupted, happened = at + 3, False, collections.Counter()
        path.unlink(missing_ok=True)
        ledger = PrivacyLedger()
        if on_the_disk:
            ledger = PrivacyLedger.open(path, create=True, lease=3)
        for number, event in enumerate([A, A, B, B, None, A]):
            try:
                with Interrupts(at) if number == interrupted else contextlib.nullcontext():
                    ledger.append(event) if event else ledger.settle()
                happened[event] += 1
            except KeyboardInterrupt:
                was_interrupted = True
                if on_the_disk:
                    break
            except LedgerWriteError:
                assert on_the_disk  # Nobody knew what was on the disk: the file was closed.
        ledger.close() if on_the_disk else ledger.save(path)
        for found in (ledger, on_disk(path)):
            counts = collections.Counter()
            for event, count in found:
                counts[event] += count
            assert counts[A] >= happened[A] and counts[B] >= happened[B], at
    assert at > (50 if on_the_disk else 1)


@pytest.mark.parametrize("gives_back", [False, True])
def test_interruption_loses_nothing_that_another_process_wrote(path, gives_back):
    at, was_interrupted, survived = -2, True, 0
    while was_interrupted:
        at, was_interrupted = at + 3, False
        path.unlink(missing_ok=True)
        ledger, other = (PrivacyLedger.open(path, create=True, lease=n) for n in (1, 3))
        ledger.append(A)
        other.append(B)
        if gives_back:
            ledger.append(A)  # It has seen what the other gives back afterwards.
        for event in (A, B, A):
            other.append(event)
        try:
            with Interrupts(at):
                ledger.append(A)
        except KeyboardInterrupt:
            was_interrupted = True
        try:
            ledger.append(A)
        except LedgerWriteError:
            pass
        else:
            survived += was_interrupted
            counts = [sum(n for event, n in one if event == B) for one in (ledger, on_disk(path))]
            assert counts[0] == counts[1] >= 2, at
        ledger.close(), other.close()
    assert at > 150 and survived > 5


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_would_count_what_the_file_has_not(path, make):
    with PrivacyLedger.open(path, create=True) as ledger:
        with pytest.raises(TypeError, match="A ledger on the disk is not copied.*Open it again"):
            make(ledger)
        ledger.append(A)


def test_compact_copy_is_about_the_same_data_set(path, tmp_path):
    copy, again = tmp_path / "copy.ledger", tmp_path / "again.ledger"
    with PrivacyLedger.open(path, create=True, dataset_id="a") as ledger:
        ledger.append(A)
        ledger.settle()
        ledger.save(copy)
    loaded = PrivacyLedger.load(copy)
    assert loaded.dataset_id == "a"
    loaded.append(B)
    loaded.save(copy)
    loaded.save(again)
    for file in (copy, again):
        with PrivacyLedger.open(file, dataset_id="a") as ledger:
            assert entries(ledger) == [(A, 1), (B, 1)]


def test_what_does_not_know_its_data_set_leaves_a_file_about_it(path):
    with PrivacyLedger.open(path, create=True, dataset_id="a") as ledger:
        ledger.append(A)
        ledger.settle()
    restored = PrivacyLedger.from_json_lines(PrivacyLedger.load(path).to_json_lines())
    assert restored.dataset_id is None
    restored.append(B)
    restored.save(path)
    with PrivacyLedger.open(path, dataset_id="a") as ledger:
        assert entries(ledger) == [(A, 1), (B, 1)]
