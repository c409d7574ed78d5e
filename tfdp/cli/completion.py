"""The command `tfdp completion`: what a shell offers after `tfdp` and the tabulator key."""

import argparse
import contextlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

HELP = "print a script that completes commands, options and choices in a shell"
EXAMPLE = "source <(tfdp completion bash)"
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)(?: \{([^}]*)\})?")
_CHOICES = re.compile(r"\{([^}]*)\}")
_BASH = """\
_tfdp() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at="" other
    for other in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
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
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
function __tfdp_at
    set -l at ""
    for other in (commandline -opc)[2..-1]
        switch "$at $other"
{paths}
        end
    end
    test "$at" = "$argv[1]"
end
complete -c tfdp -f
{words}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument(
        "shell",
        choices=["bash", "zsh", "fish"],
        help="whose script: source <(tfdp completion bash), and tfdp completion fish | source",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: the script, and what may follow each command",
    )


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.cli import make_parser

    found = usages(make_parser())
    text = fish_script(found) if arguments.shell == "fish" else bash_script(found)
    text = _ZSH + text if arguments.shell == "zsh" else text
    if arguments.json:
        commands = {path: usage._asdict() for path, usage in found.items()}
        said = {"shell": arguments.shell, "script": text, "commands": commands}
        return json.dumps(said, indent=2)
    return text.removesuffix("\n")


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


def bash_script(found: Mapping[str, Usage]) -> str:
    """Returns the functions that complete commands in bash.

    Args:
        found: The usage of each command.
    """
    paths, choices, words, chosen = [], [], [], []
    for path, usage in found.items():
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


def fish_script(found: Mapping[str, Usage]) -> str:
    """Returns the functions that complete commands in fish.

    Args:
        found: The usage of each command.
    """
    paths, words = [], []
    for path, usage in found.items():
        begin = f"complete -c tfdp -n '__tfdp_at \"{path}\"'"
        for name in usage.commands:
            paths += [f'            case "{path} {name}"']
            paths += [f'                set at "{f"{path} {name}".strip()}"']
        if usage.commands or usage.words:
            words.append(f"{begin} -a '{' '.join((*usage.commands, *usage.words))}'")
        elif path:
            words.append(f"{begin} -F")
        for option, offered in usage.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            taken = f" -x -a '{' '.join(offered)}'" if offered else ""
            words.append(f"{begin} {kind}{taken}")
    return _FISH.format(paths="\n".join(paths), words="\n".join(words))
