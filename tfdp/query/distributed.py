"""Sums of integers to which every record brings a share of the noise."""

import abc
import dataclasses
import math
from fractions import Fraction
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event, GaussianSharesSumEvent, SkellamSharesSumEvent
from tfdp.events.arguments import positive_integer, real_number
from tfdp.noise import RandomSource
from tfdp.noise.skellam import LARGEST_VARIANCE, skellam
from tfdp.query.arguments import check_random_source, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.integer_sums import (
    integer_stddev,
    integer_zeros,
    integers_of,
    norm_bound,
    refuse_unless,
    within_norm,
    within_norms,
)
from tfdp.query.leaves import whole
from tfdp.query.normalized import NormalizedQuery
from tfdp.query.structure import Structure, add

# Of a record, where nothing else is said.
_MOST_COORDINATES = 2**30


class SharesSampleState(NamedTuple):
    """A record with its share of the noise, or a sum of such records.

    Attributes:
        sum: Integers.
        contributors: int64: how many records, each with a share. Nobody can tell by the sum whether
            a record, or a copy of a state, was added twice: samples that are merged must be
            disjoint, and `min_contributors` holds where they are.
    """

    sum: Structure
    contributors: Any


class _SharesSumQuery(SumAggregationDPQuery):
    """What both kinds of shares have in common; subclasses are dataclasses.

    Attributes:
        min_contributors: How many shares are charged for.
    """

    min_contributors: int

    @abc.abstractmethod
    def is_within(self, record: Structure) -> tuple[tf.Tensor, str]:
        """Returns whether a record is within the bounds, and what to say where it is not."""

    @abc.abstractmethod
    def _share(self, shape: tf.Tensor) -> tf.Tensor | None:
        """Returns the noise of one record on one leaf, int64; None for none."""

    @property
    def needs_separate_records(self) -> bool:
        return True

    @property
    def draws_for_records(self) -> bool:
        return True

    def initial_sample_state(self, template: Structure) -> Structure:
        return SharesSampleState(integer_zeros(template), tf.zeros([], tf.int64))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        record = integers_of(record)

        def noised(leaf):
            share = self._share(tf.shape(leaf))
            return leaf if share is None else add(leaf, tf.cast(share, leaf.dtype))

        # A record that counts as zero has its share all the same: others rely on it.
        record = refuse_unless(*self.is_within(record), record)
        return SharesSampleState(tf.nest.map_structure(noised, record), tf.ones([], tf.int64))

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        if sample_state_1 is sample_state_2:
            raise ValueError(
                "A sample state was to be merged with itself. Its records would count twice, and "
                "min_contributors would take their noise for that of others. Merge the states of "
                "disjoint samples."
            )
        return super().merge_sample_states(sample_state_1, sample_state_2)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        message = (
            f"Fewer records took part than min_contributors={self.min_contributors}, which is what "
            "is charged for: their noise protects less. Nothing is released."
        )
        enough = sample_state.contributors >= self.min_contributors
        sums = tf.nest.map_structure(whole, sample_state.sum)
        result = refuse_unless(enough, message, sums)
        return result, global_state, self.derive_event(global_state)


@dataclasses.dataclass(frozen=True)
class DistributedDiscreteGaussianSumQuery(_SharesSumQuery):
    """Adds up vectors of integers, each with discrete Gaussian noise of its own.

        result = sum_i (r_i + x_i),   P(x_ij = k) proportional to exp(-k^2 / (2 local_stddev^2))

    So noise can be added where the records are, before a secure sum of which nobody sees the parts.
    Records are not clipped: one that is longer than `l2_norm_bound` is an error.

    Guarantees:
        Replacing one record, by zeros or by another, moves the sum of records by at most
        `l2_norm_bound`, or twice that, exactly, and leaves the noise as it is. The event is a
        `GaussianSharesSumEvent`: charged is the noise of `min_contributors` records. A sum with
        fewer records is an error, and is not released. Adding or removing a record would add or
        remove noise: there is no price for that relation.

    Edge cases:
        A record that is too long is an error; where XLA drops assertions it counts as zero, with
        its noise. Sums beyond the dtype of the records wrap around.

    Args:
        l2_norm_bound: S, of the records' norms over all leaves; at most 2^31 - 1.
        local_stddev: Parameter of the noise of one record; zero, or from 2^-10 to 2^50.
        min_contributors: How many records take part at least, and add their noise honestly.
        max_coordinates: Of a record, at most.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = DistributedDiscreteGaussianSumQuery(5.0, 10.0, min_contributors=100)
        >>> query.derive_event(()).noise_multiplier
        20.0

    References:
        Kairouz, Liu, Steinke 2021, arXiv:2102.06387.
    """

    l2_norm_bound: float
    local_stddev: float
    min_contributors: int = 1
    max_coordinates: int = _MOST_COORDINATES
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_norm_bound", norm_bound("l2_norm_bound", self.l2_norm_bound))
        object.__setattr__(self, "local_stddev", integer_stddev("local_stddev", self.local_stddev))
        for name in ("min_contributors", "max_coordinates"):
            object.__setattr__(self, name, positive_integer(name, getattr(self, name)))
        if self.max_coordinates > _MOST_COORDINATES:
            raise ValueError(
                f"max_coordinates must be at most 2^30. Received: {self.max_coordinates}."
            )
        check_random_source(self.random_source)

    def initial_sample_state(self, template: Structure) -> Structure:
        state = super().initial_sample_state(template)
        check_coordinates(state.sum, self.max_coordinates)
        return state

    def is_within(self, record: Structure) -> tuple[tf.Tensor, str]:
        check_coordinates(record, self.max_coordinates)
        message = f"The l2 norm of a record exceeds l2_norm_bound={self.l2_norm_bound}."
        return within_norm(record, self.l2_norm_bound), message

    def _share(self, shape):
        if self.local_stddev == 0:
            return None
        return source_of(self).discrete_gaussian(shape, Fraction(self.local_stddev) ** 2)

    def derive_event(self, global_state: Structure) -> Event:
        return GaussianSharesSumEvent(
            max(1.0, self.l2_norm_bound),
            self.local_stddev,
            self.min_contributors,
            self.max_coordinates,
            source_of(self).seeded,
        )


