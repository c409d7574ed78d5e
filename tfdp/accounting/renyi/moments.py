"""Moments of a likelihood ratio, as accurate where privacy is good as where it is not.

Let P and Q be a mechanism's outputs for two neighbours, R = dP / dQ and L = log R. The Renyi
divergences of order a in both directions are log(A) / (a - 1) with (Mironov, Talwar and Zhang 2019,
arXiv:1908.10530, section 3)

    A = E_Q[R^a]          for D(P || Q),
    A = E_Q[R^(1 - a)]    for D(Q || P).

Where privacy is good, A is 1 plus something tiny, which would be lost in the rounding of A. Because
of E_Q[R] = 1, A - 1 is a sum of positive terms, none of which is lost. With psi(y) = e^y - 1 - y,

    A - 1 = E_P[(a - 1) psi(-L) + psi((a - 1) L)]    for D(P || Q),
    A - 1 = E_Q[(a - 1) psi(L) + psi(-(a - 1) L)]    for D(Q || P).
"""

import numpy as np
import numpy.typing as npt

# psi(y) = y^2/2 (1 + y/3 (1 + y/4 (1 + ...))). Below _NEAR four terms of it give all digits; above
# _NEAR the formula e^y - 1 - y loses only two digits.
_NEAR, _TERMS = 0.01, 4
# If y is larger than this, e^y is scaled, so that nothing overflows.
_LARGE = 600.0


def _psi(y: np.ndarray) -> np.ndarray:
    """Returns e^y - 1 - y for y below `_LARGE`."""
    result = np.expm1(y)
    result -= y
    near = np.abs(y) < _NEAR
    if near.any():
        series = np.ones_like(y)
        for k in range(_TERMS + 2, 2, -1):
            series *= y
            series /= k
            series += 1
        series *= y
        series *= y
        series /= 2
        np.copyto(result, series, where=near)
    return result


def log_sum_psi(
    log_weights: np.ndarray,
    losses: np.ndarray,
    scale: npt.ArrayLike,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Returns log(sum of weights psi(scale losses)) over the last axis.

    Guarantees:
        Relative error of the sum below 1e-12 where |log_weights| is below 1000; no overflow.

    Args:
        log_weights: Float64, broadcastable to `losses`.
        losses: Float64 of shape [..., n].
        scale: Float64 that can be broadcast to [..., 1].
        weights: exp(log_weights), from callers that ask several times.
    """
    y = np.multiply(scale, losses)
    if weights is None:
        weights = np.exp(log_weights)
    with np.errstate(divide="ignore", under="ignore"):  # Here log(0) is intended.
        if y.max() < _LARGE:
            terms = _psi(y)
            terms *= weights
            return np.log(terms.sum(axis=-1))
        exponents = log_weights + y
        shift = np.maximum(exponents.max(axis=-1, keepdims=True), 0.0)
        # If the largest term is below 1, y is small.
        small = _psi(np.minimum(y, _LARGE)) * np.where(y < 1, weights, 0.0) * np.exp(-shift)
        large = np.exp(exponents - shift) - (1 + y) * np.exp(log_weights - shift)
        return np.log(np.where(y < 1, small, large).sum(axis=-1)) + shift[..., 0]
