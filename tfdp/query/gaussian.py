"""Sum of clipped records with Gaussian noise."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfdp.events import Event, GaussianSumEvent
from tfdp.noise import RandomSource, staged
from tfdp.numerics import rounding
from tfdp.query import norm_factors
from tfdp.query.arguments import (
    GaussianGlobalState,
    check_random_source,
    clip_norm,
    noise_stddev,
    source_of,
)
from tfdp.query.exact import ExactGaussianSumQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, is_concrete


@dataclasses.dataclass(frozen=True)
class GaussianSumQuery(norm_factors.OneGroupQuery):
    """Clips every record to `l2_norm_clip` over all of its leaves, sums, adds N(0, stddev^2) to
    every coordinate.

        result = sum_i r_i * min(1, l2_norm_clip / |r_i|) + N(0, stddev^2 I)

    Guarantees:
        Adding or removing one record moves the sum by at most `l2_norm_clip`. The event is
        `GaussianSumEvent(l2_norm_clip, stddev)`.

    Edge cases:
        A record with a NaN or infinity contributes zero. A zero record stays zero. `stddev=0` adds
        no noise and says so in the event: accountants then answer infinity.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        stddev: Standard deviation of the noise on the sum (not on an average); zero, or from 1e-30
            to 1e30.
        random_source: Where the noise comes from; by default keyed by the operating system.
        precision: "float" (default), or "exact", which makes an `ExactGaussianSumQuery`.

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
        algorithm 1.
    """

    l2_norm_clip: float
    stddev: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)
    precision: dataclasses.InitVar[str] = "float"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a query of the precision that is asked for."""
        precision = args[3] if len(args) > 3 else kwargs.pop("precision", "float")
        if cls is GaussianSumQuery and precision == "exact":
            return ExactGaussianSumQuery(*args[:3], **kwargs)
        return super().__new__(cls)

    def __post_init__(self, precision: str) -> None:
        if precision != "float":
            raise ValueError(
                "precision must be 'float' or 'exact', and a class derived from GaussianSumQuery "
                f"has 'float' (derive from ExactGaussianSumQuery). Received: {precision=}."
            )
        object.__setattr__(self, "l2_norm_clip", clip_norm("l2_norm_clip", self.l2_norm_clip))
        object.__setattr__(self, "stddev", noise_stddev("stddev", self.stddev))
        check_random_source(self.random_source)

    def initial_global_state(self) -> Structure:
        return GaussianGlobalState(self.l2_norm_clip, self.stddev)

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state.l2_norm_clip

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return norm_factors.clip_factors(params, norms)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        result = add_noise(sample_state, global_state.stddev, source_of(self))
        event = self.derive_event(global_state) if is_concrete(global_state) else None
        return result, global_state, event

    def derive_event(self, global_state: Structure) -> Event:
        clip, stddev = float(global_state.l2_norm_clip), float(global_state.stddev)
        return GaussianSumEvent(clip, stddev, seeded=source_of(self).seeded)


def add_noise(structure: Structure, stddev: float | tf.Tensor, source: RandomSource) -> Structure:
    """Returns the structure with independent N(0, stddev^2) added to every coordinate of every
    leaf.

    In a graph this is compiled by XLA and draws on the host once (`tfdp.noise.staged`). Nothing is
    drawn where `stddev` is the number 0.
    """
    structure = tf.nest.map_structure(tf.convert_to_tensor, structure)
    dtypes = tf.nest.map_structure(record_dtype, structure)

    def noised(structure):
        stddevs = {
            dtype: rounding.up(stddev, dtype) for dtype in dict.fromkeys(tf.nest.flatten(dtypes))
        }

        def each(leaf, dtype):
            shape = leaf.shape if leaf.shape.is_fully_defined() else tf.shape(leaf)
            return leaf + source.normal(shape, dtype) * stddevs[dtype]

        return tf.nest.map_structure(each, structure, dtypes)

    if not tf.is_tensor(stddev) and stddev == 0:
        return structure
    return staged(noised, structure)
