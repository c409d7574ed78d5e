"""The best of public candidates, by what private records think of them."""

import abc
import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import tensorflow as tf

from tfdp.events import Event, ExponentialMechanismEvent, PureEpsilonEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.noise.bits import Fill
from tfdp.noise.exponential import bernoulli_exp, uniform_below
from tfdp.query.arguments import check_random_source, clip_norm, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.leaves import record_dtype, whole
from tfdp.query.scores import STEPS, ScoresQuery, check_flags
from tfdp.query.structure import Structure


def exponential_mechanism(fill: Fill, utilities: Sequence[int], rate: Fraction) -> int:
    """Returns an index i with probability proportional to exp(rate utilities[i]), exactly.

    An index is proposed at random and kept with probability exp(-rate gap), gap being what its
    utility lacks to the best one.
    """
    best = max(utilities)
    while True:
        index = uniform_below(fill, len(utilities))
        if bernoulli_exp(fill, rate * (best - utilities[index])):
            return index


def permute_and_flip(fill: Fill, utilities: Sequence[int], rate: Fraction) -> int:
    """Returns the first index, in random order, that is kept with probability exp(-rate gap)."""
    best, left = max(utilities), list(range(len(utilities)))
    while True:
        place = uniform_below(fill, len(left))
        left[place], left[-1] = left[-1], left[place]
        index = left.pop()
        if bernoulli_exp(fill, rate * (best - utilities[index])):
            return index


@dataclasses.dataclass(frozen=True)
class _SelectionQuery(ScoresQuery):
    """What selections of an index have in common."""

    epsilon: float
    sensitivity: float
    monotonic: bool = False
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    @abc.abstractmethod
    def _select(self, fill: Fill, utilities: Sequence[int], rate: Fraction) -> int:
        """Returns an index."""

    def __post_init__(self) -> None:
        epsilon = real_number("epsilon", self.epsilon, minimum=0, inclusive=False, maximum=1e6)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "sensitivity", clip_norm("sensitivity", self.sensitivity))
        check_flags(self, "monotonic")
        check_random_source(self.random_source)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        state = whole(sample_state)
        # Where scores of a record have one sign, all utilities move the same way.
        rate = Fraction(self.epsilon) / (STEPS if self.monotonic else 2 * STEPS)

        def select(fill, sums):
            return [np.int64(self._select(fill, sums.tolist(), rate))]

        (index,) = source_of(self).on_host(select, [state], [tf.int64])
        return tf.reshape(index, []), global_state, self.derive_event(global_state)


@dataclasses.dataclass(frozen=True)
class ExponentialMechanismQuery(_SelectionQuery):
    """Selects a candidate with a probability that grows with the sum of the records' scores.

        P(i) proportional to exp(epsilon u_i / (2 sensitivity)),   u = sum of clipped records

    or exp(epsilon u_i / sensitivity) if `monotonic`. Records are vectors of scores, one for each of
    k public candidates, each of which is clipped to [-sensitivity, sensitivity], or to [0,
    sensitivity], and rounded towards zero to 2^-20 of it. The result is an index, int64.

    Guarantees:
        The event is `ExponentialMechanismEvent(epsilon)`: pure, and of bounded range. Sums are
        integers and the selection is exact, so that no rounding has a part in it.

    Edge cases:
        A record with a NaN or infinity scores zero for all. An empty sample selects uniformly.

    Args:
        epsilon: Positive, at most 1e6.
        sensitivity: The largest score of a record; from 1e-12 to 1e18.
        monotonic: Whether scores are not negative; then the same epsilon selects twice as sharply.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = ExponentialMechanismQuery(epsilon=100.0, sensitivity=1.0)
        >>> state = query.initial_sample_state(tf.zeros([3]))
        >>> state = query.accumulate_record((), state, tf.constant([0.0, 1.0, -1.0]))
        >>> print(query.get_noised_result(state, ())[0].numpy())
        1

    References:
        McSherry, Talwar 2007, "Mechanism design via differential privacy", section 3; Dwork, Roth
        2014, section 3.4.
    """

    def _select(self, fill, utilities, rate):
        return exponential_mechanism(fill, utilities, rate)

    def derive_event(self, global_state: Structure) -> Event:
        return self._event(ExponentialMechanismEvent(self.epsilon))


