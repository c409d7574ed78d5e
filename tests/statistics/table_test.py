"""Columns of arrays and frames: what is read, and that no value decides what is refused."""

import decimal
import fractions
import math

import numpy as np
import pytest

from tfdp.statistics.table import (
    as_numbers,
    check_keys,
    check_name,
    columns_of,
    key_of,
    occurring_keys,
    persons_of,
    quiet,
    rows_of,
)


class Frame:
    """What pandas' frames have that is used here."""

    def __init__(self, data):
        self._data, self.columns = data, list(data)

    def __getitem__(self, name):
        return Series(self._data[name])


class Series:
    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return np.asarray(self._values)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (np.arange(3.0), [0]),
        (np.zeros((3, 2)), [0, 1]),
        ({"a": [1, 2, 3], "b": np.zeros(3)}, ["a", "b"]),
        (Frame({"a": [1, 2, 3], "b": ["x", None, "y"]}), ["a", "b"]),
    ],
)
def test_columns_of_what_holds_data(data, names):
    columns = columns_of(data)
    assert list(columns) == names
    assert all(column.shape == (3,) for column in columns.values())


@pytest.mark.parametrize("extra", ["x", 2.5, math.nan, [1], None, 10**400])
def test_one_value_of_a_list_changes_nothing_about_the_others(extra):
    values = [2**60 + 1, 7, 7.0, True]
    alone, together = (columns_of({"a": rows})["a"] for rows in (values, [*values, extra]))
    assert list(map(repr, together[:4])) == list(map(repr, alone))
    # NumPy's own choice of a dtype would round the first, or make texts of all.
    assert key_of(together[0]) == 2**60 + 1
    assert as_numbers("a", together)[:4].tolist() == as_numbers("a", alone).tolist()
    assert persons_of(together)[:4].tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("name", [["a"], {"a"}, np.array([7]), slice(0, 3), ("a", [1])], ids=repr)
def test_what_cannot_be_a_name_is_refused_without_what_it_holds(name):
    kind = type(name).__name__
    with pytest.raises(TypeError, match=f"^what must be .* Received: what of type {kind}.$"):
        check_name("what", name)


@pytest.mark.parametrize("name", ["a", 0, None, ("a", 1), np.int64(3)], ids=repr)
def test_what_can_be_a_name_is_taken(name):
    check_name("name", name)


def test_rows_that_are_lists_are_rows():
    assert columns_of({"a": [[1, 2], [3, 4]]})["a"].shape == (2,)


def test_no_value_warns(recwarn):
    numbers = quiet(as_numbers)
    numbers("a", np.array([np.finfo(np.longdouble).max, 1], np.longdouble))
    numbers("a", np.array([np.longdouble("1e4000"), 1], object))
    assert not recwarn.list


def test_questions_are_quiet_and_leave_the_state_of_numpy():
    @quiet
    def ask(depth):
        """Asks."""
        assert set(np.geterr().values()) == {"ignore"}
        return ask(depth - 1) if depth else "answer"

    with np.errstate(all="raise"):
        assert ask(2) == "answer" and ask.__doc__ == "Asks."
        assert set(np.geterr().values()) == {"raise"}


def test_a_pandas_frame_is_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2, None], "b": ["x", None, "y"]})
    frame["c"] = pandas.array([1, pandas.NA, 3], dtype="Int64")
    columns = columns_of(frame)
    assert list(columns) == ["a", "b", "c"]
    for name in "ac":
        assert np.isfinite(as_numbers(name, columns[name])).sum() == 2
    assert occurring_keys(columns["b"]) == ["x", "y"]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (7, TypeError, "must be an array, a mapping"),
        (np.zeros((1, 1, 1)), ValueError, "one or two axes"),
        ({"a": np.zeros((2, 2))}, ValueError, "'a' must have one axis"),
        ({}, ValueError, "There must be columns"),
        (np.ones((3, 0)), ValueError, "There must be columns"),
        (np.ma.array([1.0, 50.0], mask=[0, 1]), TypeError, "masked array"),
        (np.ma.array([[1.0, 50.0]], mask=False), TypeError, "masked array"),
        ({"a": np.ma.array([1.0, 50.0], mask=[0, 1])}, TypeError, "masked array"),
        ({"a": [1], "b": [1, 2]}, ValueError, "equally long"),
    ],
)
def test_what_is_no_table_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        columns_of(data)


