"""Noise on whole numbers: discrete Laplace noise of an epsilon, or discrete Gaussian noise."""

import dataclasses
from fractions import Fraction

import numpy as np
import tensorflow as tf

from tfdp.events import DiscreteGaussianSumEvent, Event, PureEpsilonEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.noise.exponential import discrete_laplace

_LARGEST_MULTIPLIER = 1e7  # Variances are at most 2^100, in steps.
# What one row moves a sum by at most, in steps: sums of 2^37 rows fit into 64 bits.
STEPS = 2**26


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of one release: either of an epsilon, or of a noise multiplier.

    Attributes:
        epsilon: A row costs so much: discrete Laplace noise of scale bound / epsilon.
        noise_multiplier: Discrete Gaussian noise of so many times the bound.
    """

    epsilon: float | None
    noise_multiplier: float | None

    @staticmethod
    def of(epsilon: float | None, noise_multiplier: float | None) -> "Noise":
        """Returns the noise, if exactly one of the two is given and within its range."""
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError(
                "Give either epsilon (Laplace noise) or noise_multiplier (Gaussian noise). "
                f"Received: epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r}."
            )
        if epsilon is not None:
            limits = {"minimum": 1e-6, "inclusive": True, "maximum": 1e6}
            return Noise(real_number("epsilon", epsilon, **limits), None)
        limits = {"minimum": 1e-3, "inclusive": True, "maximum": 1e6}
        return Noise(None, real_number("noise_multiplier", noise_multiplier, **limits))

    def shared(self, number: int) -> "Noise":
        """Returns the noise of each of so many releases that together cost what this one does."""
        if self.epsilon is not None:
            return Noise(self.epsilon / number, None)
        return Noise(None, self.noise_multiplier * number**0.5 * (1 + 1e-15))

    def of_each(self, number: int) -> "Noise":
        """Returns the noise that makes so many rows of a person cost what one has cost.

        Raises:
            ValueError: no such noise can be drawn.
        """
        if number == 1:
            return self
        if self.epsilon is not None:
            return Noise(self.epsilon / number, None)
        multiplier = self.noise_multiplier * number
        if multiplier > _LARGEST_MULTIPLIER:
            raise ValueError(
                f"noise_multiplier times max_contributions must be at most {_LARGEST_MULTIPLIER:g}."
                f" Received: {self.noise_multiplier!r} and {number}. Take epsilon, or fewer rows."
            )
        return Noise(None, multiplier)

    def event(self, coordinates: int = 1) -> Event:
        """Returns the event of numbers that a row moves by `STEPS` steps in all.

        Args:
            coordinates: So many numbers are released; a row moves them by `STEPS` in l1, or in l2.
        """
        if self.epsilon is not None:
            return PureEpsilonEvent(self.epsilon)
        return DiscreteGaussianSumEvent(1.0, self.noise_multiplier, 1 / STEPS, coordinates)

    def add(self, sums: np.ndarray, source: RandomSource) -> np.ndarray:
        """Returns int64 sums with noise on every one, in units of `STEPS`, as float64."""
        if self.epsilon is not None:
            scale = STEPS / Fraction(self.epsilon)

            def release(fill, totals):
                noised = [n + discrete_laplace(fill, scale) for n in totals.tolist()]
                return [np.array(noised, np.float64)]

            (noised,) = source.on_host(release, [tf.constant(sums, tf.int64)], [tf.float64])
            return noised.numpy().reshape(sums.shape) / STEPS
        variance = (Fraction(self.noise_multiplier) * STEPS) ** 2
        noise = source.discrete_gaussian(sums.shape, variance).numpy()
        return (sums + noise).astype(np.float64) / STEPS


def in_steps(values: np.ndarray, bound: float) -> np.ndarray:
    """Returns values in [-bound, bound], rounded towards zero to bound / STEPS, as int64.

    A value that is not finite is zero. No result is beyond STEPS, whatever rounding does.
    """
    scaled = np.clip(values / bound, -1.0, 1.0) * STEPS
    scaled[~np.isfinite(values)] = 0.0
    return np.clip(scaled.astype(np.int64), -STEPS, STEPS)
