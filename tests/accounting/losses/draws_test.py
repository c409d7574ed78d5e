"""tfdp.accounting.losses.draws: losses against sums over everything a unit may be in."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import linalg, stats

from tests.factorizations.trees import tree_matrices
from tests.sampling.min_separation_test import probability_of
from tfdp.accounting.losses import draws
from tfdp.accounting.losses.draws import (
    draw_losses,
    draw_steps,
    log_ratio,
    log_ratio_of_bins,
    products,
)
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BinnedGaussian,
    PureEpsilon,
    SampledGaussian,
    SeparatedGaussian,
)
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
    optimal_buffered,
)

SEPARATED = [
    SeparatedGaussian(0.3, 2, 4, ((0.5, 0.3),)),
    SeparatedGaussian(0.7, 3, 5, ((0.9, 0.4), (0.2, 0.1, 0.6))),
    SeparatedGaussian(1.0, 2, 5, ((0.8, 0.5),)),
    SeparatedGaussian(0.4, 1, 4, ((1.1,),)),
    SeparatedGaussian(0.2, 6, 3, ((1.0, 0.5, 0.4, 0.3),)),
]


def _generator():
    return np.random.Generator(np.random.SFC64(7))


def _matrices(mechanism):
    n = mechanism.num_steps
    return [linalg.toeplitz([*column, *[0] * n][:n], np.zeros(n)) for column in mechanism.columns]


def _patterns(mechanism):
    p, b = mechanism.sampling_probability, mechanism.min_separation
    for steps in itertools.product([False, True], repeat=mechanism.num_steps):
        probability = probability_of(steps, p, b)
        if probability:
            yield np.array(steps, float), probability


def _by_hand(mechanism, outputs):
    """Returns log sum_s Pr(s) exp(<C s, y> - |C s|^2 / 2), summed over all s."""
    total = 0.0
    for steps, probability in _patterns(mechanism):
        moved = [matrix @ steps for matrix in _matrices(mechanism)]
        exponent = sum(m @ y - m @ m / 2 for m, y in zip(moved, outputs, strict=True))
        total += probability * np.exp(exponent)
    return np.log(total)


def _scores(mechanism, outputs):
    return sum(
        matrix.T @ y - np.square(matrix).sum(axis=0)[:, None] / 2
        for matrix, y in zip(_matrices(mechanism), outputs, strict=True)
    )


@pytest.mark.parametrize("mechanism", SEPARATED)
def test_the_recursion_is_the_sum_over_all_steps(mechanism, monkeypatch):
    generator = _generator()
    outputs = [2 * generator.standard_normal((mechanism.num_steps, 40)) for _ in mechanism.columns]
    scores, expected = _scores(mechanism, outputs), _by_hand(mechanism, outputs)
    assert log_ratio(mechanism, scores) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(draws, "_LARGEST", 0.0)  # Whatever is computed in logarithms.
    assert log_ratio(mechanism, scores) == pytest.approx(expected, abs=1e-12)


def test_huge_ratios_are_computed_in_logarithms():
    mechanism = SeparatedGaussian(0.5, 2, 4, ((60.0,),))
    scores = np.array([[1800.0, -1800.0], [-1800.0] * 2, [1800.0, -1800.0], [-1800.0] * 2])
    found = log_ratio(mechanism, scores)
    # Free in step 0 with probability 2/3, and then in the steps 0 and 2; or in none.
    none = 2 / 3 * 0.5**4 + 1 / 3 * 0.5**3
    assert found == pytest.approx([3600 + math.log(2 / 3 * 0.25), math.log(none)])


@pytest.mark.parametrize("mechanism", SEPARATED)
def test_steps_that_are_drawn_have_their_probabilities(mechanism):
    steps = draw_steps(mechanism, 20_000, _generator())
    expected = {tuple(s.astype(bool)): p for s, p in _patterns(mechanism)}
    counts = dict.fromkeys(expected, 0)
    for column in steps.T:
        counts[tuple(column)] += 1
    observed = np.array(list(counts.values()))
    assert stats.chisquare(observed, 20_000 * np.array(list(expected.values()))).pvalue > 1e-9


BINNED = [
    BinnedGaussian(4, 10, ((one_step_back(0.6), 1.5),)),
    BinnedGaussian(3, 7, ((banded_square_root(5), 2.0), (independent(), 1.2))),
    BinnedGaussian(5, 12, ((banded_inverse_square_root(3), 2.0),)),
    BinnedGaussian(5, 3, ((ToeplitzFactorization((1.0, -0.5)), 0.8),)),
    BinnedGaussian(4, 11, ((BinaryTree(), 3.0),)),
    BinnedGaussian(6, 18, ((optimal_buffered(18, 2, 6), 2.5),)),
]


def _means(mechanism):
    """Returns C s_j of every bin, divided by the noise, [rows, num_bins], from dense matrices."""
    n, b, parts = mechanism.num_steps, mechanism.num_bins, []
    for factorization, z in mechanism.releases:
        if isinstance(factorization, BinaryTree):
            dense, c = tree_matrices(n, factorization.efficient)
            c = c[np.abs(dense).max(axis=0) > 0]
        else:
            c = np.abs(linalg.toeplitz(factorization.column(n), np.zeros(n)))
        parts.append(np.stack([c[:, j::b].sum(axis=1) for j in range(b)], axis=1) / z)
    return np.concatenate(parts)


def _losses_of_means(means, size, removed, generator):
    """The slow, obvious twin: all rows are drawn, and densities divided by each other."""
    y = generator.standard_normal((len(means), size))
    if removed:
        y += means[:, generator.integers(means.shape[1], size=size)]
    densities = [-np.square(y - mean[:, None]).sum(axis=0) / 2 for mean in means.T]
    ratio = np.logaddexp.reduce(densities) - math.log(len(densities))
    ratio += np.square(y).sum(axis=0) / 2
    return ratio if removed else -ratio


@pytest.mark.parametrize("mechanism", BINNED)
def test_the_ratio_of_bins_is_that_of_their_densities(mechanism):
    means = _means(mechanism)
    covariances, triangle = products(mechanism)
    np.testing.assert_allclose(covariances, means.T @ means, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(triangle @ triangle.T, covariances, rtol=1e-11, atol=1e-11)
    assert np.all(covariances.diagonal() > np.square(means).sum(axis=0))
    y = 2 * _generator().standard_normal((len(means), 40))
    densities = np.array(
        [stats.norm.logpdf(y, mean[:, None]).sum(axis=0) for mean in [*means.T, 0 * means[:, 0]]]
    )
    expected = np.log(np.exp(densities[:-1]).mean(axis=0)) - densities[-1]
    scores = means.T @ y - covariances.diagonal()[:, None] / 2
    assert log_ratio_of_bins(scores) == pytest.approx(expected, abs=1e-9)


def test_bins_that_hardly_differ_are_charged_a_little_more(monkeypatch):
    # The last bins of a column that grows: their products are singular to all digits.
    mechanism = BinnedGaussian(60, 60, ((ToeplitzFactorization((1.0, 2.0)), 1.0),))
    tried, factor = [], np.linalg.cholesky

    def cholesky(matrix):
        tried.append(matrix.copy())
        if len(tried) < 3:
            raise np.linalg.LinAlgError
        return factor(matrix)

    monkeypatch.setattr(np.linalg, "cholesky", cholesky)
    covariances, _ = products.__wrapped__(mechanism)
    assert np.array_equal(covariances, tried[2]) and len(tried) == 3
    assert np.all(tried[1].diagonal() > tried[0].diagonal())
    np.testing.assert_allclose(tried[2], tried[0], rtol=1e-9)
    monkeypatch.undo()
    assert np.all(np.isfinite(draw_losses(mechanism, 1, 100, True, _generator())))


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("mechanism", BINNED)
def test_losses_of_bins_are_those_of_all_rows(mechanism, removed):
    size, generator = 40_000, _generator()
    drawn = draw_losses(mechanism, 1, size, removed, generator)

    def p_value(means):
        slow = _losses_of_means(means, size, removed, generator)
        return stats.ks_2samp(drawn, slow).pvalue

    means = _means(mechanism)
    assert p_value(means) > 1e-6
    # The test tells them from losses of one bin more, and of 10 % more noise.
    assert p_value(means / 1.1) < 1e-6
    more = dataclasses.replace(mechanism, num_bins=mechanism.num_bins + 1)
    if mechanism.num_steps > mechanism.num_bins:
        assert p_value(_means(more)) < 1e-6


# By jax_privacy 2.0.0, experimental.monte_carlo.sample_generation, from 10^5 draws: (factorization,
# n, b, z, whether the unit is removed) and delta at epsilon 0.5 and 1, with standard errors.
OF_JAX_PRIVACY = [
    (banded_square_root(3), 40, 10, 2.0, True, (0.108117, 0.00062), (0.033416, 0.000355)),
    (banded_square_root(3), 40, 10, 2.0, False, (0.101032, 0.000575), (0.025419, 0.00029)),
    (one_step_back(0.6), 40, 10, 3.0, True, (0.061446, 0.000433), (0.009817, 0.000166)),
    (one_step_back(0.6), 40, 10, 3.0, False, (0.060112, 0.000425), (0.009034, 0.000159)),
    (independent(), 30, 10, 2.0, True, (0.012868, 0.000174), (0.000542, 3.4e-05)),
    (independent(), 30, 10, 2.0, False, (0.008821, 0.000129), (6.6e-05, 9e-06)),
    (one_step_back(0.6), 25, 7, 2.0, True, (0.190843, 0.000842), (0.088296, 0.000608)),
    (one_step_back(0.6), 25, 7, 2.0, False, (0.188584, 0.000829), (0.084537, 0.000584)),
]


@pytest.mark.parametrize(("factorization", "n", "b", "z", "removed", "half", "one"), OF_JAX_PRIVACY)
def test_deltas_of_bins_are_those_of_jax_privacy(factorization, n, b, z, removed, half, one):
    mechanism = BinnedGaussian(b, n, ((factorization, z),))
    losses = draw_losses(mechanism, 1, 200_000, removed, _generator())
    for epsilon, (delta, error) in ((0.5, half), (1.0, one)):
        values = np.maximum(0, -np.expm1(np.minimum(0, epsilon - losses)))
        own = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - delta) < 5 * math.hypot(error, own)


ALL = [
    *SEPARATED,
    *BINNED,
    SampledGaussian(0.2, 0.8),
    SampledGaussian(1.0, 1.3),
    AllocatedGaussian(5, 0.7),
    PureEpsilon(0.8),
]


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("count", [1, 3])
def test_losses_of_both_directions_are_of_one_pair(mechanism, count):
    # E_P[e^-L] = 1 for log P/Q, and E_Q[e^-L] = 1 for log Q/P; means of bounded functions of the
    # ratio are the same under P and, weighted by it, under Q.
    generator = _generator()
    removed = draw_losses(mechanism, count, 40_000, True, generator)
    added = draw_losses(mechanism, count, 40_000, False, generator)
    for values, expected in [(np.exp(-removed), 1.0), (np.exp(-added), 1.0)]:
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - expected) < 6 * error + 1e-12
    # The probability under P that the ratio is above 1, from draws of Q.
    of_p, of_q = removed > 0, np.exp(-added) * (-added > 0)
    error = math.hypot(of_p.std(), of_q.std()) / math.sqrt(40_000)
    assert abs(of_p.mean() - of_q.mean()) < 6 * error
    # Losses do not sit at zero: the test would tell noise that is twice as large.
    assert removed.mean() > 6 * removed.std() / math.sqrt(40_000)


def test_an_allocated_pass_is_separated_samples_that_come_for_sure():
    # With p = 1 a unit is in one of b steps and then in turn: for n = b in one, uniformly.
    allocated, separated = AllocatedGaussian(6, 0.6), SeparatedGaussian(1.0, 6, 6, ((1 / 0.6,),))
    for removed in (True, False):
        generator = _generator()
        one = draw_losses(allocated, 1, 20_000, removed, generator)
        other = draw_losses(separated, 1, 20_000, removed, generator)
        assert stats.ks_2samp(one, other).pvalue > 1e-6


def test_chunks_are_of_all_losses(monkeypatch):
    monkeypatch.setattr(draws, "_AT_ONCE", 7)
    found = draw_losses(SEPARATED[0], 2, 101, True, _generator())
    assert len(np.unique(found)) == 101
