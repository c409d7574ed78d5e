"""Sum of records clipped to a norm that follows a quantile of their norms."""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events import ComposedEvent, Event, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.gaussian import add_noise
from tfdp.query.leaves import zeros_like
from tfdp.query.quantile_estimator import (
    QuantileEstimatorGlobalState,
    QuantileEstimatorQuery,
    QuantileEstimatorSampleState,
    below,
    update_bounds,
)
from tfdp.query.structure import Structure, is_concrete


class AdaptiveClipGlobalState(NamedTuple):
    """The clip of the next step, a float32 scalar: public, because noised counts alone moved it."""

    l2_norm_clip: tf.Tensor


class AdaptiveClipSampleState(NamedTuple):
    """The sum of the clipped records, and how many were not clipped, less one half of all: a
    float64 scalar.
    """

    sum: Structure
    unclipped: tf.Tensor


@dataclasses.dataclass(frozen=True)
class QuantileAdaptiveClipSumQuery(norm_factors.OneGroupQuery):
    """A Gaussian sum whose clip C follows a quantile of the records' norms.

        result = sum_i r_i min(1, C / |r_i|) + N(0, (noise_multiplier C)^2 I)
        C      = C exp(-learning_rate (share of unclipped records - target_unclipped_quantile))

    The share is that of `QuantileEstimatorQuery`: a noised count over a public number. It is a
    second release about the same records. With `adaptive_clip_noise_multiplier` both together cost
    what a fixed clip does. Per layer: one of these for every part of a `NestedQuery`.

    Guarantees:
        Adding or removing one record moves the sum by at most C and the count by at most 1/2. C is
        public before the step begins, and the event counts the sum in units of C, so it is the same
        in every step: GaussianSumEvent(1, noise_multiplier) and GaussianSumEvent(0.5,
        clipped_count_stddev) about one sample. C stays within public bounds, so it neither reaches
        zero nor runs off, whatever records and noise are.

    Edge cases:
        A record with a NaN or infinity contributes zero to the sum and to the count.

    Args:
        initial_l2_norm_clip: C of the first step; positive.
        noise_multiplier: Standard deviation of the noise on the sum, divided by C.
        target_unclipped_quantile: The share of records that is to be left as it is; 0.5 clips to
            the median.
        learning_rate: The logarithm of the largest factor by which C changes in a step (0.2 is
            usual); without `geometric_update`, the largest difference.
        clipped_count_stddev: Standard deviation of the noise on the count; expected_num_records /
            20 is usual.
        expected_num_records: Expected number of records in a sample; public.
        geometric_update: Whether C changes by factors (default) or by differences.
        normalize_by_clip: Whether the result is divided by C. Then C has no part in the size of an
            update. A learning rate is right for whatever C becomes, and the noise of the first
            steps does no harm where C begins far too large (De et al. 2022, arXiv:2204.13650,
            section 2).
        min_l2_norm_clip: C gets no smaller; by default a millionth of `initial_l2_norm_clip`.
        max_l2_norm_clip: C gets no larger; by default a million times `initial_l2_norm_clip`.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = QuantileAdaptiveClipSumQuery(100.0, 1.1, 0.5, 0.2, 12.8, 256.0)
        >>> event = query.derive_event(query.initial_global_state())
        >>> [(e.l2_norm_bound, e.noise_stddev) for e in event.events]
        [(1.0, 1.1), (0.5, 12.8)]

    References:
        Andrew et al. 2021, arXiv:1905.03871, algorithm 1.
    """

    initial_l2_norm_clip: float
    noise_multiplier: float
    target_unclipped_quantile: float
    learning_rate: float
    clipped_count_stddev: float
    expected_num_records: float
    geometric_update: bool = True
    normalize_by_clip: bool = False
    min_l2_norm_clip: float | None = None
    max_l2_norm_clip: float | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        initial = clip_norm("initial_l2_norm_clip", self.initial_l2_norm_clip)
        # Also without a geometric update the clip stays positive.
        low, high = update_bounds(initial, self.min_l2_norm_clip, self.max_l2_norm_clip, True)
        multiplier = real_number(
            "noise_multiplier", self.noise_multiplier, minimum=0, inclusive=True
        )
        noise_stddev("noise_multiplier * min_l2_norm_clip", multiplier * low)
        noise_stddev("noise_multiplier * max_l2_norm_clip", multiplier * high)
        check_random_source(self.random_source)
        if not isinstance(self.normalize_by_clip, bool):
            raise TypeError(
                f"normalize_by_clip must be a bool. Received: {self.normalize_by_clip!r}."
            )
        object.__setattr__(self, "initial_l2_norm_clip", initial)
        object.__setattr__(self, "noise_multiplier", multiplier)
        object.__setattr__(self, "min_l2_norm_clip", low)
        object.__setattr__(self, "max_l2_norm_clip", high)
        for ours, theirs in _ESTIMATOR_NAMES.items():
            object.__setattr__(self, ours, getattr(self._estimator, theirs))

    @functools.cached_property
    def _estimator(self) -> QuantileEstimatorQuery:
        """Of the quantile of the norms."""
        return QuantileEstimatorQuery(
            self.initial_l2_norm_clip,
            self.target_unclipped_quantile,
            self.learning_rate,
            self.clipped_count_stddev,
            self.expected_num_records,
            self.geometric_update,
            self.min_l2_norm_clip,
            self.max_l2_norm_clip,
            self.random_source,
        )

    def initial_global_state(self) -> Structure:
        return AdaptiveClipGlobalState(*self._estimator.initial_global_state())

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state.l2_norm_clip

    def initial_sample_state(self, template: Structure) -> Structure:
        sums = tf.nest.map_structure(zeros_like, template)
        return AdaptiveClipSampleState(sums, tf.zeros([], tf.float64))

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return norm_factors.clip_factors(params, norms)

    @property
    def num_norm_statistics(self) -> int:
        return 1

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return below(params, norms)

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        return AdaptiveClipSampleState(scaled, statistics[0])

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        # In float64, so that the noise is no less than the event's, whatever the clip is.
        clip = tf.cast(global_state.l2_norm_clip, tf.float64)
        stddev = self.noise_multiplier * clip if self.noise_multiplier else 0.0
        result = add_noise(sample_state.sum, stddev, source_of(self))
        if self.normalize_by_clip:
            result = tf.nest.map_structure(lambda leaf: leaf / tf.cast(clip, leaf.dtype), result)
        _, state, _ = self._estimator.get_noised_result(
            QuantileEstimatorSampleState(sample_state.unclipped, tf.zeros([], tf.float32)),
            QuantileEstimatorGlobalState(*global_state),
        )
        return result, AdaptiveClipGlobalState(*state), self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        """As in `DPQuery`.

        Raises:
            ValueError: the clip is known, and out of its bounds: its state was not made by steps of
                this query.
        """
        if is_concrete(global_state):
            self._check(float(np.asarray(global_state.l2_norm_clip)))
        seeded = source_of(self).seeded
        count = GaussianSumEvent(0.5, self.clipped_count_stddev, seeded)
        return ComposedEvent((GaussianSumEvent(1.0, self.noise_multiplier, seeded), count))

    def _check(self, clip: float) -> None:
        low, high = np.float32(self.min_l2_norm_clip), np.float32(self.max_l2_norm_clip)
        if not low <= clip <= high:
            raise ValueError(
                "The clip of an adaptive query is out of its bounds, which no step of it allows: "
                "its state is that of another query, or was changed. Restore a checkpoint of this "
                f"run. Received: l2_norm_clip={clip}, min_l2_norm_clip={self.min_l2_norm_clip}, "
                f"max_l2_norm_clip={self.max_l2_norm_clip}."
            )

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return collections.OrderedDict(clip=global_state.l2_norm_clip)


