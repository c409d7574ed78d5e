"""Uniform draws on the host, for choosing samples."""

import numpy as np

from tfdp.noise.bits import Buffered, Fill, system_fill

# So many bits at a time stay in a cache.
_BITS_AT_ONCE = 1 << 20


class HostGenerator:
    """The methods of `numpy.random.Generator` that choosing a sample needs, from AES-256 bits.

    Arguments and results are NumPy's. All draws are exact: integers by rejection, never by a
    remainder; a binomial as the sum of its trials. No draw goes through a floating-point uniform,
    except for `random` itself.

    Args:
        fill: Where the bits come from; by default the operating system keys every draw.

    Example:
        >>> sorted(HostGenerator().permutation(3).tolist())
        [0, 1, 2]
    """

    def __init__(self, fill: Fill = system_fill):
        self._fill = fill

    @property
    def is_secret(self) -> bool:
        """Whether the operating system keys every draw, so that nobody can repeat one."""
        return self._fill is system_fill

    def _bits(self, count: int, dtype: type) -> np.ndarray:
        bits = np.empty(count, dtype)
        self._fill(bits)
        return bits

    def random(self, size: int) -> np.ndarray:
        """Returns float64 [size], uniform over the multiples of 2^-53 in [0, 1)."""
        return (self._bits(size, np.uint64) >> np.uint64(11)) * 2.0**-53

    def integers(self, low: int, high: int | None = None, *, size: int) -> np.ndarray:
        """Returns int64 [size], uniform over low .. high - 1; over 0 .. low - 1 without `high`.

        Raises:
            ValueError: there are no such integers, or 2^63 or more.
        """
        low, high = (0, low) if high is None else (low, high)
        if not 1 <= high - low < 2**63:
            raise ValueError(
                f"high - low must be in 1 .. 2^63 - 1. Received: low={low}, high={high}."
            )
        mask = np.uint64((1 << (int(high - low) - 1).bit_length()) - 1)
        result = np.empty(0, np.int64)
        while len(result) < size:
            # At least half of the candidates are below the limit.
            candidates = self._bits(2 * (size - len(result)) + 16, np.uint64) & mask
            kept = candidates[candidates < high - low].astype(np.int64)
            result = np.concatenate([result, kept[: size - len(result)]])
        return result + low

    def binomial(self, n: int, p: float) -> int:
        """Returns how many of n independent trials of probability p succeed.

        Guarantees:
            The probability of a trial is p to within 2^-80.

        Raises:
            ValueError: n is negative, or p is not in [0, 1].
        """
        if n < 0 or not 0 <= p <= 1:
            raise ValueError(f"n must be at least 0 and p in [0, 1]. Received: n={n}, p={p}.")
        # A trial succeeds if a uniform number is below p. Its bits are drawn, from the first on, as
        # long as they are those of p: after k bits that holds for one trial in 2^k.
        digits = int(p * 2**80)
        if digits >> 80:
            return n
        bits, successes, undecided = Buffered(self._fill), 0, n
        for place in reversed(range(80)):
            if not undecided:
                break
            ones = _count_of_ones(undecided, bits)
            if digits >> place & 1:
                successes += undecided - ones
                undecided = ones
            else:
                undecided -= ones
        return successes

    def choice(
        self, a: int, size: int, replace: bool = True, *, shuffle: bool = True
    ) -> np.ndarray:
        """Returns `size` distinct integers of 0 .. a - 1 (int64). Every ordered choice is equally
        likely, whatever `shuffle` says.

        The arguments are those of `numpy.random.Generator.choice`.

        Args:
            a: How many integers there are to choose from.
            size: How many are drawn.
            replace: Must be False: the same integer is not drawn twice.
            shuffle: Without effect; the order is always random.

        Raises:
            ValueError: `size` is larger than `a`, or `replace` is true.
        """
        if replace or not 0 <= size <= a:
            raise ValueError(
                "Distinct integers are drawn: replace must be False and size in 0 .. a. "
                f"Received: replace={replace}, size={size}, a={a}."
            )
        if 2 * size > a:
            return self.permutation(a)[:size]
        # The first `size` different values of a sequence of uniform draws.
        drawn = np.empty(0, np.int64)
        while len(drawn) < size:
            drawn = np.concatenate([drawn, self.integers(a, size=size - len(drawn))])
            drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        return drawn

    def permutation(self, n: int) -> np.ndarray:
        """Returns the integers 0 .. n - 1 (int64) in an order drawn uniformly."""
        while True:
            # Equal keys have no random order. If there are any, all keys are drawn anew.
            keys = self._bits(n, np.uint64)
            order = np.argsort(keys)
            if np.all(np.diff(keys[order]) != 0):
                return order


def _count_of_ones(count: int, fill: Fill) -> int:
    """Returns how many of so many random bits are 1."""
    ones = 0
    while count:
        part = min(count, _BITS_AT_ONCE)
        words = np.empty(-(-part // 64), np.uint64)
        fill(words)
        words[-1] >>= np.uint64(-part % 64)
        ones += _ones_in(words)
        count -= part
    return ones


def _ones_in(words: np.ndarray) -> int:
    """Returns the number of bits that are 1 in uint64 words."""
    if hasattr(np, "bitwise_count"):
        return int(np.bitwise_count(words).sum(dtype=np.int64))
    return np.count_nonzero(np.unpackbits(words.view(np.uint8)))  # NumPy 1.
