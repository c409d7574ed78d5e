"""What several commands share: deltas, ledgers on file, numbers as JSON has them."""

import math
from pathlib import Path

from tfdp.ledger.ledger import PrivacyLedger


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


def load(path: str) -> PrivacyLedger:
    """Returns the ledger in a file that `PrivacyLedger.save` wrote, or in an export, *.jsonl."""
    if path.endswith(".jsonl"):
        return PrivacyLedger.from_json_lines(Path(path).read_text(encoding="utf-8"))
    return PrivacyLedger.load(path)


def finite(number: float) -> float | str:
    """Returns what stands for `number` in JSON, which has no infinity."""
    return number if math.isfinite(number) else "inf"
