"""The worst pair of outputs of a Gaussian in exactly one of several steps, drawn uniformly.

With t steps and noise of multiplier z the pair is (Chua et al. 2024, arXiv:2412.16802, theorem 3.2;
Feldman and Shenfeld 2025, arXiv:2502.08202, section 3, also where steps follow earlier outputs)

    P = 1/t sum_i N(e_i, z^2 I),    Q = N(0, z^2 I),
    R = dP / dQ = 1/t sum_i Y_i,    Y_i = exp((2 x_i - 1) / (2 z^2)).

Under Q the Y_i are independent, log-normal, and of mean one. So the distribution of R is that of a
sum, and P follows from it: P has the density R with respect to Q.

**Rounding.** Delta is E_Q[max(0, R - e^epsilon)] if the unit is removed, E_Q[max(0, 1 - e^epsilon
R)] if it is added. Both are means of convex functions of R. A value of Y_i, or of a sum of some of
them, is replaced by one of the two nearest points of a grid, at random and so that its mean stays.
This makes means of convex functions larger, by Jensen's inequality, so that delta and the moments
of R are upper bounds of the true ones. Values of Y_i above the grid, of which there is the
probability `lost` under P, become zero; as much is given to the loss infinity under P.

**Sums.** Distributions of sums of 1, 2, 4, ... terms are found one from another, by adding every
two points. All terms are positive, so that tails keep their relative accuracy.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from tfdp.accounting.losses.pairs import LossPair, differences, reverse
from tfdp.accounting.mechanisms import AllocatedGaussian

# Points of a grid, and the share of them that follows the distribution; others are for its tails.
_POINTS, _SHARE = 1000, 0.7
# The density of the points is a Gaussian that is wider than the distribution by this factor.
_WIDER = 2.2
# Standard deviations of log Y that the first grid goes below and above its mean under Q: so far
# that probabilities are hardly seen, and yet none underflows.
_BELOW, _ABOVE = 11.0, 33.0
# Every so many points of a grid are enough to see where a sum is, and how wide.
_EVERY = 12


class Ratio(NamedTuple):
    """A likelihood ratio R that has, at every epsilon, no smaller delta than the true one.

    Attributes:
        values: What R may be: 0, and increasing positive numbers.
        probabilities: Of them, under Q.
        lost: Probability under P of an infinite R.
        most: The largest value of a single Y that is on the grid.
    """

    values: np.ndarray
    probabilities: np.ndarray
    lost: float
    most: float


_Sum = tuple[np.ndarray, np.ndarray]


def _center(x: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    total = float(weights.sum())
    mean = float(weights @ x) / total
    return mean, max(math.sqrt(float(weights @ (x - mean) ** 2) / total), 1e-12)


def _grid(x: np.ndarray, q: np.ndarray, p: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns zero, and values between exp(low) and exp(high), dense where q or p is."""
    from scipy import special

    centers = [_center(x, q), _center(x, p)]
    steps = np.sinh(np.linspace(-10.0, 10.0, 3000))
    near = [np.clip(mean + width * steps, low, high) for mean, width in centers]
    fine = np.unique(np.concatenate([np.linspace(low, high, 2000), *near]))
    index = np.zeros_like(fine)
    for mean, width in centers:
        at = (fine - mean) / width
        for share, part in (
            (_SHARE, special.ndtr(at / _WIDER)),
            (1 - _SHARE, np.arcsinh(at / 3)),
        ):
            if part[-1] > part[0]:
                index += share * (part - part[0]) / (part[-1] - part[0])
    inner = np.exp(np.interp(np.linspace(0.0, index[-1], _POINTS), index, fine))
    return np.concatenate([[0.0], np.unique(inner)])


