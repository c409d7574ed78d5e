"""Privacy losses that are drawn: of a mechanism's pair, from either of the two.

Let P be the outputs of the data set that has the unit, and Q those of the other. The loss of
removing the unit is log P(y) / Q(y), y from P. That of adding it is log Q(y) / P(y), y from Q.

The ratio of a `SeparatedGaussian` is a sum over all steps that a unit may be in. No two of these
are in the same row, so that the ratio for given steps is a product over them, and the sum a linear
recursion. With x_t = <c_t, y> - |c_t|^2 / 2 and f(t) the ratio of what comes from step t on, for a
unit that does not wait there,

    f(t) = (1 - p) f(t + 1) + p exp(x_t) f(t + b),   f(t) = 1 for t >= n,

and the first wait is that of `tfdp.events.MinSeparationSampling` (Dong and Ganesh 2026,
arXiv:2602.09338).

The ratio of a `BinnedGaussian` depends on y by x_j = <m_j, y> alone, with m_j the mean of bin j:
it is the mean over j of exp(x_j - |m_j|^2 / 2). Under Q the x_j are normal with the covariances
G_jk = <m_j, m_k>. Under P, for the unit's bin i, their means are G_ij. So b numbers are drawn, and
not one for each row, whatever the number of steps and bands.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BinnedGaussian,
    Mechanism,
    PureEpsilon,
    SampledGaussian,
    SeparatedGaussian,
)

# Normal numbers that are drawn at once: they should stay in a processor's cache.
_AT_ONCE = 2**18
# Beyond these a ratio is computed again, in logarithms.
_SMALLEST, _LARGEST = 1e-280, 1e280


def _gaussian(
    mechanism: SampledGaussian, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    q, z = mechanism.sampling_probability, mechanism.noise_multiplier
    y = generator.standard_normal(size) * z
    if removed:
        y += generator.random(size) < q
    exponent = (2 * y - 1) / (2 * z * z)
    if q == 1:
        return exponent if removed else -exponent
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + exponent)
    return ratio if removed else -ratio


def _allocated(
    mechanism: AllocatedGaussian, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    t, z = mechanism.num_steps, mechanism.noise_multiplier
    y = generator.standard_normal((t, size)) * z
    if removed:
        y[0] += 1  # All steps are alike.
    exponent = (2 * y - 1) / (2 * z * z)
    largest = exponent.max(axis=0)
    ratio = largest + np.log(np.exp(exponent - largest).mean(axis=0))
    return ratio if removed else -ratio


def _pure(
    mechanism: PureEpsilon, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    # Either way it is the loss epsilon with this probability.
    likelier = 1 / (1 + math.exp(-mechanism.epsilon))
    return mechanism.epsilon * np.where(generator.random(size) < likelier, 1.0, -1.0)


def draw_steps(
    mechanism: SeparatedGaussian, size: int, generator: np.random.Generator
) -> np.ndarray:
    """Returns in which steps a unit is, bool [num_steps, size], as the policy draws them."""
    p, b, n = mechanism.sampling_probability, mechanism.min_separation, mechanism.num_steps
    found = np.zeros((n, size), bool)
    waits = generator.random(size) < (b - 1) * p / (1 + (b - 1) * p)
    step = np.where(waits, generator.integers(1, max(2, b), size), 0)
    units = np.arange(size)
    while len(units):
        # Of small p more than an integer holds.
        step = step + np.minimum(generator.geometric(p, len(units)), n + 1) - 1
        inside = step < n
        step, units = step[inside], units[inside]
        found[step, units] = True
        step = step + min(b, n)
    return found


def _scores(
    mechanism: SeparatedGaussian, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    """Returns x_t of outputs that are drawn, [num_steps, size]."""
    n = mechanism.num_steps
    steps = draw_steps(mechanism, size, generator) if removed else None
    scores = np.zeros((n, size))
    for column in mechanism.columns:
        column = column[:n]
        y = generator.standard_normal((n, size))
        for row, entry in enumerate(column):
            if steps is not None and entry:
                y[row:] += entry * steps[: n - row]
        for row, entry in enumerate(column):
            scores[: n - row] += entry * y[row:]
        squares = np.cumsum(np.square(column))
        left = np.minimum(n - np.arange(n), len(column))
        scores -= squares[left - 1, np.newaxis] / 2
    return scores


def log_ratio(mechanism: SeparatedGaussian, scores: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the ratio, [size], of x_t, [num_steps, size]."""
    p, b = mechanism.sampling_probability, mechanism.min_separation
    n, size = scores.shape
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        weights = p * np.exp(scores)
        found = np.ones((n + 1, size))
        for t in range(n - 1, -1, -1):
            np.multiply(weights[t], found[min(t + b, n)], out=found[t])
            found[t] += (1 - p) * found[t + 1]
        waiting = found[1:b].sum(axis=0) + max(0, b - 1 - n)
        ratio = (found[0] + p * waiting) / (1 + (b - 1) * p)
        within = (found.min(axis=0) > _SMALLEST) & (found.max(axis=0) < _LARGEST)
        within &= weights.max(axis=0) < _LARGEST
    result = np.empty(size)
    result[within] = np.log(ratio[within])
    if not within.all():
        result[~within] = _log_ratio_of_large(mechanism, scores[:, ~within])
    return result


