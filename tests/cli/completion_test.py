"""What shells offer, asked of the shells themselves."""

import json
import shutil
import subprocess

import pytest

from tests.cli.running import run
from tfdp.accounting import registry
from tfdp.cli import _COMMANDS, make_parser
from tfdp.cli.completion import usages

# How each is started, and how the script is asked.
_ASKED = "COMP_WORDS=({typed}); COMP_CWORD={number}; _tfdp; printf '%s\\n' ${{COMPREPLY[@]}}"
SHELLS = {
    "bash": (["bash", "--norc", "-c"], _ASKED),
    # As zsh's bashcompinit calls what is for bash.
    "zsh": (["zsh", "-f", "-c"], f"emulate -R sh; setopt KSH_ARRAYS\n{_ASKED}"),
    "fish": (["fish", "--no-config", "-c"], 'complete -C "{line}"'),
}


@pytest.fixture(params=SHELLS)
def offered(request, capsys, tmp_path):
    """A function from what is typed to what a shell offers for the last word."""
    shell, (command, asked) = request.param, SHELLS[request.param]
    if shutil.which(shell) is None:
        pytest.skip(f"There is no {shell}.")
    (tmp_path / "run.ledger").touch()
    status, script, err = run(capsys, "completion", shell)
    assert (status, err) == (0, "")

    def offered(*words):
        typed = " ".join(f"'{word}'" for word in ("tfdp", *words))
        line = " ".join(("tfdp", *words))
        ask = asked.format(typed=typed, number=len(words), line=line)
        result = subprocess.run(
            [*command, f"{script}\n{ask}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert (result.returncode, result.stderr) == (0, "")
        found = set(result.stdout.split())
        # zsh goes through what a function offers itself; the others show it as it is.
        return {w for w in found if w.startswith(words[-1])} if shell == "zsh" else found

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
    assert offered("completion", "") >= {"bash", "zsh", "fish"}


def test_commands_within_a_command(offered):
    assert offered("audit", "") >= {"membership", "epsilon"}
    assert offered("audit", "epsilon", "--conf") == {"--confidence"}
    assert offered("audit", "epsilon", "run") == {"run.ledger"}


def test_files_elsewhere(offered):
    assert offered("replay", "run") == {"run.ledger"}


def test_zsh_reads_the_same(capsys):
    bash, zsh = (run(capsys, "completion", shell)[1] for shell in ("bash", "zsh"))
    assert zsh.endswith(bash) and "bashcompinit" in zsh


def test_json_has_the_script_and_what_it_offers(capsys):
    said = json.loads(run(capsys, "completion", "fish", "--json")[1])
    assert said["script"] == run(capsys, "completion", "fish")[1]
    assert said["commands"]["replay"]["options"]["--accountant"] == list(registry.ACCOUNTANTS)
    assert said["commands"]["audit"]["commands"] == ["membership", "epsilon"]


_USAGES = usages(make_parser())


def test_every_command_is_known():
    assert set(_USAGES) == {"", *_COMMANDS, "audit membership", "audit epsilon"}


@pytest.mark.parametrize("path", sorted(set(_USAGES) - {""}))
def test_every_command_has_json(path):
    assert "--json" in _USAGES[path].options or _USAGES[path].commands
