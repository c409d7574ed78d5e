"""What attacks achieve: published definitions and values, intervals that hold what they say."""

import itertools

import numpy as np
import pytest
from scipy import special, stats
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
    assert len(said) == 3 and "FPR 0.001" in said[1] and "FPR 0.01" in said[2]
    with pytest.raises(ValueError, match="attacks=0"):
        found.above_the_bound(lambda rate: rate, 0)


def gaussian_claim(rate, mu=1.0):
    """The largest TPR where outputs are N(mu, 1) with a record and N(0, 1) without."""
    return float(special.ndtr(mu + special.ndtri(rate)))


def test_attack_that_is_just_at_the_claim_is_flagged_no_more_often_than_stated():
    rng = np.random.default_rng(5)
    runs, flagged = 400, 0
    for _ in range(runs):
        scores, members = sample(rng, 400, 300)
        found = membership.attack("score", scores, members, 0.8)
        flagged += found.above_the_bound(gaussian_claim) != []
    assert flagged <= stats.binom.isf(1e-6, runs, 0.2)


def test_band_is_as_wide_as_it_has_to_be_and_hardly_wider():
    # Every threshold is just at the claim, and the others are so many that the members decide.
    rng = np.random.default_rng(6)
    runs, flagged, held = 1200, 0, 0
    inside = np.arange(10_100) < 100
    for _ in range(runs):
        found = membership.attack("score", rng.random(10_100), inside, 0.8, ())
        flagged += found.above_the_bound(lambda rate: rate) != []
        held += found.advantage_interval.lower == 0
    # Of the stated 20 %, half is for the members: at most 10 %, and not much less of it.
    assert runs * 0.03 < flagged <= stats.binom.isf(1e-6, runs, 0.1)
    assert held >= stats.binom.ppf(1e-6, runs, 0.9)


def uniform_attack(rng, shift):
    """Members are uniform above `shift`: the advantage, and no more true positives at small FPR."""
    members = np.arange(8000) < 4000
    scores = rng.random(8000)
    return membership.attack(
        "score", np.where(members, shift + (1 - shift) * scores, scores), members
    )


def test_advantage_above_the_claim_is_flagged_where_small_rates_show_nothing():
    found = uniform_attack(np.random.default_rng(7), 0.41)
    mu = 2 * special.ndtri((1 + 0.2935) / 2)

    def claim(rate):
        return gaussian_claim(rate, mu)

    assert found.advantage_interval.lower > 0.2935
    (said,) = found.above_the_bound(claim)
    assert "where at most" in said
    # So it was judged before the band was there.
    for rate, estimate in found.true_positive_rates.items():
        highest = membership.clopper_pearson(int(rate * 4000), 4000, 0.95).upper
        assert estimate.lower < claim(highest)
    # And this much is within it.
    assert uniform_attack(np.random.default_rng(7), 0.05).above_the_bound(claim) == []


def test_judging_many_attacks_together_takes_more_to_flag_each():
    rng = np.random.default_rng(8)
    found = uniform_attack(rng, 0.07)
    assert found.above_the_bound(lambda rate: rate)
    assert found.above_the_bound(lambda rate: rate, 10**6) == []


@pytest.mark.parametrize("others", [100, 1000, 2900, 7000])
def test_a_rate_that_is_a_whole_number_of_others_counts_all_of_them(others):
    # 0.29 * 100 is 28.999999999999996 in binary, and 29 others may be above the threshold.
    asked = []
    scores, members = sample(np.random.default_rng(9), 50, others)
    found = membership.attack("score", scores, members, 0.95, (0.29,))
    found.above_the_bound(lambda rate: asked.append(rate) or 1.0)
    expected = membership.clopper_pearson(round(0.29 * others), others, 1 - 0.05 / 2).upper
    assert asked[-1] == pytest.approx(expected, abs=1e-12)


def test_interval_of_the_advantage_holds_the_truth():
    rng = np.random.default_rng(10)
    truth, runs = 2 * stats.norm.cdf(0.5) - 1, 300
    found = [membership.attack("score", *sample(rng), 0.8).advantage_interval for _ in range(runs)]
    held = sum(each.lower <= truth <= each.upper for each in found)
    assert held >= stats.binom.ppf(1e-6, runs, 0.8)
    assert all(each.lower < each.value < each.upper for each in found)


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
