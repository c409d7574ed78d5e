"""Counts of partitions of the data, such as groups by a column, and which of them may be named."""

import dataclasses
import functools
import math
import statistics
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    Event,
    NonPrivateEvent,
    PureEpsilonEvent,
)
from tfdp.events.arguments import positive_integer, real_number
from tfdp.noise import RandomSource
from tfdp.noise.bits import Fill
from tfdp.noise.exponential import bernoulli, discrete_laplace, exp_bounds
from tfdp.query import grid
from tfdp.query.arguments import check_random_source, noise_stddev, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.leaves import whole
from tfdp.query.scores import vector
from tfdp.query.structure import Structure, tensor_of

# For each partition; noise of this size is far beyond the number of records anywhere.
_SMALLEST_EPSILON = 1e-9
# For each partition; numbers from here on, and one over them, are floats of full precision.
_SMALLEST_DELTA = 1e-300
# Rows of a table of probabilities, which takes about a second to compute.
_MOST_ROWS = 2**20


class HistogramResult(NamedTuple):
    """Noised counts. Where partitions are those that occur in the data, k is not public, and only
    the kept ones may be shown.

    Attributes:
        kept: bool [k]; true everywhere where there is no threshold.
        counts: float64 [k], noised; zero where a count was not kept.
    """

    kept: tf.Tensor
    counts: tf.Tensor


class _PartitionsQuery(SumAggregationDPQuery):
    """What counts of partitions have in common: the sum is int64 [k], the records in each."""

    max_partitions: int

    @property
    def has_numeric_result(self) -> bool:
        return False

    def initial_sample_state(self, template: Structure) -> Structure:
        return tf.zeros(vector(template).shape, tf.int64)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        numbers = tf.cast(tensor_of(vector(record)), tf.float64)
        is_in = (numbers > 0) & tf.reduce_all(tf.math.is_finite(numbers))
        found = tf.cast(is_in, tf.int64)
        return tf.where(tf.cumsum(found) <= self.max_partitions, found, tf.zeros_like(found))

    def _check(self) -> None:
        object.__setattr__(
            self, "max_partitions", positive_integer("max_partitions", self.max_partitions)
        )
        check_random_source(self.random_source)

    def _set_delta(self, name: str) -> None:
        delta = real_number(name, getattr(self, name), minimum=0, inclusive=False, maximum=0.5)
        if delta / self.max_partitions < _SMALLEST_DELTA:
            raise ValueError(
                f"{name} / max_partitions must be at least {_SMALLEST_DELTA}. Received: "
                f"{name}={delta}, max_partitions={self.max_partitions}."
            )
        object.__setattr__(self, name, delta)

    def _event(self, event: Event) -> Event:
        return NonPrivateEvent() if source_of(self).seeded else event


def _epsilon(query: "PartitionSelectionQuery | HistogramQuery") -> float:
    epsilon = real_number("epsilon", query.epsilon, minimum=0, inclusive=False, maximum=1e6)
    if epsilon / query.max_partitions < _SMALLEST_EPSILON:
        raise ValueError(
            f"epsilon / max_partitions must be at least {_SMALLEST_EPSILON}. Received: "
            f"epsilon={epsilon}, max_partitions={query.max_partitions}."
        )
    return epsilon


