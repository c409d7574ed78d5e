"""A quantile of private numbers, followed from step to step."""

import abc
import collections
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query.arguments import check_random_source, noise_stddev
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.leaves import record_dtype, zeros_like
from tfdp.query.no_privacy import NoPrivacyAverageQuery
from tfdp.query.normalized import NormalizedQuery
from tfdp.query.structure import Structure, add, tensor_of

# What an estimate that changes by factors is kept between, in units of the first one.
_RANGE = 1e6
# What an estimate that changes by differences is kept between.
_LARGEST = 1e18


class QuantileEstimatorGlobalState(NamedTuple):
    """The estimate, a float32 scalar: public, because noised counts alone have moved it."""

    current_estimate: tf.Tensor


class QuantileEstimatorSampleState(NamedTuple):
    """What a record, or a sample, adds.

    Attributes:
        below: How many records were below the estimate, less one half of all: float64, which counts
            2^53 of them exactly.
        zero: Of the dtype of the records.
    """

    below: Structure
    zero: tf.Tensor


class _QuantileEstimator(DPQuery):
    """What the private estimator and the plain one have in common.

    Whether a record is below the estimate is counted as 1/2 or -1/2, so that a record moves the
    count by 1/2 only.
    """

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    geometric_update: bool
    min_estimate: float | None
    max_estimate: float | None

    @property
    @abc.abstractmethod
    def _fraction_query(self) -> DPQuery:
        """The query for the share of records that are below the estimate, less 1/2."""

    def _check(self) -> None:
        if not isinstance(self.geometric_update, bool):
            raise TypeError(
                f"geometric_update must be a bool. Received: {self.geometric_update!r}."
            )
        quantile = real_number(
            "target_quantile", self.target_quantile, minimum=0, inclusive=True, maximum=1
        )
        rate = real_number(
            "learning_rate", self.learning_rate, minimum=0, inclusive=True, maximum=_LARGEST
        )
        low, high = update_bounds(
            self.initial_estimate, self.min_estimate, self.max_estimate, self.geometric_update
        )
        object.__setattr__(self, "initial_estimate", float(self.initial_estimate))
        object.__setattr__(self, "target_quantile", quantile)
        object.__setattr__(self, "learning_rate", rate)
        object.__setattr__(self, "min_estimate", low)
        object.__setattr__(self, "max_estimate", high)

    def initial_global_state(self) -> Structure:
        return QuantileEstimatorGlobalState(tf.constant(self.initial_estimate, tf.float32))

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state.current_estimate

    def initial_sample_state(self, template: Structure) -> Structure:
        count = self._fraction_query.initial_sample_state(tf.zeros([], tf.float64))
        return QuantileEstimatorSampleState(count, zeros_like(_scalar(template)))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        record = tensor_of(_scalar(record))
        return QuantileEstimatorSampleState(below(params, record), tf.zeros([], record.dtype))

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        (count, zero), (one, other) = sample_state, preprocessed_record
        count = self._fraction_query.accumulate_preprocessed_record(count, one)
        return QuantileEstimatorSampleState(count, add(zero, other))

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        (count, zero), (more, other) = sample_state_1, sample_state_2
        count = self._fraction_query.merge_sample_states(count, more)
        return QuantileEstimatorSampleState(count, add(zero, other))

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        query = self._fraction_query
        count, zero = sample_state
        fraction, _, event = query.get_noised_result(count, query.initial_global_state())
        share = tf.clip_by_value(fraction + 0.5, 0.0, 1.0)
        update = self.learning_rate * (tf.cast(share, tf.float32) - self.target_quantile)
        estimate = global_state.current_estimate
        moved = estimate * tf.exp(-update) if self.geometric_update else estimate - update
        estimate = tf.clip_by_value(moved, self.min_estimate, self.max_estimate)
        new_state = QuantileEstimatorGlobalState(estimate)
        return tf.cast(estimate, zero.dtype), new_state, event

    def derive_event(self, global_state: Structure) -> Event:
        return self._fraction_query.derive_event(self._fraction_query.initial_global_state())

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return collections.OrderedDict(estimate=global_state.current_estimate)


