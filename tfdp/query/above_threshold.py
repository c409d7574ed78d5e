"""The sparse vector technique: which of many sums are above a threshold."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events import Event, PureEpsilonEvent
from tfdp.events.arguments import positive_integer, real_number
from tfdp.noise import RandomSource
from tfdp.noise.bits import Fill
from tfdp.noise.exponential import discrete_laplace
from tfdp.query.arguments import check_random_source, clip_norm, source_of
from tfdp.query.leaves import whole
from tfdp.query.scores import STEPS, ScoresQuery, check_flags
from tfdp.query.structure import Structure

# Of it the part for the threshold is not rounded to zero, however many sums may be above.
_SMALLEST_EPSILON = 1e-300


class AboveThresholdResult(NamedTuple):
    """What is released of k sums.

    Attributes:
        above: bool [k]; false where a sum is below, or was not looked at any more.
        answered: int64: how many sums were looked at, from the first on.
        values: float64 [k]: noised sums, where `above` is true and numbers are released; else zero.
    """

    above: tf.Tensor
    answered: tf.Tensor
    values: tf.Tensor


@dataclasses.dataclass(frozen=True)
class AboveThresholdQuery(ScoresQuery):
    """Says of sums, one after another, whether they are above a threshold, until `max_above` are.

        rho ~ Lap(S / e1), once;  nu_j ~ Lap(2 c S / e2);  above_j = (sum_j + nu_j >= threshold +
        rho);  the end after c = `max_above` sums that are above

    e1 + e2 = epsilon, e1 : e2 = 1 : (2 c)^(2/3). Sums that are below are free: the price is that of
    c answers, whatever k is. If `monotonic`, records are not negative and all 2 are 1. With
    `numeric_epsilon` e3 each sum that is above is released as well, with fresh noise Lap(c S / e3).
    Records are vectors [k], each number of which is clipped to [-S, S] and rounded towards zero to
    2^-20 S; S is `sensitivity`.

    Guarantees:
        The event is `PureEpsilonEvent(epsilon + numeric_epsilon)`, rounded up. Sums are integers,
        and the noise is discrete Laplace noise, exactly: no rounding has a part in it. The noised
        threshold is in no state, is not kept and not released.

    Edge cases:
        A record with a NaN or infinity counts as zero.

    Args:
        threshold: Of the sums; public.
        epsilon: e1 + e2; from 1e-300 to 1e6.
        sensitivity: S, the largest number in a record; from 1e-12 to 1e18.
        max_above: c, positive.
        monotonic: Whether the numbers of records are not negative.
        numeric_epsilon: e3, or None: only which sums are above is released.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = AboveThresholdQuery(threshold=10.0, epsilon=50.0, sensitivity=1.0)
        >>> state = query.initial_sample_state(tf.zeros([3]))
        >>> for _ in range(20):
        ...     state = query.accumulate_record((), state, tf.constant([0.0, 1.0, 1.0]))
        >>> result = query.get_noised_result(state, ())[0]
        >>> print(result.above.numpy(), result.answered.numpy())
        [False  True False] 2

    References:
        Lyu, Su, Li 2017, arXiv:1603.01699, algorithm 7 and section 4.2 (the division of epsilon).
    """

    threshold: float
    epsilon: float
    sensitivity: float
    max_above: int = 1
    monotonic: bool = False
    numeric_epsilon: float | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        limits = {"minimum": _SMALLEST_EPSILON, "inclusive": True, "maximum": 1e6}
        threshold = real_number(
            "threshold", self.threshold, minimum=-1e30, inclusive=True, maximum=1e30
        )
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "epsilon", real_number("epsilon", self.epsilon, **limits))
        object.__setattr__(self, "sensitivity", clip_norm("sensitivity", self.sensitivity))
        object.__setattr__(self, "max_above", positive_integer("max_above", self.max_above))
        if self.numeric_epsilon is not None:
            numeric = real_number("numeric_epsilon", self.numeric_epsilon, **limits)
            object.__setattr__(self, "numeric_epsilon", numeric)
        check_flags(self, "monotonic")
        check_random_source(self.random_source)

    @property
    def scales(self) -> tuple[Fraction, Fraction, Fraction | None]:
        """Of the noise on the threshold, on the sums and on the released numbers, in steps."""
        several = self.max_above * (1 if self.monotonic else 2)
        for_threshold = Fraction(self.epsilon / (1 + several ** (2 / 3)))
        for_sums = Fraction(self.epsilon) - for_threshold
        numeric = None
        if self.numeric_epsilon is not None:
            numeric = Fraction(STEPS * self.max_above) / Fraction(self.numeric_epsilon)
        return STEPS / for_threshold, STEPS * several / for_sums, numeric

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        state = whole(sample_state)
        step = Fraction(self.sensitivity) / STEPS
        threshold = round(Fraction(self.threshold) / step)

        def compare(fill, sums):
            above, answered, values = above_threshold(
                fill, sums.tolist(), threshold, *self.scales, self.max_above
            )
            return [above, np.int64(answered), np.float64(values) * float(step)]

        above, answered, values = source_of(self).on_host(
            compare, [state], [tf.bool, tf.int64, tf.float64]
        )
        shape = tf.shape(state)
        result = AboveThresholdResult(
            tf.reshape(above, shape), tf.reshape(answered, []), tf.reshape(values, shape)
        )
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        numeric = self.numeric_epsilon or 0.0
        total = self.epsilon + numeric
        if Fraction(total) < Fraction(self.epsilon) + Fraction(numeric):
            total = math.nextafter(total, math.inf)
        return self._event(PureEpsilonEvent(total))


def above_threshold(
    fill: Fill,
    sums: Sequence[int],
    threshold: int,
    threshold_scale: Fraction,
    sum_scale: Fraction,
    numeric_scale: Fraction | None,
    max_above: int,
) -> tuple[np.ndarray, int, list[int]]:
    """Returns (which sums are above, how many were looked at, noised sums of those above).

    Args:
        fill: Writes the random bits.
        sums: The sums, in the order in which they are looked at.
        threshold: What each is compared with.
        threshold_scale: Scale of the noise on the threshold, which is drawn once.
        sum_scale: Scale of the noise on every sum that is compared.
        numeric_scale: Scale of the noise on sums that are released; None: none is.
        max_above: After so many sums above the threshold no more are looked at.
    """
    above, values = np.zeros(len(sums), np.bool_), [0] * len(sums)
    noised_threshold = threshold + discrete_laplace(fill, threshold_scale)
    for index, total in enumerate(sums):
        above[index] = total + discrete_laplace(fill, sum_scale) >= noised_threshold
        if above[index] and numeric_scale is not None:
            # Fresh noise: that of the comparison is known to have lifted the sum.
            values[index] = total + discrete_laplace(fill, numeric_scale)
        if np.count_nonzero(above) == max_above:
            return above, index + 1, values
    return above, len(sums), values
