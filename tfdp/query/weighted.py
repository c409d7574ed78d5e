"""Weighted sums and averages of records whose weights are bounded."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event, scale_sensitivity
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query import norm_factors
from tfdp.query.arguments import clip_norm
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.normalized import NormalizedQuery, check_named, resolve_stddev
from tfdp.query.structure import Structure, describe, tensor_of
from tfdp.query.wrapping import check_is_numeric


class WeightedRecord(NamedTuple):
    """A record and its weight (a scalar)."""

    record: Structure
    weight: Any


@dataclasses.dataclass(frozen=True)
class WeightedSumQuery(SumAggregationDPQuery):
    """Multiplies every record, after `sum_query` has preprocessed it, by a weight in [0,
    max_weight].

    Records are `WeightedRecord(record, weight)`; results have the structure of `record`.

    Guarantees:
        A record moves the sum by at most max_weight times what it could move that of `sum_query`,
        and the event says so.

    Edge cases:
        Weights above `max_weight` are lowered to it; negative ones and NaN count as zero.

    Args:
        sum_query: A query that sums, such as `GaussianSumQuery`.
        max_weight: The largest weight a record can have; from 1e-12 to 1e12.

    Raises:
        TypeError: an argument is of the wrong type, or records of `sum_query` count in whole.
        ValueError: `max_weight` is out of range.
        UnsupportedEventError: the event of `sum_query` has no bound that could be multiplied.
    """

    sum_query: DPQuery
    max_weight: float

    def __post_init__(self) -> None:
        if not (isinstance(self.sum_query, DPQuery) and self.sum_query.is_sum):
            raise TypeError(
                f"sum_query must be a DPQuery that sums. Received: sum_query={self.sum_query!r}."
            )
        if self.sum_query.needs_separate_records:
            raise TypeError(
                "A weight would take records off their grid, and take their noise: "
                "precision='exact' and sums of integers are not supported. "
                f"Received: sum_query={self.sum_query!r}."
            )
        max_weight = _weight_bound(self.max_weight)
        object.__setattr__(self, "max_weight", max_weight)
        with tf.init_scope():
            self.derive_event(self.initial_global_state())  # Refuses what cannot be scaled.
        check_is_numeric("sum_query", self.sum_query)

    def initial_global_state(self) -> Structure:
        return self.sum_query.initial_global_state()

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return self.sum_query.derive_sample_params(global_state)

    def initial_sample_state(self, template: Structure) -> Structure:
        return self.sum_query.initial_sample_state(_check(template).record)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        record = _check(record)
        return self.weighed(_scalar(record.weight)).preprocess_record(params, record.record)

    @property
    def takes_weights(self) -> bool:
        return True

    @property
    def has_results_like_records(self) -> bool:
        return self.sum_query.has_results_like_records

    def weighed(self, weights: float | tf.Tensor) -> "DPQuery":
        weights = tf.cast(weights, tf.float64)
        # maximum() keeps a NaN; the comparison is false for it.
        bounded = tf.where(
            weights > 0, tf.minimum(weights, self.max_weight), tf.zeros_like(weights)
        )
        return _WeighedSumQuery(self.sum_query, bounded)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        result, new_state, event = self.sum_query.get_noised_result(sample_state, global_state)
        return (
            result,
            new_state,
            None if event is None else scale_sensitivity(event, self.max_weight),
        )

    def derive_event(self, global_state: Structure) -> Event:
        return scale_sensitivity(self.sum_query.derive_event(global_state), self.max_weight)

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return self.sum_query.derive_metrics(global_state)


@dataclasses.dataclass(frozen=True, eq=False)
class _WeighedSumQuery(SumAggregationDPQuery):
    """The sum of records times weights that are known, and bounded: a scalar for one record, or
    [n]. It releases nothing: noise and event are those of the `WeightedSumQuery` that made it.
    """

    sum_query: DPQuery
    weights: tf.Tensor

    def initial_sample_state(self, template: Structure) -> Structure:
        return self.sum_query.initial_sample_state(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        clipped = self.sum_query.preprocess_record(params, record)
        return tf.nest.map_structure(lambda leaf: norm_factors.scale(leaf, self.weights), clipped)

    @property
    def num_norm_groups(self) -> int | None:
        return self.sum_query.num_norm_groups

    def norm_groups(self, template: Structure) -> list[int]:
        return self.sum_query.norm_groups(template)

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        factors = self.sum_query.scale_factors(params, norms)
        return factors * tf.cast(self.weights, factors.dtype)[..., None]

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        return self.sum_query.coordinate_scales(params, template)

    @property
    def num_norm_statistics(self) -> int:
        return self.sum_query.num_norm_statistics

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        statistics = self.sum_query.norm_statistics(params, norms)
        return statistics * tf.cast(self.weights, statistics.dtype)[..., None]

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        return self.sum_query.pack_scaled(scaled, statistics)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        raise TypeError("The sum of weighted records is released by its WeightedSumQuery.")

    def derive_event(self, global_state: Structure) -> Event:
        raise TypeError("The sum of weighted records is released by its WeightedSumQuery.")


class WeightedAverageQuery(NormalizedQuery):
    """Weighted average of clipped records, over a fixed denominator, with Gaussian noise.

        result = (sum_i w_i r_i min(1, l2_norm_clip / |r_i|) + N(0, stddev^2 I)) / denominator

    Records are `WeightedRecord(record, weight)`, weights in [0, max_weight]. In `fit` a record is
    the gradient of an example's loss. Its weight is the example's `sample_weight`, 1 by default.
    The gradient is clipped before it is weighted, so that a small weight makes no room below the
    clip.

    Guarantees:
        Adding or removing one record moves the sum by at most max_weight * l2_norm_clip, which is
        the l2_norm_bound of the event.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record before it is weighted; positive.
        *positional: None may be given: the others are given by name.
        noise_multiplier: stddev / (max_weight * l2_norm_clip).
        denominator: Expected total weight of a sample: fixed, public, positive.
        max_weight: The largest weight a record can have.
        stddev: Standard deviation of the noise on the weighted sum, in place of `noise_multiplier`.
        random_source: Where the noise comes from; by default keyed by the operating system.

    References:
        McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963, section 2.2 (the estimator with a
        fixed denominator).
    """

    def __init__(
        self,
        l2_norm_clip: float,
        *positional: Any,
        noise_multiplier: float | None = None,
        denominator: float | None = None,
        max_weight: float = 1.0,
        stddev: float | None = None,
        random_source: RandomSource | None = None,
    ):
        check_named("WeightedAverageQuery", positional)
        if denominator is None:
            raise TypeError(
                "WeightedAverageQuery needs a denominator: the expected total weight of a sample."
            )
        max_weight = _weight_bound(max_weight)
        clip = clip_norm("l2_norm_clip", l2_norm_clip)
        stddev = resolve_stddev(clip * max_weight, noise_multiplier, stddev)
        sum_query = GaussianSumQuery(clip, stddev, random_source)
        super().__init__(WeightedSumQuery(sum_query, max_weight), denominator)

    def get_config(self) -> dict[str, Any]:
        weighted = self.numerator_query
        numbers = {"max_weight": weighted.max_weight, "denominator": self.denominator}
        config = weighted.sum_query.get_config()
        return {"l2_norm_clip": config["l2_norm_clip"], "stddev": config["stddev"], **numbers}

    @classmethod
    def _config_names(cls):
        return ["l2_norm_clip", "stddev", "max_weight", "denominator"]


def _check(record: Any) -> WeightedRecord:
    if not isinstance(record, WeightedRecord):
        raise TypeError(
            "Records must be tfdp.query.WeightedRecord(record, weight). Received: "
            f"{describe(record)}."
        )
    return record


def _weight_bound(max_weight: float) -> float:
    real_number("max_weight", max_weight, minimum=0, inclusive=False)
    return real_number("max_weight", max_weight, minimum=1e-12, inclusive=True, maximum=1e12)


def _scalar(weight: Any) -> tf.Tensor:
    """Returns a weight as float64.

    Raises:
        TypeError: it is not one real number. Several would repeat the record along an axis.
    """
    weight = tensor_of(weight)
    if weight.shape.rank != 0 or not (weight.dtype.is_floating or weight.dtype.is_integer):
        raise TypeError(
            "The weight of a record must be one number. Received a tensor of dtype "
            f"{weight.dtype.name} and shape {weight.shape}."
        )
    return tf.cast(weight, tf.float64)
