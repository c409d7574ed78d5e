"""Sum of clipped records, as integers, with discrete Gaussian noise."""

import dataclasses

from tfdp.events import DiscreteGaussianSumEvent, Event
from tfdp.noise import RandomSource
from tfdp.query import grid
from tfdp.query.arguments import (
    GaussianGlobalState,
    check_random_source,
    clip_norm,
    noise_stddev,
    source_of,
)
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.structure import Structure, is_concrete


@dataclasses.dataclass(frozen=True)
class ExactGaussianSumQuery(SumAggregationDPQuery):
    """`GaussianSumQuery` with precision="exact": no rounding has a part in its guarantee.

    Records are rounded towards zero to a grid of 2^-31 to 2^-30 of `l2_norm_clip`, and added up as
    integers. The noise is discrete Gaussian (`tfdp.query.grid`). Rounding is not a scaling and
    needs all digits of a record. So the gradient engine must be one that computes every record by
    itself: "loop".

    Guarantees:
        Adding or removing one record moves the sum by at most `l2_norm_clip`. The event is a
        `DiscreteGaussianSumEvent`.

    Edge cases:
        As in `GaussianSumQuery`.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive. Records have at most 2^30
            coordinates.
        stddev: Standard deviation of the noise on the sum; from 2^-20 to 2^19 times `l2_norm_clip`,
            or zero.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is not finite or out of range.

    References:
        Canonne, Kamath, Steinke 2020, arXiv:2004.00010.
    """

    l2_norm_clip: float
    stddev: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        clip = clip_norm("l2_norm_clip", self.l2_norm_clip)
        stddev = noise_stddev("stddev", self.stddev)
        grid.noise_variance(clip, stddev)
        check_random_source(self.random_source)
        object.__setattr__(self, "l2_norm_clip", clip)
        object.__setattr__(self, "stddev", stddev)

    def initial_global_state(self) -> Structure:
        return GaussianGlobalState(self.l2_norm_clip, self.stddev)

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state.l2_norm_clip

    @property
    def needs_separate_records(self) -> bool:
        return True

    def initial_sample_state(self, template: Structure) -> Structure:
        return grid.zeros(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        return grid.clip_to_grid(params, record)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        result = grid.noised(sample_state, *global_state, source_of(self))
        event = self.derive_event(global_state) if is_concrete(global_state) else None
        return result, global_state, event

    def derive_event(self, global_state: Structure) -> Event:
        clip, stddev = float(global_state.l2_norm_clip), float(global_state.stddev)
        step, size = grid.grid_of(clip), grid.MAX_COORDINATES
        return DiscreteGaussianSumEvent(clip, stddev, step, size, source_of(self).seeded)
