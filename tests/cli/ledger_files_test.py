"""What the command line makes of the files it is given: keys, accidents, and files made to harm."""

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys

import pytest

from tfdp.cli import main
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

KEY = bytes(range(32))
STEP = SampledEvent(PoissonSampling(0.01, 4567), GaussianSumEvent(1.0, 2.0))
NOT_GIVEN = "not authenticated: it was written with a key, which was not given"
AUTHENTICATED = "authenticated: every entry is as it was written by who has the key"


@pytest.fixture
def path(tmp_path):
    with PrivacyLedger.open(tmp_path / "run.ledger", create=True, key=KEY) as ledger:
        ledger.append(STEP, 100)
    return tmp_path / "run.ledger"


@pytest.fixture
def key_file(tmp_path):
    (tmp_path / "key").write_bytes(KEY)
    return str(tmp_path / "key")


def _arguments(command, path, tmp_path):
    more = {
        "replay": ["--delta", "1e-5", "--accountant", "rdp"],
        "report": ["--accountant", "rdp", "--out", str(tmp_path / "report.md")],
    }
    return [command, str(path), *more.get(command, [])]


def _run(capsys, *arguments):
    status = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


COMMANDS = ["replay", "report", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_edited_noise_is_refused_with_the_key_and_said_without(
    path, key_file, tmp_path, capsys, command
):
    arguments = _arguments(command, path, tmp_path)
    status, out, err = _run(capsys, *arguments, "--key-file", key_file)
    assert status == 0
    assert (err if command == "export" else out).removeprefix("tfdp: ").startswith(AUTHENTICATED)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET event = replace(event, '2.0', '30.0')")
    status, out, err = _run(capsys, *arguments, "--key-file", key_file)
    assert (status, out) == (2, "")
    assert "entry 0 does not follow" in err
    status, out, err = _run(capsys, *arguments)
    assert status == 0
    assert (err if command == "export" else out).removeprefix("tfdp: ").startswith(NOT_GIVEN)
    if command == "report":
        assert NOT_GIVEN.capitalize() in (tmp_path / "report.md").read_text()


def test_export_is_written_with_the_key_and_checked_with_it(path, key_file, tmp_path, capsys):
    exported = tmp_path / "run.jsonl"
    exported.write_text(_run(capsys, "export", path, "--key-file", key_file)[1])
    assert PrivacyLedger.from_json_lines(exported.read_text(), key=KEY).total_count == 100
    for command in ("replay", "report"):
        arguments = _arguments(command, exported, tmp_path)
        status, out, _ = _run(capsys, *arguments, "--key-file", key_file)
        assert status == 0 and out.startswith(AUTHENTICATED)
    # Whoever has no key can compute the other digest anew.
    text = exported.read_text().replace('"noise_stddev": 2.0', '"noise_stddev": 30.0')
    exported.write_text(text)
    for more in ([], ["--key-file", key_file]):
        status, out, err = _run(capsys, *_arguments("replay", exported, tmp_path), *more)
        assert (status, out) == (2, "") and "is not that of its lines" in err


def test_replay_says_of_each_ledger_what_speaks_for_it(path, tmp_path, capsys):
    other = PrivacyLedger()
    other.append(STEP)
    other.save(tmp_path / "other.ledger")
    arguments = [
        "replay",
        path,
        tmp_path / "other.ledger",
        "--delta",
        "1e-5",
        "--accountant",
        "rdp",
    ]
    first, *_ = _run(capsys, *arguments)[1].splitlines()
    assert first.startswith("not authenticated") and "run.ledger" in first
    summary = json.loads(_run(capsys, *arguments, "--json")[1])
    assert summary["authenticated"] is False and summary["authentication"] == first


def test_verify_says_what_was_given_back_since_the_head(tmp_path, capsys):
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, create=True, lease=8) as ledger:
        ledger.append(STEP, 3)
        head = ledger.head
    out = _run(capsys, "verify", path, "--head", head)[1]
    assert "at which it held 8 steps: 5 of them were reserved, and were given back" in out


# Files made to harm.


