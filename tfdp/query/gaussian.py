"""Sum of clipped records with Gaussian noise."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tfdp.events import DiscreteGaussianSumEvent, GaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource, staged, system_random_source
from tfdp.numerics import rounding
from tfdp.query import grid, norm_factors
from tfdp.query.dp_query import Structure, SumAggregationDPQuery, is_concrete, record_dtype


class GaussianGlobalState(NamedTuple):
    """Clip norm and absolute noise of the next step: Python floats, or scalar tensors where they
    adapt.
    """

    l2_norm_clip: float
    stddev: float


@dataclasses.dataclass(frozen=True)
class GaussianSumQuery(SumAggregationDPQuery):
    """Clips every record to `l2_norm_clip` over all of its leaves, sums, adds N(0, stddev^2) to
    every coordinate.

        result = sum_i r_i * min(1, l2_norm_clip / |r_i|) + N(0, stddev^2 I)

    Guarantees:
        Adding or removing one record moves the sum by at most `l2_norm_clip`. The event is
        `GaussianSumEvent(l2_norm_clip, stddev)`.

        With precision="exact" no rounding has a part in that: records are rounded to a grid of
        2^-31 to 2^-30 of `l2_norm_clip`, towards zero, and added up as integers, and the noise is
        discrete Gaussian (`tfdp.query.grid`). The event is a `DiscreteGaussianSumEvent`. A gradient
        engine must compute every record by itself: "loop".

    Edge cases:
        A record with a NaN or infinity contributes zero. A zero record stays zero. `stddev=0` adds
        no noise and says so in the event: accountants then answer infinity.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        stddev: Standard deviation of the noise on the sum (not on an average); at most 1e30.
        random_source: Where the noise comes from; by default keyed by the operating system.
        precision: "float" (default) or "exact", with stddev from 2^-20 to 2^19 times l2_norm_clip
            or zero, and records of at most 2^30 coordinates.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is not finite or out of range, or `precision` is another one.

    Example:
        >>> query = GaussianSumQuery(l2_norm_clip=1.0, stddev=0.0)
        >>> state = query.initial_sample_state(tf.zeros([2]))
        >>> state = query.accumulate_record(1.0, state, tf.constant([3.0, 4.0]))
        >>> result, _, event = query.get_noised_result(state, query.initial_global_state())
        >>> print(result.numpy().round(5))
        [0.6 0.8]

    References:
        McMahan et al. 2018, arXiv:1812.06210, section 2; Abadi et al. 2016, arXiv:1607.00133,
        algorithm 1. For precision="exact": Canonne, Kamath, Steinke 2020, arXiv:2004.00010.
    """

    l2_norm_clip: float
    stddev: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)
    precision: str = "float"

    def __post_init__(self):
        clip = clip_norm("l2_norm_clip", self.l2_norm_clip)
        stddev = noise_stddev("stddev", self.stddev)
        if self.precision not in ("float", "exact"):
            raise ValueError(
                f"precision must be 'float' or 'exact'. Received: precision={self.precision!r}."
            )
        if self._is_exact:
            grid.noise_variance(clip, stddev)
        check_random_source(self.random_source)
        object.__setattr__(self, "l2_norm_clip", clip)
        object.__setattr__(self, "stddev", stddev)

    def initial_global_state(self):
        return GaussianGlobalState(self.l2_norm_clip, self.stddev)

    def derive_sample_params(self, global_state):
        return global_state.l2_norm_clip

    # Rounding to the grid is not a scaling, and needs all of a record's digits.

    @property
    def _is_exact(self) -> bool:
        return self.precision == "exact"

    @property
    def needs_separate_records(self):
        return self._is_exact

    @property
    def num_norm_groups(self):
        return None if self._is_exact else 1

    def norm_groups(self, template):
        if self._is_exact:
            return super().norm_groups(template)
        return [0] * len(tf.nest.flatten(template))

    def scale_factors(self, params, norms):
        if self._is_exact:
            return super().scale_factors(params, norms)
        return norm_factors.clip_factors(params, norms)

    def initial_sample_state(self, template):
        return grid.zeros(template) if self._is_exact else super().initial_sample_state(template)

    def preprocess_record(self, params, record):
        if self._is_exact:
            return grid.clip_to_grid(params, record)
        return norm_factors.scale_record(self, params, record)

    def get_noised_result(self, sample_state, global_state):
        if self._is_exact:
            result = grid.noised(sample_state, *global_state, self._source)
        else:
            result = add_noise(sample_state, global_state.stddev, self._source)
        event = self.derive_event(global_state) if is_concrete(global_state) else None
        return result, global_state, event

    def derive_event(self, global_state):
        clip, stddev = float(global_state.l2_norm_clip), float(global_state.stddev)
        if self._is_exact:
            step, size = grid.grid_of(clip), grid.MAX_COORDINATES
            return DiscreteGaussianSumEvent(clip, stddev, step, size, self._source.seeded)
        return GaussianSumEvent(clip, stddev, seeded=self._source.seeded)

    @property
    def _source(self) -> RandomSource:
        return self.random_source or system_random_source()


def check_random_source(random_source: RandomSource | None) -> None:
    """Raises a TypeError that says what was received, if it is something else."""
    if not (random_source is None or isinstance(random_source, RandomSource)):
        raise TypeError(
            "random_source must be a tfdp.noise.RandomSource or None. Received: "
            f"random_source={random_source!r}."
        )


def clip_norm(name: str, value: float) -> float:
    """Returns a bound on a norm as a float, if float32 can hold records to it.

    Squares of coordinates below 1e-19 underflow, and norms above 1.8e19 overflow, in float32.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not between 1e-12 and 1e18.
    """
    real_number(name, value, minimum=0, inclusive=False)
    return real_number(name, value, minimum=1e-12, inclusive=True, maximum=1e18)


def noise_stddev(name: str, value: float) -> float:
    """Returns the standard deviation of noise as a float, if float32 can hold the noise.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not between 0 and 1e30.
    """
    return real_number(name, value, minimum=0, inclusive=True, maximum=1e30)


def add_noise(structure: Structure, stddev: float | tf.Tensor, source: RandomSource) -> Structure:
    """Returns the structure with independent N(0, stddev^2) added to every coordinate of every
    leaf.

    In a graph this is compiled by XLA and draws on the host once (`tfdp.noise.staged`). Nothing is
    drawn where `stddev` is the number 0.
    """
    structure = tf.nest.map_structure(tf.convert_to_tensor, structure)
    dtypes = tf.nest.map_structure(record_dtype, structure)

    def noised(leaf, dtype):
        return leaf + source.normal(tf.shape(leaf), dtype) * rounding.up(stddev, dtype)

    if not tf.is_tensor(stddev) and stddev == 0:
        return structure
    return staged(tf.nest.map_structure, noised, structure, dtypes)
