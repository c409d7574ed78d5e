"""Renyi differential privacy of mechanisms with a finite epsilon, at every order above one.

Each is exact: the largest Renyi divergence of any two neighbours' outputs. With e = epsilon and
order a:

- Pure epsilon: binary randomized response (Bun and Steinke 2016, arXiv:1605.02065, proposition
  3.3), A - 1 = (e^((a - 1) e) - 1) (1 - e^(-a e)) e^e / (1 + e^e).
- Bounded range: two outcomes with losses t and t - e, t being the worst (Dong, Durfee and Rogers
  2020, arXiv:1909.13830, section 3). With g(x) = log(sinh(x) / x) that comes to

      log(A) = a g(a e / 2) - (a - 1) g((a - 1) e / 2) - g(e / 2),

  which is below (a - 1) e and a (a - 1) e^2 / 8 (Cesar and Rogers 2021, arXiv:2004.07223).
- Randomized response over k values, p being the probability of a random one: the likelihoods of the
  unit's own value and of each other one are h = 1 - p + p / k and l = p / k. Two units: as pure
  epsilon, with e = log(h / l), times l (1 + e^e). A unit and a null unit: R is k h or k l.
- Laplace with scale z: R is exp(-1/z) and exp(1/z) outside of (0, 1), and exp((2x - 1) / z) between
  (Mironov 2017, arXiv:1702.07476, proposition 6). On a Poisson sample R is 1 - q + q R. The
  divergence with the record from that without it is the larger one (Mironov, Talwar and Zhang 2019,
  arXiv:1908.10530, theorem 5).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.mechanisms import amplified_epsilon
from tfdp.accounting.renyi.moments import log_sum_psi

# The square of a larger epsilon, times an order, would overflow.
_HUGE = 1e140
# At larger orders the divergence of anything pure is taken as epsilon.
_LARGE = 1e150
# From this order on, differences of terms that grow with the order's square are too inexact.
_FEW_DIGITS = 100.0

_Curve = Callable[[np.ndarray], np.ndarray]

# Laplace noise this small is priced as pure epsilon.
_SMALLEST_SCALE = 1 / 200
_NODES = np.polynomial.legendre.leggauss(20)


def _log_sinh_over_x(x: np.ndarray) -> np.ndarray:
    near = np.minimum(x, 1.0)
    squared = near * near
    # sinh(x) / x - 1 = x^2/6 (1 + x^2/20 (1 + x^2/42 (1 + ...))).
    series = np.ones_like(x)
    for k in range(9, 0, -1):
        series = 1 + squared / ((2 * k + 2) * (2 * k + 3)) * series
    far = np.maximum(x, 1.0)
    return np.where(
        x < 1,
        np.log1p(squared / 6 * series),
        far + np.log1p(-np.exp(-2 * far)) - np.log(2 * far),
    )


def _slope(x: np.ndarray) -> np.ndarray:
    """Returns the derivative of x g(x): g(x) + x coth(x) - 1, for g(x) = log(sinh(x) / x)."""
    near = np.minimum(x, 1.0)
    squared = near * near
    # x cosh(x) - sinh(x) = sum_k 2k x^(2k + 1) / (2k + 1)!, and sinh(x) likewise.
    above = sum(2 * k / math.factorial(2 * k + 1) * squared**k for k in range(1, 11))
    below = sum(squared**k / math.factorial(2 * k + 1) for k in range(11))
    far = np.maximum(x, 1.0)
    return _log_sinh_over_x(x) + np.where(x < 1, above / below, far / np.tanh(far) - 1)


def rdp_bounded_range(epsilon: float, orders: np.ndarray) -> np.ndarray:
    """Returns the divergence of an epsilon-bounded-range mechanism at every order."""
    if epsilon > _HUGE:  # No divergence of a pure-epsilon mechanism exceeds epsilon.
        return np.full(orders.shape, epsilon)
    half = epsilon / 2
    a = np.minimum(orders, _LARGE)
    # The difference of the first two terms, of which few digits would be left at large orders, is
    # there the integral of the derivative of x g(x).
    nodes, weights = _NODES
    few = np.minimum(a, _FEW_DIGITS)
    rise = np.where(
        a > _FEW_DIGITS,
        _slope((a[..., None] - 1 + (nodes + 1) / 2) * half) @ (weights / 2),
        few * _log_sinh_over_x(few * half) - (few - 1) * _log_sinh_over_x((few - 1) * half),
    )
    divergence = (rise - _log_sinh_over_x(np.asarray(half))) / (a - 1)
    with np.errstate(over="ignore"):
        most = np.minimum(epsilon, orders * epsilon * epsilon / 8)
    return np.where(orders > _LARGE, most, np.minimum(divergence, most))


def _rdp_two_values(epsilon: float, share: float, orders: np.ndarray) -> np.ndarray:
    """Returns the divergence with A - 1 = share (e^((a-1) e) - 1) (e^e - e^((1-a) e))."""
    y = (orders - 1) * epsilon
    log_powers = np.where(y > 1, y + np.log(-np.expm1(-y)), np.log(np.expm1(np.minimum(y, 1))))
    log_beyond = math.log(share) + epsilon + log_powers + np.log(-np.expm1(-orders * epsilon))
    return np.logaddexp(0.0, log_beyond) / (orders - 1)


def rdp_pure_epsilon(epsilon: float, orders: np.ndarray) -> np.ndarray:
    """Returns the divergence of an epsilon-differentially private mechanism at every order."""
    if epsilon > 700:
        return np.full(orders.shape, epsilon)
    return _rdp_two_values(epsilon, 1 / (1 + math.exp(epsilon)), orders)


def rdp_randomized_response(
    noise_parameter: float, num_buckets: int, from_uniform: bool, orders: np.ndarray
) -> np.ndarray:
    """Returns the divergence of randomized response at every order.

    Args:
        noise_parameter: The probability that the answer is drawn, and not the true one.
        num_buckets: How many answers there are.
        from_uniform: Whether one of the two compared answers is drawn always, as that of a null
            unit is; otherwise both are true answers with this probability of another one.
        orders: Above 1, [k].
    """
    p, k = noise_parameter, num_buckets
    if not from_uniform:
        return _rdp_two_values(math.log1p((1 - p) * k / p), p / k, orders)
    losses = np.array([math.log(k - p * (k - 1)), math.log(p)])
    log_uniform = np.array([-math.log(k), math.log1p(-1 / k)])
    return np.maximum(
        _rdp_of_losses(log_uniform + losses, losses, orders),
        _rdp_of_losses(log_uniform, -losses, orders),
    )


def _rdp_of_losses(log_weights: np.ndarray, losses: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Returns the divergence from the losses and their probabilities where they are the larger."""
    weights = np.exp(log_weights)
    first = log_sum_psi(log_weights, losses, -1.0, weights)
    powers = log_sum_psi(log_weights, losses, (orders - 1)[:, np.newaxis], weights)
    return np.logaddexp(0.0, np.logaddexp(np.log(orders - 1) + first, powers)) / (orders - 1)


