"""tfdp.audit: bounds that hold, that come near, and that others have published."""

import math

import numpy as np
import pytest
from scipy import special, stats

from tfdp.accounting import PLDAccountant, PRVAccountant, RDPAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import epsilon_lower_bound, mu_lower_bound
from tfdp.audit.scores import _proven_at
from tfdp.events import GaussianSumEvent, LaplaceSumEvent, PoissonSampling, SampledEvent

CONFIDENCE = 1 - 1e-7


def normals(mu, count=20_000, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, size=count), rng.normal(0.0, size=count)


def twin(scores_in, scores_out, threshold, failure):
    """Bounds of both rates, by bisection of binomial tails."""

    def bisect(too_small):
        low, high = 0.0, 1.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if too_small(middle) else (low, middle)
        return low

    above_in, above_out = (sum(s > threshold for s in part) for part in (scores_in, scores_out))
    n_in, n_out = len(scores_in), len(scores_out)
    # The smallest rate under which so many are not too unlikely; the largest under which so few.
    lower = bisect(lambda p: stats.binom.sf(above_in - 1, n_in, p) < failure / 2)
    upper = bisect(lambda p: stats.binom.cdf(above_out, n_out, p) > failure / 2)
    return lower, upper


@pytest.mark.parametrize("threshold", [-9.0, -0.5, 0.3, 1.0, 2.5, 9.0])
def test_rates_are_those_of_clopper_and_pearson(threshold):
    scores = normals(1.0, 60)
    found = []

    def note(rate_in, rate_out):
        found.append((rate_in[0], rate_out[0]))
        return rate_in

    _proven_at(np.array([threshold]), scores, 0.05, note)
    assert found[0] == pytest.approx(twin(*scores, threshold, 0.05), abs=1e-9)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_bounds_of_gaussians_are_below_the_truth_and_near(mu):
    scores = normals(mu)
    proven = mu_lower_bound(*scores, CONFIDENCE)
    assert mu - 0.4 < proven < mu
    for delta in (0.0, 1e-5, 0.1):
        exact = gaussian_epsilon(mu, max(delta, 1e-300))
        assert epsilon_lower_bound(*scores, delta, CONFIDENCE) < exact
    # Of 10^4 scores no more than about 6 can be shown.
    assert epsilon_lower_bound(*scores, 0.1, CONFIDENCE) > min(5.0, 0.5 * exact - 0.1)


@pytest.mark.parametrize("bound", [epsilon_lower_bound, mu_lower_bound])
def test_roles_and_directions_do_not_matter(bound):
    arguments = (0.01,) if bound is epsilon_lower_bound else ()
    scores_in, scores_out = normals(2.0)
    expected = bound(scores_in, scores_out, *arguments, CONFIDENCE)
    for pair in ((-scores_in, -scores_out), (scores_out, scores_in), (scores_in**3, scores_out**3)):
        assert bound(*pair, *arguments, CONFIDENCE) == pytest.approx(expected, rel=0.1)
    in_order = bound(np.sort(scores_in), np.sort(scores_out), *arguments, CONFIDENCE)
    assert in_order == pytest.approx(expected, rel=0.1)


def test_one_side_is_enough():
    # Half of the trials betray the canary with certainty, the others say nothing: with 10^4 trials
    # P[S | out] is below 0.0034 at this confidence, and P[S | in] above 0.46.
    scores_in, scores_out = np.arange(20_000) % 2, np.zeros(20_000)
    found = epsilon_lower_bound(scores_in, scores_out, 0.0, CONFIDENCE)
    assert math.log(0.46 / 0.0034) < found < math.log(0.5 / 0.0016)
    infinite = np.where(scores_in == 1, np.inf, -np.inf)
    assert epsilon_lower_bound(infinite, scores_out - np.inf, 0.0, CONFIDENCE) == found


def test_false_alarms_are_as_rare_as_promised():
    # At 80 % a bound is wrong once in five times at most; of 400 bounds, 130 are with probability
    # 2e-8.
    rng = np.random.default_rng(1)
    wrong_epsilon = wrong_mu = 0
    exact = gaussian_epsilon(1.0, 0.2)
    for _ in range(400):
        scores = rng.normal(1.0, size=100), rng.normal(0.0, size=100)
        wrong_epsilon += epsilon_lower_bound(*scores, 0.2, 0.8) > exact
        wrong_mu += mu_lower_bound(*scores, 0.8) > 1.0
    assert stats.binom.sf(129, 400, 0.2) < 3e-8
    assert wrong_epsilon < 130 and wrong_mu < 130
    # Medians of the rates, at a threshold that is chosen by the scores that it is measured by, are
    # no such bound.
    wrong = 0
    for _ in range(400):
        scores = rng.normal(1.0, size=50), rng.normal(0.0, size=50)
        thresholds = np.unique(np.concatenate(scores))
        found = _proven_at(
            thresholds, scores, 1.0, lambda a, b: special.ndtri(a) - special.ndtri(b)
        )
        wrong += found.max() > 1.0
    assert wrong > 300


