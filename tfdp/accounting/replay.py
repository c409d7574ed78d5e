"""What ledgers on file hold and cost, read once and in bounded memory."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdp import events
from tfdp.accounting.accountant import Accountant
from tfdp.accounting.planning.target_delta import largest_population
from tfdp.accounting.prices_of_others import prices_of_others
from tfdp.accounting.registry import (
    DEFAULT_ACCOUNTANT,
    AccountantChoice,
    accountant_maker,
    accountant_name,
    keeps_passes,
    replayed,
)
from tfdp.accounting.totals import Totals
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.arguments import positive_integer
from tfdp.events.protection import common_protection, protection
from tfdp.events.step import releases
from tfdp.ledger import json_lines, storage
from tfdp.ledger.entry import EntryStream, Evidence, LedgerEntry, PassNumbers

# Different events of which is counted how often each happened.
_MOST_LISTED = 100
# Kinds of steps that accountants are given which compute a whole distribution for each; steps are
# charged a little more, so that fewer remain. Beyond the second number they are refused.
_MOST_KINDS_OF_LOSSES = (1_000, 10_000)


@dataclasses.dataclass(frozen=True)
class Replay:
    """What was replayed, and what it costs.

    Attributes:
        ledger_ids: Of the ledgers, in order.
        steps: Events that were replayed.
        total_steps: Events that the ledgers hold.
        listed: The first different events, and how often each happened.
        unlisted_steps: Events that are none of those.
        not_private_because: Why epsilon is infinite; empty where it need not be.
        priced_by_others: Events and samplings whose price another package says (`register_price`).
        neighboring_relation: What the epsilons are about; as `PrivacyLedger` has it.
        epsilons: Accountant -> epsilon.
        curve: (steps, an epsilon of every accountant); empty unless it was asked for.
        digits: As in `Totals`.
        evidence: What speaks for each of the files.
        population_size: The largest that an event records, listed or not; None where none does.
    """

    ledger_ids: tuple[str, ...]
    steps: int
    total_steps: int
    listed: tuple[LedgerEntry, ...]
    unlisted_steps: int
    not_private_because: tuple[str, ...]
    priced_by_others: tuple[str, ...]
    neighboring_relation: NeighboringRelation
    epsilons: Mapping[str, float]
    curve: tuple[tuple[int, tuple[float, ...]], ...]
    digits: int | None
    evidence: tuple[Evidence, ...]
    population_size: int | None


@contextlib.contextmanager
def open_ledger(path: str | os.PathLike[str], key: bytes | None = None) -> Iterator[EntryStream]:
    """Opens a ledger file, or an export named *.jsonl, to go through its entries one by one."""
    opener = json_lines if os.fspath(path).endswith(".jsonl") else storage
    with opener.open_entries(path, key) as stream:
        yield stream


@contextlib.contextmanager
def _open_ledgers(
    paths: Sequence[str | os.PathLike[str]],
    diverged: bool,
    key: bytes | None,
) -> Iterator[tuple[list[EntryStream], Iterator[LedgerEntry]]]:
    with contextlib.ExitStack() as stack:
        seen: dict[str, str | os.PathLike[str]] = {}
        streams = []
        for path in paths:
            stream = stack.enter_context(open_ledger(path, key))
            if stream.ledger_id in seen and not diverged:
                raise ValueError(
                    f"{seen[stream.ledger_id]} and {path} are copies of one ledger, "
                    f"{stream.ledger_id}, which would be charged twice. Give the newer one; or, if "
                    "both were written to after they were copied, charge both in full: --diverged "
                    "(diverged=True)."
                )
            seen[stream.ledger_id] = path
            streams.append(stream)
        yield streams, _entries(streams)


def _entries(streams: Sequence[EntryStream]) -> Iterator[LedgerEntry]:
    numbers = PassNumbers()
    for stream in streams:
        numbers.begin_ledger()
        for event, count in stream.entries:
            yield LedgerEntry(numbers.renumbered(event), count)


class _Accountants:
    """Accountants that are given what was added to totals since they were last asked."""

    def __init__(
        self, choices: Mapping[str, AccountantChoice], delta: float, growing: bool = False
    ):
        self._choices, self._delta, self._growing = choices, delta, growing
        self._made: dict[str, Any] = {}
        self._composed: dict[events.Event, int] = {}
        self._digits: int | None = None
        self.relation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def epsilons(self, totals: Totals) -> tuple[float, ...]:
        """Returns what everything costs by now, by every accountant."""
        if totals.digits != self._digits:
            # Kinds were merged: what was composed is not what it would have been.
            self._made, self._composed, self._digits = {}, {}, totals.digits
        common = common_protection(protection(event) for event, _ in totals)
        if common is not None:
            self.relation = common.neighboring_relation
        if not self._made:
            made = {name: self._make(name) for name in self._choices}
            # Others are given everything anew, every time.
            self._made = {name: each for name, each in made.items() if keeps_passes(each)}
        for event, count in totals:
            more = count - self._composed.get(event, 0)
            if more:
                for accountant in self._made.values():
                    accountant.compose(event, more)
                self._composed[event] = count
        asked = [
            self._made[name] if name in self._made else replayed(totals, choice)
            for name, choice in self._choices.items()
        ]
        return tuple(float(each.get_epsilon(self._delta)) for each in asked)

    def _make(self, name: str) -> Any:
        made = accountant_maker(self._choices[name])(self.relation)
        return made.growing() if self._growing and isinstance(made, Accountant) else made


def _is_slow(choice: AccountantChoice) -> bool:
    made = accountant_maker(choice)(NeighboringRelation.ADD_OR_REMOVE_ONE)
    return isinstance(made, Accountant) and made.computes_distributions


def why_not_private(event: events.Event) -> set[str]:
    """Returns why the epsilon of an event is infinite; nothing where it is finite."""
    reasons = (part.why_not_private() for part in releases(event))
    return {reason for reason in reasons if reason is not None}


def replay(
    paths: Sequence[str | os.PathLike[str]],
    delta: float,
    accountants: AccountantChoice | Sequence[AccountantChoice] = (DEFAULT_ACCOUNTANT,),
    *,
    steps: int | None = None,
    every: int | None = None,
    diverged: bool = False,
    key: bytes | None = None,
) -> Replay:
    """Replays ledgers on file, one after another: several runs on one data set.

    Guarantees:
        Every file is read to its end and checked, even if fewer steps are replayed. An entry that
        stands for many steps is split exactly. Memory grows with the number of kinds of steps (see
        `tfdp.accounting.totals`), up to a bound, and not with the number of steps or entries.

    Edge cases:
        Two copies of one ledger are refused unless `diverged`, because what they have in common
        would be charged twice.

    Args:
        paths: Ledger files, or exports named *.jsonl.
        delta: Between 0 and 1.
        accountants: One, or several: names in `tfdp.accounting.ACCOUNTANTS`, classes, or empty
            accountants.
        steps: Replay only the first so many, of all ledgers in order; None for all.
        every: Also compute the curve: after every so many steps, and after the last.
        diverged: Whether copies of one ledger, which went on by themselves, are all charged in
            full: what they have in common counts again, which is too much and never too little.
        key: That the files were written with; None reads them without knowing who wrote them.

    Raises:
        OSError: a file cannot be read.
        LedgerFormatError: a file is no ledger, or damaged.
        UnsupportedEventError: an accountant cannot price an event, or the events differ in
            neighbouring relation or privacy unit.
        ValueError: a ledger is given twice, there are fewer than `steps` steps, or a number is out
            of range.
        TypeError: `steps` or `every` is not an integer.
    """
    last = math.inf if steps is None else positive_integer("steps", steps)
    stride = math.inf if every is None else positive_integer("every", every)
    several = accountants if isinstance(accountants, (list, tuple)) else [accountants]
    choices = {accountant_name(choice): choice for choice in several}
    slow = sorted(name for name, choice in choices.items() if _is_slow(choice))
    totals = Totals(_MOST_KINDS_OF_LOSSES[0]) if slow else Totals()
    growing = _Accountants(choices, delta, growing=True)
    listed: dict[events.Event, int] = {}
    reasons: set[str] = set()
    foreign: set[str] = set()
    curve: list[tuple[int, tuple[float, ...]]] = []
    population: int | None = None
    done = total = 0
    with _open_ledgers(paths, diverged, key) as (streams, entries):
        for event, count in entries:
            total += count
            left = min(count, last - done)
            if not left:
                continue
            if event in listed or len(listed) < _MOST_LISTED:
                listed[event] = listed.get(event, 0) + int(left)
            if event not in listed or listed[event] == left:
                reasons |= why_not_private(event)
                foreign |= prices_of_others(event)
                found = largest_population([event])
                population = max(population or 0, found) if found else population
            while left:
                now = int(min(left, stride - done % stride))
                totals.add(event, now)
                if slow and len(totals) > _MOST_KINDS_OF_LOSSES[1]:
                    raise UnsupportedEventError(
                        f"The ledgers hold more than {_MOST_KINDS_OF_LOSSES[1]} kinds of steps, "
                        f"for each of which {' and '.join(slow)} would compute a distribution, "
                        "perhaps for hours. Ask another accountant, such as rdp."
                    )
                done, left = done + now, left - now
                if done % stride == 0:
                    curve.append((done, growing.epsilons(totals)))
    if steps is not None and steps > done:
        raise ValueError(f"The ledgers hold {done} steps. Received: steps={steps}.")
    # Also at the end of a curve: what does not depend on the points before.
    asked = _Accountants(choices, delta)
    epsilons = asked.epsilons(totals)
    if every is not None:
        curve = [point for point in curve if point[0] != done] + [(done, epsilons)]
    return Replay(
        tuple(dict.fromkeys(stream.ledger_id for stream in streams)),
        done,
        total,
        tuple(LedgerEntry(event, count) for event, count in listed.items()),
        done - sum(listed.values()),
        tuple(sorted(reasons)),
        tuple(sorted(foreign)),
        asked.relation,
        dict(zip(choices, epsilons, strict=True)),
        tuple(curve),
        totals.digits,
        tuple(stream.evidence for stream in streams),
        population,
    )
