"""Factors with the smallest error (Choquette-Choo et al. 2023, arXiv:2306.08153, section 4)."""

import functools
from typing import Any

import numpy as np

from tfdp.factorizations.toeplitz import (
    ToeplitzFactorization,
    banded_square_root,
    check_steps,
    one_step_back,
    periodic_sum,
)

_ERRORS = ("root_mean_squared", "max")
_MOST_BUFFERS = 10


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
    return min(best, start, key=lambda each: _error_of(each, error, num_steps, period))


@functools.lru_cache(maxsize=64)
def optimal_one_step_back(
    num_steps: int, period: int | None = None, *, error: str = "root_mean_squared"
) -> ToeplitzFactorization:
    """Returns the `one_step_back` whose running sums have the smallest error.

    Its lambda is the best of a grid of 1 - lambda with equal factors, and then the best between
    that one's neighbours.

    Args:
        num_steps: n.
        period: As in `ToeplitzFactorization.sensitivity`.
        error: "root_mean_squared" or "max".

    Raises:
        ValueError: `error` is another one.

    Example:
        >>> round(-optimal_one_step_back(1024).denominator[1], 3)
        0.957

    References:
        Kalinin, McKenna, Pagh and Lampert 2026, arXiv:2601.22334 (DP-lambda-CGD).
    """
    from scipy import optimize

    if error not in _ERRORS:
        raise ValueError(f"error must be one of {_ERRORS}. Received: error={error!r}.")

    def error_at(log_rest: float) -> float:
        return _error_of(one_step_back(-np.expm1(log_rest)), error, num_steps, period)

    grid = np.linspace(0.0, np.log(1e-6), 57)
    best = int(np.argmin([error_at(each) for each in grid]))
    between = grid[min(best + 1, len(grid) - 1)], grid[max(best - 1, 0)]
    found: Any = optimize.minimize_scalar(
        error_at, bounds=between, method="bounded", options={"xatol": 1e-9}
    )
    return one_step_back(-np.expm1(min(grid[best], found.x, key=error_at)))


def _log_loss(
    free: np.ndarray, num_steps: int, period: int, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Returns log(sensitivity^2) + log(sum_t w_t b_t^2), and its gradient by p_1, p_2, ...

    Let d be the series of 1 / p, and b its running sums. The derivative of d by p_j is -d * d, j
    steps later. That of b is likewise minus the running sums e of d * d.
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


def _error_of(
    factorization: ToeplitzFactorization, error: str, num_steps: int, period: int | None
) -> float:
    of_kind = {
        "root_mean_squared": factorization.root_mean_squared_error,
        "max": factorization.max_error,
    }
    return of_kind[error](num_steps, period)


@functools.lru_cache(maxsize=64)
def optimal_buffered(
    num_steps: int, buffers: int, period: int | None = None, *, error: str = "root_mean_squared"
) -> ToeplitzFactorization:
    """Returns the buffered linear Toeplitz C (BLT) with the smallest error.

    C(x) = prod_d (1 - b_d x) / (1 - a_d x), whose column decays as a sum of `buffers` powers and
    never ends. So few numbers are remembered, and errors are close to those of all bands. With 1 >
    a_1 > b_1 > a_2 > b_2 > ... > 0 neither C nor its sensitivity's bound has a negative entry, so
    that the sensitivity is exact. These are found by L-BFGS from a spread over all scales of time.

    Args:
        num_steps: n.
        buffers: How many numbers of a coordinate are remembered; 1 to 10. Two are enough for
            thousands of steps, and four for all.
        period: As in `ToeplitzFactorization.sensitivity`.
        error: "root_mean_squared" or "max".

    Raises:
        TypeError: `buffers` is no integer.
        ValueError: `buffers` is out of range, or `error` is another one.

    Example:
        >>> best = optimal_buffered(1024, 4)
        >>> best.memory(1024), best.bands
        (4, None)

    References:
        McMahan, Xu, Zhang 2024, arXiv:2408.08868; Dvijotham, McMahan, Pillutla, Steinke, Thakurta
        2024, arXiv:2404.16706 (rational approximation of the square root).
    """
    from scipy import optimize

    if error not in _ERRORS:
        raise ValueError(f"error must be one of {_ERRORS}. Received: error={error!r}.")
    if check_steps("buffers", buffers) > _MOST_BUFFERS:
        raise ValueError(f"buffers must be at most {_MOST_BUFFERS}. Received: buffers={buffers}.")
    count = 2 * buffers
    # 1 - v falls by equal factors from 1 to 1 / n.
    values = 1 - (num_steps + 1.0) ** -((count - np.arange(count) - 0.5) / count)
    ratios = values / np.append(1.0, values[:-1])
    spacing = num_steps if period is None else period
    steps = np.arange(num_steps, 0, -1) / num_steps
    weights = steps if error == "root_mean_squared" else np.ones(num_steps)
    found: Any = optimize.minimize(
        _log_loss_of_buffers,
        np.log(ratios / (1 - ratios)),
        args=(num_steps, spacing, weights),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-12.0, 25.0)] * count,
        options={"maxiter": 2000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30},
    )
    best = [_buffered(_descending(found.x))]
    if buffers > 1:
        best.append(optimal_buffered(num_steps, buffers - 1, period, error=error))
    return min(best, key=lambda each: _error_of(each, error, num_steps, period))


