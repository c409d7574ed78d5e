"""Colours are for terminals."""

import io

import pytest

from tfdp.cli import main
from tfdp.cli.colors import colored

TEXT = "not authenticated: x\nepsilon = 1 at delta = 2 (rdp)\nother\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_terminal_shows_what_matters_in_colour():
    assert colored(TEXT, Terminal()) == (
        "\x1b[33mnot authenticated: x\x1b[0m\n\x1b[1mepsilon = 1 at delta = 2 (rdp)\x1b[0m\nother\n"
    )


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_means_no(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert colored(TEXT, Terminal()) == TEXT


def test_file_or_pipe_gets_the_text_alone():
    assert colored(TEXT, io.StringIO()) == TEXT


def test_commands_write_colours_and_files_of_others_cannot(monkeypatch, save, tmp_path):
    _, path = save()
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("sys.stderr", error := Terminal())
    assert main(["replay", str(tmp_path / "no\x1b[2Jne"), "--delta", "1e-5"]) == 2
    assert error.getvalue().startswith("\x1b[31mtfdp: ")
    assert "\x1b[2J" not in error.getvalue()
