"""Sum of records that are normalised instead of clipped."""

import dataclasses

import tensorflow as tf

from tfdp.events import Event, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.numerics import rounding
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.gaussian import add_noise
from tfdp.query.structure import Structure


@dataclasses.dataclass(frozen=True)
class AutomaticClippingSumQuery(norm_factors.OneGroupQuery):
    """Scales every record to a norm near `l2_norm_clip`, sums, adds N(0, stddev^2).

        result = sum_i r_i * l2_norm_clip / (|r_i| + stability) + N(0, stddev^2 I)

    There is no clip to tune: `l2_norm_clip` only multiplies the result and its noise, so that it is
    a part of the learning rate (and with Adam of nothing). `stability` keeps a difference between
    records whose norms are below it and those above; 0.01 did well everywhere in the paper.

    Guarantees:
        Adding or removing one record moves the sum by less than `l2_norm_clip`. The event is
        `GaussianSumEvent(l2_norm_clip, stddev)`.

    Edge cases:
        A record with a NaN or infinity contributes zero. A zero record stays zero.

    Args:
        l2_norm_clip: What the norms of records come near to from below; positive.
        stddev: Standard deviation of the noise on the sum; zero, or from 1e-30 to 1e30.
        stability: In units of the records; from 1e-12 to 1e18.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is not finite or out of range.

    Example:
        >>> query = AutomaticClippingSumQuery(l2_norm_clip=1.0, stddev=0.0, stability=5.0)
        >>> state = query.initial_sample_state(tf.zeros([2]))
        >>> state = query.accumulate_record((), state, tf.constant([3.0, 4.0]))
        >>> print(query.get_noised_result(state, ())[0].numpy().round(5))
        [0.3 0.4]

    References:
        Bu, Wang, Zha, Karypis 2023, arXiv:2206.07136, equation 1.2 (AUTO-S).
    """

    l2_norm_clip: float
    stddev: float
    stability: float = 0.01
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_norm_clip", clip_norm("l2_norm_clip", self.l2_norm_clip))
        object.__setattr__(self, "stddev", noise_stddev("stddev", self.stddev))
        real_number("stability", self.stability, minimum=0, inclusive=False)
        stability = real_number(
            "stability", self.stability, minimum=1e-12, inclusive=True, maximum=1e18
        )
        object.__setattr__(self, "stability", stability)
        check_random_source(self.random_source)

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        # One rounding more than in clip_factors, of the sum: rounding.down has it to spare.
        factors = rounding.down(self.l2_norm_clip, norms.dtype) / (norms + self.stability)
        return tf.where(tf.math.is_finite(norms), factors, tf.zeros_like(norms))

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        result = add_noise(sample_state, self.stddev, source_of(self))
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        return GaussianSumEvent(self.l2_norm_clip, self.stddev, seeded=source_of(self).seeded)
