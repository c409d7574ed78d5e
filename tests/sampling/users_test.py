"""Which rows of users a step sees, and what that may depend on."""

import datetime
import itertools
import tracemalloc
import uuid

import numpy as np
import pytest
from scipy import stats

from tests.sampling.draws import elements, subset_p_value
from tfdp.noise import host_generator
from tfdp.sampling import FullBatch, Poisson, Users, batches
from tfdp.sampling import users as users_module

UUIDS = [uuid.UUID(int=i) for i in (7, 3, 7)]


@pytest.mark.parametrize(
    ("ids", "users"),
    [
        ([3, 1, 3, 1, 2], 3),
        (np.array([3, 1, 3], np.uint8), 2),
        (np.array(["b", "a", "b"]), 2),
        (np.array([b"b", b"a", b"b"]), 2),
        (np.array(["2026-01-01", "2026-01-02", "2026-01-01"], "datetime64[D]"), 2),
        ([datetime.date(2026, 1, 1)] * 2, 1),
        (np.array([True, False, True]), 2),
        (UUIDS, 2),
        ([1, "1", b"1"], 3),  # As an array of texts they would be one user.
    ],
)
def test_ids_of_any_kind_tell_users_apart(ids, users):
    found = Users(ids, 5)
    assert len(found) == users
    table = found.rows_of(np.arange(users), host_generator())
    assert sorted(table[table >= 0]) == list(range(len(ids)))
    for rows in table:
        assert len({str(ids[row]) + type(ids[row]).__name__ for row in rows[rows >= 0]}) == 1


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1.0, np.nan, 1.0, np.nan, 2.0]),
        np.array([1, None, 1, np.nan, 2], object),
        np.array(["2026", "NaT", "2026", "NaT", "2027"], "datetime64[Y]"),
    ],
)
def test_a_row_of_nobody_takes_part_in_nothing(ids):
    users = Users(ids, 3)
    assert (len(users), users.num_rows) == (2, 5)
    table = users.rows_of(np.arange(2), host_generator())
    assert sorted(table[table >= 0]) == [0, 2, 4]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_user_has_more_rows_than_allowed_and_none_twice(most):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, 40)
    users = Users(ids, most)
    for _ in range(20):
        drawn = rng.choice(6, 4, replace=False)
        table = users.rows_of(drawn, host_generator())
        assert table.shape == (4, most)
        for user, rows in zip(drawn, table, strict=True):
            rows = rows[rows >= 0]
            assert len(rows) == min(most, (ids == user).sum())
            assert len(set(rows)) == len(rows)
            assert (ids[rows] == user).all()


def test_rows_of_a_user_are_drawn_uniformly_and_anew():
    # Every row of five is kept with probability 2 / 5; standard error of 4,000 draws: 0.0077.
    users = Users([0] * 5 + [1] * 2, 2)
    tables = [users.rows_of(np.array([0, 1]), host_generator()) for _ in range(4000)]
    share = np.bincount(np.stack(tables)[:, 0].ravel(), minlength=7)[:5] / 4000
    assert np.abs(share - 0.4).max() < 6.2 * 0.0077
    assert all(set(table[1]) == {5, 6} for table in tables)


def test_shape_of_a_batch_follows_no_users_rows():
    policy = Poisson(0.5, 8)
    for ids in (np.arange(8), np.repeat(np.arange(8), 9)):
        rows = np.arange(len(ids))
        drawn = batches(rows, None, None, policy, users=Users(ids, 3)).take(3)
        for batch in elements(drawn):
            assert batch.x.shape == (policy.padded_size, 3)
            assert batch.mask.shape == (policy.padded_size, 3)


def test_batches_hold_the_rows_of_the_users_that_were_drawn():
    ids = np.array([2, 0, 1, 0, 2, 2, 0])
    rows = np.arange(1, 8)
    drawn = batches(rows, -rows, None, Poisson(1.0, 3), users=Users(ids, 4)).take(1)
    (batch,) = elements(drawn)
    table = batch.x.reshape(3, 4)
    np.testing.assert_array_equal(batch.mask, table > 0)
    np.testing.assert_array_equal(batch.y, -batch.x)
    assert sorted(map(sorted, (row[row > 0] for row in table))) == [[1, 5, 6], [2, 4, 7], [3]]


@pytest.mark.parametrize(
    ("ids", "most", "error", "message"),
    [
        ([[1], [2]], 1, ValueError, "one axis"),
        ([1, 2], 0, ValueError, "max_examples_per_user"),
        ([1, 2], 1.5, TypeError, "max_examples_per_user"),
        ([None, None], 1, ValueError, "nobody"),
        ([], 1, ValueError, "nobody"),
        (np.array([{}, {}], object), 1, TypeError, "key of a dict"),
    ],
)
def test_what_tells_no_users_is_refused(ids, most, error, message):
    with pytest.raises(error, match=message):
        Users(ids, most)


