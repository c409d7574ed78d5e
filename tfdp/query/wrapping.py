"""Queries that take their records as another query does."""

import abc
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.events import Event
from tfdp.query.dp_query import DPQuery
from tfdp.query.structure import Structure


class WrappingQuery(DPQuery):
    """A query that does with records what `_inner` does, and something else with its results.

    Guarantees:
        What is added is post-processing, or public. So bounds, noise and events are those of the
        inner query.
    """

    @property
    @abc.abstractmethod
    def _inner(self) -> DPQuery:
        """The query of which this one has records and events."""

    @abc.abstractmethod
    def _with_inner(self, inner: DPQuery) -> DPQuery:
        """Returns this query around another one, with the same states."""

    def _inner_state(self, global_state: Structure) -> Structure:
        """Returns the global state of the inner query."""
        return global_state

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return self._inner.derive_sample_params(self._inner_state(global_state))

    def initial_sample_state(self, template: Structure) -> Structure:
        return self._inner.initial_sample_state(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        return self._inner.preprocess_record(params, record)

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        return self._inner.accumulate_preprocessed_record(sample_state, preprocessed_record)

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        return self._inner.merge_sample_states(sample_state_1, sample_state_2)

    def derive_event(self, global_state: Structure) -> Event:
        return self._inner.derive_event(self._inner_state(global_state))

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return self._inner.derive_metrics(self._inner_state(global_state))

    @property
    def is_sum(self) -> bool:
        return self._inner.is_sum

    @property
    def has_numeric_result(self) -> bool:
        return self._inner.has_numeric_result

    @property
    def has_results_like_records(self) -> bool:
        return self._inner.has_results_like_records

    @property
    def needs_separate_records(self) -> bool:
        return self._inner.needs_separate_records

    @property
    def draws_for_records(self) -> bool:
        return self._inner.draws_for_records

    @property
    def min_contributors(self) -> int:
        return self._inner.min_contributors

    @property
    def takes_weights(self) -> bool:
        return self._inner.takes_weights

    def weighed(self, weights: float | tf.Tensor) -> "DPQuery":
        return self._with_inner(self._inner.weighed(weights)) if self.takes_weights else self

    @property
    def num_norm_groups(self) -> int | None:
        return self._inner.num_norm_groups

    def norm_groups(self, template: Structure) -> list[int]:
        return self._inner.norm_groups(template)

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return self._inner.scale_factors(params, norms)

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        return self._inner.coordinate_scales(params, template)

    def contribution_clips(self, template: Structure) -> list[float | None]:
        return self._inner.contribution_clips(template)

    @property
    def num_norm_statistics(self) -> int:
        return self._inner.num_norm_statistics

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return self._inner.norm_statistics(params, norms)

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        return self._inner.pack_scaled(scaled, statistics)


def check_is_query(name: str, value: object) -> None:
    """Raises a TypeError where an argument is no query."""
    if not isinstance(value, DPQuery):
        raise TypeError(f"{name} must be a DPQuery. Received: {name}={value!r}.")


def check_is_numeric(name: str, value: object) -> None:
    """Raises a TypeError where an argument is no query, or has results that are no numbers."""
    check_is_query(name, value)
    if not value.has_numeric_result:  # type: ignore[attr-defined]
        raise TypeError(
            f"{name} must have a result of numbers, and this one says what was chosen. Use it by "
            f"itself, or as a part of a NestedQuery outside of others. Received: {name}={value!r}."
        )


def check_goes_inside(name: str, value: object, outside: str) -> None:
    """Raises a TypeError where an argument is no query that another one can give records which it
    has changed.
    """
    check_is_numeric(name, value)
    if not value.has_results_like_records:  # type: ignore[attr-defined]
        raise TypeError(
            f"{name} must have results like its records, which the nodes of a tree are not. Put "
            f"the tree outside. Received: {name}={value!r}."
        )
    if value.takes_weights:  # type: ignore[attr-defined]
        raise TypeError(
            f"Records of {name} must have no weights. Put the weights outside: "
            f"WeightedSumQuery({outside}(...), ...). Received: {name}={value!r}."
        )
