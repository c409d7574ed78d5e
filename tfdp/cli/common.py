"""What several commands share: arguments, ledgers on file, what is printed."""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdp.accounting.registry import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from tfdp.events.shown import shown_down, shown_up
from tfdp.ledger.entry import Evidence
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.files import check_regular

# A key is some bytes; whatever is longer was not meant.
_LONGEST_KEY = 4096
# What SQLite writes beside a file.
_BESIDE_A_LEDGER = ("-journal", "-wal", "-shm")
# Bytes in which the header of an export says what it is.
_LONGEST_BEGIN = 1000
# What plots are written as.
PLOTS = (".png", ".svg", ".pdf")


def described(text: str, example: str) -> dict[str, Any]:
    """Returns what a parser of a command is made with, so that its help has an example.

    Args:
        text: What the command does.
        example: A line for a shell, which `--help` prints as it is.
    """
    return {
        "help": text,
        "description": f"{text[0].upper()}{text[1:]}.",
        "epilog": f"example:\n  {example}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def read_delta(text: str) -> float:
    """Returns the number that --delta gives.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    try:
        delta = float(text)
    except ValueError:
        delta = math.nan
    if not 0 < delta < 1:
        raise ValueError(f"--delta must be a number between 0 and 1. Received: --delta {text}")
    return delta


def confidences(names: Sequence[str]) -> dict[str, float]:
    """Returns with which probability what an accountant says holds, of those that do not prove it.

    Args:
        names: Of accountants.
    """
    from tfdp.accounting.registry import confidence_of, make_accountant

    found = {name: confidence_of(make_accountant(name)) for name in names}
    return {name: held for name, held in found.items() if held is not None}


def rounded_up(value: float | str, digits: int = 6) -> str:
    """Returns a number of at least `value`, with at most so many digits; text as it is.

    Example:
        >>> rounded_up(1.0000041), rounded_up(2.5), rounded_up(1.2e-7), rounded_up("inf")
        ('1.00001', '2.5', '1.2e-07', 'inf')
    """
    return value if isinstance(value, str) else shown_up(value, digits)


def rounded_down(value: float | str, digits: int = 6) -> str:
    """Returns a number of at most `value`, with at most so many digits; text as it is.

    Example:
        >>> rounded_down(0.7071069), rounded_down(2.5)
        ('0.707106', '2.5')
    """
    return value if isinstance(value, str) else shown_down(value, digits)


def epsilon_line(epsilon: float | str, delta: float, name: str) -> str:
    """Returns what is printed of an accountant's epsilon: not less, and delta as it is."""
    held = confidences([name]).get(name)
    certain = "" if held is None else f", an upper bound with probability {held!r} only"
    return f"epsilon = {rounded_up(epsilon)} at delta = {float(delta)!r} ({name}){certain}"


def add_key_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --key-file."""
    parser.add_argument(
        "--key-file",
        help="file that holds the key of PrivacyLedger.open, as is; without it nothing is "
        "authenticated",
    )


def add_accountant_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --accountant, of one accountant."""
    parser.add_argument(
        "--accountant",
        choices=list(ACCOUNTANTS),
        default=DEFAULT_ACCOUNTANT,
        help=f"who computes epsilon; default: {DEFAULT_ACCOUNTANT}",
    )


def read_key(path: str | None) -> bytes | None:
    """Returns the key that --key-file names; None where it is not given.

    Raises:
        OSError: the file cannot be read.
        LedgerFormatError: it is no regular file, or holds no key.
    """
    if path is None:
        return None
    size = check_regular(Path(path), "key").st_size
    if size > _LONGEST_KEY:
        raise LedgerFormatError(f"{path} has {size} bytes; a key has at most {_LONGEST_KEY}.")
    return Path(path).read_bytes()


def authentication(paths: Sequence[str], evidence: Sequence[Evidence]) -> str:
    """Returns what speaks for each ledger, in one line; that nothing does stands first."""
    kinds = sorted(set(evidence), key=lambda kind: kind is Evidence.KEY)
    if len(kinds) == 1:
        return kinds[0].value
    parts = [
        (kind, [one_line(p) for p, found in zip(paths, evidence, strict=True) if found is kind])
        for kind in kinds
    ]
    return "; ".join(f"{kind.value} ({', '.join(names)})" for kind, names in parts)


def check_out(
    out: str, suffixes: Sequence[str], inputs: Sequence[str], option: str = "--out"
) -> None:
    """Raises unless a file of some name can be written, before anything is computed for it.

    No ledger is overwritten, nor what SQLite keeps beside one.

    Args:
        out: What the option says.
        suffixes: What its name may end in; empty for anything.
        inputs: Files that are read, and must not be overwritten; empty text for none.
        option: That says so.

    Raises:
        OSError: its folder does not exist, or nothing can be written there.
        ValueError: the name is of no known kind, or is that of a file that is read, or of a ledger.
    """
    path = Path(out)
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(
            f"{option} must end in one of {', '.join(suffixes)}. Received: {option} {out}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder of {option} does not exist. Received: {option} {out}")
    if path.name.endswith(_BESIDE_A_LEDGER):
        raise ValueError(
            f"{option} must not end in {', '.join(_BESIDE_A_LEDGER)}: SQLite takes such a file for "
            f"a part of the ledger beside it. Received: {option} {out}"
        )
    if path.exists():
        if not path.is_file():
            raise ValueError(f"{option} must be a regular file. Received: {option} {out}")
        if any(os.path.exists(name) and path.samefile(name) for name in inputs):
            raise ValueError(
                f"{option} would overwrite the ledger, or another file that is read. Received: "
                f"{option} {out}"
            )
        if _is_ledger(path):
            raise ValueError(
                f"{option} would overwrite a ledger, or another file of SQLite. Name a new file. "
                f"Received: {option} {out}"
            )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{option} cannot be written to. Received: {option} {out}")


def _is_ledger(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(_LONGEST_BEGIN)
    return begin.startswith(b"SQLite format 3\0") or b'"tfdp.ledger"' in begin.partition(b"\n")[0]


def printable(text: str) -> str:
    r"""Returns `text` with all that a terminal would act on as the escape that Python has for it.

    Names of files, units and data sets are whatever somebody wrote.

    Example:
        >>> printable("unit: \x1b[2Jexample")
        'unit: \\x1b[2Jexample'
    """
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    r"""Returns what `printable` does, on one line: no name is to look like a line of a command.

    Example:
        >>> one_line("run\nepsilon = 0.1")
        'run\\nepsilon = 0.1'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """Returns "1 step", "2 steps" and so on."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def finite(number: float) -> float | str:
    """Returns what stands for `number` in JSON, which has no infinity."""
    return number if math.isfinite(number) else "inf"
