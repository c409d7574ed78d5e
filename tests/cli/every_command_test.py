"""What holds for every command: --json, colours, help with an example that runs, exit statuses.

The commands are those that the parser has, so that a new one is tested, too.
"""

import json
import os
import pty
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.colors_test import Terminal
from tests.cli.doctor_test import WORKS
from tests.cli.running import STEP, run
from tfdp.cli import doctor, main, make_parser
from tfdp.cli.completion import usages
from tfdp.ledger import PrivacyLedger

_USAGES = usages(make_parser())
# What can be run: a command of which no other word is a command.
COMMANDS = sorted(path for path, usage in _USAGES.items() if not usage.commands)
READ_FILES = ["audit epsilon", "audit membership", "export", "replay", "report", "verify"]
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder with all the files that examples name, to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_bytes(bytes(range(32)))
    with PrivacyLedger.open("run.ledger", create=True, key=bytes(range(32))) as ledger:
        ledger.append(STEP, 300)
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    np.savez("canaries.npz", scores=coins + rng.normal(size=400), inserted=coins)
    p = rng.dirichlet([5.0, 1.0], 400)
    np.savez("predictions.npz", probabilities=p, labels=np.zeros(400, int), members=coins)
    monkeypatch.setattr(doctor, "_training", lambda found: WORKS)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return tmp_path


def _help(capsys, path):
    status, out, err = run(capsys, *path.split(), "--help")
    assert (status, err) == (0, "")
    return out


def _example(capsys, path):
    """Returns the words of the example in the help of a command, as a shell passes them on."""
    (example,) = re.findall(r"^example:\n  (.+)\n\Z", _help(capsys, path), re.MULTILINE)
    (command,) = re.findall(r"\btfdp ([^<>()|]+)", example)
    assert command.startswith(path)
    return shlex.split(command)


def test_commands_are_found():
    assert {"replay", "audit epsilon", "doctor"} < set(COMMANDS)
    assert {path for path in COMMANDS if "ledger" in _USAGES[path].options} == set()


@pytest.mark.parametrize("path", COMMANDS)
def test_example_runs_and_pipes_get_no_colours(folder, capsys, path):
    status, out, err = run(capsys, *_example(capsys, path))
    assert status == 0 and out
    # An export is the lines alone; what speaks for it is said beside them.
    assert err == "" or path == "export" and err.startswith("tfdp: not authenticated")
    assert "\x1b" not in out + err


@pytest.mark.parametrize("path", COMMANDS)
@pytest.mark.parametrize("terminal", [False, True])
def test_json_is_one_object_and_nothing_else(folder, capsys, monkeypatch, path, terminal):
    words = _example(capsys, path)
    if not terminal:
        status, out, err = run(capsys, *words, "--json")
    else:
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", shown := Terminal())
            patch.setattr("sys.stderr", errors := Terminal())
            status, out, err = main([*words, "--json"]), shown.getvalue(), errors.getvalue()
    assert (status, err) == (0, "")
    assert isinstance(json.loads(out, parse_constant=pytest.fail), dict | list)
    assert "\x1b" not in out


@pytest.mark.parametrize("path", sorted(_USAGES))
def test_help_says_what_everything_is_for(capsys, path):
    parser = make_parser()
    for word in path.split():
        (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
        parser = commands[word]
    assert parser.description
    assert [a.dest for a in parser._actions if not a.help and not isinstance(a.choices, dict)] == []
    assert f"usage: {' '.join(['tfdp', *path.split()])} " in _help(capsys, path)


@pytest.mark.parametrize("path", sorted(_USAGES))
def test_bad_usage_is_2_and_names_the_command(capsys, path):
    status, out, err = run(capsys, *path.split(), "--no-such-option")
    assert (status, out) == (2, "")
    assert err.startswith("usage: tfdp ") and "error: " in err


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_option_shows_the_usage_of_its_command(folder, capsys, path):
    status, out, err = run(capsys, *_example(capsys, path), "--no-such-option", "7")
    assert (status, out) == (2, "")
    assert err.startswith(f"usage: tfdp {path} ")
    assert err.endswith(f"tfdp {path}: error: unrecognized arguments: --no-such-option 7\n")


def _no_file(folder, kind):
    if kind == "empty":
        (folder / "file").touch()
    elif kind == "text":
        (folder / "file").write_text("epsilon = 1\n")
    elif kind == "folder":
        (folder / "file").mkdir()
    elif kind == "torn":
        data = (folder / "run.ledger").read_bytes()
        (folder / "file").write_bytes(data[: len(data) // 2])
    elif kind == "zip":
        data = (folder / "canaries.npz").read_bytes()
        (folder / "file").write_bytes(data[len(data) // 3 :])


@pytest.mark.parametrize("path", READ_FILES)
@pytest.mark.parametrize("suffix", ["", ".jsonl"])
@pytest.mark.parametrize("kind", ["missing", "empty", "text", "folder", "torn", "zip"])
def test_wrong_file_is_named_in_one_line(folder, capsys, path, suffix, kind):
    _no_file(folder, kind)
    if kind != "missing":
        (folder / "file").rename(folder / f"file{suffix}")
    words = _example(capsys, path)
    words[len(path.split())] = f"file{suffix}"
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfdp: ") and ("file" in err or "line 1" in err)


def _on_a_terminal(*words, **more):
    """Returns what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "tfdp", *words]
        environment = {**_ENVIRONMENT, "TERM": "xterm", **more}
        ran = subprocess.run(command, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (part := screen.read(4096))
            except OSError:  # So Linux says that the other end is closed.
                break
            if not part:
                break
    return ran.returncode, shown.decode().replace("\r\n", "\n")


def test_terminal_gets_colours_unless_somebody_says_no(folder):
    words = ["replay", "run.ledger", "--delta", "1e-5"]
    status, shown = _on_a_terminal(*words)
    assert status == 0
    assert shown.startswith("\x1b[33mnot authenticated") and "\x1b[1mepsilon = " in shown
    status, plain = _on_a_terminal(*words, NO_COLOR="1")
    assert (status, plain) == (0, re.sub(r"\x1b\[\d+m", "", shown))
    status, shown = _on_a_terminal("replay", "no.ledger", "--delta", "1e-5")
    assert status == 2 and shown.startswith("\x1b[31mtfdp: ")


def test_tensorflow_writes_nothing_of_its_own(tmp_path):
    environment = {k: v for k, v in _ENVIRONMENT.items() if not k.startswith("TF_")}
    ran = subprocess.run(
        [sys.executable, "-m", "tfdp", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    said = json.loads(ran.stdout)
    assert said["training"]["works"] and said["training"]["steps"] == 2
    # Other versions than are supported may be installed where this runs.
    assert ran.returncode == (2 if said["problems"] else 0)
    assert ran.stderr == "".join(f"tfdp: {'; '.join(p)}\n" for p in [said["problems"]] if p)


def test_nobody_reads_on(folder):
    script = 'python -m tfdp export run.ledger 2>error | true; echo "${PIPESTATUS[0]}"'
    script = script.replace("python", shlex.quote(sys.executable), 1)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=_ENVIRONMENT)
    assert ran.stdout in ("141\n", "0\n")  # 0 where all of it was written before.
    assert len((folder / "error").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "status"), [(BrokenPipeError(), 141), (KeyboardInterrupt(), 130)]
)
def test_stopping_a_command_is_no_error_of_it(folder, capsys, monkeypatch, error, status):
    def stopped(arguments):
        raise error

    monkeypatch.setattr("tfdp.cli.verify.run", stopped)
    assert run(capsys, "verify", "run.ledger") == (status, "", "")