@dataclasses.dataclass(frozen=True)
class DistributedSkellamSumQuery(_SharesSumQuery):
    """Adds up vectors of integers, each with Skellam noise of its own.

        result = sum_i (r_i + x_i - y_i),   x_ij and y_ij Poisson, of the mean local_stddev^2 / 2

    As `DistributedDiscreteGaussianSumQuery`. Sums of Skellam noise are Skellam noise, so that the
    price follows the variance of the sum, however small the shares are. It follows the l1 norm as
    well, and is a little above a Gaussian's.

    Guarantees:
        Replacing one record, by zeros or by another, moves the sum of records by at most the bounds
        or twice that, in both norms, exactly, and leaves the noise as it is. The noise is exact
        (`tfdp.noise.skellam`). The event is a `SkellamSharesSumEvent`: charged is the noise of
        `min_contributors` records, and a sum with fewer is an error.

    Edge cases:
        As in `DistributedDiscreteGaussianSumQuery`. Bounds below one are charged as one.

    Args:
        l1_norm_bound: Of the records' l1 norms over all leaves; at most 2^61.
        l2_norm_bound: Of their l2 norms; at most 2^31 - 1.
        local_stddev: Standard deviation of the noise of one record; zero, or from 2^-10 to 2^14.
        min_contributors: How many records take part at least, and add their noise honestly.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = DistributedSkellamSumQuery(9.0, 5.0, local_stddev=10.0, min_contributors=100)
        >>> query.derive_event(()).noise_multiplier
        20.0

    References:
        Agarwal, Kairouz, Liu 2021, arXiv:2110.04995.
    """

    l1_norm_bound: float
    l2_norm_bound: float
    local_stddev: float
    min_contributors: int = 1
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        l1 = real_number(
            "l1_norm_bound", self.l1_norm_bound, minimum=0, inclusive=True, maximum=2.0**61
        )
        object.__setattr__(self, "l1_norm_bound", l1)
        object.__setattr__(self, "l2_norm_bound", norm_bound("l2_norm_bound", self.l2_norm_bound))
        most = math.sqrt(LARGEST_VARIANCE)
        stddev = integer_stddev("local_stddev", self.local_stddev, most)
        object.__setattr__(self, "local_stddev", stddev)
        count = positive_integer("min_contributors", self.min_contributors)
        object.__setattr__(self, "min_contributors", count)
        check_random_source(self.random_source)

    def is_within(self, record: Structure) -> tuple[tf.Tensor, str]:
        message = (
            f"The l1 norm of a record exceeds l1_norm_bound={self.l1_norm_bound}, or its l2 norm "
            f"exceeds l2_norm_bound={self.l2_norm_bound}."
        )
        return within_norms(record, self.l1_norm_bound, self.l2_norm_bound), message

    def _share(self, shape):
        if self.local_stddev == 0:
            return None
        distribution = skellam(Fraction(self.local_stddev) ** 2)
        (noise,) = source_of(self).on_host(
            lambda fill, size: [distribution.draw(fill, int(size))],
            [tf.reduce_prod(tf.cast(shape, tf.int64))],
            [tf.int64],
        )
        return tf.reshape(noise, shape)

    def derive_event(self, global_state: Structure) -> Event:
        return SkellamSharesSumEvent(
            max(1.0, self.l1_norm_bound),
            max(1.0, self.l2_norm_bound),
            self.local_stddev,
            self.min_contributors,
            source_of(self).seeded,
        )


class DistributedSkellamAverageQuery(NormalizedQuery):
    """`DistributedSkellamSumQuery` over a fixed denominator; the result is float32.

    Args:
        l1_norm_bound: As in the sum.
        l2_norm_bound: Likewise.
        local_stddev: Likewise: of the noise on one record before it is divided.
        denominator: Fixed and public.
        min_contributors: As in the sum.
        random_source: Likewise.
    """

    def __init__(
        self,
        l1_norm_bound: float,
        l2_norm_bound: float,
        local_stddev: float,
        denominator: float,
        min_contributors: int = 1,
        random_source: RandomSource | None = None,
    ):
        numerator = DistributedSkellamSumQuery(
            l1_norm_bound, l2_norm_bound, local_stddev, min_contributors, random_source
        )
        super().__init__(numerator, denominator)

    def get_config(self) -> dict[str, Any]:
        return {**self.numerator_query.get_config(), "denominator": self.denominator}

    @classmethod
    def _config_names(cls):
        names = ["l1_norm_bound", "l2_norm_bound", "local_stddev", "min_contributors"]
        return [*names, "denominator"]


def check_coordinates(record: Structure, most: int) -> None:
    """Raises a ValueError if a record has more coordinates than that, or nobody knows how many."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(record)]
    known = all(shape.is_fully_defined() for shape in shapes)
    if not known or sum(shape.num_elements() for shape in shapes) > most:
        raise ValueError(
            "Records must have shapes that are known when a graph is built, and at most "
            f"max_coordinates={most} coordinates. Received shapes {shapes}."
        )