@pytest.mark.parametrize("kind", [tuple, frozenset, list])
def test_rows_of_several_users_are_no_single_users(kind):
    # Otherwise Ann's rows would be those of two users who are not she.
    ids = np.empty(2, object)
    ids[:] = [kind(["Ann", "Bob"]), kind(["Ann"])]
    with pytest.raises(TypeError, match="bound_contributions"):
        Users(ids, 1)


def rows_of_all(ids):
    users = Users(ids, 9)
    rows = users.rows_of(np.arange(len(users)), np.random.default_rng(0))
    return sorted(sorted(row[row >= 0].tolist()) for row in rows)


def test_masked_ids_are_nobodys():
    ids = np.ma.masked_array([1, 2, 1, 1], [False, False, True, True])
    assert rows_of_all(ids) == rows_of_all([1, 2, None, None]) == [[0], [1]]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no StringDType.")
@pytest.mark.parametrize("missing", [np.nan, None])
def test_missing_texts_are_nobodys(missing):
    dtype = np.dtypes.StringDType(na_object=missing)
    ids = np.array(["a", "b", missing, "c", "a"], dtype)
    assert rows_of_all(ids) == [[0, 4], [1], [3]]


@pytest.mark.parametrize(("rows", "most"), [(6, 3), (7, 2), (5, 4), (9, 1), (4, 3)])
def test_every_set_of_a_users_rows_is_as_likely(rows, most):
    sets = list(itertools.combinations(range(rows), most))
    users = Users(np.zeros(rows, int), most)
    drawn = users.rows_of(np.zeros(200 * len(sets), int), host_generator())
    assert subset_p_value(drawn, dict.fromkeys(sets, 1 / len(sets))) > 1e-9


def test_the_test_of_sets_tells():
    """Where a row that was drawn already is replaced by the next one, neighbours come together."""
    sets = list(itertools.combinations(range(6), 3))
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200 * len(sets)):
        drawn: list[int] = []
        for row in rng.integers(0, 6, 3).tolist():
            while row in drawn:
                row = (row + 1) % 6
            drawn.append(row)
        found.append(np.array(drawn))
    assert subset_p_value(found, dict.fromkeys(sets, 1 / len(sets))) < 1e-9


def test_rows_of_users_do_not_depend_on_each_other():
    users = Users([0] * 3 + [1] * 3, 1)
    drawn = users.rows_of(np.tile([0, 1], 1800), host_generator()).reshape(-1, 2)
    counts = np.zeros((3, 3), int)
    np.add.at(counts, (drawn[:, 0], drawn[:, 1] - 3), 1)
    assert stats.chisquare(counts.ravel()).pvalue > 1e-9


def test_integers_below_a_number_are_exactly_uniform(monkeypatch):
    # Of 0 .. 7 the last two are no whole round of 3: without rejection 0 comes in 3 of 8 draws.
    monkeypatch.setattr(users_module, "_INTEGERS", 8)
    drawn = users_module._below(np.full((300, 100), 3), host_generator())
    assert drawn.shape == (300, 100)
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=3)).pvalue > 1e-9


class Counted:
    """Notes how many random numbers were asked for."""

    def __init__(self):
        self.asked = []
        self._generator = host_generator()

    def integers(self, *limits, size):
        self.asked.append((limits, size))
        return self._generator.integers(*limits, size=size)


def test_what_a_draw_takes_does_not_follow_how_many_rows_a_user_has():
    """Time would else tell that a user of very many is in the sample."""
    users = Users(np.concatenate([np.zeros(300_000, int), np.arange(1, 100)]), 4)
    asked, memory = [], []
    for drawn in ([0, 1, 2], [3, 1, 2]):
        generator = Counted()
        users.rows_of(np.array(drawn), generator)  # What is done once only.
        tracemalloc.start()
        table = users.rows_of(np.array(drawn), generator)
        memory.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (table >= 0).sum() == (6 if 0 in drawn else 3)
        asked.append(generator.asked)
    assert asked[0] == asked[1]
    assert max(memory) < 1 << 16  # All rows of the first user are 2.4 MB.


@pytest.mark.parametrize("number", [1, 11, 13])
def test_ids_of_other_rows_are_refused(number):
    x = np.zeros([12, 1], "float32")
    users = Users(np.arange(number), 1)
    with pytest.raises(ValueError, match="ids and rows differ in number"):
        batches(x, None, None, FullBatch().resolve(number, number), users=users)


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="one number of rows"):
        batches(np.zeros([12, 1]), np.zeros(11), None, FullBatch().resolve(12, 12))
