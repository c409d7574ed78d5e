"""What attacks achieve: published definitions and values, intervals that hold what they say."""

import itertools
import re

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


@pytest.mark.parametrize("score", [np.inf, -np.inf])
def test_equal_scores_that_are_infinite_are_one_threshold(score):
    # The members come first, so that an order of equals would tell them apart.
    members = np.arange(8) < 4
    found = membership.roc(np.full(8, score), members)
    assert (found.auc, found.advantage, found.true_positive_rate(0.5)) == (0.5, 0.0, 0.0)
    half = membership.roc(np.array([score, score, 0, 0] * 2), members)
    assert (half.auc, half.advantage) == (0.5, 0.0)


def test_area_is_how_often_a_member_is_above_another_record():
    rng = np.random.default_rng(1)
    scores, members = np.round(rng.normal(size=60), 1), rng.integers(0, 2, 60) == 1
    pairs = itertools.product(scores[members], scores[~members])
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
    assert membership.roc(scores, members).auc == pytest.approx(np.mean(wins), abs=1e-12)


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


def normal(shift):
    return lambda rng, number: rng.normal(shift, 1, number)


def rate_of_normals(shift):
    return lambda rate: special.ndtr(shift + special.ndtri(rate))


def coins(probability):
    return lambda rng, number: (rng.random(number) < probability).astype(float)


def counts(mean):
    return lambda rng, number: rng.poisson(mean, number).astype(float)


def rate_of_counts(rate):
    """The largest TPR of a threshold among Poisson numbers of mean 3, against those of mean 1."""
    least = np.arange(60)
    fits = stats.poisson.sf(least - 1, 1.0) <= rate
    return stats.poisson.sf(least - 1, 3.0)[fits].max(initial=0.0)


