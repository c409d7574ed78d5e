"""Planted records are what they are said to be, and scores of runs prove what runs lose."""

import numpy as np
import pytest
from scipy import stats

from tfdp.audit import (
    fair_coins,
    mislabelled_canaries,
    mu_lower_bound,
    sampled_gaussian_scores,
    scores_of_runs,
)

CONFIDENCE = 1 - 1e-7


def test_coins_are_fair_and_a_function_of_the_seed():
    coins = fair_coins(10_000, seed=3)
    assert coins.dtype == bool and np.array_equal(coins, fair_coins(10_000, seed=3))
    assert not np.array_equal(coins, fair_coins(10_000, seed=4))
    assert stats.binomtest(int(coins.sum()), 10_000).pvalue > 1e-6


@pytest.mark.parametrize("shape", [(), (4,)], ids=["records", "users"])
def test_planted_records_are_in_the_data_by_their_coins_and_never_with_their_own_label(shape):
    x = np.arange(1000)
    y = np.random.default_rng(0).integers(0, 5, (1000, *shape))
    planted = mislabelled_canaries(x, y, 200, classes=5, seed=1)
    assert len(planted.x) == len(planted.y) == 800 + planted.inserted.sum()
    assert np.all(planted.canaries_y != y[planted.canaries_x])
    assert planted.canaries_y.min() == 0 and planted.canaries_y.max() == 4
    assert np.array_equal(np.isin(planted.canaries_x, planted.x), planted.inserted)
    assert len(np.unique(planted.x)) == len(planted.x)
    wrong = np.any((planted.y != y[planted.x]).reshape(len(planted.x), -1), axis=1)
    assert np.array_equal(np.sort(planted.x[wrong]), np.sort(planted.canaries_x[planted.inserted]))
    # Every wrong label is as likely as any other: about 200 / 4 of each shift, in each column.
    shifts = (planted.canaries_y - y[planted.canaries_x]) % 5
    assert stats.chisquare(np.bincount(shifts.ravel(), minlength=5)[1:]).pvalue > 1e-6
    assert stats.binomtest(int(planted.inserted.sum()), 200).pvalue > 1e-6


def test_records_that_cannot_be_planted_are_refused():
    x, y = np.zeros((10, 2)), np.arange(10) % 3
    for arguments, error, message in [
        ((x, y[:9], 2, 3), ValueError, "10 and 9"),
        ((x, y, 10, 3), ValueError, "canaries=10"),
        ((x, y, 2, 2), ValueError, "classes=2"),
        ((x, y * 0, 2, 1), ValueError, "classes=1"),
        ((x, y - 1, 2, 3), ValueError, "-1 to 1"),
        ((x, y * 0.5, 2, 3), TypeError, "float64"),
        ((x, y, 2.5, 3), TypeError, "canaries"),
    ]:
        with pytest.raises(error, match=message):
            mislabelled_canaries(*arguments)


def test_runs_prove_what_they_lose_and_take_turns():
    calls, told = [], []

    def train_and_score(inserted, seed):
        calls.append((inserted, seed))
        return 2.0 * inserted + np.random.default_rng(seed).normal()

    scores_in, scores_out = scores_of_runs(
        train_and_score, 4000, seed=7, progress=lambda *counts: told.append(counts)
    )
    assert len(scores_in) == len(scores_out) == 2000
    assert calls[:4] == [(True, 7), (False, 8), (True, 9), (False, 10)]
    assert told[0] == (1, 4000) and told[-1] == (4000, 4000)
    assert 1.4 < mu_lower_bound(scores_in, scores_out, CONFIDENCE) <= 2.0
    for runs in (2, 5):
        with pytest.raises(ValueError, match=f"runs={runs}"):
            scores_of_runs(train_and_score, runs)
    with pytest.raises(ValueError, match="run 0 is NaN"):
        scores_of_runs(lambda inserted, seed: float("nan"), 4)


@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_scores_are_log_likelihood_ratios(probability):
    sums = np.array([[0.3, -1.0, 50.0], [2.0, 0.5, -60.0]])
    out = stats.norm.pdf(sums, 0, 3.0)
    expected = probability * stats.norm.pdf(sums, 2.0, 3.0) + (1 - probability) * out
    found = sampled_gaussian_scores(sums, 3.0, probability, moved=2.0)
    np.testing.assert_allclose(found, np.log(expected / out).sum(axis=0), rtol=1e-12)
    far = sampled_gaussian_scores([[1e6, -1e6]], 0.1, probability)
    assert np.all(np.isfinite(far)) and far[0] > far[1]


def test_scores_of_anything_else_are_refused():
    for arguments in [([1.0], 1.0, 0.5), ([[1.0]], 0.0, 0.5), ([[1.0]], 1.0, 0.0)]:
        with pytest.raises(ValueError, match="Received"):
            sampled_gaussian_scores(*arguments)
    with pytest.raises(ValueError, match="sampling_probability"):
        sampled_gaussian_scores([[1.0]], 1.0, 1.5)