@dataclasses.dataclass(frozen=True)
class PartitionSelectionQuery(_PartitionsQuery):
    """Says which partitions of the data may be named; records say which ones they are in.

    A partition with n records is kept with the largest probabilities that (e, d)-differential
    privacy allows, e and d being `epsilon` and `delta` divided by `max_partitions`:

        p(0) = 0,   p(n + 1) = min(e^e p(n) + d, 1 - e^-e (1 - p(n) - d), 1)

    A record is a vector [k], positive where it is in the partition; of its partitions the first
    `max_partitions` count. A partition without records is never kept, so that the k partitions may
    be those that occur in the data, in an order that does not depend on which occur (sorted).

    Guarantees:
        The event is `EpsilonDeltaEvent(epsilon, delta)`. Probabilities are rational bounds with as
        many digits as a draw takes: no rounding has a part in them.

        Where the k partitions are those that occur in the data, that holds for the names of the
        kept ones. The result itself tells k, which may follow a single record, and the places of
        those that were not kept: keep it to yourself.

    Edge cases:
        A record with a NaN or infinity is in no partition.

    Args:
        epsilon: Positive, at most 1e6.
        delta: In (0, 0.5]. With e and d as above, 2 log(1 / d) / e may be 2^20 at most. d may be
            1e-300 at least.
        max_partitions: So many partitions of a record count.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = PartitionSelectionQuery(epsilon=10.0, delta=1e-9)
        >>> print(query.get_noised_result(tf.constant([0, 40], tf.int64), ())[0].numpy())
        [False  True]

    References:
        Desfontaines, Voss, Gipson, Mandayam 2020, "Differentially private partition selection",
        arXiv:2006.03684, theorem 1.
    """

    epsilon: float
    delta: float
    max_partitions: int = 1
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "epsilon", _epsilon(self))
        self._set_delta("delta")
        rows = 2 * math.log(self.max_partitions / self.delta) * self.max_partitions / self.epsilon
        if rows > _MOST_ROWS:
            raise ValueError(
                "2 log(max_partitions / delta) max_partitions / epsilon, about the number of "
                f"records from which a partition is kept for sure, must be at most {_MOST_ROWS}. "
                f"Received: epsilon={self.epsilon}, delta={self.delta}, "
                f"max_partitions={self.max_partitions}."
            )

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        state = whole(sample_state)
        each = (
            Fraction(self.epsilon) / self.max_partitions,
            Fraction(self.delta) / self.max_partitions,
        )

        def select(fill, counts):
            return [np.array([is_kept(fill, n, *each) for n in counts.tolist()], np.bool_)]

        (kept,) = source_of(self).on_host(select, [state], [tf.bool])
        kept = tf.reshape(kept, tf.shape(state))
        return kept, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        return self._event(EpsilonDeltaEvent(self.epsilon, self.delta))


def is_kept(fill: Fill, count: int, epsilon: Fraction, delta: Fraction) -> bool:
    """Returns whether a partition is kept; see `PartitionSelectionQuery`.

    Args:
        fill: Writes random bits.
        count: Records in the partition.
        epsilon: e, for each partition.
        delta: d, for each partition.
    """
    return bernoulli(fill, lambda digits: keep_probability(count, epsilon, delta, digits))


def keep_probability(
    count: int, epsilon: Fraction, delta: Fraction, digits: int = 40
) -> tuple[Fraction, Fraction]:
    """Returns bounds of the probability p(count) with which a partition is kept.

    Args:
        count: Records in the partition; a negative number is none.
        epsilon: e, for each partition.
        delta: d, for each partition.
        digits: About so many decimal digits of the bounds are the same.
    """
    bits = 4 * digits + (1 / delta).numerator.bit_length() - (1 / delta).denominator.bit_length()
    low, high = _keep_table(epsilon, delta, bits)
    row = min(max(count, 0), len(low) - 1)
    return Fraction(low[row], 1 << bits), Fraction(high[row], 1 << bits)