NEARLY_SURE = np.sqrt(2) * special.ndtri(0.99)
AREA_OF_COUNTS = sum(
    stats.poisson.pmf(k, 3.0) * (stats.poisson.cdf(k, 1.0) - stats.poisson.pmf(k, 1.0) / 2)
    for k in range(60)
)
# Scores of members and of others, how many, the true area, the true TPR at an FPR.
POPULATIONS = {
    "normal": (normal(1), normal(0), 150, 100, TRUE_AUC, rate_of_normals(1)),
    "few others": (normal(2), normal(0), 1000, 100, special.ndtr(2**0.5), rate_of_normals(2)),
    "few members": (normal(NEARLY_SURE), normal(0), 10, 1000, 0.99, rate_of_normals(NEARLY_SURE)),
    "two members": (normal(1), normal(0), 2, 300, TRUE_AUC, rate_of_normals(1)),
    "ties": (counts(3.0), counts(1.0), 60, 80, AREA_OF_COUNTS, rate_of_counts),
    "rare": (coins(0.01), coins(0.0), 20, 20, 0.505, lambda rate: 0.01 if rate < 1 else 1.0),
    "saturated": (
        *(coins(0.999), coins(0.99), 100, 100, 0.5045),
        lambda rate: 0.0 if rate < 0.99 else 0.999 if rate < 1 else 1.0,
    ),
    "constant": (coins(0.0), coins(0.0), 3, 4, 0.5, lambda rate: 0.0 if rate < 1 else 1.0),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_intervals_hold_the_truth_as_often_as_they_say(name):
    of_members, of_others, members, others, area, true_rate = POPULATIONS[name]
    rng, runs, rates = np.random.default_rng(2), 300, (0.0, 0.001, 0.01, 0.1, 0.5, 0.995, 1.0)
    inside, held = np.arange(members + others) < members, dict.fromkeys(("area", *rates), 0)
    for _ in range(runs):
        scores = np.concatenate([of_members(rng, members), of_others(rng, others)])
        found = membership.attack("score", scores, inside, 0.9, rates)
        held["area"] += found.auc.lower <= area <= found.auc.upper
        for rate, estimate in found.true_positive_rates.items():
            assert estimate.lower <= estimate.value <= estimate.upper
            held[rate] += estimate.lower <= true_rate(rate) <= estimate.upper
    # 90 % of 300, and no less than a probability of 1e-9 allows; 78 % would be 234.
    least = stats.binom.ppf(1e-9, runs, 0.9)
    assert least > 234 and min(held.values()) >= least, held


def test_interval_of_a_rate_is_that_of_its_binomial_numbers():
    # Of 2000 others 11 to 31 are above the threshold of FPR 0.01, but for twice 1 of 80 times.
    fewest, most = 11, 31
    assert stats.binom.cdf(fewest - 1, 2000, 0.01) < 0.05 / 4 < stats.binom.cdf(fewest, 2000, 0.01)
    assert stats.binom.sf(most, 2000, 0.01) < 0.05 / 4 < stats.binom.sf(most - 1, 2000, 0.01)
    curve = membership.roc(*sample(np.random.default_rng(11), 500, 2000, 2.0))
    found = membership.rate_interval(curve, 0.01)

    def bounds(called):
        right = round(curve.true_positive_rate(called / 2000) * 500)
        return membership.clopper_pearson(right, 500, 1 - 0.05 / 2)

    assert found.value == curve.true_positive_rate(0.01)
    assert found.lower == bounds(fewest - 1).lower and found.upper == bounds(most).upper
    assert 0 < found.lower < found.value < found.upper < 1
    # With so few others nothing is known from below, and it may be anything from above.
    assert membership.rate_interval(curve, 1e-9).lower == 0.0


def test_interval_of_the_area_is_that_of_coins():
    members = np.array([True, True, True, False, False])
    perfect = membership.auc_interval(membership.roc([3, 4, 5, 1, 2], members))
    # Of two pairs both are right with probability p^2.
    assert (perfect.value, perfect.upper) == (1.0, 1.0)
    assert perfect.lower == pytest.approx(0.025**0.5, rel=1e-9)
    never = membership.auc_interval(membership.roc([1, 1, 1, 2, 2], members))
    assert (never.value, never.lower) == (0.0, 0.0)
    assert never.upper == pytest.approx(1 - 0.025**0.5, rel=1e-9)
    same = membership.auc_interval(membership.roc(np.zeros(5), members), 0.99)
    assert same.value == 0.5 and same.lower == pytest.approx(1 - same.upper)
    for end in (same.lower, same.upper):
        divergence = -(np.log(2 * end) + np.log(2 * (1 - end))) / 2
        assert 2 * divergence == pytest.approx(np.log(200), rel=1e-9)
    # Nearer to 1 it is closer.
    scores, inside = sample(np.random.default_rng(12), 1000, 1000, 0.0)
    middle, high = (
        membership.auc_interval(membership.roc(scores + shift * inside, inside))
        for shift in (0.0, 3.3)
    )
    assert 0.08 < middle.upper - middle.lower < 0.09
    assert high.value > 0.98 and high.upper - high.lower < 0.03


def test_interval_where_there_is_nothing_to_see():
    whole = membership.clopper_pearson(5, 5)
    assert (whole.value, whole.upper) == (1.0, 1.0)
    assert whole.lower == pytest.approx(0.4782, abs=1e-4)


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan, np.inf, -np.inf, "0.1", True, None])
def test_rates_are_checked(rate):
    scores, members = sample(np.random.default_rng(13), 20, 20)
    with pytest.raises((TypeError, ValueError), match="false_positive_rate must be"):
        membership.attack("score", scores, members, 0.95, (0.1, rate))
    with pytest.raises((TypeError, ValueError), match="false_positive_rate must be"):
        membership.roc(scores, members).true_positive_rate(rate)


def test_bounds_in_words_are_rounded_away_from_the_claim():
    scores, members = sample(np.random.default_rng(4), 2000, 2000, shift=3.0)
    found = membership.attack("score", scores, members, 0.95, (np.float64(0.01),))
    asked = []

    def claim(rate):
        asked.append(rate)
        return 0.1000041 if rate < 1 else 1.0

    best, at_rate = found.above_the_bound(claim)
    assert best.endswith("where at most 0.1001 is claimed")
    assert "at FPR 0.01, where at most 0.1001 is claimed" in at_rate
    error = 0.05 / 4
    right = round(found.true_positive_rates[0.01].value * 2000)
    lower = membership.clopper_pearson(right, 2000, 1 - 2 * error).lower
    (said,) = re.findall(r"at least (\S+)\)", at_rate)
    assert lower - 1e-4 < float(said) <= lower
    # Rates are 0.0005 apart.
    ((low, high),) = re.findall(r"at least (\S+)\) at FPR \S+ \(at most (\S+)\)", best)
    reach = (np.log(1 / error) / 2 / 2000) ** 0.5
    lowers = found.roc.true_positive_rates - reach
    assert np.any((lowers - 1e-4 < float(low)) & (float(low) <= lowers))
    assert any(rate <= float(high) < rate + 1e-4 for rate in asked)


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
    for function in (membership.roc, lambda *arrays: membership.attack("score", *arrays)):
        with pytest.raises(error, match=text):
            function(scores, np.array(members))
