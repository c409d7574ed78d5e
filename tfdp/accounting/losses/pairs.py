"""The worst pairs of outputs of the mechanisms, as distributions of their privacy loss.

With outputs distributed as P or as Q the privacy loss is L = log(P/Q), and a mechanism is
(epsilon, delta)-private where

    delta(epsilon) = sup_S P(S) - e^epsilon Q(S) = E_P[max(0, 1 - e^(epsilon - L))].

A pair whose delta(epsilon) is nowhere smaller than that of any neighbours *dominates* the
mechanism; composed pairs dominate composed mechanisms, chosen adaptively or not (Zhu, Dong and Wang
2022, arXiv:2106.08567, theorem 10). Adding a unit and removing a unit are two pairs. Each is
composed with itself only, because a unit that is in the data is there in every step.

Accountants need nothing of a pair but the probabilities, under P and under Q, that the loss lies
between two numbers. Sampling is a change of variables: with probability q of being in the sample,

    L' = log(1 - q + q e^L)    where (1 - q) Q + q P stands for P.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BoundedRange,
    FixedSizeGaussian,
    Mechanism,
    PureEpsilon,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)

_Cells = tuple[np.ndarray, np.ndarray]
_Bounds = tuple[float, float]


class LossPair(NamedTuple):
    """How probable losses are under P and under Q.

    Attributes:
        cells: From increasing edges to two vectors that are one longer than the edges. They are the
            probabilities, under P and under Q, of losses up to the first edge, between neighbouring
            edges, and above the last. Their relative accuracy is that of the nearer tail.
        bounds: From log t, for a small t, to bounds that losses exceed on either side with
            probability t at most: (low, high) under P, (low, high) under Q.
    """

    cells: Callable[[np.ndarray], _Cells]
    bounds: Callable[[float], tuple[_Bounds, _Bounds]]


def differences(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Returns the probabilities of cells from those of being below and above every edge."""
    between = np.where(above[:-1] < below[:-1], above[:-1] - above[1:], below[1:] - below[:-1])
    # None is negative, however NumPy rounds.
    return np.maximum(np.concatenate([below[:1], between, above[-1:]]), 0.0)


def gaussian_pair(z: float) -> LossPair:
    """Returns P = N(1, z^2), Q = N(0, z^2), with L = (2x - 1) / (2z^2)."""
    from scipy import special

    def cells(edges: np.ndarray) -> _Cells:
        at, shift = edges * z, 0.5 / z
        p, q = at - shift, at + shift
        return (
            differences(special.ndtr(p), special.ndtr(-p)),
            differences(special.ndtr(q), special.ndtr(-q)),
        )

    def bounds(log_tail: float) -> tuple[_Bounds, _Bounds]:
        mean, width = 0.5 / z / z, math.sqrt(-2 * log_tail) / z
        return (mean - width, mean + width), (-mean - width, -mean + width)

    return LossPair(cells, bounds)


def laplace_pair(scale: float) -> LossPair:
    """Returns Laplace distributions of this scale about 1 and 0, with |L| <= 1 / scale."""
    most = 1 / scale

    def cells(edges: np.ndarray) -> _Cells:
        # Between 0 and 1 the loss of x is (2x - 1) / scale; outside of this it is constant.
        x = (1 + np.clip(edges * scale, -1.0, 1.0)) / 2
        low, high = np.exp(-x / scale) / 2, np.exp((x - 1) / scale) / 2
        p_below, q_above = high, low
        inside = (edges >= -most, edges < most)
        p_below = np.where(inside[0], np.where(inside[1], p_below, 1.0), 0.0)
        q_above = np.where(inside[1], np.where(inside[0], q_above, 1.0), 0.0)
        return differences(p_below, 1 - p_below), differences(1 - q_above, q_above)

    return LossPair(cells, lambda _: ((-most, most), (-most, most)))


def _atoms(losses: list[float], p: list[float], q: list[float]) -> LossPair:
    """Finitely many outcomes with these losses and probabilities."""
    at = np.array(losses)

    def cells(edges: np.ndarray) -> _Cells:
        where = np.searchsorted(edges, at, side="left")
        return np.bincount(where, p, len(edges) + 1), np.bincount(where, q, len(edges) + 1)

    ends = (float(at.min()), float(at.max()))
    return LossPair(cells, lambda _: (ends, ends))


