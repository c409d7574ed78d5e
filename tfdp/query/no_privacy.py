"""Queries without protection, for comparison. Their event says so."""

from typing import Any

import tensorflow as tf

from tfdp.events import Event, NonPrivateEvent
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.leaves import numeric_zeros_like, zeros_like
from tfdp.query.structure import Structure, add


class NoPrivacySumQuery(SumAggregationDPQuery):
    """The plain sum of the records.

    Guarantees:
        None. The event is `NonPrivateEvent`, for which accountants answer infinity.

    Edge cases:
        Records may hold integers, which other queries refuse.
    """

    def initial_sample_state(self, template: Structure) -> Structure:
        return tf.nest.map_structure(numeric_zeros_like, template)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        return sample_state, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        return NonPrivateEvent()


class NoPrivacyAverageQuery(DPQuery):
    """The plain average of the records, over their realised (weighted) number.

    Guarantees:
        None. The event is `NonPrivateEvent`, for which accountants answer infinity.

    Edge cases:
        The average of no records is zero.
    """

    def initial_sample_state(self, template: Structure) -> Structure:
        return tf.nest.map_structure(zeros_like, template), tf.zeros([], tf.float64)

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure, weight: Any = 1
    ) -> Structure:
        total, count = sample_state
        weighted = tf.nest.map_structure(
            lambda leaf: leaf * tf.cast(weight, leaf.dtype), preprocessed_record
        )
        return add(total, weighted), count + tf.cast(weight, count.dtype)

    def accumulate_record(
        self, params: Structure, sample_state: Structure, record: Structure, weight: Any = 1
    ) -> Structure:
        """Returns the sample state with one more record in it, `weight` times.

        Args:
            params: As in `DPQuery.accumulate_record`.
            sample_state: Likewise.
            record: Likewise.
            weight: A number that the record is multiplied by and counts as.
        """
        return self.accumulate_preprocessed_record(
            sample_state, self.preprocess_record(params, record), weight
        )

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        return add(sample_state_1[0], sample_state_2[0]), sample_state_1[1] + sample_state_2[1]

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        total, count = sample_state
        average = tf.nest.map_structure(
            lambda leaf: tf.math.divide_no_nan(leaf, tf.cast(count, leaf.dtype)), total
        )
        return average, global_state, self.derive_event(global_state)

    def derive_event(self, global_state: Structure) -> Event:
        return NonPrivateEvent()