@dataclasses.dataclass(frozen=True)
class QuantileEstimatorQuery(_QuantileEstimator, SumAggregationDPQuery):
    """Estimates a quantile of scalar records, moving the estimate a little in every step.

        share    = clip_[0, 1](1/2 + (sum_i b_i + N(0, below_estimate_stddev^2)) / expected)
        estimate = estimate - learning_rate * (share - target_quantile)              or, geometric,
        estimate = estimate * exp(-learning_rate * (share - target_quantile))

    where b_i is 1/2 if record i is at most the estimate and -1/2 if it is above, and `expected` is
    `expected_num_records`. That is gradient descent on the pinball loss of the quantile. The
    result of a step is the new estimate, which is also the global state and a metric ("estimate").

    Guarantees:
        Adding or removing one record moves the sum of the b_i by 1/2, whatever the record is. The
        event is `GaussianSumEvent(0.5, below_estimate_stddev)`, whatever the estimate is. The
        estimate stays within public bounds.

    Edge cases:
        A NaN or infinite record contributes zero. An empty sample moves the estimate as a sample
        would of which one half is below.

    Args:
        initial_estimate: Positive if `geometric_update`.
        target_quantile: In [0, 1].
        learning_rate: The largest step, in units of the records; if `geometric_update`, the
            logarithm of the largest factor.
        below_estimate_stddev: Standard deviation of the noise on the sum of the b_i;
            expected_num_records / 20 is a good choice for a count that is cheap beside the rest.
        expected_num_records: Expected number of records in a sample; public.
        geometric_update: For positive records, such as norms, whose size nobody knows.
        min_estimate: The estimate gets no smaller; by default a millionth of `initial_estimate`, or
            -1e18 without `geometric_update`.
        max_estimate: The estimate gets no larger; by default a million times `initial_estimate`, or
            1e18.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> query = QuantileEstimatorQuery(10.0, 0.0, 1.0, 0.0, 2.0)
        >>> state = query.initial_global_state()
        >>> sample = query.initial_sample_state(tf.zeros([]))
        >>> for record in (8.5, 7.25):
        ...     sample = query.accumulate_record(state.current_estimate, sample, record)
        >>> print(query.get_noised_result(sample, state)[0].numpy())
        9.0

    References:
        Andrew et al. 2021, arXiv:1905.03871, section 2 and algorithm 1.
    """

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    below_estimate_stddev: float
    expected_num_records: float
    geometric_update: bool = False
    min_estimate: float | None = None
    max_estimate: float | None = None
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        stddev = noise_stddev("below_estimate_stddev", self.below_estimate_stddev)
        check_random_source(self.random_source)
        object.__setattr__(self, "below_estimate_stddev", stddev)
        expected = real_number(
            "expected_num_records", self.expected_num_records, minimum=0, inclusive=False
        )
        object.__setattr__(self, "expected_num_records", expected)
        self._fraction_query  # noqa: B018, refuses numbers that it cannot divide by.

    @functools.cached_property
    def _fraction_query(self):
        count = GaussianSumQuery(0.5, self.below_estimate_stddev, self.random_source)
        return NormalizedQuery(count, self.expected_num_records)


@dataclasses.dataclass(frozen=True)
class NoPrivacyQuantileEstimatorQuery(_QuantileEstimator):
    """`QuantileEstimatorQuery` with the exact share of records that are below, for comparison.

    Guarantees:
        None. The event is `NonPrivateEvent`, for which accountants answer infinity.

    Args:
        initial_estimate: As in `QuantileEstimatorQuery`.
        target_quantile: Likewise.
        learning_rate: Likewise.
        geometric_update: Likewise.
        min_estimate: Likewise.
        max_estimate: Likewise.
    """

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    geometric_update: bool = False
    min_estimate: float | None = None
    max_estimate: float | None = None

    def __post_init__(self) -> None:
        self._check()

    @property
    def _fraction_query(self):
        return NoPrivacyAverageQuery()


def below(estimate: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns 1/2 where a value is at most the estimate, -1/2 where it is above, and zero where it
    is not finite, in float64: in float32 a count of 2^24 records or more would be rounded, and one
    record could move it by more than 1/2.
    """
    half = tf.constant(0.5, tf.float64)
    signed = tf.where(values <= tf.cast(estimate, values.dtype), half, -half)
    return tf.where(tf.math.is_finite(values), signed, tf.zeros_like(signed))


def update_bounds(
    initial: float, low: float | None, high: float | None, geometric: bool
) -> tuple[float, float]:
    """Returns the bounds (low, high) between which the estimate is kept.

    Args:
        initial: The estimate at the start.
        low: The lower bound; None for one that is far below the start.
        high: The upper bound; None for one that is far above the start.
        geometric: Whether the estimate moves by factors, and so is positive.

    Raises:
        TypeError: something is not a number.
        ValueError: it is out of range, or the initial estimate is not between the bounds.
    """
    largest = {"maximum": _LARGEST, "inclusive": True}
    smallest = 1e-12 if geometric else -_LARGEST
    initial = real_number("initial_estimate", initial, minimum=smallest, **largest)
    if low is None:
        low = max(initial / _RANGE, smallest) if geometric else smallest
    if high is None:
        high = min(initial * _RANGE, _LARGEST) if geometric else _LARGEST
    low = real_number("min_estimate", low, minimum=smallest, **largest)
    high = real_number("max_estimate", high, minimum=smallest, **largest)
    if not low <= initial <= high:
        raise ValueError(
            "The initial estimate must be between the bounds. Received: "
            f"min_estimate={low!r}, initial_estimate={initial!r}, max_estimate={high!r}."
        )
    return low, high


def _scalar(record: Structure) -> Structure:
    """Returns the record, or template, if it is one real number."""
    record_dtype(record)
    shape = record.shape if hasattr(record, "shape") else ()
    if len(shape):
        raise ValueError(
            f"The records of a quantile estimator must be scalars. Received shape {tuple(shape)}."
        )
    return record