# Arguments that the estimator checks.
_ESTIMATOR_NAMES = {
    "target_unclipped_quantile": "target_quantile",
    "learning_rate": "learning_rate",
    "clipped_count_stddev": "below_estimate_stddev",
    "expected_num_records": "expected_num_records",
}


def adaptive_clip_noise_multiplier(noise_multiplier: float, clipped_count_stddev: float) -> float:
    """Returns the noise multiplier of a sum which, with its count, costs what `noise_multiplier`
    does.

        z_sum = (z^-2 - (2 clipped_count_stddev)^-2)^(-1/2)

    The count's own noise multiplier is 2 clipped_count_stddev: a record moves the count by 1/2.

    Args:
        noise_multiplier: z, of both releases together; positive.
        clipped_count_stddev: As in `QuantileAdaptiveClipSumQuery`.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is out of range, or the count alone costs as much as z.

    Example:
        >>> round(adaptive_clip_noise_multiplier(1.1, 12.8), 4)
        1.101

    References:
        Andrew et al. 2021, arXiv:1905.03871, theorem 1.
    """
    z = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=False)
    stddev = real_number("clipped_count_stddev", clipped_count_stddev, minimum=0, inclusive=False)
    if 2 * stddev <= z:
        raise ValueError(
            "The count alone costs as much as the noise multiplier that both are to have: "
            f"clipped_count_stddev must be above {z / 2:g}. Received: "
            f"clipped_count_stddev={clipped_count_stddev!r}."
        )
    ratio = z / (2 * stddev)
    # Rounded up: the two together never cost more than was asked for.
    return math.nextafter(z / math.sqrt(1 - ratio * ratio) * (1 + 1e-15), math.inf)
