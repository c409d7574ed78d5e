"""Records whose coordinates are scaled before they are clipped and get noise."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import real_number
from tfdp.query.dp_query import DPQuery, check_config
from tfdp.query.leaves import check_specs, spec_of, spec_of_words, words_of_spec
from tfdp.query.structure import Structure, tensor_of
from tfdp.query.wrapping import WrappingQuery, check_goes_inside

_NAMES = ("inner_query", "record_specs", "beta_2", "floor")


class ScaledGlobalState(NamedTuple):
    """The number of results so far, their second moments, and the inner query's state."""

    step: tf.Tensor
    second_moments: tuple[tf.Tensor, ...]
    inner_state: Structure


@dataclasses.dataclass(frozen=True)
class ScaleThenPrivatizeQuery(WrappingQuery):
    """Gives each coordinate clip and noise in proportion to what it was in earlier results.

    With v the moving average of squared results, v' its mean over all coordinates, and f = `floor`,

        s_j = sqrt((1 + f) v' / (v_j + f v')),    result = inner(s_j r_ij) / s_j.

    Where gradients differ by orders of magnitude between coordinates, one clip and one noise for
    all drown the small ones. After scaling, coordinates are about equal, and in the result the
    noise of each is in proportion to it: this is what adaptive optimizers, which divide by
    sqrt(v), need.

    Guarantees:
        Scales follow earlier results alone, which were released. So a sample is clipped, noised and
        charged as by the inner query, of records that a public linear map has changed; and the
        result is divided by public numbers.

    Edge cases:
        The scales of the first sample are 1, and its result counts with its mean square in all
        coordinates: scales move away from 1 over about 1 / (1 - beta_2) steps. They are between
        sqrt((1 + f) / (d + f)) and sqrt((1 + f) / f) for d coordinates. A result that is not finite
        leaves them as they were.

    On all engines. The norm of a scaled gradient comes cheaply where a layer's input has no axes
    besides its features (and for embeddings). For other layers every record's gradient is made.

    Args:
        inner_query: Any query without weights of records whose results are like records.
        record_specs: Structure of tensors, variables or `tf.TensorSpec` like a record: for training
            `model.trainable_variables`.
        beta_2: Of the moving average; in [0, 1).
        floor: f, positive: what share of the mean square is added to each coordinate's.

    Raises:
        TypeError: an argument is of the wrong type, or records of the inner query have weights, or
            its results are not like records.
        ValueError: an argument is out of range, or shapes are not known.

    Example:
        >>> from tfdp.query import GaussianAverageQuery
        >>> inner = GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=100)
        >>> query = ScaleThenPrivatizeQuery(inner, [tf.TensorSpec([2], tf.float32)])
        >>> query.derive_event(query.initial_global_state()).noise_multiplier
        1.0

    References:
        Ganesh, McMahan, Thakurta 2025, "On design principles for private adaptive optimizers",
        arXiv:2507.01129 (scale-then-privatize).
    """

    inner_query: DPQuery
    record_specs: Structure
    beta_2: float = 0.999
    floor: float = 0.1

    def __post_init__(self) -> None:
        check_goes_inside("inner_query", self.inner_query, "ScaleThenPrivatizeQuery")
        object.__setattr__(self, "record_specs", tf.nest.map_structure(spec_of, self.record_specs))
        if not tf.nest.flatten(self.record_specs):
            raise ValueError("record_specs must hold at least one leaf. Received: none.")
        if any(c is not None for c in self.inner_query.contribution_clips(self.record_specs)):
            raise TypeError(
                "Rows that are selected privately cannot be scaled. Give a SparseEmbeddingSumQuery "
                f"beside it, in a NestedQuery. Received: {self.inner_query!r}."
            )
        beta_2 = real_number("beta_2", self.beta_2, minimum=0, inclusive=True, maximum=1)
        if beta_2 == 1:
            raise ValueError("beta_2 must be smaller than 1. Received: beta_2=1.")
        object.__setattr__(self, "beta_2", beta_2)
        floor = real_number("floor", self.floor, minimum=1e-6, inclusive=True, maximum=1e6)
        object.__setattr__(self, "floor", floor)

    @property
    def _inner(self):
        return self.inner_query

    def _with_inner(self, inner):
        return dataclasses.replace(self, inner_query=inner)

    def _inner_state(self, global_state):
        return global_state.inner_state

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        scales, inner = params
        others = self.inner_query.coordinate_scales(inner, template)
        return [s if o is None else s * o for s, o in zip(scales, others, strict=True)]

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return self.inner_query.scale_factors(params[1], norms)

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return self.inner_query.norm_statistics(params[1], norms)

    def initial_global_state(self) -> Structure:
        moments = tuple(
            tf.zeros(spec.shape, spec.dtype) for spec in tf.nest.flatten(self.record_specs)
        )
        inner = self.inner_query.initial_global_state()
        return ScaledGlobalState(tf.constant(0, tf.int64), moments, inner)

    def derive_sample_params(self, global_state: Structure) -> Structure:
        inner = self.inner_query.derive_sample_params(global_state.inner_state)
        return self._scales(global_state), inner

    def initial_sample_state(self, template: Structure) -> Structure:
        check_specs(self.record_specs, template)
        return self.inner_query.initial_sample_state(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        scales, inner = params
        check_specs(self.record_specs, record)
        leaves = [tensor_of(leaf) for leaf in tf.nest.flatten(record)]
        scaled = [
            leaf * tf.cast(scale, leaf.dtype) for leaf, scale in zip(leaves, scales, strict=True)
        ]
        return self.inner_query.preprocess_record(inner, tf.nest.pack_sequence_as(record, scaled))

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        noised, inner_state, event = self.inner_query.get_noised_result(
            sample_state, global_state.inner_state
        )
        scales = self._scales(global_state)
        leaves = [
            leaf / tf.cast(scale, leaf.dtype)
            for leaf, scale in zip(tf.nest.flatten(noised), scales, strict=True)
        ]
        moments = self._moments(leaves, global_state)
        state = ScaledGlobalState(global_state.step + 1, moments, inner_state)
        return tf.nest.pack_sequence_as(noised, leaves), state, event

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        scales = [tf.cast(scale, tf.float64) for scale in self._scales(global_state)]
        return collections.OrderedDict(
            smallest_scale=tf.reduce_min([tf.reduce_min(scale) for scale in scales]),
            largest_scale=tf.reduce_max([tf.reduce_max(scale) for scale in scales]),
            **super().derive_metrics(global_state),
        )

    def _scales(self, state: ScaledGlobalState) -> tuple[tf.Tensor, ...]:
        """Returns s of every coordinate."""
        mean = _mean(state.second_moments)
        return tuple(self._scales_of(moments, mean) for moments in state.second_moments)

    def _scales_of(self, moments: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        mean = tf.cast(mean, moments.dtype)
        usual = mean > 0
        # Numbers are those of the dtype: a scale is public, and what
        # it is rounded to has no part in a guarantee.
        one, floor = (tf.constant(value, moments.dtype) for value in (1.0, self.floor))
        ratios = moments / tf.where(usual, mean, one)
        return tf.sqrt(tf.where(usual, one + floor, floor) / (ratios + floor))

    def _moments(self, leaves: list[tf.Tensor], state: ScaledGlobalState) -> tuple[tf.Tensor, ...]:
        """Returns the second moments with one more result, if that and they are finite."""
        old = state.second_moments
        squares = [tf.square(tf.cast(leaf, v.dtype)) for leaf, v in zip(leaves, old, strict=True)]
        mean = _mean(squares)
        is_finite = tf.math.is_finite(mean)
        is_first = tf.equal(state.step, 0)

        def moved(v, square):
            first = tf.cast(mean, v.dtype)
            later = self.beta_2 * v + (1 - self.beta_2) * square
            return tf.where(is_finite, tf.where(is_first, first, later), v)

        return tuple(moved(v, square) for v, square in zip(old, squares, strict=True))

    def get_config(self) -> dict[str, Any]:
        specs = tf.nest.map_structure(words_of_spec, self.record_specs)
        return {**{name: getattr(self, name) for name in _NAMES}, "record_specs": specs}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ScaleThenPrivatizeQuery":
        check_config(cls.__name__, config, _NAMES)
        found = keras.saving.deserialize_keras_object(config)
        specs = tf.nest.map_structure(spec_of_words, found.pop("record_specs"))
        return cls(record_specs=specs, **found)


def _mean(parts: Any) -> tf.Tensor:
    """Returns the mean of all numbers in a list of tensors, none negative, a float64 scalar; it is
    not finite where a column of them adds up to more than its dtype holds.
    """
    # Columns in the dtype, which XLA adds up several at a time, and what they are in float64.
    columns = (tf.reduce_sum(part, 0) if part.shape.rank > 1 else part for part in parts)
    total = tf.add_n([tf.reduce_sum(tf.cast(column, tf.float64)) for column in columns])
    return total / max(sum(part.shape.num_elements() for part in parts), 1)
