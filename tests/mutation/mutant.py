"""What a mutant is: a piece of source text and what it becomes, and the tests that must notice."""

from typing import NamedTuple

QUERY, KERAS, GRADIENTS = "tests/query", "tests/keras", "tests/gradients"
ACCOUNTING, LEDGER, NOISE = "tests/accounting", "tests/ledger", "tests/noise"
NOISE_TRAPS = "tests/traps/noise_traps_test.py"
CLIPPING_TRAPS = "tests/traps/clipping_traps_test.py"
ACCOUNTING_TRAPS = "tests/traps/accounting_traps_test.py"
RECORD_TRAPS = "tests/traps/record_traps_test.py"


class Mutant(NamedTuple):
    """What is broken, where, and which tests are asked.

    Attributes:
        name: Of the mutant.
        breaks: What it breaks, in one line.
        file: Relative to the repository.
        old: Text that stands there exactly once.
        new: What it becomes.
        tests: Arguments of pytest.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def in_folder(folder: str, *mutants: tuple[str, ...]) -> list[Mutant]:
    """Returns mutants from (name, breaks, file, old, new, *tests).

    A file is named within the folder, or from "tfdp/" on.
    """
    return [
        Mutant(
            name,
            breaks,
            file if file.startswith("tfdp/") else f"tfdp/{folder}/{file}",
            old,
            new,
            tuple(tests),
        )
        for name, breaks, file, old, new, *tests in mutants
    ]
