"""How many runs a private search makes: a secret random number."""

import abc
import dataclasses
import math

from tfdp.events import Event, PoissonSelectedRunEvent, RunEvent, SelectedRunEvent
from tfdp.events.arguments import real_number
from tfdp.noise import HostGenerator

# float64 holds exponentials up to here.
_LARGEST_EXPONENT = 700


class NumberOfRuns(abc.ABC):
    """A distribution of the number K of runs."""

    @abc.abstractmethod
    def draw(self, generator: HostGenerator) -> int:
        """Returns K, exact to within the resolution of float64 (2^-53)."""

    @abc.abstractmethod
    def event(self, runs: tuple[RunEvent, ...]) -> Event:
        """Returns the event of the search."""


@dataclasses.dataclass(frozen=True)
class TruncatedNegativeBinomialRuns(NumberOfRuns):
    """At least one run. With the shape 1 the number is geometric, with 0 logarithmic.

    Args:
        success_probability: gamma, in (0, 1). With shape 1 the mean is 1 / gamma.
        shape: eta, above -1. The smaller, the less a search costs, and the more its length varies.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is out of range.

    Example:
        >>> round(TruncatedNegativeBinomialRuns(0.05).mean, 9)
        20.0

    References:
        Papernot and Steinke 2022, arXiv:2110.03620, definition 1.
    """

    success_probability: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        gamma = real_number(
            "success_probability", self.success_probability, minimum=0, inclusive=False, maximum=1
        )
        shape = real_number("shape", self.shape, minimum=-1, inclusive=False, maximum=1000)
        if gamma == 1:
            raise ValueError("success_probability must be below 1. Received: 1.")
        if -shape * math.log(gamma) > _LARGEST_EXPONENT:
            raise ValueError(
                "success_probability ** -shape must be at most exp(700), or no float64 holds the "
                f"probabilities. Take a smaller shape. Received: success_probability={gamma!r}, "
                f"shape={shape!r}."
            )
        object.__setattr__(self, "success_probability", gamma)
        object.__setattr__(self, "shape", shape)

    @property
    def mean(self) -> float:
        """The expected number of runs."""
        gamma, eta = self.success_probability, self.shape
        if eta == 0:
            return (1 - gamma) / gamma / -math.log(gamma)
        return eta * (1 - gamma) / gamma / -math.expm1(eta * math.log(gamma))

    def draw(self, generator: HostGenerator) -> int:
        gamma, eta = self.success_probability, self.shape
        # P(K = 1); with shape 0 the limit of eta / (gamma^-eta - 1).
        scale = -1 / math.log(gamma) if eta == 0 else eta / math.expm1(-eta * math.log(gamma))
        number, probability = 1, scale * (1 - gamma)
        left = float(generator.random(1)[0]) - probability
        while left >= 0 and probability > 0:
            probability *= (1 - gamma) * (number + eta) / (number + 1)
            number += 1
            left -= probability
        return number

    def event(self, runs: tuple[RunEvent, ...]) -> Event:
        return SelectedRunEvent(runs, self.shape, self.success_probability)


@dataclasses.dataclass(frozen=True)
class PoissonRuns(NumberOfRuns):
    """A number of runs that varies little; none with probability exp(-mean).

    Args:
        mean: At least 1, at most 700.

    Raises:
        TypeError: `mean` is not a number.
        ValueError: it is out of range.

    References:
        Papernot and Steinke 2022, arXiv:2110.03620, theorem 6.
    """

    mean: float

    def __post_init__(self) -> None:
        mean = real_number("mean", self.mean, minimum=1, inclusive=True, maximum=_LARGEST_EXPONENT)
        object.__setattr__(self, "mean", mean)

    def draw(self, generator: HostGenerator) -> int:
        number, probability = 0, math.exp(-self.mean)
        left = float(generator.random(1)[0]) - probability
        while left >= 0 and probability > 0:
            number += 1
            probability *= self.mean / number
            left -= probability
        return number

    def event(self, runs: tuple[RunEvent, ...]) -> Event:
        return PoissonSelectedRunEvent(runs, self.mean)
