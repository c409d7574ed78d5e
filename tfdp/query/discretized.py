"""Real numbers through a sum of integers."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import check_type, positive_integer, real_number
from tfdp.events.shown import shown_up
from tfdp.query import encoding
from tfdp.query.arguments import clip_norm, source_of
from tfdp.query.distributed import (
    DistributedDiscreteGaussianSumQuery,
    DistributedSkellamSumQuery,
    SharesSampleState,
)
from tfdp.query.dp_query import DPQuery
from tfdp.query.integer_sums import DiscreteGaussianSumQuery
from tfdp.query.leaves import record_dtype
from tfdp.query.structure import Structure, add, tensor_of

_SUMS = (
    DiscreteGaussianSumQuery,
    DistributedDiscreteGaussianSumQuery,
    DistributedSkellamSumQuery,
)


class DiscretizedGlobalState(NamedTuple):
    """How many results there were, and the state of the sum of integers."""

    step: Any
    sum_state: Structure


class DiscretizedSampleState(NamedTuple):
    """A record, or a sum of records, as integers.

    Attributes:
        integers: The state of the sum of integers.
        like: For every leaf of a record an empty tensor [0, ...] of its dtype and shape.
    """

    integers: Structure
    like: Structure


@dataclasses.dataclass(frozen=True)
class DiscretizedSumQuery(DPQuery):
    """Sends records of real numbers, clipped, through a sum of integers modulo 2^modulus_bits.

        integers_i = round(scale * H D r_i * min(1, l2_norm_clip / |r_i|))
        result     = D H (sum_i integers_i + noise, modulo 2^modulus_bits) / scale

    Leaves are flattened into one vector, which is filled up to a length that is a power of two. D
    are signs that are new in every step, H is the Hadamard matrix: no coordinate of what is rounded
    is much larger than the others. Rounding is random and repeated until the norm is within the
    bound of `sum_query`, which makes the noise and the event.

    Guarantees:
        The event is that of `sum_query`; its bound is checked on the integers. A sum that does not
        fit into the modulus wraps around. That is a useless result, and not a less private one.

    Edge cases:
        A record with a NaN or infinity is zero. If `sum_query` adds shares of noise, it has one all
        the same.

    Args:
        sum_query: A `DiscreteGaussianSumQuery` or a distributed sum.
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        scale: Integers per unit; the `l2_norm_bound` of `sum_query` must be
            `rounded_norm_bound(scale * l2_norm_clip, d)` =: B at least, d being the filled-up
            length, and the `l1_norm_bound` of a `DistributedSkellamSumQuery` B min(B, sqrt(d)).
        modulus_bits: Of the integers that are added up; from 2 to 62.
        rotation_seed: Of the signs, with the number of the step. All who take part must know it; it
            is no secret.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> integers = DiscreteGaussianSumQuery(l2_norm_bound=2002.0, stddev=0.0)
        >>> query = DiscretizedSumQuery(integers, l2_norm_clip=1.0, scale=2000.0)
        >>> state = query.initial_global_state()
        >>> sample = query.initial_sample_state(tf.zeros([3]))
        >>> params = query.derive_sample_params(state)
        >>> sample = query.accumulate_record(params, sample, tf.constant([3.0, 0.0, -4.0]))
        >>> print(query.get_noised_result(sample, state)[0].numpy().round(2) + 0.0)
        [ 0.6  0.  -0.8]

    References:
        Kairouz, Liu, Steinke 2021, arXiv:2102.06387, algorithms 1 and 2.
    """

    sum_query: DPQuery
    l2_norm_clip: float
    scale: float
    modulus_bits: int = 32
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.sum_query, _SUMS):
            raise TypeError(
                f"sum_query must be one of {', '.join(kind.__name__ for kind in _SUMS)}. Received: "
                f"sum_query={self.sum_query!r}."
            )
        object.__setattr__(self, "l2_norm_clip", clip_norm("l2_norm_clip", self.l2_norm_clip))
        scale = real_number("scale", self.scale, minimum=1e-18, inclusive=True, maximum=1e30)
        object.__setattr__(self, "scale", scale)
        bits = positive_integer("modulus_bits", self.modulus_bits)
        if not 2 <= bits <= 62:
            raise ValueError(f"modulus_bits must be in 2 .. 62. Received: modulus_bits={bits}.")
        object.__setattr__(self, "modulus_bits", bits)
        check_type("rotation_seed", self.rotation_seed, int)
        if abs(self.rotation_seed) >= 2**63:
            raise ValueError(f"rotation_seed must fit into 64 bits. Received: {self!r}.")

    @property
    def is_sum(self) -> bool:
        return True

    @property
    def needs_separate_records(self) -> bool:
        return True

    @property
    def draws_for_records(self) -> bool:
        return True

    @property
    def min_contributors(self) -> int:
        return self.sum_query.min_contributors

    def initial_global_state(self) -> Structure:
        return DiscretizedGlobalState(tf.zeros([], tf.int64), self.sum_query.initial_global_state())

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return global_state._replace(
            sum_state=self.sum_query.derive_sample_params(global_state.sum_state)
        )

    def initial_sample_state(self, template: Structure) -> Structure:
        like = tf.nest.map_structure(_like, template)
        vector = tf.zeros([self._length(like)], tf.int64)
        return DiscretizedSampleState(self.sum_query.initial_sample_state(vector), like)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        record = tf.nest.map_structure(tensor_of, record)
        like = tf.nest.map_structure(_like, record)
        length = self._length(like)
        flat = [tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in tf.nest.flatten(record)]
        sign = encoding.signs(self.rotation_seed, params.step, length)
        rotated = encoding.rotate(self._clipped(record, tf.concat(flat, axis=0)), sign)
        seed = source_of(self.sum_query).integers([2], 2**31 - 1)
        integers = encoding.round_at_random(
            rotated * self.scale, lambda found: self.sum_query.is_within(found)[0], seed
        )
        state = self.sum_query.preprocess_record(params.sum_state, integers)
        return DiscretizedSampleState(self._wrapped(state), like)

    def _clipped(self, record: Structure, vector: tf.Tensor) -> tf.Tensor:
        squares = [tf.reduce_sum(tf.square(leaf)) for leaf in tf.nest.flatten(record)]
        finite = tf.reduce_all([tf.math.is_finite(square) for square in squares])
        norm = tf.norm(vector)
        finite &= tf.math.is_finite(norm)
        # Shorter by 10^-9 than allowed: rotating rounds.
        clip = self.l2_norm_clip * (1 - 2.0**-30)
        factor = clip / tf.maximum(tf.where(finite, norm, clip), clip)
        return tf.where(finite, vector * factor, tf.zeros_like(vector))

    def _wrapped(self, state: Structure) -> Structure:
        if isinstance(state, SharesSampleState):
            return state._replace(sum=encoding.wrap(state.sum, self.modulus_bits))
        return encoding.wrap(state, self.modulus_bits)

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        return self.merge_sample_states(sample_state, preprocessed_record)

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        like = add(sample_state_1.like, sample_state_2.like)  # Refuses records of other shapes.
        merged = self.sum_query.merge_sample_states(
            sample_state_1.integers, sample_state_2.integers
        )
        return DiscretizedSampleState(merged, like)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        noised, sum_state, event = self.sum_query.get_noised_result(
            sample_state.integers, global_state.sum_state
        )
        like = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(sample_state.like)]
        shapes = [leaf.shape[1:].as_list() for leaf in like]
        sizes = [int(np.prod(shape)) for shape in shapes]
        length = self._length(like)
        sign = encoding.signs(self.rotation_seed, global_state.step, length)
        real = tf.cast(encoding.wrap(noised, self.modulus_bits), tf.float64) / self.scale
        parts = tf.split(encoding.rotate_back(real, sign, sum(sizes)), sizes)
        leaves = [
            tf.cast(tf.reshape(part, shape), leaf.dtype)
            for part, shape, leaf in zip(parts, shapes, like, strict=True)
        ]
        result = tf.nest.pack_sequence_as(sample_state.like, leaves)
        return result, DiscretizedGlobalState(global_state.step + 1, sum_state), event

    def derive_event(self, global_state: Structure) -> Event:
        return self.sum_query.derive_event(global_state.sum_state)

    def _length(self, like: Structure) -> int:
        """Returns d, for records like these.

        Raises:
            ValueError: a bound of the sum leaves no room for rounding so many coordinates.
        """
        shapes = [leaf.shape[1:] for leaf in tf.nest.flatten(like)]
        length = encoding.padded_length(sum(shape.num_elements() for shape in shapes))
        bound = encoding.rounded_norm_bound(self.scale * self.l2_norm_clip, length)
        needs = {"l2_norm_bound": bound}
        if isinstance(self.sum_query, DistributedSkellamSumQuery):
            # Of integers: |k| <= k^2.
            needs["l1_norm_bound"] = bound * min(bound, math.sqrt(length))
        for name, needed in needs.items():
            if getattr(self.sum_query, name) < needed * (1 - 1e-9):
                raise ValueError(
                    f"Records of {length} coordinates (a power of two) with scale={self.scale} and "
                    f"l2_norm_clip={self.l2_norm_clip} need a sum_query with an {name} of "
                    f"{shown_up(needed)} or more, so that they can be rounded: with B of "
                    "tfdp.query.rounded_norm_bound, B in l2 and B min(B, sqrt(d)) in l1. "
                    f"Received: {self.sum_query!r}."
                )
        return length


def _like(leaf: Any) -> tf.Tensor:
    """Returns an empty tensor that has the dtype of a leaf, and its shape after one axis."""
    dtype = record_dtype(leaf)
    shape = tf.TensorShape(leaf.shape if hasattr(leaf, "shape") else np.shape(leaf))
    if not shape.is_fully_defined():
        raise ValueError(
            "Records must have a shape that is known when a graph is built. Received a leaf of "
            f"shape {shape}."
        )
    return tf.zeros([0, *shape], dtype)
