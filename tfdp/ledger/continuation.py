"""Whether entries go on from others: as the whole of them and more, or up to some place."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

from tfdp.ledger import storage
from tfdp.ledger.entry import LedgerEntry, merged, total_count
from tfdp.ledger.errors import LedgerFormatError

# A place, and a name for who took the events after it, up to the next place; None: unknown.
Way = tuple[int, str | None]


def is_prefix(first: Sequence[LedgerEntry], whole: Sequence[LedgerEntry]) -> bool:
    """Whether `whole` is `first`, perhaps with more events after it."""
    if not first:
        return True
    if len(first) > len(whole):
        return False
    before, last = len(first) - 1, first[-1]
    return (
        first[:before] == whole[:before]
        and last.event == whole[before].event
        and last.count <= whole[before].count
    )


def agree_up_to(position: int, one: Iterable[LedgerEntry], other: Iterable[LedgerEntry]) -> bool:
    """Whether the first `position` events are the same; both hold so many."""
    missing = position
    for (mine, my_count), (theirs, their_count) in zip(one, other, strict=False):
        if mine != theirs:
            return False
        # Where the entries differ in count alone, both go on, or the place is before that.
        if missing <= min(my_count, their_count):
            return True
        missing -= min(my_count, their_count)
        if my_count != their_count:
            return False
    return False


def same_way(position: int, one: Sequence[Way], other: Sequence[Way]) -> bool:
    """Whether none of the first `position` events is known to be another one in the other."""
    for place in {place for place, _ in (*one, *other) if place < position}:
        mine, theirs = ([w for w in ways if w[0] <= place][-1][1] for ways in (one, other))
        if mine != theirs and None not in (mine, theirs):
            return False
    return True


@contextlib.contextmanager
def continuing_file(
    path: str | os.PathLike[str], ledger_id: str, entries: Sequence[LedgerEntry], most: int
) -> Iterator[str | None]:
    """Lets nobody write to a file that is an earlier state of the ledger, without a key; yields
    which data set it is about.

    Args:
        path: The file.
        ledger_id: Of the ledger.
        entries: Of the ledger.
        most: How many events the file may hold: further ones may be equal to those of the ledger,
            and are another copy's all the same.

    Raises:
        FileExistsError: the file is anything else.
        LedgerWriteError: another process does not let go of it.
    """
    with contextlib.ExitStack() as stack:
        try:
            with storage.open_book(path) as book:
                keyed = book.header.keyed
            if not keyed:
                stack.enter_context(storage.nobody_writes(path))
            with storage.open_book(path) as book:
                found = book.header.ledger_id
                saved = list(merged(book.entries()))
        except (LedgerFormatError, FileNotFoundError) as error:
            what = f"something that cannot be read as a ledger ({error})"
        else:
            is_earlier = is_prefix(saved, entries) and total_count(saved) <= most
            if found == ledger_id and is_earlier and not keyed:
                yield book.header.dataset_id
                return
            what = f"another ledger, {found}"
            if found == ledger_id:
                what = "this ledger with "
                what += "a key" if keyed else "steps that are not in this one"
        raise FileExistsError(
            f"{os.fspath(path)} holds {what}. It would be lost: save to another path, or give "
            "overwrite=True. After a crash, train on with what PrivacyLedger.load gives of the "
            "file as the optimizer's ledger, so that all steps count."
        )
