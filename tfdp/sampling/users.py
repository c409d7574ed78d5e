"""Rows of users: which are whose, and which of a user's take part in a step."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer

_NOBODY = -1
# Random integers below it are taken modulo smaller numbers.
_INTEGERS = 1 << 62


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
        and whoever else is there. It is drawn anew at every call. What that takes does not follow
        how many rows anybody has: time would tell whether a user of very many is in the sample.

        Args:
            users: int64, in 0 .. len(self) - 1.
            generator: Source of the draws.
        """
        most = self.max_examples
        counts = self._counts[users][:, None]
        drawn = _distinct(np.maximum(counts, most), most, generator)
        places = np.where(counts > most, drawn, np.arange(most))
        exist = places < counts
        rows = self._rows[np.where(exist, self._starts[users][:, None] + places, 0)]
        return np.where(exist, rows, _NOBODY)


def _distinct(ends: np.ndarray, number: int, generator: Any) -> np.ndarray:
    """Returns int64 [n, number]: in each row so many distinct integers of 0 .. end - 1. Each set of
    them is equally likely, and what it takes does not depend on the ends.

    This is Floyd's algorithm (Bentley and Floyd 1987, Programming pearls: a sample of brilliance).
    In turn i, t is drawn from 0 .. end - number + i. If t is in the set already, the last of these,
    which cannot be, comes in its place.

    Args:
        ends: int64 [n, 1], at least `number`.
        number: At least one.
        generator: Source of the draws.
    """
    turns = np.arange(number)
    lasts = ends - number + turns
    drawn = _below(lasts + 1, generator)
    # What was drawn before is in the set.
    order = np.argsort(drawn, axis=1, kind="stable")
    ascending = np.take_along_axis(drawn, order, 1)
    is_in = np.zeros(drawn.shape, bool)
    np.put_along_axis(is_in, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], 1)
    # So is the last integer of an earlier turn if the draw of that turn was. Where none was drawn,
    # a turn follows itself, and others are followed twice as far each time.
    turn_of = drawn - lasts[:, :1]
    turn_of = np.where(turn_of < 0, turns, turn_of)
    for _ in range(number.bit_length()):
        is_in |= np.take_along_axis(is_in, turn_of, 1)
        turn_of = np.take_along_axis(turn_of, turn_of, 1)
    return np.where(is_in, lasts, drawn)


def _below(ends: np.ndarray, generator: Any) -> np.ndarray:
    """Returns int64 like the ends, each uniform over 0 .. end - 1, exactly."""
    flat = ends.reshape(-1)
    limits = _INTEGERS - _INTEGERS % flat
    drawn = generator.integers(_INTEGERS, size=len(flat))
    while len(again := np.flatnonzero(drawn >= limits)):
        drawn[again] = generator.integers(_INTEGERS, size=len(again))
    return (drawn % flat).reshape(ends.shape)


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
