"""docs/howto.md: the program of every section runs as written, and is complete."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "howto.md"
SECTIONS = re.split(r"^## (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
PROGRAMS = {
    title: re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for title, text in zip(SECTIONS[::2], SECTIONS[1::2], strict=True)
}


def test_every_section_has_one_program_and_leads_on():
    assert len(PROGRAMS) == 14
    for title, text in zip(SECTIONS[::2], SECTIONS[1::2], strict=True):
        assert len(PROGRAMS[title]) == 1, title
        assert re.search(r"\]\(\w+\.md", text), title


@pytest.mark.parametrize("title", PROGRAMS)
def test_program_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = PROGRAMS[title]
    assert len(program.splitlines()) <= 50
    exec(compile(program, f"{PAGE.name}, {title}", "exec"), {"__name__": "howto"})
