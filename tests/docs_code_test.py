"""Every block of code in the documents runs: here, or in the test file that `ELSEWHERE` names.

Commands whose output stands below them have to print that, but for ids, heads and times.
"""

import ast
import pathlib
import re
import shlex
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.cli.running import run
from tests.docs_names import NAMES, file_for

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

# Python that other tests run, with what they expect of it.
ELSEWHERE = {
    "README.md": "tutorials_test.py",
    "docs/concepts.md": "docs_test.py",
    "docs/custom_loops.md": "tutorials_test.py",
    "docs/devices.md": "tutorials_test.py",
    "docs/extending.md": "extending_test.py",
    "docs/getting_started.md": "tutorials_test.py",
    "docs/howto.md": "howto_test.py",
    "docs/migration_examples.md": "migration_test.py",
    "docs/opacus.md": "migration_test.py",
    "docs/resuming.md": "tutorials_test.py",
}
# What begins so does not run, because...
NOT_RUN = {
    "pip install": "the environment of the tests is installed already, and without a network",
    "python -m pytest tests/federated -n 0": "these tests are a part of all tests",
    "tfdp doctor": "tests/cli/doctor_test.py runs it",
    "# The ServerApp.": "it needs Flower, and two processes: tests/federated/supernodes.py",
    "# TensorFlow Privacy": "it is the code of another library",
    "# Opacus": "it is the code of another library",
}
# Languages that are not code: output of what ran elsewhere, formulas, trees of folders.
NOT_CODE = {"text", "toml"}


def _blocks(*languages):
    """Returns (page, language, code) of every block in these languages."""
    return [
        (path.relative_to(ROOT).as_posix(), language, re.sub(f"^{indent}", "", code, flags=re.M))
        for path in PAGES
        for indent, language, code in _FENCE.findall(path.read_text("utf-8"))
        if language in languages or not languages
    ]


def _runs(code):
    return not code.startswith(tuple(NOT_RUN))


def test_every_block_says_what_it_is():
    known = {"python", "bash", "console", *NOT_CODE}
    assert [block for block in _blocks() if block[1] not in known] == []
    assert len(_blocks("python")) > 60 and len(_blocks("bash", "console")) > 10


def _code_without_a_fence(text):
    """Returns the indented blocks of a text that are Python with a call, or a command of tfdp."""
    text = _FENCE.sub("", text)
    blocks = re.findall(r"\n\n((?:    .*\n?)+)", text)
    return [block for block in map(textwrap.dedent, blocks) if _is_code(block)]


def _is_code(block):
    try:
        tree = ast.parse(block)
    except SyntaxError:
        return block.startswith("tfdp ")
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_hidden_in_an_indented_block(path):
    assert _code_without_a_fence(path.read_text("utf-8")) == []


def test_code_without_a_fence_would_be_found():
    text = (
        "a\n\n    x = f(1)\n    y = 2\n\nb\n\n    tfdp doctor\n\nc\n\n    G_i = sum_t g(t)  t: p\n"
    )
    assert _code_without_a_fence(text) == ["x = f(1)\ny = 2\n", "tfdp doctor\n"]


@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_other_test_runs_the_page(page):
    assert f'"{page.split("/")[-1]}"' in (ROOT / "tests" / ELSEWHERE[page]).read_text("utf-8") or (
        f'"{page}"' in (ROOT / "tests" / ELSEWHERE[page]).read_text("utf-8")
    )


@pytest.mark.parametrize("start", NOT_RUN)
def test_exception_is_needed(start):
    lines = [line for _, _, code in _blocks("python", "bash") for line in code.splitlines()]
    assert any(line.startswith(start) for line in lines)


HERE = [
    page for page in dict.fromkeys(page for page, *_ in _blocks("python")) if page not in ELSEWHERE
]


@pytest.mark.parametrize("page", HERE)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"tfdp": tfdp, "keras": keras, "np": np, "tf": tf}
    for index, (_, _, code) in enumerate(b for b in _blocks("python") if b[0] == page):
        if _runs(code):
            exec(NAMES["every block"], names)
            exec(NAMES.get(f"{page} {index}", ""), names)
            exec(compile(code, f"{page}, block {index}", "exec"), names)


def _commands(code):
    """Yields (command, output) of a console; without "$ " every line is a command."""
    if not code.startswith("$ "):
        yield from ((line.partition("#")[0].strip(), None) for line in code.splitlines())
        return
    for command in re.split(r"^\$ ", code, flags=re.M)[1:]:
        line, _, output = command.partition("\n")
        yield line.partition(" #")[0].strip(), output or None


def _comparable(text):
    """Returns words without ids and heads, which are drawn by chance, wherever lines end."""
    return re.sub(r"\b([0-9a-f]{32,64}|[0-9a-f]{4}\.\.\.)", "ID", text).split()


def _command_blocks():
    return [(page, code) for page, _, code in _blocks("bash", "console")]


@pytest.mark.parametrize(
    ("page", "code"),
    _command_blocks(),
    ids=[f"{p}-{i}" for i, (p, _) in enumerate(_command_blocks())],
)
def test_commands_run_and_print_what_stands_below_them(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command, output in _commands(code):
        if not _runs(command):
            continue
        arguments = shlex.split(command)
        head = file_for(command, tmp_path)
        arguments = [head if argument == "9a5e..." else argument for argument in arguments]
        assert arguments[0] == "tfdp", f"No test runs {command!r}."
        status, out, err = run(capsys, *arguments[1:])
        if output is None:
            assert (status, err) == (0, "")
        else:
            assert _comparable(out + err) == _comparable(output)


def test_a_wrong_output_would_be_found():
    code = f"$ tfdp a  # why\nepsilon = 1 of {'6f' * 16}\n$ tfdp b\nepsilon =\n 2\n"
    (first, above), (second, below) = _commands(code)
    assert (first, second) == ("tfdp a", "tfdp b")
    assert _comparable(above) == ["epsilon", "=", "1", "of", "ID"]
    assert _comparable(below) == _comparable("epsilon = 2") != _comparable("epsilon = 3")


# Commands that run for minutes stand in sentences and in indented blocks. Their files and options
# exist; tests/benchmarks_test.py and tests/tutorials_test.py run the programs in small.
_PROGRAM = re.compile(r"python ((?:benchmarks|docs|tests|tutorials)/\S+?\.py)((?: [^`\n]*)?)")


def _programs(text):
    """Yields (file, options) of every command in a text, wherever its lines end."""
    for path, arguments in _PROGRAM.findall(re.sub(r" ?\\?\n +(?=\S)| *\n(?=--)", " ", text)):
        yield path, re.findall(r"(?<=\s)--[a-z][\w-]*", arguments.split(" python ")[0])


def _unknown(text):
    """Returns the commands of a text whose file, or one of whose options, does not exist."""
    unknown = []
    for path, options in _programs(text):
        sources = [p.read_text("utf-8") for p in (ROOT / path).parent.glob("*.py")]
        missing = [option for option in options if not any(f'"{option}"' in s for s in sources)]
        if missing or not (ROOT / path).exists():
            unknown.append((path, missing))
    return unknown


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_and_their_options_exist(path):
    assert _unknown(path.read_text("utf-8")) == []


def test_an_option_that_does_not_exist_would_be_found():
    text = "`python docs/belief.py --nothing` or\n\n    python docs/nothing.py\n"
    assert _unknown(text) == [("docs/belief.py", ["--nothing"]), ("docs/nothing.py", [])]
