"""Sum of clipped records whose clip and noise follow public schedules."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfdp.events import Event, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.gaussian import add_noise
from tfdp.query.structure import Structure, is_concrete

_Schedule: TypeAlias = keras.optimizers.schedules.LearningRateSchedule


class ScheduledGlobalState(NamedTuple):
    """The number of the next step, its clip and its noise multiplier: an int64 and two float64
    scalars.
    """

    step: tf.Tensor
    l2_norm_clip: tf.Tensor
    noise_multiplier: tf.Tensor


@dataclasses.dataclass(frozen=True)
class ScheduledGaussianSumQuery(norm_factors.OneGroupQuery):
    """A Gaussian sum whose clip C_t and noise multiplier z_t are functions of the step.

        result_t = sum_i r_i min(1, C_t / |r_i|) + N(0, (z_t C_t)^2 I)

    Guarantees:
        Adding or removing one record moves the sum of step t by at most C_t, which is public. The
        event counts it in units of C_t: `GaussianSumEvent(1, z_t)`, so that a schedule of clips
        costs what one clip does. The numbers of a step are in the global state when its event is
        written: noise and event are made of the same ones, whatever a schedule computes elsewhere.

    Edge cases:
        A schedule that leaves the range of a clip (1e-12 to 1e18) or of a noise multiplier (0 to
        1e12), or is not finite, stops the run before the step. Every z_t is an event of its own: a
        schedule of few values (`PiecewiseConstantDecay`) keeps ledgers short and accountants fast.

    Args:
        l2_norm_clip: A number, or a `keras.optimizers.schedules.LearningRateSchedule`, which knows
            the step, from 0 on, and nothing of the data.
        noise_multiplier: Likewise.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is neither a number nor a schedule.
        ValueError: it is out of range; of a schedule, at step 0.

    Example:
        >>> clips = keras.optimizers.schedules.PiecewiseConstantDecay([100], [1.0, 0.3])
        >>> query = ScheduledGaussianSumQuery(clips, noise_multiplier=1.1)
        >>> query.derive_event(query.initial_global_state())
        GaussianSumEvent(l2_norm_bound=1.0, noise_stddev=1.1, seeded=False)

    References:
        Du, Li, Chen, Liu, Chen 2021, arXiv:2109.09573 (dynamic clip and noise).
    """

    l2_norm_clip: float | _Schedule
    noise_multiplier: float | _Schedule
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("l2_norm_clip", "noise_multiplier"):
            value = getattr(self, name)
            if not isinstance(value, _Schedule):
                # Range and type of a number; those of a schedule are known step by step.
                object.__setattr__(self, name, real_number(name, value, minimum=0, inclusive=True))
        check_random_source(self.random_source)
        with tf.init_scope():
            _check(self.initial_global_state())

    def initial_global_state(self) -> Structure:
        return self._state_of(tf.constant(0, tf.int64))

    def _state_of(self, step: tf.Tensor) -> ScheduledGlobalState:
        return ScheduledGlobalState(
            step, _value(self.l2_norm_clip, step), _value(self.noise_multiplier, step)
        )

    @property
    def _has_no_noise(self) -> bool:
        """Whether nothing is drawn, whatever the state says."""
        return not isinstance(self.noise_multiplier, _Schedule) and self.noise_multiplier == 0

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state.l2_norm_clip

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return norm_factors.clip_factors(params, norms)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        stddev = global_state.noise_multiplier * global_state.l2_norm_clip
        result = add_noise(sample_state, 0.0 if self._has_no_noise else stddev, source_of(self))
        event = self.derive_event(global_state) if is_concrete(global_state) else None
        return result, self._state_of(global_state.step + 1), event

    def derive_event(self, global_state: Structure) -> Event:
        _, multiplier = _check(global_state)
        # The state may be another query's, whose multiplier nothing is drawn with here.
        multiplier = 0.0 if self._has_no_noise else multiplier
        return GaussianSumEvent(1.0, multiplier, seeded=source_of(self).seeded)

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return collections.OrderedDict(
            clip=global_state.l2_norm_clip, noise_multiplier=global_state.noise_multiplier
        )


def _value(schedule: Any, step: tf.Tensor) -> tf.Tensor:
    if not isinstance(schedule, _Schedule):
        return tf.constant(schedule, tf.float64)
    return tf.cast(tf.convert_to_tensor(schedule(step)), tf.float64)


def _check(state: ScheduledGlobalState) -> tuple[float, float]:
    """Returns clip and noise multiplier of a state whose values are known, if they are in range."""
    # As arrays: in a graph, AutoGraph has its own idea of what int and float make of a tensor.
    step, clip, multiplier = (np.asarray(value) for value in state)
    at = f" of step {int(step)}"
    clip = clip_norm("l2_norm_clip" + at, float(clip))
    multiplier = real_number(
        "noise_multiplier" + at, float(multiplier), minimum=0, inclusive=True, maximum=1e12
    )
    noise_stddev("noise_multiplier * l2_norm_clip" + at, multiplier * clip)
    return clip, multiplier