def _log_ratio_of_large(mechanism: SeparatedGaussian, scores: np.ndarray) -> np.ndarray:
    p, b = mechanism.sampling_probability, mechanism.min_separation
    n, size = scores.shape
    log_p, log_other = math.log(p), math.log1p(-p) if p < 1 else -math.inf
    found = np.zeros((n + 1, size))
    for t in range(n - 1, -1, -1):
        found[t] = np.logaddexp(log_other + found[t + 1], log_p + scores[t] + found[min(t + b, n)])
    total = found[0]
    for wait in range(1, min(b, n + 1)):
        total = np.logaddexp(total, log_p + found[wait])
    if b - 1 > n:
        total = np.logaddexp(total, log_p + math.log(b - 1 - n))
    return total - math.log1p((b - 1) * p)


def _separated(
    mechanism: SeparatedGaussian, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    ratio = log_ratio(mechanism, _scores(mechanism, size, removed, generator))
    return ratio if removed else -ratio


@functools.lru_cache(maxsize=4)
def products(mechanism: BinnedGaussian) -> tuple[np.ndarray, np.ndarray]:
    """Returns G, [num_bins, num_bins], and the lower triangle L with L L^T = G.

    G is made larger on its diagonal by more than rounding takes off either of them. Larger
    covariances cost more.
    """
    b, n = mechanism.num_bins, mechanism.num_steps
    found = sum(c.products_of_turns(n, b) / (z * z) for c, z in mechanism.releases)
    slack = 2.0**-50 * (b + n)
    found = np.asarray(found) * (1 + slack)
    largest = found.diagonal().max()
    while True:
        found[np.diag_indices(b)] += slack * largest
        try:
            return found, np.linalg.cholesky(found)
        except np.linalg.LinAlgError:  # Columns that hardly differ: it takes a little more.
            slack *= 16


def log_ratio_of_bins(scores: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the ratio, [size], of x_j - |m_j|^2 / 2, [num_bins, size]."""
    largest = scores.max(axis=0)
    return largest + np.log(np.exp(scores - largest).mean(axis=0))


def _binned(
    mechanism: BinnedGaussian, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    covariances, triangle = products(mechanism)
    scores = triangle @ generator.standard_normal((mechanism.num_bins, size))
    if removed:
        scores += covariances[:, generator.integers(mechanism.num_bins, size=size)]
    ratio = log_ratio_of_bins(scores - covariances.diagonal()[:, np.newaxis] / 2)
    return ratio if removed else -ratio


# Mechanism type -> a function of the mechanism, of how many losses, of whether the unit is removed
# and of a generator, that returns losses of one such mechanism, [size].
DRAWS: Mapping[type[Mechanism], Callable[..., np.ndarray]] = {
    AllocatedGaussian: _allocated,
    BinnedGaussian: _binned,
    PureEpsilon: _pure,
    SampledGaussian: _gaussian,
    SeparatedGaussian: _separated,
}


def numbers_of(mechanism: Any) -> int:
    """Returns how many normal numbers a loss of a mechanism takes."""
    if isinstance(mechanism, BinnedGaussian):
        return mechanism.num_bins
    return int(getattr(mechanism, "num_steps", 1))


def draw_losses(
    mechanism: Any, count: int, size: int, removed: bool, generator: np.random.Generator
) -> np.ndarray:
    """Returns losses of `count` such mechanisms in a row, which add up, [size].

    Args:
        mechanism: Of a type in `DRAWS`.
        count: How many of it.
        size: How many losses.
        removed: Whether the unit is removed, or added.
        generator: Where randomness comes from.
    """
    rows = numbers_of(mechanism)
    step = max(1, min(size, _AT_ONCE // rows))
    total = np.zeros(size)
    for start in range(0, size, step):
        end = min(size, start + step)
        for _ in range(count):
            total[start:end] += DRAWS[type(mechanism)](mechanism, end - start, removed, generator)
    return total
