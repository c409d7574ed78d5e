"""Rows that several users have a part in, such as a message and both of its ends."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer
from tfdp.noise import host_generator
from tfdp.sampling.users import is_missing


def bound_contributions(
    owners: Sequence[Iterable[Hashable]],
    max_examples_per_user: int,
    generator: Any = None,
) -> np.ndarray:
    """Returns rows of which nobody has a part in more than K; the others are to be left out.

    Rows are looked at in random order, and one is kept where none of its owners has K yet. This is
    the greedy algorithm of Ganesh et al. 2025, It's my data too, arXiv:2503.03622, section 4. No
    row that is left out could be added.

    Guarantees:
        Where the rows that are kept are trained on as examples, one user changes at most K of
        them: `PRVAccountant(group_size=K)` says what that costs. It holds for two data sets in
        which the same users have a part in the same rows (fixed-graph privacy there), and that
        differ in what all rows of one user hold. Who has a part in which row is not protected: it
        decides which rows of others are kept. What rows hold decides nothing.

    Edge cases:
        A row of nobody, or one of whose owners is not known (None, NaN, NA), is left out.

    Args:
        owners: [n]; the ids of the users who have a part in each row. A user who is there twice is
            there once.
        max_examples_per_user: K; public.
        generator: Source of the order, with `random(n)`; by default keyed by the operating system.

    Returns:
        Positions of the rows, int64, ascending.

    Raises:
        TypeError: the owners of a row are not a list, set or other collection of ids, such as one
            text alone, or an id can be no key of a dict; K is not an integer.
        ValueError: K is below one.

    Example:
        >>> senders_and_receivers = [("Ann", "Bob"), ("Bob",), ("Bob", "Cy"), ("Dan",)]
        >>> rows = bound_contributions(senders_and_receivers, max_examples_per_user=1)
        >>> len(rows)  # One of the first three, and the last.
        2
    """
    most = positive_integer("max_examples_per_user", max_examples_per_user)
    of_rows = [_owners_of(row, ids) for row, ids in enumerate(owners)]
    generator = host_generator() if generator is None else generator
    order = np.argsort(generator.random(len(of_rows)), kind="stable")
    counts: Counter[Hashable] = Counter()
    kept = []
    for row in order:
        found = of_rows[row]
        if found and all(counts[owner] < most for owner in found):
            counts.update(found)
            kept.append(row)
    return np.sort(np.array(kept, np.int64))


def _owners_of(row: int, ids: Any) -> frozenset[Hashable]:
    """Returns who has a part in a row; nobody where one of them is not known."""
    if isinstance(ids, (str, bytes, dict)) or not isinstance(ids, Iterable):
        raise TypeError(
            "The owners of every row must be a list, tuple, set or array of ids; of one owner, a "
            f"list of one. Received for row {row}: {type(ids).__name__}."
        )
    listed = list(ids)
    if any(is_missing(owner) for owner in listed):
        return frozenset()
    for owner in listed:
        if not isinstance(owner, Hashable):
            raise TypeError(
                "The id of a user must be a number, a text, bytes or another value that can be a "
                f"key of a dict. Received for row {row}: {type(owner).__name__}."
            )
    return frozenset(listed)
