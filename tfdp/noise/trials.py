"""Independent trials, many at once: of given probabilities, or a few successes among very many."""

import numpy as np
from scipy import special

from tfdp.noise.bits import Fill

# So many gaps are drawn at once; of each about 20 words of 64 bits.
_MOST_GAPS = 2**14


def trials(fill: Fill, probabilities: np.ndarray) -> np.ndarray:
    """Returns bool of the shape of `probabilities`, each true with its own, independently.

    Guarantees:
        The probability is the given one to within 2^-64, and exactly so where it is 0 or 1.

    Args:
        fill: Writes random bits.
        probabilities: float64, in [0, 1].
    """
    words = np.empty(probabilities.shape, np.uint64)
    fill(words)
    certain = probabilities >= 1
    limits = (np.where(certain, 0.0, probabilities) * 2.0**64).astype(np.uint64)
    return (words < limits) | certain


def successes(fill: Fill, number: int, probability: float) -> np.ndarray:
    """Returns which of `number` independent trials of one probability p succeed, in time
    proportional to how many do.

    The failures between two successes are a geometric number, P(G >= k) = (1 - p)^k. Its binary
    digits are independent: digit i is one with probability 1 / (1 + (1 - p)^(-2^i)).

    Guarantees:
        Every trial succeeds with probability p, independently of all others, but for the rounding
        of the digits' probabilities to float64 and of the comparisons to 2^-64. So the number of
        successes is binomial, and given their number all places are equally likely.

    Args:
        fill: Writes random bits.
        number: Of trials; below 2^48, so that gaps add up within 64 bits.
        probability: p, in [0, 1].

    Returns:
        int64, rising, each in 0 .. number - 1.

    References:
        Devroye 1986, "Non-uniform random variate generation", section X.4.3 (waiting times).
    """
    if probability <= 0:
        return np.empty(0, np.int64)
    if probability >= 1:
        return np.arange(number, dtype=np.int64)
    found, last = [np.empty(0, np.int64)], -1
    while last < number - 1:
        expected = (number - 1 - last) * probability
        size = int(min(expected + 4 * expected**0.5 + 4, _MOST_GAPS))
        places = last + np.cumsum(_gaps(fill, number, probability, size) + 1)
        found.append(places[places < number])
        last = int(places[-1])
    return np.concatenate(found)


def _gaps(fill: Fill, number: int, probability: float, size: int) -> np.ndarray:
    """Returns int64 [size]: failures before a success, or `number` where there are as many."""
    digits = int(number).bit_length()
    powers = 2.0 ** np.arange(digits + 1) * np.log1p(-probability)
    # Behind the digits of numbers below 2^digits comes whether the gap is larger than those.
    chances = special.expit(powers)
    chances[-1] = np.exp(powers[-1])
    drawn = trials(fill, np.broadcast_to(chances, (size, digits + 1)))
    gaps = drawn[:, :-1].astype(np.int64) @ (1 << np.arange(digits, dtype=np.int64))
    return np.where(drawn[:, -1], number, np.minimum(gaps, number))
