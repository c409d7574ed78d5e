"""A structure of queries over a structure of tensors."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.events import ComposedEvent, Event
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.structure import Structure, flatten_up_to, paths_of


@dataclasses.dataclass(frozen=True, eq=False)
class NestedQuery(DPQuery):
    """Applies each of `queries` to its own part of every record.

    `queries` is a structure whose leaves are queries, and a prefix of the structure of the records.
    With `NestedQuery([a, {"k": b, "b": c}])` a record is `[x, {"k": y, "b": z}]`, where x, y, z may
    be structures. Sample states, global states and results have the structure of `queries`.

    Guarantees:
        The event is the composition of the sub-queries' events on the same sample. For Gaussian
        sums with bounds S_g and noise sigma_g that is one Gaussian with noise multiplier (sum_g
        (S_g / sigma_g)^2)^(-1/2); the event keeps every pair, and accountants do the arithmetic.

    Edge cases:
        A record whose part for one query is not finite contributes zero to that query. The gradient
        engines drop such a record from all of them.

    Args:
        queries: Structure of `DPQuery`.

    Raises:
        TypeError: a leaf of `queries` is not a `DPQuery`, or there is none.

    References:
        McMahan et al. 2018, arXiv:1812.06210, section 3.
    """

    queries: Structure

    def __post_init__(self) -> None:
        leaves = tf.nest.flatten(self.queries)
        if not leaves or not all(isinstance(query, DPQuery) for query in leaves):
            raise TypeError(
                "queries must be a structure of DPQuery objects. "
                f"Received: queries={self.queries!r}."
            )
        # A copy: the caller may change the list or dict later.
        object.__setattr__(self, "queries", tf.nest.pack_sequence_as(self.queries, leaves))

    @property
    def _flat_queries(self) -> list[DPQuery]:
        return tf.nest.flatten(self.queries)

    def _split(self, *structures: Structure) -> list[tuple[Any, ...]]:
        """Returns (query, part of each structure) for every query."""
        parts = [flatten_up_to(self.queries, structure) for structure in structures]
        return list(zip(self._flat_queries, *parts, strict=True))

    def _pack(self, values: list[Any]) -> Structure:
        return tf.nest.pack_sequence_as(self.queries, values)

    def initial_global_state(self) -> Structure:
        return self._pack([query.initial_global_state() for query in self._flat_queries])

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return self._pack(
            [query.derive_sample_params(state) for query, state in self._split(global_state)]
        )

    def initial_sample_state(self, template: Structure) -> Structure:
        return self._pack(
            [query.initial_sample_state(part) for query, part in self._split(template)]
        )

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        split = self._split(params, record)
        return self._pack([query.preprocess_record(param, part) for query, param, part in split])

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        split = self._split(sample_state, preprocessed_record)
        return self._pack(
            [query.accumulate_preprocessed_record(state, part) for query, state, part in split]
        )

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        split = self._split(sample_state_1, sample_state_2)
        return self._pack([query.merge_sample_states(left, right) for query, left, right in split])

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        split = self._split(sample_state, global_state)
        outcomes = [query.get_noised_result(sample, state) for query, sample, state in split]
        results, states, events = zip(*outcomes, strict=True)
        event = None if any(e is None for e in events) else ComposedEvent(events)
        return self._pack(list(results)), self._pack(list(states)), event

    def derive_event(self, global_state: Structure) -> Event:
        return ComposedEvent(
            tuple(query.derive_event(state) for query, state in self._split(global_state))
        )

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        """Returns the metrics of all queries, by path and name: "0/clip", "key2/1/clip"."""
        metrics: collections.OrderedDict[str, Any] = collections.OrderedDict()
        paths = paths_of(self.queries)
        for path, (query, state) in zip(paths, self._split(global_state), strict=True):
            for name, value in query.derive_metrics(state).items():
                metrics["/".join(str(part) for part in (*path, name))] = value
        return metrics

    @property
    def is_sum(self) -> bool:
        return all(query.is_sum for query in self._flat_queries)

    @property
    def has_numeric_result(self) -> bool:
        return all(query.has_numeric_result for query in self._flat_queries)

    @property
    def has_results_like_records(self) -> bool:
        return all(query.has_results_like_records for query in self._flat_queries)

    @property
    def needs_separate_records(self) -> bool:
        return any(query.needs_separate_records for query in self._flat_queries)

    @property
    def draws_for_records(self) -> bool:
        return any(query.draws_for_records for query in self._flat_queries)

    @property
    def min_contributors(self) -> int:
        return max((query.min_contributors for query in self._flat_queries), default=0)

    @property
    def takes_weights(self) -> bool:
        return any(query.takes_weights for query in self._flat_queries)

    def weighed(self, weights: float | tf.Tensor) -> "DPQuery":
        return NestedQuery(self._pack([query.weighed(weights) for query in self._flat_queries]))

    @property
    def num_norm_groups(self) -> int | None:
        counts = [query.num_norm_groups for query in self._flat_queries]
        return None if any(count is None for count in counts) else sum(counts)

    def norm_groups(self, template: Structure) -> list[int]:
        result, first = [], 0
        for query, part in self._split(template):
            result += [first + group for group in query.norm_groups(part)]
            first += query.num_norm_groups
        return result

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        split = self._with_norms(params, norms)
        return tf.concat([query.scale_factors(*part) for query, *part in split], axis=-1)

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        split = self._split(params, template)
        return [s for query, *part in split for s in query.coordinate_scales(*part)]

    def contribution_clips(self, template: Structure) -> list[float | None]:
        split = self._split(template)
        return [clip for query, part in split for clip in query.contribution_clips(part)]

    @property
    def num_norm_statistics(self) -> int:
        return sum(query.num_norm_statistics for query in self._flat_queries)

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        split = self._with_norms(params, norms)
        statistics = [tf.cast(query.norm_statistics(*p), tf.float64) for query, *p in split]
        return tf.concat(statistics, axis=-1)

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        packed, first = [], 0
        for query, part in self._split(scaled):
            end = first + query.num_norm_statistics
            packed.append(query.pack_scaled(part, statistics[first:end]))
            first = end
        return self._pack(packed)

    def _with_norms(self, params: Structure, norms: tf.Tensor) -> list[tuple[Any, ...]]:
        """Returns (query, its params, the norms of its groups) for every query."""
        result, first = [], 0
        for query, param in self._split(params):
            end = first + query.num_norm_groups
            result.append((query, param, norms[..., first:end]))
            first = end
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class NestedSumQuery(NestedQuery, SumAggregationDPQuery):
    """A `NestedQuery` all of whose sub-queries sum, and which is therefore one summing query
    itself.

    Args:
        queries: Structure of queries that sum.

    Raises:
        TypeError: a sub-query does not sum.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for query in self._flat_queries:
            if not query.is_sum:
                raise TypeError(
                    f"Every query of a NestedSumQuery must be a sum. Received: {query!r}."
                )