@dataclasses.dataclass(frozen=True)
class ReportNoisyMaxQuery(_SelectionQuery):
    """Selects the candidate whose sum of scores, with exponential noise, is the largest.

        argmax_i u_i + Exp(2 sensitivity / epsilon),   u = sum of clipped records

    or Exp(sensitivity / epsilon) if `monotonic`. It is computed as permute-and-flip, which has the
    same distribution and needs no noise. Its expected score is never below that of the exponential
    mechanism of the same epsilon; its event costs a little more where many are composed.

    Guarantees:
        The event is `PureEpsilonEvent(epsilon)`. Sums are integers and the selection is exact.

    Edge cases:
        As in `ExponentialMechanismQuery`.

    Args:
        epsilon: As in `ExponentialMechanismQuery`.
        sensitivity: Likewise.
        monotonic: Likewise.
        random_source: Likewise.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    References:
        McKenna, Sheldon 2020, arXiv:2010.12603, algorithm 1; Ding, Kifer, et al. 2021,
        arXiv:2105.07260, theorem 4 (that it is report-noisy-max).
    """

    def _select(self, fill, utilities, rate):
        return permute_and_flip(fill, utilities, rate)

    def derive_event(self, global_state: Structure) -> Event:
        return self._event(PureEpsilonEvent(self.epsilon))


@dataclasses.dataclass(frozen=True)
class QuantileSelectionQuery(SumAggregationDPQuery):
    """Selects one of public candidates as a quantile of scalar records, by the exponential
    mechanism.

        u_j = -|#{i: r_i <= c_j} - quantile n|

    which a record moves by max(quantile, 1 - quantile) at most. The state is sum_i (1[r_i <= c_j] -
    quantile), so the number n of records is needed nowhere.

    Guarantees:
        The event is `ExponentialMechanismEvent(epsilon)`. Counts are integers, the quantile is
        rounded to 2^-20, and the selection is exact.

    Edge cases:
        A NaN or infinite record contributes zero. An empty sample selects uniformly.

    Args:
        candidates: Public numbers, increasing.
        quantile: In [0, 1].
        epsilon: Positive, at most 1e6.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range, or the candidates do not increase.

    Example:
        >>> query = QuantileSelectionQuery((1.0, 2.0, 3.0), quantile=0.5, epsilon=100.0)
        >>> state = query.initial_sample_state(tf.zeros([]))
        >>> for record in (0.5, 1.5, 1.75, 2.5):
        ...     state = query.accumulate_record((), state, tf.constant(record))
        >>> bool(query.get_noised_result(state, ())[0] <= 2.0)
        True

    References:
        Smith 2011, "Privacy-preserving statistical estimation with optimal convergence rates",
        section 3.1 (here on a grid of candidates).
    """

    candidates: tuple[float, ...]
    quantile: float
    epsilon: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.candidates, (list, tuple)) or not self.candidates:
            raise TypeError(f"candidates must be numbers. Received: {self.candidates!r}.")
        numbers = [
            real_number("candidates", c, minimum=-1e30, inclusive=True, maximum=1e30)
            for c in self.candidates
        ]
        if any(b <= a for a, b in zip(numbers, numbers[1:], strict=False)):
            raise ValueError(f"candidates must increase. Received: {self.candidates!r}.")
        quantile = real_number("quantile", self.quantile, minimum=0, inclusive=True, maximum=1)
        epsilon = real_number("epsilon", self.epsilon, minimum=0, inclusive=False, maximum=1e6)
        check_random_source(self.random_source)
        object.__setattr__(self, "candidates", tuple(numbers))
        object.__setattr__(self, "quantile", quantile)
        object.__setattr__(self, "epsilon", epsilon)

    def initial_sample_state(self, template: Structure) -> Structure:
        _scalar(template)
        return tf.zeros([len(self.candidates)], tf.int64)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        value = tf.cast(_scalar(record), tf.float64)
        is_below = tf.cast(value <= tf.constant(self.candidates, tf.float64), tf.int64)
        counts = is_below * STEPS - round(self.quantile * STEPS)
        return tf.where(tf.math.is_finite(value), counts, tf.zeros_like(counts))

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        state = whole(sample_state)
        share = round(self.quantile * STEPS)
        rate = Fraction(self.epsilon) / (2 * max(share, STEPS - share))

        def select(fill, sums):
            utilities = [-abs(total) for total in sums.tolist()]
            return [np.int64(exponential_mechanism(fill, utilities, rate))]

        (index,) = source_of(self).on_host(select, [state], [tf.int64])
        result = tf.gather(tf.constant(self.candidates, tf.float64), tf.reshape(index, []))
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        return ScoresQuery._event(self, ExponentialMechanismEvent(self.epsilon))


def _scalar(record):
    """Returns the record, or template, if it is one real number."""
    record_dtype(record)
    shape = tf.TensorShape(getattr(record, "shape", ()))
    if shape.rank != 0:
        raise ValueError(f"The records must be scalars. Received shape {shape}.")
    return record