def _descending(free: np.ndarray) -> np.ndarray:
    """Returns 1 > v_1 > v_2 > ... > 0 from the logits of ratios of neighbours."""
    return np.cumprod(1 / (1 + np.exp(-free)))


def _log_loss_of_buffers(
    free: np.ndarray, num_steps: int, period: int, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Returns log(sensitivity^2) + log(sum_t w_t b_t^2), and its gradient.

    The series C has the derivative C x / (1 - v x) by the v of a denominator, and minus that by one
    of a numerator. The series of 1 / C has the same with the other sign.
    """
    from scipy import signal

    values = _descending(free)
    # One after the other, the factors lose no digits to speak of where their product would.
    denominators, numerators = (
        np.stack([np.ones(len(roots)), -roots, np.zeros(len(roots))], 1)
        for roots in (values[::2], values[1::2])
    )
    impulse = np.zeros(num_steps)
    impulse[0] = 1
    column = signal.sosfilt(np.hstack([numerators, denominators]), impulse)
    inverse = signal.sosfilt(np.hstack([denominators, numerators]), impulse)
    moved, b = periodic_sum(column, period), np.cumsum(inverse)
    squared_sensitivity, squared_error = float(moved @ moved), float(weights @ (b * b))
    # The derivatives of the two logarithms by the entries of the two series.
    by_column = 2 * periodic_sum(moved[::-1], period)[::-1] / squared_sensitivity
    by_inverse = 2 * np.cumsum((weights * b)[::-1])[::-1] / squared_error
    by_value = np.zeros(len(values))
    for k, v in enumerate(values):
        of_column, of_inverse = signal.lfilter([0.0, 1.0], [1.0, -v], [column, inverse])
        by_value[k] = (-1) ** k * (by_column @ of_column - by_inverse @ of_inverse)
    # A ratio is a factor of its own value and of all after it.
    downwards = np.cumsum((by_value * values)[::-1])[::-1]
    gradient = downwards / (1 + np.exp(free))
    return float(np.log(squared_sensitivity) + np.log(squared_error)), gradient


def _buffered(values: np.ndarray) -> ToeplitzFactorization:
    """Returns the factorization of a_1, b_1, a_2, b_2, ..."""

    def polynomial(roots: np.ndarray) -> tuple[float, ...]:
        coefficients = np.array([1.0])
        for root in roots:
            coefficients = np.convolve(coefficients, [1.0, -root])
        return tuple(coefficients.tolist())

    return ToeplitzFactorization(polynomial(values[1::2]), polynomial(values[::2]))
