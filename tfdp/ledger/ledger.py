"""What was released about a data set, step by step."""

import contextlib
import importlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tfdp.events import Event, NeighboringRelation
from tfdp.events.arguments import positive_integer, says_what_to_write
from tfdp.events.protection import Protection, common_protection, protection
from tfdp.ledger import codec, json_lines, storage
from tfdp.ledger.continuation import (
    Way,
    agree_up_to,
    continuing_file,
    is_prefix,
    same_way,
)
from tfdp.ledger.entry import MAX_COUNT, EntryStream, LedgerEntry, pass_index, total_count

if TYPE_CHECKING:
    from tfdp.ledger.durable import DurableLedger

# Is asked before an event is written: given the ledger and the event it may raise, or return how
# many such events the ledger may reserve at most (None: any number).
Permit = Callable[["PrivacyLedger", Event], "int | None"]


def _pricing() -> ModuleType:
    """Returns what prices ledgers, the one part of the package above this one that it asks.

    It is loaded when it is asked, so that a ledger can be written and read without it.
    """
    return importlib.import_module("tfdp.accounting.of_ledgers")


# Of all ledgers in memory, so that each can be copied: of two threads one waits, for microseconds.
_APPENDING = threading.RLock()


def _is_dp_accounting(accountant: Any) -> bool:
    # An instance exists only where its module was imported, so nothing need be imported to ask.
    module = sys.modules.get("dp_accounting.privacy_accountant")
    return module is not None and isinstance(accountant, module.PrivacyAccountant)