def reverse(pair: LossPair) -> LossPair:
    """Returns the pair with P and Q in each other's place: losses change their sign."""

    def cells(edges: np.ndarray) -> _Cells:
        p, q = pair.cells(-edges[::-1])
        return q[::-1], p[::-1]

    def bounds(log_tail: float) -> tuple[_Bounds, _Bounds]:
        (p_low, p_high), (q_low, q_high) = pair.bounds(log_tail)
        return (-q_high, -q_low), (-p_high, -p_low)

    return LossPair(cells, bounds)


def _loss_before_sampling(losses: np.ndarray, q: float) -> np.ndarray:
    """Returns log((e^loss - (1 - q)) / q), minus infinity where no loss is so small."""
    with np.errstate(divide="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(losses, 1.0)) / q, -1.0))
    above = np.maximum(losses, 1.0)
    large = above - math.log(q) + np.log1p((q - 1) * np.exp(-above))
    return np.where(losses > 1, large, small)


def _on_sample(pair: LossPair, q: float) -> LossPair:
    """(1 - q) Q + q P stands for P."""
    if q == 1:
        return pair

    def cells(edges: np.ndarray) -> _Cells:
        with_unit, without = pair.cells(_loss_before_sampling(edges, q))
        return (1 - q) * without + q * with_unit, without

    def loss(before: float) -> float:
        return float(np.logaddexp(math.log1p(-q), math.log(q) + before))

    def bounds(log_tail: float) -> tuple[_Bounds, _Bounds]:
        p, without = pair.bounds(log_tail)
        both = loss(min(p[0], without[0])), loss(max(p[1], without[1]))
        return both, (loss(without[0]), loss(without[1]))

    return LossPair(cells, bounds)


def _fixed_size(q: float, z: float) -> list[LossPair]:
    """Zhu, Dong and Wang 2022, for samples without replacement, one unit replaced.

    Let (P, Q) be the pair of a replacement inside the sample. Then delta(epsilon) is at most that
    of ((1 - q) Q + q P, Q) for epsilon >= 0 and that of (P, (1 - q) P + q Q) below. That curve
    belongs to a pair with the positive losses of the first and the negative ones of the second.
    What is left of the probability, (1 - q) TV(P, Q), is at the loss zero.
    """
    from scipy import special

    above = _on_sample(gaussian_pair(z), q)
    below = reverse(above)
    at_zero = (1 - q) * float(special.erf(0.5 / z / math.sqrt(2)))

    def cells(edges: np.ndarray) -> _Cells:
        # Zero becomes an edge of a cell, and the cell that ends there takes what is left.
        zero = int(np.searchsorted(edges, 0.0))
        split = np.insert(edges, zero, 0.0)
        parts = []
        for high, low in zip(above.cells(split), below.cells(split), strict=True):
            part = np.where(np.arange(len(high)) > zero, high, low)
            part[zero] += at_zero
            part[zero] += part[zero + 1]
            parts.append(np.delete(part, zero + 1))
        return parts[0], parts[1]

    def bounds(log_tail: float) -> tuple[_Bounds, _Bounds]:
        high, low = above.bounds(log_tail), below.bounds(log_tail)
        return (low[0][0], high[0][1]), (low[1][0], high[1][1])

    return [LossPair(cells, bounds)]


def _randomized_response(mechanism: RandomizedResponse) -> list[LossPair]:
    p, k = mechanism.noise_parameter, mechanism.num_buckets
    own, other = 1 - p + p / k, p / k
    # log(own / other) and log(own k), in a form in which nothing cancels if p is close to 1.
    if not mechanism.from_uniform:
        most = math.log1p((1 - p) * k / p)
        rest = (k - 2) * other
        return [_atoms([most, 0.0, -most], [own, rest, other], [other, rest, own])]
    most = math.log1p((1 - p) * (k - 1))
    pair = _atoms([most, math.log(p)], [own, (k - 1) * other], [1 / k, 1 - 1 / k])
    return [pair, reverse(pair)]


def pure_pair(epsilon: float) -> LossPair:
    """Returns binary randomized response, the worst of what is epsilon-private."""
    smaller = math.exp(-epsilon)
    p, q = 1 / (1 + smaller), smaller / (1 + smaller)
    return _atoms([epsilon, -epsilon], [p, q], [q, p])


def _bounded_range(mechanism: BoundedRange) -> list[LossPair]:
    """The pair whose delta is, at every epsilon, that of the worst of all t.

    Losses t and t - r, for 0 <= t <= r, have delta(x) = p_t (1 - e^(x - t)) for x < t, with
    p_t = (e^r - e^t) / (e^r - 1). It is largest at t = (r + x) / 2, and then

        delta(x) = (e^(r/2) - e^(x/2))^2 / (e^r - 1),
        Q(L > x) = -e^-x delta'(x) = (e^((r - x) / 2) - 1) / (e^r - 1),
        P(L > x) = delta(x) + e^x Q(L > x).

    Such a curve is that of a pair (Zhu, Dong and Wang 2022).
    """
    r = mechanism.epsilon

    def above(x: np.ndarray) -> np.ndarray:
        return np.expm1((x - r) / 2) / math.expm1(-r)

    def cells(edges: np.ndarray) -> _Cells:
        x = np.clip(edges, -r, r)
        p, q = above(x), above(x) * np.exp(-(r + x) / 2)
        return differences(1 - p, p), differences(1 - q, q)

    return [LossPair(cells, lambda _: ((-r, r), (-r, r)))]


def _sampled(base: LossPair, q: float) -> list[LossPair]:
    pair = _on_sample(base, q)
    return [base] if q == 1 else [pair, reverse(pair)]


def _mixed(one: LossPair, other: LossPair, share: float) -> LossPair:
    """Both outputs are of `other` with the same probability `share`, and it is seen which it is."""

    def cells(edges: np.ndarray) -> _Cells:
        (p, q), (other_p, other_q) = one.cells(edges), other.cells(edges)
        return (1 - share) * p + share * other_p, (1 - share) * q + share * other_q

    def bounds(log_tail: float) -> tuple[_Bounds, _Bounds]:
        # One half of the tail for each; at most one half of `other` can be in it.
        half = log_tail - math.log(2)
        both = one.bounds(half), other.bounds(min(half - math.log(share), -math.log(2)))
        (p, other_p), (q, other_q) = zip(*both, strict=True)
        return (
            (min(p[0], other_p[0]), max(p[1], other_p[1])),
            (min(q[0], other_q[0]), max(q[1], other_q[1])),
        )

    return LossPair(cells, bounds)


def _truncated(m: TruncatedGaussian) -> list[LossPair]:
    q, z = m.sampling_probability, m.noise_multiplier
    if m.keeps_places:
        crowded = _fixed_size(q, z / 2) * 2
    else:
        crowded = _sampled(gaussian_pair(z / 2), q)
    usual = _sampled(gaussian_pair(z), q)
    return [_mixed(*pairs, m.overflow_probability) for pairs in zip(usual, crowded, strict=True)]


def _allocated(mechanism: AllocatedGaussian) -> list[LossPair]:
    from tfdp.accounting.losses.allocation import allocation_pairs  # Which imports this module.

    return allocation_pairs(mechanism)


# From the type of a mechanism to its dominating pairs: a single pair that is its own reverse, or
# one pair for removing a unit and one for adding a unit.
PAIRS: Mapping[type[Mechanism], Callable[[Any], list[LossPair]]] = {
    AllocatedGaussian: _allocated,
    BoundedRange: _bounded_range,
    FixedSizeGaussian: lambda m: _fixed_size(m.sample_size / m.population_size, m.noise_multiplier),
    PureEpsilon: lambda m: [pure_pair(m.epsilon)],
    RandomizedResponse: _randomized_response,
    SampledGaussian: lambda m: _sampled(gaussian_pair(m.noise_multiplier), m.sampling_probability),
    SampledLaplace: lambda m: _sampled(laplace_pair(m.noise_multiplier), m.sampling_probability),
    TruncatedGaussian: _truncated,
}
