"""Sum of records clipped in l1, with Laplace noise."""

import dataclasses

import tensorflow as tf

from tfdp.events import Event, LaplaceSumEvent
from tfdp.noise import RandomSource, staged
from tfdp.numerics import rounding
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, tensor_of


@dataclasses.dataclass(frozen=True)
class LaplaceSumQuery(SumAggregationDPQuery):
    """Clips every record to `l1_norm_clip` over all of its leaves, sums, adds Laplace noise.

        result = sum_i r_i * min(1, l1_norm_clip / |r_i|_1) + Lap(scale)^d

    where Lap(b) has the density exp(-|x| / b) / (2 b). Released once, without sampling, that is
    epsilon-differentially private with epsilon = l1_norm_clip / scale and delta = 0. Clipping needs
    l1 norms, which are no function of l2 norms: engines compute every record's gradient for it.

    Guarantees:
        Adding or removing one record moves the sum by at most `l1_norm_clip` in l1. The event is
        `LaplaceSumEvent(l1_norm_clip, scale)`. Noise is a quantile of at least 90 bits. It is added
        in floating point: see "What is not promised" in SECURITY.md.

    Edge cases:
        A record with a NaN or infinity contributes zero. `scale=0` adds no noise and says so in the
        event: accountants then answer infinity.

    Args:
        l1_norm_clip: Bound on the l1 norm of a record; positive.
        scale: b, of the noise on the sum; zero, or from 1e-30 to 1e30. Its standard deviation is
            sqrt(2) b.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is not finite or out of range.

    Example:
        >>> query = LaplaceSumQuery(l1_norm_clip=1.0, scale=0.0)
        >>> state = query.initial_sample_state(tf.zeros([2]))
        >>> state = query.accumulate_record((), state, tf.constant([3.0, -1.0]))
        >>> print(query.get_noised_result(state, ())[0].numpy().round(5))
        [ 0.75 -0.25]

    References:
        Dwork, McSherry, Nissim, Smith 2006, "Calibrating noise to sensitivity in private data
        analysis", section 3.
    """

    l1_norm_clip: float
    scale: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1_norm_clip", clip_norm("l1_norm_clip", self.l1_norm_clip))
        object.__setattr__(self, "scale", noise_stddev("scale", self.scale))
        check_random_source(self.random_source)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        leaves = [tensor_of(leaf) for leaf in tf.nest.flatten(record)]
        all_float64 = all(record_dtype(leaf) == tf.float64 for leaf in leaves)
        dtype = tf.float64 if all_float64 else tf.float32
        # As a sum of squares does: one more than the exact norm, for numbers that are rounded.
        sums = [rounding.sums(tf.abs(tf.cast(leaf, dtype))) for leaf in leaves]
        norms = [rounding.enlarged(total, error + 1) for total, error in sums]
        norm = rounding.enlarged(tf.add_n(norms), len(norms))
        factor = norm_factors.clip_factors(self.l1_norm_clip, norm)
        scaled = [norm_factors.scale(leaf, factor) for leaf in leaves]
        return tf.nest.pack_sequence_as(record, scaled)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        event = self.derive_event(global_state)
        if self.scale == 0:
            return sample_state, global_state, event
        source = source_of(self)

        def noised(leaf):
            noise = source.laplace(tf.shape(leaf), leaf.dtype)
            return leaf + noise * rounding.up(self.scale, leaf.dtype)

        sums = tf.nest.map_structure(tf.convert_to_tensor, sample_state)
        return staged(tf.nest.map_structure, noised, sums), global_state, event

    def derive_event(self, global_state: Structure) -> Event:
        return LaplaceSumEvent(self.l1_norm_clip, self.scale, seeded=source_of(self).seeded)
