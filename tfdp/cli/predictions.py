"""What several commands share: files of predictions, and the attacks on them."""

import argparse
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdp.ledger.storage.files import check_regular

FILE_HELP = (
    "*.npz with probabilities or logits [records, classes], labels [records] (integers) and "
    "members [records] (booleans)"
)

_CONFIDENCE = 0.95
# How NumPy packs arrays.
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What NumPy and zipfile raise where a file is damaged: RuntimeError where it says that it is
# encrypted, or needs a newer zipfile.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    tokenize.TokenError,
)


def add_attack_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says how predictions are attacked."""
    parser.add_argument(
        "--score", action="append", help="may be given several times; default: all that there are"
    )
    parser.add_argument("--per-class", action="store_true", help="attack each class, too")
    parser.add_argument("--confidence", type=float, default=_CONFIDENCE, help="of each interval")


def attack_options(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Returns those of `add_attack_arguments` that were given, as names and values."""
    given: list[tuple[str, str | None]] = [("--score", name) for name in arguments.score or ()]
    if arguments.per_class:
        given.append(("--per-class", None))
    if arguments.confidence != _CONFIDENCE:
        given.append(("--confidence", repr(arguments.confidence)))
    return given


def attacks_on(path: str, arguments: argparse.Namespace) -> list[Any]:
    """Returns the attacks on a file of predictions, each a `tfdp.audit.Attack`.

    Args:
        path: Of the file (`FILE_HELP`).
        arguments: `score`, `per_class` and `confidence`.

    Raises:
        ValueError: the file does not hold what is needed, or an argument is out of range.
    """
    from tfdp.audit import attack, attack_slices, membership_scores
    from tfdp.audit.membership import class_slices
    from tfdp.audit.predictions import SCORES, WITHOUT_LABELS, probabilities_of_logits

    found = load_arrays(path, ("probabilities", "logits", "labels", "members"))
    if ("probabilities" in found) == ("logits" in found):
        raise ValueError(f"{path} must have either probabilities or logits.")
    check_arrays(found, path, ("members",))
    labels = found.get("labels")
    if arguments.per_class and labels is None:
        raise ValueError(f"--per-class needs labels, which {path} lacks.")
    p = found.get("probabilities")
    if p is None:
        p = probabilities_of_logits(found["logits"])
    names = arguments.score or (SCORES if labels is not None else WITHOUT_LABELS)
    attacks = []
    for name in dict.fromkeys(names):
        scores = membership_scores(name, p, labels)
        attacks.append(attack(name, scores, found["members"], arguments.confidence))
        if arguments.per_class:
            slices = class_slices(labels)
            attacks += attack_slices(name, scores, found["members"], slices, arguments.confidence)
    return attacks


def load_arrays(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns those of the named arrays which a *.npz file holds.

    Raises:
        ValueError: it is no such file, or damaged.
        LedgerFormatError: it is no regular file.
    """
    check_regular(Path(path), "file of arrays")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no *.npz file; write it with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as file:
            if any(info.compress_type not in _PACKED for info in file.zip.infolist()):
                raise zipfile.BadZipFile("it is packed as NumPy packs nothing.")
            found = {name: file[name] for name in names if name in file}
    except _DAMAGED as error:
        raise ValueError(f"{path} is damaged, or too large for the memory: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"{path} holds something else than arrays of numbers or booleans: {error}"
        ) from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # NumPy gives the bytes of what is no array.
            raise ValueError(f"{path} is damaged: {name} is no array.")
    return found


def check_arrays(found: dict[str, np.ndarray], path: str, needed: Sequence[str]) -> None:
    """Raises ValueError unless the arrays are there and of a kind that says what is meant."""
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}.")
    for name, kinds in (("members", "b"), ("inserted", "b"), ("labels", "iu")):
        if name in found and found[name].dtype.kind not in kinds:
            meant = "integers" if name == "labels" else "booleans"
            raise ValueError(
                f"{name} of {path} must be {meant}. Received: dtype={found[name].dtype}."
            )
    for name in ("probabilities", "logits", "scores"):
        if name in found and found[name].dtype.kind not in "fiu":
            raise ValueError(
                f"{name} of {path} must be numbers. Received: dtype={found[name].dtype}."
            )
