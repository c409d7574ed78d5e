"""What attacks achieve: published definitions and values, intervals that hold what they say."""

import itertools

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from tfdp.audit import membership

TRUE_AUC = 0.760249938906  # Phi(1 / sqrt(2)), of N(1, 1) against N(0, 1).


def sample(rng, members=300, others=200, shift=1.0):
    inside = np.arange(members + others) < members
    return rng.normal(size=members + others) + shift * inside, inside


def test_curve_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for decimals in (0, 1, 8):  # With many equal scores, with few, with none.
        scores, members = sample(rng)
        scores = np.round(scores, decimals)
        found = membership.roc(scores, members)
        fpr, tpr, _ = metrics.roc_curve(members, scores, drop_intermediate=False)
        np.testing.assert_allclose(found.false_positive_rates, fpr, atol=1e-15)
        np.testing.assert_allclose(found.true_positive_rates, tpr, atol=1e-15)
        assert found.auc == pytest.approx(metrics.roc_auc_score(members, scores), abs=1e-12)
        assert found.advantage == pytest.approx(np.max(tpr - fpr))


def test_area_is_how_often_a_member_is_above_another_record():
    rng = np.random.default_rng(1)
    scores, members = np.round(rng.normal(size=60), 1), rng.integers(0, 2, 60) == 1
    pairs = itertools.product(scores[members], scores[~members])
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
    assert membership.roc(scores, members).auc == pytest.approx(np.mean(wins), abs=1e-12)
    assert membership.delong(scores, members).value == pytest.approx(np.mean(wins), abs=1e-12)


def test_values_of_tests_of_tensorflow_privacy():
    # membership_inference_attack_test.py: losses of members and others, AUC 0.83.
    inside, outside = [0.1, 0.2, 1.3, 0.4, 0.5, 0.6], [1.1, 1.2, 1.3, 0.4, 1.5, 1.6]
    members = np.arange(12) < 6
    found = membership.attack("loss", -np.array(inside + outside), members)
    assert found.auc.value == pytest.approx(0.83, abs=0.005)
    # data_structures_test.py: a classifier that is always right, and one that guesses.
    perfect = membership.Roc(np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0]), 5, 5)
    assert (perfect.auc, perfect.advantage, perfect.positive_predictive_value) == (1, 1, 1)
    guess = membership.Roc(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.5, 1.0]), 5, 5)
    assert (guess.auc, guess.advantage, guess.positive_predictive_value) == (0.5, 0, 0.5)


def test_true_positive_rate_is_of_a_threshold_that_calls_no_more_others():
    scores = np.array([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    members = np.array([True, True, False, True, False, True, False, False, False, True])
    curve = membership.roc(scores, members)
    rates = [curve.true_positive_rate(rate) for rate in (0, 0.19, 0.2, 0.4, 0.99, 1)]
    assert rates == [0.4, 0.4, 0.6, 0.8, 0.8, 1.0]


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(2)
    held_auc, held_rate, runs = 0, 0, 400
    for _ in range(runs):
        scores, members = sample(rng, 150, 100)
        found = membership.attack("score", scores, members, 0.9, (0.01,))
        held_auc += found.auc.lower <= TRUE_AUC <= found.auc.upper
        # No other record may be above the threshold: it is the largest of their scores.
        threshold = scores[~members].max()
        estimate = found.true_positive_rates[0.01]
        curve_at = np.sort(scores[~members])[-2]
        truth = stats.norm.sf(curve_at, 1.0)
        assert threshold >= curve_at
        held_rate += estimate.lower <= truth <= estimate.upper
    # 90 % of 400, and no less than a probability of 1e-9 allows; 80 % would be 320.
    least = stats.binom.ppf(1e-9, runs, 0.9)
    assert least > 315
    assert held_auc >= least and held_rate >= least
    # The interval of the area is not just wide: 98 % would be 392.
    assert held_auc <= stats.binom.isf(1e-6, runs, 0.9)


def test_intervals_where_there_is_nothing_to_see():
    members = np.array([True, True, True, False, False])
    perfect = membership.delong([3, 4, 5, 1, 2], members)
    assert (perfect.value, perfect.lower, perfect.upper) == (1.0, 0.0, 1.0)
    alone = membership.delong([1.0, 0.0], np.array([True, False]))
    assert (alone.lower, alone.upper) == (0.0, 1.0)
    same = membership.delong(np.zeros(5), members)
    assert same.value == 0.5
    whole = membership.clopper_pearson(5, 5)
    assert (whole.value, whole.upper) == (1.0, 1.0) and whole.lower == pytest.approx(
        0.4782, abs=1e-4
    )


def test_slices_are_attacked_alone():
    rng = np.random.default_rng(3)
    scores, members = sample(rng, 100, 100)
    labels = np.tile([0, 1, 2, 2], 50)
    slices = membership.class_slices(labels)
    slices["only members"] = members
    found = membership.attack_slices("score", scores, members, slices)
    assert [attack.slice_name for attack in found] == ["class 0", "class 1", "class 2"]
    alone = membership.attack("score", scores[labels == 2], members[labels == 2])
    assert found[2].auc == alone.auc
    with pytest.raises(ValueError, match="slice 'half'"):
        membership.attack_slices("score", scores, members, {"half": labels})


def test_claim_that_is_exceeded_is_named():
    rng = np.random.default_rng(4)
    scores, members = sample(rng, 2000, 2000, shift=3.0)
    found = membership.attack("score", scores, members)
    assert found.above_the_bound(lambda rate: min(1.0, 20 * rate + 0.9)) == []
    said = found.above_the_bound(lambda rate: rate)
    assert len(said) == 2 and "FPR 0.01" in said[1]


@pytest.mark.parametrize(
    ("scores", "members", "error", "text"),
    [
        ([1.0, 2.0], [1, 0], TypeError, "boolean"),
        ([1.0], [True, False], ValueError, "same length"),
        ([1.0, np.nan], [True, False], ValueError, "NaN"),
        ([1.0, 2.0], [True, True], ValueError, "2 members of 2"),
    ],
)
def test_arguments_are_validated(scores, members, error, text):
    for function in (membership.roc, membership.delong):
        with pytest.raises(error, match=text):
            function(scores, np.array(members))