class Odd:
    """A value that fails whatever is asked of it."""

    def __float__(self):
        raise ValueError("secret")

    def __eq__(self, other):
        raise RuntimeError("secret")

    def __hash__(self):
        raise RuntimeError("secret")


VALUES = [
    1, 2.5, True, None, np.nan, np.inf, "7", b"x", 10**400, fractions.Fraction(1, 2),
    decimal.Decimal(3), [1], {}, Odd(), np.float32(4.0), np.int8(5), np.datetime64("2020-01-01"),
    1j,
]  # fmt: skip


def test_no_value_of_a_column_of_objects_is_an_error():
    column = np.empty(len(VALUES), object)
    column[:] = VALUES
    found = as_numbers("a", column)
    finite = {i: float(v) for i, v in enumerate(found) if np.isfinite(v)}
    assert finite == {0: 1.0, 1: 2.5, 2: 1.0, 9: 0.5, 14: 4.0, 15: 5.0}
    assert not np.isinf(found).any()
    keys = occurring_keys(column)
    assert keys == [b"x", 2.5, 1, 4, 5, 10**400, "7"] or set(keys) == {
        b"x", 2.5, 1, 4, 5, 10**400, "7", float("inf"),
    }  # fmt: skip
    assert rows_of(column, [1, "7", "none"]).tolist()[:7] == [0, -1, 0, -1, -1, -1, 1]


@pytest.mark.parametrize("dtype", ["U5", "M8[s]", "c16", "S3"])
def test_dtypes_without_numbers_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match="'a' holds no numbers"):
        as_numbers("a", np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?"])
def test_dtypes_of_numbers(dtype):
    assert as_numbers("a", np.ones(2, dtype)).tolist() == [1.0, 1.0]


def test_what_is_not_finite_is_missing():
    assert np.isnan(as_numbers("a", np.array([np.inf, -np.inf, np.nan]))).all()
    assert np.isnan(as_numbers("a", np.array([math.inf, None, 10**400], object))).all()


def test_equal_values_are_one_key_that_is_written_in_one_way():
    equal = [1, 1.0, True, np.int32(1), np.float64(1.0), np.bool_(True)]
    assert {(type(key_of(v)), key_of(v)) for v in equal} == {(int, 1)}
    assert repr(key_of(-0.0)) == repr(key_of(0)) == "0"
    for order in (equal, equal[::-1]):
        column = np.empty(len(order), object)
        column[:] = order
        assert [repr(key) for key in occurring_keys(column)] == ["1"]


def test_integers_of_any_length_are_keys():
    # Python makes no text of an integer of more than 4300 digits.
    huge = [10**5000, -(10**5000), 3]
    column = columns_of({"a": ["b", *huge, 2.5, b"x", "a"]})["a"]
    assert occurring_keys(column) == [b"x", 2.5, -(10**5000), 3, 10**5000, "a", "b"]
    assert rows_of(column, ["b", 10**5000]).tolist() == [0, 1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[s]", "M8[D]", "m8[ns]", "c16", "V3"])
def test_dtypes_without_keys_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match="'a' must hold texts, numbers or bytes"):
        check_keys("a", np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["U5", "S3", "O", "?", "i8", "u1", "f2", "f4", "f8", "g"])
def test_dtypes_of_keys(dtype):
    column = np.ones(2, dtype)
    check_keys("a", column)
    assert len(occurring_keys(column)) == 1


def test_a_date_among_objects_is_no_key_in_any_unit():
    dates = [np.datetime64("2020-01-01", unit) for unit in ("ns", "s", "D")]
    assert [key_of(value) for value in [*dates, np.timedelta64(1, "ns")]] == [None] * 4


def test_order_of_keys_does_not_follow_the_rows():
    values = ["b", "a", "c", "a"]
    for order in (values, values[::-1]):
        assert occurring_keys(np.array(order)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("keys", "error"), [([None], TypeError), ([()], TypeError), ([1, True], ValueError)]
)
def test_keys_are_checked(keys, error):
    with pytest.raises(error, match="key"):
        rows_of(np.zeros(2), keys)
