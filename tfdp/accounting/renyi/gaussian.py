"""Renyi differential privacy of the Poisson-sampled Gaussian mechanism, at every order above one.

With sampling probability q and noise multiplier z the two outputs are P = (1 - q) N(0, z^2) +
q N(1, z^2) and Q = N(0, z^2) (Mironov, Talwar and Zhang 2019, arXiv:1908.10530, theorem 4), with
likelihood ratio

    R(x) = 1 + q (exp((2x - 1) / (2z^2)) - 1).

The moments of R (`tfdp.accounting.renyi.moments`) are integrated by the trapezoidal rule, whose
error falls exponentially for analytic functions (Trefethen and Weideman 2014, SIAM Review 56:385).
A few dozen points suffice, and they are common to all orders.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.accounting.renyi.moments import log_sum_psi

# The relative error of the trapezoidal rule is at most exp(-_NEGLIGIBLE).
_NEGLIGIBLE = 36.0
# Half the width, in units of z, of the part of a Gaussian that is kept.
_TAIL = 9.5
# Smaller probabilities and larger multipliers are priced as if they were these, which costs more.
_SMALLEST_PROBABILITY = 1e-60
LARGEST_MULTIPLIER = 1e60
# An integral that would need more points than this is not computed. The sample is then priced as a
# full batch, which costs at least as much.
_MOST_POINTS = 2**22
# How many points are worked on at once: few enough to stay in the processor's cache.
_BLOCK_POINTS = 2**15


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """Returns log(e^x - 1) for x > 0."""
    small = np.minimum(x, 1.0)
    return np.where(x > 1.0, x + np.log1p(-np.exp(-np.maximum(x, 1.0))), np.log(np.expm1(small)))


def _step(z: Any, reverse_order: float) -> Any:
    """Returns the distance of the points; `reverse_order` is 1 where D(P || Q) is asked for."""
    # The error of step h is exp(c^2 / (2z^2) - 2 pi c / h) for the best c below pi z^2, where R
    # first vanishes above or below the real axis. R^-(a - 1) grows by cos(c / (2z^2))^-(a - 1),
    # about exp((a - 1) c^2 / (8 z^4)).
    width = z / np.sqrt(1 + (reverse_order - 1) / (4 * z * z))
    whole = math.pi * width * math.sqrt(2 / _NEGLIGIBLE)
    strip = math.pi * z * z
    within = 2 * math.pi * strip / (_NEGLIGIBLE + strip * strip / (2 * width * width))
    return np.where(whole * strip >= 2 * math.pi * width * width, whole, within)


def log_likelihood_ratio(q: Any, z: Any, x: np.ndarray) -> np.ndarray:
    """Returns log R(x)."""
    t = (2 * x - 1) / 2 / z / z
    losses = np.log1p(q * np.expm1(np.minimum(t, 700.0)))
    far = t > 700.0
    return np.where(far, np.log(q) + t, losses) if far.any() else losses


class _Block:
    """The integrals of a few mechanisms, on points that serve all orders up to a largest one."""

    def __init__(self, q: np.ndarray, z: np.ndarray):
        self._q, self._z = q[:, np.newaxis], z[:, np.newaxis]
        self._step = _step(self._z, 1.0)
        self._largest_order = 0.0

    def columns(self, order: float) -> int:
        # For every order the mass lies between 0 and max(order, 2), except for Gaussian tails.
        widths = (max(order, 2.0) + 2 * _TAIL * self._z) / self._step
        return math.ceil(float(np.max(widths))) + 1

    def _prepare(self, order: float) -> None:
        x = -_TAIL * self._z + self._step * np.arange(self.columns(order))
        self._losses = log_likelihood_ratio(self._q, self._z, x)
        log_density = -((x / self._z) ** 2) / 2 - math.log(2 * math.pi) / 2
        self._log_weights = log_density + np.log(self._step / self._z) + self._losses
        self._weights = np.exp(self._log_weights)
        self._first = log_sum_psi(self._log_weights, self._losses, -1.0, self._weights)
        self._largest_order = order

    def log_a_minus_1(self, orders: np.ndarray) -> np.ndarray:
        """Returns log(A - 1) of D(P || Q), of shape [mechanisms, orders]."""
        order, n = float(orders.max()), self.columns(float(orders.max()))
        if n > _MOST_POINTS:
            return _log_expm1(orders * (orders - 1) / 2 / self._z / self._z)
        if order > self._largest_order:
            # Other orders will probably be asked for as well.
            self._prepare(max(order, 8.0) if order > 1000 else max(2 * order, 8.0))
        powers = log_sum_psi(
            self._log_weights[:, np.newaxis, :n],
            self._losses[:, np.newaxis, :n],
            (orders - 1)[:, np.newaxis],
            self._weights[:, np.newaxis, :n],
        )
        return np.logaddexp(np.log(orders - 1) + self._first[:, np.newaxis], powers)


def _peaks_are_apart(q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Whether to double precision R is 1 - q near x = 0, q exp((2x - 1) / (2z^2)) near x = a."""
    return (0.5 - 12 * z) / z / z > 45 - np.log(q) - np.log1p(-q)


class _Apart:
    """The mechanisms whose `_peaks_are_apart`."""

    def __init__(self, q: np.ndarray, z: np.ndarray):
        self._q, self._z = q[:, np.newaxis], z[:, np.newaxis]

    def log_a_minus_1(self, orders: np.ndarray) -> np.ndarray:
        """Returns log(A - 1) of D(P || Q), of shape [mechanisms, orders]."""
        # A = q^a exp(a (a - 1) / (2z^2)) + (1 - q)^a. Of the 1 that is taken from it, the first
        # term takes q and the second 1 - q.
        log_q, log_not_q = np.log(self._q), np.log1p(-self._q)
        at_a = log_q + _log_expm1((orders - 1) * (log_q + orders / 2 / self._z / self._z))
        at_zero = log_not_q + np.log(-np.expm1((orders - 1) * log_not_q))
        return at_a + np.log1p(-np.exp(at_zero - at_a))


