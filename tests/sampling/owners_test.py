"""Rows that several users have a part in: nobody in more than K of those that are kept."""

import itertools
from collections import Counter

import numpy as np
import pytest

from tfdp.noise import host_generator
from tfdp.sampling import bound_contributions


def parts(owners, rows):
    return Counter(owner for row in rows for owner in set(owners[row]))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_nobody_has_more_than_allowed_and_no_more_rows_would_do(most):
    # All sets of three rows among three users, empty rows included.
    users = [c for size in range(4) for c in itertools.combinations("abc", size)]
    rng = np.random.default_rng(0)
    cases = list(itertools.product(users, repeat=3))
    cases += [[tuple(rng.integers(0, 9, rng.integers(0, 4))) for _ in range(40)] for _ in range(20)]
    for owners in cases:
        rows = bound_contributions(owners, most, rng)
        found = parts(owners, rows)
        assert all(count <= most for count in found.values())
        for row in set(range(len(owners))) - set(rows):
            assert not owners[row] or any(found[owner] == most for owner in owners[row])


class InOrder:
    def random(self, size):
        return np.arange(size)


def test_rows_are_kept_in_the_order_in_which_they_are_looked_at():
    owners = [["a", "b"], ["b", "c"], ["c"], ["a"], ["c", "d"], ["d"]]
    np.testing.assert_array_equal(bound_contributions(owners, 1, InOrder()), [0, 2, 5])
    np.testing.assert_array_equal(bound_contributions(owners, 2, InOrder()), [0, 1, 2, 3, 5])


def test_rows_of_one_user_are_as_likely_as_each_other_and_drawn_anew():
    # Standard error of 4,000 draws of probability 1 / 4: 0.0068.
    rows = [bound_contributions([["a"]] * 4, 1, host_generator())[0] for _ in range(4000)]
    share = np.bincount(rows, minlength=4) / 4000
    assert np.abs(share - 0.25).max() < 6.2 * 0.0068


def test_rows_of_which_an_owner_is_not_known_are_left_out():
    owners = [["a", None], [], [np.nan], ["b"], {"b", float("nan")}]
    np.testing.assert_array_equal(bound_contributions(owners, 5), [3])
    assert bound_contributions([], 5).dtype == np.int64


def test_owner_who_is_there_twice_is_there_once():
    np.testing.assert_array_equal(bound_contributions([["a", "a"], ["a"]], 2), [0, 1])


@pytest.mark.parametrize(
    ("owners", "most", "error", "message"),
    [
        (["ab"], 1, TypeError, "a list of one"),
        ([7], 1, TypeError, "a list of one"),
        ([b"ab"], 1, TypeError, "a list of one"),
        ([[["a"]]], 1, TypeError, "key of a dict"),
        ([["a"]], 0, ValueError, "max_examples_per_user"),
        ([["a"]], 1.5, TypeError, "max_examples_per_user"),
    ],
)
def test_what_tells_no_owners_is_refused(owners, most, error, message):
    with pytest.raises(error, match=message):
        bound_contributions(owners, most)


def test_an_error_does_not_say_whose_a_row_is():
    with pytest.raises(TypeError) as error:
        bound_contributions([["Dan"], "Ann Example"], 1)
    assert "Ann" not in str(error.value) and "row 1: str" in str(error.value)
