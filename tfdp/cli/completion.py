"""The command `tfdp completion`: what a shell offers after `tfdp` and the tabulator key."""

import argparse
import contextlib
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

HELP = "print a script that completes commands, options and choices in a shell"
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)(?: \{([^}]*)\})?")
_CHOICES = re.compile(r"\{([^}]*)\}")
_BASH = """\
_tfdp() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at="" other
    for other in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $other" in
{paths}
        esac
    done
    case "$at $before" in
{choices}
    esac
    if [[ $word == -* || -z $at{needs} ]]; then
        case "$at" in
{words}
        esac
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _tfdp tfdp
"""
_SHELLS = {"bash": "{}", "zsh": "autoload -U +X bashcompinit && bashcompinit\n{}"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("shell", choices=list(_SHELLS), help="source <(tfdp completion SHELL)")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.cli import make_parser

    return _SHELLS[arguments.shell].format(script(make_parser())).removesuffix("\n")


class Usage(NamedTuple):
    """What the usage of a command says.

    Attributes:
        commands: That may follow.
        words: Of which one may follow, and is no command.
        options: To the words that each takes; empty for any, or none.
    """

    commands: tuple[str, ...]
    words: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


def usages(parser: argparse.ArgumentParser, path: str = "") -> dict[str, Usage]:
    """Returns the usage of each command of a parser, by its words: "", "audit", "audit epsilon"."""
    usage = _usage(parser, path)
    options: dict[str, tuple[str, ...]] = {"--help": ()}
    for option, offered in _OPTION.findall(usage):
        options[option] = tuple(offered.split(",")) if offered else ()
    commands: list[str] = []
    words: list[str] = []
    for group in _CHOICES.findall(_OPTION.sub("", usage)):
        for name in group.split(","):
            inner = _usage(parser, f"{path} {name}")
            # After a word that is no command, the usage is still that of the command before.
            is_command = inner.startswith(" ".join(["tfdp", *path.split(), name, ""]))
            (commands if is_command else words).append(name)
    found = {path: Usage(tuple(commands), tuple(words), options)}
    for name in commands:
        found |= usages(parser, f"{path} {name}".strip())
    return found


def _usage(parser: argparse.ArgumentParser, path: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        parser.parse_args([*path.split(), "--help"])
    return " ".join(said.getvalue().partition("\n\n")[0].split()).removeprefix("usage: ") + " "


def script(parser: argparse.ArgumentParser) -> str:
    """Returns the functions that complete the commands of a parser in bash."""
    paths, choices, words, chosen = [], [], [], []
    for path, usage in usages(parser).items():
        for name in usage.commands:
            paths.append(f'            "{path} {name}") at="{f"{path} {name}".strip()}" ;;')
        for option, offered in usage.options.items():
            if offered:
                choices.append(f'        "{path} {option}") {_reply(offered)}; return ;;')
        offered = (*usage.commands, *usage.words, *usage.options)
        words.append(f'            "{path}") {_reply(offered)} ;;')
        # After these a word is a command or one of a few, not the name of a file.
        chosen += [path] if path and (usage.commands or usage.words) else []
    return _BASH.format(
        paths="\n".join(paths),
        choices="\n".join(choices),
        words="\n".join(words),
        needs="".join(f' || $at == "{path}"' for path in chosen),
    )


def _reply(offered: Sequence[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(offered)}" -- "$word"))'