def _spread(values: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Returns the weights on the grid, each divided between two points so that its mean stays."""
    cell = np.searchsorted(grid, values, side="right") - 1
    np.minimum(cell, len(grid) - 2, out=cell)
    up = values - grid[cell]
    up *= (1 / np.diff(grid))[cell]
    np.clip(up, 0.0, 1.0, out=up)
    up *= weights
    total = np.bincount(cell, weights, len(grid))
    raised = np.bincount(cell, up, len(grid))
    total -= raised
    total[1:] += raised[:-1]
    return np.maximum(total, 0.0)


def _one(z: float) -> tuple[_Sum, float]:
    """Returns the distribution of one Y under Q, and the probability lost under P."""
    from scipy import special

    # log Y is N(-m, 1 / z^2) under Q, and N(m, 1 / z^2) under P.
    m = 0.5 / z / z
    low, high = -m - _BELOW / z, -m + _ABOVE / z
    fine = np.linspace(low, high, 2000)
    q, p = (np.exp(-(((fine - mean) * z) ** 2) / 2) for mean in (-m, m))
    grid = _grid(fine, q, p, low, high)
    x = np.log(grid[1:])
    masses = []
    for mean in (-m, m):
        at = (x - mean) * z
        masses.append(differences(special.ndtr(at), special.ndtr(-at)))
    # Of a cell with probability q and mass p (the sum of Y q) the part q_up goes to its upper end.
    q, p = masses
    up = np.clip((p[:-1] - grid[:-1] * q[:-1]) / np.diff(grid), 0.0, q[:-1])
    probabilities = np.append(q[:-1] - up, 0.0)
    probabilities[1:] += up
    probabilities[0] += q[-1]
    return (grid, probabilities), float(p[-1])


def _coarse(values: np.ndarray, probabilities: np.ndarray) -> _Sum:
    grid = np.unique(np.append(values[::_EVERY], values[-1]))
    return grid, _spread(values, probabilities, grid)


def _added(one: _Sum, other: _Sum) -> _Sum:
    """Returns the sum of two independent values, on a grid of its own."""
    (a, p), (b, q) = _coarse(*one), _coarse(*other)
    rough, weights = np.add.outer(a, b).ravel(), np.multiply.outer(p, q).ravel()
    rough, weights = rough[rough > 0], weights[rough > 0]
    x = np.log(rough)
    mean, width = _center(x, weights)
    most = float(one[0][-1] + other[0][-1])
    high = math.log(most)
    low = min(max(float(x.min()), mean - 14 * width), high - 1e-6)
    grid = _grid(x, weights, weights * rough, low, high)
    grid[-1] = max(grid[-1], most)
    values = np.add.outer(one[0], other[0]).ravel()
    return grid, _spread(values, np.multiply.outer(one[1], other[1]).ravel(), grid)


@functools.lru_cache(maxsize=256)
def allocation_ratio(num_steps: int, noise_multiplier: float) -> Ratio:
    """Returns the likelihood ratio of P and Q for t = num_steps of noise z.

    Guarantees:
        E[max(0, R - c)] and E[max(0, 1 - c R)] under Q, with the share `lost`, are at least the
        true ones for every c. So are all moments of R (`tfdp.accounting.renyi.allocation`). Both
        hold up to the rounding of double precision (a relative 1e-12).

    Args:
        num_steps: t, from 2 to 2^20.
        noise_multiplier: z, from 0.05 to 10^4.
    """
    once, lost = _one(noise_multiplier)
    total = once
    # By the digits of t in base two, from the second on: twice as many, and perhaps one more.
    for digit in f"{num_steps:b}"[1:]:
        total = _added(total, total)
        if digit == "1":
            total = _added(total, once)
    return Ratio(total[0] / num_steps, total[1], lost, float(once[0][-1]))


def allocation_pairs(mechanism: AllocatedGaussian) -> list[LossPair]:
    """Returns the pairs for removing and for adding a unit."""
    ratio = allocation_ratio(mechanism.num_steps, mechanism.noise_multiplier)
    losses = np.log(ratio.values[1:])
    none, without = float(ratio.probabilities[0]), ratio.probabilities[1:]
    with_unit = without * ratio.values[1:]

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        where = np.searchsorted(edges, losses, side="left")
        p = np.bincount(where, with_unit, len(edges) + 1)
        q = np.bincount(where, without, len(edges) + 1)
        p[-1] += ratio.lost
        q[0] += none
        return p, q

    def between(weights: np.ndarray, log_tail: float) -> tuple[float, float]:
        tail, last = math.exp(log_tail), len(losses) - 1
        below = int(np.searchsorted(np.cumsum(weights), tail, side="right"))
        above = last - int(np.searchsorted(np.cumsum(weights[::-1]), tail, side="right"))
        return float(losses[min(below, last)]), float(losses[max(above, 0)])

    def bounds(log_tail: float) -> tuple[tuple[float, float], tuple[float, float]]:
        return between(with_unit, log_tail), between(without, log_tail)

    pair = LossPair(cells, bounds)
    return [pair, reverse(pair)]
