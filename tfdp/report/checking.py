"""The commands by which a reader checks a report."""

import shlex
from collections.abc import Iterable, Sequence

from tfdp.report.costs import Costs
from tfdp.report.numbers import exact

# What Markdown or HTML would act on, even in a block of code that somebody copies elsewhere.
_MARKUP = "<>&`\\"
# The digests of version 2 are no part of it either, and version 1 had none.
_WITHOUT_THE_VERSION = (
    """sed '1s/"tfdp_version": "[^"]*", //; 1s/"version": 1,/"version": 2,/; /^{"sha256": /d'"""
)


def quoted(text: str) -> str:
    r"""Returns a word for bash, zsh or ksh that is `text`, on one line, and no markup.

    Example:
        >>> print(quoted("run.ledger"), quoted("it is mine"), quoted("a\n<b>"))
        run.ledger 'it is mine' $'a\u000a\u003cb\u003e'
    """
    if text.isprintable() and not set(text) & set(_MARKUP):
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character.isprintable() and character not in f"{_MARKUP}'":
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def file_word(name: str) -> str:
    """Returns a word for a shell that names a file in the folder that one is in."""
    return quoted(f"./{name}" if name.startswith("-") else name)


def option_words(options: Iterable[tuple[str, str | None]]) -> tuple[str, ...]:
    """Returns words for a shell.

    Args:
        options: A name such as "--delta" and a value each; None for an option that takes none.

    Example:
        >>> option_words([("--model", "my net"), ("--per-class", None), ("--data", "-1")])
        ('--model', "'my net'", '--per-class', '--data=-1')
    """
    words: list[str] = []
    for name, value in options:
        if value is None:
            words.append(name)
        elif value.startswith("-"):
            words.append(f"{name}={quoted(value)}")
        else:
            words += [name, quoted(value)]
    return tuple(words)


def check_commands(
    source: str | None, costs: Costs, options: Sequence[str], again: str
) -> tuple[str, ...]:
    """Returns a line that prints the fingerprint, one that prints epsilon where there is any, and
    one that makes the report again, each for a shell in the folder of the files.

    Args:
        source: Name of the ledger's file; where it is not known, "run.ledger" stands for it.
        costs: What the report says that the ledger costs.
        options: Words for `tfdp report`.
        again: The file that the last line writes.
    """
    name = source or "run.ledger"
    file = file_word(name)
    if name.endswith(".jsonl"):
        fingerprint = f"{_WITHOUT_THE_VERSION} {file} | sha256sum"
    else:
        fingerprint = f"tfdp export {file} | {_WITHOUT_THE_VERSION} | sha256sum"
    lines = [fingerprint]
    if costs.headline is not None:
        delta, accountant = exact(costs.target_delta), quoted(costs.headline.name)
        lines.append(f"tfdp replay {file} --delta {delta} --accountant {accountant}")
    lines.append(" ".join(["tfdp report", file, *options, "--out", again]))
    return tuple(lines)