def rdp_sampled_laplace(
    sampling_probability: float, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Returns the divergence of the Laplace mechanism on a Poisson sample at every order."""
    q, epsilon = sampling_probability, 1 / noise_multiplier
    if noise_multiplier < _SMALLEST_SCALE:
        return rdp_pure_epsilon(amplified_epsilon(epsilon, q), orders)
    # The integrand changes most at the right end of the interval, and the faster the higher the
    # order. So the interval is cut at distances from that end which double, up to 1.
    unit = min(epsilon, 1.0)
    halvings = max(0, math.ceil(math.log2(float(orders.max()) * unit)))
    edges = [0.0, *(unit / 2**k for k in range(halvings, -1, -1))]
    edges += [min(edge, epsilon) for edge in range(2, math.ceil(epsilon) + 1)]
    starts, widths = np.array(edges[:-1]), np.diff(edges)
    nodes, weights = _NODES
    distances = np.ravel(starts[:, np.newaxis] + widths[:, np.newaxis] * (nodes + 1) / 2)
    log_nodes = np.log(np.ravel(widths[:, np.newaxis] / 2 * weights)) - math.log(2)
    # Outside of the interval, left and right, R is constant, with probability 1/2 and e^-epsilon/2.
    log_ratio = np.concatenate([[-epsilon, epsilon], epsilon - 2 * distances])
    log_without = np.concatenate(
        [[-math.log(2), -math.log(2) - epsilon], log_nodes + distances - epsilon]
    )
    losses = log_ratio
    if q < 1:
        near = np.log1p(q * np.expm1(np.minimum(log_ratio, 30)))
        far = np.logaddexp(math.log1p(-q), math.log(q) + log_ratio)
        losses = np.where(log_ratio > 30, far, near)
    return _rdp_of_losses(log_without + losses, losses, orders)


def _sum(rdp: Callable[..., np.ndarray], *fields: str) -> Callable[[Sequence, np.ndarray], _Curve]:
    """Returns a pricing function from a mechanism's divergence as a function of its fields."""

    def curve(mechanisms: Sequence, counts: np.ndarray) -> _Curve:
        def total(orders: np.ndarray) -> np.ndarray:
            parts = [rdp(*(getattr(m, name) for name in fields), orders) for m in mechanisms]
            with np.errstate(over="ignore"):  # A result that is too large becomes infinite.
                return counts @ np.array(parts)

        return total

    return curve


bounded_range_curve = _sum(rdp_bounded_range, "epsilon")
pure_epsilon_curve = _sum(rdp_pure_epsilon, "epsilon")
randomized_response_curve = _sum(
    rdp_randomized_response, "noise_parameter", "num_buckets", "from_uniform"
)
sampled_laplace_curve = _sum(rdp_sampled_laplace, "sampling_probability", "noise_multiplier")
