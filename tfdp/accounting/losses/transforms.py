"""What the fast Fourier transforms lose by which dp-accounting convolves probabilities.

Let e = 8 u log2(L), where u is 2^-53 and L the length of a transform.

**Transforms.** Every value of a transform is a sum of the probabilities, each times a product of
roots of unity. On its way a probability passes log2(L) butterflies, each of which adds a relative
error of 8 u at most (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 24.1,
where this is eta). The probabilities add up to 1 at most. So every value is off by e at most. The
theorem there, 24.2, is about the Euclidean norm: relative to it, too, the error is e at most.

**Powers.** Where a value z is off by e, z^n is off by n e (|z| + e)^(n - 1) at most. The power
itself is computed as exp(n log z), or by repeated products. Either adds 32 u n |z|^(n - 1) at most,
since the argument is below 4, and |z|^n n |log |z|| below 1.

**Sums of errors.** By Parseval's theorem the Euclidean norm of the errors of probabilities is that
of the errors of the transform, divided by sqrt(L). The sum of K absolute errors is at most sqrt(K)
times their Euclidean norm (Cauchy and Schwarz). Delta is a sum of probabilities with weights
between 0 and 1. So it is off by this sum at most, wherever tails are cut.
"""

import math
from typing import NamedTuple

import numpy as np

_UNIT = 2.0**-53
_BUTTERFLY = 8 * _UNIT
_POWER = 32 * _UNIT


class Rounded(NamedTuple):
    """Bounds on what is known of probabilities that were computed.

    Attributes:
        length: How many they are.
        norm: Their Euclidean norm.
        error: The sum of their absolute errors.
    """

    length: int
    norm: float
    error: float


def of_one(atoms: np.ndarray) -> Rounded:
    """Returns the bounds of probabilities that no transform has seen."""
    return Rounded(len(atoms), float(np.linalg.norm(atoms)), 0.0)


def of_power(atoms: np.ndarray, count: int, length: int) -> Rounded:
    """Returns the bounds of probabilities convolved with themselves, as dp-accounting does it.

    Args:
        atoms: The probabilities, with a sum of 1 at most.
        count: How many there are of them.
        length: How many probabilities of the sum are computed.
    """
    from scipy import fft

    size = fft.next_fast_len(max(length, len(atoms)))
    error = _BUTTERFLY * math.log2(size)
    # The transform by which this is known is off, too.
    modulus = np.abs(fft.rfft(atoms, size)) + 2 * error
    with np.errstate(under="ignore", over="ignore"):
        before = modulus ** (count - 1)
        # The last transform is one more error, relative to the norm.
        of_values = (count + 1) * (error + _POWER) * before
        norm = _norm(before * modulus, size)
        lost = math.sqrt(length) * _norm(of_values, size)
    return Rounded(length, norm + lost, lost)


def of_product(one: Rounded, other: Rounded) -> Rounded:
    """Returns the bounds of the convolution of two vectors of probabilities."""
    length = one.length + other.length
    error = _BUTTERFLY * math.log2(2 * length) + _POWER
    # Both transforms and the last one; and what was lost before, of which sums are 1 + error.
    norm = min(one.norm * (1 + other.error), other.norm * (1 + one.error))
    sums = (1 + one.error) * (1 + other.error)
    lost = error * math.sqrt(length) * (one.norm + other.norm + norm) * sums
    return Rounded(length, norm + lost, lost + one.error + other.error + one.error * other.error)


def _norm(half: np.ndarray, size: int) -> float:
    """Returns the norm of what has this transform, of which one half is given."""
    return math.sqrt(2 * float(half @ half) / size)