@says_what_to_write(
    "Write tfdp.PrivacyLedger(): every step is written with its own sampling, so a ledger has no "
    "population_size and no selection_probability."
)
class PrivacyLedger:
    """An append-only sequence of events; equal neighbours are stored once, with a count.

    A `PrivacyLedger()` is in memory until `save`. `PrivacyLedger.open(path)` is on the disk, event
    by event. Events that a ledger could not store are refused when they are appended, not when the
    file is written.

    Example:
        >>> from tfdp.accounting import RDPAccountant
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> from tfdp.ledger import PrivacyLedger
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 1.1))
        >>> ledger = PrivacyLedger()
        >>> ledger.append(step, count=10_000)
        >>> round(ledger.replay(RDPAccountant()).get_epsilon(1e-5), 2)
        5.63
    """

    # What `open` makes, which `tfdp.ledger.durable` says: it imports this file.
    _on_disk: "type[DurableLedger]"
    _dataset_id: str | None = None

    def __init__(self):
        self._ledger_id = uuid.uuid4().hex
        # How many events were read, and saved to each path: more in a file are another copy's.
        self._num_read = 0
        self._num_saved: dict[str, int] = {}
        # Whose the events after each place are: a copy's from where it was copied. None: unknown.
        self._ways: list[Way] = [(0, uuid.uuid4().hex)]
        self._clear()

    def _clear(self) -> None:
        # Entry i is `_events[i]`, which happened `_counts[i]` times in a row.
        self._events: list[Event] = []
        self._counts: list[int] = []
        # What the first entries protect: of which list, and how many.
        self._protection: tuple[list[Event], int, Protection | None] = (self._events, 0, None)
        self._next_pass = 0
        self._total_count = 0

    @staticmethod
    def from_stream(stream: EntryStream) -> "PrivacyLedger":
        """Returns the ledger that is read from a stream of its entries."""
        ledger = PrivacyLedger._restored(stream.ledger_id, stream.entries)
        ledger._dataset_id = stream.dataset_id
        return ledger

    @staticmethod
    def _restored(ledger_id: str, entries: Iterable[LedgerEntry]) -> "PrivacyLedger":
        ledger = PrivacyLedger()
        ledger._ledger_id = ledger_id
        for event, count in entries:
            ledger._append(event, count)
        ledger._num_read = ledger._total_count
        ledger._ways = [(0, None), (ledger._num_read, uuid.uuid4().hex)]
        return ledger

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes this a copy (also by `copy.copy`), which goes a way of its own from here."""
        vars(self).update(state)
        self._events, self._counts = list(self._events), list(self._counts)
        self._protection = (self._events, 0, None)
        self._num_saved = dict(self._num_saved)
        before = [way for way in self._ways if way[0] < self._total_count]
        self._ways = [*before, (self._total_count, uuid.uuid4().hex)]

    @property
    def ledger_id(self) -> str:
        """32 hexadecimal digits that name this ledger, in memory and in every file of it."""
        return self._ledger_id

    @property
    def dataset_id(self) -> str | None:
        """Which data set the events are about, as the file says that they were read from."""
        return self._dataset_id

    @property
    def total_count(self) -> int:
        """Number of events, repetitions included."""
        return self._total_count

    @property
    def neighboring_relation(self) -> NeighboringRelation | None:
        """The relation that an epsilon of all events is about, or None where there are none.

        That is the relation of every event; ZERO_OUT, which all others cover, where they differ.

        Raises:
            UnsupportedEventError: the events have different privacy units.
        """
        common = self._common_protection()
        return None if common is None else common.neighboring_relation

    def check_unit(self, event: Event) -> None:
        """Refuses an event after which this ledger would have no epsilon, for good. Ask before it
        is written; a `Permit` may, at each step of a long run: only new entries are looked at.

        Raises:
            UnsupportedEventError: the event protects another unit than the events before it.
        """
        before = self._common_protection()
        common_protection([*([] if before is None else [before]), protection(event)])

    def _common_protection(self) -> Protection | None:
        # Another thread may read the events anew meanwhile, into another list.
        events = self._events
        of, number, before = self._protection
        if of is not events:
            number, before = 0, None
        if new := events[number:]:
            known = [] if before is None else [before]
            before = common_protection([*known, *map(protection, new)])
            self._protection = (events, number + len(new), before)
        return before

    @property
    def next_pass(self) -> int:
        """A number that no pass over shuffled data in this ledger has, and no smaller one has."""
        return self._next_pass

    @property
    def revision(self) -> int:
        """Changes when events that were counted before are not any more (`DurableLedger`)."""
        return 0

    def appending(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which no other thread of this process appends to this ledger, so
        that an event may follow from what the ledger holds.
        """
        return _APPENDING

    def append(self, event: Event, count: int = 1, *, permit: Permit | None = None) -> None:
        """Adds `count` repetitions of `event` at the end.

        Args:
            event: What is about to happen.
            count: How often.
            permit: A function of (ledger, event) that is asked first; see `Permit`.

        Raises:
            TypeError: `event` is not an Event or `count` not an integer.
            ValueError: `count` is smaller than one, or too large to be stored.
            UnsupportedEventError: a ledger cannot store the event.
            Exception: what `permit` raises; the ledger is then as before.
        """
        count = positive_integer("count", count)
        with _APPENDING:
            if not self._is_last(event):
                codec.to_text(event)
            if permit is not None:
                permit(self, event)
            self._append(event, count)

    def _append(self, event: Event, count: int) -> None:
        """Adds what is known to be storable."""
        total = self._total_count + count
        if total > MAX_COUNT:
            raise ValueError(f"A ledger counts at most {MAX_COUNT} events. Received: {total}.")
        last = len(self._events) - 1
        if self._is_last(event):
            self._counts[last] += count
        else:
            # An event has its count before it is there: one that is interrupted here is no event.
            self._counts[last + 1 :] = [count]
            self._events.append(event)
            self._next_pass = max(self._next_pass, 1 + pass_index(event))
        self._total_count = total

    def _is_last(self, event: Event) -> bool:
        if not self._events:
            return False
        last = self._events[-1]
        return event is last or event == last

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.entries_from(0))

    def entries_from(self, index: int) -> list[LedgerEntry]:
        """Returns the entries from one on, counted from zero; the last one may still grow."""
        return list(map(LedgerEntry, self._events[index:], self._counts[index:]))

    def __len__(self) -> int:
        return len(self._events)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrivacyLedger):
            return NotImplemented
        return self._ledger_id == other._ledger_id and self.entries_from(0) == other.entries_from(0)

    __hash__ = None  # type: ignore[assignment]  # Mutable.

    def __repr__(self) -> str:
        return (
            f"PrivacyLedger({self._ledger_id}, entries={len(self)}, total_count={self.total_count})"
        )

    def ends_with(self, event: Event, count: int) -> bool:
        """Whether the last `count` events, or more, are `event`."""
        return self._is_last(event) and self._counts[len(self._events) - 1] >= count

    # What a training run keeps beside its weights, to know its ledger again.

    def watermark(self) -> tuple[int, int]:
        """Returns two numbers, below 2^63, that say where in which ledger the last event is."""
        return self._total_count, self._key

    def holds(self, position: int, key: int) -> bool:
        """Whether what `watermark` returned once, perhaps elsewhere, is in this ledger."""
        return position == 0 or (position <= self._total_count and key == self._key)

    @property
    def _key(self) -> int:
        return int(self._ledger_id[:15], 16)

    def continues(self, saved: "PrivacyLedger", position: int, key: int) -> bool:
        """Whether this ledger holds all that `saved` did when `watermark` was (position, key)."""
        return saved.is_prefix_of(self)

    def holds_steps_of(self, other: "PrivacyLedger", position: int, key: int) -> bool:
        """Whether the events up to `watermark` (position, key) of `other` are in this ledger.

        Copies of a ledger may have gone different ways since, with equal steps too. Of events that
        were read from a file, nobody knows which copy took them: those are compared as they are.
        """
        if other is self or position == 0:
            return self.holds(position, key)
        return (
            self.holds(position, key)
            and agree_up_to(position, self, other)
            and same_way(position, self._ways, other._ways)
        )

    def settle(self) -> None:
        """Gives back what is reserved and was not used (`DurableLedger`)."""

    def is_prefix_of(self, other: "PrivacyLedger") -> bool:
        """Whether `other` is this ledger, perhaps with more events after it."""
        return self._ledger_id == other._ledger_id and is_prefix(list(self), list(other))

    def replay(self, accountant: Any) -> Any:
        """Composes every entry into `accountant`, in order, and returns it.

        Args:
            accountant: Anything with `compose(event, count)` that takes tfdp's events, or an
                accountant of dp-accounting, which is given `to_dp_event()`.

        Raises:
            UnsupportedEventError: the accountant refuses an event (dp-accounting raises its own
                class of this name).
            ValueError: the accountant of dp-accounting was made for another neighbouring relation.
            TypeError: `accountant` cannot compose.
        """
        if _is_dp_accounting(accountant):
            return _pricing().compose_dp_event(self, accountant)
        if not callable(getattr(accountant, "compose", None)):
            raise TypeError(
                f"accountant must have a compose method. Received: accountant={accountant!r}."
            )
        if callable(getattr(accountant, "compose_entries", None)):
            return accountant.compose_entries(list(self))
        for event, count in self:
            accountant.compose(event, count)
        return accountant

    def epsilon(self, target_delta: float, accountant: Any = None) -> float:
        """Returns the epsilon of everything that the ledger holds.

        Args:
            target_delta: At least 0 and below 1; choose it well below 1 / number of records.
            accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant; by
                default "prv".

        Raises:
            ValueError: `target_delta` is out of range, or there is no such accountant.
            UnsupportedEventError: the accountant refuses an event.

        Example:
            >>> from tfdp.events import GaussianSumEvent
            >>> ledger = PrivacyLedger()
            >>> ledger.append(GaussianSumEvent(1.0, noise_stddev=4.0), count=16)
            >>> round(ledger.epsilon(1e-5), 3), round(ledger.epsilon(1e-5, "zcdp"), 3)
            (4.377, 4.728)
        """
        return float(_pricing().epsilon_of(self, target_delta, accountant))

    def remaining(
        self,
        target_epsilon: float,
        target_delta: float,
        *,
        event: Event | None = None,
        accountant: Any = None,
    ) -> Any:
        """Returns what is left of a budget, as a `tfdp.accounting.Remaining`: an epsilon, and a
        number of further events.

        Args:
            target_epsilon: The budget; positive.
            target_delta: In (0, 1).
            event: Of which the number is asked; by default the last one in the ledger.
            accountant: As in `epsilon`.

        Raises:
            ValueError: a target is out of range.
            UnsupportedEventError: the accountant refuses an event.
        """
        return _pricing().remaining(
            self, target_epsilon, target_delta, event=event, accountant=accountant
        )

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        dataset_id: str | None = None,
        key: bytes | None = None,
        lease: int | None = None,
    ) -> "DurableLedger":
        """Opens the file for writing: every event is on the disk before it happens.

        Where there is no file, one is made only with `create=True`: a mistyped path would be an
        empty ledger, in which nothing was spent.

        See `tfdp.ledger.DurableLedger` for what is promised.

        Args:
            path: The file.
            create: Whether a new file may be made.
            dataset_id: As in `tfdp.ledger.DurableLedger`.
            key: Likewise.
            lease: Likewise.
        """
        options = {} if lease is None else {"lease": lease}
        return PrivacyLedger._on_disk(
            path, create=create, dataset_id=dataset_id, key=key, **options
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the ledger to the SQLite file `path`, all or nothing, over an earlier state of it.

        Args:
            path: The file.
            overwrite: Whether it may take the place of anything else, which is then lost.

        Raises:
            FileExistsError: there is another ledger, one that holds what this one does not (also
                steps of another copy of it, be they equal), one with a key, or another file;
                `overwrite` was not given.
            FileNotFoundError: the folder does not exist.
            LedgerWriteError: it cannot be written, or another process does not let go of what was
                there, which is still there.
        """
        entries, place, dataset_id = list(self), os.path.realpath(path), self._dataset_id
        with storage.exchanging(path), contextlib.ExitStack() as held:
            if not overwrite and os.path.lexists(path):
                most = max(self._num_read, self._num_saved.get(place, 0))
                known = held.enter_context(continuing_file(path, self._ledger_id, entries, most))
                # Weights and exports, from which the ledger may come, do not say.
                dataset_id = dataset_id or known
            storage.write(path, self._ledger_id, entries, dataset_id)
        self._num_saved[place] = total_count(entries)

    @staticmethod
    def load(path: str | os.PathLike[str], *, key: bytes | None = None) -> "PrivacyLedger":
        """Returns the ledger in the file `path`, in memory. The file may be open for writing.

        Args:
            path: What `save` or `open` wrote.
            key: To check a file that was written with one.

        Raises:
            FileNotFoundError: there is no such file.
            LedgerFormatError: the file is not a ledger, or is damaged.
        """
        with storage.open_entries(path, key) as stream:
            return PrivacyLedger.from_stream(stream)

    def to_json_lines(
        self, path: str | os.PathLike[str] | None = None, *, key: bytes | None = None
    ) -> str:
        """Returns the ledger as text, a line per entry, and writes it to `path` if given.

        Args:
            path: A file; what is there is replaced, all or nothing.
            key: At least 16 secret bytes; who has them can check that nobody else wrote the text.

        Raises:
            FileExistsError: `path` holds something that is no export.
            LedgerWriteError: it cannot be written; what was there is still there.
        """
        entries = list(self)
        text = "".join(json_lines.dump(self._ledger_id, lambda: entries, key))
        if path is not None:
            storage.write_text(path, text)
        return text

    @staticmethod
    def from_json_lines(text: str, *, key: bytes | None = None) -> "PrivacyLedger":
        """Returns the ledger whose `to_json_lines` is `text`.

        Args:
            text: The lines.
            key: To check a text that was written with one.

        Raises:
            TypeError: `text` is no text.
            LedgerFormatError: it is another text.
        """
        return PrivacyLedger._restored(*json_lines.loads(text, key))

    def to_dp_event(self) -> Any:
        """Returns a `dp_accounting.DpEvent` of the same cost; see `tfdp.accounting.dp_events`."""
        return _pricing().to_dp_event(self)

    @staticmethod
    def from_dp_event(
        dp_event: Any,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> "PrivacyLedger":
        """Returns a new ledger that costs what `dp_event` does; see `tfdp.accounting.dp_events`."""
        ledger = PrivacyLedger()
        for event, count in _pricing().from_dp_event(dp_event, neighboring_relation):
            ledger.append(event, count)
        return ledger
