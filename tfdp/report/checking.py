"""The commands by which a reader checks a report."""

import re
import shlex
from collections.abc import Iterable, Sequence

from tfdp.report.costs import Costs

# What Markdown or HTML would act on, even in a block of code that somebody copies elsewhere.
_MARKUP = "<>&`\\"
_WITHOUT_THE_VERSION = """sed '1s/"tfdp_version": "[^"]*", //; $d'"""


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


def exact(delta: float) -> str:
    """Returns the shortest text that is read as this number.

    Example:
        >>> exact(1e-5), exact(1.23456789e-5)
        ('1e-5', '1.23456789e-5')
    """
    return re.sub(r"e([+-])0+", r"e\1", repr(float(delta)))


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
