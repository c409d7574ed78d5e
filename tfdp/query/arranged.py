"""A query on records whose leaves stand in another structure."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfdp.events import Event
from tfdp.query.dp_query import DPQuery
from tfdp.query.structure import Structure
from tfdp.query.wrapping import WrappingQuery, check_is_numeric


@dataclasses.dataclass(frozen=True, eq=False)
class ArrangedQuery(WrappingQuery):
    """Gives the leaves of a flat record to `query` in the structure of `arrangement`.

    With `ArrangedQuery(NestedQuery({"a": q, "b": r}), {"a": [0, 3], "b": [1, 2]})` records are
    lists of four tensors, of which q gets the first and the last. Results are flat again.

    Guarantees:
        A record is the same vector in both structures, so bounds, noise and events are those of
        `query`.

    Args:
        query: Any query whose results have the structure of its records.
        arrangement: Structure of integers, each of 0 .. n - 1 once, for records of n leaves.

    Raises:
        TypeError: `query` is not a query, or has results that are no numbers, or `arrangement`
            holds something else than integers.
        ValueError: an integer is missing or is there twice.
    """

    query: DPQuery
    arrangement: Structure

    def __post_init__(self) -> None:
        check_is_numeric("query", self.query)
        places = tf.nest.flatten(self.arrangement)
        if not all(type(place) is int for place in places):
            raise TypeError(
                f"arrangement must hold integers. Received: arrangement={self.arrangement!r}."
            )
        if sorted(places) != list(range(len(places))):
            raise ValueError(
                "arrangement must hold every index of a record's leaves once, from 0 on. Received: "
                f"arrangement={self.arrangement!r}."
            )
        # A copy: the caller may change the list or dict later.
        copy = tf.nest.pack_sequence_as(self.arrangement, places)
        object.__setattr__(self, "arrangement", copy)

    @property
    def _places(self) -> list[int]:
        return tf.nest.flatten(self.arrangement)

    def _arranged(self, record: Structure) -> Structure:
        leaves = tf.nest.flatten(record)
        if len(leaves) != len(self._places):
            raise ValueError(
                f"Records must have {len(self._places)} leaves. Received {len(leaves)}."
            )
        return tf.nest.pack_sequence_as(self.arrangement, [leaves[p] for p in self._places])

    def _restored(self, arranged: Structure) -> list[Any]:
        leaves: list[Any] = [None] * len(self._places)
        for place, leaf in zip(self._places, tf.nest.flatten(arranged), strict=True):
            leaves[place] = leaf
        return leaves

    @property
    def _inner(self):
        return self.query

    def _with_inner(self, inner):
        return ArrangedQuery(inner, self.arrangement)

    def initial_global_state(self) -> Structure:
        return self.query.initial_global_state()

    def initial_sample_state(self, template: Structure) -> Structure:
        return self.query.initial_sample_state(self._arranged(template))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        return self.query.preprocess_record(params, self._arranged(record))

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        result, global_state, event = self.query.get_noised_result(sample_state, global_state)
        return self._restored(result), global_state, event

    def norm_groups(self, template: Structure) -> list[int]:
        return self._restored(self.query.norm_groups(self._arranged(template)))

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        return self._restored(self.query.coordinate_scales(params, self._arranged(template)))

    def contribution_clips(self, template: Structure) -> list[float | None]:
        return self._restored(self.query.contribution_clips(self._arranged(template)))

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        return self.query.pack_scaled(self._arranged(scaled), statistics)