def test_nothing_is_shown_of_equal_scores():
    for scores in (np.zeros(1000), normals(0.0, 1000)[0]):
        assert epsilon_lower_bound(scores, scores, 0.0, CONFIDENCE) == 0.0
        assert mu_lower_bound(scores, scores, CONFIDENCE) == 0.0


STEPS = {
    "gaussian": (GaussianSumEvent(1.0, 1.0), 2),
    "laplace": (LaplaceSumEvent(1.0, 1.0), 2),
    "sampled": (SampledEvent(PoissonSampling(0.5), GaussianSumEvent(1.0, 0.5)), 2),
    "rarely_sampled": (SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 0.5)), 10),
}


def simulated_losses(name, count=50_000):
    """Returns the log likelihood ratios of simulated runs with the canary, and of those without."""
    rng = np.random.default_rng(0)
    steps = STEPS[name][1]
    q = {"sampled": 0.5, "rarely_sampled": 0.1}.get(name, 1.0)
    stddev = 0.5 if q < 1 else 1.0
    draw = rng.laplace if name == "laplace" else rng.normal
    losses = []
    for probability in (q, 0.0):
        x = (rng.random((count, steps)) < probability) + draw(0.0, stddev, (count, steps))
        if name == "laplace":
            loss = np.abs(x) - np.abs(x - 1)
        else:
            loss = np.log(1 - q + q * np.exp((x - 0.5) / stddev**2))
        losses.append(loss.sum(axis=1))
    return losses


@pytest.mark.parametrize("name", STEPS)
def test_audit_is_below_what_accountants_say_in_order(name):
    event, count = STEPS[name]
    for delta in (0.1, 0.01):
        proven = epsilon_lower_bound(*simulated_losses(name), delta, CONFIDENCE)
        interval = PRVAccountant().compose(event, count).get_epsilon_interval(delta)
        pld, rdp = (
            make().compose(event, count).get_epsilon(delta)
            for make in (PLDAccountant, RDPAccountant)
        )
        assert proven < interval.lower <= pld <= rdp * (1 + 1e-6)
        assert interval.lower <= interval.upper <= rdp * (1 + 1e-6)
        assert proven > interval.upper / (1.6 if delta == 0.1 else 2.2)


def test_audit_of_a_wrong_claim_is_above_it():
    scores = simulated_losses("sampled")
    fewer, quieter = (
        PRVAccountant().compose(SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z)), n)
        for q, z, n in ((0.25, 0.5, 2), (0.5, 0.75, 2))
    )
    proven = epsilon_lower_bound(*scores, 0.1, CONFIDENCE)
    assert proven > fewer.get_epsilon(0.1)
    assert proven > quieter.get_epsilon(0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1.0], [1.0, 2.0], 0.1), ValueError, "scores_in.*at least two"),
        (([1.0, 2.0], [[1.0, 2.0]], 0.1), ValueError, r"scores_out.*shape=\(1, 2\)"),
        (([1.0, 2.0], [1.0, math.nan], 0.1), ValueError, "scores_out holds NaN"),
        (([1.0, 2.0], [1.0, 2.0], 1.0), ValueError, "delta must be less than 1"),
        (([1.0, 2.0], [1.0, 2.0], -0.1), ValueError, "delta"),
        (([1.0, 2.0], [1.0, 2.0], "0.1"), TypeError, "delta"),
        (([1.0, 2.0], [1.0, 2.0], 0.1, 1.0), ValueError, "confidence must be less than 1"),
        (([1.0, 2.0], [1.0, 2.0], 0.1, 0.0), ValueError, "confidence"),
    ],
)
def test_scores_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        epsilon_lower_bound(*arguments)


def test_scores_that_are_far_apart_always_prove_the_most():
    """The threshold is amid the gap, not at the largest of the scores that chose it."""
    found = {
        epsilon_lower_bound(rng.normal(25.0, size=200), rng.normal(size=200), 0.05, CONFIDENCE)
        for rng in map(np.random.default_rng, range(300))
    }
    assert len(found) == 1
    ends = np.repeat([np.inf, -np.inf], 100), np.repeat([-np.inf, np.inf], 100)
    assert epsilon_lower_bound(*ends, 0.05, CONFIDENCE) == 0.0
    assert {epsilon_lower_bound([np.inf] * 200, [-np.inf] * 200, 0.05, CONFIDENCE)} == found
    assert {epsilon_lower_bound([1e308] * 200, [-1e308] * 200, 0.05, CONFIDENCE)} == found
    least = np.full(200, 5e-324)
    assert {epsilon_lower_bound(least, 0 * least, 0.05, CONFIDENCE)} == found
