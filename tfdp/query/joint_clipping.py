"""Clipping of several groups by one joint norm."""

import dataclasses

import tensorflow as tf

from tfdp.events import Event, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.numerics import rounding
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.gaussian import add_noise
from tfdp.query.structure import Structure, flatten_up_to


@dataclasses.dataclass(frozen=True, eq=False)
class JointClippingQuery(SumAggregationDPQuery):
    """Scales each group by 1/alpha_g, clips the joint norm, sums, adds noise, and scales back.

        s_g    = sum_i (r_ig / alpha_g) * min(1, C / |(r_i1 / alpha_1, ..., r_iG / alpha_G)|)
        result = alpha_g * (s_g + N(0, (z C)^2 I))

    A larger alpha_g lets group g be larger and gives it more noise, at the same privacy cost.

    Guarantees:
        Adding or removing one record moves the scaled sum (s_1, ..., s_G) by at most
        `l2_norm_clip`. All groups are one Gaussian sum: the event is
        `GaussianSumEvent(l2_norm_clip, noise_multiplier * l2_norm_clip)`.

    Edge cases:
        A record with a NaN or infinity in any group contributes zero to all of them.

    Args:
        scales: Structure of positive numbers alpha_g, a prefix of the structure of the records:
            each scale goes with all the leaves below it.
        l2_norm_clip: C, the bound on the joint norm of a scaled record; positive.
        noise_multiplier: z; zero or positive.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is not a number, or `scales` is empty.
        ValueError: a number is out of range.

    References:
        McMahan et al. 2018, arXiv:1812.06210, section 2.
    """

    scales: Structure
    l2_norm_clip: float
    noise_multiplier: float
    random_source: RandomSource | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        flat = tf.nest.flatten(self.scales)
        if not flat:
            raise TypeError(f"scales must hold a number. Received: scales={self.scales!r}.")
        flat = [real_number("scales", scale, minimum=0, inclusive=False) for scale in flat]
        clip = clip_norm("l2_norm_clip", self.l2_norm_clip)
        for scale in flat:
            clip_norm("scales * l2_norm_clip", scale * clip)
        multiplier = real_number(
            "noise_multiplier", self.noise_multiplier, minimum=0, inclusive=True
        )
        noise_stddev("noise_multiplier * l2_norm_clip", multiplier * clip)
        for scale in flat:
            noise_stddev("scales * noise_multiplier * l2_norm_clip", scale * multiplier * clip)
        check_random_source(self.random_source)
        # A copy: the caller may change the list or dict later.
        object.__setattr__(self, "scales", tf.nest.pack_sequence_as(self.scales, flat))
        object.__setattr__(self, "l2_norm_clip", clip)
        object.__setattr__(self, "noise_multiplier", multiplier)

    @property
    def _flat_scales(self) -> list[float]:
        return tf.nest.flatten(self.scales)

    @property
    def num_norm_groups(self) -> int | None:
        return len(self._flat_scales)

    def norm_groups(self, template: Structure) -> list[int]:
        parts = flatten_up_to(self.scales, template)
        return [group for group, part in enumerate(parts) for _ in tf.nest.flatten(part)]

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        scales = tf.constant(self._flat_scales, norms.dtype)
        joint = tf.sqrt(rounding.sum_of_squares(norms / scales, [-1]))[..., None]
        return norm_factors.clip_factors(self.l2_norm_clip, joint) / scales

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        return norm_factors.scale_record(self, len(self._flat_scales), params, record)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        noised = add_noise(sample_state, self.noise_multiplier * self.l2_norm_clip, source_of(self))
        leaves, groups = tf.nest.flatten(noised), self.norm_groups(noised)
        result = [
            leaf * self._flat_scales[group] for leaf, group in zip(leaves, groups, strict=True)
        ]
        return (
            tf.nest.pack_sequence_as(noised, result),
            global_state,
            self.derive_event(global_state),
        )

    def derive_event(self, global_state: Structure) -> Event:
        stddev = self.noise_multiplier * self.l2_norm_clip
        return GaussianSumEvent(self.l2_norm_clip, stddev, seeded=source_of(self).seeded)
