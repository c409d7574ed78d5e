"""What sums of integer vectors with integer noise cost.

Let D be the discrete Gaussian of parameter s over the integers. For integers v and k,

    sum_x D(x - v)^a D(x)^(1 - a) = exp(a (a - 1) v^2 / (2 s^2)) sum_x D(x - a v),

and the last sum is at most one, which it attains where a v is an integer (Canonne, Kamath and
Steinke 2020, arXiv:2004.00010, proposition 5 and theorem 14). So a shift by an integer vector of
norm S has divergences of at most a S^2 / (2 s^2) at every order a. As with a Gaussian,
rho = S^2 / (2 s^2), whatever s and the number of coordinates are.

The sum of n such noises is no discrete Gaussian. Let P_k be the distribution of the sum of k, and
Q_k the discrete Gaussian of parameter s sqrt(k). In the convolution of Q_k and D, completing the
square leaves

    (Q_k * D)(x) / Q_(k+1)(x) ~ sum_y exp(-(y - t)^2 / (2 c^2)),  c^2 = s^2 k / (k + 1),

with t proportional to x. By Poisson's formula that sum is largest for whole t and smallest halfway
between, so that the logarithm of the ratio stays within an interval of the length

    w_k = log(theta_3(q) / theta_4(q)),  q = exp(-2 pi^2 c^2),  w_k ~ 4 q for small q,

and a convolution with D keeps the interval of log(P_k / Q_k). So that of log(P_n / Q_n) has at most
the length T = w_1 + ... + w_(n-1). (Kairouz, Liu and Steinke 2021, arXiv:2102.06387, bound it by
10 q each.) A logarithmic ratio within an interval of this length is T^2 / 8-concentrated (Cesar and
Rogers 2021, arXiv:2004.07223). The square root of rho obeys the triangle inequality (Bun and
Steinke 2016, arXiv:1605.02065, section 5). From P_n moved by v to Q_n moved by v, to Q_n, to P_n:

    sqrt(2 rho) <= T / 2 + |v| / (s sqrt(n)) + T / 2.

Coordinates that are not moved cost nothing; divergences of the others add up. With at most
m = min(d, S^2) of them, and l1 norms of at most S sqrt(m),

    2 rho <= S^2 / (n s^2) + 2 T S sqrt(m) / (s sqrt(n)) + T^2 m.

Further noise is post-processing, so that fewer shares, whose T is smaller, give a bound, too.

Sums of Skellam noise are Skellam noise, whose variances add up (`tfdp.accounting.renyi.skellam`).
"""

import math
from typing import Any

from tfdp.accounting.mechanisms import Concentrated, Mechanism, NoPrivacy, SkellamNoise
from tfdp.accounting.ranges import LARGEST_MULTIPLIER, SMALLEST_MULTIPLIER, within_range
from tfdp.events import NeighboringRelation, UnsupportedEventError

# So many w_k are added up one by one. They fall as k grows: the rest is no more than the last.
_MOST_TERMS = 1024
_LARGEST_STDDEV = 1e150


def discrete_gaussian_sum(event: Any, factor: float, _: NeighboringRelation) -> Mechanism:
    """Returns what the sum costs where neighbouring samples differ by `factor` units."""
    z = min(event.noise_multiplier, LARGEST_MULTIPLIER) / factor
    return within_range(Concentrated(0.5 / z / z)) if z >= SMALLEST_MULTIPLIER else NoPrivacy()


def discrete_gaussian_shares(event: Any, factor: float, relation: NeighboringRelation) -> Mechanism:
    """Returns what the sum of records that have noise of their own costs.

    Raises:
        UnsupportedEventError: a record comes or goes, and its noise with it.
    """
    refuse_records_that_come_or_go(event, relation)
    z = min(event.noise_multiplier, LARGEST_MULTIPLIER) / factor
    if z < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    counts = {event.min_shares, *(2**i for i in range(event.min_shares.bit_length()))}
    bound = event.l2_norm_bound * factor
    moved = min(event.max_coordinates, bound * bound)
    rho = math.inf
    for count in counts:
        # Relative to z, so that nothing overflows.
        shift = math.sqrt(event.min_shares / count) / z
        # Integers that move by less than one do not move at all.
        width = interval_of_shares(event.share_stddev, count) if moved else 0.0
        twice = shift * shift + 2 * width * shift * math.sqrt(moved) + width * width * moved
        rho = min(rho, twice / 2 * (1 + 1e-12))
    return within_range(Concentrated(rho))


def skellam_shares(event: Any, factor: float, relation: NeighboringRelation) -> Mechanism:
    """Returns what the sum of records that have Skellam noise of their own costs.

    Raises:
        UnsupportedEventError: a record comes or goes, and its noise with it.
    """
    refuse_records_that_come_or_go(event, relation)
    if event.noise_multiplier / factor < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    # Integers that move do so by one at least, and a square of the noise stays a float.
    l2 = max(1.0, event.l2_norm_bound * factor)
    stddev = min(event.share_stddev * math.sqrt(event.min_shares), _LARGEST_STDDEV)
    if stddev / l2 < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    # The magnitude of an integer is no larger than its square.
    l1 = min(event.l1_norm_bound * factor, l2 * l2)
    return within_range(SkellamNoise(l1, l2, stddev * stddev))


def interval_of_shares(stddev: float, count: int) -> float:
    """Returns T: how far log(P_n / Q_n) may vary, for n = `count` shares.

    Args:
        stddev: s, positive.
        count: n.
    """
    terms = [_width(stddev * stddev * (k / (k + 1))) for k in range(1, min(count, _MOST_TERMS))]
    return math.fsum(terms) + max(0, count - _MOST_TERMS) * (terms[-1] if terms else 0.0)


def _width(variance: float) -> float:
    """Returns log(theta_3(q) / theta_4(q)), q = exp(-2 pi^2 variance); rounded up."""
    if variance > 0.16:  # By q, which is below 0.043.
        q = math.exp(-2 * math.pi**2 * variance)
        even, odd = 2 * q**4, 2 * (q + q**9)
        # log((1 + e + o) / (1 + e - o)); all further terms are below q^16.
        return 2 * math.atanh(odd / (1 + even)) * (1 + 1e-9)
    if variance == 0:  # A square that is too small for a float.
        return math.inf
    # By the sums themselves.
    whole = 1 + 2 * math.fsum(math.exp(-y * y / (2 * variance)) for y in range(1, 9))
    log_half = -1 / (8 * variance)  # Of 2 exp(-1 / (8 c^2)) (1 + exp(-8 / (8 c^2)) + ...).
    half = 2 * math.fsum(math.exp(-y * (y + 1) / (2 * variance)) for y in range(8))
    return (math.log(whole / half) - log_half) * (1 + 1e-9)


def refuse_records_that_come_or_go(event: Any, relation: NeighboringRelation) -> None:
    """Raises an UnsupportedEventError under ADD_OR_REMOVE_ONE, that says what to declare."""
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(
            f"{type(event).__name__} is not supported under {relation.name}, where a record that "
            f"comes or goes takes its noise with it: {event!r}. Declare ZERO_OUT or REPLACE_ONE, "
            "in a SampledEvent (FullBatchSampling where all records take part)."
        )
