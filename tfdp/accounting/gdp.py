"""Gaussian differential privacy (Dong, Roth and Su 2019, arXiv:1905.02383)."""

import math

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.mechanisms import Mechanism, PureEpsilon, SampledGaussian
from tfdp.accounting.unsampled import sampling_of
from tfdp.events import Event, UnsupportedEventError
from tfdp.events.arguments import real_number

_EXPLANATION = (
    "Its central limit theorem is not an upper bound: it can promise more privacy than there is. "
    "Use PRVAccountant, PLDAccountant or RDPAccountant for a guarantee; "
    "GDPAccountant(asymptotic=True).asymptotic_epsilon(delta) is the approximation."
)


def _mu_of_pure(epsilon: float) -> float:
    """Returns mu of Gaussian privacy that epsilon-differential privacy implies.

    The trade-off curve of the latter goes in straight lines from (0, 1) by (t, t) to (1, 0), with
    t = 1 / (1 + e^epsilon). A convex one from the same ends by the same point is below it.
    """
    from scipy import special

    if epsilon < 1e-4:  # The curve's tangent at zero, which is above it here.
        return epsilon * math.sqrt(math.pi / 2)
    return -2 * float(special.ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))


def _mu_by_central_limit(mechanism: SampledGaussian) -> float:
    """Returns mu, per step, to which many Poisson-sampled Gaussians tend."""
    inverse = 1 / mechanism.noise_multiplier
    if inverse * inverse > 700:
        return math.inf
    return mechanism.sampling_probability * math.sqrt(math.expm1(inverse * inverse))


class GDPAccountant(Accountant):
    """Adds up the squares of mu, where a step is as private as N(mu, 1) and N(0, 1).

    Guarantees:
        Epsilon and delta are upper bounds, and exact for Gaussians without sampling. Sampled
        mechanisms are refused, unless `asymptotic`: then `asymptotic_epsilon` gives the limit of
        many Poisson-sampled Gaussians (Bu et al. 2020, arXiv:1911.11607, section 3)

            mu^2 = sum of q^2 (e^(1 / z^2) - 1),

        which is NOT an upper bound, and `get_epsilon` and `get_delta` refuse to give it.

    Edge cases:
        A pure mechanism is charged with mu = -2 Phi^-1(1 / (1 + e^epsilon)). A sampled one is
        priced by its epsilon where that is pure, otherwise it is refused.

    Args:
        asymptotic: Accept Poisson-sampled Gaussians, to ask for `asymptotic_epsilon`.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> accountant = GDPAccountant().compose(GaussianSumEvent(1.0, noise_stddev=4.0), count=16)
        >>> round(accountant.get_epsilon(1e-5), 3)
        4.377
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> accountant.supports(step)
        False
        >>> asymptotic = GDPAccountant(asymptotic=True).compose(step, count=10_000)
        >>> asymptotic
        GDPAccountant(asymptotic=True): a central limit, NOT an upper bound
        >>> round(asymptotic.asymptotic_epsilon(1e-5), 3)
        0.942
    """

    takes_many_kinds = True
    prices = {
        SampledGaussian: lambda m: 1 / m.noise_multiplier,
        PureEpsilon: lambda m: _mu_of_pure(m.epsilon),
    }

    def __init__(self, asymptotic: bool = False):
        super().__init__()
        if not isinstance(asymptotic, bool):
            raise TypeError(f"asymptotic must be True or False. Received: {asymptotic!r}.")
        self._asymptotic = asymptotic

    def __repr__(self) -> str:
        if self._asymptotic:
            return "GDPAccountant(asymptotic=True): a central limit, NOT an upper bound"
        return "GDPAccountant()"

    def asymptotic_epsilon(self, target_delta: float) -> float:
        """Returns the epsilon of the limit; NOT an upper bound where anything is sampled."""
        delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
        mu = self._mu(guaranteed=False)
        if mu == 0 or delta == 1:
            return 0.0
        return math.inf if mu == math.inf else gaussian_epsilon(mu, delta)

    def asymptotic_delta(self, target_epsilon: float) -> float:
        """Returns the delta of the limit; NOT an upper bound where anything is sampled."""
        epsilon = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=True)
        mu = self._mu(guaranteed=False)
        if mu == 0:
            return 0.0
        return 1.0 if mu == math.inf else gaussian_delta(mu, epsilon)

    def _priced(self, mechanism: Mechanism, event: Event) -> Mechanism:
        sampling = sampling_of(mechanism)
        accepted = self._asymptotic and isinstance(mechanism, SampledGaussian)
        if sampling is not None and not accepted:
            raise UnsupportedEventError(
                f"{type(self).__name__} cannot price {sampling}: {event!r}. {_EXPLANATION}"
            )
        return super()._priced(mechanism, event)

    def _mu(self, guaranteed: bool) -> float:
        failing = self._failure_probability() + self._lost_probability() > 0
        if self._is_non_private() or (not guaranteed and failing):
            return math.inf
        squares = []
        for mechanism, count in self._terms():
            if sampling_of(mechanism) is None:
                mu = self.prices[type(mechanism)](mechanism)
            elif guaranteed:
                raise UnsupportedEventError(f"This is no bound of {mechanism!r}. {_EXPLANATION}")
            else:
                mu = _mu_by_central_limit(mechanism)
            squares.append(math.sqrt(count) * mu)
        return math.hypot(*squares)

    def _epsilon(self, delta: float) -> float:
        return gaussian_epsilon(self._mu(guaranteed=True), delta)

    def _delta(self, epsilon: float) -> float:
        return gaussian_delta(self._mu(guaranteed=True), epsilon)
