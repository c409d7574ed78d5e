"""`tfdp export`: lines that `tfdp replay` reads."""

import json

from tests.cli.running import STEP, UNKEYED, run
from tfdp.ledger import PrivacyLedger


def test_export_prints_json_lines_that_replay_reads(save, capsys, tmp_path):
    ledger, path = save((STEP, 3))
    status, out, err = run(capsys, "export", path)
    assert (status, err) == (0, f"tfdp: {UNKEYED}\n")
    assert PrivacyLedger.from_json_lines(out) == ledger
    (tmp_path / "run.jsonl").write_text(out)
    from_file = run(capsys, "replay", path, "--delta", "1e-5")
    assert run(capsys, "replay", str(tmp_path / "run.jsonl"), "--delta", "1e-5") == from_file


def test_json_has_the_same_lines(save, capsys):
    _, path = save((STEP, 3), (STEP.event, 2))
    lines = run(capsys, "export", path)[1].splitlines()
    status, out, err = run(capsys, "export", path, "--json")
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert said["lines"] == [json.loads(line) for line in lines]
    assert len(lines) == 4 and said["authentication"] == UNKEYED
    assert said["authenticated"] is False