def _special(tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / "pipe")
        return tmp_path / "pipe"
    if kind == "pipe.jsonl":
        os.mkfifo(tmp_path / "pipe.jsonl")
        return tmp_path / "pipe.jsonl"
    if kind == "folder":
        return tmp_path
    if kind == "journal":
        PrivacyLedger().save(tmp_path / "x.ledger")
        os.mkfifo(tmp_path / "x.ledger-journal")
        return tmp_path / "x.ledger"
    if kind == "link to a device":
        (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
        return tmp_path / "zero.jsonl"
    return kind


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
@pytest.mark.parametrize("command", ["verify", *COMMANDS])
@pytest.mark.parametrize(
    "kind",
    ["pipe", "pipe.jsonl", "/dev/zero", "/dev/null", "folder", "journal", "link to a device"],
)
def test_what_is_no_regular_file_is_refused_before_it_is_opened(tmp_path, capsys, command, kind):
    status, out, err = _run(capsys, *_arguments(command, _special(tmp_path, kind), tmp_path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "no regular file" in err


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder", "long"])
def test_key_is_a_short_regular_file(path, tmp_path, capsys, kind):
    (tmp_path / "long").write_bytes(bytes(5000))
    key = tmp_path / "long" if kind == "long" else _special(tmp_path, kind)
    for command in ("verify", *COMMANDS):
        arguments = _arguments(command, path, tmp_path)
        status, out, err = _run(capsys, *arguments, "--key-file", key)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "no regular file" in err or "a key has at most" in err


def test_damaged_bytes_never_end_in_a_traceback(path, key_file, tmp_path, capsys):
    """Errors of ours have one line; anything else comes out of `main`, and fails the test."""
    generator, text = random.Random(0), PrivacyLedger.load(path).to_json_lines().encode()
    for name, data in (("x.ledger", path.read_bytes()), ("x.jsonl", text)):
        damaged = tmp_path / name
        for _ in range(40):
            changed = bytearray(data)
            for _ in range(generator.choice([1, 2, 30])):
                at = generator.choice([generator.randrange(len(data)), generator.randrange(120)])
                changed[at] = generator.choice([0, 1, 127, 255, generator.randrange(256)])
            del changed[generator.choice([len(data), len(data), generator.randrange(len(data))]) :]
            damaged.write_bytes(changed)
            status, _, err = _run(capsys, *_arguments("replay", damaged, tmp_path))
            assert status == 0 or (status == 2 and err.count("\n") == 1)


def test_texts_of_a_ledger_are_no_commands_of_a_terminal(tmp_path, capsys):
    evil = "\x1b[2J\x9b31m\u202e\x07data"
    path = tmp_path / f"run{evil}.ledger"
    with PrivacyLedger.open(path, create=True, dataset_id=evil) as ledger:
        ledger.append(STEP)
    outputs = [
        _run(capsys, *_arguments(command, path, tmp_path)) for command in ["verify", *COMMANDS]
    ]
    path.write_bytes(path.read_bytes()[:-5000])
    outputs.append(_run(capsys, "verify", path))
    for _, out, err in outputs:
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(out + err)
    assert "\\x1b[2J" in outputs[0][1] and "\\x1b[2J" in outputs[-1][2]


def test_output_is_possible_in_ascii(path, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "tfdp", *_arguments("report", path, tmp_path)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"\\u03b5" in result.stdout


# --out, before any work.


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("no/report.md", "folder of --out does not exist"),
        ("report.pdf.txt", "--out must end in one of"),
        ("", "--out must"),
        (".", "--out must"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "report"])
def test_out_is_checked_before_anything_is_read(
    path, tmp_path, capsys, monkeypatch, command, out, message
):
    def fail(*_, **__):
        raise AssertionError("the ledger was read")

    monkeypatch.setattr("tfdp.ledger.storage.read.open_read_only", fail)
    monkeypatch.chdir(tmp_path)
    if command == "replay":
        out = out.replace(".md", ".csv")
    arguments = [*_arguments(command, path, tmp_path), "--out", out]
    arguments += ["--every", "5"] if command == "replay" else []
    status, printed, err = _run(capsys, *arguments)
    assert (status, printed, err.count("\n")) == (2, "", 1)
    assert message in err


def test_ledger_is_not_overwritten_by_a_curve(tmp_path, capsys):
    path = tmp_path / "run.csv"
    PrivacyLedger().save(path)
    before = path.read_bytes()
    status, _, err = _run(
        capsys, *_arguments("replay", path, tmp_path), "--every", "5", "--out", path
    )
    assert status == 2 and "overwrite the ledger" in err
    assert path.read_bytes() == before
