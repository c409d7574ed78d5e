"""Renyi differential privacy of the Gaussian mechanism on truncated Poisson samples.

There are two pairs, of which it is seen which one it is (`TruncatedGaussian`): their moments
E[R^a] = exp((a - 1) D) are mixed with the probabilities 1 - tau and tau.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.mechanisms import SampledGaussian, TruncatedGaussian
from tfdp.accounting.renyi.fixed_size import rdp_of_replacement
from tfdp.accounting.renyi.gaussian import sampled_gaussian_curve

_Curve = Callable[[np.ndarray], np.ndarray]
# Above it moments of exponents are added as logarithms.
_LARGE = 30.0


def _sampled(q: float, z: float) -> _Curve:
    return sampled_gaussian_curve([SampledGaussian(q, z)], np.array([1.0]))


def _curve(mechanism: TruncatedGaussian) -> _Curve:
    q, tau = mechanism.sampling_probability, mechanism.overflow_probability
    z = mechanism.noise_multiplier
    usual = _sampled(q, z)
    crowded = rdp_of_replacement(q, z / 2) if mechanism.keeps_places else _sampled(q, z / 2)

    def curve(orders: np.ndarray) -> np.ndarray:
        logs = [(orders - 1) * part(orders) for part in (usual, crowded)]
        near = [np.expm1(np.minimum(log, _LARGE)) for log in logs]
        small = np.log1p((1 - tau) * near[0] + tau * near[1])
        with np.errstate(divide="ignore"):
            large = np.logaddexp(np.log1p(-tau) + logs[0], np.log(tau) + logs[1])
        return np.where(np.maximum(*logs) < _LARGE, small, large) / (orders - 1)

    return curve


def truncated_gaussian_curve(
    mechanisms: Sequence[TruncatedGaussian], counts: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the total divergence of `counts[i]` times `mechanisms[i]` as a function of orders."""
    curves = [_curve(mechanism) for mechanism in mechanisms]
    return lambda orders: counts @ np.array([curve(orders) for curve in curves])
