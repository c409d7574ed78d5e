"""Vectors of bounded scores, added up as integers: what selections and comparisons are made of."""

import math
from typing import Any

import tensorflow as tf

from tfdp.events import Event, NonPrivateEvent
from tfdp.query.arguments import source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, describe, tensor_of

# Steps of the grid in the largest score of a record: 2^42 records fit into 63 bits.
STEPS = 2**20


class ScoresQuery(SumAggregationDPQuery):
    """A query whose records are vectors of scores, [k], which are added up as whole steps.

    What follows the sum is integer and rational arithmetic on the host, so that no rounding of a
    floating-point number has a part in the guarantee.
    """

    sensitivity: float
    monotonic: bool

    @property
    def has_numeric_result(self) -> bool:
        return False

    def initial_sample_state(self, template: Structure) -> Structure:
        return tf.zeros(vector(template).shape, tf.int64)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        scores = tf.cast(tensor_of(vector(record)), tf.float64)
        is_finite = tf.reduce_all(tf.math.is_finite(scores))
        scores = tf.where(is_finite, scores, tf.zeros_like(scores))
        # Clipped before the cast, which says nothing of large numbers, and again after it.
        lowest = 0.0 if self.monotonic else -1.0
        scores = tf.clip_by_value(scores / self.sensitivity, lowest, 1.0)
        return tf.clip_by_value(tf.cast(scores * STEPS, tf.int64), int(lowest * STEPS), STEPS)

    def _event(self, event: Event) -> Event:
        """Returns the event, or one without protection where somebody knows the seed."""
        return NonPrivateEvent() if source_of(self).seeded else event


def check_flags(query: Any, *names: str) -> None:
    """Refuses what is no bool."""
    for name in names:
        if not isinstance(getattr(query, name), bool):
            raise TypeError(f"{name} must be a bool. Received: {name}={getattr(query, name)!r}.")


def vector(record: Structure) -> Structure:
    """Returns the record, or template, if it is one vector of real numbers."""
    if not tf.nest.is_nested(record):
        record_dtype(record)
    return vector_of_any(record)


def vector_of_any(record: Structure) -> Structure:
    """Returns the record, or template, if it is one vector, of numbers of any dtype."""
    if tf.nest.is_nested(record):
        raise ValueError(f"The records must be vectors of scores. Received: {describe(record)}.")
    shape = tf.TensorShape(getattr(record, "shape", ()))
    if shape.rank != 1 or not shape.is_fully_defined() or not math.prod(shape):
        raise ValueError(f"The records must be vectors of scores. Received shape {shape}.")
    return record