class SampledGaussians:
    """The Renyi divergences of any number of sampled Gaussians, at any orders above 1.

    Guarantees:
        Relative error below 1e-11 for D(P || Q), which is never smaller than D(Q || P) (Mironov,
        Talwar and Zhang 2019, theorem 5). What orders have in common is computed once.

    Edge cases:
        Where an order is so large, or the noise so small, that an integral would take more than
        four million points, a mechanism is priced as if it saw everything. Such are orders above
        4096 with z = 0.05, and above 10^8 with z = 100.

    Args:
        q: Sampling probabilities in (0, 1].
        z: As many noise multipliers, all positive.
    """

    def __init__(self, q: np.ndarray, z: np.ndarray):
        q = np.maximum(np.asarray(q, np.float64), _SMALLEST_PROBABILITY)
        z = np.asarray(z, np.float64)
        self._inverse_squares = 1 / z / z
        self._parts: list[tuple[np.ndarray, _Block | _Apart]] = []
        sampled = np.flatnonzero(q < 1)
        q, z = q[sampled], np.minimum(z[sampled], LARGEST_MULTIPLIER)
        apart = _peaks_are_apart(q, z)
        if apart.any():
            self._parts.append((sampled[apart], _Apart(q[apart], z[apart])))
        sampled, q, z = sampled[~apart], q[~apart], z[~apart]
        # Orders that need about the same number of points are computed together.
        by_size = np.argsort(z, kind="stable")
        sampled, q, z = sampled[by_size], q[by_size], z[by_size]
        start = 0
        while start < len(z):
            points = _Block(q[start : start + 1], z[start : start + 1]).columns(8.0)
            stop = start + max(1, _BLOCK_POINTS // points)
            self._parts.append((sampled[start:stop], _Block(q[start:stop], z[start:stop])))
            start = stop

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences, of shape [mechanisms, orders]."""
        orders = np.asarray(orders, dtype=np.float64)
        with np.errstate(over="ignore"):
            rdp = np.multiply.outer(self._inverse_squares / 2, orders)
        # Small orders need fewer points than large ones.
        sizes = np.floor(np.log2(orders + 16))
        for rows, part in self._parts:
            for size in np.unique(sizes):
                columns = np.flatnonzero(sizes == size)
                with np.errstate(divide="ignore", over="ignore", under="ignore"):
                    log_a_minus_1 = part.log_a_minus_1(orders[columns])
                values = np.logaddexp(0.0, log_a_minus_1) / (orders[columns] - 1)
                rdp[np.ix_(rows, columns)] = values
        return rdp


def sampled_gaussian_curve(
    mechanisms: Sequence[SampledGaussian], counts: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the total divergence of `counts[i]` times `mechanisms[i]` as a function of orders."""
    together = SampledGaussians(
        np.array([m.sampling_probability for m in mechanisms]),
        np.array([m.noise_multiplier for m in mechanisms]),
    )
    return lambda orders: counts @ together.rdp(orders)


def _reverse_rdp(q: float, z: float, order: float) -> float:
    """Returns D(Q || P)."""
    # Q R^-(a - 1) is a Gaussian of width z at most, with its peak between -(a - 1) q and 0.
    low, high = -(order - 1) * q - _TAIL * z, 1 + _TAIL * z
    step = float(_step(z, order))
    x = low + step * np.arange(math.ceil((high - low) / step) + 1)
    losses = log_likelihood_ratio(q, z, x)
    log_weights = -((x / z) ** 2) / 2 - math.log(2 * math.pi) / 2 + math.log(step / z)
    scales = np.array([[1.0], [1.0 - order]])
    first, powers = log_sum_psi(log_weights, losses, scales, np.exp(log_weights))
    return float(np.logaddexp(0.0, np.logaddexp(math.log(order - 1) + first, powers)) / (order - 1))


def rdp_sampled_gaussian(
    sampling_probability: float,
    noise_multiplier: float,
    orders: np.ndarray,
    *,
    direction: str = "both",
) -> np.ndarray:
    """Returns the Renyi divergence of one step at every order.

    Guarantees:
        Neighbours are data sets that differ in one record, added or removed; sums move by at most 1
        and the noise has standard deviation `noise_multiplier`. The relative error is below 1e-10,
        whether the order is an integer or not.

    Edge cases:
        sampling_probability 1 is a / (2z^2) exactly; noise_multiplier 0 is infinity. See also
        `SampledGaussians`.

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: z, at least 0.
        orders: Float64 vector of orders, all above 1 and finite.
        direction: "remove" for the divergence of the outputs with the record from those without it,
            "add" for the opposite one, "both" for the larger, which is always "remove".

    Returns:
        Float64 vector as long as `orders`.

    Raises:
        ValueError: `direction` is another one.
    """
    if direction not in ("both", "add", "remove"):
        raise ValueError(
            f"direction must be 'both', 'add' or 'remove'. Received: direction={direction!r}."
        )
    orders = np.asarray(orders, dtype=np.float64)
    q, z = max(sampling_probability, _SMALLEST_PROBABILITY), noise_multiplier
    if z < 1e-150:
        return np.full(orders.shape, np.inf)
    if direction == "add" and q < 1:
        z = min(z, LARGEST_MULTIPLIER)
        return np.array([_reverse_rdp(q, z, float(order)) for order in orders])
    return SampledGaussians(np.array([q]), np.array([z])).rdp(orders)[0]
