"""Uploads that protect a participant's data: the sparse vector technique, and Gaussian noise."""

import dataclasses
from fractions import Fraction

import numpy as np
import tensorflow as tf

from tfdp.accounting import Budget
from tfdp.events import ComposedEvent, Event, PureEpsilonEvent
from tfdp.events.arguments import real_number
from tfdp.federated.selective.charging import charge, check_charged
from tfdp.federated.selective.selection import check_bound, finite
from tfdp.federated.selective.sparse import SparseVector, check_fraction, number_of
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource, host_generator
from tfdp.noise.bits import Fill
from tfdp.noise.discrete_laplace import LARGEST_SCALE, discrete_laplaces
from tfdp.query import AboveThresholdQuery, GaussianSumQuery
from tfdp.query.scores import STEPS

# What comparisons cost of an epoch's epsilon; numbers cost the rest (figure 12).
_COMPARISONS = Fraction(8, 9)


@dataclasses.dataclass(frozen=True)
class SparseVectorUpload:
    """Shares changes that are above a threshold, as comparisons with Laplace noise say, noised.

    With c = theta_u n and S = gamma, for changes d in random order until c are shared:

        rho ~ Lap(S / e1), once;  nu_j ~ Lap(2 c S / e2)
        d_j is shared if |bound(d_j, gamma)| + nu_j >= tau + rho
        as bound(bound(d_j, gamma) + Lap(2 c S / e3), gamma)

    e1 + e2 is 8/9 of epsilon, e1 : e2 = 1 : (2 c)^(2/3), and e3 is 1/9 of it. A magnitude moves by
    gamma at most when data change, a number by 2 gamma.

    Guarantees:
        One upload is epsilon-differentially private for the participant's data as a whole: whatever
        they are replaced by. So it is for each of its records. The event, of comparisons and of
        numbers, is in the ledger before any noise is drawn. Changes are whole steps of 2^-20
        gamma, and the noise is discrete Laplace noise, exactly.

    Edge cases:
        A change that is not finite counts as zero, and may be shared as every other. Where no
        change may be shared (theta_u n below one), nothing is charged.

    Args:
        theta_u: The fraction of all changes that is shared at most; in [0, 1].
        gamma: Bound of a change, before and after the noise; positive.
        tau: The threshold; public, not negative.
        epsilon: Of a whole upload, which is that of an epoch. The paper's "privacy budget per
            parameter" is epsilon / c.
        ledger: The participant's own.
        budget: What may be spent, or None.
        random_source: Where noise comes from; by default keyed by the operating system.

    References:
        Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", figure 12; Lyu, Su, Li 2017,
        arXiv:1603.01699, algorithm 7.
    """

    theta_u: float
    gamma: float
    tau: float
    epsilon: float
    ledger: PrivacyLedger = dataclasses.field(compare=False)
    budget: Budget | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta_u", check_fraction("theta_u", self.theta_u))
        object.__setattr__(self, "gamma", check_bound("gamma", self.gamma))
        tau = real_number("tau", self.tau, minimum=0, inclusive=True, maximum=1e18)
        object.__setattr__(self, "tau", tau)
        epsilon = real_number("epsilon", self.epsilon, minimum=1e-6, inclusive=True, maximum=1e6)
        object.__setattr__(self, "epsilon", epsilon)
        check_charged(self)

    def event(self, size: int) -> Event | None:
        """Returns the event of one upload of `size` changes; None where nothing is shared.

        Raises:
            ValueError: the noise of so many numbers would have too many digits.
        """
        count = number_of(self.theta_u, size)
        if not count:
            return None
        if max(self._scales(count)) > LARGEST_SCALE:
            raise ValueError(
                f"The noise of {count} numbers would have more digits than it may. Give more "
                f"epsilon, or a smaller theta_u. Received: epsilon={self.epsilon}, "
                f"theta_u={self.theta_u}, {size} changes."
            )
        numbers = PureEpsilonEvent(self._numbers_epsilon)
        return ComposedEvent((PureEpsilonEvent(self._comparisons(count).epsilon), numbers))

    def __call__(self, changes: np.ndarray) -> SparseVector:
        """Returns what is shared of changes, [n]. Every call is charged."""
        changes = finite(changes)
        size, event = len(changes), self.event(len(changes))
        if event is None:
            return SparseVector(size, np.empty(0, np.int64), np.empty(0, np.float32))
        count = number_of(self.theta_u, size)
        order = host_generator().permutation(size)
        steps = np.clip(np.trunc(changes.astype(np.float64) / self.gamma * STEPS), -STEPS, STEPS)

        def share(fill: Fill, steps: np.ndarray) -> list[np.ndarray]:
            return list(self._share(fill, steps.astype(np.int64)[order], count))

        source = charge(self, event)
        places, numbers = source.on_host(share, [tf.constant(steps)], [tf.int64, tf.int64])
        indices = order[places.numpy()]
        values = numbers.numpy() * (self.gamma / STEPS)
        # What is done with noised numbers costs nothing.
        values = np.clip(values, -self.gamma, self.gamma).astype(np.float32)
        ascending = np.argsort(indices)
        return SparseVector(size, indices[ascending], values[ascending])

    @property
    def _numbers_epsilon(self) -> float:
        return float((1 - _COMPARISONS) * Fraction(self.epsilon))

    def _comparisons(self, count: int) -> AboveThresholdQuery:
        # Its scales are in steps, whatever the threshold and the bound of a number are.
        return AboveThresholdQuery(
            0.0, float(_COMPARISONS * Fraction(self.epsilon)), 1.0, max_above=count
        )

    def _scales(self, count: int) -> tuple[Fraction, Fraction, Fraction]:
        """Of the noise on the threshold, on comparisons and on the numbers, in steps."""
        for_threshold, for_comparisons, _ = self._comparisons(count).scales
        scale = 2 * STEPS * count / Fraction(self._numbers_epsilon)
        return for_threshold, for_comparisons, scale

    def _share(self, fill: Fill, steps: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of the numbers that are shared, and these with noise."""
        threshold_scale, sum_scale, scale = self._scales(count)
        threshold = round(Fraction(self.tau) / Fraction(self.gamma) * STEPS)
        threshold += int(discrete_laplaces(fill, threshold_scale, 1)[0])
        noised = np.abs(steps) + discrete_laplaces(fill, sum_scale, len(steps))
        places = np.flatnonzero(noised >= threshold)[:count]
        # Fresh noise: that of the comparison is known to have lifted the number.
        return places, steps[places] + discrete_laplaces(fill, scale, len(places))


@dataclasses.dataclass(frozen=True)
class GaussianUpload:
    """Shares a random subset of the changes, clipped together, with Gaussian noise.

        c = theta_u n places, drawn without looking at the changes;  u = d at these places
        shared: bound(u min(1, C / |u|) + N(0, (noise_multiplier C)^2 I), gamma)

    It takes as many bytes as `SparseVectorUpload`, and a far smaller epsilon: the noise is for the
    length of one vector, not for each of c numbers.

    Guarantees:
        When a participant's data are replaced by any others, what is noised moves by at most 2 C.
        The event is that of a Gaussian sum with this bound. It is in the ledger before any noise is
        drawn.

    Edge cases:
        A change that is not finite counts as zero. Where no change may be shared, nothing is
        charged.

    Args:
        theta_u: The fraction of all changes that is shared; in [0, 1].
        l2_norm_clip: C; positive.
        noise_multiplier: Standard deviation of the noise as a multiple of C; not negative. Zero is
            no protection, and charged as such.
        gamma: Bound of what is shared, after the noise; positive.
        ledger: The participant's own.
        budget: What may be spent, or None.
        random_source: Where noise comes from; by default keyed by the operating system.
        precision: "float" (default), or "exact", as of `GaussianSumQuery`. Exact noise has a price
            only where epsilon is small, below 20 or so.
    """

    theta_u: float
    l2_norm_clip: float
    noise_multiplier: float
    gamma: float
    ledger: PrivacyLedger = dataclasses.field(compare=False)
    budget: Budget | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)
    precision: str = "float"

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta_u", check_fraction("theta_u", self.theta_u))
        multiplier = real_number(
            "noise_multiplier", self.noise_multiplier, minimum=0, inclusive=True
        )
        object.__setattr__(self, "noise_multiplier", multiplier)
        object.__setattr__(self, "gamma", check_bound("gamma", self.gamma))
        object.__setattr__(self, "l2_norm_clip", self._query(self.random_source).l2_norm_clip)
        check_charged(self)

    def event(self, size: int) -> Event | None:
        """Returns the event of one upload of `size` changes; None where nothing is shared."""
        if not number_of(self.theta_u, size):
            return None
        query = self._query(self.random_source)
        # From any vector of norm C to any other.
        return query.derive_event(query.initial_global_state()).scaled(2.0)

    def __call__(self, changes: np.ndarray) -> SparseVector:
        """Returns what is shared of changes, [n]. Every call is charged."""
        changes = finite(changes)
        size, event = len(changes), self.event(len(changes))
        if event is None:
            return SparseVector(size, np.empty(0, np.int64), np.empty(0, np.float32))
        indices = np.sort(host_generator().permutation(size)[: number_of(self.theta_u, size)])
        query = self._query(charge(self, event))
        record, state = tf.constant(changes[indices]), query.initial_global_state()
        total = query.initial_sample_state(record)
        total = query.accumulate_record(query.derive_sample_params(state), total, record)
        values = np.float64(query.get_noised_result(total, state)[0])
        values = np.clip(values, -self.gamma, self.gamma).astype(np.float32)
        return SparseVector(size, indices, values)

    def _query(self, source: RandomSource | None) -> GaussianSumQuery:
        stddev = self.noise_multiplier * self.l2_norm_clip
        return GaussianSumQuery(self.l2_norm_clip, stddev, source, precision=self.precision)
