"""`tfdp verify`: whether a ledger is as it was written, and what it was before."""

import json

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
    assert (status, err) == (0, "")
    assert "5 steps" in out and "not authenticated" in out
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
    unkeyed = json.loads(run(capsys, "verify", path, "--json")[1])
    assert unkeyed["checked"] is unkeyed["authenticated"] is False
    assert unkeyed["head"] == said["head"] != head
