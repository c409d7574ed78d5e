"""Which changes of its parameters a participant shares: the largest, or some above a threshold."""

import dataclasses

import numpy as np

from tfdp.events.arguments import real_number
from tfdp.federated.selective.sparse import SparseVector, check_fraction, largest, number_of
from tfdp.noise import HostGenerator, host_generator


def finite(changes: np.ndarray) -> np.ndarray:
    """Returns the vector in float32; what is not finite has not changed, and is zero."""
    changes = np.asarray(changes)
    if changes.ndim != 1 or changes.dtype.kind != "f":
        raise ValueError(
            "changes must be one vector of floating-point numbers. Received: an array of shape "
            f"{changes.shape} and type {changes.dtype}."
        )
    with np.errstate(over="ignore"):
        changes = changes.astype(np.float32)
    return np.where(np.isfinite(changes), changes, np.float32(0))


def check_bound(name: str, value: float) -> float:
    """Returns gamma, the bound of a number that is uploaded, as a float32 that is no larger."""
    value = real_number(name, value, minimum=1e-12, inclusive=True, maximum=1e18)
    bound = np.float32(value)
    return float(np.nextafter(bound, np.float32(0)) if float(bound) > value else bound)


@dataclasses.dataclass(frozen=True)
class LargestValues:
    """Shares the largest changes.

    Of n changes the theta_u n with the largest magnitude are taken; of equal ones the first. Each
    is then bounded to [-gamma, gamma].

    Edge cases:
        Zeros, and what is not finite, are never shared. So there may be fewer changes.

    Args:
        theta_u: The fraction of all changes that is shared at most; in [0, 1].
        gamma: Bound of every number that is shared; positive.

    References:
        Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", figure 2.
    """

    theta_u: float
    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta_u", check_fraction("theta_u", self.theta_u))
        object.__setattr__(self, "gamma", check_bound("gamma", self.gamma))

    def __call__(self, changes: np.ndarray) -> SparseVector:
        """Returns what is shared of changes, [n]."""
        changes = finite(changes)
        indices = largest(np.abs(changes), number_of(self.theta_u, len(changes)))
        indices = indices[changes[indices] != 0]
        return _bounded(changes, indices, self.gamma)


@dataclasses.dataclass(frozen=True)
class RandomAboveThreshold:
    """Shares some of the changes whose magnitude is above a threshold.

    Of the changes d with |bound(d, gamma)| > tau, theta_u n are drawn, each set of so many with the
    same probability; all of them, if they are fewer. What is shared is bounded to [-gamma, gamma].

    Args:
        theta_u: The fraction of all n changes that is shared at most; in [0, 1].
        gamma: Bound of every number that is shared; positive.
        tau: The threshold, not negative.
        generator: Draws; by default keyed by the operating system. Also a `numpy.random.Generator`.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    References:
        Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", figure 2.
    """

    theta_u: float
    gamma: float
    tau: float
    generator: HostGenerator | np.random.Generator = dataclasses.field(
        default_factory=host_generator, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta_u", check_fraction("theta_u", self.theta_u))
        object.__setattr__(self, "gamma", check_bound("gamma", self.gamma))
        tau = real_number("tau", self.tau, minimum=0, inclusive=True, maximum=1e18)
        object.__setattr__(self, "tau", tau)
        object.__setattr__(self, "generator", host_generator(self.generator))

    def __call__(self, changes: np.ndarray) -> SparseVector:
        """Returns what is shared of changes, [n]."""
        changes = finite(changes)
        above = np.flatnonzero(
            np.minimum(np.abs(changes.astype(np.float64)), self.gamma) > self.tau
        )
        count = number_of(self.theta_u, len(changes))
        if count < len(above):
            above = np.sort(above[self.generator.permutation(len(above))[:count]])
        return _bounded(changes, above, self.gamma)


def _bounded(changes: np.ndarray, indices: np.ndarray, gamma: float) -> SparseVector:
    values = np.clip(changes[indices], np.float32(-gamma), np.float32(gamma))
    return SparseVector(len(changes), indices, values)
