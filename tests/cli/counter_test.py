"""Progress of a command is one line of a terminal, and gone at the end."""

import io
import sys

import pytest

from tfdp import cli
from tfdp.cli.counter import counter

PLAN = ["plan", "--epsilon", "2", "8", "--delta", "1e-5", "--population", "6000"]
PLAN += ["--batch-size", "64", "--steps", "10", "--accountant", "rdp"]


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def screen(written):
    """What a terminal shows of one line: each "\\r" goes back to its beginning."""
    line = ""
    for part in written.split("\r"):
        line = part + line[len(part) :]
    return line


def test_line_shows_the_last_count_and_is_erased():
    stream = Stream(terminal=True)
    with counter("plans", stream) as show:
        show(10, 10)
        assert screen(stream.getvalue()) == "10 of 10 plans"
        show(1, 2)
        assert screen(stream.getvalue()).rstrip() == "1 of 2 plans"
    assert screen(stream.getvalue()).strip() == ""


def test_line_is_erased_after_an_error():
    stream = Stream(terminal=True)
    with pytest.raises(KeyError), counter("plans", stream) as show:
        show(1, 2)
        raise KeyError
    assert "1 of 2" in stream.getvalue() and screen(stream.getvalue()).strip() == ""


def test_nothing_is_written_where_there_is_no_terminal():
    stream = Stream(terminal=False)
    with counter("plans", stream) as show:
        show(1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("more", [[], ["--format", "csv"], ["--json"]])
@pytest.mark.parametrize("terminal", [True, False])
def test_plan_counts_on_a_terminal_and_not_beside_json(terminal, more, monkeypatch, capsys):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main([*PLAN, *more]) == 0
    assert " plans" not in capsys.readouterr().out
    counts = ["1 of 2 plans", "2 of 2 plans"] if terminal and more != ["--json"] else []
    assert [line.strip() for line in stream.getvalue().split("\r") if line.strip()] == counts
