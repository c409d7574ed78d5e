"""Columns of arrays and frames. What is refused depends on types and shapes, never on a value."""

import functools
import math
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

_MISSING = -1
# Kinds of dtypes: truth values, integers, floats, objects, bytes, and two of texts.
_OF_KEYS = "biufOSUT"

P = ParamSpec("P")
T = TypeVar("T")


def quiet(ask: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that neither warns nor raises because of floating-point numbers.

    NumPy's warnings, and its errors after `np.seterr(all="raise")`, tell of a value: that one is
    tiny, huge or a signalling NaN.
    """

    @functools.wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        with np.errstate(all="ignore"):
            return ask(*args, **kwargs)

    return asked


def columns_of(data: Any) -> dict[Hashable, np.ndarray]:
    """Returns the columns of an array, of a mapping of arrays or of a frame.

    Args:
        data: An array [n] or [n, columns], whose columns are called 0, 1, ...; a mapping of names
            to arrays [n] or to lists, whose every value stays what it is; or anything with
            `columns` whose items are arrays, as pandas has.

    Raises:
        TypeError: it is none of these, or an array is a masked one.
        ValueError: an array has another number of axes, there are no columns, or they are not
            equally long.
    """
    if isinstance(data, np.ndarray):
        rows = _array_of(data)
        if rows.ndim not in (1, 2):
            raise ValueError(f"An array must have one or two axes. Received: {rows.ndim}.")
        found = dict(enumerate(np.atleast_2d(rows.T)))
        if not found:
            raise ValueError("There must be columns. Received: an array without any.")
        return found
    names = data.keys() if isinstance(data, Mapping) else getattr(data, "columns", None)
    if names is None:
        raise TypeError(
            "Data must be an array, a mapping of names to arrays or a pandas frame. Received: "
            f"{type(data).__name__}."
        )
    found = {}
    for name in names:
        column = _array_of(data[name])
        if column.ndim != 1:
            raise ValueError(f"The column {name!r} must have one axis. Received: {column.ndim}.")
        found[name] = column
    if not found or len({len(column) for column in found.values()}) > 1:
        raise ValueError("There must be columns, and they must be equally long.")
    return found


def _array_of(column: Any) -> np.ndarray:
    if isinstance(column, (list, tuple)):
        # One dtype for all would follow the rows: a text among numbers makes texts of them, and NaN
        # among large integers rounds them.
        return np.fromiter(column, object, len(column))
    if isinstance(column, np.ma.MaskedArray):
        raise TypeError(
            "A masked array is not taken: what is under its mask would count. Give "
            "array.filled(np.nan), or array.astype(object).filled(None)."
        )
    return column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)


def as_numbers(name: Hashable, column: np.ndarray) -> np.ndarray:
    """Returns a column as float64; what is missing, infinite or no number is NaN.

    Raises:
        TypeError: the dtype of the column is not that of real numbers, or of objects.
    """
    if column.dtype.kind in "biuf":
        found = column.astype(np.float64)
        return np.where(np.isfinite(found), found, np.nan)
    if column.dtype.kind != "O":
        raise TypeError(f"The column {name!r} holds no numbers: its dtype is {column.dtype}.")
    return np.array([_number(value) for value in column], np.float64).reshape(len(column))


def _number(value: Any) -> float:
    if not isinstance(value, numbers.Real):
        return np.nan
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return np.nan
    return number if math.isfinite(number) else np.nan


def key_of(value: Any) -> Hashable:
    """Returns what a row is grouped by, None where that is missing or of no type that can be one.

    Values that are equal are one key, and are written in one way: else a single row could decide
    how the key of others is written. So True and 1.0 are 1, and what is no text, number or bytes is
    no key.
    """
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None  # An integer in some units, and a date in others.
    if isinstance(value, np.generic):
        value = float(value) if isinstance(value, np.floating) else value.item()
    if type(value) is bool or (type(value) is float and value.is_integer()):
        return int(value)
    if type(value) is float:
        return value if value == value else None  # noqa: PLR0124
    return value if type(value) in (int, str, bytes) else None


def check_keys(name: Hashable, column: np.ndarray) -> None:
    """Refuses a column whose dtype is one of no keys, so that all of its rows would be dropped.

    Raises:
        TypeError: the dtype is not that of texts, numbers, bytes or objects.
    """
    if column.dtype.kind not in _OF_KEYS:
        raise TypeError(
            f"The column {name!r} must hold texts, numbers or bytes: its dtype is {column.dtype}. "
            "Make texts of dates, for example by column.astype(str)."
        )


def check_name(what: str, name: Any) -> None:
    """Refuses what can be no name of a column, such as a list, an array or a slice.

    Raises:
        TypeError: it cannot be looked up; what it holds, which may be data, is not shown.
    """
    try:
        hash(name)
        is_name = not isinstance(name, slice)  # Which Python 3.12 can hash.
    except TypeError:
        is_name = False
    if not is_name:
        raise TypeError(
            f"{what} must be the name of one column, such as 'age' or 0. Only data[['age', 'city']]"
            " takes several, as a list, and rows cannot be chosen. Received: "
            f"{what} of type {type(name).__name__}."
        )


def rows_of(column: np.ndarray, keys: Sequence[Hashable]) -> np.ndarray:
    """Returns int64, which of the keys each row has; -1 for none of them.

    Raises:
        TypeError: a key is none.
        ValueError: two keys are equal.
    """
    places: dict[Hashable, int] = {}
    for place, key in enumerate(keys):
        if key_of(key) is None:
            raise TypeError(f"A key must be a text, a number or bytes. Received: {key!r}.")
        if places.setdefault(key_of(key), place) != place:
            raise ValueError(f"keys must differ. Received: {key!r} twice.")
    found = [places.get(key_of(value), _MISSING) for value in column]
    return np.array(found, np.int64).reshape(len(column))


def persons_of(column: np.ndarray) -> np.ndarray:
    """Returns int64, a number of each row's person; -1 where the row is of nobody."""
    numbers: dict[Hashable, int] = {}
    found = [
        _MISSING if (key := key_of(value)) is None else numbers.setdefault(key, len(numbers))
        for value in column
    ]
    return np.array(found, np.int64).reshape(len(column))


def first_of_each(persons: np.ndarray, number: int) -> np.ndarray:
    """Returns the places of the first rows of every person, so many of each, in order.

    What is kept of a person depends on that person's rows alone, and on no value in them.
    """
    order = np.argsort(persons, kind="stable")
    ordered = persons[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    is_kept = (np.arange(len(order)) - starts < number) & (ordered != _MISSING)
    return np.sort(order[is_kept])


def is_first_in_group(persons: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Returns int64, 1 where a row is the first one of its person in its group, else 0."""
    pairs = np.stack([persons, groups], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    found = np.zeros(len(persons), np.int64)
    found[first] = 1
    return found


def occurring_keys(column: np.ndarray) -> list[Hashable]:
    """Returns the keys that occur, in an order that depends on the keys alone."""
    found = {key_of(value) for value in column} - {None}
    # No text is made of a key: Python refuses that for an integer of many digits.
    return sorted(found, key=lambda key: (type(key).__name__, key))
