"""LiRA and RMIA against explicit loops, published values, and what they are good for."""

import numpy as np
import pytest
from scipy import stats

from tfdp.audit import attack, lira, rmia
from tfdp.audit.reference_attacks import _normal_fit


def world(rng, models=16, records=200, spread=2.0, shift=1.0):
    """Returns (target, members, statistics, memberships): records differ more than membership."""
    hardness = rng.normal(size=records) * spread
    halves = np.argsort(rng.random((models, records)), axis=0) < models // 2
    memberships = np.concatenate([rng.integers(0, 2, (1, records)) == 1, halves])
    statistics = hardness + shift * memberships + rng.normal(size=memberships.shape)
    return statistics[0], memberships[0], statistics[1:], memberships[1:]


def explicit_lira(target, statistics, memberships, online, fixed_variance):
    records = range(len(target))
    shadows = list(zip(statistics, memberships, strict=True))
    inside = [[row[j] for row, member in shadows if member[j]] for j in records]
    outside = [[row[j] for row, member in shadows if not member[j]] for j in records]

    def spread(groups, j):
        if not fixed_variance:
            return np.std(groups[j])
        deviations = np.concatenate([group - np.mean(group) for group in map(np.array, groups)])
        return np.sqrt(np.mean(deviations**2))

    scores = []
    for j in records:
        out = stats.norm(np.mean(outside[j]), spread(outside, j))
        if online:
            into = stats.norm(np.mean(inside[j]), spread(inside, j))
            scores.append(into.logpdf(target[j]) - out.logpdf(target[j]))
        else:
            scores.append(stats.norm.ppf(out.cdf(target[j])))
    return scores


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("fixed_variance", [True, False])
def test_lira_is_an_explicit_loop(online, fixed_variance):
    target, _, *shadows = world(np.random.default_rng(0), records=30)
    found = lira(target, *shadows, online, fixed_variance)
    expected = explicit_lira(target, *shadows, online, fixed_variance)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_values_of_tests_of_tensorflow_privacy():
    # advanced_mia_test.py, with one augmentation and means: negative log densities.
    target = np.array([1.0, 0.0, 0.0])
    statistics = np.array([[-1.0, 0.0, 0.0], [1.0, 2.0, 20.0]])
    everyone = np.ones((2, 3), bool)
    for fixed, expected in (
        (False, [1.41893853, 1.41893853, 3.72152363]),
        (True, [2.69682468, 2.69682468, 4.15270703]),
    ):
        mean, stddev = _normal_fit(statistics, everyone, fixed, "with it")
        found = -stats.norm.logpdf(target, mean, stddev)
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_comparison_finds_what_a_threshold_does_not():
    rng = np.random.default_rng(1)
    target, members, *shadows = world(rng, records=6000, spread=5.0, shift=2.0)
    plain = attack("threshold", target, members).auc
    assert plain.upper < 0.65
    # N(2, 1) against N(0, 1) has an AUC of 0.921; 8 models of each kind estimate the means.
    for online, least in ((True, 0.89), (False, 0.87)):
        found = attack("LiRA", lira(target, *shadows, online, fixed_variance=True), members).auc
        assert found.lower > least - 0.02
    perm = rng.permutation(members)
    nothing = attack("LiRA", lira(target, *shadows, fixed_variance=True), perm).auc
    assert abs(nothing.value - 0.5) < 0.06  # Its standard deviation is 0.011.


def explicit_rmia(target, reference, memberships, z_target, z_reference, gamma, online, a):
    scores = []
    for j, p in enumerate(target):
        into = [row[j] for row, m in zip(reference, memberships, strict=True) if m[j]]
        out = [row[j] for row, m in zip(reference, memberships, strict=True) if not m[j]]
        if online:
            known = (np.mean(into) + np.mean(out)) / 2
        else:
            known = ((1 + a) * np.mean(out) + (1 - a)) / 2
        wins = 0
        for k, q in enumerate(z_target):
            z_known = np.mean(z_reference[:, k])
            if not online:
                z_known = ((1 + a) * z_known + (1 - a)) / 2
            wins += (p / known) / (q / z_known) >= gamma
        scores.append(wins / len(z_target))
    return scores


@pytest.mark.parametrize("online", [True, False])
def test_rmia_is_an_explicit_loop(online):
    rng = np.random.default_rng(2)
    memberships = np.argsort(rng.random((4, 25)), axis=0) < 2
    arrays = (rng.random(25), rng.random((4, 25)), memberships, rng.random(40), rng.random((4, 40)))
    arrays = tuple(a if a.dtype == bool else 0.01 + 0.99 * a for a in arrays)
    for gamma in (1.0, 2.0):
        found = rmia(*arrays, gamma, online, 0.4)
        np.testing.assert_allclose(found, explicit_rmia(*arrays, gamma, online, 0.4), atol=1e-12)
    assert 0 < np.mean(found) < 1


def test_rmia_finds_members_with_two_models():
    rng = np.random.default_rng(3)
    target, members, statistics, memberships = world(rng, 2, 2000, spread=3.0, shift=2.0)
    population = rng.normal(size=1000) * 3.0
    z = [1 / (1 + np.exp(-(population + rng.normal(size=1000)))) for _ in range(3)]

    def confidence(t):
        return np.clip(1 / (1 + np.exp(-t)), 1e-12, 1 - 1e-12)

    scores = rmia(
        confidence(target),
        confidence(statistics),
        memberships,
        z[0],
        np.stack(z[1:]),
    )
    found = attack("RMIA", scores, members).auc
    assert found.lower > attack("threshold", target, members).auc.upper


def test_records_without_models_are_refused():
    members = np.array([[True, True], [True, False]])
    values = np.array([[1.0, 2.0], [1.5, 2.5]])
    with pytest.raises(ValueError, match="1 of the models without it. 1 of 2"):
        lira([1.0, 1.0], values, members, fixed_variance=True)
    with pytest.raises(ValueError, match="2 of the models without it. 2 of 2"):
        lira([1.0, 1.0], values, members)
    halves = np.array([[True, False], [False, True]] * 2)
    with pytest.raises(ValueError, match="the same in every model"):
        lira([1.0, 1.0], np.ones((4, 2)), halves)
    with pytest.raises(ValueError, match="infinite or NaN"):
        lira([1.0, np.inf], np.ones((4, 2)), halves)
    with pytest.raises(ValueError, match=r"\[models, records\]"):
        lira([1.0], np.ones((4, 2)), halves)
    with pytest.raises(TypeError, match="boolean"):
        lira([1.0, 1.0], np.ones((4, 2)), halves.astype(int))
    with pytest.raises(ValueError, match="above 0"):
        rmia([0.0, 0.5], np.ones((4, 2)), halves, [0.5], np.ones((4, 1)))
    with pytest.raises(ValueError, match="same models"):
        rmia([0.1, 0.5], np.ones((4, 2)), halves, [0.5], np.ones((3, 1)))


@pytest.mark.parametrize("online", [True, False])
def test_an_empty_population_is_refused(online):
    halves = np.array([[True, False], [False, True]] * 2)
    with pytest.raises(ValueError, match=r"population_target of the shape \(0,\)"):
        rmia([0.1, 0.5], np.ones((4, 2)), halves, [], np.ones((4, 0)), online=online)
