"""Everything that a report says, as data."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp import __version__
from tfdp.events.arguments import real_number
from tfdp.ledger import PrivacyLedger
from tfdp.report import costs as pricing
from tfdp.report.attempts import Attempt, attempts_at
from tfdp.report.caveats import Caveat, caveats
from tfdp.report.checking import check_commands, option_words
from tfdp.report.costs import Costs
from tfdp.report.digest import fingerprint
from tfdp.report.groups import GroupCost, group_costs
from tfdp.report.numbers import exact
from tfdp.report.releases import AlikeSteps, alike_steps
from tfdp.report.summary import Summary, summarize

# Where the ledger does not say how many units there are.
_USUAL_DELTA = 1e-5
# What is said of a ledger that no file was read for.
IN_MEMORY = "not authenticated: the ledger was given as an object of the program that made this"


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything that a report says.

    Attributes:
        ledger_id: Of the ledger.
        fingerprint: SHA-256 of its canonical text.
        steps: Its number of events, repetitions included.
        entries: Its number of entries.
        source: Where it was read from, as the reader gave it; None where that is not known.
        dataset_id: Which data set the ledger says it is about; None where it says nothing.
        about: What whoever made the report says of the model, its data and so on: a name and a
            text each.
        delta_reason: Why the report is about this delta.
        mechanisms: What was released.
        costs: What that costs.
        caveats: What else there is to know.
        summary: The first page.
        tfdp_version: Of the tfdp that wrote the report.
        authentication: What speaks for the ledger.
        attempts: What attacks on the trained model achieved; not from the ledger.
        attacked: What was attacked, as the reader gave it.
        groups: What it costs groups of units.
        options: Words for a shell: with them `tfdp report` makes the report again.
    """

    ledger_id: str
    fingerprint: str
    steps: int
    entries: int
    source: str | None
    dataset_id: str | None
    about: tuple[tuple[str, str], ...]
    delta_reason: str
    mechanisms: tuple[AlikeSteps, ...]
    costs: Costs
    caveats: tuple[Caveat, ...]
    summary: Summary
    tfdp_version: str
    authentication: str
    attempts: tuple[Attempt, ...] = ()
    attacked: str | None = None
    groups: tuple[GroupCost, ...] = ()
    options: tuple[str, ...] = ()

    def commands(self, again: str) -> tuple[str, ...]:
        """Returns the commands by which a reader checks the report; the last writes `again`."""
        return check_commands(self.source, self.costs, self.options, again)


def default_delta(rows: Sequence[AlikeSteps]) -> tuple[float, str]:
    """Returns the largest power of ten below 1 / population, and a sentence that says so.

    Of several populations the largest counts. Where none is known it is 1e-5.
    """
    largest = max((row.population or 0 for row in rows), default=0)
    if not largest:
        return _USUAL_DELTA, "δ was not chosen; 1e-5 is customary."
    # The digits are exact: 10^d > population, and 10^(d - 1) is not.
    delta = float(f"1e-{len(str(largest))}")
    return delta, (
        f"δ was not chosen; {exact(delta)} is the largest power of ten below one divided by the "
        f"population of {largest:,}."
    )


def gather(
    ledger: PrivacyLedger,
    target_delta: float | None = None,
    accountants: Sequence[str] | None = None,
    source: str | None = None,
    *,
    dataset_id: str | None = None,
    about: Mapping[str, str] | None = None,
    authentication: str = IN_MEMORY,
    attacks: Sequence[Any] = (),
    attacked: str | None = None,
    group_sizes: Sequence[int] = (),
    options: Sequence[tuple[str, str | None]] = (),
) -> Facts:
    """Reads a ledger, prices it, and says what follows.

    Args:
        ledger: What was done.
        target_delta: In (0, 1); None for `default_delta`.
        accountants: Names from `tfdp.accounting.ACCOUNTANTS`; all of them by default.
        source: Name of the file, to be shown.
        dataset_id: Which data set the ledger is about, as its file says; by default what the
            ledger itself says.
        about: What to say of the model, its data, the date or the purpose: a name of each, such as
            "model", and a text. The report says that it is not from the ledger.
        authentication: What speaks for the ledger, to be shown first.
        attacks: What `tfdp.audit.attack` found on the model that was trained, to be shown beside
            what the ledger allows. The report says that they are not from the ledger.
        attacked: What the attacks had, such as a file's name and digest, to be shown.
        group_sizes: Of groups of units whose epsilon is shown as well. Where a unit is an account
            or a row, a group is all accounts of a person, or all rows that one person has a part
            in.
        options: What else `tfdp report` needs to make the same report, such as ("--predictions",
            "predictions.npz"), with None for an option that takes no value. The report prints
            these beside the delta, the accountants and the group sizes, where they were given.

    Raises:
        TypeError: a group size is not an integer.
        ValueError: `target_delta` or a group size is out of range, there is no accountant of some
            name, or attacks are about different false positive rates.
    """
    rows = alike_steps(ledger)
    if target_delta is None:
        delta, reason = default_delta(rows)
    else:
        delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
        if delta == 1:
            raise ValueError("target_delta must be smaller than 1. Received: target_delta=1.")
        reason = "δ was chosen by whoever made the report."
    given: list[tuple[str, str | None]] = [
        *([] if target_delta is None else [("--delta", exact(delta))]),
        *(("--accountant", name) for name in accountants or ()),
        *(("--group-size", str(size)) for size in group_sizes),
        *options,
    ]
    costs = pricing.compute(ledger, delta, accountants)
    attempts = attempts_at(attacks, costs)
    found = caveats(rows, costs, attempts)
    return Facts(
        ledger_id=ledger.ledger_id,
        fingerprint=fingerprint(ledger),
        steps=ledger.total_count,
        entries=len(ledger),
        source=source,
        dataset_id=dataset_id or getattr(ledger, "dataset_id", None),
        about=tuple((about or {}).items()),
        delta_reason=reason,
        mechanisms=rows,
        costs=costs,
        caveats=found,
        summary=summarize(rows, ledger.total_count, costs, found),
        tfdp_version=__version__,
        authentication=authentication,
        attempts=attempts,
        attacked=attacked,
        groups=group_costs(ledger, costs, group_sizes),
        options=option_words(given),
    )
