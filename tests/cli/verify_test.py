"""`tfdp verify`: whether a ledger is as it was written, and what it was before."""

import contextlib
import json
import sqlite3

import pytest

from tests.cli.running import STEP, run
from tfdp.ledger import PrivacyLedger

KEY = bytes(range(32))


def _keyed(tmp_path):
    path, key = tmp_path / "run.ledger", tmp_path / "key"
    key.write_bytes(KEY)
    with PrivacyLedger.open(path, create=True, key=KEY, lease=1) as ledger:
        ledger.append(STEP, 3)
        head = ledger.head
        ledger.append(STEP, 2)
    return str(path), str(key), head


def test_without_the_key_nothing_is_authenticated(tmp_path, capsys):
    path, key, _ = _keyed(tmp_path)
    status, out, err = run(capsys, "verify", path)
    assert status == 2 and "was not checked" in err and "--key-file" in err
    assert "5 steps" in out and "not authenticated" in out and "head" not in out
    assert "every entry is as it was written" in run(capsys, "verify", path, "--key-file", key)[1]


def test_earlier_head_says_how_far_it_went(tmp_path, capsys):
    path, key, head = _keyed(tmp_path)
    out = run(capsys, "verify", path, "--key-file", key, "--head", head)[1]
    assert "it goes on after the given head, at which it held 3 steps\n" in out
    status, out, err = run(capsys, "verify", path, "--key-file", key, "--head", "0" * 64)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "never had the head" in err


def test_json_says_the_same(tmp_path, capsys):
    path, key, head = _keyed(tmp_path)
    status, out, err = run(capsys, "verify", path, "--head", head, "--key-file", key, "--json")
    said = json.loads(out)
    assert (status, err) == (0, "")
    assert (said["steps"], said["steps_at_head"]) == (5, 3)
    assert said["checked"] is said["authenticated"] is True
    assert said["head"] != head
    status, out, _ = run(capsys, "verify", path, "--json")
    unkeyed = json.loads(out)
    assert unkeyed["checked"] is unkeyed["authenticated"] is False
    assert (status, unkeyed["head"]) == (2, None)


def test_edited_ledger_that_says_it_has_a_key_is_not_verified(tmp_path, capsys, save):
    _, path = save((STEP, 5))
    head = json.loads(run(capsys, "verify", path, "--json")[1])["head"]
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE meta SET value = 'hmac-sha256' WHERE key = 'chain'")
        file.execute(
            """UPDATE entries SET event = replace(event, '"noise_stddev": ', '"noise_stddev": 9')"""
        )
    status, out, err = run(capsys, "verify", path)
    # The head of before stands in the file as it did.
    assert status == 2 and head not in out and "somebody edited it" in err


@pytest.mark.parametrize("change", [str.upper, "  {}\n".format])
def test_head_may_be_written_otherwise(tmp_path, capsys, change):
    path, key, head = _keyed(tmp_path)
    assert run(capsys, "verify", path, "--key-file", key, "--head", change(head))[0] == 0


@pytest.mark.parametrize("head", ["", "9a5e", "g" * 64, "0" * 65])
def test_what_is_no_head_is_not_said_to_be_lost(tmp_path, capsys, head):
    path, key, _ = _keyed(tmp_path)
    status, _, err = run(capsys, "verify", path, "--key-file", key, "--head", head)
    assert status == 2 and "64 hexadecimal digits" in err and "rolled back" not in err
