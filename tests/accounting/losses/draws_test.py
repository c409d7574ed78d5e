"""tfdp.accounting.losses.draws: losses against sums over everything a unit may be in."""

import itertools
import math

import numpy as np
import pytest
from scipy import linalg, stats

from tests.sampling.min_separation_test import probability_of
from tfdp.accounting.losses import draws
from tfdp.accounting.losses.draws import draw_losses, draw_steps, log_ratio
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    PureEpsilon,
    SampledGaussian,
    SeparatedGaussian,
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


ALL = [
    *SEPARATED,
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
