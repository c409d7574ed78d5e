"""What is written is whole, or is not there."""

import os
import stat

import pytest

from tfdp.events import GaussianSumEvent
from tfdp.ledger.entry import LedgerEntry
from tfdp.ledger.storage.read import open_entries
from tfdp.ledger.storage.write import new_file, write, write_text

ENTRIES = [LedgerEntry(GaussianSumEvent(1.0, 2.0), 3), LedgerEntry(GaussianSumEvent(1.0, 3.0), 4)]
ID = "0123456789abcdef" * 2


def test_what_was_written_is_read(tmp_path):
    write(tmp_path / "x.ledger", ID, ENTRIES)
    with open_entries(tmp_path / "x.ledger") as stream:
        assert (stream.ledger_id, list(stream.entries)) == (ID, ENTRIES)
    assert [path.name for path in tmp_path.iterdir()] == ["x.ledger"]


def test_interrupted_writing_leaves_what_was_there(tmp_path):
    target = tmp_path / "x.txt"
    with pytest.raises(KeyError), new_file(target) as paths:
        for path in paths:
            if path != target:
                path.write_text("half")
        raise KeyError("interrupted")
    assert not target.exists()
    assert list(tmp_path.iterdir()) == []


def test_export_replaces_only_an_export(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(FileExistsError, match="no exported ledger"):
        write_text(other, "x")
    assert other.read_text() == "mine"


@pytest.fixture
def mode():
    """Returns the permissions of a file as `ls` shows them."""
    return lambda path: stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o444])
@pytest.mark.parametrize(
    "save",
    [
        lambda path: write(path, ID, ENTRIES),
        lambda path: write_text(path, '{"format": "tfdp.ledger"}'),
    ],
    ids=["ledger", "export"],
)
def test_a_new_file_has_the_permissions_of_the_one_that_it_replaces(tmp_path, mode, save, before):
    path, other = tmp_path / "x", tmp_path / "other"
    save(path)
    other.touch()
    assert mode(path) == mode(other)
    path.chmod(before)
    number = os.stat(path).st_ino
    save(path)
    assert os.stat(path).st_ino != number
    assert mode(path) == before


def test_nobody_reads_a_draft_who_may_not_read_what_it_replaces(tmp_path, mode):
    target = tmp_path / "x.ledger"
    with new_file(target) as (_, draft):
        assert not draft.exists()
    target.touch()
    with new_file(target) as (_, draft):
        assert mode(draft) == 0o600
