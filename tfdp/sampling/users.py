"""Rows of users: which are whose, and which of a user's take part in a step."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer

_NOBODY = -1


class Users:
    """The users of a data set, as units of sampling.

    Args:
        ids: [n], whose each row is: an array, tensor or list of numbers, texts, bytes, dates, or
            anything that can be a key of a dict; equal ids are one user. A row of nobody (None,
            NaN, NaT, NA) takes part in nothing.
        max_examples: K: rows of one user that take part in a step at most; public.

    Raises:
        TypeError: `max_examples` is not an integer, or an id is a collection or can be no key.
        ValueError: ids have another number of axes than one, or all rows are nobody's;
            `max_examples` is below 1.
    """

    def __init__(self, ids: Any, max_examples: int):
        self.max_examples = positive_integer("max_examples_per_user", max_examples)
        users = _numbers_of(ids)
        self.num_rows = len(users)
        order = np.argsort(users, kind="stable")
        self._rows = order[users[order] != _NOBODY]
        self._counts = np.bincount(users[self._rows])
        self._starts = np.cumsum(self._counts) - self._counts
        if not len(self._counts):
            raise ValueError("There are no users: every row is nobody's.")

    def __len__(self) -> int:
        return len(self._counts)

    def rows_of(self, users: np.ndarray, generator: Any) -> np.ndarray:
        """Returns rows of some users, int64 [number of users, K]; -1 where there is none.

        Of a user of more than K rows each set of K is as likely as any other, whatever is in them
        and whoever else is there. It is drawn anew at every call.

        Args:
            users: int64, in 0 .. len(self) - 1.
            generator: Source of the draws.
        """
        counts = self._counts[users]
        owners = np.repeat(np.arange(len(users)), counts)
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._rows[self._starts[users][owners] + places]
        if (counts > self.max_examples).any():
            rows = rows[np.lexsort((generator.random(len(rows)), owners))]
        kept = places < self.max_examples
        table = np.full((len(users), self.max_examples), _NOBODY, np.int64)
        table[owners[kept], places[kept]] = rows[kept]
        return table


def _numbers_of(ids: Any) -> np.ndarray:
    """Returns int64 [n], a number of each row's user; -1 where the row is nobody's."""
    # A list of texts and numbers would become an array of texts, in which 1 and "1" are one user.
    array = np.asarray(ids, object) if isinstance(ids, (list, tuple)) else np.asarray(ids)
    if isinstance(ids, np.ma.MaskedArray):
        array = np.array(ids, object)
        array[np.ma.getmaskarray(ids)] = None
    elif array.dtype.kind == "T":  # NumPy's texts of any length have missing ones of their own.
        array = array.astype(object)
    if array.ndim != 1:
        raise ValueError(
            "The ids of users must have one axis, [n], one id for each row. Received shape: "
            f"{array.shape}."
        )
    if array.dtype.kind != "O":
        missing = array != array if array.dtype.kind in "fcmM" else np.zeros(len(array), bool)
        _, users = np.unique(array, return_inverse=True)
        users = np.where(missing, _NOBODY, users)
        return np.unique(users, return_inverse=True)[1] - int(missing.any())
    numbers: dict[Hashable, int] = {}
    users = np.empty(len(array), np.int64)
    for row, value in enumerate(array):
        if is_missing(value):
            users[row] = _NOBODY
            continue
        if isinstance(value, (tuple, frozenset, set, list, np.ndarray)):
            raise TypeError(
                "The id of a user must be one value. A row that several users have a part in is "
                "none of a single user's (tfdp.sampling.bound_contributions); parts of one id make "
                f"one text. Received one of type {type(value).__name__}."
            )
        if not isinstance(value, Hashable):
            raise TypeError(
                "The id of a user must be a number, a text, bytes or another value that can be a "
                f"key of a dict. Received one of type {type(value).__name__}."
            )
        users[row] = numbers.setdefault(value, len(numbers))
    return users


def is_missing(value: Any) -> bool:
    """Returns whether an id says nothing: None, NaN, NaT, NA."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124
    except (TypeError, ValueError):  # The comparison of pandas' NA is neither true nor false.
        return True
