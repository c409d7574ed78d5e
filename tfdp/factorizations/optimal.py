"""Factors with the smallest error (Choquette-Choo et al. 2023, arXiv:2306.08153, section 4)."""

import functools
from typing import Any

import numpy as np

from tfdp.factorizations.toeplitz import (
    ToeplitzFactorization,
    banded_square_root,
    periodic_sum,
)

_ERRORS = ("root_mean_squared", "max")


@functools.lru_cache(maxsize=64)
def optimal_banded(
    num_steps: int, bands: int, period: int | None = None, *, error: str = "root_mean_squared"
) -> ToeplitzFactorization:
    """Returns the Toeplitz C of so many bands whose running sums have the smallest error.

    Error times sensitivity, as `ToeplitzFactorization` has them, is minimized over the bands by
    L-BFGS, with its exact gradient, from the square root's bands on. No band becomes negative, so
    that the sensitivity is exact.

    Guarantees:
        The result is never worse than `banded_square_root(bands)`.

    Args:
        num_steps: n.
        bands: Of C, the diagonal included; at most n.
        period: As in `ToeplitzFactorization.sensitivity`.
        error: "root_mean_squared" or "max".

    Raises:
        ValueError: there are more bands than steps, or `error` is another one.

    Example:
        >>> best, root = optimal_banded(64, 4), banded_square_root(4)
        >>> best.root_mean_squared_error(64) < root.root_mean_squared_error(64)
        True
    """
    from scipy import optimize

    if error not in _ERRORS:
        raise ValueError(f"error must be one of {_ERRORS}. Received: error={error!r}.")
    start = banded_square_root(bands)
    if bands > num_steps:
        raise ValueError(
            f"bands must be at most num_steps. Received: bands={bands}, num_steps={num_steps}."
        )
    if bands == 1:
        return start
    spacing = num_steps if period is None else period
    steps = np.arange(num_steps, 0, -1) / num_steps
    weights = steps if error == "root_mean_squared" else np.ones(num_steps)
    found: Any = optimize.minimize(
        _log_loss,
        np.array(start.numerator[1:]),
        args=(num_steps, spacing, weights),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * (bands - 1),
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30},
    )
    coefficients = np.trim_zeros(np.append(1.0, found.x), "b")
    best = ToeplitzFactorization(numerator=tuple(coefficients.tolist()))
    measure = (
        ToeplitzFactorization.root_mean_squared_error
        if error == "root_mean_squared"
        else ToeplitzFactorization.max_error
    )
    return min(best, start, key=lambda each: measure(each, num_steps, period))


def _log_loss(
    free: np.ndarray, num_steps: int, period: int, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Returns log(sensitivity^2) + log(sum_t w_t b_t^2), and its gradient by p_1, p_2, ...

    With d the series of 1 / p, b its running sums: the derivative of d by p_j is -d * d, j steps
    later, and that of b likewise minus the running sums e of d * d.
    """
    from scipy import signal

    p = np.append(1.0, free)
    bands = len(p)
    column = np.zeros(num_steps)
    column[:bands] = p
    moved = periodic_sum(column, period)
    impulse = np.zeros(num_steps)
    impulse[0] = 1
    d = signal.lfilter([1.0], p, impulse)
    b = np.cumsum(d)
    e = np.cumsum(signal.fftconvolve(d, d)[:num_steps])
    squared_sensitivity, squared_error = float(moved @ moved), float(weights @ (b * b))
    if not np.isfinite(squared_error):
        return 1e300, np.zeros(bands - 1)
    # Of sensitivity^2 by p_j: 2 sum_k moved_{j + k period}.
    backwards = periodic_sum(moved[::-1], period)[::-1]
    weighted = weights * b
    by_error = np.array([weighted[j:] @ e[: num_steps - j] for j in range(1, bands)])
    gradient = 2 * backwards[1:bands] / squared_sensitivity - 2 * by_error / squared_error
    return float(np.log(squared_sensitivity) + np.log(squared_error)), gradient
