"""What bash offers, asked of bash itself."""

import shutil
import subprocess

import pytest

from tests.cli.running import run
from tfdp.accounting import registry
from tfdp.cli import _COMMANDS, make_parser
from tfdp.cli.completion import usages

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="There is no bash.")


@pytest.fixture
def offered(capsys, tmp_path):
    """A function from what is typed to what bash offers for the last word."""
    (tmp_path / "run.ledger").touch()
    status, script, err = run(capsys, "completion", "bash")
    assert (status, err) == (0, "")

    def offered(*words):
        typed = " ".join(f"'{word}'" for word in ("tfdp", *words))
        place = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}"
        ask = f"{place}; _tfdp; printf '%s\\n' ${{COMPREPLY[@]}}"
        result = subprocess.run(
            ["bash", "--norc", "-c", f"{script}\n{ask}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert (result.returncode, result.stderr) == (0, "")
        return set(result.stdout.split())

    return offered


def test_commands_come_first(offered):
    assert offered("") >= set(_COMMANDS)
    assert offered("re") == {"replay", "report"}


def test_options_of_the_command(offered):
    assert offered("replay", "--j") == {"--json"}
    assert "--head" in offered("verify", "-") and "--head" not in offered("replay", "-")


def test_choices_of_an_option(offered):
    assert offered("replay", "run.ledger", "--accountant", "") == set(registry.ACCOUNTANTS)
    assert offered("report", "run.ledger", "--format", "m") == {"markdown"}
    assert offered("completion", "") >= {"bash", "zsh"}


def test_commands_within_a_command(offered):
    assert offered("audit", "") >= {"membership", "epsilon"}
    assert offered("audit", "epsilon", "--conf") == {"--confidence"}


def test_files_elsewhere(offered):
    assert offered("replay", "run") == {"run.ledger"}


def test_zsh_reads_the_same(capsys):
    bash, zsh = (run(capsys, "completion", shell)[1] for shell in ("bash", "zsh"))
    assert zsh.endswith(bash) and "bashcompinit" in zsh


_USAGES = usages(make_parser())


def test_every_command_is_known():
    assert set(_USAGES) == {"", *_COMMANDS, "audit membership", "audit epsilon"}


@pytest.mark.parametrize("path", sorted(set(_USAGES) - {""}))
def test_every_command_has_json_or_is_text_by_nature(path):
    # An export is lines of JSON, and a completion is read by a shell.
    assert "--json" in _USAGES[path].options or path in ("audit", "export", "completion")
