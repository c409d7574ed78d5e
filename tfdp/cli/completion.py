"""The command `tfdp completion`: what a shell offers after `tfdp` and the tabulator key."""

import argparse

HELP = "print a script that completes commands, options and choices in a shell"
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


def _parsers(parser: argparse.ArgumentParser, path: str = "") -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, by its words, and those of its own commands."""
    found = {path: parser}
    for name, inner in _commands(parser).items():
        found |= _parsers(inner, f"{path} {name}".strip())
    return found


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def script(parser: argparse.ArgumentParser) -> str:
    """Returns the functions that complete the commands of a parser in bash."""
    paths, choices, words = [], [], []
    found = _parsers(parser)
    for path, inner in found.items():
        commands = _commands(inner)
        paths += [
            f'            "{path} {name}") at="{f"{path} {name}".strip()}" ;;' for name in commands
        ]
        options: list[str] = []
        for action in inner._actions:
            options += action.option_strings
            if action.option_strings and action.choices:
                pattern = "|".join(f'"{path} {option}"' for option in action.option_strings)
                offered = " ".join(map(str, action.choices))
                reply = f'COMPREPLY=($(compgen -W "{offered}" -- "$word")); return'
                choices.append(f"        {pattern}) {reply} ;;")
            elif action.choices and not commands:
                options += map(str, action.choices)
        reply = f'COMPREPLY=($(compgen -W "{" ".join([*commands, *options])}" -- "$word"))'
        words.append(f'            "{path}") {reply} ;;')
    # After these a word is a command or a choice, not the name of a file.
    chosen = [path for path, inner in found.items() if path and _takes_words(inner)]
    needs = "".join(f' || $at == "{path}"' for path in chosen)
    return _BASH.format(
        paths="\n".join(paths), choices="\n".join(choices), words="\n".join(words), needs=needs
    )


def _takes_words(parser: argparse.ArgumentParser) -> bool:
    return any(not action.option_strings and action.choices for action in parser._actions)