@functools.lru_cache(maxsize=4)
def _keep_table(
    epsilon: Fraction, delta: Fraction, bits: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns bounds of p(0), p(1), ... in units of 2^-bits, up to the first that is one."""
    one = 1 << bits
    least, most = exp_bounds(epsilon, bits)
    # e^-epsilon and e^epsilon, and both times delta, each rounded outwards.
    shrink = math.floor(least * one), math.ceil(most * one)
    # Beyond one, where a table has two rows.
    grow = math.floor(one / most), math.ceil(one / least) if least else one << bits
    small = math.floor(delta * one), math.ceil(delta * one)
    low, high = [0], [0]
    while low[-1] < one:
        p, q = low[-1], high[-1]
        rest = one - p - small[0], one - q - small[1]
        low.append(min((grow[0] * p >> bits) + small[0], one - _up(shrink[1] * rest[0], bits), one))
        high.append(
            min(_up(grow[1] * q, bits) + small[1], one - (shrink[0] * rest[1] >> bits), one)
        )
    return tuple(low), tuple(high)


def _up(number: int, bits: int) -> int:
    return -(-number >> bits)


@dataclasses.dataclass(frozen=True)
class HistogramQuery(_PartitionsQuery):
    """Counts the records in each of k partitions, with discrete Laplace noise.

        count_j = #{i: r_i is in j} + x_j,   P(x) proportional to exp(-|x| epsilon / max_partitions)

    Records are those of `PartitionSelectionQuery`. Without `threshold_delta` the partitions must be
    public. With it they may be those that occur in the data. Then a partition is released only if
    its noised count is at least `threshold`. A partition of one record reaches that with
    probability threshold_delta / max_partitions at most. A partition without records is never
    released.

    Guarantees:
        The event is `PureEpsilonEvent(epsilon)`, or `EpsilonDeltaEvent(epsilon, threshold_delta)`.
        Counts are integers, the noise is exact.

        Where the partitions are those that occur in the data, that holds for the kept ones, their
        names and their counts. The length of the result is no part of it: see
        `PartitionSelectionQuery`.

    Edge cases:
        A record with a NaN or infinity is in no partition.

    Args:
        epsilon: As in `PartitionSelectionQuery`.
        max_partitions: Likewise.
        threshold_delta: In (0, 0.5], and 1e-300 `max_partitions` at least; or None.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = HistogramQuery(epsilon=100.0, threshold_delta=1e-6)
        >>> query.threshold
        2
        >>> result = query.get_noised_result(tf.constant([0, 5, 1], tf.int64), ())[0]
        >>> print(result.kept.numpy(), result.counts.numpy())
        [False  True False] [0. 5. 0.]

    References:
        Ghosh, Roughgarden, Sundararajan 2009, arXiv:0811.2841 (the noise); Korolova, Kenthapadi,
        Mishra, Ntoulas 2009, "Releasing search queries and clicks privately" (the threshold).
    """

    epsilon: float
    max_partitions: int = 1
    threshold_delta: float | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "epsilon", _epsilon(self))
        if self.threshold_delta is not None:
            self._set_delta("threshold_delta")

    @functools.cached_property
    def threshold(self) -> int | None:
        """The least noised count that is released; None where all are."""
        if self.threshold_delta is None:
            return None
        each = Fraction(self.epsilon) / self.max_partitions
        delta = Fraction(self.threshold_delta) / self.max_partitions
        # P(x >= m) = e^(-m epsilon) / (1 + e^-epsilon) for m >= 1, which is rounded up.
        _, ratio = exp_bounds(each, 40)
        exponent = math.log(1 / delta) - math.log1p(float(ratio))
        excess = max(1, math.floor(exponent / float(each)) - 1)
        while exp_bounds(excess * each, 40)[1] > delta * (1 + exp_bounds(each, 40)[0]):
            excess += 1
        return 1 + excess

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        state = whole(sample_state)
        scale = Fraction(self.max_partitions) / Fraction(self.epsilon)
        threshold = self.threshold

        def release(fill, sums):
            noised = [n + discrete_laplace(fill, scale) for n in sums.tolist()]
            kept = [
                threshold is None or (n > 0 and x >= threshold)
                for n, x in zip(sums.tolist(), noised, strict=True)
            ]
            return [np.array(kept, np.bool_), np.where(kept, np.float64(noised), 0.0)]

        kept, counts = source_of(self).on_host(release, [state], [tf.bool, tf.float64])
        shape = tf.shape(state)
        result = HistogramResult(tf.reshape(kept, shape), tf.reshape(counts, shape))
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        if self.threshold_delta is None:
            return self._event(PureEpsilonEvent(self.epsilon))
        return self._event(EpsilonDeltaEvent(self.epsilon, self.threshold_delta))


@dataclasses.dataclass(frozen=True)
class GaussianHistogramQuery(_PartitionsQuery):
    """Counts the records in each of k partitions, with discrete Gaussian noise.

    As `HistogramQuery`; better where a record is in many partitions, because noise grows with the
    square root of `max_partitions` only, and where many releases are composed.

    Guarantees:
        The event is `DiscreteGaussianSumEvent` of the bound sqrt(max_partitions), and with
        `threshold_delta` beside it `EpsilonDeltaEvent(0, threshold_delta)`. That is what they cost
        together: let X and X' be the results of neighbours without the partitions that only the
        larger one has. These are released with probability d <= `threshold_delta` at most, so that
        the larger data set's result is (1 - d) X' + d Y. Let h(a) be the hockey-stick divergence of
        X and X' at a, which is convex with h(0) = 1. Then that of X and of (1 - d) X' + d Y is at
        most h(a (1 - d)) <= (1 - d) h(a) + d.

        With partitions that occur in the data that holds for the kept ones, as in `HistogramQuery`.

    Edge cases:
        As in `HistogramQuery`.

    Args:
        stddev: Of the noise on every count; from 2^-20 to 2^19 times sqrt(max_partitions).
        max_partitions: So many partitions of a record count; at most 2^20.
        threshold_delta: As in `HistogramQuery`, or None: all counts are released.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    References:
        Swanberg, Desfontaines, Haney 2023, "DP-SIPS", arXiv:2301.01998, section 2 (the threshold).
    """

    stddev: float
    max_partitions: int = 1
    threshold_delta: float | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        stddev = noise_stddev("stddev", self.stddev)
        if stddev == 0 or self.max_partitions > 2**20:
            raise ValueError(
                "stddev must be positive and max_partitions at most 2^20. Received: "
                f"stddev={stddev!r}, max_partitions={self.max_partitions!r}."
            )
        grid.noise_variance(self._bound, stddev)
        object.__setattr__(self, "stddev", stddev)
        if self.threshold_delta is not None:
            self._set_delta("threshold_delta")

    @property
    def _bound(self) -> float:
        root = math.isqrt(self.max_partitions)
        exact = root * root == self.max_partitions
        return float(root) if exact else math.nextafter(math.sqrt(self.max_partitions), math.inf)

    @property
    def threshold(self) -> float | None:
        """The least noised count that is released; None where all are."""
        if self.threshold_delta is None:
            return None
        quantile = -statistics.NormalDist().inv_cdf(self.threshold_delta / self.max_partitions)
        # Rounding of the quantile, and of the noise to the grid, are less than what is added.
        return 1 + self.stddev * max(0.0, quantile) * (1 + 1e-9) + 2 * grid.grid_of(self._bound)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        step = grid.grid_of(self._bound)
        counts = whole(sample_state)
        noise = source_of(self).discrete_gaussian(
            tf.shape(counts), grid.noise_variance(self._bound, self.stddev)
        )
        steps = counts * round(1 / step) + noise
        kept = tf.ones_like(counts, tf.bool)
        if self.threshold is not None:
            kept = (counts > 0) & (steps >= math.ceil(self.threshold / step))
        noised = tf.where(kept, tf.cast(steps, tf.float64) * step, tf.zeros([], tf.float64))
        return HistogramResult(kept, noised), global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        step, most = grid.grid_of(self._bound), grid.MAX_COORDINATES
        event: Event = DiscreteGaussianSumEvent(self._bound, self.stddev, step, most)
        if self.threshold_delta is not None:
            event = ComposedEvent((event, EpsilonDeltaEvent(0.0, self.threshold_delta)))
        return self._event(event)
